//! Decisions on one entry for every operation at once, by the actions that the gateway decides on.

use super::tree::TreeEntry;
use crate::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Decision, Object, ObjectKind, Policy, Query, Visibility},
};

/// An operation on an entry. The policy decides each by itself, so a comparison of policies does
/// not see one that is missing here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are those of the operations")]
pub enum EntryOperation {
    Read,
    /// Shows its lines in the result of a search.
    Grep,
    List,
    Stat,
    /// Shows its name in the result of a search.
    Glob,
    /// Shows its changes to a subscription.
    Watch,
    Write,
    Append,
    Edit,
    Mkdir,
    /// Makes it the new name of a rename.
    RenameTo,
    /// Sets its permission bits or times, which a mount requests.
    SetAttributes,
    /// Makes it a symbolic link, which a mount requests.
    Symlink,
    /// Writes a backup of it back, which the operator requests.
    Restore,
    Remove,
    /// Makes it the old name of a rename.
    Rename,
}

impl EntryOperation {
    /// All of them, ordered by access.
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

    /// Returns the name for people and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RenameTo => "rename to",
            other => other.operation().as_str(),
        }
    }

    /// Returns the access that it is listed under.
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

    /// True if it applies to an entry of this kind.
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

    /// Returns the operation by which rules name it.
    pub(crate) fn operation(self) -> OperationKind {
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

    /// True if it applies to the target of a symbolic link.
    fn follows(self) -> bool {
        match self {
            Self::Read
            | Self::Grep
            | Self::List
            | Self::Stat
            | Self::Write
            | Self::Append
            | Self::Edit
            | Self::Mkdir => true,
            Self::Glob
            | Self::Watch
            | Self::SetAttributes
            | Self::Symlink
            | Self::Restore
            | Self::Remove
            | Self::Rename
            | Self::RenameTo => false,
        }
    }
}

/// Decides on an entry of a workspace as the gateway does by its names and facts, without its
/// content. Returns `None` if a link leads outside the served tree.
pub fn decide_entry(
    policy: &Policy,
    agent: &AgentName,
    entry_operation: EntryOperation,
    entry: &TreeEntry,
) -> Option<Decision> {
    if entry.object.kind == ObjectKind::Symlink && entry_operation.follows() {
        let (path, object) = entry.target.as_ref()?;
        if !entry_operation.fits(object.kind) {
            return None;
        }
        let asked = decide(policy, agent, entry_operation, &entry.path, None);
        return Some(if asked.is_deny() {
            asked
        } else {
            decide(policy, agent, entry_operation, path, Some(object)).and(asked)
        });
    }
    entry_operation
        .fits(entry.object.kind)
        .then(|| decide(policy, agent, entry_operation, &entry.path, Some(&entry.object)))
}

/// Operations that enter directories: the mount lists, too.
pub(super) const ENTERING: [(OperationKind, &str); 4] = [
    (OperationKind::List, "list beneath"),
    (OperationKind::Glob, "glob beneath"),
    (OperationKind::Grep, "grep beneath"),
    (OperationKind::Watch, "watch beneath"),
];

/// Decides whether the mount, a search or a watch enters a directory that is not shown: it does so
/// if nothing allows to list the directory, and something may be allowed beneath it. Returns `None`
/// for what is shown.
pub(super) fn decide_entering(
    policy: &Policy,
    agent: &AgentName,
    operation: OperationKind,
    entry: &TreeEntry,
) -> Option<Decision> {
    let query = Query { agent, operation, access: Access::List, path: &entry.path };
    let decision = policy.evaluate(&query);
    match policy.visibility(&query, &entry.object) {
        Visibility::Shown { .. } => None,
        Visibility::Asked | Visibility::Denied => Some(decision),
        Visibility::Closed => Some(policy.search_root(&query, decision)),
    }
}

/// Returns true if an operation that enters directories begins at this one, or passes into it.
pub fn is_entered(
    policy: &Policy,
    agent: &AgentName,
    entry_operation: EntryOperation,
    directory: &TreeEntry,
) -> bool {
    decide_entering(policy, agent, entry_operation.operation(), directory)
        .is_none_or(|decision| decision.is_allow())
}

/// Decides on every access to a path that the operation needs. Returns the first denial, else the
/// strictest decision; of equal ones the last, which is that of the access that the operation is
/// listed under.
pub(super) fn decide(
    policy: &Policy,
    agent: &AgentName,
    entry_operation: EntryOperation,
    path: &WorkspacePath,
    object: Option<&Object>,
) -> Decision {
    let operation = entry_operation.operation();
    let mut answer: Option<Decision> = None;
    for access in entry_operation.accesses() {
        let query = Query { agent, operation, access: *access, path };
        let mut decision = policy.evaluate(&query);
        if let (false, Some(object)) = (decision.is_deny(), object) {
            decision = decision.and(policy.evaluate_object(&query, object));
        }
        if decision.is_deny() {
            return decision;
        }
        answer = Some(match answer {
            Some(before) => decision.and(before),
            None => decision,
        });
    }
    answer.unwrap_or_else(|| policy.decide(agent, operation, path, None, object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_an_entry_operation_under_one_of_its_accesses() {
        for operation in OperationKind::ALL {
            let entry_operation = EntryOperation::ALL
                .into_iter()
                .find(|entry_operation| entry_operation.operation() == operation);
            let entry_operation =
                entry_operation.unwrap_or_else(|| panic!("{operation} is not asked about"));
            assert!(entry_operation.accesses().contains(&entry_operation.access()), "{operation}");
        }
    }
}
