//! Decisions besides those on the named paths: on everything in a directory that is
//! removed or renamed, and on missing directories of the path.

use crate::{
    gateway::{Follow, LinkDecisions, WorkspaceError, WorkspaceView},
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Decision, ObjectKind, Policy, Query},
};

/// The operation that is explained.
pub(super) struct ImpliedDecisions<'a> {
    pub(super) policy: &'a Policy,
    pub(super) workspace: WorkspaceView<'a>,
    pub(super) agent: &'a AgentName,
    pub(super) operation: OperationKind,
}

/// The strictest decision that is no plain allowance, with its path.
type NamedDecision = Option<(WorkspacePath, Decision)>;

impl ImpliedDecisions<'_> {
    /// Decides on everything beneath a directory that is removed or renamed.
    ///
    /// # Errors
    /// When an entry in it has an invalid name, which the gateway refuses, too.
    pub(super) fn beneath(
        &self,
        path: &WorkspacePath,
        to: Option<&WorkspacePath>,
    ) -> Result<NamedDecision, WorkspaceError> {
        if !matches!(self.operation, OperationKind::Remove | OperationKind::Rename) {
            return Ok(None);
        }
        // A path that cannot be resolved has a note of its own.
        let Ok(resolved) = self.workspace.resolve(path, Follow::No) else { return Ok(None) };
        if resolved.object().kind != ObjectKind::Directory {
            return Ok(None);
        }
        let mut found = None;
        let to = to.map(|to| canonical(self.workspace, to));
        let tree = self.workspace.walk(resolved.path())?;
        for walked in &tree {
            let new = to
                .as_ref()
                .map(|to| walked.path.rebase(resolved.path(), to).ok_or(WorkspaceError::TooLong));
            let new = new.transpose()?;
            let (agent, operation, object) =
                (self.agent, self.operation, walked.stat.object(false));
            let new = new.as_ref();
            let decision = self.policy.decide(agent, operation, &walked.path, new, Some(&object));
            keep(&mut found, walked.path.clone(), decision);
        }
        if let Some(to) = &to {
            let entries = tree.iter().map(|walked| (&walked.path, walked.stat.object(false)));
            let (from, workspace) = (resolved.path(), self.workspace);
            let led = LinkDecisions::first_refused(
                self.policy,
                self.agent,
                workspace,
                (from, to),
                entries,
            )?;
            let refused = LinkDecisions::refused(&WorkspaceError::Outside);
            if let (Some(link), Some(refused)) = (led, refused) {
                keep(&mut found, link.clone(), refused);
            }
        }
        Ok(found)
    }

    /// Decides on the missing directories of the path; only denials by a rule count.
    ///
    /// # Errors
    /// When an entry on the path is no directory.
    pub(super) fn on_the_way(
        &self,
        path: &WorkspacePath,
        to: Option<&WorkspacePath>,
    ) -> Result<NamedDecision, WorkspaceError> {
        use OperationKind as O;
        let (made, follow) = match self.operation {
            O::Write | O::Append | O::Mkdir => (Some(path), Follow::Yes),
            O::Rename => (to, Follow::No),
            O::Restore | O::Symlink => (Some(path), Follow::No),
            _ => (None, Follow::No),
        };
        let Some(Ok(resolved)) = made.map(|path| self.workspace.resolve(path, follow)) else {
            return Ok(None);
        };
        if resolved.object().kind != ObjectKind::Missing {
            return Ok(None);
        }
        let mut found = None;
        for path in self.workspace.missing_ancestors(resolved.path())? {
            let (agent, operation, access) = (self.agent, O::Mkdir, Access::Write);
            let query = Query { agent, operation, access, path: &path };
            let decision = match self.operation {
                O::Restore => self.policy.evaluate_returning(&query, None),
                _ => self.policy.evaluate(&query),
            };
            if !decision.is_default_deny() {
                keep(&mut found, path, decision);
            }
        }
        Ok(found)
    }
}

/// Returns the path of an entry to which no link leads; that of one that cannot be resolved as it is.
pub(super) fn canonical(workspace: WorkspaceView<'_>, path: &WorkspacePath) -> WorkspacePath {
    let resolved = workspace.resolve(path, Follow::No);
    resolved.map_or_else(|_| path.clone(), |resolved| resolved.path().clone())
}

fn keep(found: &mut NamedDecision, path: WorkspacePath, decision: Decision) {
    let strictest = found.as_ref().is_none_or(|(_, known)| decision.effect() > known.effect());
    if strictest && (!decision.is_allow() || decision.would_deny()) {
        *found = Some((path, decision));
    }
}
