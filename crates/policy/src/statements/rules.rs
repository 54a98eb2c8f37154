//! `[[rules]]` and `[[tests]]`.

use core::net::IpAddr;
use std::{collections::HashSet, ops::Range};

use toml::de::DeTable;

use super::{
    labels::WHEN_READ,
    located::StatedPattern,
    reader::{Reader, Value, elements, explained, sub},
};
use crate::{
    Effect,
    action_set::ActionSet,
    check::shortened,
    diagnostics::Problem,
    labels::LabelIds,
    model::{AgentName, Connect, OperationKind, WorkspacePath},
    pattern::{Comparison, Name, parse_name},
};

/// First parts of built-in rule IDs, which decisions use for other sections than `[[rules]]`.
pub(crate) const BUILT_IN: [&str; 21] = [
    "agent",
    "allowedPaths",
    "approval",
    "backups",
    "batch",
    "binary",
    "default",
    "extends",
    "extensions",
    "files",
    "limits",
    "mode",
    "mount",
    "names",
    "network",
    "rules",
    "search",
    "secrets",
    "serve",
    "tests",
    "workspace",
];

/// Maximum number of rules in one file.
pub(super) const MAX_RULES: usize = 10_000;

/// One of `[[rules]]`.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) id: String,
    /// The place of the ID.
    pub(crate) span: Range<usize>,
    pub(crate) line: u64,
    pub(crate) effect: Effect,
    pub(crate) actions: ActionSet,
    pub(crate) globs: Vec<StatedPattern>,
    pub(crate) agents: Agents,
    pub(crate) reason: Option<String>,
}

/// The agents that a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Agents {
    /// All agents.
    All,
    /// Agents with these names, compared in this way.
    Named(Vec<Name>, Comparison),
}

impl Agents {
    /// Parses the names of `patterns`; an invalid pattern names no agent.
    pub fn named<'t>(patterns: impl IntoIterator<Item = &'t str>, comparison: Comparison) -> Self {
        let names = patterns.into_iter();
        let names = names.flat_map(|text| parse_name(text, comparison).unwrap_or_default());
        Self::Named(names.collect(), comparison)
    }

    /// True if it is about all agents.
    pub fn are_all(&self) -> bool {
        matches!(self, Self::All)
    }

    /// True if `agent` is one of them.
    pub fn hold(&self, agent: &AgentName) -> bool {
        match self {
            Self::All => true,
            Self::Named(names, Comparison::Exact) => {
                names.iter().any(|name| name.matches(agent.as_str()))
            }
            Self::Named(names, Comparison::Folded) => {
                let agent = agent.as_str().to_ascii_lowercase();
                names.iter().any(|name| name.matches(&agent))
            }
        }
    }
}

/// One of `[[tests]]`.
#[derive(Debug, Clone)]
pub(crate) struct Test {
    /// The place of the expectation.
    pub(crate) span: Range<usize>,
    pub(crate) subject: TestSubject,
    pub(crate) agent: AgentName,
    pub(crate) effect: Effect,
    pub(crate) rule: Option<String>,
}

/// The subject of a test.
#[derive(Debug, Clone)]
pub(crate) enum TestSubject {
    /// An operation on a path; `to` is the new name of a rename.
    Path { operation: OperationKind, path: WorkspacePath, to: Option<WorkspacePath> },
    /// A connection, an address that its host has, and the labels of what was read before.
    Connection { connect: Connect, address: Option<IpAddr>, read: LabelIds },
}

impl Reader<'_, '_> {
    pub(super) fn rules(&mut self, root: &DeTable<'_>) -> Vec<Rule> {
        let mut seen = HashSet::new();
        let mut rules = Vec::new();
        for (number, value) in elements(root, "rules").enumerate() {
            if number == MAX_RULES {
                let problem = format!("the file has more than {MAX_RULES} rules");
                self.report(value.span(), Problem::new(problem).label("one too many"));
                break;
            }
            let Some(table) = value.get_ref().as_table() else { continue };
            let rule = self.rule(table);
            if let Some(rule) = &rule
                && !seen.insert(rule.id.clone())
            {
                self.report(rule.span.clone(), used_twice(&rule.id));
            }
            rules.extend(rule);
        }
        rules
    }

    fn rule(&mut self, table: &DeTable<'_>) -> Option<Rule> {
        // All members are read before any is required, so that all of a rule's errors are reported.
        let id = table.get("id").and_then(|value| {
            let id = self.rule_id(value)?;
            Some((id, value.span()))
        });
        let effect = table.get("effect").and_then(|value| effect(value.get_ref().as_str()?));
        let comparison =
            if effect == Some(Effect::Allow) { Comparison::Exact } else { Comparison::Folded };
        let beneath = self.covers_beneath(table, effect);
        let globs = elements(table, "paths").filter_map(|value| self.glob(value, comparison));
        let globs = globs.map(|glob| if beneath { glob.and_beneath() } else { glob }).collect();
        if let Some(value) = table.get("paths")
            && value.get_ref().as_array().is_some_and(|list| list.is_empty())
        {
            self.report(value.span(), empty("paths"));
        }
        let agents = self.agents(table, comparison);
        let reason = table.get("reason").and_then(|value| self.plain_text(value, 500));
        let actions = self.actions(table, effect);
        let (id, span) = id?;
        let line = self.line(&span);
        Some(Rule { id, line, span, effect: effect?, actions: actions?, globs, agents, reason })
    }

    /// True if a rule is also about everything beneath its paths, which is the default of those
    /// that restrict.
    fn covers_beneath(&mut self, table: &DeTable<'_>, effect: Option<Effect>) -> bool {
        let scope = table.get("scope");
        if let (Some(Effect::Allow), Some(value)) = (effect, scope) {
            let problem = Problem::new("an `allow` rule has no `scope`")
                .label("for rules that deny or ask")
                .help("it allows what its `paths` match; for all that is in a directory add `DIRECTORY/**`");
            self.report(value.span(), problem);
        }
        effect != Some(Effect::Allow)
            && scope.and_then(|value| value.get_ref().as_str()) != Some("entry")
    }

    pub(super) fn rule_id(&mut self, value: &Value<'_>) -> Option<String> {
        let id = self.identifier(value, "rule id")?;
        if id.split('.').next().is_some_and(|first| BUILT_IN.contains(&first)) {
            let problem = Problem::new(format!("the rule id `{id}` is that of a built-in rule"))
                .label("reserved")
                .help(format!("choose another, such as \"my-{}\"", id.replace('.', "-")));
            self.report(value.span(), problem);
            return None;
        }
        Some(id)
    }

    fn actions(&mut self, table: &DeTable<'_>, effect: Option<Effect>) -> Option<ActionSet> {
        let Some(value) = table.get("operations") else {
            if effect == Some(Effect::Allow) {
                let span = table.get_key_value("effect").map(|(key, _)| key.span())?;
                let problem = Problem::new("an `allow` rule must name its `operations`")
                    .help("add `operations = [\"write\"]`, for instance");
                self.report(span, problem);
                return None;
            }
            return Some(ActionSet::all());
        };
        let words = value.get_ref().as_array()?;
        if words.is_empty() {
            self.report(value.span(), empty("operations"));
        }
        Some(
            words
                .iter()
                .filter_map(|word| word.get_ref().as_str()?.parse().ok())
                .fold(ActionSet::NONE, |set, word| set | ActionSet::of_word(word)),
        )
    }

    pub(super) fn agents(&mut self, table: &DeTable<'_>, comparison: Comparison) -> Agents {
        let Some(value) = table.get("agents") else { return Agents::All };
        let mut names = Vec::new();
        let mut all = false;
        for value in elements(table, "agents") {
            let Some(text) = value.get_ref().as_str() else { continue };
            match parse_name(text, comparison) {
                Ok(parsed) => {
                    all |= parsed.contains(&Name::Any);
                    names.extend(parsed);
                }
                Err(error) => {
                    let problem =
                        Problem::new(format!("bad agent pattern \"{}\"", shortened(text)));
                    self.report(value.span(), explained(problem, error));
                }
            }
        }
        if value.get_ref().as_array().is_some_and(|list| list.is_empty()) {
            self.report(value.span(), empty("agents"));
        }
        if all { Agents::All } else { Agents::Named(names, comparison) }
    }

    pub(super) fn tests(&mut self, root: &DeTable<'_>) -> Vec<Test> {
        elements(root, "tests").filter_map(|value| self.test(value.get_ref().as_table()?)).collect()
    }

    fn test(&mut self, table: &DeTable<'_>) -> Option<Test> {
        let agent = match table.get("agent") {
            Some(value) => self.parsed(value, "agent name", str::parse::<AgentName>),
            None => "agent".parse().ok(),
        };
        let operation = table.get("operation")?.get_ref().as_str()?;
        let subject = match operation.parse() {
            Ok(operation) => self.tested_path(table, operation),
            Err(()) if operation == OperationKind::Connect.as_str() => {
                self.tested_connection(table)
            }
            Err(()) => None,
        };
        let span = table.get("expect")?.span();
        let expect = sub(table, "expect")?;
        let rule = expect.get("rule").and_then(|value| Some(value.get_ref().as_str()?.to_owned()));
        let effect = effect(expect.get("effect")?.get_ref().as_str()?)?;
        Some(Test { span, subject: subject?, agent: agent?, effect, rule })
    }

    fn tested_path(
        &mut self,
        table: &DeTable<'_>,
        operation: OperationKind,
    ) -> Option<TestSubject> {
        let path = table.get("path").and_then(|value| self.workspace_path(value));
        let to = table.get("to").and_then(|value| self.workspace_path(value));
        for key in ["host", "port", "address", WHEN_READ] {
            if let Some((key, _)) = table.get_key_value(key) {
                let problem =
                    Problem::new(format!("`{}` is for tests of `connect`", key.get_ref()));
                self.report(key.span(), problem.label(format!("`{operation}` has a `path`")));
            }
        }
        if let (None, Some(value)) = (table.get("path"), table.get("operation")) {
            let problem = Problem::new(format!("a test of `{operation}` needs a `path`"));
            self.report(value.span(), problem.help("add `path = \"…\"`"));
        }
        match (operation, table.get_key_value("to"), table.get("operation")) {
            (OperationKind::Rename, None, Some(value)) => {
                let problem =
                    Problem::new("a test of `rename` needs the new name").help("add `to = \"…\"`");
                self.report(value.span(), problem);
                return None;
            }
            (OperationKind::Rename, _, _) | (_, None, _) => {}
            (_, Some((key, _)), _) => {
                let problem = Problem::new("`to` is for tests of `rename`");
                self.report(key.span(), problem.label(format!("`{operation}` has no new name")));
                return None;
            }
        }
        Some(TestSubject::Path { operation, path: path?, to })
    }

    fn workspace_path(&mut self, value: &Value<'_>) -> Option<WorkspacePath> {
        self.parsed(value, "path", WorkspacePath::parse)
    }
}

pub(super) fn effect(word: &str) -> Option<Effect> {
    [Effect::Allow, Effect::Ask, Effect::Deny].into_iter().find(|effect| effect.as_str() == word)
}

pub(super) fn used_twice(id: &str) -> Problem {
    Problem::new(format!("the rule id `{id}` is used twice"))
        .label("used before")
        .help("decisions and records name a rule by its id, so it must be unique")
}

pub(super) fn empty(key: &str) -> Problem {
    Problem::new(format!("`{key}` is empty, so the rule would never apply"))
        .label("expected at least one")
}
