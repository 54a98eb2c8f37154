//! What an agent may do with one entry: the questions that the gate puts to
//! the policy, put for every operation at once.

use super::tree::TreeEntry;
use crate::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Decision, Object, ObjectKind, Policy, Query},
};

/// Something that can be done with an entry. A policy decides about each by itself,
/// so one that is missing here is one that a comparison of policies does not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are those of the operations")]
pub enum Deed {
    Read,
    /// Have its lines shown by a search.
    Grep,
    List,
    Stat,
    /// Be shown by a search.
    Glob,
    /// Be shown when it changes.
    Watch,
    Write,
    Append,
    Edit,
    Mkdir,
    /// Be the new name of a rename.
    RenameTo,
    /// Have its permission bits or times set, as a mount asks for.
    SetAttributes,
    /// Be made as a symbolic link, as a mount asks for.
    Symlink,
    /// Be put back, which the operator asks for.
    Restore,
    Remove,
    /// Be the old name of a rename.
    Rename,
}

impl Deed {
    /// All of them, those with the same access side by side.
    pub const ALL: [Self; 16] = [
        Self::Read,
        Self::Grep,
        Self::List,
        Self::Stat,
        Self::Glob,
        Self::Watch,
        Self::Write,
        Self::Append,
        Self::Edit,
        Self::Mkdir,
        Self::RenameTo,
        Self::SetAttributes,
        Self::Symlink,
        Self::Restore,
        Self::Remove,
        Self::Rename,
    ];

    /// The word for people and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RenameTo => "rename to",
            other => other.operation().as_str(),
        }
    }

    /// The access that it is filed under.
    pub fn access(self) -> Access {
        match self {
            Self::Read | Self::Grep => Access::Read,
            Self::List | Self::Stat | Self::Glob | Self::Watch => Access::List,
            Self::Write
            | Self::Append
            | Self::Edit
            | Self::Mkdir
            | Self::RenameTo
            | Self::SetAttributes
            | Self::Symlink
            | Self::Restore => Access::Write,
            Self::Remove | Self::Rename => Access::Remove,
        }
    }

    /// Whether it can be done with what is there.
    pub fn fits(self, kind: ObjectKind) -> bool {
        match self {
            Self::Read | Self::Grep | Self::Write | Self::Append | Self::Edit => {
                kind != ObjectKind::Directory
            }
            Self::List | Self::Mkdir => kind == ObjectKind::Directory,
            Self::Symlink => kind == ObjectKind::Symlink,
            Self::Stat
            | Self::Glob
            | Self::Watch
            | Self::RenameTo
            | Self::SetAttributes
            | Self::Restore
            | Self::Remove
            | Self::Rename => true,
        }
    }

    fn operation(self) -> OperationKind {
        match self {
            Self::Read => OperationKind::Read,
            Self::Grep => OperationKind::Grep,
            Self::List => OperationKind::List,
            Self::Stat => OperationKind::Stat,
            Self::Glob => OperationKind::Glob,
            Self::Watch => OperationKind::Watch,
            Self::Write => OperationKind::Write,
            Self::Append => OperationKind::Append,
            Self::Edit => OperationKind::Edit,
            Self::Mkdir => OperationKind::Mkdir,
            Self::SetAttributes => OperationKind::SetAttributes,
            Self::Symlink => OperationKind::Symlink,
            Self::Restore => OperationKind::Restore,
            Self::Remove => OperationKind::Remove,
            Self::Rename | Self::RenameTo => OperationKind::Rename,
        }
    }

    fn accesses(self) -> &'static [Access] {
        match self {
            Self::RenameTo => &[Access::Write],
            other => other.operation().accesses(),
        }
    }

    fn follows(self) -> bool {
        !matches!(
            self,
            Self::Glob
                | Self::Watch
                | Self::SetAttributes
                | Self::Symlink
                | Self::Restore
                | Self::Remove
                | Self::Rename
                | Self::RenameTo
        )
    }
}

/// Decides about an entry of a workspace as the gate would by its names and
/// facts; content is not looked at. `None` when a link leads nowhere that is
/// served.
pub fn judge(
    policy: &Policy,
    agent: &AgentName,
    deed: Deed,
    entry: &TreeEntry,
) -> Option<Decision> {
    if entry.object.kind == ObjectKind::Symlink && deed.follows() {
        let (path, object) = entry.target.as_ref()?;
        if !deed.fits(object.kind) {
            return None;
        }
        let asked = decide(policy, agent, deed, &entry.path, None);
        return Some(if asked.is_deny() {
            asked
        } else {
            stricter(asked, decide(policy, agent, deed, path, Some(object)))
        });
    }
    deed.fits(entry.object.kind)
        .then(|| decide(policy, agent, deed, &entry.path, Some(&entry.object)))
}

/// Decides about a path: every access that the deed needs. Returns the first
/// denial, else a question, else the last allowance, which is that of the access
/// that the deed is filed under.
pub(super) fn decide(
    policy: &Policy,
    agent: &AgentName,
    deed: Deed,
    path: &WorkspacePath,
    object: Option<&Object>,
) -> Decision {
    let operation = deed.operation();
    let mut answer: Option<Decision> = None;
    for access in deed.accesses() {
        let query = Query { agent, operation, access: *access, path };
        let mut decision = policy.evaluate(&query);
        if let (false, Some(object)) = (decision.is_deny(), object) {
            decision = decision.and(policy.evaluate_object(&query, object));
        }
        if decision.is_deny() {
            return decision;
        }
        answer = Some(match answer {
            Some(before) => stricter(before, decision),
            None => decision,
        });
    }
    answer.unwrap_or_else(|| policy.decide(agent, operation, path, None, object))
}

/// The stricter of two decisions, of two alike the later one.
fn stricter(before: Decision, decision: Decision) -> Decision {
    if before.effect() > decision.effect() { before } else { decision }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_a_deed_under_one_of_its_accesses() {
        for operation in OperationKind::ALL {
            let deed = Deed::ALL.into_iter().find(|deed| deed.operation() == operation);
            let deed = deed.unwrap_or_else(|| panic!("{operation} is not asked about"));
            assert!(deed.accesses().contains(&deed.access()), "{operation}");
        }
    }
}
