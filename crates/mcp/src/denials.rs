//! The denials of a policy in the policy's terms, for the instructions to an agent.
//! Decisions never depend on this module.

use crate::{
    model::{AgentName, OperationKind, WorkspacePath},
    policy::{
        Mode, Policy,
        parts::{ActionSet, CompiledRule, Name, Pattern, Segment},
        path_accesses,
    },
};

/// Maximum of names of secrets, and of rules: more than the instructions have room for.
const MAX_NAMED_DENIALS: usize = 64;

/// The denials of a policy for an agent. Names are patterns, case folded where patterns are
/// compared so.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Denials {
    /// A name for each entry of `[secrets] names`.
    pub(super) secrets: Vec<String>,
    /// Denied extensions, sorted.
    pub(super) extensions: Vec<String>,
    /// The rules that deny, in the order in which policy files extend each other.
    pub(super) rules: Vec<DeniedByRule>,
}

/// The denial of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeniedByRule {
    /// The operations.
    pub(super) operations: Vec<OperationKind>,
    /// The names that it denies. Empty if the rule denies lists as well: the names could
    /// disclose which files exist.
    pub(super) names: Vec<String>,
    /// The reason that the agent gets with a denial.
    pub(super) reason: Option<String>,
}

/// Returns the denials of `policy` for `agent`, none in observe mode. Lists of what is
/// allowed are not included.
pub(super) fn denials(policy: &Policy, agent: &AgentName) -> Denials {
    if policy.mode() == Mode::Observe {
        return Denials::default();
    }
    let mut extensions: Vec<_> = policy.denied_extensions().map(str::to_owned).collect();
    extensions.sort_unstable();
    let secrets = policy.secret_patterns().take(MAX_NAMED_DENIALS);
    Denials {
        secrets: secrets.filter_map(|patterns| names(patterns).next()).collect(),
        extensions,
        rules: (0..)
            .zip(policy.deny_rules())
            .filter(|(_, rule)| rule.agents.hold(agent))
            .take(MAX_NAMED_DENIALS)
            .map(|(entry, rule)| {
                let operations = operations(rule);
                let is_hidden = operations.contains(&OperationKind::List);
                let names = names(policy.denied_paths().of(entry)).filter(|_| !is_hidden);
                DeniedByRule { operations, names: names.collect(), reason: rule.reason.clone() }
            })
            .collect(),
    }
}

/// Returns the operations that a rule applies to.
fn operations(rule: &CompiledRule) -> Vec<OperationKind> {
    let root = WorkspacePath::root();
    let is_asked = |operation: &OperationKind| {
        let mut asked = path_accesses(*operation, &root, Some(&root)).into_iter();
        asked.any(|(access, _)| rule.actions.contains(ActionSet::one(*operation, access)))
    };
    OperationKind::ALL.into_iter().filter(is_asked).collect()
}

/// Returns the names of patterns that have a short form.
fn names<'p>(patterns: impl Iterator<Item = &'p Pattern>) -> impl Iterator<Item = String> {
    patterns.filter_map(spelled)
}

/// Returns a pattern without the `**` at its ends.
fn spelled(pattern: &Pattern) -> Option<String> {
    let segments = pattern.segments();
    let is_deep = |segment: &&Segment| **segment == Segment::AnyDepth;
    let skipped = segments.iter().take_while(is_deep).count();
    let ending = segments.iter().rev().take_while(is_deep).count();
    let middle = segments.get(skipped..segments.len() - ending).unwrap_or_default();
    let names: Option<Vec<_>> = middle
        .iter()
        .map(|segment| match segment {
            Segment::AnyDepth => Some("**".to_owned()),
            Segment::Name(Name::Any) => Some("*".to_owned()),
            Segment::Name(Name::Literal(text)) => Some(text.to_string()),
            Segment::Name(Name::Prefix(text)) => Some(format!("{text}*")),
            Segment::Name(Name::Suffix(text)) => Some(format!("*{text}")),
            Segment::Name(Name::Infix(text)) => Some(format!("*{text}*")),
            Segment::Name(Name::Tokens(_)) => None,
        })
        .collect();
    match names?.join("/") {
        everything if everything.is_empty() => Some("**".to_owned()),
        text => Some(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicySource, compile};

    fn denials(text: &str) -> Denials {
        let policy = compile(&PolicySource::from_text("p", text)).unwrap();
        super::denials(&policy, &"a".parse().unwrap())
    }

    #[test]
    fn names_and_reasons_are_the_policys() {
        let told = denials(
            "schema = 1\nextensions = { deny = [\"exe\", \"dll\"] }\n\
             secrets = { names = [\"{.env,.env.*}\", \"[ab]?\", \"*.pem\"] }\n\
             [[rules]]\nid = \"git\"\neffect = \"deny\"\noperations = [\"write\"]\n\
             paths = [\"**/.git/**\", \"a/**/*b\", \"**\"]\nreason = \"why\"\n\
             [[rules]]\nid = \"other\"\neffect = \"deny\"\nagents = [\"b\"]\npaths = [\"x\"]\n\
             [[rules]]\nid = \"asks\"\neffect = \"ask\"\npaths = [\"x\"]\n",
        );
        assert_eq!(told.secrets, [".env", "*.pem"]);
        assert_eq!(told.extensions, ["dll", "exe"]);
        let [rule] = &told.rules[..] else { panic!("{told:?}") };
        assert_eq!(rule.names, [".git", "a/**/*b", "**"]);
        assert_eq!(rule.reason.as_deref(), Some("why"));
        assert!(rule.operations.contains(&OperationKind::Edit));
        assert!(!rule.operations.contains(&OperationKind::Read));
    }

    #[test]
    fn a_rule_that_closes_lists_has_no_names() {
        for operations in ["", "operations = [\"list\"]\n", "operations = [\"read\", \"list\"]\n"] {
            let rule = format!(
                "schema = 1\n[[rules]]\nid = \"x\"\neffect = \"deny\"\n{operations}\
                 paths = [\"private\"]\nreason = \"why\"\n"
            );
            let told = denials(&rule);
            assert!(told.rules[0].names.is_empty(), "{told:?}");
        }
    }

    #[test]
    fn a_policy_that_observes_denies_nothing() {
        let text = "schema = 1\nmode = \"observe\"\nsecrets = { names = [\"x\"] }\n";
        assert_eq!(denials(text), Denials::default());
    }
}
