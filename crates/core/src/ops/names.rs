//! Disclosing the names in a directory with what each is, and no more: what only
//! a look at each entry tells is left out, so none is looked at.

use super::{
    Context, EntryKind, Error, Sealed,
    list::{facts, open, query, tells_of_unnamed, visible},
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
    /// The names, sorted, with what each is.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, EntryKind)> {
        self.kinds.iter().map(|(name, kind)| (name, EntryKind::of(kind)))
    }

    /// How many names are not UTF-8 and so are not served.
    pub fn not_utf8(&self) -> u64 {
        self.kinds.not_utf8()
    }
}

/// Reads the names and keeps those that the policy lets the agent see.
///
/// # Errors
/// When it is no directory or changed its place.
pub(crate) fn prepare(context: &Context<'_>, permit: &Permit) -> Result<Sealed<Names>, Error> {
    let mut kinds = Kinds::read(open(context, permit)?)?;
    let sights = context.policy.sights(&query(context, permit.path()));
    let (mut path, mut relaxed) = (WorkspacePath::root(), 0);
    kinds.retain(|name, kind| {
        let path = &mut path;
        let join = move || permit.path().join_into(name, path).ok().map(move |()| &*path);
        permit.path().has_room_for(name) && visible(&sights, name, join, kind, &mut relaxed)
    });
    if !tells_of_unnamed(&sights, permit.path()) {
        kinds.forget_not_utf8();
    }
    let facts = facts(kinds.iter().len(), kinds.not_utf8(), relaxed);
    Ok(Sealed::names(Names { kinds }, facts))
}
