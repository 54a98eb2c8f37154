//! One line, or one body, to one message.
//!
//! A message is a request, a notification or a reply of JSON-RPC 2.0; everything
//! else is refused. Batches are refused: neither ACP nor MCP has them, and a filter
//! that forwards lines cannot let half of one through. Only the envelope is read
//! here.

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
        /// Its id.
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
        /// The id of the request.
        id: Id,
        /// Result or error.
        outcome: Outcome<'a>,
    },
}

/// The outcome that a reply has.
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
    /// The party that waits because of it, as far as that can be told.
    pub addressee: Option<Addressee>,
}

/// The reason why input is not one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Not strict JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Longer than the limit.
    #[error("the line is too long")]
    TooLong,
    /// The stream ended too early.
    #[error("the stream ended in the middle of a line")]
    Incomplete,
    /// Another kind of JSON.
    #[error("the line is not one JSON object")]
    NotAnObject,
    /// Another version of JSON-RPC.
    #[error("`jsonrpc` is not \"2.0\"")]
    Version,
    /// A key that some readers take for one of the envelope.
    #[error("a key of the envelope is spelled in another case")]
    Case,
    /// Members that do not go together.
    #[error("the message is neither a request, a notification nor a reply")]
    Shape,
    /// An id that parties may read differently.
    #[error("`id` is not an integer or a string, or is too large")]
    Id,
    /// A method that is not a string.
    #[error("`method` is not a string")]
    Method,
    /// Parameters that are not an object.
    #[error("`params` is not an object")]
    Params,
}

impl MessageError {
    /// The JSON-RPC error code.
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
    /// The message looks like a request, or like nothing: its sender may wait for a
    /// reply. The id is missing where it cannot be told or used.
    Sender(Option<Id>),
    /// The message looks like a reply: the other side waits for it.
    Asker(Id),
}

impl<'a> Message<'a> {
    /// Reads one line (without its `\n`).
    ///
    /// # Errors
    /// When it is not one message.
    pub fn parse_line(line: &'a [u8]) -> Result<Self, InvalidMessage> {
        let text = strict_json::check_line(line).map_err(MessageError::from);
        text.and_then(envelope).map_err(|error| InvalidMessage::new(error, line))
    }

    /// Reads a whole body, which may have line ends within.
    ///
    /// # Errors
    /// When it is not one message.
    pub fn parse_body(body: &'a [u8]) -> Result<Self, InvalidMessage> {
        let text = strict_json::check_text(body).map_err(MessageError::from);
        text.and_then(envelope).map_err(|error| InvalidMessage::new(error, body))
    }
}

impl InvalidMessage {
    /// Input that begins with `head`, which is refused for `error`.
    pub fn new(error: MessageError, head: &[u8]) -> Self {
        Self { error, addressee: addressee(head) }
    }

    /// The id of the request that the input looks like.
    pub fn request_id(&self) -> Option<&Id> {
        match &self.addressee {
            Some(Addressee::Sender(id)) => id.as_ref(),
            _ => None,
        }
    }
}

/// True if a line is text that a program prints, and no JSON-RPC message, not even
/// a broken one.
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

/// Finds the party that waits because of a refused message, from as much of it as
/// can be read. `None` when nobody does or, of a reply, when that is not certain:
/// a reply to replies would be answered without end.
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
            // The id may come after what cannot be read.
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
