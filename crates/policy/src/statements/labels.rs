//! The reader of `[[labels]]`, and of the keys that name labels.

use std::{collections::HashSet, ops::Range};

use toml::de::DeTable;

use super::{
    located::StatedPattern,
    reader::{Reader, elements, sub},
    rules::empty,
};
use crate::{
    diagnostics::Problem,
    labels::LabelIds,
    pattern::{Comparison, Pattern},
};

/// A label of `[[labels]]`.
#[derive(Debug, Clone)]
pub(crate) struct StatedLabel {
    pub(crate) id: String,
    /// The place of the id.
    span: Range<usize>,
    globs: Vec<StatedPattern>,
    /// The patterns as texts.
    paths: Vec<String>,
}

impl StatedLabel {
    /// Returns the id, the patterns, and their texts.
    pub(crate) fn parts(&self) -> (&str, Vec<Pattern>, &[String]) {
        let patterns = self.globs.iter().flat_map(|glob| &glob.alternatives).cloned().collect();
        (&self.id, patterns, &self.paths)
    }
}

/// The maximum of labels in one file.
const MAX_LABELS: usize = 1000;

/// The key that names labels.
pub(super) const WHEN_READ: &str = "whenRead";

impl Reader<'_, '_> {
    pub(super) fn labels(&mut self, root: &DeTable<'_>) -> Vec<StatedLabel> {
        let mut seen: HashSet<String> = HashSet::new();
        let mut labels = Vec::new();
        for (number, value) in elements(root, "labels").enumerate() {
            if number == MAX_LABELS {
                let problem = format!("the file has more than {MAX_LABELS} labels");
                self.report(value.span(), Problem::new(problem).label("one too many"));
                break;
            }
            let Some(table) = value.get_ref().as_table() else { continue };
            let Some(label) = self.label(table) else { continue };
            if !seen.insert(label.id.clone()) {
                let problem = Problem::new(format!("the label `{}` is there twice", label.id));
                let problem = problem.label("used before").help("put all its `paths` into one");
                self.report(label.span.clone(), problem);
            }
            labels.push(label);
        }
        labels
    }

    fn label(&mut self, table: &DeTable<'_>) -> Option<StatedLabel> {
        let id = table
            .get("id")
            .and_then(|value| Some((self.identifier(value, "label id")?, value.span())));
        let mut globs = Vec::new();
        for value in elements(table, "paths") {
            let glob = self.glob(value, Comparison::Folded);
            globs.extend(glob.map(|glob| glob.and_beneath()));
        }
        if let Some(value) = table.get("paths")
            && value.get_ref().as_array().is_some_and(|list| list.is_empty())
        {
            self.report(value.span(), empty("paths"));
        }
        let paths = elements(table, "paths").filter_map(|value| value.get_ref().as_str());
        let paths = paths.map(str::to_owned).collect();
        let (id, span) = id?;
        Some(StatedLabel { id, span, globs, paths })
    }
}

/// Returns the labels that a table names.
pub(super) fn when_read(table: &DeTable<'_>) -> LabelIds {
    let ids = elements(table, WHEN_READ).filter_map(|value| value.get_ref().as_str());
    ids.map(str::to_owned).collect()
}

/// Returns the labels that rules of hosts and tests name, with their places.
pub(super) fn named(root: &DeTable<'_>) -> Vec<(String, Range<usize>)> {
    let rules = sub(root, "network").into_iter().flat_map(|network| elements(network, "rules"));
    let tables =
        rules.chain(elements(root, "tests")).filter_map(|value| value.get_ref().as_table());
    let values = tables.flat_map(|table| elements(table, WHEN_READ));
    values.filter_map(|value| Some((value.get_ref().as_str()?.to_owned(), value.span()))).collect()
}
