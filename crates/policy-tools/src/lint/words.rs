//! Words that stand for everything in other languages, and are ordinary names here; and patterns of
//! agents that no agent's name matches.

use toml::de::DeTable;

use super::{agents, finding::Finding, forms::MisreadPattern, subject::Subject};

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
            names(rule, "agents", file, found, |text| {
                word(text, "an agent", "agents")
                    .or_else(|| agents::misread(text, subject.default_agents))
            });
            names(rule, "hosts", file, found, |text| word(text, "a host", "hosts"));
        }
    }
}

fn names(
    rule: &DeTable<'_>,
    key: &str,
    file: usize,
    found: &mut Vec<Finding>,
    misread: impl Fn(&str) -> Option<MisreadPattern>,
) {
    let list = rule.get(key).and_then(|list| list.get_ref().as_array());
    for value in list.into_iter().flat_map(|list| list.iter()) {
        let Some((id, message, suggestion)) = value.get_ref().as_str().and_then(&misread) else {
            continue;
        };
        found.push(Finding { id, file, span: value.span(), message, suggestion });
    }
}

fn word(text: &str, what: &str, key: &str) -> Option<MisreadPattern> {
    WORDS.contains(&&*text.to_ascii_lowercase()).then(|| {
        (
            "word-as-wildcard",
            format!("`{text}` is the name of {what}, and does not stand for all {key}"),
            "write `*` for all of them".to_owned(),
        )
    })
}
