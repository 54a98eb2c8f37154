//! One line to one message.
//!
//! A line is a request, a notification or a reply of JSON-RPC 2.0, or it is
//! refused. Batches are refused: ACP does not use them and a filter that
//! forwards lines cannot let half of one through. Nothing is interpreted here
//! beyond the envelope.

use serde_json::value::RawValue;

use crate::glimpse::Glimpse;

use super::{
    id::Id,
    object::{Object, folds_to},
    strict::{self, Loose},
};

/// The members of the envelope.
const ENVELOPE: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

/// A line that may go on.
#[derive(Debug)]
pub(super) enum Message<'a> {
    Request { id: Id, method: String, params: Option<&'a RawValue> },
    Notification { method: String, params: Option<&'a RawValue> },
    Reply { id: Id, outcome: Outcome<'a> },
}

/// What a reply says.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome<'a> {
    Result(&'a RawValue),
    Error(&'a RawValue),
}

/// A line that may not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    pub(super) reason: Reason,
    /// Whose waiting it would end, as far as that can be made out.
    pub(super) addressee: Option<Addressee>,
}

/// Why a line is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Reason {
    #[error(transparent)]
    Loose(#[from] Loose),
    #[error("the line is too long")]
    TooLong,
    #[error("the stream ended in the middle of a line")]
    Torn,
    #[error("the line is not one JSON object")]
    NotAnObject,
    #[error("`jsonrpc` is not \"2.0\"")]
    Version,
    #[error("a key of the envelope is spelled in another case")]
    Case,
    #[error("the message is neither a request, a notification nor a reply")]
    Shape,
    #[error("`id` is not an integer or a string, or is too large")]
    Id,
    #[error("`method` is not a string")]
    Method,
    #[error("`params` is not an object")]
    Params,
}

impl Reason {
    /// The JSON-RPC error code: parse error or invalid request.
    pub(super) fn code(self) -> i64 {
        match self {
            Self::Loose(Loose::Keys | Loose::Elements) => -32600,
            Self::Loose(_) => -32700,
            _ => -32600,
        }
    }
}

/// Who waits because of a refused line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Addressee {
    /// It looks like a request, or like nothing: its sender may wait for an answer.
    /// JSON-RPC has `null` where the id cannot be told or used.
    Sender(Option<Id>),
    /// It looks like a reply: the other side waits for it.
    Asker(Id),
}

/// Reads one line (without its `\n`).
pub(super) fn parse(line: &[u8]) -> Result<Message<'_>, Malformed> {
    envelope(line).map_err(|reason| malformed(reason, line))
}

/// Whether a line is text that a program prints, and no JSON-RPC message, not
/// even a broken one.
pub(super) fn is_text(line: &[u8]) -> bool {
    let glimpse = Glimpse::of(line);
    !(glimpse.method || glimpse.outcome || glimpse.has_id())
}

/// The refusal of a line of which `head` is the beginning.
pub(super) fn malformed(reason: Reason, head: &[u8]) -> Malformed {
    Malformed { reason, addressee: addressee(head) }
}

fn envelope(line: &[u8]) -> Result<Message<'_>, Reason> {
    let text = strict::check(line)?;
    let object = Object::parse(text).ok_or(Reason::NotAnObject)?;
    let strange =
        |key: &str| !ENVELOPE.contains(&key) && ENVELOPE.iter().any(|name| folds_to(key, name));
    if object.members().any(|(key, _)| strange(key)) {
        return Err(Reason::Case);
    }
    if object.get("jsonrpc").is_none_or(|version| version.get() != "\"2.0\"") {
        return Err(Reason::Version);
    }
    let id = object.get("id").map(|raw| Id::parse(raw).ok_or(Reason::Id)).transpose()?;
    match (object.get("method"), object.borrowed("result"), object.borrowed("error")) {
        (Some(method), None, None) => {
            let method = serde_json::from_str(method.get()).map_err(|_| Reason::Method)?;
            let params = object.borrowed("params").filter(|params| params.get() != "null");
            if params.is_some_and(|params| !params.get().starts_with('{')) {
                return Err(Reason::Params);
            }
            Ok(match id {
                Some(id) => Message::Request { id, method, params },
                None => Message::Notification { method, params },
            })
        }
        (None, Some(result), None) if object.get("params").is_none() => {
            Ok(Message::Reply { id: id.ok_or(Reason::Id)?, outcome: Outcome::Result(result) })
        }
        (None, None, Some(error))
            if object.get("params").is_none() && error.get().starts_with('{') =>
        {
            Ok(Message::Reply { id: id.ok_or(Reason::Id)?, outcome: Outcome::Error(error) })
        }
        _ => Err(Reason::Shape),
    }
}

/// Finds out who waits for something because of a line that is refused, from
/// as much of it as can be read; `None` when nobody does or, of a reply, when it is
/// not certain: whoever answered replies would be answered without end.
fn addressee(head: &[u8]) -> Option<Addressee> {
    let glimpse = Glimpse::of(head);
    let id = glimpse.id().and_then(Id::parse);
    if glimpse.outcome && !glimpse.method {
        return id.map(Addressee::Asker);
    }
    let notes = glimpse.whole && glimpse.method && !glimpse.has_id();
    let blank = head.iter().all(u8::is_ascii_whitespace);
    (!notes && !blank).then(|| Addressee::Sender(id.filter(|_| glimpse.method)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reason(line: &str) -> Reason {
        parse(line.as_bytes()).map(|message| panic!("{line}: {message:?}")).unwrap_err().reason
    }

    fn waits(line: &str) -> Option<Addressee> {
        parse(line.as_bytes()).unwrap_err().addressee
    }

    #[test]
    fn tells_requests_notifications_and_replies_apart() {
        fn is(line: &str) -> Message<'_> {
            parse(line.as_bytes()).unwrap()
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
    fn refuses_what_is_not_exactly_one_message() {
        for (line, expected) in [
            (r#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#, Reason::NotAnObject),
            ("[]", Reason::NotAnObject),
            ("7", Reason::NotAnObject),
            ("{}", Reason::Version),
            (r#"{"jsonrpc":2.0,"id":1,"method":"x"}"#, Reason::Version),
            (r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#, Reason::Version),
            (r#"{"jsonrpc":"2.0"}"#, Reason::Shape),
            (r#"{"jsonrpc":"2.0","id":1}"#, Reason::Shape),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","result":1}"#, Reason::Shape),
            (r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, Reason::Shape),
            (r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#, Reason::Shape),
            (r#"{"jsonrpc":"2.0","result":1}"#, Reason::Id),
            (r#"{"jsonrpc":"2.0","id":null,"result":1}"#, Reason::Id),
            (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, Reason::Id),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#, Reason::Id),
            (r#"{"jsonrpc":"2.0","id":123456789012345678901,"method":"x"}"#, Reason::Id),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, Reason::Method),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}"#, Reason::Params),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","Method":"y"}"#, Reason::Case),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x","re\u017fult":1}"#, Reason::Case),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#, Reason::Loose(Loose::Keys)),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"path":"a","path":"b"}}"#,
                Reason::Loose(Loose::Keys),
            ),
        ] {
            assert_eq!(reason(line), expected, "{line}");
        }
    }

    #[test]
    fn finds_out_who_waits_in_vain() {
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
        assert_eq!(malformed(Reason::TooLong, cut).addressee, sender(9));
        let cut = b"{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{\"content\":\"xx\xc5";
        assert_eq!(malformed(Reason::TooLong, cut).addressee, asker(9));
    }

    proptest! {
        #[test]
        fn never_panics(line in "[\\[\\]{}\":,a-z0-9. \\\\u]{0,60}") {
            let _ = parse(line.as_bytes());
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
            prop_assert_eq!(reason(&line), Reason::Loose(Loose::Keys));
        }
    }
}
