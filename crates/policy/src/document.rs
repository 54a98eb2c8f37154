//! Files other than policies that are checked like policies: keys against a table, and every
//! problem with its place. No line is shown, since it may contain a password.

use std::ops::Range;

use toml::de::DeTable;

use super::{
    check,
    diagnostics::{Diagnostics, Problem, Source, syntax_problems},
    schema::Field,
};

/// A TOML file with its problems so far.
#[derive(Debug)]
pub struct Document {
    source: Source,
    diagnostics: Diagnostics,
}

impl Document {
    /// Checks the form of `text`, from the file `file`, against `fields`. Top-level keys in
    /// `elsewhere` are left to other checks.
    pub fn check(file: &str, text: &str, fields: &[Field], elsewhere: &[&str]) -> Self {
        let source = Source::new(file.to_owned(), text.to_owned());
        let mut diagnostics = Diagnostics::default();
        let (root, errors) = DeTable::parse_recoverable(text);
        for (span, problem) in syntax_problems(&errors) {
            diagnostics.report(&source, span, problem);
        }
        if errors.is_empty() {
            let others = |key: &str| elsewhere.contains(&key);
            let ours = root.into_inner().into_iter().filter(|(key, _)| !others(key.get_ref()));
            check::document(&ours.collect(), fields, &mut |span, problem| {
                diagnostics.report(&source, span, problem);
            });
        }
        Self { source, diagnostics }
    }

    /// True if there are no problems so far.
    pub fn is_good(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// Adds a problem at `span`, with its correction.
    pub fn wrong(&mut self, span: Range<usize>, message: impl Into<String>, help: &str) {
        let problem = Problem::new(message);
        let problem = if help.is_empty() { problem } else { problem.help(help) };
        self.diagnostics.report(&self.source, Some(span), problem);
    }

    /// Ends the checks.
    ///
    /// # Errors
    /// All problems.
    pub fn finish(mut self) -> Result<(), Diagnostics> {
        self.diagnostics.drop_excerpts();
        if self.diagnostics.is_empty() { Ok(()) } else { Err(self.diagnostics) }
    }
}
