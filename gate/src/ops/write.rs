//! Creating a file or replacing its content.

use super::{Change, Context, Error, Sealed, content::Current, replace::Replacement};
use crate::{model::Access, workspace::Permit};

/// Checks the new content and opens what it will replace.
///
/// # Errors
/// When it is no file, changed its place, or the policy denies the content.
pub fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    content: Vec<u8>,
) -> Result<Sealed<Box<dyn Change + 'a>>, Error> {
    context.check(Access::Write, permit.path(), &content)?;
    let current = Current::look_for_change(context, &permit)?;
    let old = if context.needs_original(&content) {
        let old = current.bytes(context, &permit, Access::Read)?;
        context.check(Access::Read, permit.path(), old.as_deref().unwrap_or_default())?;
        old
    } else {
        None
    };
    let content = context.store(permit.path(), old.as_deref(), content)?;
    Replacement::seal(*context, permit, current, old.as_deref(), content)
}
