//! The tools of the reference filesystem server that read files: each text once and in
//! parts of bounded size, as in the workspace's own tools ([`reading`]).
//!
//! There is no structured content: clients that show it to models show the text twice,
//! or without the note on how to continue.

use rmcp::model::ContentBlock;
use serde_json::Value;

use crate::{
    gateway::{self, Content},
    model::{Bound, Encoding, LineRange, OperationKind as Kind, request::Read},
};

use super::{
    super::{
        arguments::Arguments,
        call::Call,
        tool_result::{ToolError, ToolResult},
    },
    media,
    reading::{self, FILE, MAX_MEDIA_BYTES, MAX_TEXT_BYTES, MAX_TEXT_LINES, MIN_PART, unread},
};

/// Maximum of files that one call reads.
const MAX_FILES: usize = 1000;
/// The separator of files.
const BETWEEN: &str = "\n---\n";

pub(super) fn read_text(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Read, arguments.text("path")?)?;
    let number = |name| arguments.count(name);
    let (head, tail) = (number("head")?, number("tail")?);
    let (line, column) = (number("line")?, number("column")?);
    let range = match (tail, head, line, column) {
        (Some(tail), None, None, None) => LineRange::last(tail),
        (Some(_), Some(_), ..) => {
            let reason = "`head` and `tail` cannot both be given";
            return Err(ToolError::Arguments(reason.to_owned()));
        }
        (Some(_), ..) => {
            let reason = "`tail` counts from the end, so `line` and `column` cannot be given";
            return Err(ToolError::Arguments(reason.to_owned()));
        }
        (None, ..) => LineRange::new(line, head)
            .and_then(|range| range.from_column(column))
            .map_err(|error| ToolError::Arguments(error.to_string()))?,
    };
    let bound = Bound { lines: MAX_TEXT_LINES, bytes: MAX_TEXT_BYTES, binary: 0 };
    let content = call.put(&Read { path, range: range.within(bound), encoding: Encoding::Text })?;
    let facts = Value::Object(reading::facts(&content));
    let note = note(&content, head.or(tail)).map(ContentBlock::text);
    let text = ContentBlock::text(as_text(&content));
    Ok(ToolResult::unstructured([text].into_iter().chain(note).collect(), FILE, facts))
}

/// Returns the note on an incomplete text: less than all of the file, or than the
/// number of lines `asked` for.
fn note(content: &Content, asked: Option<u64>) -> Option<String> {
    let part = content.part.as_ref()?;
    let at = &part.at;
    let is_cut = asked.is_none_or(|lines| at.lines < lines);
    match at.next {
        Some((_, column)) => (is_cut || column > 1).then(|| reading::note(part)).flatten(),
        None if at.lines == 0 && asked != Some(0) && part.size > 0 => reading::note(part),
        // The last lines, of which the first are cut off.
        None if is_cut && (at.line, at.column) > (1, 1) && asked.is_some() => {
            let last = at.line.saturating_add(at.lines.saturating_sub(1));
            let (first, lines) = (at.line, part.lines);
            Some(format!(
                "[These are lines {first} to {last} of {lines}. Read those before with `line`.]"
            ))
        }
        None => None,
    }
}

pub(super) fn read_media(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Read, arguments.text("path")?)?;
    let size = if media::is_media(&path) { MAX_MEDIA_BYTES } else { MAX_TEXT_BYTES };
    let bound = Bound { lines: u64::MAX, bytes: size, binary: size };
    let range = LineRange::default().within(bound);
    let content = call.put(&Read { path: path.clone(), range, encoding: Encoding::Base64 })?;
    if content.part.as_ref().is_some_and(|part| part.at.next.is_some()) {
        let reason = "the file is a text and too large for this reply; use read_text_file";
        return Err(ToolError::Said(reason.to_owned()));
    }
    let facts = Value::Object(reading::facts(&content));
    Ok(ToolResult::unstructured(vec![media::block(call.roots, &path, &content.bytes)], FILE, facts))
}

pub(super) fn read_multiple(
    call: &Call<'_>,
    arguments: &Arguments,
) -> Result<ToolResult, ToolError> {
    let paths = arguments.texts("paths")?;
    if paths.is_empty() || paths.len() > MAX_FILES {
        let reason = format!("`paths` must have 1 to {MAX_FILES} paths");
        return Err(ToolError::Arguments(reason));
    }
    let (mut parts, mut room) = (Vec::new(), MAX_TEXT_BYTES);
    for (index, given) in paths.iter().enumerate() {
        let left = room.saturating_sub(given.len());
        if left < MIN_PART {
            parts.push(unread(paths.len() - index));
            break;
        }
        let part = match read_also(call, given, left) {
            Ok(content) => {
                let note = note(&content, None).map(|note| note + "\n").unwrap_or_default();
                format!("{given}:\n{}\n{note}", as_text(&content))
            }
            Err(ToolError::Gateway(error)) if may_continue(call, &error) => {
                format!("{given}: Error - {error}")
            }
            Err(trouble) => return Err(trouble),
        };
        room = room.saturating_sub(part.len() + BETWEEN.len());
        parts.push(part);
    }
    Ok(ToolResult::text(parts.join(BETWEEN)))
}

fn read_also(call: &Call<'_>, given: &str, room: usize) -> Result<Content, ToolError> {
    let bound = Bound { lines: MAX_TEXT_LINES, bytes: room, binary: 0 };
    let path = call.path(Kind::Read, given)?;
    let range = LineRange::default().within(bound);
    call.put(&Read { path, range, encoding: Encoding::Text })
}

/// Returns true if a call with further operations continues after an error; the
/// error's receipt is then added.
pub(super) fn may_continue(call: &Call<'_>, error: &gateway::Error) -> bool {
    let Some(receipt) = error.receipt().filter(|_| !call.is_cancelled()) else { return false };
    call.receipts.borrow_mut().push(receipt.clone());
    true
}

pub(super) fn as_text(content: &Content) -> String {
    String::from_utf8_lossy(&content.bytes).into_owned()
}
