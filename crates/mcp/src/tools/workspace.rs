//! The tools of the workspace file system module, with three additional ones:
//! `rename`, `append_file` and `read_files`.

use jiff::Timestamp;
use serde_json::{Map, json};

use crate::{
    gateway::{Entry, EntryKind},
    model::{OperationKind as Kind, request},
};

use super::{
    super::{
        arguments::Arguments,
        call::Call,
        tool_result::{ToolError, ToolResult},
    },
    name::Name,
    reading::{read_file, read_files},
    searching::{glob, grep, ls},
    table::{Effect, ExpectedWait, Row, Tool, load},
};

/// Titles, descriptions and schemas, by the tool's name.
const SHOWN: &str = include_str!("workspace.json");

/// All tools. Their descriptions for clients are in [`SHOWN`].
const TOOLS: [Row; 12] = [
    ("read_file", Kind::Read, Effect::Reads, ExpectedWait::Nothing, read_file),
    ("write_file", Kind::Write, Effect::Replaces, ExpectedWait::Syncs, write_file),
    ("edit_file", Kind::Edit, Effect::ReplacesAgain, ExpectedWait::Long, edit_file),
    ("ls", Kind::List, Effect::Reads, ExpectedWait::Nothing, ls),
    ("stat", Kind::Stat, Effect::Reads, ExpectedWait::Nothing, stat_entry),
    ("mkdir", Kind::Mkdir, Effect::Adds, ExpectedWait::Long, mkdir),
    ("rm", Kind::Remove, Effect::Replaces, ExpectedWait::Long, rm),
    ("rename", Kind::Rename, Effect::ReplacesAgain, ExpectedWait::Long, rename),
    ("append_file", Kind::Append, Effect::AddsAgain, ExpectedWait::Syncs, append_file),
    ("read_files", Kind::Read, Effect::Reads, ExpectedWait::Long, read_files),
    ("glob", Kind::Glob, Effect::Reads, ExpectedWait::Long, glob),
    ("grep", Kind::Grep, Effect::Reads, ExpectedWait::Long, grep),
];

/// Returns the tools of a workspace. They refuse unknown arguments.
pub(super) fn tools(name: &Name) -> Vec<Tool> {
    let mut tools = load(SHOWN, &TOOLS, |tool| format!("workspace__{name}__{tool}"));
    tools.iter_mut().for_each(|tool| tool.refuses_unknown = true);
    tools
}

fn ok() -> ToolResult {
    ToolResult::structured(json!({ "ok": true }))
}

fn write_file(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Write, arguments.text("path")?)?;
    let content = arguments.text("content")?.as_bytes().to_vec();
    call.put(&request::Write { path, content, mode: None })?;
    Ok(ok())
}

fn append_file(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Append, arguments.text("path")?)?;
    let content = arguments.text("content")?.as_bytes().to_vec();
    call.put(&request::Append { path, content })?;
    Ok(ok())
}

fn edit_file(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Edit, arguments.text("path")?)?;
    let old = arguments.text("oldText")?.to_owned();
    let new = arguments.text("newText")?.to_owned();
    call.put(&request::Edit { path, old, new })?;
    Ok(ok())
}

fn stat_entry(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Stat, arguments.text("path")?)?;
    let entry = call.put(&request::Stat { path })?;
    if entry.kind == EntryKind::Other {
        return Err(ToolError::Said(
            "that is neither a file nor a directory nor a link".to_owned(),
        ));
    }
    let mut stat = Map::new();
    let path = call.shown(&entry.path);
    let path = if path.is_empty() { "." } else { &path };
    stat.insert("path".to_owned(), json!(path));
    stat.insert("type".to_owned(), json!(entry.kind.as_str()));
    stat.insert("size".to_owned(), json!(entry.size.unwrap_or(0)));
    stat.extend(modified(&entry).map(|time| ("mtime".to_owned(), json!(time))));
    Ok(ToolResult::structured(json!({ "stat": stat })))
}

/// Returns the time of the last change of content, RFC 3339 in UTC.
pub(super) fn modified(entry: &Entry) -> Option<String> {
    let (seconds, nanoseconds) = entry.modified?;
    let time = Timestamp::new(seconds, i32::try_from(nanoseconds).ok()?).ok()?;
    // A JavaScript `Date` has milliseconds.
    Some(format!("{time:.3}"))
}

fn mkdir(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Mkdir, arguments.text("path")?)?;
    let recursive = arguments.flag("recursive")?;
    call.put(&request::Mkdir { path, recursive, mode: None })?;
    Ok(ok())
}

fn rm(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Remove, arguments.text("path")?)?;
    let recursive = arguments.flag("recursive")?;
    call.put(&request::Remove { path, recursive })?;
    Ok(ok())
}

fn rename(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let from = call.path(Kind::Rename, arguments.text("from")?)?;
    let to = call.path(Kind::Rename, arguments.text("to")?)?;
    call.put(&request::Rename { from, to, replace: true })?;
    Ok(ok())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::tools::{
        reading::MAX_FILES,
        searching::{DEFAULT_MAX_LINES, MAX_PAGE_RESULTS},
    };

    #[test]
    fn the_bounds_that_clients_are_shown_are_those_in_force() {
        let shown: Value = serde_json::from_str(SHOWN).unwrap();
        let bound = |tool: &str, property: &str, key: &str| {
            shown[tool]["inputSchema"]["properties"][property][key].clone()
        };
        assert_eq!(bound("read_files", "paths", "maxItems"), MAX_FILES);
        for (tool, results) in [("glob", MAX_PAGE_RESULTS), ("grep", DEFAULT_MAX_LINES)] {
            assert_eq!(bound(tool, "maxResults", "maximum"), MAX_PAGE_RESULTS);
            assert_eq!(bound(tool, "maxResults", "default"), results);
        }
    }
}
