//! The names of symbolic links.

use super::{
    finding::{Finding, RuleName, Verdict},
    subject::PreparedQuery,
};
use crate::{
    Decision, Effect, Policy, Query,
    action_set::ActionSet,
    compiled::CompiledRule,
    index::{Components, PatternSet},
    model::{Access, AgentName, OperationKind, WorkspacePath},
    normalized::NormalizedForms,
    pattern::Pattern,
};

const REASON: &str = "a link of this name would show other files at names that the rule is about";

impl Policy {
    /// Decides whether a symbolic link that is moved may be at `path`, in addition to the decision
    /// on the move.
    pub fn evaluate_link(&self, agent: &AgentName, path: &WorkspacePath) -> Decision {
        let (operation, access) = (OperationKind::Symlink, Access::Write);
        let query = Query { agent, operation, access, path };
        let forms = NormalizedForms::of(path);
        match self.links(&PreparedQuery::new(&query, &forms)) {
            Verdict::Deny(finding) => finding.decision(Effect::Deny, self),
            _ => self.no_objection(),
        }
    }

    /// Denies a new link above a name that a rule denies or asks about, above a secret name, and at
    /// or above a name that has a label. The link shows its target's entries beneath its own name,
    /// where only the target's names are decided on, and the target can be filled later.
    pub(super) fn links(&self, subject: &PreparedQuery<'_>) -> Verdict<'_> {
        let query = subject.query;
        if (query.operation, query.access) != (OperationKind::Symlink, Access::Write) {
            return Verdict::Pass;
        }
        let by_rule = |patterns, rules| {
            let first = first(patterns, subject, |components, entry, pattern| {
                rule(rules, entry).is_some_and(|rule| is_evaded(rule, pattern, components, query))
            });
            rule(rules, first?)
        };
        let restricting = by_rule(&self.denials, &self.deny_rules)
            .or_else(|| by_rule(&self.asks, &self.ask_rules));
        if let Some(rule) = restricting {
            return Verdict::Deny(Finding {
                rule: RuleName::Id(&rule.id),
                location: Some((rule.layer, rule.line)),
                reason: Some(REASON.into()),
            });
        }
        let secret = first(&self.secrets, subject, |components, _, pattern| {
            pattern.names_beneath(components.texts())
        });
        if let Some(secret) = secret.and_then(|entry| self.secret_locations.get(entry as usize)) {
            return Verdict::Deny(Finding {
                rule: RuleName::Secret(secret.index),
                location: Some((secret.layer, secret.line)),
                reason: Some(REASON.into()),
            });
        }
        // No label decides on the link's own name.
        let label = self.labels.first(|patterns| {
            first(patterns, subject, |components, _, pattern| {
                is_about(pattern, components) || pattern.names_beneath(components.texts())
            })
        });
        match label {
            Some(id) => Verdict::Deny(Finding {
                rule: RuleName::Label(id),
                location: None,
                reason: Some(REASON.into()),
            }),
            None => Verdict::Pass,
        }
    }
}

fn rule(rules: &[CompiledRule], entry: u32) -> Option<&CompiledRule> {
    rules.get(entry as usize)
}

/// True if a link at the path would let an agent evade the rule.
fn is_evaded(
    rule: &CompiledRule,
    pattern: &Pattern,
    components: &Components<'_>,
    query: &Query<'_>,
) -> bool {
    let guards = |operation, access| rule.actions.contains(ActionSet::one(operation, access));
    let guards_content = guards(OperationKind::Read, Access::Read)
        || guards(OperationKind::List, Access::List)
        || guards(OperationKind::Write, Access::Write);
    // Otherwise the name of the link was decided on by this rule.
    let is_undecided = !guards(query.operation, query.access);
    guards_content
        && rule.agents.hold(query.agent)
        && (pattern.names_beneath(components.texts())
            || is_undecided && is_about(pattern, components))
}

/// True if a pattern with a name matches the path.
fn is_about(pattern: &Pattern, components: &Components<'_>) -> bool {
    pattern.names().next().is_some() && components.are(pattern)
}

/// Returns the first entry with a pattern that `accept` accepts for a form of the path.
fn first(
    patterns: &PatternSet,
    subject: &PreparedQuery<'_>,
    accept: impl Fn(&Components<'_>, u32, &Pattern) -> bool,
) -> Option<u32> {
    let mut found: Option<u32> = None;
    // The index finds patterns by the whole path, which is not known.
    patterns.any(|entry, pattern| {
        if subject.forms().any(|components| accept(components, entry, pattern)) {
            found = Some(found.map_or(entry, |before| before.min(entry)));
        }
        false
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PolicySource, compile};

    /// The agent's files were at names that the policy denies: those beneath a link.
    #[test]
    fn a_link_was_made_above_names_that_are_denied_or_asked_about() {
        let text = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n\
             [[rules]]\nid = \"hooks\"\neffect = \"deny\"\npaths = [\"**/hooks/pre-commit\"]\n\
             [[rules]]\nid = \"deploy\"\neffect = \"ask\"\npaths = [\"infra/*/run.sh\"]\n\
             [[rules]]\nid = \"logs\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"logs/in\"]\n\
             [[rules]]\nid = \"kept\"\neffect = \"ask\"\noperations = [\"remove\"]\npaths = [\"kept/x\"]\n\
             [[rules]]\nid = \"anywhere\"\neffect = \"deny\"\npaths = [\"**/x.pem\"]\n\
             [[rules]]\nid = \"other\"\neffect = \"deny\"\nagents = [\"other\"]\npaths = [\"a/b\"]\n\
             [[labels]]\nid = \"customers\"\npaths = [\"data/**\", \"**/*.csv\"]\n\
             [secrets]\nnames = [\"**/.ssh/id_*\"]\n";
        let policy = compile(&PolicySource::from_text("p", text)).unwrap();
        let agent = "agent".parse().unwrap();
        let rule = |path: &str| {
            let path = WorkspacePath::parse(path).unwrap();
            let decision = policy.evaluate_link(&agent, &path);
            decision.is_deny().then(|| decision.rule().to_owned())
        };
        for (path, denied) in [
            ("hooks", "hooks"),
            ("a/HOOKS", "hooks"),
            ("infra", "deploy"),
            ("infra/one", "deploy"),
            ("logs", "logs"),
            // The rule is not about writing, so it did not decide on the name.
            ("logs/in", "logs"),
            ("logs/in/deep", "logs"),
            ("x/.ssh", "secrets.names[0]"),
            ("data", "labels.customers"),
            ("data/in", "labels.customers"),
            ("export.csv", "labels.customers"),
        ] {
            assert_eq!(rule(path).as_deref(), Some(denied), "{path}");
        }
        for path in ["src", "a", "kept", "a/infra", "hooks/other", "infra/one/two/three", "x"] {
            assert_eq!(rule(path), None, "{path}");
        }
    }
}
