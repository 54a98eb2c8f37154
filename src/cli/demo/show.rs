//! The output of the demo for people, in at most 80 columns, and as one JSON object.
//! Colours are used on a terminal only.

use std::fmt::Display;

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use super::reply_checker::{AttemptEnd, JudgedLine};
use crate::{app::output::styled, model::Escaped};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const NO: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Prints for people, or nothing with `--json`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    pub(super) json: bool,
}

impl Output {
    /// Prints a line of text.
    pub(super) fn say(self, text: impl Display) {
        if !self.json {
            styled(format_args!("{text}"));
        }
    }

    /// Prints a heading after an empty line.
    pub(super) fn heading(self, text: impl Display) {
        self.say(format_args!("\n{BOLD}{text}{BOLD:#}"));
    }

    /// Prints a warning.
    pub(super) fn warn(self, text: impl Display) {
        self.say(format_args!("{NO}warning:{NO:#} {text}"));
    }

    /// Prints a failure.
    pub(super) fn problem(self, text: impl Display) {
        self.say(format_args!("{BAD}FAILED:{BAD:#} {text}"));
    }

    /// Prints the table's header.
    pub(super) fn head(self) {
        let [op, path, end, rule, record] = ["", "PATH OR COMMAND", "DECISION", "RULE", "RECORD"];
        self.say(format_args!(
            "{DIM}{op:<6}  {path:<23}  {end:<8}  {rule:<26}  {record:>6}{DIM:#}"
        ));
    }

    /// Prints a line for an attempt.
    pub(super) fn line(self, line: &JudgedLine) {
        let colour = match line.end {
            _ if line.wrong.is_some() => BAD,
            AttemptEnd::Allowed | AttemptEnd::Worked => GOOD,
            AttemptEnd::Denied | AttemptEnd::Refused => NO,
            AttemptEnd::Failed => BAD,
        };
        let record = line.receipt.as_ref().map_or("-".to_owned(), |of| of.seq.to_string());
        self.say(format_args!(
            "{:<6}  {:<23}  {colour}{:<8}{colour:#}  {:<26}  {record:>6}",
            line.attempt.operation(),
            line.attempt.shown(),
            line.end.as_str(),
            Escaped(&line.rule).to_string(),
        ));
        if let Some(wrong) = &line.wrong {
            self.say(format_args!("        {BAD}^ {}{BAD:#}", Escaped(wrong)));
        }
    }
}

/// Returns an attempt as a JSON object.
pub(super) fn line_json(line: &JudgedLine) -> Value {
    json!({
        "operation": line.attempt.operation(),
        "path": line.attempt.path,
        "about": Some(line.attempt.about).filter(|about| !about.is_empty()),
        "decision": line.end.as_str(),
        "rule": line.rule,
        "reason": line.reason,
        "record": line.receipt.as_ref().map(|receipt| receipt.seq),
        "receipt": line.receipt,
        "backup": line.backup,
        "output": line.output,
        "problem": line.wrong,
    })
}
