//! Adding to the end of a file.

use super::{Change, Context, Error, Sealed, content::Current, replace::Replacement};
use crate::{model::Access, workspace::Permit};

/// Reads the old content, and checks the file that would result.
///
/// # Errors
/// When it is no file, changed its place, or the policy denies the result.
pub fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    addition: &[u8],
) -> Result<Sealed<Box<dyn Change + 'a>>, Error> {
    let current = Current::look_for_change(context, &permit)?;
    let old = current.bytes(context, &permit, Access::Write)?;
    context.check(Access::Write, permit.path(), old.as_deref().unwrap_or_default())?;
    // Added to what a reader would see: a line of it that holds a placeholder
    // is not to be continued. Where readers are refused instead, `store` looks
    // whether what they may not see would still be found.
    let mut content = match (&old, context.policy.secrets()) {
        (Some(old), Some(secrets)) if secrets.redacts() => {
            context.seen(permit.path(), old.clone())?.bytes
        }
        (old, _) => old.clone().unwrap_or_default(),
    };
    content.extend_from_slice(addition);
    let content = context.store(permit.path(), old.as_deref(), content)?;
    Replacement::seal(*context, permit, current, old.as_deref(), content)
}
