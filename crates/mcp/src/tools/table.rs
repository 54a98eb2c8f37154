//! Tools as the tables list them.

use std::{collections::HashMap, sync::Arc};

use rmcp::model::{self, JsonObject, ToolAnnotations};
use serde::Deserialize;
use serde_json::Value;

use super::super::{
    answer::{Answer, Trouble},
    arguments::Arguments,
    call::Call,
};
use crate::model::OperationKind;

/// The tool that every client is shown.
pub(super) const DIRECTORIES: &str = "list_allowed_directories";

pub(super) type Run = fn(&Call<'_>, &Arguments) -> Result<Answer, Trouble>;

/// A row of a table of tools: name, operation without which the tool is of no use, effect,
/// wait, and implementation.
pub(super) type Row = (&'static str, OperationKind, Effect, Waits, Run);

/// The same of a tool for commands.
pub(super) type CommandRow = (&'static str, Effect, Waits, Run);

/// One tool.
pub(crate) struct Tool {
    shown: model::Tool,
    /// The operation without which it is of no use; `None` where that is to start commands.
    kind: Option<OperationKind>,
    waits: Waits,
    run: Run,
    pub(super) refuses_unknown: bool,
}

/// The part of a tool that clients are shown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolDescription {
    title: String,
    description: String,
    input_schema: JsonObject,
    output_schema: Option<JsonObject>,
}

/// What a tool does to the workspace.
#[derive(Clone, Copy)]
pub(super) enum Effect {
    Reads,
    /// Adds, and does no more when done again.
    Adds,
    /// Adds each time.
    AddsAgain,
    /// Replaces or removes, and does no more when done again.
    Replaces,
    /// Replaces or removes something else when done again.
    ReplacesAgain,
}

impl Effect {
    fn annotations(self, title: &str) -> ToolAnnotations {
        let (reads, replaces, again) = match self {
            Self::Reads => (true, false, false),
            Self::Adds => (false, false, false),
            Self::AddsAgain => (false, false, true),
            Self::Replaces => (false, true, false),
            Self::ReplacesAgain => (false, true, true),
        };
        ToolAnnotations::with_title(title)
            .read_only(reads)
            .destructive(replaces)
            .idempotent(!again)
            .open_world(false)
    }
}

/// What a call of a tool waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// One look at one entry.
    Nothing,
    /// The disk, for one change of one file.
    Syncs,
    /// Perhaps much.
    Long,
}

impl Tool {
    /// The tool as clients see it.
    pub(crate) fn shown(&self) -> &model::Tool {
        &self.shown
    }

    /// The operation without which it is of no use; `None` where that is to start commands.
    pub(crate) fn kind(&self) -> Option<OperationKind> {
        self.kind
    }

    /// The word for what it does in the record of a call that is refused.
    pub(crate) fn word(&self) -> &'static str {
        self.kind.map_or("exec", OperationKind::as_str)
    }

    /// Whether it tells only what every client is told (`resources/templates/list`),
    /// so that no policy is asked about it.
    pub(crate) fn tells_nothing(&self) -> bool {
        self.shown.name == DIRECTORIES
    }

    /// What a call waits for, unless the policy has it ask a person.
    pub(crate) fn waits(&self) -> Waits {
        self.waits
    }

    /// Carries a call out.
    pub(crate) fn run(&self, call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
        let known = self.shown.input_schema.get("properties").and_then(Value::as_object);
        if let Some(known) = known.filter(|_| self.refuses_unknown) {
            arguments.only(known)?;
        }
        (self.run)(call, arguments)
    }
}

/// Makes the tools of a table; `shown` is JSON, and `name` makes a tool's name of that in
/// the table.
pub(super) fn load(shown: &str, rows: &[Row], name: impl Fn(&str) -> String) -> Vec<Tool> {
    let rows = rows
        .iter()
        .map(|(key, kind, effect, waits, run)| (*key, Some(*kind), *effect, *waits, *run));
    load_rows(shown, rows, name)
}

/// The same of tools for commands.
pub(super) fn load_for_commands(
    shown: &str,
    rows: &[CommandRow],
    name: impl Fn(&str) -> String,
) -> Vec<Tool> {
    let rows = rows.iter().map(|(key, effect, waits, run)| (*key, None, *effect, *waits, *run));
    load_rows(shown, rows, name)
}

fn load_rows(
    shown: &str,
    rows: impl Iterator<Item = (&'static str, Option<OperationKind>, Effect, Waits, Run)>,
    name: impl Fn(&str) -> String,
) -> Vec<Tool> {
    // A test loads all tables.
    let mut shown: HashMap<String, ToolDescription> =
        serde_json::from_str(shown).unwrap_or_default();
    rows.filter_map(|(key, kind, effect, waits, run)| {
        let ToolDescription { title, description, input_schema, output_schema } =
            shown.remove(key)?;
        let mut tool = model::Tool::new(name(key), description, Arc::new(input_schema))
            .with_annotations(effect.annotations(&title))
            .with_title(title);
        tool.output_schema = output_schema.map(Arc::new);
        Some(Tool { shown: tool, kind, waits, run, refuses_unknown: false })
    })
    .collect()
}
