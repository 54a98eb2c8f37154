//! An index of patterns and paths by their plain names, so that not every pair is compared. It only
//! excludes pairs that certainly do not match.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
};

use super::subject::Subject;
use crate::{
    outline::{PathPattern, Statement},
    tree::Tree,
};

/// Numbers by the plain names of the items that they stand for.
#[derive(Debug, Default)]
struct NameIndex {
    by_name: HashMap<String, Vec<usize>>,
    /// Items without any plain name.
    others: Vec<usize>,
}

/// Maximum number of patterns without a plain name that are compared with every other pattern.
pub(super) const MAX_UNNAMED: usize = 1000;

/// Patterns, to find those that may cover another one.
#[derive(Debug, Default)]
pub(super) struct CoverIndex {
    names: NameIndex,
    /// Number and position of the first pattern that is in no index, because there are too many
    /// without a plain name.
    left_out: Option<(usize, Range<usize>)>,
}

impl CoverIndex {
    /// Indexes each pattern with its number; several patterns may share a number.
    pub(super) fn new<'a>(
        patterns: impl Iterator<Item = (usize, &'a PathPattern)> + Clone,
    ) -> Self {
        let mut count: HashMap<&str, usize> = HashMap::new();
        for (_, pattern) in patterns.clone() {
            pattern.literals().flatten().for_each(|name| *count.entry(name).or_default() += 1);
        }
        let (mut filed, mut left_out) = (NameIndex::default(), None);
        for (number, pattern) in patterns {
            for names in pattern.literals() {
                // The rarest name excludes the most.
                let rarest = names.iter().min_by_key(|name| count.get(**name).copied());
                match rarest {
                    Some(name) => {
                        filed.by_name.entry((*name).to_owned()).or_default().push(number);
                    }
                    None if filed.others.len() < MAX_UNNAMED => filed.others.push(number),
                    None => left_out = left_out.or_else(|| Some((number, pattern.span.clone()))),
                }
            }
        }
        Self { names: filed, left_out }
    }

    /// Returns the numbers of the patterns that may cover `pattern`, in order.
    pub(super) fn candidates(&self, pattern: &PathPattern) -> BTreeSet<usize> {
        let names: BTreeSet<&str> = pattern.literals().flatten().collect();
        let named = names.iter().filter_map(|name| self.names.by_name.get(*name)).flatten();
        named.chain(&self.names.others).copied().collect()
    }
}

/// All statements of a policy's files, to find those that may cover a pattern.
#[derive(Debug)]
pub(super) struct Statements<'a> {
    all: Vec<(usize, &'a Statement)>,
    covers: CoverIndex,
}

impl<'a> Statements<'a> {
    pub(super) fn of(subject: Subject<'a>) -> Self {
        let all: Vec<_> = subject.statements().collect();
        let patterns = all.iter().enumerate().flat_map(|(number, (_, statement))| {
            statement.patterns.iter().map(move |pattern| (number, pattern))
        });
        let covers = CoverIndex::new(patterns);
        Self { all, covers }
    }

    /// Returns file and position of the first pattern that is not looked for as a cover of others.
    pub(super) fn left_out(&self) -> Option<(usize, Range<usize>)> {
        let (number, span) = self.covers.left_out.clone()?;
        Some((self.all.get(number)?.0, span))
    }

    /// Returns the statements with a pattern that covers `pattern`, with the numbers of their
    /// files, in order.
    pub(super) fn covering(
        &self,
        pattern: &PathPattern,
    ) -> impl Iterator<Item = (usize, &'a Statement)> {
        let candidates = self.covers.candidates(pattern);
        candidates.into_iter().filter_map(|number| self.all.get(number).copied()).filter(
            move |(_, statement)| statement.patterns.iter().any(|other| other.covers(pattern)),
        )
    }
}

/// The entries of a tree by the names in their paths that occur in patterns.
#[derive(Debug)]
pub(super) struct Entries<'a> {
    tree: &'a Tree,
    by_name: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Entries<'a> {
    pub(super) fn new(tree: &'a Tree, patterns: impl Iterator<Item = &'a PathPattern>) -> Self {
        let names = patterns.flat_map(|pattern| pattern.literals().flatten().collect::<Vec<_>>());
        let mut by_name: HashMap<&str, Vec<usize>> = names.map(|name| (name, Vec::new())).collect();
        for (number, entry) in tree.entries.iter().enumerate() {
            for name in PathPattern::components(&entry.path) {
                if let Some(entries) = by_name.get_mut(&*name) {
                    entries.push(number);
                }
            }
        }
        Self { tree, by_name }
    }

    /// True if `pattern` matches any of them.
    pub(super) fn any(&self, pattern: &PathPattern) -> bool {
        let matches = |number: &usize| {
            self.tree.entries.get(*number).is_some_and(|entry| pattern.matches(&entry.path))
        };
        pattern.literals().any(|names| {
            let known = names.iter().filter_map(|name| self.by_name.get(name));
            match known.min_by_key(|entries| entries.len()) {
                Some(entries) => entries.iter().any(matches),
                None => self.tree.entries.iter().any(|entry| pattern.matches(&entry.path)),
            }
        })
    }
}
