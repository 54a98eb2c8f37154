//! Adding to the end of a file.

use std::borrow::Cow;

use super::{
    Base, Context, Error, SealedChange, SomeAttributes, content::Current, replace::Replacement,
};
use crate::{
    model::{Access, WorkspacePath},
    workspace::Permit,
};

/// Reads the old content, and checks the file that would result.
///
/// # Errors
/// When it is no file, changed its place, or the policy denies the result.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    addition: &[u8],
) -> Result<SealedChange<'a>, Error> {
    let is_readable = context.may_read(&permit);
    if !is_readable {
        // What is wrong with it by itself can be told, whatever is there.
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

/// What is stored when the addition comes after `old`.
fn joined(
    context: &Context<'_>,
    path: &WorkspacePath,
    old: Option<&[u8]>,
    addition: &[u8],
) -> Result<Cow<'static, [u8]>, Error> {
    context.check(Access::Write, path, old.unwrap_or_default())?;
    // Added to what a reader would see: a line of it that holds a placeholder
    // is not to be continued. Where readers are refused instead, `store` looks
    // whether what they may not see would still be found.
    let mut content = match (old, context.policy.secrets()) {
        (Some(old), Some(secrets)) if secrets.redacts() => context.seen(path, old.to_vec())?.bytes,
        (old, _) => old.unwrap_or_default().to_vec(),
    };
    content.extend_from_slice(addition);
    context.store(path, old, content.into())
}
