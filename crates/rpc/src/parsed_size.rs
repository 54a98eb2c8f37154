//! Estimate of the memory that the values of a JSON text take once they are parsed.
//!
//! It may be eighty times the text: an object with one empty key takes eight bytes on a line, and a
//! node of a tree in memory.

use serde_json::Value;

/// Bytes of an object: a `serde_json::Map` allocates a node with room for 11 members.
const OBJECT: usize = 700;
/// Bytes of another value: an array has room for up to twice its elements.
const VALUE: usize = 2 * size_of::<Value>();

/// Returns about how many bytes the values of a JSON text take, without the texts of their strings.
/// Other texts are counted likewise, which means nothing.
pub fn parsed_size(text: &[u8]) -> usize {
    let (mut size, mut is_string, mut is_escaped) = (0_usize, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_string,
            b'"' => is_string = !is_string,
            b'{' if !is_string => size = size.saturating_add(OBJECT),
            b'[' | b',' if !is_string => size = size.saturating_add(VALUE),
            _ => {}
        }
    }
    size
}

/// Returns about how many bytes a value takes, with the texts of its strings.
pub fn value_size(value: &Value) -> usize {
    let content = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_size).sum(),
        Value::Object(members) => {
            let members = members.iter().map(|(key, value)| key.len() + value_size(value));
            OBJECT + members.sum::<usize>()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    VALUE + content
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_and_elements_count_and_text_does_not() {
        assert_eq!(parsed_size(br#""a,b[{\",{""#), 0);
        assert_eq!(parsed_size(br#"{"a":"\\","b":"{"}"#), OBJECT + VALUE);
        assert_eq!(parsed_size(b"[[],{},0]"), OBJECT + 4 * VALUE);
        assert_eq!(parsed_size(&b"[".repeat(1000)), 1000 * VALUE);
    }

    #[test]
    fn a_value_takes_about_what_its_text_says() {
        let values = json!([{ "a": [0, "b", [], {}], "": null }, { "": "" }, true, [["c"]]]);
        let text = values.to_string();
        let (counted, sized) = (parsed_size(text.as_bytes()), value_size(&values));
        assert!(sized.abs_diff(counted) < counted / 8, "{sized} {counted}");
    }
}
