//! Lists and searches for models: in pages of bounded size, ordered by path.
//!
//! The result of a page contains the argument for the next one, as text and in the structured
//! content, since clients show models one of the two.

use serde_json::{Map, Value, json};

use crate::{
    gateway::{Entry, EntryKind, Summary},
    model::{
        GlobQuery, GrepQuery, OperationKind as Kind, Page, Position as After, WorkspacePath,
        request::{Glob, Grep, List},
    },
};

use super::super::{
    arguments::Arguments,
    call::Call,
    tool_result::{ToolError, ToolResult},
};

/// The argument of searches that includes files ignored by `.gitignore`.
pub(super) const INCLUDE_IGNORED: &str = "includeIgnored";

/// Maximum of results on a page.
pub(super) const MAX_PAGE_RESULTS: u64 = 1_000;
/// Default maximum of lines of a search in content.
pub(super) const DEFAULT_MAX_LINES: u64 = 250;
/// Maximum of bytes of the results on a page.
pub(super) const MAX_PAGE_BYTES: usize = 32 << 10;

/// Returns the number of bytes of a text in a reply, in which some characters are escaped.
pub(super) fn bytes_in_reply(text: &str) -> usize {
    Value::from(text).to_string().len()
}

pub(super) fn ls(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::List, arguments.text("path")?)?;
    let after = arguments.optional_text("after")?;
    let listed = call.put(&List { path })?;
    let name = |entry: &Entry| entry.path.file_name().unwrap_or(".").to_owned();
    let rest =
        listed.entries.iter().filter(|entry| after.is_none_or(|after| *name(entry) > *after));
    let (mut entries, mut room, mut last, mut next) = (Vec::new(), MAX_PAGE_BYTES, None, None);
    for (entry, shown) in rest.filter_map(|entry| Some((entry, file_entry(call, entry)?))) {
        let Some(left) = room.checked_sub(shown.to_string().len()) else {
            next = last.map(name);
            break;
        };
        (room, last) = (left, Some(entry));
        entries.push(shown);
    }
    Ok(ToolResult::page("entries", entries, next, Vec::new()))
}

/// Returns an entry as in the workspace file system module, which has no FIFOs and devices; the
/// gateway never serves those.
fn file_entry(call: &Call<'_>, entry: &Entry) -> Option<Value> {
    if entry.kind == EntryKind::Other {
        return None;
    }
    let mut object = Map::new();
    object.insert("name".to_owned(), json!(entry.path.file_name().unwrap_or(".")));
    object.insert("path".to_owned(), json!(call.shown(&entry.path)));
    object.insert("type".to_owned(), json!(entry.kind.as_str()));
    object.extend(entry.size.map(|size| ("size".to_owned(), json!(size))));
    Some(Value::Object(object))
}

pub(super) fn glob(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let (after, cut) = cursor(arguments)?;
    let after = after.map(|text| position(text, 0)).transpose()?;
    let query = GlobQuery {
        pattern: call.pattern(arguments.text("pattern")?)?,
        ignored: arguments.flag(INCLUDE_IGNORED)?,
        page: Some(Box::new(page(arguments, after, MAX_PAGE_RESULTS)?)),
        ..GlobQuery::default()
    };
    let found = call.put(&Glob { path: WorkspacePath::root(), query })?;
    let served = found.entries.iter().filter(|entry| entry.kind != EntryKind::Other);
    let matches = served.map(|entry| json!(call.shown(&entry.path))).collect();
    let next = found.summary.next.as_ref().map(|next| next.path.as_str().to_owned());
    Ok(found_after(cut, matches, next, &found.summary))
}

pub(super) fn grep(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let (after, cut) = cursor(arguments)?;
    let after = after.map(line_position).transpose()?;
    let query = GrepQuery {
        pattern: arguments.text("pattern")?.to_owned(),
        ignore_case: arguments.flag("ignoreCase")?,
        ignored: arguments.flag(INCLUDE_IGNORED)?,
        include: arguments.optional_text("includeGlob")?.map(str::to_owned),
        page: Some(Box::new(page(arguments, after, DEFAULT_MAX_LINES)?)),
        ..GrepQuery::default()
    };
    let path = call.path(Kind::Grep, arguments.optional_text("path")?.unwrap_or("."))?;
    let found = call.put(&Grep { path, query })?;
    let mut matches = Vec::new();
    for file in &found.files {
        for line in file.lines.iter().filter(|line| line.matches) {
            let (path, number) = (call.shown(&file.path), line.number);
            matches.push(match line.cut {
                true => {
                    json!({ "path": path, "lineNumber": number, "line": line.text, "cut": true })
                }
                false => json!({ "path": path, "lineNumber": number, "line": line.text }),
            });
        }
    }
    let next = found.summary.next.as_ref();
    let next = next.map(|next| format!("{}:{}", next.path.as_str(), next.line));
    Ok(found_after(cut, matches, next, &found.summary))
}

/// The first character of `next` if an earlier page's search was stopped early, so that results
/// may be missing. No path begins with it.
const CUT: char = '/';

/// Returns the position after which a page begins, and if an earlier search was stopped early.
fn cursor(arguments: &Arguments) -> Result<(Option<&str>, bool), ToolError> {
    let after = arguments.optional_text("after")?;
    let cut = after.and_then(|after| after.strip_prefix(CUT));
    Ok((cut.or(after), cut.is_some()))
}

/// Returns the page of a search; `cut` if an earlier one was stopped early.
fn found_after(
    cut: bool,
    matches: Vec<Value>,
    next: Option<String>,
    summary: &Summary,
) -> ToolResult {
    let is_cut = cut || summary.stopped.is_some();
    let next = next.map(|next| if is_cut { format!("{CUT}{next}") } else { next });
    ToolResult::found(matches, next, cut, summary)
}

/// Returns the page that the call asks for.
fn page(arguments: &Arguments, after: Option<After>, default: u64) -> Result<Page, ToolError> {
    match arguments.count("maxResults")? {
        Some(0) => Err(ToolError::Arguments("`maxResults` must be at least 1".to_owned())),
        most => Ok(Page {
            after,
            results: most.unwrap_or(default).min(MAX_PAGE_RESULTS),
            bytes: MAX_PAGE_BYTES,
        }),
    }
}

/// Parses the position of a line, as results name it.
fn line_position(text: &str) -> Result<After, ToolError> {
    let (path, line) = text.rsplit_once(':').ok_or_else(wrong)?;
    position(path, line.parse().map_err(|_| wrong())?)
}

fn position(path: &str, line: u64) -> Result<After, ToolError> {
    let path = WorkspacePath::parse(path).map_err(|_| wrong())?;
    Ok(After { path, line })
}

fn wrong() -> ToolError {
    ToolError::Arguments("`after` must be the `next` of a result".to_owned())
}
