//! The beginning of a search or a subscription: the gateway decides on it once,
//! before it decides on each entry.

use super::answer::{Answer, EntryDecisions};
use crate::{
    gateway::{Follow, LinkDecisions, Resolved, WorkspaceView},
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Effect, ObjectKind, Policy, Query},
};

/// The note on entries, which the decision on the directory does not cover.
const ENTRYWISE: &str = "each entry beneath is decided separately: one that may not be listed, or \
    for `grep` read, is left out";
/// The note on the effect `ask` here.
const LEFT_OUT: &str = "an entry about which a rule asks is left out of the result";

/// Returns true if an operation is decided entry by entry.
pub(super) fn is_entrywise(operation: OperationKind) -> bool {
    matches!(operation, OperationKind::Glob | OperationKind::Grep | OperationKind::Watch)
}

/// A search or subscription.
pub(super) struct Search<'a> {
    pub(super) policy: &'a Policy,
    pub(super) workspace: WorkspaceView<'a>,
    pub(super) agent: &'a AgentName,
    pub(super) operation: OperationKind,
}

impl Search<'_> {
    /// Decides on the named path, then on the entry there.
    pub(super) fn asked(&self, path: &WorkspacePath) -> EntryDecisions {
        let mut asked = EntryDecisions::default();
        if self.begins_elsewhere(&mut asked, path) {
            return asked;
        }
        let Self { policy, agent, operation, .. } = *self;
        let accesses = &[Access::List];
        let following = LinkDecisions { policy, agent, operation, accesses, is_asked: false };
        let resolved = match following.resolve(self.workspace, path, Follow::Yes, &mut Vec::new()) {
            Ok(resolved) => resolved,
            Err(error) => {
                asked.notes.push(format!("`{path}` would be refused by the workspace: {error}"));
                asked.answers.push(self.answer(Access::List, path, None));
                asked.refused.extend(LinkDecisions::refused(&error));
                return asked;
            }
        };
        let is_link = resolved.path() != path;
        if is_link {
            asked.notes.push(format!("`{path}` leads to `{}`", resolved.path()));
            asked.answers.push(self.answer(Access::List, path, None));
            if self.begins_elsewhere(&mut asked, resolved.path()) {
                return asked;
            }
        }
        asked.answers.push(self.answer(Access::List, resolved.path(), Some(&resolved)));
        if resolved.object().kind == ObjectKind::Directory {
            asked.notes.push(ENTRYWISE.to_owned());
        } else if self.operation.accesses().contains(&Access::Read) {
            // A search in a named file is a read of that file.
            let named = is_link.then_some((path, None));
            for (path, object) in named.into_iter().chain([(resolved.path(), Some(&resolved))]) {
                if !self.may_read(&mut asked, path, object) {
                    break;
                }
            }
        }
        asked
    }

    /// Returns true if the name alone is decisive.
    fn begins_elsewhere(&self, asked: &mut EntryDecisions, path: &WorkspacePath) -> bool {
        let mut answer = self.answer(Access::List, path, None);
        let query = self.query(Access::List, path);
        let name = self.policy.evaluate(&query);
        let effect = name.effect();
        answer.explanation.decision = LinkDecisions::beginning(self.policy, &query, name);
        match (effect, answer.explanation.decision.effect()) {
            (Effect::Allow, _) => return false,
            (Effect::Ask, Effect::Allow) => asked.notes.push(LEFT_OUT.to_owned()),
            (Effect::Deny, Effect::Allow) => asked.notes.push(ENTRYWISE.to_owned()),
            _ => {}
        }
        asked.answers.push(answer);
        true
    }

    /// Returns true if the file may be read without an approval.
    fn may_read(
        &self,
        asked: &mut EntryDecisions,
        path: &WorkspacePath,
        resolved: Option<&Resolved>,
    ) -> bool {
        let mut answer = self.answer(Access::Read, path, resolved);
        let effect = answer.explanation.decision.effect();
        if effect == Effect::Ask {
            asked.notes.push(LEFT_OUT.to_owned());
            let query = self.query(Access::Read, path);
            let decision = answer.explanation.decision.clone();
            answer.explanation.decision = self.policy.search_root(&query, decision);
        }
        asked.answers.push(answer);
        effect == Effect::Allow
    }

    fn answer(&self, access: Access, path: &WorkspacePath, resolved: Option<&Resolved>) -> Answer {
        let object = resolved.map(Resolved::object);
        let explanation = self.policy.explain(&self.query(access, path), object.as_ref());
        Answer { access, path: path.clone(), explanation }
    }

    fn query<'q>(&'q self, access: Access, path: &'q WorkspacePath) -> Query<'q> {
        Query { agent: self.agent, operation: self.operation, access, path }
    }
}
