//! The policy under lint.

use std::ops::Range;

use crate::{
    model::WorkspacePath,
    outline::{OutlineFile, PathPattern, Statement},
    policy::Policy,
    test_runner::TestReport,
    tree::Tree,
};

/// The input of the lints.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// Its files. Embedded ones are not linted, except as the first.
    pub outline: &'a [OutlineFile],
    /// The workspace, to find patterns that match nothing.
    pub tree: Option<&'a Tree>,
    /// The files of the commit that is checked out in the workspace.
    pub tracked: Option<&'a [WorkspacePath]>,
    /// The results of its tests, to find rules without one.
    pub tests: Option<&'a TestReport>,
    /// Commands and presets, each with the name that its agent has by default.
    pub default_agents: &'a [(&'a str, &'a str)],
}

impl<'a> Subject<'a> {
    /// A policy alone, without its tests, a workspace, and names of agents.
    pub fn new(policy: &'a Policy, outline: &'a [OutlineFile]) -> Self {
        Self { policy, outline, tree: None, tracked: None, tests: None, default_agents: &[] }
    }

    /// Returns the indices of the files that the author can change.
    pub(super) fn linted(self) -> impl Iterator<Item = usize> + 'a {
        let outline = self.outline;
        (0..outline.len()).filter(|number| {
            *number == 0 || outline.get(*number).is_some_and(|file| !file.embedded)
        })
    }

    /// Returns all statements with the indices of their files.
    pub(super) fn statements(self) -> impl Iterator<Item = (usize, &'a Statement)> + Clone {
        self.outline
            .iter()
            .enumerate()
            .flat_map(|(number, file)| file.statements.iter().map(move |found| (number, found)))
    }

    /// Returns the statements of one file.
    pub(super) fn of_file(self, number: usize) -> &'a [Statement] {
        self.outline.get(number).map_or(&[], |file| &file.statements)
    }
}

/// True if a pattern consists of wildcards for entire names.
pub(super) fn is_about_everything(pattern: &PathPattern) -> bool {
    pattern.text.chars().all(|c| matches!(c, '*' | '/'))
}

/// Formats a place in another file for a message: `a.toml:12`.
pub(super) fn location(subject: Subject<'_>, file: usize, span: &Range<usize>) -> String {
    match subject.outline.get(file) {
        Some(file) => format!("{}:{}", file.name, file.line(span.start)),
        None => String::new(),
    }
}

/// Returns the advice about a rule that permits nothing, but without which its file would close
/// nothing.
pub(super) fn only_bound(rule: &str) -> String {
    format!("change one of the two; without `{rule}`, this file no longer closes the rest")
}
