//! Names as patterns that match nothing else.

use crate::outline::PathPattern;

/// `name` with what means something in a pattern escaped.
pub(super) fn escaped(name: &str) -> String {
    let text = in_classes(name, |c| matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\'));
    if PathPattern::allowing(&text).is_ok() {
        return text;
    }
    // What means something only in its place, such as `!` at the start, or looks like it.
    in_classes(name, |c| !c.is_alphanumeric() && !matches!(c, '/' | '.' | '-' | '_'))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WorkspacePath;

    #[test]
    fn look_alikes_of_what_means_something_stand_in_classes() {
        for name in [
            "src\u{2215}x",
            "\u{ff0a}.txt",
            "\u{ff1f}",
            "a\u{2217}b",
            "a\u{ff0e}b",
            "\u{201c}a\u{201d}",
            "a\u{2026}",
        ] {
            let pattern = PathPattern::allowing(&escaped(name)).unwrap();
            assert!(pattern.matches(&WorkspacePath::parse(name).unwrap()), "{name}");
        }
    }
}
