//! Statements of a policy's files with their places, for tools that check, compare and explain
//! policies. Decisions do not need it. It is read from the same texts that
//! [`compile`](crate::policy::compile()) reads.

use std::{collections::BTreeSet, ops::Range};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{
        Effect, PolicySource,
        parts::{
            ActionSet, Agents, Comparison, Components, Name, NormalizedForms, Pattern, Segment,
        },
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
    /// True if it is built into the program.
    pub embedded: bool,
    /// Its statements, in the order of the sections.
    pub statements: Vec<Statement>,
    /// The number of its `[[tests]]`.
    pub tests: usize,
    line_starts: Vec<usize>,
    /// The actions that this file bounds: nothing is allowed of them that the file does not
    /// allow.
    bounds: ActionSet,
}

/// One rule with an id that decisions name, or one exception.
#[derive(Debug, Clone)]
pub struct Statement {
    /// The id in decisions; `secrets.except[N]` for an exception, which decides nothing.
    pub id: String,
    /// Its kind.
    pub kind: StatementKind,
    /// The byte range in the file's text.
    pub span: Range<usize>,
    /// Its path patterns.
    pub patterns: Vec<PathPattern>,
    /// Its extensions, each with its byte range.
    pub extensions: Vec<(String, Range<usize>)>,
    /// The agent patterns as written; empty for all agents.
    pub agent_names: Vec<String>,
    agents: Agents,
    actions: ActionSet,
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

/// A path pattern as written, with its byte range.
#[derive(Debug, Clone)]
pub struct PathPattern {
    /// The text as written.
    pub text: String,
    /// The byte range in the file's text.
    pub span: Range<usize>,
    comparison: Comparison,
    /// The alternatives as written.
    written: Vec<Pattern>,
    /// The alternatives as compared.
    alternatives: Vec<Pattern>,
    /// The alternatives in the normalized form that denials compare.
    folded: Vec<Pattern>,
    /// True if they match more than is written.
    beneath: bool,
}

/// Reads the statements of a policy's files; the first file is the policy itself. Unreadable parts
/// are left out: [`compile`](crate::policy::compile()) reports them.
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
                bounds: ActionSet::NONE,
            }
        })
        .collect();
    let all: Vec<_> = files.iter().map(|file| bounded(&file.statements)).collect();
    for (number, file) in files.iter_mut().enumerate() {
        let above = source.lineage(number).into_iter().skip(1).filter_map(|above| all.get(above));
        let above = above.fold(ActionSet::NONE, |set, (listed, ruled)| set | *listed | *ruled);
        let (listed, ruled) = bounded(&file.statements);
        file.bounds = listed | ruled.without(above);
    }
    files
}

/// Returns the actions of a file's lists, and those of its `allow` rules.
fn bounded(statements: &[Statement]) -> (ActionSet, ActionSet) {
    let about = |is: fn(StatementKind) -> bool| {
        let statements = statements.iter().filter(|statement| is(statement.kind));
        statements.fold(ActionSet::NONE, |set, statement| set | statement.actions)
    };
    (
        about(|kind| matches!(kind, StatementKind::AllowedPaths(_))),
        about(|kind| kind == StatementKind::Rule(Effect::Allow)),
    )
}

/// Returns the byte positions at which lines start.
fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(index, _)| index + 1)).collect()
}

impl OutlineFile {
    /// True if nothing is allowed of this action that the file does not allow.
    pub fn bounds(&self, operation: OperationKind, access: Access) -> bool {
        self.bounds.contains(ActionSet::one(operation, access))
    }

    /// Returns the line of a byte position, counted from 1.
    pub fn line(&self, position: usize) -> u64 {
        self.line_starts.partition_point(|start| *start <= position) as u64
    }

    /// Returns the column of a byte position in characters, counted from 1.
    pub fn column(&self, position: usize) -> u64 {
        let before = self.text.get(..position).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        line.chars().count() as u64 + 1
    }
}

impl Statement {
    /// True if it is about all operations and agents that `other` is about.
    pub fn asks_all_of(&self, other: &Self) -> bool {
        self.asks_all_agents_of(other) && self.actions.contains(other.actions)
    }

    /// True if it is about all agents that `other` is about.
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

    /// True if it is about `agent` with this operation and access.
    pub fn asks(&self, agent: &AgentName, operation: OperationKind, access: Access) -> bool {
        self.agents.hold(agent) && self.actions.contains(ActionSet::one(operation, access))
    }

    /// Returns the operations that it is about, each with an access.
    pub fn actions(&self) -> impl Iterator<Item = (OperationKind, Access)> {
        let held = self.actions;
        OperationKind::ALL
            .into_iter()
            .flat_map(|operation| Access::ALL.map(|access| (operation, access)))
            .filter(move |(operation, access)| {
                held.contains(ActionSet::one(*operation, *access))
                    && (operation.accesses().contains(access)
                        || (*operation == OperationKind::Rename && *access == Access::Write))
            })
    }
}

impl PathPattern {
    /// Parses a pattern that allows, which is compared character by character.
    ///
    /// # Errors
    /// The message says what is wrong with the pattern.
    pub fn allowing(text: &str) -> Result<Self, String> {
        Self::new(text, 0..0, Comparison::Exact)
    }

    /// Parses a pattern that denies, which is compared in normalized form.
    ///
    /// # Errors
    /// The message says what is wrong with the pattern.
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

    /// True if it matches `path`.
    pub fn matches(&self, path: &WorkspacePath) -> bool {
        let hit = |text, unfolded| {
            let components = Components::spelled(text, unfolded);
            self.alternatives.iter().any(|pattern| components.are(pattern))
        };
        if self.comparison == Comparison::Exact {
            return hit(path.as_str(), None);
        }
        let forms = NormalizedForms::of(path);
        hit(&forms.folded, forms.unfolded.as_deref())
            || forms.others().any(|(text, unfolded)| hit(text, unfolded))
    }

    /// True if it certainly matches every path that `other` matches.
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

    /// True if some path may match both; `false` is certain.
    pub fn may_meet(&self, other: &Self) -> bool {
        let any = |ours: &[Pattern], theirs: &[Pattern], meet: fn(&Pattern, &Pattern) -> bool| {
            ours.iter().any(|our| theirs.iter().any(|their| meet(our, their)))
        };
        match (self.comparison, other.comparison) {
            (Comparison::Exact, Comparison::Exact) => {
                any(&self.alternatives, &other.alternatives, relate::may_meet)
            }
            (Comparison::Exact, _) => any(&self.alternatives, &other.folded, relate::may_be_denied),
            (_, Comparison::Exact) => any(&other.alternatives, &self.folded, relate::may_be_denied),
            _ => any(&self.folded, &other.folded, relate::may_both_deny),
        }
    }

    /// True if, as an exception, it certainly opens all that one alternative of a secret name
    /// matches in the letters in which the name is written.
    pub(crate) fn excepts_an_alternative_of(&self, name: &Self) -> bool {
        let Ok(spelled) = Self::allowing(&name.text) else { return false };
        // A name that ends in `**` also closes the directory itself, which such an exception does
        // not match.
        let mut alternatives = name.alternatives.iter().zip(spelled.at_any_depth().alternatives);
        alternatives.any(|(name, spelled)| {
            name.segments().last() != Some(&Segment::AnyDepth)
                && self.alternatives.iter().any(|our| relate::covers(our, &spelled))
        })
    }

    /// Returns the components of each alternative that are plain names, folded. Every path that
    /// matches has them, and so does every pattern that it covers.
    pub fn literals(&self) -> impl Iterator<Item = Vec<&str>> {
        self.folded.iter().map(|pattern| pattern.names().filter_map(Name::literal).collect())
    }

    /// Returns the components of a path as [`literals`](Self::literals) writes them, in all forms
    /// that patterns are compared with.
    pub fn components(path: &WorkspacePath) -> BTreeSet<String> {
        let forms = NormalizedForms::of(path);
        let all = [Some(&*forms.folded), forms.cleaned.as_deref()];
        let components = all.into_iter().flatten().flat_map(|text| text.split('/'));
        components.filter(|component| !component.is_empty()).map(str::to_owned).collect()
    }

    /// True if it also matches everything beneath what it names, although it is not written so.
    pub fn is_about_trees(&self) -> bool {
        self.beneath
    }

    /// Extends the pattern to everything beneath what it names, as rules that restrict read it.
    pub(crate) fn and_beneath(mut self) -> Self {
        let beneath =
            |patterns: Vec<Pattern>| patterns.into_iter().map(Pattern::and_beneath).collect();
        self.alternatives = beneath(self.alternatives);
        self.folded = beneath(self.folded);
        self.beneath = self.alternatives != self.written;
        self
    }

    /// True if it applies at any depth: it begins with `**`, be it only because `[secrets]` reads
    /// it so.
    pub fn any_depth(&self) -> bool {
        self.alternatives.iter().any(relate::begins_at_any_depth)
    }

    /// Extends the pattern to any depth, as `[secrets]` reads it.
    pub fn at_any_depth(mut self) -> Self {
        let deep =
            |patterns: Vec<Pattern>| patterns.into_iter().map(Pattern::at_any_depth).collect();
        self.written = deep(self.written);
        self.alternatives = deep(self.alternatives);
        self.folded = deep(self.folded);
        self
    }

    /// Returns one path for each alternative, with `any` in place of each wildcard name.
    pub fn examples(&self, any: &str) -> impl Iterator<Item = WorkspacePath> {
        let examples: Vec<_> =
            self.written.iter().filter_map(|pattern| relate::example(pattern, any)).collect();
        examples.into_iter().filter_map(|text| WorkspacePath::parse(&text).ok())
    }

    /// Returns further paths that match, several for each wildcard; `letters` are tried in place of
    /// one character.
    pub fn variants(&self, any: &str, letters: &[char]) -> impl Iterator<Item = WorkspacePath> {
        let variants: Vec<_> = self
            .written
            .iter()
            .flat_map(|pattern| relate::variants(pattern, any, letters))
            .collect();
        variants.into_iter().filter_map(|text| WorkspacePath::parse(&text).ok())
    }

    /// Returns the bounds of the ranges in its character classes.
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
                statement.actions = ActionSet::about(access);
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
                statement.actions = ActionSet::about(access);
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
        statement.actions =
            statement.actions().fold(ActionSet::NONE, |set, (operation, access)| {
                set | ActionSet::one(operation, access)
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
    Some(Statement { span: id.span(), actions: ActionSet::NONE, ..blank(id_text, kind) })
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
        statement.actions = texts(rule, "operations")
            .filter_map(|(word, _)| word.parse().ok())
            .fold(ActionSet::NONE, |set, word| set | ActionSet::of_word(word));
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
    // Accesses that an operation never needs are left out.
    statement.actions = statement
        .actions()
        .fold(ActionSet::NONE, |set, (operation, access)| set | ActionSet::one(operation, access));
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
        actions: ActionSet::all(),
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
