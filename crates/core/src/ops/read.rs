//! The operation `read`: disclosure of a file's content.

use portcullis_audit::Hash;

use super::{Context, Error, Facts, Sealed, content::Current};
use crate::{
    model::{Access, Encoding, LineRange, Part, is_text},
    workspace::Permit,
};

/// Disclosed content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The requested bytes.
    pub bytes: Vec<u8>,
    /// True if the complete file is text, which a transport may send as such; otherwise the policy
    /// allows base64 only.
    pub text: bool,
    /// True if secrets in it were replaced by placeholders.
    pub redacted: bool,
    /// Hash of the complete content, unredacted. It is hidden from agents: it would confirm a guess
    /// of what was redacted.
    pub whole: Hash,
    /// The part of the text that the bytes are, if the request was bounded.
    pub part: Option<TextPart>,
}

/// A part of a file's text as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPart {
    /// Its position.
    pub at: Part,
    /// Number of lines of the text.
    pub lines: u64,
    /// Size of the text in bytes.
    pub size: u64,
}

/// Reads and checks the complete file, and returns the requested lines.
///
/// # Errors
/// When the object is no file or moved, or the policy denies its content.
pub(crate) fn prepare(
    context: &Context<'_>,
    permit: &Permit,
    range: LineRange,
    encoding: Encoding,
) -> Result<Sealed<Content>, Error> {
    let current = Current::look(context, permit)?;
    let whole = current.existing_bytes(context, permit, Access::Read)?;
    let hash = Hash::of(&whole);
    let view = context.disclose(permit.path(), whole)?;
    let shown = view.redacted.then(|| Hash::of(&view.bytes));
    let text = is_text(&view.bytes);
    if !text && encoding == Encoding::Text {
        return Err(Error::Invalid("the file is binary; ask for it as base64"));
    }
    if !text && !range.is_whole() {
        return Err(Error::Invalid("a binary file has no lines; read it whole"));
    }
    if !text && range.bound().is_some_and(|bound| view.bytes.len() > bound.binary) {
        let reason = "the file is binary and too large for this reply; read it as a resource";
        return Err(Error::Invalid(reason));
    }
    let part = range.bound().filter(|_| text).map(|_| part(range, &view.bytes));
    // The number of bytes alone does not identify a part.
    let numbers: Vec<_> = match &part {
        Some(part) => went_out(part),
        None => range.numbers().collect(),
    };
    let bytes = match &part {
        Some(part) if part.at.bytes.len() < view.bytes.len() => {
            view.bytes.get(part.at.bytes.clone()).unwrap_or_default().to_vec()
        }
        None if !range.is_whole() => range.slice(&view.bytes).to_vec(),
        _ => view.bytes,
    };
    let facts = Facts {
        bytes: u64::try_from(bytes.len()).ok(),
        before: Some(hash),
        shown,
        editor: current.buffer.is_some(),
        counts: numbers.into_iter().map(|(name, number)| (name.to_owned(), number)).collect(),
        ..Facts::default()
    };
    let content = Content { bytes, text, redacted: view.redacted, whole: hash, part };
    Ok(Sealed::content(content, facts, context.labels_of(permit.path())))
}

fn part(range: LineRange, text: &[u8]) -> TextPart {
    let ends = text.iter().filter(|byte| **byte == b'\n').count();
    let lines = ends + usize::from(text.last().is_some_and(|last| *last != b'\n'));
    let number = |count| u64::try_from(count).unwrap_or(u64::MAX);
    TextPart { at: range.part(text), lines: number(lines), size: number(text.len()) }
}

/// Returns the lines that a part discloses, by the names of counts in records; empty for the
/// complete text.
fn went_out(TextPart { at, size, .. }: &TextPart) -> Vec<(&'static str, u64)> {
    if u64::try_from(at.bytes.len()) == Ok(*size) {
        return Vec::new();
    }
    let column = (at.column > 1).then_some(("column", at.column));
    [("line", at.line), ("limit", at.lines)].into_iter().chain(column).collect()
}
