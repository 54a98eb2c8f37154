//! Extraction of values from a parsed file.

use std::{fmt::Display, ops::Range};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::located::StatedPattern;
use crate::{
    check::{Report, shortened},
    diagnostics::{Problem, Source},
    embedded::embedded,
    model::has_hidden_characters,
    pattern::{Comparison, PatternError, parse},
};

/// Maximum number of patterns in one file, with alternatives of braces counted one by one.
const MAX_PATTERNS: usize = 20_000;

pub(super) type Value<'i> = Spanned<DeValue<'i>>;

/// A reader of one file.
pub(super) struct Reader<'a, 'r> {
    source: &'a Source,
    report: &'r mut Report<'a>,
    patterns: usize,
}

impl<'a, 'r> Reader<'a, 'r> {
    pub(super) fn new(source: &'a Source, report: &'r mut Report<'a>) -> Self {
        Self { source, report, patterns: 0 }
    }

    pub(super) fn report(&mut self, span: Range<usize>, problem: Problem) {
        (self.report)(Some(span), problem);
    }

    pub(super) fn line(&self, span: &Range<usize>) -> u64 {
        self.source.line(span.start)
    }

    /// True if the file is an embedded policy, unchanged.
    pub(super) fn is_embedded(&self) -> bool {
        embedded(&self.source.file) == Some(&self.source.text)
    }

    /// Returns the file as the operator named it.
    pub(super) fn file(&self) -> &str {
        &self.source.file
    }

    /// Reads a pattern of paths; reports an invalid one.
    pub(super) fn glob(
        &mut self,
        value: &Value<'_>,
        comparison: Comparison,
    ) -> Option<StatedPattern> {
        let text = value.get_ref().as_str()?;
        if self.patterns > MAX_PATTERNS {
            return None;
        }
        match parse(text, comparison) {
            Ok(alternatives) => {
                self.patterns += alternatives.len();
                if self.patterns > MAX_PATTERNS {
                    let problem = format!("the file has more than {MAX_PATTERNS} patterns");
                    self.report(value.span(), Problem::new(problem).label("one too many"));
                }
                Some(StatedPattern { line: self.line(&value.span()), alternatives })
            }
            Err(error) => {
                let problem = Problem::new(format!("bad pattern \"{}\"", shortened(text)));
                self.report(value.span(), explained(problem, error));
                None
            }
        }
    }

    /// Reads a text that `parse` takes; reports an invalid one. `what` names what it stands for.
    pub(super) fn parsed<T, E: Display>(
        &mut self,
        value: &Value<'_>,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = value.get_ref().as_str()?;
        let report = |error: E| {
            let problem = Problem::new(format!("bad {what} \"{}\"", shortened(text)));
            self.report(value.span(), problem.label(error.to_string()));
        };
        parse(text).map_err(report).ok()
    }

    /// Reads a text that is shown to people and agents; reports an invalid one.
    pub(super) fn plain_text(&mut self, value: &Value<'_>, most: usize) -> Option<String> {
        let text = value.get_ref().as_str()?;
        if has_hidden_characters(text) {
            let problem = "the text contains control, bidirectional or zero-width characters";
            self.report(
                value.span(),
                Problem::new(problem).label("expected plain text in one line"),
            );
        } else if text.chars().count() > most {
            let problem = format!("the text is longer than {most} characters");
            self.report(value.span(), Problem::new(problem));
        } else {
            return Some(text.to_owned());
        }
        None
    }

    /// Reads an ID: letters, digits, `.`, `_`, `-`; reports an invalid one. `what` names the kind
    /// of ID.
    pub(super) fn identifier(&mut self, value: &Value<'_>, what: &str) -> Option<String> {
        let text = value.get_ref().as_str()?;
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !starts_well || text.len() > 64 || !text.chars().all(good) {
            let problem = Problem::new(format!("bad {what} \"{}\"", shortened(text)));
            self.report(
                value.span(),
                problem.label(
                    "expected 1 to 64 letters, digits, `.`, `_` or `-`, a letter or digit first",
                ),
            );
            return None;
        }
        Some(text.to_owned())
    }
}

/// Adds to a problem the error of a pattern and its correction.
pub(super) fn explained(problem: Problem, error: PatternError) -> Problem {
    let problem = problem.label(error.to_string());
    if error.help().is_empty() { problem } else { problem.help(error.help()) }
}

/// Returns the table `key` of `table`, if it is one.
pub(super) fn sub<'a, 'i>(table: &'a DeTable<'i>, key: &str) -> Option<&'a DeTable<'i>> {
    table.get(key)?.get_ref().as_table()
}

/// Returns the elements of the list `key` of `table`; none if it is not a list.
pub(super) fn elements<'a, 'i>(
    table: &'a DeTable<'i>,
    key: &str,
) -> impl Iterator<Item = &'a Value<'i>> {
    table
        .get(key)
        .and_then(|value| value.get_ref().as_array())
        .into_iter()
        .flat_map(|list| list.iter())
}
