//! Names written as patterns that match nothing else.

use crate::outline::PathPattern;

/// Escapes the characters of `name` that have a meaning in patterns.
pub(super) fn escaped(name: &str) -> String {
    let text = in_classes(name, |c| matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\'));
    if PathPattern::allowing(&text).is_ok() {
        return text;
    }
    // Some characters have a meaning only in their position, such as `!` at the start; a dot has one
    // in `...`.
    let text = in_classes(name, |c| !c.is_alphanumeric() && !matches!(c, '/' | '.' | '-' | '_'));
    if PathPattern::allowing(&text).is_ok() {
        return text;
    }
    in_classes(name, |c| !c.is_alphanumeric() && c != '/')
}

/// Puts some characters of `name` into classes of their own.
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
            "\u{fe61}\u{204e}",
            "\u{ff3b}a\u{ff0c}b\u{ff3d}",
            "\u{ff5b}a\u{2775}",
            "\u{201c}a\u{201d}",
            "a\u{2026}",
            "...",
            "a/.../b",
            "a.yml b.yml",
            "app/(auth)",
            "dir:x",
            "x:",
            "a/-",
            "+",
            "path=x",
            "--x=y",
        ] {
            let pattern = PathPattern::allowing(&escaped(name)).unwrap();
            assert!(pattern.matches(&WorkspacePath::parse(name).unwrap()), "{name}");
        }
    }
}
