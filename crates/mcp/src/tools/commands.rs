//! Tools for commands in the agent's sandbox, where the policy allows terminals.
//!
//! A model gets the beginning and the end of long output, and by further calls pages of all
//! stored output. A command that the client does not wait for is a task; it ends with the
//! session.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use portcullis_commands::{CommandLine, Error, MAX_OUTPUT, Registry, State, View};
use rmcp::model::RequestId;
use serde_json::{Map, Value, json};

use super::{
    super::{
        arguments::Arguments,
        call::Call,
        tool_result::{ToolError, ToolResult},
    },
    name::Name,
    table::{CommandRow, Effect, ExpectedWait, Tool, load_for_commands},
};
use crate::{gateway::Refusal, model::OperationKind};

/// Titles, descriptions and schemas, by the tool's name.
const SHOWN: &str = include_str!("commands.json");

const TOOLS: [CommandRow; 3] = [
    ("exec", Effect::ReplacesAgain, ExpectedWait::Long, exec),
    ("exec_output", Effect::Reads, ExpectedWait::Long, exec_output),
    ("exec_kill", Effect::Replaces, ExpectedWait::Long, exec_kill),
];

/// Maximum of bytes of output in a result.
const MAX_SHOWN: usize = 32 * 1024;
/// Default timeout of a command, in seconds.
const DEFAULT_TIMEOUT: u64 = 120;
/// Maximum timeout of a command, and maximum wait of a call, in seconds.
const MAX_TIMEOUT: u64 = 600;
/// Timeout for a command to start, and to end after it is killed.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum of characters of a request's id in a record.
const MAX_ID: usize = 64;

/// Returns the tools for a workspace.
pub(super) fn tools(name: &Name) -> Vec<Tool> {
    let mut tools = load_for_commands(SHOWN, &TOOLS, |tool| format!("workspace__{name}__{tool}"));
    tools.iter_mut().for_each(|tool| tool.refuses_unknown = true);
    tools
}

fn registry<'a>(call: &Call<'a>) -> Result<&'a Registry, ToolError> {
    call.commands.ok_or_else(|| ToolError::Said("there is no sandbox for commands".to_owned()))
}

/// Returns the id of a request for a record. The client chooses it, of any length.
fn recorded_id(id: &RequestId) -> Value {
    match id {
        RequestId::Number(number) => (*number).into(),
        RequestId::String(text) => text.chars().take(MAX_ID).collect::<String>().into(),
    }
}

fn exec(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let registry = registry(call)?;
    let command = arguments.text("command")?.to_owned();
    let args = arguments.texts("args")?.into_iter().map(str::to_owned).collect();
    let directory = match arguments.optional_text("cwd")? {
        Some(cwd) => {
            let path = call.path(OperationKind::List, cwd)?;
            Some(PathBuf::from(call.roots.absolute(&path)))
        }
        None => None,
    };
    let environment = arguments.text_members("env")?;
    let timeout = seconds(arguments, "timeout")?.unwrap_or(DEFAULT_TIMEOUT);
    if timeout == 0 {
        return Err(ToolError::Arguments("`timeout` must be at least 1".to_owned()));
    }
    let is_background = arguments.flag("background")?;
    let command = CommandLine {
        environment,
        directory,
        request: call.request.map(recorded_id),
        ..CommandLine::new(command, args)
    };
    let task = registry.start(call.session, command, MAX_OUTPUT, call.approver);
    let task = task.map_err(|error| match error {
        Error::Refused(error) => ToolError::Gateway(error),
        other => ToolError::Arguments(other.to_string()),
    })?;
    let session = call.session.id.as_str();
    let mut note = None;
    if is_background {
        registry.wait_for_start(session, task, Instant::now() + STEP_TIMEOUT);
    } else {
        let until = Instant::now() + Duration::from_secs(timeout);
        if !registry.wait(session, task, until, || call.is_cancelled()) {
            note = Some("Too many calls wait for commands: this one goes on as a task.".to_owned());
        } else if registry.view(session, task, 0).is_some_and(|view| !view.state.is_over()) {
            registry.kill(session, task);
            registry.wait(session, task, Instant::now() + STEP_TIMEOUT, || false);
            note = Some(format!("The command was killed: it took longer than {timeout} s."));
        }
        if call.is_cancelled() {
            registry.release(session, task);
            let refusal = Refusal::Cancelled;
            return Err(ToolError::Gateway(call.gateway.refuse(
                call.session,
                "exec",
                None,
                &refusal,
            )));
        }
    }
    let head = registry.view_after(session, task, (0, MAX_SHOWN)).ok_or_else(gone)?;
    if let State::NotStarted(reason) = &head.state {
        registry.release(session, task);
        return Err(ToolError::Said(format!("the command cannot be started: {reason}")));
    }
    let mut output = head.output.text.clone();
    let mut view = head;
    if view.output.to < view.total {
        let half = MAX_SHOWN / 2;
        let first = registry.view_after(session, task, (0, half)).ok_or_else(gone)?;
        view = registry.view(session, task, half).ok_or_else(gone)?;
        let left_out = view.output.from.saturating_sub(first.output.to);
        output = format!(
            "{}\n[{left_out} bytes are left out here: `exec_output` with `task`: {task} and `after`: {} \
             gives them]\n{}",
            first.output.text, first.output.to, view.output.text
        );
    }
    Ok(answer(task, &view, output, None, note.into_iter().collect()))
}

fn exec_output(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let (registry, task) = (registry(call)?, task(arguments)?);
    let after = arguments.count("after")?.unwrap_or_default();
    let wait = seconds(arguments, "wait")?.unwrap_or_default();
    let session = call.session.id.as_str();
    let until = Instant::now() + Duration::from_secs(wait);
    registry.wait(session, task, until, || call.is_cancelled());
    call.check_cancelled(OperationKind::Read, "")?;
    let view = registry.view_after(session, task, (after, MAX_SHOWN)).ok_or_else(gone)?;
    let mut notes = Vec::new();
    if view.output.from > after && !view.output.text.is_empty() {
        notes.push(format!("The bytes from {after} to {} are not stored.", view.output.from));
    }
    // Without a complete character the same call gets it later.
    let more = view.output.to < view.total && !view.output.text.is_empty();
    let next = (more || !view.state.is_over()).then_some(view.output.to);
    let output = view.output.text.clone();
    Ok(answer(task, &view, output, next, notes))
}

fn exec_kill(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let (registry, task) = (registry(call)?, task(arguments)?);
    match registry.kill(&call.session.id, task) {
        true => Ok(ToolResult::structured(json!({ "ok": true }))),
        false => Err(gone()),
    }
}

fn task(arguments: &Arguments) -> Result<u64, ToolError> {
    let missing = || ToolError::Arguments("the argument `task` is missing".to_owned());
    arguments.count("task")?.ok_or_else(missing)
}

fn gone() -> ToolError {
    ToolError::Arguments("`task` names no command of the session".to_owned())
}

fn seconds(arguments: &Arguments, name: &str) -> Result<Option<u64>, ToolError> {
    match arguments.count(name)? {
        Some(seconds) if seconds > MAX_TIMEOUT => {
            Err(ToolError::Arguments(format!("`{name}` must be at most {MAX_TIMEOUT}")))
        }
        seconds => Ok(seconds),
    }
}

/// Returns a command's output and state, as text for models and as structured content.
fn answer(
    task: u64,
    view: &View,
    output: String,
    next: Option<u64>,
    mut notes: Vec<String>,
) -> ToolResult {
    let mut result = Map::new();
    result.insert("task".to_owned(), task.into());
    result.insert("bytes".to_owned(), view.total.into());
    result.insert("running".to_owned(), (!view.state.is_over()).into());
    let state = match &view.state {
        State::Ended(exit) => {
            result.extend(exit.members());
            exit.to_string()
        }
        _ => format!("task {task} is running"),
    };
    if let Some(next) = next {
        result.insert("next".to_owned(), next.into());
        notes.push(format!("What comes then: `exec_output` with `task`: {task}, `after`: {next}."));
    }
    if !notes.is_empty() {
        result.insert("note".to_owned(), notes.join(" ").into());
    }
    let end = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
    let words: Vec<_> = std::iter::once(state).chain(notes).collect();
    let text = format!("{output}{end}[{}]", words.join(". "));
    result.insert("output".to_owned(), output.into());
    ToolResult::with_text(text, Value::Object(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client chooses the id, and the record had all of it.
    #[test]
    fn a_record_has_the_beginning_of_a_long_id() {
        let text = |length| RequestId::String("é".repeat(length).into());
        assert_eq!(recorded_id(&text(1000)), "é".repeat(MAX_ID));
        assert_eq!(recorded_id(&text(3)), "ééé");
        assert_eq!(recorded_id(&RequestId::Number(7)), 7);
    }

    #[test]
    fn the_bounds_that_clients_are_shown_are_those_in_force() {
        let shown: Value = serde_json::from_str(SHOWN).unwrap();
        let timeout = &shown["exec"]["inputSchema"]["properties"]["timeout"];
        assert_eq!(
            (&timeout["default"], &timeout["maximum"]),
            (&json!(DEFAULT_TIMEOUT), &json!(MAX_TIMEOUT))
        );
        let wait = &shown["exec_output"]["inputSchema"]["properties"]["wait"];
        assert_eq!(wait["maximum"], MAX_TIMEOUT);
        assert_eq!(MAX_SHOWN, 32 << 10);
    }
}
