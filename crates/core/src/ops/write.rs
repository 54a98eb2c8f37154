//! The operation `write`: a file is created, or its content replaced.

use std::borrow::Cow;

use super::{
    Base, Context, Error, SealedChange, SomeAttributes, content::Current, replace::Replacement,
};
use crate::{backup::BackupId, model::Access, policy::ObjectKind, workspace::Permit};

/// Checks the new content and opens the file that it will replace.
///
/// # Errors
/// When the object is no file, not in the state `base`, or moved, or the policy denies the content.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    content: &'a [u8],
    attributes: SomeAttributes,
    base: Base,
) -> Result<SealedChange<'a>, Error> {
    attributes.check(ObjectKind::File)?;
    context.check(Access::Write, permit.path(), content)?;
    base.check(permit.stat())?;
    let current = Current::look_for_change(context, &permit)?;
    let needs_original = context.needs_original(content);
    let old = match needs_original {
        true => current.bytes(context, &permit, Access::Read)?,
        false => None,
    };
    let (content, attributes, secrets_from) =
        match decide(context, &permit, (old.as_deref(), needs_original), content, attributes) {
            // The decision depends on the old content, which the error would reveal.
            Err(error) if needs_original && !context.may_read(&permit) => Err(error.unseen()),
            decided => decided,
        }?;
    let old = old.as_deref();
    let change = Replacement::seal(*context, permit, current, old, content, attributes, base)?;
    Ok(change.with_secrets_from(secrets_from))
}

/// The content to store, the attributes of a new file, and the backup that had its secrets.
type Decided<'a> = (Cow<'a, [u8]>, SomeAttributes, Option<BackupId>);

/// Decides on the content in place of `old`; `needs_original` if it has placeholders.
fn decide<'a>(
    context: &Context<'a>,
    permit: &Permit,
    (old, needs_original): (Option<&[u8]>, bool),
    content: &'a [u8],
    attributes: SomeAttributes,
) -> Result<Decided<'a>, Error> {
    let path = permit.path();
    context.check(Access::Read, path, old.unwrap_or_default())?;
    let is_missing = permit.stat().is_none() && old.is_none();
    if is_missing
        && needs_original
        && let Some(renewed) = context.store_anew(path, content)?
    {
        let (attributes, backup) = (renewed.attributes(attributes), renewed.backup());
        return Ok((renewed.content, attributes, Some(backup)));
    }
    let content = context.store(path, old, content.into())?;
    Ok((content, attributes, None))
}
