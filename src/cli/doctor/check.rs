//! One line of the report.

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use crate::{
    app::output::styled,
    cli::rows::{prose, prose_in, stdout_width},
    model::Escaped,
};

/// The blanks before the column of findings.
const COLUMN: usize = 27;
/// Maximum width of a line with an explanation.
const MAX_WIDTH: usize = 80;

/// The status of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    /// No problem.
    Ok,
    /// `run` works, but confines less than it could.
    Warning,
    /// `run` refuses to start.
    Failed,
}

impl Status {
    /// Returns the word in the report.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Ok => AnsiColor::Green.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default(),
            Self::Failed => AnsiColor::Red.on_default().bold(),
        }
    }
}

/// A check: its name, the result, its meaning, and advice.
#[derive(Debug, Clone)]
pub(super) struct Check {
    name: &'static str,
    pub(super) status: Status,
    found: String,
    meaning: String,
    help: Option<String>,
    /// Lines below, each with its own status.
    details: Vec<(Status, String)>,
    facts: Value,
}

impl Check {
    pub(super) fn new(
        name: &'static str,
        status: Status,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Self {
            name,
            status,
            found: found.into(),
            meaning: meaning.into(),
            help: None,
            details: Vec::new(),
            facts: Value::Null,
        }
    }

    /// Adds the advice.
    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Adds facts for programs.
    pub(super) fn facts(self, facts: Value) -> Self {
        Self { facts, ..self }
    }

    /// Adds a line below it.
    pub(super) fn detail(mut self, status: Status, line: impl Into<String>) -> Self {
        self.details.push((status, line.into()));
        self
    }

    /// Returns the check as a JSON object.
    pub(super) fn json(&self) -> Value {
        let details = self
            .details
            .iter()
            .map(|(status, line)| json!({ "status": status.as_str(), "text": line }));
        json!({
            "name": self.name,
            "status": self.status.as_str(),
            "found": self.found,
            "meaning": self.meaning,
            "help": self.help,
            "details": details.collect::<Vec<_>>(),
            "facts": self.facts,
        })
    }

    /// Prints the check for people.
    pub(super) fn print(&self) {
        print_with(self.status, &format!("{:<16}  {}", self.name, Escaped(&self.found)), 0, COLUMN);
        paragraph("", &self.meaning);
        if let Some(help) = &self.help {
            paragraph("help: ", help);
        }
        for (status, line) in &self.details {
            print_with(*status, &Escaped(line).to_string(), 2, 13);
        }
    }
}

/// Prints a line that begins with a status, after `first` blanks; its other rows begin after
/// `other`.
fn print_with(status: Status, line: &str, first: usize, other: usize) {
    let line = prose(&format!("{:first$}{:<7}  {line}", "", status.as_str()), other);
    let (word, rest) = line.split_at_checked(first + 7).unwrap_or((&line, ""));
    let style = status.style();
    styled(format_args!("{style}{word}{style:#}{rest}"));
}

/// Prints a text below the column of findings. Its lines stay lines.
fn paragraph(first: &str, text: &str) {
    let width = stdout_width().map_or(MAX_WIDTH, |width| width.min(MAX_WIDTH));
    for (number, line) in text.lines().enumerate() {
        let first = if number == 0 { first } else { "" };
        let line = format!("{:COLUMN$}{first}{}", "", Escaped(line));
        styled(format_args!("{}", prose_in(&line, COLUMN, Some(width))));
    }
}
