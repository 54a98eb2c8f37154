//! Evaluation of the policy for the paths and objects of an operation.

use super::{
    error::{Failure, HIDDEN, UNSEEN},
    link_targets::{self, Move},
    obligations::Obligations,
};
use crate::{
    backup::{self, BackupKind, BackupStore, NodeKind, PathBuilder, Saved},
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Decision, Object, ObjectKind, Policy, Query, Visibility},
    view::WorkspaceView,
    workspace::{self, Resolved, TempName, Walked, Workspace},
};

/// Decides on one name; denies names that are reserved for the gateway.
pub fn decide_name(policy: &Policy, query: &Query<'_>) -> Decision {
    if TempName::is_reserved(query.path) { reserved() } else { policy.evaluate(query) }
}

fn reserved() -> Decision {
    Decision::built_in_denial("names.reserved", "the name is reserved for the gateway")
}

/// Evaluates the policy for one operation of one agent.
#[derive(Clone, Copy)]
pub(super) struct Authorizer<'a> {
    pub(super) policy: &'a Policy,
    pub(super) agent: &'a AgentName,
    pub(super) operation: OperationKind,
    /// True if the request is the operator's, to whom nothing is hidden.
    pub(super) is_operators: bool,
    /// Collects decisions that are neither denials nor plain allows.
    pub(super) obligations: &'a Obligations,
}

impl Authorizer<'_> {
    /// Decides on one name.
    pub(super) fn decide_name(&self, access: Access, path: &WorkspacePath) -> Decision {
        if TempName::is_reserved(path) {
            return reserved();
        }
        self.evaluate(&self.query(access, path), None)
    }

    /// Decides by name, and by the object if it is known.
    fn evaluate(&self, query: &Query<'_>, object: Option<&Object>) -> Decision {
        match (self.is_operators, object) {
            (true, _) => self.policy.evaluate_returning(query, object),
            (false, Some(object)) => self.policy.evaluate_entry(query, object),
            (false, None) => self.policy.evaluate(query),
        }
    }

    /// Decides on an entry beneath the requested path, of which the object is known.
    pub(super) fn decide_entry(
        &self,
        access: Access,
        path: &WorkspacePath,
        object: &Object,
    ) -> Decision {
        if TempName::is_reserved(path) {
            return reserved();
        }
        self.evaluate(&self.query(access, path), Some(object))
    }

    /// Decides on one name for every access that the operation needs.
    pub(super) fn decide_names(&self, path: &WorkspacePath) -> Result<Decision, Failure> {
        self.require_all(
            self.operation.accesses().iter().map(|access| self.decide_name(*access, path)),
        )
    }

    /// Decides on a request by its names alone, before anything is looked at. `to` is the new name of
    /// a rename. Returns the decision on `path`.
    pub(super) fn decide_request(
        &self,
        path: &WorkspacePath,
        to: Option<&WorkspacePath>,
    ) -> Result<Decision, Failure> {
        let asked = self.decide_names(path)?;
        if let Some(to) = to {
            self.require(self.decide_name(Access::Write, to))?;
            self.require(self.policy.evaluate_move_by_name(self.agent, path, to))?;
        }
        Ok(asked)
    }

    /// Decides on the resolved object, by its canonical path and its kind.
    pub(super) fn decide_resolved(&self, resolved: &Resolved) -> Result<Decision, Failure> {
        let allowed = self.decide_names(resolved.path())?;
        self.decide_object(resolved)?;
        Ok(allowed)
    }

    /// Decides on the object alone, of a path that was decided on by name already.
    pub(super) fn decide_object(&self, resolved: &Resolved) -> Result<(), Failure> {
        self.decide_object_accesses(resolved.path(), &resolved.object(), self.operation.accesses())
    }

    /// Decides on the new name of `moving` by a rename or a restore, and on the object there before
    /// or after.
    pub(super) fn decide_target(
        &self,
        resolved: &Resolved,
        moving: &Object,
    ) -> Result<Decision, Failure> {
        let allowed =
            self.require_all([self.decide_name(Access::Write, resolved.path())].into_iter())?;
        let object = match resolved.object() {
            Object { kind: ObjectKind::Missing, through_symlink, .. } => {
                Object { through_symlink, links: 1, ..*moving }
            }
            there => there,
        };
        self.decide_object_accesses(resolved.path(), &object, &[Access::Write])?;
        Ok(allowed)
    }

    /// Decides whether a link may be made at `path`; denied where links are not followed.
    pub(super) fn decide_link(&self, path: &WorkspacePath) -> Result<(), Failure> {
        let object = Object { kind: ObjectKind::Symlink, links: 1, through_symlink: true };
        self.decide_object_accesses(path, &object, &[Access::Write])
    }

    /// Decides on an object for some accesses, of a path that was decided on by name already.
    pub(super) fn decide_object_accesses(
        &self,
        path: &WorkspacePath,
        object: &Object,
        accesses: &[Access],
    ) -> Result<(), Failure> {
        let decisions = accesses
            .iter()
            .map(|access| self.policy.evaluate_object(&self.query(*access, path), object));
        self.require_all(decisions).map(drop)
    }

    /// Decides on the missing parent directories and counts them: they need no permission of their
    /// own, but an explicit denial applies.
    pub(super) fn decide_ancestors(
        &self,
        workspace: &Workspace,
        resolved: &Resolved,
    ) -> Result<u64, Failure> {
        if resolved.object().kind != ObjectKind::Missing {
            return Ok(0);
        }
        let (missing, error) = workspace.ancestors_to_make(resolved.path())?;
        for path in &missing {
            let query = Query {
                agent: self.agent,
                operation: OperationKind::Mkdir,
                access: Access::Write,
                path,
            };
            let decision = self.evaluate(&query, None);
            if decision.is_deny() && !decision.is_default_deny() {
                return Err(decision.into());
            }
            if decision.is_ask() {
                self.obligations.add(&decision);
            }
        }
        match error {
            Some(error) => Err(error.into()),
            None => Ok(u64::try_from(missing.len()).unwrap_or(u64::MAX)),
        }
    }

    /// Decides whether everything beneath the directory `root` may be removed.
    pub(super) fn decide_removal(
        &self,
        root: &WorkspacePath,
        tree: &[Walked],
    ) -> Result<(), Failure> {
        tree.iter().try_for_each(|walked| {
            let object = walked.stat.object(false);
            let decision = self.decide_entry(Access::Remove, &walked.path, &object);
            self.require_beneath(root, (&walked.path, &object), decision)
        })
    }

    /// Decides whether everything in a tree, as its backup has it, may be removed.
    pub(super) fn decide_removal_of_saved(
        &self,
        backup_store: &BackupStore,
        saved: &Saved,
    ) -> Result<(), Failure> {
        let entry = backup_store.entry(saved)?;
        if entry.kind != BackupKind::Tree {
            return Ok(());
        }
        let mut tree = backup_store.tree(&entry)?;
        while let Some(node) = tree.next_node()? {
            let too_long = |_| Failure::Operation(crate::workspace::Error::TooLong.into());
            let path = tree.path(&node).map_err(too_long)?;
            let object = node.object();
            // A name reserved for the gateway is removed with its directory.
            let query = self.query(Access::Remove, &path);
            let decision = self.evaluate(&query, Some(&object));
            self.require_beneath(&entry.path, (&path, &object), decision)?;
        }
        Ok(())
    }

    /// Decides whether the backup `entry` may be restored to `to`, of a tree every node of it.
    /// Prevents a restore from making unreadable content readable.
    pub(super) fn decide_restore(
        &self,
        (workspace, backup_store): (WorkspaceView<'_>, &BackupStore),
        entry: &backup::Backup,
        to: &WorkspacePath,
    ) -> Result<(), Failure> {
        let target = match entry.kind {
            BackupKind::Link => Some(backup_store.link_target(entry)?),
            _ => None,
        };
        let mut nodes = vec![(entry.path.clone(), entry.kind.object(), target)];
        let mut new_paths = vec![to.clone()];
        if entry.kind == BackupKind::Tree {
            let mut tree = backup_store.tree(entry)?;
            let mut new = PathBuilder::new(to.clone());
            let too_long = |_| Failure::Operation(crate::workspace::Error::TooLong.into());
            nodes.clear();
            new_paths.clear();
            while let Some(node) = tree.next_node()? {
                let path = tree.path(&node).map_err(too_long)?;
                new_paths.push(new.path(&node).map_err(too_long)?);
                nodes.push((path, node.kind.object(), node.target));
            }
        }
        let reader = Authorizer { operation: OperationKind::Read, ..*self };
        for ((old, object, target), new) in nodes.iter().zip(&new_paths) {
            // A reserved name in the tree, planted or left behind, is restored with it; `to` itself
            // was decided on.
            let decision = self.evaluate(&self.query(Access::Write, new), Some(object));
            self.require(decision)?;
            let read_decision = reader.decide_name(Access::Read, old);
            if old == new {
                continue;
            }
            if !read_decision.is_allow() {
                let reason = "what cannot be read cannot be restored to another path";
                return Err(read_decision.denying().with_reason(reason).into());
            }
            self.obligations.add(&read_decision);
            // A readable entry may be hidden from lists at its old path and shown at its new one.
            self.require(self.policy.evaluate_move(self.agent, old, new, Some(object)))?;
            if object.kind == ObjectKind::Symlink {
                self.require(self.policy.evaluate_link(self.agent, new))?;
            }
            let Some(target) = target else { continue };
            let is_led_out = match str::from_utf8(target) {
                Ok(target) => {
                    let moved = Move { from: &entry.path, to, agent_follows: None };
                    moved.is_refused(workspace, old, target)?
                }
                Err(_) => true,
            };
            if is_led_out {
                let advice = "restore it to its own path";
                return Err(link_targets::outside(new, advice).into());
            }
        }
        Ok(())
    }

    /// Decides whether `object` and everything beneath it may have its new name. Prevents a rename
    /// from making unreadable content readable.
    pub(super) fn decide_rename(
        &self,
        from: &WorkspacePath,
        to: &WorkspacePath,
        object: &Object,
        tree: &[Walked],
    ) -> Result<(), Failure> {
        let beneath = || tree.iter().map(|walked| (&walked.path, walked.stat.object(false)));
        let entries = || std::iter::once((from, *object)).chain(beneath());
        // Before anything depends on the new name; otherwise the limit on a path's length would
        // reveal the length of a hidden name.
        for (old, object) in entries() {
            self.require_beneath(
                from,
                (old, &object),
                self.decide_entry(Access::Remove, old, &object),
            )?;
        }
        let is_too_long = |old: &WorkspacePath| old.rebase(from, to).is_none();
        if entries().any(|(old, object)| is_too_long(old) && self.may_list(from, old, &object)) {
            return Err(Failure::Operation(crate::workspace::Error::TooLong.into()));
        }
        for (old, object) in entries() {
            let Some(new) = old.rebase(from, to) else {
                let reason = "the new path of something that is not shown is too long";
                return Err(Failure::hidden(Decision::built_in_denial(HIDDEN, reason)));
            };
            self.decide_new_name((old, &new), &object)
                .try_for_each(|decision| self.require_beneath(from, (old, &object), decision))?;
        }
        Ok(())
    }

    /// Decides on the `new` name that a rename gives to an entry which is at `old`.
    pub(super) fn decide_new_name<'a>(
        &'a self,
        (old, new): (&'a WorkspacePath, &'a WorkspacePath),
        object: &'a Object,
    ) -> impl Iterator<Item = Decision> + 'a {
        let moved = Object { links: 1, ..*object };
        // Of the operator's undo, too: another session may have made the link meanwhile. So an
        // agent moves none that could not be moved back.
        let links = [Some(new), (!self.is_operators).then_some(old)];
        let links = links.into_iter().flatten().filter(|_| object.kind == ObjectKind::Symlink);
        [
            self.decide_entry(Access::Write, new, &moved),
            self.policy.evaluate_move(self.agent, old, new, Some(object)),
        ]
        .into_iter()
        .chain(links.map(|path| self.policy.evaluate_link(self.agent, path)))
    }

    /// Requires that a decision about an entry beneath `root`, the requested path, is no denial. The
    /// denial of an entry that the agent may not list is hidden.
    fn require_beneath(
        &self,
        root: &WorkspacePath,
        (path, object): (&WorkspacePath, &Object),
        decision: Decision,
    ) -> Result<(), Failure> {
        if decision.is_deny() && !self.may_list(root, path, object) {
            return Err(Failure::hidden(decision));
        }
        self.require(decision)
    }

    /// True if the agent may know of `object` at `path`, given that it knows of `root`: it may list
    /// the object and all directories in between.
    fn may_list(&self, root: &WorkspacePath, path: &WorkspacePath, object: &Object) -> bool {
        let directory = NodeKind::Directory.object();
        let above = path.ancestors();
        let mut between = above.iter().filter(|above| above.is_within(root) && *above != root);
        self.is_operators
            || (between.all(|above| self.lists(above, &directory))
                && (path == root || self.lists(path, object)))
    }

    /// Walks the directory `root`. An error in a hidden directory does not reveal what is there.
    pub(super) fn walk(
        &self,
        workspace: &Workspace,
        root: &WorkspacePath,
    ) -> Result<Vec<Walked>, Failure> {
        let mut reached = root.clone();
        workspace.walk_noting(root, &mut reached).map_err(|error| {
            let may_know = error == workspace::Error::Moved
                || self.may_list(root, &reached, &NodeKind::Directory.object());
            if may_know {
                return error.into();
            }
            Failure::hidden(Decision::built_in_denial(HIDDEN, UNSEEN))
        })
    }

    /// True if the agent may list `object` at `path` without an approval.
    pub(super) fn lists(&self, path: &WorkspacePath, object: &Object) -> bool {
        let (operation, access) = (OperationKind::List, Access::List);
        let query = Query { agent: self.agent, operation, access, path };
        !TempName::is_reserved(path)
            && matches!(self.policy.visibility(&query, object), Visibility::Shown { .. })
    }

    /// True if the agent may read `path` without an approval.
    pub(super) fn reads(&self, path: &WorkspacePath) -> bool {
        let reader = Authorizer { operation: OperationKind::Read, ..*self };
        reader.decide_name(Access::Read, path).is_allow()
    }

    fn query<'a>(&'a self, access: Access, path: &'a WorkspacePath) -> Query<'a> {
        Query { agent: self.agent, operation: self.operation, access, path }
    }

    /// Requires that a decision is no denial, and adds its obligations.
    pub(super) fn require(&self, decision: Decision) -> Result<(), Failure> {
        self.require_all(std::iter::once(decision)).map(drop)
    }

    /// Requires that no decision is a denial, and adds their obligations; returns the last one.
    fn require_all(&self, decisions: impl Iterator<Item = Decision>) -> Result<Decision, Failure> {
        let mut last = Decision::built_in_denial("default", "nothing was asked");
        for decision in decisions {
            if decision.is_deny() {
                return Err(decision.into());
            }
            self.obligations.add(&decision);
            last = decision;
        }
        if last.is_deny() { Err(last.into()) } else { Ok(last) }
    }
}
