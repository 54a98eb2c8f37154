//! The operation `symlink`: creation of a symbolic link.

use std::os::fd::AsFd as _;

use portcullis_audit::Hash;
use rustix::fs::{OFlags, symlinkat};

use super::{Change, Committed, Context, Error, Facts, SealedChange, atomic_exchange, parents};
use crate::{
    backup::{Origin, Saved},
    model::WorkspacePath,
    workspace::{self, Permit, TempName},
};

struct Symlink<'a> {
    context: Context<'a>,
    permit: Permit,
    target: &'a str,
}

/// Checks that the link can be made; the caller has checked its target's path.
///
/// # Errors
/// [`Error::AlreadyExists`], and when `target` is invalid.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    permit: Permit,
    target: &'a str,
) -> Result<SealedChange<'a>, Error> {
    if permit.stat().is_some() {
        return Err(Error::AlreadyExists);
    }
    if target.is_empty() || target.len() > WorkspacePath::MAX_BYTES || target.contains('\0') {
        return Err(Error::Invalid("the target of a link is a path"));
    }
    parents::check_may_rename(context.workspace, permit.path())?;
    let facts = Facts {
        bytes: u64::try_from(target.len()).ok(),
        after: Some(Hash::of(target.as_bytes())),
        temp: Some(TempName::new()?),
        target: Some(target.to_owned()),
        ..Facts::default()
    };
    let change: Box<dyn Change + 'a> = Box::new(Symlink { context: *context, permit, target });
    Ok(SealedChange::new(change, facts))
}

impl Change for Symlink<'_> {
    fn permit(&self) -> &Permit {
        &self.permit
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        Vec::new()
    }

    fn commit(self: Box<Self>, temp: Option<&TempName>, _: &[Saved]) -> Result<Committed, Error> {
        let Some(temp) = temp else { return Err(Error::Conflict) };
        let (workspace, path) = (self.context.workspace, self.permit.path());
        parents::create(workspace, path)?;
        let parent = workspace.open_parent(path)?;
        let _excluded = self.context.name_locks.exclude(&[&parent])?;
        workspace.confirm(&parent).map_err(Error::unbegun)?;
        symlinkat(self.target, &parent, temp.as_str())
            .map_err(workspace::Error::os("make the link"))?;
        let made = parent.open(temp.as_str(), OFlags::PATH | OFlags::NOFOLLOW)?;
        let placed = atomic_exchange::place(workspace, &parent, temp, made.as_fd());
        placed.inspect_err(|_| atomic_exchange::discard(&parent, temp, made.as_fd()))?;
        parent.sync()?;
        Ok(Committed::Stored(None))
    }
}
