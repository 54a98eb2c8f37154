//! Parser of a client's messages: one strict JSON object with `channel`, `type`,
//! `requestId` and the fields of the type. Unknown fields are ignored.

use std::borrow::Cow;

use portcullis_rpc::{PartialEnvelope, strict_json};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::memory::MAX_UNCOUNTED;

/// The name of the channel.
pub(super) const CHANNEL: &str = "files";
/// Longest `requestId`, as JSON, in bytes.
const MAX_ID: usize = 1024;
/// Longest name of a channel or type, in bytes. Half of a longer one could be half a secret.
const MAX_NAME: usize = 64;

/// The fields with which a reply begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) channel: Option<String>,
    pub(super) kind: Option<String>,
    /// The id as received: a string or a number, in JSON.
    pub(super) id: Option<String>,
}

/// A request of a client.
#[derive(Debug)]
pub(super) struct ClientMessage<'a> {
    pub(super) head: RequestHead,
    pub(super) fields: Fields<'a>,
}

/// The fields of all types together.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) kind: String,
    pub(super) path: Option<Cow<'a, str>>,
    pub(super) old_path: Option<Cow<'a, str>>,
    pub(super) new_path: Option<Cow<'a, str>>,
    pub(super) content: Option<Cow<'a, str>>,
    pub(super) encoding: Option<Cow<'a, str>>,
}

/// A message that is malformed, or for another channel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    pub(super) head: RequestHead,
    pub(super) reason: String,
}

/// A message with fields of any type, so that an error in one is reported under the
/// id of the message.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw<'a> {
    #[serde(borrow)]
    channel: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    request_id: Option<&'a RawValue>,
    #[serde(borrow)]
    path: Option<&'a RawValue>,
    #[serde(borrow)]
    old_path: Option<&'a RawValue>,
    #[serde(borrow)]
    new_path: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    encoding: Option<&'a RawValue>,
}

/// Parses a message.
pub(super) fn parse(bytes: &[u8]) -> Result<ClientMessage<'_>, Malformed> {
    let bad = |head: &RequestHead, reason: &str| Malformed {
        head: head.clone(),
        reason: reason.to_owned(),
    };
    let mut head = RequestHead::default();
    let text = strict_json::check_line(bytes).map_err(|error| {
        bad(&seen(bytes), &error.to_string().replace("the line", "the message"))
    })?;
    let none = || bad(&head, "the message is not a JSON object");
    if !strict_json::is_object(text) {
        return Err(none());
    }
    let raw: Raw<'_> = serde_json::from_str(text).map_err(|_| none())?;
    head.id = raw.request_id.and_then(id);
    head.channel = raw.channel.and_then(name);
    head.kind = raw.kind.and_then(name);
    if raw.request_id.is_some() && head.id.is_none() {
        return Err(bad(&head, "`requestId` must be a short string or a number"));
    }
    match head.channel.as_deref() {
        Some(CHANNEL) => {}
        Some(_) => return Err(bad(&head, "only the channel `files` is served here")),
        None => return Err(bad(&head, "`channel` must be a short string, here `files`")),
    }
    let Some(kind) = head.kind.clone() else {
        return Err(bad(&head, "`type` must be a short string"));
    };
    if head.id.is_none() {
        return Err(bad(&head, "a request needs a `requestId`"));
    }
    // Memory is reserved for the reply only where the message is small.
    if bytes.len() > MAX_UNCOUNTED && matches!(kind.as_str(), "read" | "list") {
        return Err(bad(&head, "the message is too long for its type"));
    }
    let field = |name: &str, value: Option<&'_ RawValue>| match value {
        Some(value) => {
            optional(value).map_err(|()| bad(&head, &format!("`{name}` must be a string")))
        }
        None => Ok(None),
    };
    let fields = Fields {
        kind,
        path: field("path", raw.path)?,
        old_path: field("oldPath", raw.old_path)?,
        new_path: field("newPath", raw.new_path)?,
        content: content(raw.content).map_err(|()| bad(&head, "`content` must be a string"))?,
        encoding: field("encoding", raw.encoding)?,
    };
    Ok(ClientMessage { head, fields })
}

/// Returns the legible part of a malformed message, so that its sender gets a reply
/// with the id.
fn seen(bytes: &[u8]) -> RequestHead {
    let envelope = PartialEnvelope::read_with("requestId", bytes);
    // Only strict JSON is repeated in a reply.
    let strict = |raw: &&RawValue| strict_json::check_line(raw.get().as_bytes()).is_ok();
    RequestHead {
        channel: None,
        kind: envelope.kind.and_then(name),
        id: envelope.id().filter(strict).and_then(id),
    }
}

/// Returns the type of a message, if it is legible.
pub(super) fn kind(bytes: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct KindMember<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<Cow<'a, str>>,
    }
    serde_json::from_slice::<KindMember<'_>>(bytes).ok()?.kind
}

/// A string, copied only if it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn content(value: Option<&RawValue>) -> Result<Option<Cow<'_, str>>, ()> {
    match value {
        Some(value) => serde_json::from_str::<Option<Text<'_>>>(value.get())
            .map(|t| t.map(|t| t.0))
            .map_err(drop),
        None => Ok(None),
    }
}

fn optional<'a>(value: &RawValue) -> Result<Option<Cow<'a, str>>, ()> {
    serde_json::from_str::<Option<String>>(value.get()).map(|t| t.map(Cow::Owned)).map_err(drop)
}

fn name(value: &RawValue) -> Option<String> {
    serde_json::from_str::<String>(value.get()).ok().filter(|name| name.len() <= MAX_NAME)
}

fn id(value: &RawValue) -> Option<String> {
    let text = value.get();
    let fits = text.len() <= MAX_ID && !text.starts_with(['{', '[', 't', 'f', 'n']);
    fits.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_with_its_id_as_it_came() {
        let message = parse(
            br#"{"channel":"files","type":"write","requestId":1.50,"path":"/a","content":"b\n","x":{}}"#,
        )
        .unwrap();
        assert_eq!(message.head.id.as_deref(), Some("1.50"));
        assert_eq!(message.fields.kind, "write");
        assert_eq!(message.fields.path.as_deref(), Some("/a"));
        assert_eq!(message.fields.content.as_deref(), Some("b\n"));
    }

    /// JavaScript produces a lone surrogate by cutting a character in half.
    #[test]
    fn a_message_that_is_not_strict_is_answered_under_its_id_and_type() {
        let message = br#"{"channel":"files","type":"write","requestId":"q1","content":"\ud800"}"#;
        let Malformed { head, .. } = parse(message).unwrap_err();
        assert_eq!((head.id.as_deref(), head.kind.as_deref()), (Some("\"q1\""), Some("write")));
        let long = format!(r#"{{"type":"{}","requestId":"{}","#, "x".repeat(99), "x".repeat(2000));
        let Malformed { head, .. } = parse(long.as_bytes()).unwrap_err();
        // The beginning of the type could be half a secret, and was recorded.
        assert_eq!((head.id, head.kind), (None, None));
    }

    /// Such a message would read a content or list with the memory of the message
    /// alone.
    #[test]
    fn a_question_that_is_padded_is_none() {
        for (kind, is_refused) in [("read", true), ("list", true), ("write", false)] {
            let padding = "x".repeat(MAX_UNCOUNTED);
            let message = format!(
                r#"{{"channel":"files","type":"{kind}","requestId":"1","path":"a","x":"{padding}"}}"#
            );
            let parsed = parse(message.as_bytes());
            let reason = parsed.as_ref().err().map(|malformed| malformed.reason.as_str());
            assert_eq!(reason, is_refused.then_some("the message is too long for its type"));
        }
    }

    #[test]
    fn what_is_no_request_says_why_under_its_id_where_it_has_one() {
        let reason = |text: &str| {
            let malformed = parse(text.as_bytes()).unwrap_err();
            (malformed.head.id.is_some(), malformed.reason)
        };
        for (text, id, part) in [
            ("", false, "not JSON"),
            ("[]", false, "not a JSON object"),
            (r#" ["files","stat",1,"a",null,null,null,null]"#, false, "not a JSON object"),
            ("\u{feff}{}", false, "byte order mark"),
            (r#"{"channel":"files","channel":"files"}"#, false, "repeats a key"),
            (r#"{"requestId":"1","content":"a\ud800b"}"#, true, "half of a surrogate pair"),
            (r#"{"content":"a\ud800b","requestId":7,"x":0}"#, true, "half of a surrogate pair"),
            (r#"{"requestId":"1","path":"a","path":"b"}"#, true, "repeats a key"),
            // An ambiguous id, or one that a reply cannot repeat.
            (r#"{"requestId":"1","requestId":"2"}"#, false, "repeats a key"),
            (r#"{"requestId":"\ud800","path":"a"}"#, false, "half of a surrogate pair"),
            (r#"{"requestId":{"a":1,"a":2},"path":"a"}"#, false, "repeats a key"),
            (r#"{"requestId":"1","path":"a""#, true, "not JSON"),
            (r#"{"channel":"terminal","type":"list","requestId":"1"}"#, true, "only the channel"),
            (r#"{"type":"list","requestId":"1"}"#, true, "`channel`"),
            (r#"{"channel":"files","requestId":"1"}"#, true, "`type`"),
            (r#"{"channel":"files","type":7,"requestId":"1"}"#, true, "`type`"),
            (r#"{"channel":"files","type":"list"}"#, false, "needs a `requestId`"),
            (r#"{"channel":"files","type":"list","requestId":{}}"#, false, "`requestId`"),
            (r#"{"channel":"files","type":"list","requestId":"1","path":7}"#, true, "`path`"),
            (
                r#"{"channel":"files","type":"write","requestId":"1","content":[]}"#,
                true,
                "`content`",
            ),
        ] {
            let (has, message) = reason(text);
            assert_eq!(has, id, "{text}");
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
