//! Names as patterns that match nothing else.

use crate::policy::PathPattern;

/// `name` with what means something in a pattern escaped.
pub(super) fn escaped(name: &str) -> String {
    let text = in_classes(name, |c| matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\'));
    if PathPattern::allowing(&text).is_ok() {
        return text;
    }
    // What means something only in its place, such as `!` at the start.
    in_classes(name, |c| {
        c.is_whitespace() || (c.is_ascii_punctuation() && !matches!(c, '/' | '.' | '-' | '_'))
    })
}

/// `name` with some characters in classes of their own.
fn in_classes(name: &str, is_alone: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        if is_alone(c) {
            text.extend(['[', c, ']']);
        } else {
            text.push(c);
        }
    }
    text
}
