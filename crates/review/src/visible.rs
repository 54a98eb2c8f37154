//! JSON that is safe to show on a terminal.

use std::{borrow::Cow, fmt::Write as _};

use crate::model::is_hidden_character;

/// Escapes hidden and control characters in JSON without changing its value: characters that JSON
/// permits in texts and that a terminal interprets are written as `\uXXXX`.
pub fn visible_json(line: &str) -> Cow<'_, str> {
    if !line.chars().any(is_hidden_character) {
        return Cow::Borrowed(line);
    }
    let mut out = String::with_capacity(line.len() + 64);
    for c in line.chars() {
        if is_hidden_character(c) && !c.is_ascii_whitespace() {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a `String` cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_hides_nothing() {
        let line = "{\"path\":\"a\u{202e}b\u{e0041}\u{7f}\\n\"}";
        let shown = visible_json(line);
        assert_eq!(shown, "{\"path\":\"a\\u202eb\\udb40\\udc41\\u007f\\n\"}");
        let same = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(same(&shown), same(line));
    }
}
