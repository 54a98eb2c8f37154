//! Targets of links: whether they lead out of the workspace where the links are moved.

use std::time::{Duration, Instant};

use crate::{
    model::WorkspacePath,
    policy::{Decision, Object, ObjectKind},
    view::WorkspaceView,
    workspace::{Error, VisitedName},
};

/// The advice about a link that an undo would move.
pub(super) const REMOVE: &str = "remove it first, or rename it yourself";

/// Maximum of time for which the links in a tree are resolved: others wait for its paths.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The move of an entry with everything in it.
pub(super) struct Move<'a> {
    /// The entry's path before it.
    pub(super) from: &'a WorkspacePath,
    /// The entry's path after it.
    pub(super) to: &'a WorkspacePath,
    /// The names that the agent which moves it may follow to resolve a target; `None` if the operator
    /// moves it.
    pub(super) agent_follows: Option<&'a dyn Fn(VisitedName<'_>) -> bool>,
}

impl Move<'_> {
    /// Returns the first link that may not be moved, as [`Move::is_refused`] says. `entries` have their
    /// paths before the move. The moved entry is at `on_disk` now, which differs from its path before
    /// the move where an undo is planned.
    ///
    /// # Errors
    /// [`Error::Moved`]; [`Error::TooLarge`] if it takes too long.
    pub(super) fn first_refused<'e>(
        &self,
        workspace: WorkspaceView<'_>,
        on_disk: &WorkspacePath,
        entries: impl IntoIterator<Item = (&'e WorkspacePath, Object)>,
    ) -> Result<Option<(&'e WorkspacePath, Object)>, Error> {
        // From the same directory targets lead to the same places, and the root is in none.
        let parents = self.from.parent().zip(self.to.parent());
        if parents.is_none_or(|(before, after)| before == after) {
            return Ok(None);
        }
        let begun = Instant::now();
        for (link, object) in entries {
            if object.kind != ObjectKind::Symlink {
                continue;
            }
            if begun.elapsed() > MAX_TIME {
                return Err(Error::TooLarge);
            }
            let Some(now) = link.rebase(self.from, on_disk) else { continue };
            let target = workspace.link_target(&now);
            match target.and_then(|target| self.is_refused(workspace, link, &target)) {
                Ok(false) => {}
                Err(Error::Moved) => return Err(Error::Moved),
                // The link may be hidden, so its error is not told.
                Ok(true) | Err(_) => return Ok(Some((link, object))),
            }
        }
        Ok(None)
    }

    /// True if the link with this path before the move leads out of the workspace after it, and did
    /// not before. An agent cannot do the opposite either: nobody could undo that. Nor does it move a
    /// link whose target may come to lead elsewhere.
    ///
    /// # Errors
    /// When the target cannot be resolved.
    pub(super) fn is_refused(
        &self,
        workspace: WorkspaceView<'_>,
        link: &WorkspacePath,
        target: &str,
    ) -> Result<bool, Error> {
        let Some(new) = link.rebase(self.from, self.to) else { return Ok(false) };
        if self.agent_follows.is_some() && climbs_later(target) {
            return Ok(true);
        }
        let before = self.is_outside(workspace, (self.from, link), target)?;
        let after = self.is_outside(workspace, (self.to, &new), target)?;
        Ok(before != after && (after || self.agent_follows.is_some()))
    }

    /// True if a target leads out of the workspace from `link`, which is `root` or beneath it.
    fn is_outside(
        &self,
        workspace: WorkspaceView<'_>,
        (root, link): (&WorkspacePath, &WorkspacePath),
        target: &str,
    ) -> Result<bool, Error> {
        if steps_up(target) > depth(link) {
            return Ok(true);
        }
        let inside = depth(link).saturating_sub(depth(root));
        // What is beneath the root moves with the link, and is decided on by itself.
        if names(target).take_while(|name| *name == "..").count() < inside {
            return Ok(false);
        }
        let outside: Vec<_> = names(target).skip(inside).collect();
        let outside = outside.join("/");
        let mut follows =
            |visited: VisitedName<'_>| self.agent_follows.is_none_or(|follows| follows(visited));
        match workspace.resolve_target(root, &outside, &mut follows) {
            Err(Error::Outside | Error::Mount) => Ok(true),
            Ok(_) | Err(Error::Loop | Error::NotFound | Error::NotADirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns the denial of an operator's request that would lead a link out of the workspace; `advice`
/// says what to do.
pub(super) fn outside(link: &WorkspacePath, advice: &str) -> Decision {
    let reason = format!("the link `{link}` would lead out of the workspace: {advice}");
    Decision::built_in_denial("links.outside", &reason)
}

/// True if a link's target goes up behind another name: that name may become a link, which leads
/// elsewhere.
pub(super) fn climbs_later(target: &str) -> bool {
    names(target).skip_while(|name| *name == "..").any(|name| name == "..")
}

/// Counts the directories that a link's target goes up, at its highest point.
pub(super) fn steps_up(target: &str) -> usize {
    let (mut down, mut up) = (0_usize, 0_usize);
    for name in names(target) {
        match (name, down) {
            ("..", 0) => up += 1,
            ("..", _) => down -= 1,
            _ => down += 1,
        }
    }
    up
}

/// Counts the directories of the workspace above a link.
pub(super) fn depth(link: &WorkspacePath) -> usize {
    link.parent().map_or(0, |parent| parent.components().count())
}

/// Returns the names of a link's target.
fn names(target: &str) -> impl Iterator<Item = &str> {
    target.split('/').filter(|name| !matches!(*name, "" | "."))
}
