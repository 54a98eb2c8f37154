//! Creating a file or replacing its content.

use super::{
    Base, Context, Error, SealedChange, SomeAttributes, content::Current, replace::Replacement,
};
use crate::{model::Access, policy::ObjectKind, workspace::Permit};

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
    let judge = || {
        context.check(Access::Read, permit.path(), old.as_deref().unwrap_or_default())?;
        context.store(permit.path(), old.as_deref(), content.into())
    };
    let content = match judge() {
        // The decision depends on the old content, which the error would reveal.
        Err(error) if needs_original && !context.may_read(&permit) => Err(error.unseen()),
        judged => judged,
    }?;
    Replacement::seal(*context, permit, current, old.as_deref(), content, attributes, base)
}
