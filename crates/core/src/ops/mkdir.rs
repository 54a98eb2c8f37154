//! The operation `mkdir`: creation of a directory.

use rustix::fs::{Mode, fchmod, fsync};

use super::{Change, Committed, Context, Error, Facts, SealedChange, SomeAttributes, parents};
use crate::{
    backup::{Origin, Saved},
    policy::ObjectKind,
    workspace::{self, Permit, TempName},
};

struct Mkdir<'a> {
    context: Context<'a>,
    permit: Permit,
    mode: Option<u32>,
}

/// Checks that the directory can be made: its name is free and, unless `recursive`, its parent
/// exists. With `recursive` an existing directory is no error, and stays as it is.
///
/// # Errors
/// [`Error::AlreadyExists`], when the parent is missing, and for an invalid mode.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    (recursive, mode): (bool, Option<u32>),
) -> Result<SealedChange<'a>, Error> {
    match permit.object().kind {
        ObjectKind::Missing => {}
        ObjectKind::Directory if recursive => {}
        _ => return Err(Error::AlreadyExists),
    }
    let attributes = SomeAttributes { mode, modified: None };
    attributes.check(ObjectKind::Directory)?;
    let missing = context.workspace.missing_ancestors(permit.path())?;
    if !recursive && !missing.is_empty() {
        return Err(workspace::Error::NotFound.into());
    }
    let is_set = mode.is_some() && permit.stat().is_none();
    let facts = Facts { attributes: is_set.then_some(attributes), ..Facts::default() };
    let change: Box<dyn Change + 'a> = Box::new(Mkdir { context: *context, permit, mode });
    Ok(SealedChange::new(change, facts))
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
        let made = parents::make(self.context.workspace, self.permit.path())?;
        if let Some(mode) = self.mode {
            fchmod(&made, Mode::from_raw_mode(mode))
                .map_err(workspace::Error::os("set the mode"))?;
            fsync(&made).map_err(workspace::Error::os("sync the directory"))?;
        }
        Ok(Committed::Stored(None))
    }
}
