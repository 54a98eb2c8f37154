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
    context.check(Access::Read, permit.path(), &whole)?;
    let text = is_text(&whole);
    if !text && encoding == Encoding::Text {
        return Err(Error::Invalid("the file is binary; ask for it as base64"));
    }
    if !text && !range.is_whole() {
        return Err(Error::Invalid("a binary file has no lines; read it whole"));
    }
    let before = Some(Hash::of(&whole));
    let bytes = if range.is_whole() { whole } else { range.slice(&whole).to_vec() };
    let facts = Facts {
        bytes: u64::try_from(bytes.len()).ok(),
        before,
        editor: current.buffer.is_some(),
        ..Facts::default()
    };
    Ok(Sealed::new(Content { bytes, text }, facts))
}
