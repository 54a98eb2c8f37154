//! The forms of a path that denials compare.
//!
//! A denial must also apply to other forms of the same name: another case, another Unicode normal
//! form, full-width letters, trailing dots or spaces, invisible characters, a character that merely
//! looks like `/`. So denials compare a path in folded form, and again in cleaned form. Folding can
//! join two characters into one, which `?` and `[…]` must not miss, so each form is accompanied by
//! the text before folding. Allowances compare the path unchanged: this module never makes anything
//! easier to allow.

use std::borrow::Cow;

use unicode_normalization::{UnicodeNormalization as _, is_nfc, is_nfkc};

use crate::model::{WorkspacePath, is_hidden_character};

/// The forms of one path.
#[derive(Debug)]
pub struct NormalizedForms<'p> {
    /// The path unchanged.
    pub raw: &'p str,
    /// Normal form C with case folded.
    pub folded: Cow<'p, str>,
    /// The folded form in normal form KC, without trailing dots and spaces of components, without
    /// hidden characters, and with look-alikes of the separator replaced; `None` if it is equal.
    pub cleaned: Option<String>,
    /// Normal form C, if its number of characters differs from that of `folded`, or if folding does
    /// more to a character than make it lower case.
    pub unfolded: Option<String>,
    /// The text of `cleaned` before folding, likewise.
    cleaned_unfolded: Option<String>,
    /// True if the path has another normal form, and so other characters.
    decomposed: bool,
}

impl<'p> NormalizedForms<'p> {
    /// Computes the forms of `path`, without an allocation if it is plain lower-case ASCII.
    pub fn of(path: &'p WorkspacePath) -> Self {
        let raw = path.as_str();
        if is_plain(raw) {
            return Self {
                raw,
                folded: Cow::Borrowed(raw),
                cleaned: None,
                unfolded: None,
                cleaned_unfolded: None,
                decomposed: false,
            };
        }
        let folded = fold(raw);
        let cleaned = needs_cleaning(&folded).then(|| clean(&folded));
        let unfolded = unfolded(raw, &folded);
        let cleaned_unfolded = match (&unfolded, &cleaned) {
            (Some(unfolded), Some(_)) => Some(compose(Cow::Owned(bare(unfolded))).into_owned()),
            _ => None,
        };
        let decomposed = !raw.is_ascii() && !is_nfc(raw);
        Self { raw, folded, cleaned, unfolded, cleaned_unfolded, decomposed }
    }

    /// Returns the forms that denials compare besides the folded one, each with its text before
    /// folding if that matters.
    pub fn others(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let cleaned = self.cleaned.as_deref();
        let cleaned = cleaned.map(|text| (text, self.cleaned_unfolded.as_deref()));
        cleaned.into_iter().chain(self.decomposed.then_some((&*self.folded, Some(self.raw))))
    }
}

/// Returns `text` in normal form C, unless folding only made single characters lower case.
fn unfolded(text: &str, folded: &str) -> Option<String> {
    if text.is_ascii() {
        return None;
    }
    let composed = compose(Cow::Borrowed(text));
    let lower = |c: char| single(c.to_lowercase()).unwrap_or(c);
    composed.chars().map(lower).ne(folded.chars()).then(|| composed.into_owned())
}

/// Returns the only item, if there is exactly one.
pub(super) fn single<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next();
    if items.next().is_none() { first } else { None }
}

/// True if a path or a name has a single form: ASCII without capitals and without anything that
/// [`clean`] removes.
pub(super) fn is_plain(text: &str) -> bool {
    has_one_form(text.as_bytes()) && !has_trailing(text.as_bytes())
}

/// True if one component has a single form.
pub(super) fn is_plain_name(name: &str) -> bool {
    has_one_form(name.as_bytes()) && !name.bytes().next_back().is_some_and(trailing)
}

fn has_one_form(bytes: &[u8]) -> bool {
    let odd = |byte: u8| !(b' '..0x7f).contains(&byte) | byte.is_ascii_uppercase();
    // Without an early exit many bytes are compared at once.
    !bytes.iter().fold(false, |found, byte| found | odd(*byte))
}

/// True if a component ends in a dot or a space.
fn has_trailing(bytes: &[u8]) -> bool {
    let pairs = bytes.iter().zip(bytes.get(1..).unwrap_or_default());
    let inside = pairs.fold(false, |found, (one, next)| found | (trailing(*one) & (*next == b'/')));
    inside || bytes.last().copied().is_some_and(trailing)
}

fn trailing(byte: u8) -> bool {
    (byte == b'.') | (byte == b' ')
}

/// Returns `text` in normal form C with case folded: equal for texts that differ only in case or
/// normal form.
pub(super) fn fold(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(text.to_ascii_lowercase())
        } else {
            Cow::Borrowed(text)
        };
    }
    let mut folded = String::with_capacity(text.len());
    // As in a directory without case: marks are sorted before they are folded.
    for c in text.nfd() {
        if c.is_ascii() {
            folded.push(c.to_ascii_lowercase());
        } else {
            // Lower, upper, lower: `ẞ`, `ß` and `SS` become `ss`, `ſ` becomes `s`.
            let upper = c.to_lowercase().flat_map(char::to_uppercase);
            folded.extend(upper.flat_map(char::to_lowercase));
        }
    }
    compose(Cow::Owned(folded))
}

/// Converts to normal form C.
fn compose(text: Cow<'_, str>) -> Cow<'_, str> {
    if is_nfc(&text) { text } else { Cow::Owned(text.nfc().collect()) }
}

fn needs_cleaning(folded: &str) -> bool {
    if !folded.is_ascii() {
        // A file system may find `.git` by full-width letters (`normalization=formKC` of ZFS).
        return any_needs_cleaning(folded) || !is_nfkc(folded);
    }
    // In ASCII only control characters are hidden, and nothing looks like a separator. The only
    // white space besides them is the space.
    folded.bytes().any(|byte| byte.is_ascii_control()) || has_trailing(folded.as_bytes())
}

/// True if any text, ASCII or not, needs cleaning.
fn any_needs_cleaning(folded: &str) -> bool {
    let mut last = '/';
    for c in folded.chars() {
        let ends = c == '/' && is_trailing(last);
        if ends || is_hidden_character(c) || is_separator_look_alike(c) {
            return true;
        }
        last = c;
    }
    is_trailing(last)
}

/// True if a name means the same without `c` at its end.
fn is_trailing(c: char) -> bool {
    c == '.' || c.is_whitespace()
}

fn clean(folded: &str) -> String {
    let cleaned = bare(folded);
    // Removing a character can put a combining mark next to another base.
    if cleaned.is_ascii() { cleaned } else { fold(&cleaned).into_owned() }
}

/// Removes what cleaning removes, without folding.
fn bare(text: &str) -> String {
    let visible: String = text
        .nfkc()
        .filter(|c| !is_hidden_character(*c))
        .map(|c| if is_separator_look_alike(c) { '/' } else { c })
        .collect();
    let mut cleaned = String::with_capacity(visible.len());
    for component in visible.split('/').filter(|component| !component.is_empty()) {
        let trimmed = component.trim_end_matches(is_trailing);
        if !cleaned.is_empty() {
            cleaned.push('/');
        }
        cleaned.push_str(if trimmed.is_empty() { component } else { trimmed });
    }
    cleaned
}

/// True for division, fraction and full-width slashes.
pub(super) fn is_separator_look_alike(c: char) -> bool {
    matches!(c, '\u{2044}' | '\u{2215}' | '\u{29f8}' | '\u{ff0f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(text: &str) -> String {
        let path = WorkspacePath::parse(text).unwrap();
        let forms = NormalizedForms::of(&path);
        forms.cleaned.clone().unwrap_or_else(|| forms.folded.clone().into_owned())
    }

    proptest::proptest! {
        #[test]
        fn ascii_is_cleaned_as_any_text_is(text in "[ -~\\t\\n\\r\\x0b\\x7f]{0,12}|[a. /]{0,9}") {
            proptest::prop_assert_eq!(needs_cleaning(&text), any_needs_cleaning(&text));
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_plain_is_spelled_in_one_way(text in "[ -~ż\\t\\x7f]{0,9}|[a. /]{0,9}") {
            if is_plain(&text) {
                proptest::prop_assert_eq!(&*fold(&text), &*text);
                proptest::prop_assert!(!any_needs_cleaning(&text));
            }
        }
    }

    #[test]
    fn plain_paths_are_borrowed() {
        let path = WorkspacePath::parse("src/lib.rs").unwrap();
        let forms = NormalizedForms::of(&path);
        assert!(matches!(forms.folded, Cow::Borrowed("src/lib.rs")));
        assert!(forms.cleaned.is_none());
    }

    #[test]
    fn folds_case_and_normal_form() {
        for (one, other) in
            [("CAFE\u{301}", "café"), ("STRASSE", "straße"), ("ẞ", "ss"), ("\u{212a}ey", "key")]
        {
            assert_eq!(fold(one), fold(other), "{one} {other}");
        }
    }

    /// An iota subscript was folded where another mark stood before it.
    #[test]
    fn a_mark_beside_an_iota_subscript_hid_a_name() {
        let name = "\u{3b7}\u{327}\u{3b9}x";
        for other in ["\u{1fc3}\u{327}x", "\u{3b7}\u{327}\u{345}x", "\u{1fcc}\u{327}X"] {
            assert_eq!(fold(name), fold(other), "{other:?}");
        }
    }

    #[test]
    fn cleans_trailing_dots_spaces_hidden_characters_and_false_separators() {
        for (text, clean) in [
            ("secret.pem.", "secret.pem"),
            ("ID_RSA  .", "id_rsa"),
            (".git./config ", ".git/config"),
            (".g\u{200d}it/x", ".git/x"),
            (".git\u{2215}hooks", ".git/hooks"),
            ("a\u{a0}", "a"),
            ("\u{ff0e}\u{ff47}it/\u{ff28}EAD", ".git/head"),
            ("id_rsa\u{b2}", "id_rsa2"),
            ("...", "..."),
            (".e\nnv", ".env"),
        ] {
            assert_eq!(cleaned(text), clean, "{text:?}");
        }
    }
}
