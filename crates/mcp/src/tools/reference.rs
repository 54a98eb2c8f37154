//! The tools of the reference filesystem server, with its names, schemas and documented
//! behaviour, so that the gateway replaces it by a change of the command line.
//!
//! Paths are absolute, or relative to the workspace. Differences: a file's times of
//! creation and last access are missing, since the gateway does not disclose them, and
//! a link is shown as a file. Replies are bounded for a model's context, and results
//! that may be long are text alone.

use std::collections::BTreeMap;

use serde_json::json;

use crate::{
    gateway::{Entry, EntryKind, ErrorKind},
    model::{Encoding, LineRange, OperationKind as Kind, request},
};

use super::{
    super::{
        arguments::Arguments,
        call::Call,
        tool_result::{ToolError, ToolResult},
    },
    diff, edits,
    reference_reading::{as_text, may_continue, read_media, read_multiple, read_text},
    searching::{INCLUDE_IGNORED, MAX_PAGE_BYTES, bytes_in_reply},
    table::{DIRECTORIES, Effect, ExpectedWait, Row, Tool, load},
    tree,
};

/// Maximum of edits of one call: each searches the whole content and copies it.
const MAX_EDITS: usize = 256;
/// Maximum of attempts of an edit when other changes of the file come first.
const MAX_ATTEMPTS: usize = 100;
/// Titles, descriptions and schemas, by the tool's name.
const SHOWN: &str = include_str!("reference.json");

/// All tools. Their descriptions for clients are in [`SHOWN`].
const TOOLS: [Row; 14] = [
    ("read_file", Kind::Read, Effect::Reads, ExpectedWait::Nothing, read_text),
    ("read_text_file", Kind::Read, Effect::Reads, ExpectedWait::Nothing, read_text),
    ("read_media_file", Kind::Read, Effect::Reads, ExpectedWait::Long, read_media),
    ("read_multiple_files", Kind::Read, Effect::Reads, ExpectedWait::Long, read_multiple),
    ("write_file", Kind::Write, Effect::Replaces, ExpectedWait::Syncs, write),
    ("edit_file", Kind::Edit, Effect::ReplacesAgain, ExpectedWait::Long, edit),
    ("create_directory", Kind::Mkdir, Effect::Adds, ExpectedWait::Long, create_directory),
    ("list_directory", Kind::List, Effect::Reads, ExpectedWait::Nothing, list_directory),
    ("list_directory_with_sizes", Kind::List, Effect::Reads, ExpectedWait::Long, list_sizes),
    ("directory_tree", Kind::Glob, Effect::Reads, ExpectedWait::Long, directory_tree),
    ("move_file", Kind::Rename, Effect::ReplacesAgain, ExpectedWait::Long, move_file),
    ("search_files", Kind::Glob, Effect::Reads, ExpectedWait::Long, search_files),
    ("get_file_info", Kind::Stat, Effect::Reads, ExpectedWait::Nothing, file_info),
    (DIRECTORIES, Kind::List, Effect::Reads, ExpectedWait::Long, allowed_directories),
];

pub(super) fn tools() -> Vec<Tool> {
    load(SHOWN, &TOOLS, str::to_owned)
}

/// Returns a text that is also the structured content.
fn text(text: impl Into<String>) -> ToolResult {
    let text = text.into();
    ToolResult::with_text(text.clone(), json!({ "content": text }))
}

/// Reads the text of a file. The gateway refuses binary content, so that no record says
/// it was disclosed.
fn content(call: &Call<'_>, path: &str) -> Result<String, ToolError> {
    Ok(as_text(&call.read(path, LineRange::default(), Encoding::Text)?))
}

fn write(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let given = arguments.text("path")?;
    let path = call.path(Kind::Write, given)?;
    let content = arguments.text("content")?.as_bytes().to_vec();
    call.put(&request::Write { path, content, mode: None })?;
    Ok(text(format!("Successfully wrote to {given}")))
}

/// Computes the new content from the disclosed one, and replaces all of it in one edit:
/// if the file has changed meanwhile, the edit does not match and is computed anew.
fn edit(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let given = arguments.text("path")?;
    let path = call.path(Kind::Edit, given)?;
    let list = arguments.objects("edits")?;
    if list.len() > MAX_EDITS {
        let reason = format!("`edits` must have at most {MAX_EDITS} edits; make several calls");
        return Err(ToolError::Arguments(reason));
    }
    let pairs: Vec<_> = list
        .iter()
        .map(|edit| Ok((edit.text("oldText")?, edit.text("newText")?)))
        .collect::<Result<_, ToolError>>()?;
    let dry = arguments.flag("dryRun")?;
    let mut old = content(call, given)?;
    let mut tries = 0;
    loop {
        let go_on = || call.check_cancelled(Kind::Edit, path.as_str());
        let new = edits::apply(&old, &pairs, &go_on)?;
        let shown = shortened(diff::fenced(given, &old, &new));
        if dry || old == new {
            return Ok(text(shown));
        }
        let change = request::Edit { path: path.clone(), old: old.clone(), new };
        match call.put(&change) {
            Ok(_) => return Ok(text(shown)),
            // Perhaps another change came first: then its result is edited.
            Err(ToolError::Gateway(error))
                if tries < MAX_ATTEMPTS
                    && matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Conflict)
                    && may_continue(call, &error) =>
            {
                tries += 1;
                let now = content(call, given)?;
                if now == old {
                    return Err(ToolError::Gateway(error));
                }
                old = now;
            }
            Err(trouble) => return Err(trouble),
        }
    }
}

/// Cuts a diff to the length of a page.
fn shortened(mut diff: String) -> String {
    if diff.len() > MAX_PAGE_BYTES {
        diff.truncate(diff.floor_char_boundary(MAX_PAGE_BYTES));
        diff.push_str("\n```\n[The diff goes on.]");
    }
    diff
}

fn create_directory(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let given = arguments.text("path")?;
    let path = call.path(Kind::Mkdir, given)?;
    call.put(&request::Mkdir { path, recursive: true, mode: None })?;
    Ok(text(format!("Successfully created directory {given}")))
}

fn entries(call: &Call<'_>, arguments: &Arguments) -> Result<Vec<Entry>, ToolError> {
    let path = call.path(Kind::List, arguments.text("path")?)?;
    let mut entries = call.put(&request::List { path })?.entries;
    entries.retain(|entry| entry.kind != EntryKind::Other);
    Ok(entries)
}

fn list_directory(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::List, arguments.text("path")?)?;
    let after = arguments.optional_text("after")?;
    let names = call.put(&request::Names { path })?;
    let rest = names.iter().filter(|(name, kind)| {
        *kind != EntryKind::Other && after.is_none_or(|after| *name > after)
    });
    let lines = rest.map(|(name, kind)| {
        let mark = if kind == EntryKind::Directory { "[DIR]" } else { "[FILE]" };
        (name, format!("{mark} {name}"))
    });
    let (lines, next) = page(lines);
    Ok(ToolResult::text(lines).and_next(next))
}

/// Joins as many lines as fit on a page, each with its name; also returns the last name
/// if there are more.
fn page<'n>(lines: impl Iterator<Item = (&'n str, String)>) -> (String, Option<&'n str>) {
    let (mut page, mut taken, mut last) = (String::new(), 0, None);
    for (name, line) in lines {
        taken += bytes_in_reply(&line);
        if taken >= MAX_PAGE_BYTES && last.is_some() {
            return (page, last);
        }
        if last.is_some() {
            page.push('\n');
        }
        page += &line;
        last = Some(name);
    }
    (page, None)
}

fn list_sizes(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let by_size = match arguments.optional_text("sortBy")? {
        None | Some("name") => false,
        Some("size") => true,
        Some(_) => {
            let reason = "`sortBy` must be `name` or `size`";
            return Err(ToolError::Arguments(reason.to_owned()));
        }
    };
    let mut entries = entries(call, arguments)?;
    if by_size {
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.size.unwrap_or(0)));
    }
    let begins = match arguments.optional_text("after")? {
        None => 0,
        Some(after) => match entries.iter().position(|entry| name(entry) == after) {
            Some(at) => at + 1,
            None if by_size => {
                return Err(ToolError::Said("`after` names nothing in the directory".to_owned()));
            }
            None => entries.partition_point(|entry| name(entry) <= after),
        },
    };
    let line = |entry: &Entry| match entry.kind {
        EntryKind::Directory => format!("[DIR] {:<30}", name(entry)),
        _ => format!("[FILE] {:<30} {:>10}", name(entry), size(entry.size.unwrap_or(0))),
    };
    let lines = entries.iter().skip(begins).map(|entry| (name(entry), line(entry)));
    let (mut lines, next) = page(lines);
    if !lines.is_empty() {
        lines.push('\n');
    }
    let directories = entries.iter().filter(|entry| entry.kind == EntryKind::Directory).count();
    let total = combined(entries.iter().filter_map(|entry| entry.size));
    let files = entries.len() - directories;
    let lines = format!(
        "{lines}\nTotal: {files} files, {directories} directories\nCombined size: {}",
        size(total)
    );
    Ok(ToolResult::text(lines).and_next(next))
}

fn name(entry: &Entry) -> &str {
    entry.path.file_name().unwrap_or(".")
}

/// Returns the sum of sizes. A sparse file has any size that its owner likes, so the
/// sum of three may overflow.
fn combined(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Formats a size for people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KB", "MB", "GB", "TB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut amount, mut unit) = (bytes as f64 / 1024.0, "KB");
    for next in UNITS.into_iter().skip(1) {
        if amount < 1024.0 {
            break;
        }
        (amount, unit) = (amount / 1024.0, next);
    }
    format!("{amount:.2} {unit}")
}

fn directory_tree(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Glob, arguments.text("path")?)?;
    let excluded = tree::Excluded::parse(&arguments.texts("excludePatterns")?, true)?;
    let (tree, next, summary) = tree::of(call, &path, &excluded, &search(call, arguments)?)?;
    let tree = serde_json::to_string(&tree).unwrap_or_default();
    Ok(ToolResult::text(tree).and_next(next.as_deref()).of_search(&summary))
}

fn search_files(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Glob, arguments.text("path")?)?;
    let pattern = arguments.text("pattern")?;
    let excluded = tree::Excluded::parse(&arguments.texts("excludePatterns")?, false)?;
    let search = search(call, arguments)?;
    let (found, summary) = tree::search(call, &path, pattern, &excluded, &search)?;
    let lines = found.iter().map(|path| (path.as_str(), call.roots.absolute(path)));
    let (lines, next) = page(lines);
    let lines = if lines.is_empty() { "No matches found".to_owned() } else { lines };
    Ok(ToolResult::text(lines).and_next(next).of_search(&summary))
}

/// Returns the options of a search.
fn search(call: &Call<'_>, arguments: &Arguments) -> Result<tree::Search, ToolError> {
    let after = arguments.optional_text("after")?;
    let after = after.map(|text| call.path(Kind::Glob, text)).transpose()?;
    Ok(tree::Search { after, ignored: arguments.flag(INCLUDE_IGNORED)? })
}

fn move_file(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let (source, destination) = (arguments.text("source")?, arguments.text("destination")?);
    let from = call.path(Kind::Rename, source)?;
    let to = call.path(Kind::Rename, destination)?;
    // The policy decides who learns if the name exists.
    match call.put(&request::Stat { path: to.clone() }) {
        Ok(_) => {}
        Err(ToolError::Gateway(error)) if error.kind() == ErrorKind::NotFound => {
            may_continue(call, &error);
        }
        Err(trouble) => return Err(trouble),
    }
    call.put(&request::Rename { from, to, replace: false })?;
    Ok(text(format!("Successfully moved {source} to {destination}")))
}

fn file_info(call: &Call<'_>, arguments: &Arguments) -> Result<ToolResult, ToolError> {
    let path = call.path(Kind::Stat, arguments.text("path")?)?;
    let entry = call.put(&request::Stat { path })?;
    let mut lines = vec![format!("size: {}", entry.size.unwrap_or(0))];
    lines.extend(super::workspace::modified(&entry).map(|time| format!("modified: {time}")));
    lines.push(format!("isDirectory: {}", entry.kind == EntryKind::Directory));
    lines.push(format!("isFile: {}", entry.kind == EntryKind::File));
    lines.extend(entry.mode.map(|mode| format!("permissions: {:03o}", mode & 0o777)));
    Ok(text(lines.join("\n")))
}

fn allowed_directories(call: &Call<'_>, _arguments: &Arguments) -> Result<ToolResult, ToolError> {
    // Recorded like every disclosure.
    let noted = call.gateway.note(call.session, "mcp.directories", BTreeMap::new());
    call.receipts.borrow_mut().push(noted.map_err(ToolError::Gateway)?);
    let root = crate::model::WorkspacePath::root();
    Ok(text(format!("Allowed directories:\n{}", call.roots.absolute(&root))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.50 KB");
        assert_eq!(size(5 << 20), "5.00 MB");
        assert_eq!(size(3 << 40), "3.00 TB");
        assert_eq!(size(3 << 50), "3072.00 TB");
    }

    #[test]
    fn sparse_files_of_any_size_have_a_combined_size() {
        assert_eq!(combined([1, 2].into_iter()), 3);
        assert_eq!(combined([u64::MAX >> 1; 3].into_iter()), u64::MAX);
    }

    #[test]
    fn every_schema_is_there() {
        for tool in tools() {
            assert!(tool.shown().input_schema.contains_key("properties"));
            let output = tool.shown().output_schema.as_ref();
            assert!(
                output.is_none_or(|output| output.get("required") == Some(&json!(["content"])))
            );
        }
    }
}
