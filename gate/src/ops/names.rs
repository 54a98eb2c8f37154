//! Disclosing the names in a directory with what each is, and no more: what only
//! a look at each entry tells is left out, so none is looked at.

use super::{
    Context, EntryKind, Error, Sealed,
    list::{facts, open, query, visible},
};
use crate::{
    model::WorkspacePath,
    workspace::{Kinds, Permit},
};

/// The names that an agent may see in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// All of them, one after the other.
    text: String,
    /// Where each ends, and what it is.
    ends: Vec<(usize, EntryKind)>,
    /// How many names are not UTF-8 and so are not served.
    pub not_utf8: u64,
}

impl Names {
    /// The names, sorted, with what each is.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, EntryKind)> {
        let mut start = 0;
        self.ends.iter().map(move |(end, kind)| {
            let name = self.text.get(start..*end).unwrap_or_default();
            start = *end;
            (name, *kind)
        })
    }

    fn push(&mut self, name: &str, kind: EntryKind) {
        self.text.push_str(name);
        self.ends.push((self.text.len(), kind));
    }
}

/// Reads the names and keeps those that the policy lets the agent see.
///
/// # Errors
/// When it is no directory or changed its place.
pub fn prepare(context: &Context<'_>, permit: &Permit) -> Result<Sealed<Names>, Error> {
    let kinds = Kinds::read(open(context, permit)?)?;
    let mut names = Names { not_utf8: kinds.not_utf8(), ..Names::default() };
    names.ends.reserve_exact(kinds.iter().len());
    let sights = context.policy.sights(&query(context, permit.path()));
    let (mut path, mut relaxed) = (WorkspacePath::root(), 0);
    for (name, kind) in kinds.iter() {
        let path = &mut path;
        let join = move || permit.path().join_into(name, path).ok().map(move |()| &*path);
        if permit.path().has_room_for(name) && visible(&sights, name, join, kind, &mut relaxed) {
            names.push(name, EntryKind::of(kind));
        }
    }
    let facts = facts(names.ends.len(), names.not_utf8, relaxed);
    Ok(Sealed::new(names, facts))
}
