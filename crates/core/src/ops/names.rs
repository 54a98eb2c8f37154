//! Disclosure of the names and kinds in a directory, and no other attributes, so that no entry has
//! to be looked at.

use super::{
    Context, EntryKind, Error, Sealed,
    list::{counts_unnamed, facts, open, query, visible},
};
use crate::{
    model::WorkspacePath,
    workspace::{Kinds, Permit},
};

/// The names that an agent may see in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    kinds: Kinds,
}

impl Names {
    /// Returns the names, sorted, with their kinds.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, EntryKind)> {
        self.kinds.iter().map(|(name, kind)| (name, EntryKind::of(kind)))
    }

    /// Returns the number of names that are not UTF-8 and so are not served.
    pub fn not_utf8(&self) -> u64 {
        self.kinds.not_utf8()
    }
}

/// Reads the names and keeps those that the policy lets the agent see.
///
/// # Errors
/// When the object is no directory or moved.
pub(crate) fn prepare(context: &Context<'_>, permit: &Permit) -> Result<Sealed<Names>, Error> {
    let mut kinds = Kinds::read(open(context, permit)?)?;
    let directory_visibility = context.policy.directory_visibility(&query(context, permit.path()));
    let (mut path, mut relaxed) = (WorkspacePath::root(), 0);
    kinds.retain(|name, kind| {
        let path = &mut path;
        let join = move || permit.path().join_into(name, path).ok().map(move |()| &*path);
        permit.path().has_room_for(name)
            && visible(&directory_visibility, name, join, kind, &mut relaxed)
    });
    if !counts_unnamed(&directory_visibility, permit.path()) {
        kinds.forget_not_utf8();
    }
    let facts = facts(kinds.iter().len(), kinds.not_utf8(), relaxed);
    Ok(Sealed::names(Names { kinds }, facts))
}
