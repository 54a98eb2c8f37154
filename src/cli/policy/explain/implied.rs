//! Decisions besides those on the named paths: on everything in a directory that is
//! removed or renamed, and on missing directories of the path.

use std::fmt;

use crate::{
    gateway::{Follow, LinkDecisions, Resolved, WorkspaceError, WorkspaceView, decide_entries},
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Decision, ObjectKind, Policy, Query},
};

/// The location of an entry that a rename moves, of which the old name was asked about.
pub(super) const MOVED: &str = "moved,";

/// The operation that is explained.
pub(super) struct ImpliedDecisions<'a> {
    pub(super) policy: &'a Policy,
    pub(super) workspace: WorkspaceView<'a>,
    pub(super) agent: &'a AgentName,
    pub(super) operation: OperationKind,
}

/// A part of the operation, in the order in which the gateway decides.
#[derive(Clone, Copy)]
pub(super) enum ImpliedPart {
    /// The missing directories of the path.
    OnTheWay,
    /// The entry that is removed or renamed, with everything beneath it.
    Entries,
}

/// A consumer of decisions, each with its location and path.
type Decide<'a> = dyn FnMut(&'static str, &WorkspacePath, Decision) + 'a;

impl ImpliedDecisions<'_> {
    /// Decides on one part.
    ///
    /// # Errors
    /// When the gateway fails there.
    pub(super) fn decide(
        &self,
        part: ImpliedPart,
        path: &WorkspacePath,
        to: Option<&WorkspacePath>,
        decided: &mut Decide<'_>,
    ) -> Result<(), WorkspaceError> {
        match part {
            ImpliedPart::OnTheWay => self.on_the_way(path, to, decided),
            ImpliedPart::Entries => self.entries(path, to, decided),
        }
    }

    /// Decides on what is removed or renamed; for an entry in it with an invalid name, the gateway
    /// fails.
    fn entries(
        &self,
        path: &WorkspacePath,
        to: Option<&WorkspacePath>,
        decided: &mut Decide<'_>,
    ) -> Result<(), WorkspaceError> {
        if !matches!(self.operation, OperationKind::Remove | OperationKind::Rename) {
            return Ok(());
        }
        let from = self.resolve(Access::Remove, path, Follow::No)?;
        let to = to.map(|to| self.resolve(Access::Write, to, Follow::No)).transpose()?;
        let names = (&from, to.as_ref().map(Resolved::path));
        decide_entries((self.policy, self.agent), self.workspace, names, &mut |entry, decision| {
            let location = if entry == from.path() { MOVED } else { "beneath it," };
            decided(location, entry, decision);
        })
    }

    /// Decides on the missing directories of the path; only denials by a rule count.
    fn on_the_way(
        &self,
        path: &WorkspacePath,
        to: Option<&WorkspacePath>,
        decided: &mut Decide<'_>,
    ) -> Result<(), WorkspaceError> {
        use OperationKind as O;
        let (made, follow) = match self.operation {
            O::Write | O::Append | O::Mkdir => (Some(path), Follow::Yes),
            O::Rename => (to, Follow::No),
            O::Restore | O::Symlink => (Some(path), Follow::No),
            _ => (None, Follow::No),
        };
        let Some(made) = made else { return Ok(()) };
        let resolved = self.resolve(Access::Write, made, follow)?;
        if resolved.object().kind != ObjectKind::Missing {
            return Ok(());
        }
        let (missing, error) = self.workspace.ancestors_to_make(resolved.path())?;
        for path in &missing {
            let query =
                Query { agent: self.agent, operation: O::Mkdir, access: Access::Write, path };
            let decision = match self.operation {
                O::Restore => self.policy.evaluate_returning(&query, None),
                _ => self.policy.evaluate(&query),
            };
            if !decision.is_default_deny() {
                decided("on the way, the directory", path, decision);
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Resolves a path as the gateway does: a link that the agent may not follow is passed as if it
    /// were missing.
    fn resolve(
        &self,
        access: Access,
        path: &WorkspacePath,
        follow: Follow,
    ) -> Result<Resolved, WorkspaceError> {
        let Self { policy, workspace, agent, operation } = *self;
        let is_asked = policy.evaluate(&Query { agent, operation, access, path }).is_ask();
        LinkDecisions { policy, agent, operation, accesses: &[access], is_asked }.resolve(
            workspace,
            path,
            follow,
            &mut Vec::new(),
        )
    }
}

impl fmt::Display for ImpliedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnTheWay => "on the way",
            Self::Entries => "beneath it",
        })
    }
}

/// Keeps the strictest decision that is no plain allowance, with the text of its location.
pub(super) fn keep(
    found: &mut Option<(String, Decision)>,
    (location, path): (&str, &WorkspacePath),
    decision: Decision,
) {
    let strictest = found.as_ref().is_none_or(|(_, known)| decision.effect() > known.effect());
    if strictest && (!decision.is_allow() || decision.would_deny()) {
        *found = Some((format!("{location} `{path}`"), decision));
    }
}
