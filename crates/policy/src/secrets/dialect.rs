//! Translation of Go's regular expressions, which gitleaks files contain, into those of Rust.
//!
//! Both belong to the family of RE2 and have the same meaning, but Go takes literally what Rust
//! refuses or interprets differently: a `{` that begins no repetition, a `[` inside a class, and
//! the doubled `&`, `-` and `~` that are set operations in Rust.

/// Translates an expression.
pub(super) fn from_go(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let tail = rest.get(c.len_utf8()..).unwrap_or_default();
        match c {
            '\\' => rest = escape(rest, &mut out),
            '[' => {
                out.push('[');
                rest = class(tail, &mut out);
            }
            '{' if !is_repetition(tail) => {
                out.push_str("\\{");
                rest = tail;
            }
            c => {
                out.push(c);
                rest = tail;
            }
        }
    }
    out
}

/// Copies a backslash and the escaped character.
fn escape<'p>(text: &'p str, out: &mut String) -> &'p str {
    let length = text.chars().take(2).map(char::len_utf8).sum();
    let (escaped, mut rest) = text.split_at_checked(length).unwrap_or((text, ""));
    out.push_str(escaped);
    // `\x{…}` and `\p{…}` have braces of their own.
    if matches!(escaped, "\\x" | "\\p" | "\\P")
        && rest.starts_with('{')
        && let Some((braces, after)) = rest.split_once('}')
    {
        out.push_str(braces);
        out.push('}');
        rest = after;
    }
    rest
}

/// Copies a class after its `[`, including its `]`.
fn class<'p>(text: &'p str, out: &mut String) -> &'p str {
    let mut rest = text;
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    // A `]` in the first position is literal.
    if let Some(after) = rest.strip_prefix(']') {
        out.push_str("\\]");
        rest = after;
    }
    while let Some(c) = rest.chars().next() {
        let tail = rest.get(c.len_utf8()..).unwrap_or_default();
        match c {
            ']' => {
                out.push(']');
                return tail;
            }
            '\\' => {
                rest = escape(rest, out);
                continue;
            }
            '[' => match named_class(tail) {
                Some((name, after)) => {
                    out.push_str("[:");
                    out.push_str(name);
                    out.push_str(":]");
                    rest = after;
                    continue;
                }
                None => out.push_str("\\["),
            },
            '&' | '~' | '-' if tail.starts_with(c) => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
        rest = tail;
    }
    rest
}

/// Returns the name in `[:name:]`, and the rest.
fn named_class(after_bracket: &str) -> Option<(&str, &str)> {
    let (name, after) = after_bracket.strip_prefix(':')?.split_once(":]")?;
    let plain = name.strip_prefix('^').unwrap_or(name);
    let good = !plain.is_empty() && plain.chars().all(|c| c.is_ascii_lowercase());
    good.then_some((name, after))
}

/// True if the text after a `{` makes it a repetition: `3}`, `3,}` or `3,5}`.
fn is_repetition(text: &str) -> bool {
    let Some((inside, _)) = text.split_once('}') else { return false };
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    let number = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    !least.is_empty() && number(least) && number(most)
}

#[cfg(test)]
mod tests {
    use super::from_go;

    #[test]
    fn what_rust_reads_differently_is_escaped() {
        for (go, rust) in [
            (r"a{3}b{2,}c{1,4}", r"a{3}b{2,}c{1,4}"),
            (r"\${FOO}{x", r"\$\{FOO}\{x"),
            (r"{{[^}]+}}", r"\{\{[^}]+}}"),
            (r"[^]]+[]a]", r"[^\]]+[\]a]"),
            (r"[a[b]", r"[a\[b]"),
            (r"[[:alpha:]_]", r"[[:alpha:]_]"),
            (r"[a&&b]", r"[a\&&b]"),
            (r"\[{,2}\\[x]", r"\[\{,2}\\[x]"),
            (r"\x{41}{2}", r"\x{41}{2}"),
        ] {
            assert_eq!(from_go(go), rust);
            regex_syntax::Parser::new().parse(rust).unwrap();
        }
    }
}
