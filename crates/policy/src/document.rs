//! Files other than policies that are checked as policies are: keys against a
//! table, everything that is wrong with its place. No line is shown: it may hold a
//! password.

use std::ops::Range;

use toml::de::DeTable;

use super::{
    check,
    diagnostics::{Diagnostics, Problem, Source},
    schema::Field,
};

/// A TOML file, and what is wrong with it so far.
#[derive(Debug)]
pub struct Document {
    source: Source,
    diagnostics: Diagnostics,
}

impl Document {
    /// Checks the form of `text`, which `file` names, against `fields`. Keys of
    /// the file itself that `elsewhere` names are somebody else's to check.
    pub fn check(file: &str, text: &str, fields: &[Field], elsewhere: &[&str]) -> Self {
        let source = Source::new(file.to_owned(), text.to_owned());
        let mut diagnostics = Diagnostics::default();
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let problem = Problem::new(format!("not valid TOML: {}", error.message()));
            diagnostics.report(&source, error.span(), problem);
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

    /// Whether nothing is wrong so far.
    pub fn is_good(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// Adds something that is wrong at `span`, with what to do.
    pub fn wrong(&mut self, span: Range<usize>, message: impl Into<String>, help: &str) {
        let problem = Problem::new(message);
        let problem = if help.is_empty() { problem } else { problem.help(help) };
        self.diagnostics.report(&self.source, Some(span), problem);
    }

    /// The end of checking.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn finish(mut self) -> Result<(), Diagnostics> {
        self.diagnostics.drop_excerpts();
        if self.diagnostics.is_empty() { Ok(()) } else { Err(self.diagnostics) }
    }
}
