//! Reads for models: each text once and in parts of bounded size, base64 only of binary
//! content.
//!
//! There is no structured content. Many clients put it into the model's context instead
//! of the content or beside it, and a text is longer as JSON. Details for programs are
//! in `_meta`.

use rmcp::model::ContentBlock;
use serde_json::{Map, Value, json};

use crate::{
    gateway::{Content, TextPart},
    model::{Bound, Encoding, LineRange, OperationKind as Kind, WorkspacePath, request::Read},
};

use super::{
    super::{
        arguments::Arguments,
        call::Call,
        tool_result::{self, ToolError, ToolResult},
    },
    media,
};

/// The key of a file's details in `_meta`.
pub(super) const FILE: &str = "portcullis/file";
/// The key of several files' details.
const FILES: &str = "portcullis/files";
/// Maximum of files of one `read_files`.
pub(super) const MAX_FILES: usize = 100;
/// Maximum of lines of a text in one result.
pub(super) const MAX_TEXT_LINES: u64 = 2_000;
/// Maximum of bytes of texts in one result. A token has three to four bytes, and clients
/// cut off more than 25,000 tokens.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 10;
/// Maximum of bytes of an image or audio, whose base64 is not shown to a model as text.
pub(super) const MAX_MEDIA_BYTES: usize = 3_750 << 10;
/// Minimum of remaining bytes for which another file is read.
pub(super) const MIN_PART: usize = 1 << 10;
/// Maximum of bytes of a note about a part.
const MAX_NOTE: usize = 128;

pub(super) fn read_file(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let given = arguments.text("path")?;
    let range = range(arguments)?;
    let path = call.path(Kind::Read, given)?;
    let binary = if media::is_media(&path) { MAX_MEDIA_BYTES } else { MAX_TEXT_BYTES };
    let bound = Bound { lines: MAX_TEXT_LINES, bytes: MAX_TEXT_BYTES, binary };
    let content = call.put(&Read {
        path: path.clone(),
        range: range.within(bound),
        encoding: Encoding::Base64,
    })?;
    let facts = facts(&content);
    Ok(ToolResult::unstructured(blocks(call, &path, content), FILE, Value::Object(facts)))
}

/// Returns the lines that the call asks for.
fn range(arguments: &Arguments) -> Result<LineRange, ToolError> {
    let number = |name| arguments.count(name);
    let (line, limit, column) = (number("line")?, number("limit")?, number("column")?);
    if limit == Some(0) {
        return Err(ToolError::Arguments("`limit` must be at least 1".to_owned()));
    }
    LineRange::new(line, limit)
        .and_then(|range| range.from_column(column))
        .map_err(|error| ToolError::Arguments(error.to_string()))
}

pub(super) fn read_files(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let paths = arguments.texts("paths")?;
    if paths.is_empty() || paths.len() > MAX_FILES {
        let reason = format!("`paths` must have 1 to {MAX_FILES} paths");
        return Err(ToolError::Arguments(reason));
    }
    let (mut shown, mut files, mut room) = (Vec::new(), Vec::new(), MAX_TEXT_BYTES);
    for (index, given) in paths.iter().enumerate() {
        // Its name is shown as well.
        room = room.saturating_sub(given.len());
        if room < MIN_PART {
            shown.push(ContentBlock::text(unread(paths.len() - index)));
            break;
        }
        let mut file = Map::from_iter([("path".to_owned(), json!(given))]);
        match read_also(call, given, room) {
            Ok((path, content)) => {
                room = room.saturating_sub(content.bytes.len() + MAX_NOTE);
                file.extend(facts(&content));
                shown.push(ContentBlock::text(format!("{given}:")));
                shown.extend(blocks(call, &path, content));
            }
            Err(ToolError::Gateway(error)) if error.receipt().is_some() && !call.is_cancelled() => {
                call.receipts.borrow_mut().extend(error.receipt().cloned());
                let text = error.to_string();
                room = room.saturating_sub(text.len());
                shown.push(ContentBlock::text(format!("{given}: {text}")));
                file.insert("error".to_owned(), tool_result::describe(&error));
            }
            Err(trouble) => return Err(trouble),
        }
        files.push(Value::Object(file));
    }
    Ok(ToolResult::unstructured(shown, FILES, Value::Array(files)))
}

/// Describes that some files found no room.
pub(super) fn unread(count: usize) -> String {
    format!("[{count} more files were not read: ask for them in another call.]")
}

/// Reads a further file, with `room` bytes left.
fn read_also(
    call: &Call<'_>,
    given: &str,
    room: usize,
) -> Result<(WorkspacePath, Content), ToolError> {
    let bound = Bound { lines: MAX_TEXT_LINES, bytes: room, binary: room };
    let path = call.path(Kind::Read, given)?;
    let range = LineRange::default().within(bound);
    let content = call.put(&Read { path: path.clone(), range, encoding: Encoding::Base64 })?;
    Ok((path, content))
}

/// Returns a part's details for programs.
pub(super) fn facts(content: &Content) -> Map<String, Value> {
    let mut facts = Map::new();
    match &content.part {
        Some(TextPart { at, lines, size }) => {
            facts.insert("line".to_owned(), json!(at.line));
            facts.insert("lines".to_owned(), json!(at.lines));
            facts.insert("totalLines".to_owned(), json!(lines));
            facts.insert("size".to_owned(), json!(size));
            if at.column > 1 {
                facts.insert("column".to_owned(), json!(at.column));
            }
            if let Some(next) = at.next {
                facts.insert("next".to_owned(), arguments_for(next));
            }
        }
        None => facts.extend([("size".to_owned(), json!(content.bytes.len()))]),
    }
    if content.redacted {
        facts.insert("redacted".to_owned(), json!(true));
    }
    facts
}

/// Returns the arguments that continue a read.
fn arguments_for((line, column): (u64, u64)) -> Value {
    if column > 1 { json!({ "line": line, "column": column }) } else { json!({ "line": line }) }
}

/// Returns a file's blocks for a model: the text, and a note if it is incomplete.
fn blocks(call: &Call<'_>, path: &WorkspacePath, content: Content) -> Vec<ContentBlock> {
    let Some(part) = &content.part else {
        return vec![media::block(call.roots, path, &content.bytes)];
    };
    let note = note(part).map(ContentBlock::text);
    let text = String::from_utf8(content.bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    // Some models refuse empty texts.
    let text = (!text.is_empty()).then(|| ContentBlock::text(text));
    text.into_iter().chain(note).collect()
}

/// Describes how to continue after a part of a text.
pub(super) fn note(TextPart { at, lines, size }: &TextPart) -> Option<String> {
    if *size == 0 {
        return Some("[The file is empty.]".to_owned());
    }
    if at.lines == 0 {
        return Some(format!("[There is no line {}: the file has {lines}.]", at.line));
    }
    let (line, column) = at.next?;
    let last = at.line.saturating_add(at.lines - 1);
    let go_on = match column {
        1 => format!("Go on with `line`: {line}."),
        _ => format!("Line {line} goes on: `line`: {line}, `column`: {column}."),
    };
    Some(format!("[These are lines {} to {last} of {lines}. {go_on}]", at.line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note_of(text: &str, line: Option<u64>, bytes: usize) -> Option<String> {
        let bound = Bound { lines: 2, bytes, binary: 0 };
        let at = LineRange::new(line, None).unwrap().within(bound).part(text.as_bytes());
        note(&TextPart { at, lines: 3, size: u64::try_from(text.len()).unwrap() })
    }

    #[test]
    fn a_note_says_how_to_go_on() {
        let text = "a\nb\nlong\n";
        let note = |line, bytes| note_of(text, line, bytes).unwrap_or_default();
        assert_eq!(note(None, 9), "[These are lines 1 to 2 of 3. Go on with `line`: 3.]");
        let piece = "[These are lines 3 to 3 of 3. Line 3 goes on: `line`: 3, `column`: 4.]";
        assert_eq!(note(Some(3), 3), piece);
        assert_eq!(note(Some(2), 99), "");
        assert_eq!(note(Some(4), 99), "[There is no line 4: the file has 3.]");
        assert_eq!(note_of("", None, 9).unwrap(), "[The file is empty.]");
    }
}
