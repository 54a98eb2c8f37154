//! The parameters of `fs/*`.
//!
//! `fs/read_text_file {sessionId, path, line?, limit?}` and
//! `fs/write_text_file {sessionId, path, content}` (ACP v1). Unknown fields are ignored, since
//! nothing of the request is forwarded.

use portcullis_rpc::Object;
use serde::de::DeserializeOwned;
use serde_json::{Number, value::RawValue};

use crate::{count::count, model::LineRange};

/// A well-formed request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) session: String,
    pub(super) path: String,
    pub(super) what: FileOperation,
}

/// The operations.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileOperation {
    Read(LineRange),
    Write(Vec<u8>),
}

/// The two methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Read,
    Write,
}

/// The problem of invalid parameters; safe to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadParams {
    pub(super) message: String,
    /// The path, if it is valid.
    pub(super) path: Option<String>,
}

impl Method {
    pub(super) fn named(method: &str) -> Option<Self> {
        match method {
            "fs/read_text_file" => Some(Self::Read),
            "fs/write_text_file" => Some(Self::Write),
            _ => None,
        }
    }

    /// Returns the operation's name in the log.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Parses the parameters of `method`.
pub(super) fn parse(method: Method, params: Option<&RawValue>) -> Result<Params, BadParams> {
    let bad = |message: &str, path| BadParams { message: message.to_owned(), path };
    let object = params.and_then(|params| Object::parse(params.get()));
    let object = object.ok_or_else(|| bad("`params` must be an object", None))?;
    let path: String =
        field(&object, "path").ok_or_else(|| bad("`path` must be a string", None))?;
    let bad = |message| bad(message, Some(path.clone()));
    let session = field(&object, "sessionId").ok_or_else(|| bad("`sessionId` must be a string"))?;
    let what = match method {
        Method::Read => {
            let number =
                "`line` and `limit` must be whole numbers, not negative, `line` counted from 1";
            let line = optional(&object, "line").ok_or_else(|| bad(number))?;
            let limit = optional(&object, "limit").ok_or_else(|| bad(number))?;
            FileOperation::Read(LineRange::new(line, limit).map_err(|_| bad(number))?)
        }
        Method::Write => {
            let content: String =
                field(&object, "content").ok_or_else(|| bad("`content` must be a string"))?;
            FileOperation::Write(content.into_bytes())
        }
    };
    Ok(Params { session, path, what })
}

fn field<T: DeserializeOwned>(object: &Object<'_>, key: &str) -> Option<T> {
    serde_json::from_str(object.get(key)?.get()).ok()
}

/// Parses an optional number; the outer `None` if the value is neither a number nor null.
fn optional(object: &Object<'_>, key: &str) -> Option<Option<u64>> {
    let Some(raw) = object.get(key) else { return Some(None) };
    let number: Option<Number> = serde_json::from_str(raw.get()).ok()?;
    number.map_or(Some(None), |number| count(&number).map(Some))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Params, BadParams> {
        parse(Method::Read, Some(&RawValue::from_string(text.to_owned()).unwrap()))
    }

    #[test]
    fn numbers_must_be_whole_and_lines_count_from_one() {
        let range = |extra: &str| {
            read(&format!(r#"{{"sessionId":"s","path":"/a"{extra}}}"#)).map(|params| params.what)
        };
        let ok = |line, limit| Ok(FileOperation::Read(LineRange::new(line, limit).unwrap()));
        assert_eq!(range(""), ok(None, None));
        assert_eq!(range(r#","line":null,"limit":null,"_meta":{}"#), ok(None, None));
        assert_eq!(range(r#","line":2,"limit":0"#), ok(Some(2), Some(0)));
        assert_eq!(
            range(r#","line":18446744073709551615,"limit":18446744073709551615"#),
            ok(Some(u64::MAX), Some(u64::MAX))
        );
        assert_eq!(range(r#","line":1.0,"limit":2.0"#), ok(Some(1), Some(2)));
        assert_eq!(range(r#","limit":18446744073709551616"#), ok(None, Some(u64::MAX)));
        for bad in ["0", "-1", "1.5", "\"1\"", "[]", "true"] {
            assert!(range(&format!(r#","line":{bad}"#)).is_err(), "line {bad}");
            assert!(bad == "0" || range(&format!(r#","limit":{bad}"#)).is_err(), "limit {bad}");
        }
    }

    #[test]
    fn wrong_types_are_named() {
        assert_eq!(read("{}").unwrap_err().message, "`path` must be a string");
        assert_eq!(read(r#"{"path":["/a"],"sessionId":"s"}"#).unwrap_err().path, None);
        let error = read(r#"{"path":"/a","sessionId":7}"#).unwrap_err();
        assert_eq!(
            (error.message.as_str(), error.path.as_deref()),
            ("`sessionId` must be a string", Some("/a"))
        );
        assert!(parse(Method::Read, None).is_err());
        let raw = RawValue::from_string(r#"{"path":"/a","sessionId":"s","content":null}"#.into())
            .unwrap();
        assert_eq!(
            parse(Method::Write, Some(&raw)).unwrap_err().message,
            "`content` must be a string"
        );
    }
}
