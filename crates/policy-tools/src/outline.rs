//! Statements of a policy's files with their places, for tools that check, compare and explain
//! policies. Decisions do not need it. It is read from the same texts that
//! [`compile`](crate::policy::compile()) reads.

mod read;

use std::{collections::BTreeSet, ops::Range};

use toml::de::DeTable;

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

/// One rule with an id that decisions name, one exception, or paths of content with a label or of
/// content that is searched for invisible text.
#[derive(Debug, Clone)]
pub struct Statement {
    /// The id in decisions; `secrets.except[N]` and `labels.ID` for an exception and a label, which
    /// decide nothing.
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
    /// One of `[[labels]]`, which is about no operation.
    Label,
    /// `[files.invisible]`, which is about content.
    InvisibleText,
}

impl StatementKind {
    /// True if decisions about names or hosts name such a statement as their rule.
    pub fn decides(self) -> bool {
        self != Self::SecretException && !self.is_of_content()
    }

    /// True if it is about content at its paths, and decides no request for them by name.
    pub fn is_of_content(self) -> bool {
        matches!(self, Self::Label | Self::InvisibleText)
    }
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
                statements: read::statements(root.get_ref()),
                tests: read::number_of_tests(root.get_ref()),
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

    /// Returns its alternatives as written, although they may match more.
    pub(crate) fn written(&self) -> &[Pattern] {
        &self.written
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
    pub(crate) fn any_depth(&self) -> bool {
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
