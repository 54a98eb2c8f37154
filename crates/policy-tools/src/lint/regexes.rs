//! The expressions of `[[secrets.rules]]`, read from the file's text. The compiler refuses those
//! that are invalid.

use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

use super::{finding::Finding, subject::Subject};
use crate::policy::{
    begins_at_word_boundary, ends_at_word_boundary, every_match_has_keyword, leaves_value,
    parts::OnRead,
};

/// Maximum of a counted repetition that is not reported.
const MAX_REPETITION: u64 = 200;

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    if let Some(outline) = subject.outline.get(file) {
        let redacts = subject.policy.secret_bounds().on_read == OnRead::Redact;
        look(&outline.text, file, redacts, found);
    }
}

/// Looks at the rules of a file; `redacts` says that what they find is redacted.
fn look(text: &str, file: usize, redacts: bool, found: &mut Vec<Finding>) {
    let (root, _) = DeTable::parse_recoverable(text);
    let rules = root
        .get_ref()
        .get("secrets")
        .and_then(|secrets| secrets.get_ref().as_table())
        .and_then(|secrets| secrets.get("rules"))
        .and_then(|rules| rules.get_ref().as_array());
    for rule in rules.into_iter().flat_map(|rules| rules.iter()) {
        let Some(table) = rule.get_ref().as_table() else { continue };
        let Some(regex) = table.get("regex") else { continue };
        let id = table.get("id").and_then(|id| id.get_ref().as_str()).unwrap_or("?");
        let keywords = table.get("keywords").and_then(|list| list.get_ref().as_array());
        if keywords.is_none_or(|list| list.is_empty()) {
            found.push(Finding {
                id: "regex-without-keywords",
                file,
                span: regex.span(),
                message: format!("the secret rule `{id}` has no `keywords`"),
                suggestion: "add the texts of which one is in every match, in lower case"
                    .to_owned(),
            });
        }
        keywords_elsewhere(id, regex, keywords, file, found);
        repetition(id, regex, file, found);
        boundary(id, regex, file, found);
        let warns = table.get("warnOnly").and_then(|warns| warns.get_ref().as_bool());
        if redacts && warns != Some(true) {
            let group = table.get("group").and_then(|group| group.get_ref().as_integer());
            disclosed(id, regex, group.and_then(|group| group.as_str().parse().ok()), file, found);
        }
    }
}

/// Finds keywords that a match need not contain.
fn keywords_elsewhere(
    id: &str,
    regex: &Spanned<DeValue<'_>>,
    keywords: Option<&DeArray<'_>>,
    file: usize,
    found: &mut Vec<Finding>,
) {
    let Some((pattern, keywords)) = regex.get_ref().as_str().zip(keywords) else { return };
    let words: Vec<_> = keywords.iter().filter_map(|word| word.get_ref().as_str()).collect();
    if words.is_empty() || every_match_has_keyword(pattern, &words) {
        return;
    }
    found.push(Finding {
        id: "keyword-outside-match",
        file,
        span: regex.span(),
        message: format!("the secret rule `{id}` has matches without any of its `keywords`"),
        suggestion: "name texts of which one is in every match, or leave `keywords` out".to_owned(),
    });
}

/// Finds a word boundary at the beginning or the end.
fn boundary(id: &str, regex: &Spanned<DeValue<'_>>, file: usize, found: &mut Vec<Finding>) {
    let Some(pattern) = regex.get_ref().as_str() else { return };
    let sides = [
        (
            begins_at_word_boundary(pattern),
            "behind",
            "leave `\\b` out before a prefix that nothing else has; a secret stands behind a \
             letter in `\"key:\\nacme_…\"` of JSON",
        ),
        (
            ends_at_word_boundary(pattern),
            "before",
            "leave `\\b` out at the end; one letter more behind a secret hides it",
        ),
    ];
    for (_, side, suggestion) in sides.into_iter().filter(|(is_bounded, ..)| *is_bounded) {
        found.push(Finding {
            id: "word-boundary",
            file,
            span: regex.span(),
            message: format!(
                "the secret rule `{id}` finds nothing {side} a letter, a digit or `_`"
            ),
            suggestion: suggestion.to_owned(),
        });
    }
}

/// Finds a redaction that leaves what it is about: the value behind its name, or the body of a key.
fn disclosed(
    id: &str,
    regex: &Spanned<DeValue<'_>>,
    group: Option<usize>,
    file: usize,
    found: &mut Vec<Finding>,
) {
    let Some(pattern) = regex.get_ref().as_str() else { return };
    let is_heading = pattern.split_once("BEGIN").is_some_and(|(_, rest)| {
        rest.trim_end_matches('$').ends_with("-----") && !rest.contains("END")
    });
    let (message, suggestion) = if leaves_value(pattern, group) {
        (
            format!("the secret rule `{id}` redacts a word, and shows what follows it"),
            r"put the value into the group, as in `(?:token|key)=(\S+)`",
        )
    } else if is_heading {
        (
            format!("the secret rule `{id}` redacts the first line of a key, and shows the key"),
            r"match it up to its end: `-----BEGIN PRIVATE KEY-----[\s\S]*?-----END PRIVATE KEY-----`",
        )
    } else {
        return;
    };
    found.push(Finding {
        id: "value-not-redacted",
        file,
        span: regex.span(),
        message,
        suggestion: suggestion.to_owned(),
    });
}

fn repetition(id: &str, regex: &Spanned<DeValue<'_>>, file: usize, found: &mut Vec<Finding>) {
    let Some(text) = regex.get_ref().as_str() else { return };
    let Some(most) = largest_repetition(text).filter(|most| *most > MAX_REPETITION) else { return };
    found.push(Finding {
        id: "regex-huge-repetition",
        file,
        span: regex.span(),
        message: format!("the secret rule `{id}` repeats something {most} times"),
        suggestion: format!(
            "repeat at most {MAX_REPETITION} times; a prefix is enough to find a secret"
        ),
    });
}

/// Returns the largest number in a counted repetition such as `{20,40}`.
fn largest_repetition(regex: &str) -> Option<u64> {
    let mut largest = None;
    let mut escaped = false;
    let mut class = false;
    for (at, c) in regex.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => class = true,
            ']' => class = false,
            '{' if !class => {
                let inside = regex.get(at + 1..).and_then(|rest| rest.split_once('}'));
                let Some((counts, _)) = inside else { continue };
                let counts = counts.split(',').map(|count| count.trim().parse::<u64>());
                largest = largest.max(counts.filter_map(Result::ok).max());
            }
            _ => {}
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_counted_where_they_are_some() {
        assert_eq!(largest_repetition("a{20,40}b{3}"), Some(40));
        assert_eq!(largest_repetition("a{1000,}"), Some(1000));
        assert_eq!(largest_repetition(r"a\{1000\}[{9999}]"), None);
        assert_eq!(largest_repetition("a{"), None);
    }

    #[test]
    fn rules_of_a_policy_are_looked_at() {
        let text = "schema = 1\n[[secrets.rules]]\nid = \"a\"\nregex = 'x{5000}'\n\
            [[secrets.rules]]\nid = \"b\"\nregex = 'x{5}'\nkeywords = [\"x\"]\n\
            [[secrets.rules]]\nid = \"c\"\nregex = 'tok_[a-z]{9}'\nkeywords = [\"token\"]\n\
            [[secrets.rules]]\nid = \"d\"\nregex = '\\btok_[a-z]{9}\\b'\nkeywords = [\"tok_\"]\n";
        let mut found = Vec::new();
        look(text, 0, false, &mut found);
        let ids: Vec<_> = found.iter().map(|finding| finding.id).collect();
        assert_eq!(
            ids,
            [
                "regex-without-keywords",
                "regex-huge-repetition",
                "keyword-outside-match",
                "word-boundary",
                "word-boundary",
            ]
        );
        assert!(found[1].message.contains("5000"), "{found:?}");
        assert_eq!(text.get(found[0].span.clone()), Some("'x{5000}'"));
    }
}
