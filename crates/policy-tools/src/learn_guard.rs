//! The denials that `policy learn` never proposes to open.

use std::collections::BTreeSet;

use super::examples::examples_in;
use crate::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    outline::{PathPattern, Statement, StatementKind},
    policy::{Effect, Object, ObjectKind, Policy, PolicySource, Query, compile},
};

/// The denials that no proposal may contradict: the explicit ones of the policy in force and those
/// of `baseline`.
pub(super) struct Guard<'a> {
    policy: &'a Policy,
    baseline: Option<Policy>,
    denials: Vec<Statement>,
}

impl<'a> Guard<'a> {
    pub(super) fn new(policy: &'a Policy) -> Self {
        let source = PolicySource::embedded("baseline");
        let denials =
            source.iter().flat_map(crate::outline::outline).flat_map(|file| file.statements);
        Self {
            policy,
            denials: denials
                .filter(|statement| {
                    matches!(
                        statement.kind,
                        StatementKind::SecretName | StatementKind::Rule(Effect::Deny)
                    )
                })
                .collect(),
            baseline: source.and_then(|source| compile(&source).ok()),
        }
    }

    /// Returns the rule that explicitly denies, if any. `baseline` allows nothing, so only its
    /// explicit denials count.
    pub(super) fn refuses(
        &self,
        agent: &AgentName,
        operation: OperationKind,
        access: Access,
        path: &WorkspacePath,
    ) -> Option<String> {
        // Without the baseline no proposal is safe.
        let Some(baseline) = &self.baseline else { return Some("baseline".to_owned()) };
        // Patterns cannot name such a path.
        if path.has_hidden_characters() {
            return Some("names.hidden".to_owned());
        }
        let query = Query { agent, operation, access, path };
        let object = Object { kind: ObjectKind::File, links: 1, through_symlink: false };
        [
            self.policy.evaluate(&query),
            self.policy.evaluate_object(&query, &object),
            baseline.evaluate(&query),
        ]
        .into_iter()
        .find(|decision| !decision.is_allow() && !decision.is_default_deny())
        .map(|decision| decision.rule().to_owned())
    }

    /// True if a pattern for the entries of `location` would open something that `baseline` denies
    /// and the policy in force does not.
    pub(super) fn opens(
        &self,
        access: Access,
        pattern: &PathPattern,
        location: &WorkspacePath,
    ) -> bool {
        let Ok(agent) = "agent".parse() else { return true };
        let locations = BTreeSet::from([location.clone()]);
        let denials = self
            .denials
            .iter()
            .filter(|denial| denial.actions().any(|(_, denied)| denied == access))
            .flat_map(|denial| &denial.patterns);
        let operation = match access {
            Access::Read => OperationKind::Read,
            Access::List => OperationKind::List,
            Access::Write => OperationKind::Write,
            Access::Remove => OperationKind::Remove,
        };
        denials.flat_map(|denial| examples_in(denial, "x", &locations)).any(|path| {
            let decision =
                self.policy.evaluate(&Query { agent: &agent, operation, access, path: &path });
            pattern.matches(&path) && (decision.is_allow() || decision.is_default_deny())
        })
    }
}
