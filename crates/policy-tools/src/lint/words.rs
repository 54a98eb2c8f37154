//! Words that stand for everything in other languages, and are ordinary names here.

use toml::de::DeTable;

use super::{finding::Finding, subject::Subject};

const WORDS: [&str; 12] = [
    "all",
    "any",
    "anybody",
    "anyone",
    "anything",
    "each",
    "every",
    "everybody",
    "everyone",
    "everything",
    "everywhere",
    "wildcard",
];

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let Some(outline) = subject.outline.get(file) else { return };
    let (root, _) = DeTable::parse_recoverable(&outline.text);
    let root = root.get_ref();
    let network = root.get("network").and_then(|value| value.get_ref().as_table());
    for table in [Some(root), network].into_iter().flatten() {
        let rules = table.get("rules").and_then(|rules| rules.get_ref().as_array());
        let rules = rules.into_iter().flat_map(|rules| rules.iter());
        for rule in rules.filter_map(|rule| rule.get_ref().as_table()) {
            names(rule, "agents", "an agent", file, found);
            names(rule, "hosts", "a host", file, found);
        }
    }
}

fn names(rule: &DeTable<'_>, key: &str, what: &str, file: usize, found: &mut Vec<Finding>) {
    let list = rule.get(key).and_then(|list| list.get_ref().as_array());
    for value in list.into_iter().flat_map(|list| list.iter()) {
        let Some(word) = value.get_ref().as_str() else { continue };
        if WORDS.contains(&&*word.to_ascii_lowercase()) {
            found.push(Finding {
                id: "word-as-wildcard",
                file,
                span: value.span(),
                message: format!(
                    "`{word}` is the name of {what}, and does not stand for all {key}"
                ),
                suggestion: "write `*` for all of them".to_owned(),
            });
        }
    }
}
