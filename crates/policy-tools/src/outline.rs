//! What the files of a policy say, statement by statement with their places:
//! for tools that check, compare and explain policies. Deciding needs none of
//! it; it is read from the same texts that [`compile`](crate::policy::compile()) reads.

use std::{collections::BTreeSet, ops::Range};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{
        Effect, PolicySource,
        parts::{Agents, Comparison, Components, Name, Pattern, Questions, Spellings},
    },
    relate,
};

/// One file of a policy.
#[derive(Debug, Clone)]
pub struct OutlineFile {
    /// The file as the operator named it, or an embedded policy's name.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Whether it came with the program.
    pub embedded: bool,
    /// What it says, in the order of the sections.
    pub statements: Vec<Statement>,
    /// How many `[[tests]]` it has.
    pub tests: usize,
    line_starts: Vec<usize>,
    /// The questions on which nothing is allowed that this file does not allow.
    bounds: Questions,
}

/// One rule by whose id decisions are made, or one exception.
#[derive(Debug, Clone)]
pub struct Statement {
    /// The id in decisions; `secrets.except[N]` for an exception, which
    /// decides nothing.
    pub id: String,
    /// What it is.
    pub kind: StatementKind,
    /// Its place in the file's text, in bytes.
    pub span: Range<usize>,
    /// Its path patterns.
    pub patterns: Vec<PathPattern>,
    /// Its extensions with their places.
    pub extensions: Vec<(String, Range<usize>)>,
    /// The agent patterns as written; none stands for all.
    pub agent_names: Vec<String>,
    agents: Agents,
    questions: Questions,
}

/// The kinds of statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatementKind {
    /// A list of `[allowedPaths]`.
    AllowedPaths(Access),
    /// A list of `[extensions] allow`.
    AllowedExtensions(Access),
    /// `[extensions] deny`.
    DeniedExtensions,
    /// One of `[secrets] names`.
    SecretName,
    /// One of `[secrets] except`.
    SecretException,
    /// One of `[[rules]]`.
    Rule(Effect),
    /// One of `[[network.rules]]`, which is about no path.
    NetworkRule(Effect),
}

/// A path pattern as written, with its place.
#[derive(Debug, Clone)]
pub struct PathPattern {
    /// What is written.
    pub text: String,
    /// Its place in the file's text, in bytes.
    pub span: Range<usize>,
    comparison: Comparison,
    /// As they are written.
    written: Vec<Pattern>,
    /// As they are compared.
    alternatives: Vec<Pattern>,
    /// The same, compared as denials compare.
    folded: Vec<Pattern>,
    /// Whether they are about more than what is written.
    beneath: bool,
}

/// What the files of the policy say; the first is the policy itself. What
/// cannot be read is left out: [`compile`](crate::policy::compile()) tells about it.
pub fn outline(source: &PolicySource) -> Vec<OutlineFile> {
    let mut files: Vec<_> = source
        .sources()
        .zip(source.embedded_files())
        .map(|(file, embedded)| {
            let (root, _) = DeTable::parse_recoverable(&file.text);
            OutlineFile {
                name: file.file.clone(),
                text: file.text.clone(),
                embedded,
                statements: statements(root.get_ref()),
                tests: list(root.get_ref(), "tests").count(),
                line_starts: line_starts(&file.text),
                bounds: Questions::NONE,
            }
        })
        .collect();
    let all: Vec<_> = files.iter().map(|file| bounded(&file.statements)).collect();
    for (number, file) in files.iter_mut().enumerate() {
        let above = source.lineage(number).into_iter().skip(1).filter_map(|above| all.get(above));
        let above = above.fold(Questions::NONE, |set, (listed, ruled)| set | *listed | *ruled);
        let (listed, ruled) = bounded(&file.statements);
        file.bounds = listed | ruled.without(above);
    }
    files
}

/// The questions that a file's lists are about, and those that its `allow` rules are about.
fn bounded(statements: &[Statement]) -> (Questions, Questions) {
    let about = |is: fn(StatementKind) -> bool| {
        let statements = statements.iter().filter(|statement| is(statement.kind));
        statements.fold(Questions::NONE, |set, statement| set | statement.questions)
    };
    (
        about(|kind| matches!(kind, StatementKind::AllowedPaths(_))),
        about(|kind| kind == StatementKind::Rule(Effect::Allow)),
    )
}

/// Where each line of a text starts.
fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(index, _)| index + 1)).collect()
}

impl OutlineFile {
    /// Whether nothing is allowed of this question that the file does not allow.
    pub fn bounds(&self, operation: OperationKind, access: Access) -> bool {
        self.bounds.hold(Questions::one(operation, access))
    }

    /// The line of a byte position, counted from 1.
    pub fn line(&self, position: usize) -> u64 {
        self.line_starts.partition_point(|start| *start <= position) as u64
    }

    /// The column of a byte position in characters, counted from 1.
    pub fn column(&self, position: usize) -> u64 {
        let before = self.text.get(..position).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        line.chars().count() as u64 + 1
    }
}

impl Statement {
    /// Whether it is about whatever `other` is about: the operations and the
    /// agents.
    pub fn asks_all_of(&self, other: &Self) -> bool {
        self.asks_all_agents_of(other) && self.questions.hold(other.questions)
    }

    /// Whether it is about all agents that `other` is about.
    pub fn asks_all_agents_of(&self, other: &Self) -> bool {
        match (&self.agents, &other.agents) {
            (Agents::All, _) => true,
            (Agents::Named(..), Agents::All) => false,
            (Agents::Named(ours, comparison), Agents::Named(theirs, other)) => {
                (comparison == other || *comparison == Comparison::Folded)
                    && theirs.iter().all(|name| ours.contains(name))
            }
        }
    }

    /// Whether it is about `agent` with this operation and access.
    pub fn asks(&self, agent: &AgentName, operation: OperationKind, access: Access) -> bool {
        self.agents.hold(agent) && self.questions.hold(Questions::one(operation, access))
    }

    /// The operations, each with an access, that it is about.
    pub fn questions(&self) -> impl Iterator<Item = (OperationKind, Access)> {
        let held = self.questions;
        OperationKind::ALL
            .into_iter()
            .flat_map(|operation| Access::ALL.map(|access| (operation, access)))
            .filter(move |(operation, access)| {
                held.hold(Questions::one(*operation, *access))
                    && (operation.accesses().contains(access)
                        || (*operation == OperationKind::Rename && *access == Access::Write))
            })
    }
}

impl PathPattern {
    /// A pattern that allows, compared character by character.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn allowing(text: &str) -> Result<Self, String> {
        Self::new(text, 0..0, Comparison::Exact)
    }

    /// A pattern that denies, which other spellings of a name do not dodge.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn denying(text: &str) -> Result<Self, String> {
        Self::new(text, 0..0, Comparison::Folded)
    }

    fn new(text: &str, span: Range<usize>, comparison: Comparison) -> Result<Self, String> {
        let alternatives = Pattern::alternatives(text, comparison)?;
        let folded = match comparison {
            Comparison::Exact => Pattern::alternatives(text, Comparison::Folded)?,
            Comparison::Folded => alternatives.clone(),
        };
        let (text, written) = (text.to_owned(), alternatives.clone());
        Ok(Self { text, span, comparison, written, alternatives, folded, beneath: false })
    }

    /// Whether it matches `path`.
    pub fn matches(&self, path: &WorkspacePath) -> bool {
        let hit = |text, unfolded| {
            let components = Components::spelled(text, unfolded);
            self.alternatives.iter().any(|pattern| components.are(pattern))
        };
        if self.comparison == Comparison::Exact {
            return hit(path.as_str(), None);
        }
        let spellings = Spellings::of(path);
        hit(&spellings.folded, spellings.unfolded.as_deref())
            || spellings.others().any(|(text, unfolded)| hit(text, unfolded))
    }

    /// Whether it certainly matches whatever `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        let theirs = match (self.comparison, other.comparison) {
            (Comparison::Folded, Comparison::Exact) => &other.folded,
            (Comparison::Exact, Comparison::Folded) => return false,
            _ => &other.alternatives,
        };
        !theirs.is_empty()
            && theirs
                .iter()
                .all(|their| self.alternatives.iter().any(|our| relate::covers(our, their)))
    }

    /// Whether some path may match both; `false` is certain.
    pub fn may_meet(&self, other: &Self) -> bool {
        self.folded.iter().any(|our| other.folded.iter().any(|their| relate::may_meet(our, their)))
    }

    /// The components of each alternative that are plain names, folded: a path
    /// that matches has them, and a pattern that it covers does.
    pub fn literals(&self) -> impl Iterator<Item = Vec<&str>> {
        self.folded.iter().map(|pattern| pattern.names().filter_map(Name::literal).collect())
    }

    /// The components of a path as [`literals`](Self::literals) spells them,
    /// in all spellings that patterns are compared with.
    pub fn components(path: &WorkspacePath) -> BTreeSet<String> {
        let spellings = Spellings::of(path);
        let all = [Some(&*spellings.folded), spellings.cleaned.as_deref()];
        let components = all.into_iter().flatten().flat_map(|text| text.split('/'));
        components.filter(|component| !component.is_empty()).map(str::to_owned).collect()
    }

    /// Whether it is about whatever lies beneath what it names, although it does not say so.
    pub fn is_about_trees(&self) -> bool {
        self.beneath
    }

    /// The same, and whatever lies beneath what it names, as rules that restrict read it.
    fn and_beneath(mut self) -> Self {
        let beneath =
            |patterns: Vec<Pattern>| patterns.into_iter().map(Pattern::and_beneath).collect();
        self.alternatives = beneath(self.alternatives);
        self.folded = beneath(self.folded);
        self.beneath = self.alternatives != self.written;
        self
    }

    /// Whether it holds at any depth: it begins with `**`, if only because
    /// `[secrets]` reads it so.
    pub fn any_depth(&self) -> bool {
        self.alternatives.iter().any(relate::begins_at_any_depth)
    }

    /// The same at any depth, as `[secrets]` reads it.
    pub fn at_any_depth(mut self) -> Self {
        let deep =
            |patterns: Vec<Pattern>| patterns.into_iter().map(Pattern::at_any_depth).collect();
        self.written = deep(self.written);
        self.alternatives = deep(self.alternatives);
        self.folded = deep(self.folded);
        self
    }

    /// A path for each alternative that it names; `any` stands where any
    /// name would do.
    pub fn examples(&self, any: &str) -> impl Iterator<Item = WorkspacePath> {
        let examples: Vec<_> =
            self.written.iter().filter_map(|pattern| relate::example(pattern, any)).collect();
        examples.into_iter().filter_map(|text| WorkspacePath::parse(&text).ok())
    }

    /// More paths that match it, as many for each wildcard; `letters` are tried where
    /// one character stands.
    pub fn variants(&self, any: &str, letters: &[char]) -> impl Iterator<Item = WorkspacePath> {
        let variants: Vec<_> = self
            .written
            .iter()
            .flat_map(|pattern| relate::variants(pattern, any, letters))
            .collect();
        variants.into_iter().filter_map(|text| WorkspacePath::parse(&text).ok())
    }

    /// Characters at which its classes begin and end.
    pub fn class_letters(&self) -> impl Iterator<Item = char> {
        self.alternatives.iter().flat_map(relate::class_letters)
    }
}

type Value<'i> = Spanned<DeValue<'i>>;

fn statements(root: &DeTable<'_>) -> Vec<Statement> {
    let mut found = Vec::new();
    if let Some(section) = table(root, "allowedPaths") {
        for access in Access::ALL {
            if let Some((key, _)) = section.get_key_value(access.as_str()) {
                let mut statement =
                    blank(format!("allowedPaths.{access}"), StatementKind::AllowedPaths(access));
                statement.span = key.span();
                statement.questions = Questions::about(access);
                statement.patterns = patterns(section, access.as_str(), Comparison::Exact);
                found.push(statement);
            }
        }
    }
    if let Some(section) = table(root, "extensions") {
        let allow = table(section, "allow");
        for access in Access::ALL {
            let Some(allow) = allow else { break };
            if let Some((key, _)) = allow.get_key_value(access.as_str()) {
                let id = format!("extensions.allow.{access}");
                let mut statement = blank(id, StatementKind::AllowedExtensions(access));
                statement.span = key.span();
                statement.questions = Questions::about(access);
                statement.extensions = texts(allow, access.as_str()).collect();
                found.push(statement);
            }
        }
        if let Some((key, _)) = section.get_key_value("deny") {
            let mut statement =
                blank("extensions.deny".to_owned(), StatementKind::DeniedExtensions);
            statement.span = key.span();
            statement.extensions = texts(section, "deny").collect();
            if !statement.extensions.is_empty() {
                found.push(statement);
            }
        }
    }
    if let Some(section) = table(root, "secrets") {
        for (key, kind, comparison) in [
            ("names", StatementKind::SecretName, Comparison::Folded),
            ("except", StatementKind::SecretException, Comparison::Exact),
        ] {
            for (index, pattern) in patterns(section, key, comparison).into_iter().enumerate() {
                let mut statement = blank(format!("secrets.{key}[{index}]"), kind);
                statement.span = pattern.span.clone();
                statement.patterns = vec![pattern.at_any_depth()];
                found.push(statement);
            }
        }
    }
    for statement in &mut found {
        statement.questions =
            statement.questions().fold(Questions::NONE, |set, (operation, access)| {
                set | Questions::one(operation, access)
            });
    }
    found.extend(list(root, "rules").filter_map(|value| rule(value.get_ref().as_table()?)));
    if let Some(section) = table(root, "network") {
        let rules = list(section, "rules");
        found.extend(rules.filter_map(|value| network_rule(value.get_ref().as_table()?)));
    }
    found
}

fn network_rule(rule: &DeTable<'_>) -> Option<Statement> {
    let id = rule.get("id")?;
    let effect = effect(rule.get("effect")?.get_ref().as_str()?);
    let id_text = id.get_ref().as_str()?.to_owned();
    let kind = StatementKind::NetworkRule(effect);
    Some(Statement { span: id.span(), questions: Questions::NONE, ..blank(id_text, kind) })
}

fn effect(word: &str) -> Effect {
    match word {
        "allow" => Effect::Allow,
        "ask" => Effect::Ask,
        _ => Effect::Deny,
    }
}

fn rule(rule: &DeTable<'_>) -> Option<Statement> {
    let id = rule.get("id")?;
    let effect = effect(rule.get("effect")?.get_ref().as_str()?);
    let comparison = if effect == Effect::Allow { Comparison::Exact } else { Comparison::Folded };
    let mut statement = blank(id.get_ref().as_str()?.to_owned(), StatementKind::Rule(effect));
    statement.span = id.span();
    statement.patterns = patterns(rule, "paths", comparison);
    let scope = rule.get("scope").and_then(|value| value.get_ref().as_str());
    if effect != Effect::Allow && scope != Some("entry") {
        let written = std::mem::take(&mut statement.patterns);
        statement.patterns = written.into_iter().map(PathPattern::and_beneath).collect();
    }
    if rule.contains_key("operations") {
        statement.questions = texts(rule, "operations")
            .filter_map(|(word, _)| word.parse().ok())
            .fold(Questions::NONE, |set, word| set | Questions::of_word(word));
    }
    if rule.contains_key("agents") {
        statement.agent_names = texts(rule, "agents").map(|(text, _)| text).collect();
        let names = statement.agent_names.iter().map(String::as_str);
        statement.agents = Agents::named(names, comparison);
        if statement.agent_names.iter().any(|name| name == "*") {
            statement.agents = Agents::All;
            statement.agent_names.clear();
        }
    }
    // What no operation asks says nothing.
    statement.questions = statement
        .questions()
        .fold(Questions::NONE, |set, (operation, access)| set | Questions::one(operation, access));
    Some(statement)
}

fn blank(id: String, kind: StatementKind) -> Statement {
    Statement {
        id,
        kind,
        span: 0..0,
        patterns: Vec::new(),
        extensions: Vec::new(),
        agent_names: Vec::new(),
        agents: Agents::All,
        questions: Questions::all(),
    }
}

fn patterns(section: &DeTable<'_>, key: &str, comparison: Comparison) -> Vec<PathPattern> {
    texts(section, key)
        .filter_map(|(text, span)| PathPattern::new(&text, span, comparison).ok())
        .collect()
}

fn table<'a, 'i>(parent: &'a DeTable<'i>, key: &str) -> Option<&'a DeTable<'i>> {
    parent.get(key)?.get_ref().as_table()
}

fn list<'a, 'i>(parent: &'a DeTable<'i>, key: &str) -> impl Iterator<Item = &'a Value<'i>> {
    let list = parent.get(key).and_then(|value| value.get_ref().as_array());
    list.into_iter().flat_map(|list| list.iter())
}

fn texts(parent: &DeTable<'_>, key: &str) -> impl Iterator<Item = (String, Range<usize>)> {
    list(parent, key).filter_map(|value| Some((value.get_ref().as_str()?.to_owned(), value.span())))
}
