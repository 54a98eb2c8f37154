//! Serialization of messages to lines.

use rmcp::model::{
    CallToolResult, ContentBlock, JsonRpcMessage, JsonRpcResponse, MetaObject, RequestId,
    ResultType, ServerJsonRpcMessage, ServerResult,
};
use serde::Serialize;
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

/// Bytes of a reply besides its text, almost always.
const REPLY_OVERHEAD: usize = 1024;

/// Serializes a message, with its `\n`.
pub(super) fn of(message: &ServerJsonRpcMessage) -> serde_json::Result<Vec<u8>> {
    if let JsonRpcMessage::Response(JsonRpcResponse { id, result, .. }) = message
        && let ServerResult::CallToolResult(result) = result
        && let Some(text) = duplicated_text(result)
    {
        let text = to_raw_value(text)?;
        let room = text.get().len().saturating_mul(2).saturating_add(REPLY_OVERHEAD);
        return write(&Response { jsonrpc: "2.0", id, result: Texts::new(result, &text) }, room);
    }
    write(message, REPLY_OVERHEAD)
}

/// Serializes a value, with a `\n`; `room` is the expected length.
fn write(message: &impl Serialize, room: usize) -> serde_json::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(room);
    serde_json::to_writer(&mut line, message)?;
    line.push(b'\n');
    Ok(line)
}

/// Returns the text that is a result's content and also its structured content. The
/// reference server sends such results; [`of`] escapes the text once.
fn duplicated_text(result: &CallToolResult) -> Option<&str> {
    let [ContentBlock::Text(text)] = result.content.as_slice() else { return None };
    let Some(Value::Object(structured)) = &result.structured_content else { return None };
    let is_plain = text.meta.is_none() && text.annotations.is_none() && structured.len() == 1;
    let is_same = structured.get("content").is_some_and(|it| it.as_str() == Some(&text.text));
    (is_plain && is_same).then_some(&text.text)
}

#[derive(Serialize)]
struct Response<'a> {
    jsonrpc: &'static str,
    id: &'a RequestId,
    result: Texts<'a>,
}

/// A [`CallToolResult`] whose text is serialized already.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Texts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'a ResultType>,
    content: [Text<'a>; 1],
    structured_content: Structured<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_error: Option<bool>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaObject>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "text")]
struct Text<'a> {
    text: &'a RawValue,
}

#[derive(Serialize)]
struct Structured<'a> {
    content: &'a RawValue,
}

impl<'a> Texts<'a> {
    fn new(result: &'a CallToolResult, text: &'a RawValue) -> Self {
        Self {
            result_type: result.result_type.as_ref(),
            content: [Text { text }],
            structured_content: Structured { content: text },
            is_error: result.is_error,
            meta: result.meta.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::NumberOrString;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_that_is_sent_twice_makes_the_same_line() {
        let texts = ["", "plain", "\"quoted\"\n\tand\u{1}\u{7f}ż\u{2028}\\ "];
        let structured = |text: &str| {
            [
                Some(json!({ "content": text })),
                Some(json!({ "content": text, "more": 1 })),
                Some(json!({ "content": "other" })),
                Some(json!({ "content": 1 })),
                Some(json!(null)),
                None,
            ]
        };
        let mut twice = 0;
        for text in texts {
            for structured in structured(text) {
                for (content, meta) in [(1, None), (1, Some(json!({ "a": [text] }))), (2, None)] {
                    let mut result =
                        CallToolResult::success(vec![ContentBlock::text(text); content]);
                    result.structured_content = structured.clone();
                    let meta = meta.map(|meta| MetaObject(meta.as_object().unwrap().clone()));
                    let result = result.with_meta(meta);
                    twice += usize::from(duplicated_text(&result).is_some());
                    for id in [NumberOrString::Number(7), NumberOrString::String("ż".into())] {
                        let result = ServerResult::CallToolResult(result.clone());
                        let message = ServerJsonRpcMessage::response(result, id);
                        let mut expected = serde_json::to_vec(&message).unwrap();
                        expected.push(b'\n');
                        assert_eq!(of(&message).unwrap(), expected);
                    }
                }
            }
        }
        assert_eq!(twice, 6);
    }
}
