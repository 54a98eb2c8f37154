//! Output of the gateway's replies, for people and for programs.

use std::{collections::BTreeMap, process::ExitCode};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use portcullis_audit::Receipt;
use serde_json::{Value, json};

use crate::{
    app::failure::Exit,
    gateway::{
        Changed, Content, Entries, Entry, EntryKind, Error, ErrorKind, FileMatches, Line, Matches,
        Reply, SearchResult, Stopped, Summary,
    },
    model::{Escaped, distinct, distinct_diff},
    policy::nearest,
};

pub(crate) use crate::review::counted;

/// Formats a range of records: `record 1`, `records 1 to 2`.
pub(crate) fn records(first: u64, last: u64) -> String {
    if first == last { format!("record {first}") } else { format!("records {first} to {last}") }
}

/// Formats the time of a record to the second, in UTC: microseconds only help programs.
pub(crate) fn time(t: &str) -> String {
    t.get(..19).map_or_else(|| t.to_owned(), |seconds| seconds.replace('T', " ") + "Z")
}

/// Formats the lines of a diff for a terminal: coloured if that has colours, and escaped.
pub(crate) fn diff_lines(diff: &str, has_colours: bool) -> Vec<String> {
    let escaped = distinct_diff(diff, &['\n']);
    escaped.split_terminator('\n').map(|line| diff_line(line, has_colours)).collect()
}

fn diff_line(line: &str, has_colours: bool) -> String {
    let style = match line.chars().next() {
        _ if !has_colours => return line.to_owned(),
        _ if line.starts_with("+++") || line.starts_with("---") => "1",
        Some('+') => "32",
        Some('-') => "31",
        Some('@') => "36",
        _ => return line.to_owned(),
    };
    format!("\u{1b}[{style}m{line}\u{1b}[0m")
}

/// Returns the error for a word that is none of the known ones.
pub(crate) fn unknown_word<'k>(text: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    let near = nearest(text, known.clone()).map(|near| format!("did you mean `{near}`? "));
    let known: Vec<_> = known.collect();
    format!("{}expected one of {}", near.unwrap_or_default(), known.join(", "))
}

/// The output of a reply.
pub(crate) trait Rendered {
    /// Returns the fields of a reply as one JSON object.
    fn json(&self) -> Value;

    /// Returns true if a search found nothing.
    fn found_nothing(&self) -> bool {
        false
    }

    /// Returns the id of the backup that a change made.
    fn backup(&self) -> Option<&str> {
        None
    }
}

impl Rendered for Content {
    fn json(&self) -> Value {
        match (self.text, str::from_utf8(&self.bytes)) {
            (true, Ok(text)) => json!({ "content": text }),
            _ => json!({ "base64": STANDARD.encode(&self.bytes) }),
        }
    }
}

impl Rendered for Entries {
    fn json(&self) -> Value {
        json!({
            "entries": self.entries.iter().map(entry_json).collect::<Vec<_>>(),
            "notUtf8": self.not_utf8,
        })
    }
}

impl Rendered for Entry {
    fn json(&self) -> Value {
        json!({ "stat": entry_json(self) })
    }
}

impl Rendered for SearchResult {
    fn json(&self) -> Value {
        let entries = self.entries.iter().map(entry_json).collect::<Vec<_>>();
        summarised(json!({ "entries": entries }), &self.summary)
    }

    fn found_nothing(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Rendered for Matches {
    fn json(&self) -> Value {
        let files = self.files.iter().map(file_json).collect::<Vec<_>>();
        summarised(json!({ "files": files }), &self.summary)
    }

    fn found_nothing(&self) -> bool {
        self.files.is_empty()
    }
}

impl Rendered for Changed {
    fn json(&self) -> Value {
        json!({
            "result": self.committed.as_str(),
            "bytes": self.bytes,
            "backup": self.backup,
        })
    }

    fn backup(&self) -> Option<&str> {
        self.backup.as_deref()
    }
}

/// Returns a reply as one JSON object.
pub(crate) fn reply_json(reply: &Reply<impl Rendered>) -> Value {
    let mut object = json!({ "ok": true, "receipt": reply.receipt });
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, reply.output.json()) {
        object.extend(fields);
    }
    object
}

/// Adds what the search skipped.
fn summarised(mut object: Value, summary: &Summary) -> Value {
    let skipped: BTreeMap<_, _> =
        summary.skipped.iter().map(|(why, count)| (why.as_str(), count)).collect();
    if let Value::Object(object) = &mut object {
        object.insert("searched".to_owned(), summary.searched.into());
        object.insert("skipped".to_owned(), json!(skipped));
        object.insert("stopped".to_owned(), json!(summary.stopped.map(Stopped::as_str)));
    }
    object
}

fn file_json(file: &FileMatches) -> Value {
    let line = |line: &Line| {
        json!({
            "number": line.number,
            "text": line.text,
            "matches": line.matches,
            "cut": line.cut,
        })
    };
    json!({
        "path": file.path.as_str(),
        "redacted": file.redacted,
        "lines": file.lines.iter().map(line).collect::<Vec<_>>(),
    })
}

/// Returns an error as one JSON object.
pub(crate) fn error_json(error: &Error) -> Value {
    json!({
        "ok": false,
        "error": {
            "kind": error.kind().as_str(),
            "message": error.to_string(),
            "rule": error.rule(),
            "reason": error.reason(),
        },
        "receipt": error.receipt(),
    })
}

/// Returns a receipt in the format of `audit check-receipts` and `audit verify --head`.
pub(crate) fn receipt_text(receipt: &Receipt) -> String {
    format!("{}:{}", receipt.seq, receipt.leaf)
}

/// Prints an error of the gateway, with the request `asked`, and returns its exit code.
pub(crate) fn report_error(asked: &str, error: &Error, json: bool) -> ExitCode {
    if json {
        outjson!(error_json(error));
    } else {
        errln!("portcullis: {}: {}", Escaped(asked), Escaped(&error.to_string()));
        if let Some(receipt) = error.receipt() {
            errln!("  record {}", receipt_text(receipt));
        }
    }
    exit(error)
}

/// Returns the exit code of an error of the gateway.
pub(crate) fn exit(error: &Error) -> ExitCode {
    match error.kind() {
        ErrorKind::Denied => Exit::Denied,
        _ => Exit::Failure,
    }
    .into()
}

fn entry_json(entry: &Entry) -> Value {
    json!({
        "name": entry.path.file_name().unwrap_or("."),
        "path": entry.path.relative(),
        "type": entry.kind.as_str(),
        "size": entry.size,
        "modified": modified(entry),
        "mode": entry.mode.map(|mode| format!("{mode:04o}")),
    })
}

/// Formats a line of a listing: type, size, name; names are escaped.
pub(crate) fn entry_line(entry: &Entry) -> String {
    let name = distinct(entry.path.file_name().unwrap_or("."), &[]);
    let size = entry.size.map(|size| size.to_string()).unwrap_or_default();
    let slash = if entry.kind == EntryKind::Directory { "/" } else { "" };
    format!("{:9} {size:>12} {name}{slash}", entry.kind.as_str())
}

/// Formats a line with the full path.
pub(crate) fn path_line(entry: &Entry) -> String {
    let size = entry.size.map(|size| size.to_string()).unwrap_or_default();
    let slash = if entry.kind == EntryKind::Directory { "/" } else { "" };
    format!("{:9} {size:>12} {}{slash}", entry.kind.as_str(), entry.path)
}

/// Formats all that is known of an entry, one line each.
pub(crate) fn stat_text(entry: &Entry) -> String {
    let mut lines =
        vec![format!("path      {}", entry.path), format!("type      {}", entry.kind.as_str())];
    if let Some(size) = entry.size {
        lines.push(format!("size      {size}"));
    }
    if let Some(modified) = modified(entry) {
        lines.push(format!("modified  {modified}"));
    }
    if let Some(mode) = entry.mode {
        lines.push(format!("mode      {mode:04o}"));
    }
    lines.join("\n")
}

/// Returns the time of change in RFC 3339, UTC.
fn modified(entry: &Entry) -> Option<String> {
    let (seconds, nanoseconds) = entry.modified?;
    let nanoseconds = i32::try_from(nanoseconds).ok()?;
    Some(Timestamp::new(seconds, nanoseconds).ok()?.to_string())
}
