//! The operation `rename` with exchange: two entries get each other's names in one step.

use portcullis_audit::Hash;
use rustix::io::Errno;

use super::{
    Change, Committed, Context, Error, Facts, SealedChange, atomic_exchange, parents,
    rename::{check_contents, hash_of, is_as_decided},
};
use crate::{
    backup::{Origin, Saved},
    model::WorkspacePath,
    workspace::{self, EntryIdentity, Parent, Permit, Stat, Walked},
};

/// An entry of an exchange.
pub(crate) struct ExchangeEntry {
    /// The permit for its name.
    pub(crate) permit: Permit,
    /// The entries beneath a directory that were decided on.
    pub(crate) tree: Vec<Walked>,
}

struct PreparedExchange<'a> {
    context: Context<'a>,
    one: (ExchangeEntry, Stat),
    other: (ExchangeEntry, Stat),
}

/// Checks that the exchange is possible. Both entries are read: after a crash their hashes show
/// whether it was made.
///
/// # Errors
/// When an entry is missing, the workspace root, or in the other one.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    one: ExchangeEntry,
    other: ExchangeEntry,
) -> Result<SealedChange<'a>, Error> {
    let (from, to) = (one.permit.path(), other.permit.path());
    if from.is_within(to) || to.is_within(from) {
        return Err(Error::Invalid("an entry cannot be exchanged for itself or what is in it"));
    }
    let stat = |side: &ExchangeEntry| {
        side.permit.stat().copied().ok_or(Error::Workspace(workspace::Error::NotFound))
    };
    let (one_stat, other_stat) = (stat(&one)?, stat(&other)?);
    for (side, to) in [(&one, to), (&other, from)] {
        parents::check_may_rename(context.workspace, side.permit.path())?;
        check_contents(context, &side.permit, to, side.permit.object().kind, &side.tree)?;
    }
    let hash = |side: &ExchangeEntry| -> Result<Option<Hash>, Error> {
        hash_of(context, &side.permit, side.permit.object().kind).map(Some)
    };
    let facts = Facts {
        to: Some(to.clone()),
        before: hash(&other)?,
        after: hash(&one)?,
        entry: Some(EntryIdentity::of(one.permit.handle()?)?),
        other_entry: Some(EntryIdentity::of(other.permit.handle()?)?),
        exchange: true,
        ..Facts::default()
    };
    let (one, other) = ((one, one_stat), (other, other_stat));
    let change: Box<dyn Change + 'a> = Box::new(PreparedExchange { context: *context, one, other });
    Ok(SealedChange::new(change, facts))
}

impl Change for PreparedExchange<'_> {
    fn permit(&self) -> &Permit {
        &self.one.0.permit
    }

    fn tree(&self) -> &[Walked] {
        &self.one.0.tree
    }

    /// Both entries exist afterwards, so no backup is needed.
    fn origins(&self) -> Vec<Origin<'_>> {
        Vec::new()
    }

    fn commit(
        self: Box<Self>,
        _: Option<&crate::workspace::TempName>,
        _: &[Saved],
    ) -> Result<Committed, Error> {
        let workspace = self.context.workspace;
        let (one, other) = (&self.one, &self.other);
        let here = workspace.open_parent(one.0.permit.path())?;
        let there = workspace.open_parent(other.0.permit.path())?;
        let _excluded = self.context.name_locks.exclude(&[&here, &there])?;
        workspace.confirm(&here).map_err(Error::unbegun)?;
        workspace.confirm(&there).map_err(Error::unbegun)?;
        let (at, to) = ((&here, here.name()), (&there, there.name()));
        atomic_exchange::exchange(at, to).map_err(|errno| match errno {
            Errno::NOENT => Error::Conflict,
            Errno::XDEV => Error::Invalid(atomic_exchange::OVERLAY_LOWER),
            errno => workspace::Error::os("exchange the entries")(errno).into(),
        })?;
        if self.moved(one, &there, other.0.permit.path())
            && self.moved(other, &here, one.0.permit.path())
        {
            there.sync()?;
            here.sync()?;
            return Ok(Committed::Stored(None));
        }
        // The entries are not those that were decided on: the exchange is undone.
        atomic_exchange::exchange(at, to)
            .map_err(workspace::Error::os("exchange the entries back"))?;
        Err(Error::Conflict)
    }
}

impl PreparedExchange<'_> {
    /// True if the entry that was decided on has its new name.
    fn moved(
        &self,
        (side, stat): &(ExchangeEntry, Stat),
        parent: &Parent,
        at: &WorkspacePath,
    ) -> bool {
        let workspace = self.context.workspace;
        parent.stat(parent.name()).is_ok_and(|now| now.identity == stat.identity)
            && workspace.confirm(parent).is_ok()
            && is_as_decided(workspace, stat.kind, &side.tree, side.permit.path(), at)
    }
}
