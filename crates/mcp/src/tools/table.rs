//! Tools built from tables.

use std::{collections::HashMap, sync::Arc};

use rmcp::model::{self, JsonObject, ToolAnnotations};
use serde::Deserialize;
use serde_json::Value;

use super::super::{
    arguments::Arguments,
    call::Call,
    tool_result::{ToolError, ToolResult},
};
use crate::model::OperationKind;

/// The tool shown to every client.
pub(super) const DIRECTORIES: &str = "list_allowed_directories";

pub(super) type Run = fn(&Call<'_>, &Arguments) -> Result<ToolResult, ToolError>;

/// A row of a table of tools: name, operation without which the tool is useless, effect,
/// wait, and implementation.
pub(super) type Row = (&'static str, OperationKind, Effect, ExpectedWait, Run);

/// A row of a table of tools for commands: name, effect, wait, and implementation.
pub(super) type CommandRow = (&'static str, Effect, ExpectedWait, Run);

/// A tool.
pub(crate) struct Tool {
    shown: model::Tool,
    /// The operation without which it is useless; `None` for tools that need commands.
    kind: Option<OperationKind>,
    waits: ExpectedWait,
    run: Run,
    pub(super) refuses_unknown: bool,
}

/// The description of a tool for clients.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolDescription {
    title: String,
    description: String,
    input_schema: JsonObject,
    output_schema: Option<JsonObject>,
}

/// The effect of a tool on the workspace.
#[derive(Clone, Copy)]
pub(super) enum Effect {
    Reads,
    /// Adds; a repetition has no further effect.
    Adds,
    /// Adds with each repetition.
    AddsAgain,
    /// Replaces or removes; a repetition has no further effect.
    Replaces,
    /// Replaces or removes; a repetition replaces or removes something else.
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

/// The expected wait of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedWait {
    /// A lookup of one entry.
    Nothing,
    /// The disk, for one change of one file.
    Syncs,
    /// Possibly long.
    Long,
}

impl Tool {
    /// Returns the tool as clients see it.
    pub(crate) fn shown(&self) -> &model::Tool {
        &self.shown
    }

    /// Returns the operation without which it is useless; `None` for tools that need
    /// commands.
    pub(crate) fn kind(&self) -> Option<OperationKind> {
        self.kind
    }

    /// Returns the operation's name for the record of a refused call.
    pub(crate) fn word(&self) -> &'static str {
        self.kind.map_or("exec", OperationKind::as_str)
    }

    /// Returns true if it discloses only what every client gets by
    /// `resources/templates/list`, so that its use depends on no policy.
    pub(crate) fn is_public(&self) -> bool {
        self.shown.name == DIRECTORIES
    }

    /// Returns the expected wait of a call that needs no approval.
    pub(crate) fn waits(&self) -> ExpectedWait {
        self.waits
    }

    /// Carries out a call.
    pub(crate) fn run(
        &self,
        call: &Call<'_>,
        arguments: &Arguments,
    ) -> Result<ToolResult, ToolError> {
        let known = self.shown.input_schema.get("properties").and_then(Value::as_object);
        if let Some(known) = known.filter(|_| self.refuses_unknown) {
            arguments.only(known)?;
        }
        (self.run)(call, arguments)
    }
}

/// Builds the tools of a table; `shown` is JSON, and `name` converts a name in the table to
/// the tool's name.
pub(super) fn load(shown: &str, rows: &[Row], name: impl Fn(&str) -> String) -> Vec<Tool> {
    let rows = rows
        .iter()
        .map(|(key, kind, effect, waits, run)| (*key, Some(*kind), *effect, *waits, *run));
    load_rows(shown, rows, name)
}

/// Builds the tools of a table for commands.
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
    rows: impl Iterator<Item = (&'static str, Option<OperationKind>, Effect, ExpectedWait, Run)>,
    name: impl Fn(&str) -> String,
) -> Vec<Tool> {
    // A test loads all tables.
    let mut shown: HashMap<String, ToolDescription> =
        serde_json::from_str(shown).unwrap_or_default();
    let load = |(key, kind, effect, waits, run): (&str, _, Effect, _, _)| {
        let found = shown.remove(key);
        debug_assert!(found.is_some(), "the tool `{key}` has no description");
        let ToolDescription { title, description, input_schema, output_schema } = found?;
        let mut tool = model::Tool::new(name(key), description, Arc::new(input_schema))
            .with_annotations(effect.annotations(&title))
            .with_title(title);
        tool.output_schema = output_schema.map(Arc::new);
        Some(Tool { shown: tool, kind, waits, run, refuses_unknown: false })
    };
    let tools = rows.filter_map(load).collect();
    debug_assert!(shown.is_empty(), "descriptions without a tool");
    tools
}
