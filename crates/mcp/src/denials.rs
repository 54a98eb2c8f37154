//! The denials of a policy in the policy's terms, for the instructions to an agent.
//! Decisions never depend on this module.

use portcullis_policy_tools::covers;

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
    /// The names that it denies, without those that a rule hides from lists: they could disclose
    /// which files exist.
    pub(super) names: Vec<DeniedName>,
    /// The reason that the agent gets with a denial.
    pub(super) reason: Option<String>,
}

/// One name of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeniedName {
    /// The pattern in short form.
    pub(super) text: String,
    /// True if nothing beneath such an entry is denied.
    pub(super) is_entry: bool,
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
    let rules = || (0..).zip(policy.deny_rules()).filter(|(_, rule)| rule.agents.hold(agent));
    let hidden: Vec<&Pattern> = rules()
        .filter(|(_, rule)| operations(rule).contains(&OperationKind::List))
        .flat_map(|(entry, _)| policy.denied_paths().of(entry))
        .collect();
    let is_hidden = |pattern: &Pattern| {
        hidden.iter().any(|hidden| covers(hidden, pattern) || names_same(hidden, pattern))
    };
    Denials {
        secrets: secrets.filter_map(|mut patterns| patterns.find_map(spelled)).collect(),
        extensions,
        rules: rules()
            .take(MAX_NAMED_DENIALS)
            .map(|(entry, rule)| {
                let shown = policy.denied_paths().of(entry).filter(|pattern| !is_hidden(pattern));
                let names = shown.filter_map(|pattern| {
                    let is_entry = pattern.segments().last() != Some(&Segment::AnyDepth);
                    Some(DeniedName { text: spelled(pattern)?, is_entry })
                });
                let names = names.collect();
                DeniedByRule { operations: operations(rule), names, reason: rule.reason.clone() }
            })
            .collect(),
    }
}

/// Returns the operations that a rule applies to.
fn operations(rule: &CompiledRule) -> Vec<OperationKind> {
    OperationKind::ALL.into_iter().filter(|operation| is_about(rule, *operation)).collect()
}

/// True if a rule applies to an operation, or to a part of it.
pub(super) fn is_about(rule: &CompiledRule, operation: OperationKind) -> bool {
    let root = WorkspacePath::root();
    let mut asked = path_accesses(operation, &root, Some(&root)).into_iter();
    asked.any(|(access, _)| rule.actions.contains(ActionSet::one(operation, access)))
}

/// True if the name of what a pattern hides is plain, and one of `pattern`.
fn names_same(hidden: &Pattern, pattern: &Pattern) -> bool {
    let last = hidden.segments().iter().rev().find(|segment| **segment != Segment::AnyDepth);
    last.is_some_and(|last| {
        matches!(last, Segment::Name(Name::Literal(_))) && pattern.segments().contains(last)
    })
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
        let names: Vec<_> = rule.names.iter().map(|name| (&*name.text, name.is_entry)).collect();
        assert_eq!(names, [(".git", false), ("a/**/*b", false), ("**", false)]);
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

    /// A rule about writes told the names that another one hides.
    #[test]
    fn names_that_another_rule_hides_are_not_told() {
        let told = denials(
            "schema = 1\n[[rules]]\nid = \"w\"\neffect = \"deny\"\noperations = [\"write\"]\n\
             paths = [\"a/acme\", \"**/secret\", \"a/open\", \"b/**\"]\n\
             [[rules]]\nid = \"h\"\neffect = \"deny\"\npaths = [\"a/ac*\", \"x/secret\"]\n",
        );
        let names: Vec<_> = told.rules[0].names.iter().map(|name| &*name.text).collect();
        assert_eq!(names, ["a/open", "b"]);
    }

    #[test]
    fn a_policy_that_observes_denies_nothing() {
        let text = "schema = 1\nmode = \"observe\"\nsecrets = { names = [\"x\"] }\n";
        assert_eq!(denials(text), Denials::default());
    }
}
