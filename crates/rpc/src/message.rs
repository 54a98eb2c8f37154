//! Parser of one line, or one body, as one message.
//!
//! A message is a request, a notification or a reply of JSON-RPC 2.0; everything else is refused.
//! Batches are refused: neither ACP nor MCP has them, and a filter that forwards lines cannot
//! forward half of one. Only the envelope is parsed here.

use serde_json::value::RawValue;

use crate::{
    envelope::PartialEnvelope,
    id::Id,
    object::{Object, folds_to},
    response::{INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR},
    strict_json::{self, JsonError},
};

/// The members of the envelope.
const ENVELOPE: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

/// A JSON-RPC message.
#[derive(Debug)]
pub enum Message<'a> {
    /// A request.
    Request {
        /// Its ID.
        id: Id,
        /// The method.
        method: String,
        /// The parameters, an object.
        params: Option<&'a RawValue>,
    },
    /// A notification.
    Notification {
        /// The method.
        method: String,
        /// The parameters, an object.
        params: Option<&'a RawValue>,
    },
    /// A reply.
    Reply {
        /// The ID of the request.
        id: Id,
        /// Its result or error.
        outcome: Outcome<'a>,
    },
}

/// The outcome in a reply.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// A result of any kind.
    Result(&'a RawValue),
    /// An error object.
    Error(&'a RawValue),
}

/// Input that is not one message.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidMessage {
    /// The reason.
    pub error: MessageError,
    /// The party that waits because of it, if it can be determined.
    pub addressee: Option<Addressee>,
}

/// Reasons why input is not one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It is not strict JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// It exceeds the maximum length.
    #[error("the line is too long")]
    TooLong,
    /// The stream ended before its end.
    #[error("the stream ended in the middle of a line")]
    Incomplete,
    /// It is not an object.
    #[error("the line is not one JSON object")]
    NotAnObject,
    /// It has another version of JSON-RPC.
    #[error("`jsonrpc` is not \"2.0\"")]
    Version,
    /// It has a key that some readers take for one of the envelope.
    #[error("a key of the envelope is spelled in another case")]
    Case,
    /// It has members that exclude each other.
    #[error("the message is neither a request, a notification nor a reply")]
    Shape,
    /// It has an ID that parties may read differently.
    #[error("`id` is not an integer or a string, or is too large")]
    Id,
    /// Its method is not a string.
    #[error("`method` is not a string")]
    Method,
    /// Its parameters are not an object.
    #[error("`params` is not an object")]
    Params,
}

impl MessageError {
    /// Returns the JSON-RPC error code.
    pub fn code(self) -> i64 {
        match self {
            Self::Json(_) => PARSE_ERROR,
            Self::Params => INVALID_PARAMS,
            _ => INVALID_REQUEST,
        }
    }
}

/// The party that waits because of a refused message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addressee {
    /// The message looks like a request, or like no message: its sender may wait for a reply.
    /// `None` if the ID cannot be determined or used.
    Sender(Option<Id>),
    /// The message looks like a reply: the other side waits for it.
    Asker(Id),
}

impl<'a> Message<'a> {
    /// Parses one line (without its `\n`).
    ///
    /// # Errors
    /// If it is not one message.
    pub fn parse_line(line: &'a [u8]) -> Result<Self, InvalidMessage> {
        let text = strict_json::check_line(line).map_err(MessageError::from);
        text.and_then(envelope).map_err(|error| InvalidMessage::new(error, line))
    }

    /// Parses a complete body, which may contain line ends.
    ///
    /// # Errors
    /// If it is not one message.
    pub fn parse_body(body: &'a [u8]) -> Result<Self, InvalidMessage> {
        let text = strict_json::check_text(body).map_err(MessageError::from);
        text.and_then(envelope).map_err(|error| InvalidMessage::new(error, body))
    }
}

impl InvalidMessage {
    /// Describes input that begins with `head` and is refused because of `error`.
    pub fn new(error: MessageError, head: &[u8]) -> Self {
        Self { error, addressee: addressee(head) }
    }

    /// Returns the ID of the request that the input looks like.
    pub fn request_id(&self) -> Option<&Id> {
        match &self.addressee {
            Some(Addressee::Sender(id)) => id.as_ref(),
            _ => None,
        }
    }
}

/// True if a line is text that a program printed, and not a JSON-RPC message, not even a broken
/// one.
pub fn is_text(line: &[u8]) -> bool {
    let envelope = PartialEnvelope::read(line);
    !(envelope.has_method || envelope.has_outcome || envelope.has_id())
}

fn envelope(text: &str) -> Result<Message<'_>, MessageError> {
    let object = Object::parse(text).ok_or(MessageError::NotAnObject)?;
    let strange =
        |key: &str| !ENVELOPE.contains(&key) && ENVELOPE.iter().any(|name| folds_to(key, name));
    if object.members().any(|(key, _)| strange(key)) {
        return Err(MessageError::Case);
    }
    if object.get("jsonrpc").is_none_or(|version| version.get() != "\"2.0\"") {
        return Err(MessageError::Version);
    }
    let id = object.get("id").map(|raw| Id::parse(raw).ok_or(MessageError::Id)).transpose()?;
    match (object.get("method"), object.borrowed("result"), object.borrowed("error")) {
        (Some(method), None, None) => {
            let method = serde_json::from_str(method.get()).map_err(|_| MessageError::Method)?;
            let params = object.borrowed("params").filter(|params| params.get() != "null");
            if params.is_some_and(|params| !strict_json::is_object(params.get())) {
                return Err(MessageError::Params);
            }
            Ok(match id {
                Some(id) => Message::Request { id, method, params },
                None => Message::Notification { method, params },
            })
        }
        (None, Some(result), None) if object.get("params").is_none() => {
            Ok(Message::Reply { id: id.ok_or(MessageError::Id)?, outcome: Outcome::Result(result) })
        }
        (None, None, Some(error))
            if object.get("params").is_none() && strict_json::is_object(error.get()) =>
        {
            Ok(Message::Reply { id: id.ok_or(MessageError::Id)?, outcome: Outcome::Error(error) })
        }
        _ => Err(MessageError::Shape),
    }
}

/// Determines the party that waits because of a refused message, from as much of it as can be
/// parsed. `None` if nobody waits or if a reply's addressee is not certain: replies to replies
/// would not end.
fn addressee(head: &[u8]) -> Option<Addressee> {
    let envelope = PartialEnvelope::read(head);
    let id = envelope.id().and_then(Id::parse);
    if envelope.has_outcome && !envelope.has_method {
        return id.map(Addressee::Asker);
    }
    let is_notification = envelope.is_complete && envelope.has_method && !envelope.has_id();
    let is_blank = head.iter().all(u8::is_ascii_whitespace);
    (!is_notification && !is_blank).then(|| Addressee::Sender(id.filter(|_| envelope.has_method)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reason(line: &str) -> MessageError {
        Message::parse_line(line.as_bytes())
            .map(|message| panic!("{line}: {message:?}"))
            .unwrap_err()
            .error
    }

    fn waits(line: &str) -> Option<Addressee> {
        Message::parse_line(line.as_bytes()).unwrap_err().addressee
    }

    #[test]
    fn requests_notifications_and_replies_differ() {
        fn is(line: &str) -> Message<'_> {
            Message::parse_line(line.as_bytes()).unwrap()
        }
        assert!(matches!(
            is(r#"{"jsonrpc":"2.0","id":1,"m\u0065thod":"fs\/read_text_file","params":{}}"#),
            Message::Request { method, .. } if method == "fs/read_text_file"
        ));
        assert!(matches!(
            is(r#"{"jsonrpc":"2.0","method":"x","params":null,"extra":[1]}"#),
            Message::Notification { params: None, .. }
        ));
        assert!(matches!(
            is(r#"{"id":"a","result":null,"jsonrpc":"2.0"}"#),
            Message::Reply { outcome: Outcome::Result(_), .. }
        ));
        assert!(matches!(
            is(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#),
            Message::Reply { outcome: Outcome::Error(_), .. }
        ));
    }

    #[test]
    fn everything_but_one_message_is_refused() {
        for (line, expected) in [
            (r#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#, MessageError::NotAnObject),
            ("[]", MessageError::NotAnObject),
            ("7", MessageError::NotAnObject),
            ("{}", MessageError::Version),
            (r#"{"jsonrpc":2.0,"id":1,"method":"x"}"#, MessageError::Version),
            (r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#, MessageError::Version),
            (r#"{"jsonrpc":"2.0"}"#, MessageError::Shape),
            (r#"{"jsonrpc":"2.0","id":1}"#, MessageError::Shape),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","result":1}"#, MessageError::Shape),
            (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, MessageError::Shape),
            (r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#, MessageError::Shape),
            (r#"{"jsonrpc":"2.0","result":1}"#, MessageError::Id),
            (r#"{"jsonrpc":"2.0","id":null,"result":1}"#, MessageError::Id),
            (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, MessageError::Id),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#, MessageError::Id),
            (r#"{"jsonrpc":"2.0","id":123456789012345678901,"method":"x"}"#, MessageError::Id),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, MessageError::Method),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}"#, MessageError::Params),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","Method":"y"}"#, MessageError::Case),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","re\u017fult":1}"#, MessageError::Case),
            (
                r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#,
                MessageError::Json(JsonError::Keys),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"path":"a","path":"b"}}"#,
                MessageError::Json(JsonError::Keys),
            ),
        ] {
            assert_eq!(reason(line), expected, "{line}");
        }
    }

    #[test]
    fn the_party_that_waits_is_found() {
        let sender = |id| Some(Addressee::Sender(Some(Id::Number(id))));
        let somebody = Some(Addressee::Sender(None));
        let asker = |id| Some(Addressee::Asker(Id::Number(id)));
        assert_eq!(waits(r#"{"jsonrpc":"2.0","id":1,"method":"x","params":NaN}"#), sender(1));
        assert_eq!(waits(r#"{"jsonrpc":"2.0","id":1,"method":"x","method":"y"}"#), sender(1));
        assert_eq!(waits(r#"{"jsonrpc":"2.0","id":2,"result":{"a":1,"a":2}}"#), asker(2));
        let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"x"}}"#, "x".repeat(1025));
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":1.0,"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":true,"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":18446744073709551616,"method":"x"}"#,
            &long,
            // The ID may follow the part that cannot be parsed.
            r#"{"jsonrpc":"2.0","method":"x","params":NaN,"id":1}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","method":"x"} {}"#,
            "{}",
            "[1]",
            "[]",
            "garbage",
        ] {
            assert_eq!(waits(line), somebody, "{line}");
        }
        for line in [
            r#"{"jsonrpc":"2.0","method":"x","params":[]}"#,
            r#"{"jsonrpc":"2.0","method":"x","params":{"a":1,"a":2}}"#,
            r#"{"jsonrpc":"2.0","id":null,"result":1}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{},"x":NaN}"#,
            "",
            " \r",
        ] {
            assert_eq!(waits(line), None, "{line}");
        }
        let cut =
            br#"{"jsonrpc":"2.0","id":9,"method":"fs/write_text_file","params":{"content":"xxxx"#;
        assert_eq!(InvalidMessage::new(MessageError::TooLong, cut).addressee, sender(9));
        let cut = b"{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{\"content\":\"xx\xc5";
        assert_eq!(InvalidMessage::new(MessageError::TooLong, cut).addressee, asker(9));
    }

    proptest! {
        #[test]
        fn never_panics(line in "[\\[\\]{}\":,a-z0-9. \\\\u]{0,60}") {
            let _ = Message::parse_line(line.as_bytes());
        }

        #[test]
        fn a_repeated_key_is_found_however_it_is_spelled(
            key in "[a-z]{1,6}", at in 0usize..6, inside in any::<bool>()
        ) {
            let at = at % key.len();
            let escaped: String = key.chars().enumerate().map(|(i, c)|
                if i == at { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }).collect();
            let pair = format!(r#""{key}":1,"{escaped}":2"#);
            let line = if inside {
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"x":[{{{pair}}}]}}}}"#)
            } else {
                format!(r#"{{"jsonrpc":"2.0",{pair}}}"#)
            };
            prop_assert_eq!(reason(&line), MessageError::Json(JsonError::Keys));
        }
    }
}
