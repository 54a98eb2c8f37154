//! Targets of links: whether they lead out of the workspace where the links are moved.

use rustix::fs::OFlags;

use crate::{
    model::WorkspacePath,
    policy::{Decision, ObjectKind},
    workspace::{self, Walked, Workspace},
};

/// The advice about a link that is in a moved directory.
pub(super) const REMOVE: &str = "remove it first";

/// The move of a directory with everything in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move<'a> {
    /// The directory's path before it.
    pub(super) from: &'a WorkspacePath,
    /// The directory's path after it.
    pub(super) to: &'a WorkspacePath,
    /// The directory's path on the disk now, which differs from `from` where an undo is planned.
    pub(super) on_disk: &'a WorkspacePath,
    /// The entries, by their paths before it.
    pub(super) tree: &'a [Walked],
}

impl Move<'_> {
    /// Returns the first link that leads out of the workspace after the move, and did not before.
    ///
    /// # Errors
    /// When a link cannot be read.
    pub(super) fn first_led_out(
        &self,
        workspace: &Workspace,
    ) -> Result<Option<&Walked>, workspace::Error> {
        if depth(self.to) >= depth(self.from) {
            return Ok(None);
        }
        for link in self.tree.iter().filter(|walked| walked.stat.kind == ObjectKind::Symlink) {
            let (on_disk, new) =
                (link.path.rebase(self.from, self.on_disk), link.path.rebase(self.from, self.to));
            let (Some(on_disk), Some(new)) = (on_disk, new) else { continue };
            let opened = workspace.open_at(&on_disk, OFlags::PATH | OFlags::NOFOLLOW)?;
            if is_led_out(&workspace::read_link(&opened)?, &link.path, &new) {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }
}

/// Returns the denial of an operator's request that would lead a link out of the workspace; `advice`
/// says what to do.
pub(super) fn outside(link: &WorkspacePath, advice: &str) -> Decision {
    let reason = format!("the link `{link}` would lead out of the workspace: {advice}");
    Decision::built_in_denial("links.outside", &reason)
}

/// True if a link with this target leads out of the workspace at `to`, and did not at `from`.
pub(super) fn is_led_out(target: &str, from: &WorkspacePath, to: &WorkspacePath) -> bool {
    let up = steps_up(target);
    up > depth(to) && up <= depth(from)
}

/// True if a link's target goes up behind another name: that name may become a link, which leads
/// elsewhere.
pub(super) fn climbs_later(target: &str) -> bool {
    let names = target.split('/').filter(|name| !matches!(*name, "" | "."));
    names.skip_while(|name| *name == "..").any(|name| name == "..")
}

/// Counts the directories that a link's target goes up, at its highest point.
pub(super) fn steps_up(target: &str) -> usize {
    let (mut down, mut up) = (0_usize, 0_usize);
    for name in target.split('/').filter(|name| !matches!(*name, "" | ".")) {
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
