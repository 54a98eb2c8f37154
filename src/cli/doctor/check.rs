//! One line of the report.

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use crate::{app::output::styled, model::Escaped};

/// The status of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    /// As it should be.
    Ok,
    /// `run` works, with less than there could be.
    Warning,
    /// `run` would refuse.
    Failed,
}

impl Status {
    /// The word in the report.
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
    means: String,
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
        means: impl Into<String>,
    ) -> Self {
        Self {
            name,
            status,
            found: found.into(),
            means: means.into(),
            help: None,
            details: Vec::new(),
            facts: Value::Null,
        }
    }

    /// The same with what to do about it.
    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// The same with facts for programs.
    pub(super) fn facts(self, facts: Value) -> Self {
        Self { facts, ..self }
    }

    /// The same with a line of its own below.
    pub(super) fn detail(mut self, status: Status, line: impl Into<String>) -> Self {
        self.details.push((status, line.into()));
        self
    }

    /// The check as a JSON object.
    pub(super) fn json(&self) -> Value {
        let details = self
            .details
            .iter()
            .map(|(status, line)| json!({ "status": status.as_str(), "text": line }));
        json!({
            "name": self.name,
            "status": self.status.as_str(),
            "found": self.found,
            "means": self.means,
            "help": self.help,
            "details": details.collect::<Vec<_>>(),
            "facts": self.facts,
        })
    }

    /// Prints the check for people.
    pub(super) fn print(&self) {
        let word = self.status.as_str();
        let style = self.status.style();
        let found = Escaped(&self.found);
        styled(format_args!("{style}{word:<7}{style:#}  {:<16}  {found}", self.name));
        paragraph("", &self.means);
        if let Some(help) = &self.help {
            paragraph("help: ", help);
        }
        for (status, line) in &self.details {
            let style = status.style();
            let line = Escaped(line);
            styled(format_args!("  {style}{:<7}{style:#}  {line}", status.as_str()));
        }
    }
}

/// Prints a text below the column of findings, in at most 80 columns where
/// words are short enough. Its lines stay lines.
fn paragraph(first: &str, text: &str) {
    for (number, line) in text.lines().enumerate() {
        wrapped(&format!("{}{}", if number == 0 { first } else { "" }, Escaped(line)));
    }
}

fn wrapped(text: &str) {
    const WIDTH: usize = 53;
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            styled(format_args!("{:27}{line}", ""));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        styled(format_args!("{:27}{line}", ""));
    }
}
