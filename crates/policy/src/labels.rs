//! Labels of content by its path (`[[labels]]`), so that rules of hosts can apply once it was read
//! (`whenRead`).
//!
//! A label is as strict as a denial: it covers everything beneath a directory that it names, and
//! all forms of a name. The paths of all files of a policy unite.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    index::{Components, PatternSet},
    normalized::NormalizedForms,
    pattern::Pattern,
};
use crate::model::WorkspacePath;

/// Ids of labels.
pub type LabelIds = BTreeSet<String>;

/// The labels of all files of a policy.
#[derive(Debug, Default)]
pub struct Labels {
    /// The label of each entry of the patterns.
    entries: Vec<String>,
    patterns: PatternSet,
    paths: BTreeMap<String, BTreeSet<String>>,
}

/// Labels of content, each with a path that has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labelled(BTreeMap<String, WorkspacePath>);

impl Labels {
    /// Returns the labels with these ids, patterns and texts of the patterns.
    pub(super) fn new<'s>(
        stated: impl Iterator<Item = (&'s str, Vec<Pattern>, &'s [String])>,
    ) -> Self {
        let (mut labels, mut filed) = (Self::default(), Vec::new());
        for (id, patterns, texts) in stated {
            // A file has far fewer labels than fit.
            let entry = u32::try_from(labels.entries.len()).unwrap_or(u32::MAX);
            labels.entries.push(id.to_owned());
            filed.extend(patterns.into_iter().map(|pattern| (entry, pattern)));
            let paths = labels.paths.entry(id.to_owned()).or_default();
            paths.extend(texts.iter().cloned());
        }
        labels.patterns = PatternSet::new(filed);
        labels
    }

    /// True if there are no labels.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns all labels, as of content that may have been anywhere in the workspace.
    pub fn all(&self) -> Labelled {
        self.entries.iter().map(|id| (id.clone(), WorkspacePath::root())).collect()
    }

    /// Returns the ids of the labels, each with its patterns as written.
    pub fn paths(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.paths
    }

    /// Returns the id of the label whose entry `first` finds by the patterns.
    pub(super) fn first(&self, first: impl FnOnce(&PatternSet) -> Option<u32>) -> Option<&str> {
        self.entries.get(first(&self.patterns)? as usize).map(String::as_str)
    }

    /// Returns the labels of content at `path`.
    pub fn of(&self, path: &WorkspacePath) -> Labelled {
        let mut found = Labelled::default();
        if self.is_empty() {
            return found;
        }
        let forms = NormalizedForms::of(path);
        let folded = Components::spelled(&forms.folded, forms.unfolded.as_deref());
        let others = forms.others().map(|(text, was)| Components::spelled(text, was));
        for components in std::iter::once(folded).chain(others) {
            // No entry is accepted, so that all of them are tried.
            self.patterns.first(&components, |entry, pattern| {
                if let Some(id) = self.entries.get(entry as usize)
                    && !found.0.contains_key(id)
                    && components.are(pattern)
                {
                    found.0.insert(id.clone(), path.clone());
                }
                false
            });
        }
        found
    }
}

impl FromIterator<(String, WorkspacePath)> for Labelled {
    fn from_iter<I: IntoIterator<Item = (String, WorkspacePath)>>(labels: I) -> Self {
        Self(labels.into_iter().collect())
    }
}

impl Labelled {
    /// True if there are no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the labels of `other`; a label that both have keeps its path.
    pub fn unite(&mut self, other: Self) {
        for (id, path) in other.0 {
            self.0.entry(id).or_insert(path);
        }
    }

    /// Returns the labels for which `keep` returns true.
    #[must_use]
    pub fn filtered(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|id, _| keep(id));
        self
    }

    /// Returns the ids.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the labels, each with a path that has it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &WorkspacePath)> {
        self.0.iter().map(|(id, path)| (id.as_str(), path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PolicySource, compile};

    #[test]
    fn a_label_covers_trees_and_every_form() {
        let text = "schema = 1\n[[labels]]\nid = \"customers\"\npaths = [\"data/**\", \"*.CSV\"]\n\
                    [[labels]]\nid = \"keys\"\npaths = [\"data/keys\"]\n";
        let policy = compile(&PolicySource::from_text("p", text)).unwrap();
        let of = |path: &str| {
            let labelled = policy.labels().of(&WorkspacePath::parse(path).unwrap());
            labelled.ids().map(str::to_owned).collect::<Vec<_>>()
        };
        for (path, ids) in [
            ("data", &["customers"][..]),
            ("data/a/b.txt", &["customers"]),
            ("DATA/a. ", &["customers"]),
            ("a.csv", &["customers"]),
            ("data/keys/id", &["customers", "keys"]),
            ("src/a.csv", &[]),
            ("database", &[]),
        ] {
            assert_eq!(of(path), ids, "{path}");
        }
    }
}
