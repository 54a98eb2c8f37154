//! Replies: the head of the request, its result or an error, and the receipt of the
//! record.
//!
//! Besides the fields of the protocol there are `receipt`, and for errors
//! `code`, `rule` and `reason`.

use base64::{display::Base64Display, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use portcullis_audit::Receipt;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::gateway::{self, Content, Entries, Entry, EntryKind};

use super::wire::{CHANNEL, RequestHead};

/// Bytes reserved in a message for everything but content.
const ENVELOPE: usize = 1024;

/// A reply in the making.
pub(super) struct Reply<'a> {
    head: &'a RequestHead,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a, T> {
    channel: &'a str,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a RawValue>,
    #[serde(flatten)]
    body: ReplyBody<'a, T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a Receipt>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ReplyBody<'a, T> {
    Data {
        data: T,
    },
    Nothing {},
    Error {
        error: &'a str,
        code: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        rule: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
    },
}

#[derive(Serialize)]
struct FileContent<'a> {
    content: JsonContent<'a>,
    encoding: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    redacted: bool,
}

/// A content as a JSON string, serialized without an intermediate copy.
enum JsonContent<'a> {
    Text(&'a str),
    Base64(&'a [u8]),
}

impl Serialize for JsonContent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Base64(bytes) => serializer.collect_str(&Base64Display::new(bytes, &STANDARD)),
        }
    }
}

#[derive(Serialize)]
struct Item<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permissions: Option<String>,
    /// Set for symbolic links, since the protocol has files and directories only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    symlink: bool,
}

impl<'a> Reply<'a> {
    pub(super) fn to(head: &'a RequestHead) -> Self {
        Self { head }
    }

    /// Renders a file's content.
    pub(super) fn content(&self, reply: &gateway::Reply<Content>) -> Vec<u8> {
        let data = file_content(&reply.output);
        self.render(ReplyBody::Data { data }, Some(&reply.receipt), reply.output.bytes.len())
    }

    /// Renders a directory's entries.
    pub(super) fn entries(&self, reply: &gateway::Reply<Entries>) -> Vec<u8> {
        let entries = reply.output.entries.iter();
        let data: Vec<_> = entries.filter_map(|entry| item(entry, None)).collect();
        let room = data.len().saturating_mul(128);
        self.render(ReplyBody::Data { data }, Some(&reply.receipt), room)
    }

    /// Renders one entry; `shown` is the path as the client wrote it, `name` the
    /// name in that path, even if it is a link's.
    pub(super) fn stat(&self, reply: &gateway::Reply<Entry>, shown: &str, name: &str) -> Vec<u8> {
        let receipt = Some(&reply.receipt);
        match item(&reply.output, Some(name)) {
            Some(data) => self.render(ReplyBody::Data { data }, receipt, 0),
            None => {
                let why = format!("`{shown}` is neither a file nor a directory");
                self.error(&why, "invalidInput", receipt)
            }
        }
    }

    /// Renders the reply to a change.
    pub(super) fn changed(&self, receipt: &Receipt) -> Vec<u8> {
        let body: ReplyBody<'_, ()> = ReplyBody::Nothing {};
        self.render(body, Some(receipt), 0)
    }

    /// Renders a refusal or failure that is recorded; `text` replaces the error's
    /// text.
    pub(super) fn failed(&self, error: &gateway::Error, text: Option<&str>) -> Vec<u8> {
        let message = error.to_string();
        let body: ReplyBody<'_, ()> = ReplyBody::Error {
            error: text.unwrap_or(&message),
            code: error.kind().as_str(),
            rule: error.rule(),
            reason: error.reason(),
        };
        self.render(body, error.receipt(), 0)
    }

    /// Renders the error for a message that is no request.
    pub(super) fn failed_because(&self, why: &str, receipt: Option<&Receipt>) -> Vec<u8> {
        self.error(why, "invalidInput", receipt)
    }

    fn error(&self, error: &str, code: &str, receipt: Option<&Receipt>) -> Vec<u8> {
        let body: ReplyBody<'_, ()> = ReplyBody::Error { error, code, rule: None, reason: None };
        self.render(body, receipt, 0)
    }

    fn render<T: Serialize>(
        &self,
        body: ReplyBody<'_, T>,
        receipt: Option<&Receipt>,
        content: usize,
    ) -> Vec<u8> {
        let id = self.head.id.clone().and_then(|id| RawValue::from_string(id).ok());
        let envelope = Envelope {
            channel: self.head.channel.as_deref().unwrap_or(CHANNEL),
            kind: self.head.kind.as_deref(),
            request_id: id.as_deref(),
            body,
            receipt,
        };
        // Usually enough; otherwise a large content would be copied as the buffer
        // grows.
        let mut message =
            Vec::with_capacity(ENVELOPE.saturating_add(content.saturating_mul(4) / 3));
        if let Err(error) = serde_json::to_writer(&mut message, &envelope) {
            tracing::error!(%error, "a reply cannot be written");
        }
        message
    }
}

fn file_content(content: &Content) -> FileContent<'_> {
    let redacted = content.redacted;
    match std::str::from_utf8(&content.bytes) {
        Ok(text) if content.text => {
            FileContent { content: JsonContent::Text(text), encoding: "utf-8", redacted }
        }
        _ => FileContent {
            content: JsonContent::Base64(&content.bytes),
            encoding: "base64",
            redacted,
        },
    }
}

/// Returns an entry of a list; with `name`, returns all that is known of it.
fn item<'a>(entry: &'a Entry, name: Option<&'a str>) -> Option<Item<'a>> {
    let kind = match entry.kind {
        EntryKind::Directory => "directory",
        EntryKind::File | EntryKind::Symlink => "file",
        // Entries of other kinds are never served.
        EntryKind::Other => return None,
    };
    Some(Item {
        name: name.or_else(|| entry.path.file_name()).unwrap_or(""),
        kind,
        size: entry.size.unwrap_or(0),
        modified: modified(entry),
        permissions: entry.mode.filter(|_| name.is_some()).map(permissions),
        symlink: entry.kind == EntryKind::Symlink,
    })
}

/// Returns the time of change in ISO 8601, UTC.
fn modified(entry: &Entry) -> Option<String> {
    let (seconds, nanoseconds) = entry.modified?;
    let time = Timestamp::new(seconds, i32::try_from(nanoseconds).ok()?).ok()?;
    Some(format!("{time:.3}"))
}

/// Returns the permissions as `ls` prints them: `rw-r--r--`.
fn permissions(mode: u32) -> String {
    let bits = "rwxrwxrwx".chars().enumerate();
    bits.map(|(n, letter)| if mode & (0o400 >> n) == 0 { '-' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_as_ls_writes_them() {
        assert_eq!(permissions(0o644), "rw-r--r--");
        assert_eq!(permissions(0o100_751), "rwxr-x--x");
        assert_eq!(permissions(0), "---------");
    }

    #[test]
    fn a_reply_has_the_head_of_its_request() {
        let head = RequestHead {
            channel: Some("files".to_owned()),
            kind: Some("read".to_owned()),
            id: Some("1.50".to_owned()),
        };
        let text = String::from_utf8(Reply::to(&head).failed_because("no \"x\"", None)).unwrap();
        assert_eq!(
            text,
            r#"{"channel":"files","type":"read","requestId":1.50,"error":"no \"x\"","code":"invalidInput"}"#
        );
    }
}
