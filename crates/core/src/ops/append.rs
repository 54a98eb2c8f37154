//! The operation `append`: content is added to the end of a file.

use std::borrow::Cow;

use super::{
    Base, Context, Error, SealedChange, SomeAttributes, content::Current, replace::Replacement,
};
use crate::{
    model::{Access, WorkspacePath},
    workspace::Permit,
};

/// Reads the old content, and checks the content after the change.
///
/// # Errors
/// When the object is no file or moved, or the policy denies the result.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    addition: &[u8],
) -> Result<SealedChange<'a>, Error> {
    let is_readable = context.may_read(&permit);
    if !is_readable {
        // A defect of the addition itself may be reported, whatever is there.
        context.store_alone(permit.path(), addition)?;
    }
    let current = Current::look_for_change(context, &permit)?;
    let old = current.bytes(context, &permit, Access::Write)?;
    let content = joined(context, permit.path(), old.as_deref(), addition).map_err(|error| {
        if is_readable {
            context.for_reader(permit.path(), old.as_deref(), error)
        } else {
            error.unseen()
        }
    })?;
    Replacement::seal(
        *context,
        permit,
        current,
        old.as_deref(),
        content,
        SomeAttributes::default(),
        Base::Anything,
    )
}

/// Returns the content with the addition after `old`.
fn joined(
    context: &Context<'_>,
    path: &WorkspacePath,
    old: Option<&[u8]>,
    addition: &[u8],
) -> Result<Cow<'static, [u8]>, Error> {
    context.check(Access::Write, path, old.unwrap_or_default())?;
    // The addition follows what a reader would see: a line with a placeholder cannot be continued.
    // Where readers are denied instead, `store` checks that the hidden secrets would still be
    // found.
    let mut content = match (old, context.policy.secrets()) {
        (Some(old), Some(secrets)) if secrets.redacts() => context.seen(path, old.to_vec())?.bytes,
        (old, _) => old.unwrap_or_default().to_vec(),
    };
    content.extend_from_slice(addition);
    context.store(path, old, content.into())
}
