//! Relations of names of which at least one denies, and so is compared in all normalized forms.
//!
//! A pattern that denies matches more than its text suggests: `x` matches `x.`, and `?` matches `ß`,
//! which `ss` matches as well. All forms of a name agree in what is ASCII, apart from case, and from
//! dots and spaces at the end, so only that is compared.

use crate::policy::parts::{Name, Token};

/// True if `denying` may match a form of a name that `exact` matches; `false` is certain.
pub(super) fn may_be_denied(exact: &Name, denying: &Name) -> bool {
    match exact {
        Name::Literal(text) if text.chars().all(is_plain) && without_end(text) == &**text => {
            denying.matches(&text.to_ascii_lowercase())
        }
        _ => may_both_deny(exact, denying),
    }
}

/// True if some name may match both; `false` is certain.
pub(super) fn may_both_deny(one: &Name, other: &Name) -> bool {
    let (start, other_start) = (plain_start(one), plain_start(other));
    let (end, other_end) = (plain_end(one), plain_end(other));
    (start.starts_with(&other_start) || other_start.starts_with(&start))
        && (end.ends_with(&other_end) || other_end.ends_with(&end))
        && may_contain(one, other)
        && may_contain(other, one)
}

/// True for a character that is in all forms of a name, if only in another case.
fn is_plain(c: char) -> bool {
    c.is_ascii_graphic() || c == ' '
}

/// Returns a text without what is removed at the end of a name.
fn without_end(text: &str) -> &str {
    text.trim_end_matches(['.', ' '])
}

/// Returns the text with which all forms of the matching names start.
fn plain_start(name: &Name) -> String {
    let text = name.literal_start();
    let end = text.find(|c| !is_plain(c)).unwrap_or(text.len());
    without_end(text.get(..end).unwrap_or_default()).to_ascii_lowercase()
}

/// Returns the text with which all forms of the matching names end, but for dots and spaces.
fn plain_end(name: &Name) -> String {
    let text = name.literal_end().rsplit(|c| !is_plain(c)).next().unwrap_or_default();
    without_end(text).to_ascii_lowercase()
}

/// True unless `one` matches a single name, which lacks a text of `other`.
fn may_contain(one: &Name, other: &Name) -> bool {
    let Some(text) = one.literal().filter(|text| text.chars().all(is_plain)) else { return true };
    let text = text.to_ascii_lowercase();
    let runs = texts(other).into_iter().flat_map(|text| text.split(|c| !is_plain(c)));
    runs.into_iter().all(|run| text.contains(&without_end(run).to_ascii_lowercase()))
}

/// Returns the texts that all matching names contain.
fn texts(name: &Name) -> Vec<&str> {
    match name {
        Name::Any => Vec::new(),
        Name::Literal(text) | Name::Prefix(text) | Name::Suffix(text) | Name::Infix(text) => {
            vec![&**text]
        }
        Name::Tokens(tokens) => tokens
            .iter()
            .filter_map(|token| match token {
                Token::Text(text) => Some(&**text),
                _ => None,
            })
            .collect(),
    }
}
