//! Creating a directory.

use super::{Change, Committed, Context, Error, Facts, Sealed, SealedChange, parents};
use crate::{
    backup::{Origin, Saved},
    policy::ObjectKind,
    workspace::{self, Permit, TempName},
};

struct Mkdir<'a> {
    context: Context<'a>,
    permit: Permit,
}

/// Checks that the directory can be made: nothing has its name and, unless
/// `recursive`, its parent is there. With `recursive` an existing directory is
/// no error.
///
/// # Errors
/// [`Error::AlreadyExists`], and when the parent is missing.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    recursive: bool,
) -> Result<SealedChange<'a>, Error> {
    match permit.object().kind {
        ObjectKind::Missing => {}
        ObjectKind::Directory if recursive => {}
        _ => return Err(Error::AlreadyExists),
    }
    let missing = context.workspace.missing_ancestors(permit.path())?;
    if !recursive && !missing.is_empty() {
        return Err(workspace::Error::NotFound.into());
    }
    let change: Box<dyn Change + 'a> = Box::new(Mkdir { context: *context, permit });
    Ok(Sealed::new(change, Facts::default()))
}

impl Change for Mkdir<'_> {
    fn permit(&self) -> &Permit {
        &self.permit
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        Vec::new()
    }

    fn commit(self: Box<Self>, _: Option<&TempName>, _: &[Saved]) -> Result<Committed, Error> {
        if self.permit.stat().is_some() {
            return Ok(Committed::Unchanged);
        }
        parents::create(self.context.workspace, self.permit.path())?;
        parents::make(self.context.workspace, self.permit.path())?;
        Ok(Committed::Stored(None))
    }
}
