//! Disclosing a file's content.

use portcullis_audit::Hash;

use super::{Context, Error, Facts, Sealed, content::Current};
use crate::{
    model::{Access, Encoding, LineRange, is_text},
    workspace::Permit,
};

/// Content to disclose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The bytes that were asked for.
    pub bytes: Vec<u8>,
    /// Whether the whole file is text, so that a door may send it as such;
    /// otherwise the policy lets it out as base64 only.
    pub text: bool,
    /// Whether secrets in it were replaced by placeholders.
    pub redacted: bool,
    /// Hash of the whole file as it is. No agent is told: it would confirm a
    /// guess of what was redacted.
    pub whole: Hash,
}

/// Reads the file whole, checks it whole and keeps the lines asked for.
///
/// # Errors
/// When it is no file, changed its place, or the policy denies its content.
pub fn prepare(
    context: &Context<'_>,
    permit: &Permit,
    range: LineRange,
    encoding: Encoding,
) -> Result<Sealed<Content>, Error> {
    let current = Current::look(context, permit)?;
    let whole = current.existing_bytes(context, permit, Access::Read)?;
    let hash = context.known.hash(permit.path(), &whole);
    let view = context.disclose(permit.path(), whole)?;
    let text = is_text(&view.bytes);
    if !text && encoding == Encoding::Text {
        return Err(Error::Invalid("the file is binary; ask for it as base64"));
    }
    if !text && !range.is_whole() {
        return Err(Error::Invalid("a binary file has no lines; read it whole"));
    }
    let bytes = if range.is_whole() { view.bytes } else { range.slice(&view.bytes).to_vec() };
    let facts = Facts {
        bytes: u64::try_from(bytes.len()).ok(),
        before: Some(hash),
        editor: current.buffer.is_some(),
        // Of a part `bytes` alone does not say which.
        counts: range.numbers().map(|(name, number)| (name.to_owned(), number)).collect(),
        ..Facts::default()
    };
    Ok(Sealed::new(Content { bytes, text, redacted: view.redacted, whole: hash }, facts))
}
