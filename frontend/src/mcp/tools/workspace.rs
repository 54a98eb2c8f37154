//! The tools of the workspace file system module, and three more: `rename`,
//! `append_file` and `read_files`.

use std::sync::Arc;

use jiff::Timestamp;
use rmcp::model;
use serde_json::{Map, Value, json};

use crate::{
    model::{Operation, OperationKind as Kind},
    ops::{Entry, EntryKind},
};

use super::{
    super::{
        answer::{Answer, Trouble},
        arguments::Arguments,
        call::Call,
    },
    Effect, Name, Run, Tool, into_object, object,
    reading::{MOST_FILES, read_file, read_files},
    searching::{LINES, RESULTS, glob, grep, ls},
};

/// Every tool, the searches among them.
pub(super) fn tools(name: &Name) -> Vec<Tool> {
    let path = || json!({ "type": "string", "description": "Relative to the workspace" });
    let flag = |what: &str| json!({ "type": "boolean", "default": false, "description": what });
    let ignored = || flag("Find what .gitignore files ignore too, and .git");
    let text = || json!({ "type": "string" });
    let paths = json!({
        "type": "array",
        "items": { "type": "string" },
        "minItems": 1,
        "maxItems": MOST_FILES,
    });
    let kind = json!({ "type": "string", "enum": ["file", "directory", "symlink"] });
    let size = json!({ "type": "integer", "minimum": 0 });
    let entry = object(
        json!({ "name": text(), "path": text(), "type": kind, "size": size }),
        &["name", "path", "type"],
    );
    let time = json!({ "type": "string", "format": "date-time" });
    let stat = object(
        json!({ "path": text(), "type": kind, "size": size, "mtime": time }),
        &["path", "type", "size"],
    );
    let ok = || object(json!({ "ok": { "const": true } }), &["ok"]);
    let number = json!({ "type": "integer", "minimum": 1 });
    let at_least_one = |what: &str| json!({ "type": "integer", "minimum": 1, "description": what });
    let line = object(
        json!({
            "path": text(),
            "lineNumber": number,
            "line": text(),
            "cut": { "type": "boolean", "description": "The line is only a piece of a longer one" },
        }),
        &["path", "lineNumber", "line"],
    );
    let after = || json!({ "type": "string", "description": "The `next` of the result before" });
    let most_results = |default: u64| json!({ "type": "integer", "minimum": 1, "maximum": RESULTS, "default": default });
    let make = Maker { name };
    vec![
        make.tool("read_file", "Read a file", Kind::Read, Effect::Reads, read_file)
            .about(
                "Read a file, a text from `line` on: at most 2,000 lines and 64 KiB. Where there \
                is more, the end says with which `line` to go on. Secrets may be replaced by \
                placeholders, which stand for them when written back.",
            )
            .takes(object(
                json!({
                    "path": path(),
                    "line": at_least_one("First line, from 1"),
                    "limit": at_least_one("Most lines"),
                    "column": at_least_one("First byte of that line, from 1, where a line is so \
                        long that it comes in pieces"),
                }),
                &["path"],
            )),
        make.tool("write_file", "Write a file", Kind::Write, Effect::Replaces, write_file)
            .about(
                "Create a file or replace its whole content; missing directories are made. \
                The old content is kept in a backup.",
            )
            .takes(object(json!({ "path": path(), "content": text() }), &["path", "content"]))
            .gives(ok()),
        make.tool("edit_file", "Edit a file", Kind::Edit, Effect::ReplacesAgain, edit_file)
            .about("Replace a piece of a text file; oldText must occur exactly once.")
            .takes(object(
                json!({ "path": path(), "oldText": text(), "newText": text() }),
                &["path", "oldText", "newText"],
            ))
            .gives(ok()),
        make.tool("ls", "List a directory", Kind::List, Effect::Reads, ls)
            .about(
                "List what is directly in a directory; `.` is the workspace. Where there is more, \
                the result has `next`: pass it as `after`.",
            )
            .takes(object(json!({ "path": path(), "after": after() }), &["path"]))
            .gives(page("entries", entry)),
        make.tool("stat", "Look at a file", Kind::Stat, Effect::Reads, stat_entry)
            .about("Type, size and time of a file or directory.")
            .takes(object(json!({ "path": path() }), &["path"]))
            .gives(object(json!({ "stat": stat }), &["stat"])),
        make.tool("mkdir", "Make a directory", Kind::Mkdir, Effect::Adds, mkdir)
            .about("Make a directory.")
            .takes(object(
                json!({ "path": path(), "recursive": flag("Make missing parents too; a \
                    directory that is there is no error") }),
                &["path"],
            ))
            .gives(ok()),
        make.tool("rm", "Remove a file", Kind::Remove, Effect::Replaces, rm)
            .about("Remove a file or an empty directory. What is removed is kept in a backup.")
            .takes(object(
                json!({ "path": path(), "recursive": flag("Remove a directory with all in it") }),
                &["path"],
            ))
            .gives(ok()),
        make.tool("rename", "Rename a file", Kind::Rename, Effect::ReplacesAgain, rename)
            .about(
                "Give a file or directory another name; a file of that name is replaced and \
                kept in a backup.",
            )
            .takes(object(json!({ "from": path(), "to": path() }), &["from", "to"]))
            .gives(ok()),
        make.tool("append_file", "Append to a file", Kind::Append, Effect::AddsAgain, append_file)
            .about("Add to the end of a file, which is created when missing.")
            .takes(object(json!({ "path": path(), "content": text() }), &["path", "content"]))
            .gives(ok()),
        make.tool("read_files", "Read files", Kind::Read, Effect::Reads, read_files)
            .about(
                "Read several files at once, 64 KiB of them together. A file that cannot be read \
                has an error instead of its content.",
            )
            .takes(object(json!({ "paths": paths }), &["paths"])),
        make.tool("glob", "Find files by name", Kind::Glob, Effect::Reads, glob)
            .about(
                "Paths that match a pattern such as `**/*.rs`, relative to the workspace and in \
                their order. What .gitignore files ignore, and .git, is left out. Where there are \
                more, the result has `next`: pass it as `after`.",
            )
            .takes(object(
                json!({
                    "pattern": text(),
                    "includeIgnored": ignored(),
                    "maxResults": most_results(RESULTS),
                    "after": after(),
                }),
                &["pattern"],
            ))
            .gives(page("matches", text())),
        make.tool("grep", "Find lines", Kind::Grep, Effect::Reads, grep)
            .about(
                "Lines that match a regular expression (a literal `.` is `\\.`), in all files \
                or beneath `path`. What .gitignore files ignore, and .git, is left out unless \
                `path` names it. Where there are more, the result has `next`: pass it as `after`.",
            )
            .takes(object(
                json!({
                    "pattern": text(),
                    "path": path(),
                    "ignoreCase": flag("Let case make no difference"),
                    "includeIgnored": ignored(),
                    "includeGlob": { "type": "string", "description": "Only files that match, by \
                        name or, with a `/`, by path below `path`; a file that `path` names is searched anyhow" },
                    "maxResults": most_results(LINES),
                    "after": after(),
                }),
                &["pattern"],
            ))
            .gives(page("matches", line)),
    ]
}

/// What a tool gives of which there may be more.
fn page(results: &str, of: impl Into<Value>) -> model::JsonObject {
    let of: Value = of.into();
    let properties = json!({
        results: { "type": "array", "items": of },
        "next": { "type": "string", "description": "There is more after this" },
        "note": { "type": "string" },
    });
    object(properties, &[results])
}

struct Maker<'n> {
    name: &'n Name,
}

impl Maker<'_> {
    fn tool(&self, name: &str, title: &str, kind: Kind, effect: Effect, run: Run) -> Tool {
        let name = format!("workspace__{}__{name}", self.name);
        let shown = model::Tool::new_with_raw(name, None, Arc::default())
            .with_title(title)
            .with_annotations(effect.annotations(title));
        Tool { shown, kind, run, known: None }
    }
}

impl Tool {
    fn about(mut self, text: &'static str) -> Self {
        self.shown.description = Some(text.into());
        self
    }

    fn takes(mut self, schema: model::JsonObject) -> Self {
        let properties = schema.get("properties").cloned().unwrap_or_default();
        self.known = Some(Arc::new(into_object(properties)));
        self.shown.input_schema = Arc::new(schema);
        self
    }

    fn gives(mut self, schema: model::JsonObject) -> Self {
        self.shown.output_schema = Some(Arc::new(schema));
        self
    }
}

fn ok() -> Answer {
    Answer::structured(json!({ "ok": true }))
}

fn write_file(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let path = call.path(Kind::Write, arguments.text("path")?)?;
    let content = arguments.text("content")?.as_bytes().to_vec();
    call.put(&Operation::Write { path, content })?;
    Ok(ok())
}

fn append_file(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let path = call.path(Kind::Append, arguments.text("path")?)?;
    let content = arguments.text("content")?.as_bytes().to_vec();
    call.put(&Operation::Append { path, content })?;
    Ok(ok())
}

fn edit_file(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let path = call.path(Kind::Edit, arguments.text("path")?)?;
    let old = arguments.text("oldText")?.to_owned();
    let new = arguments.text("newText")?.to_owned();
    call.put(&Operation::Edit { path, old, new })?;
    Ok(ok())
}

fn stat_entry(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let path = call.path(Kind::Stat, arguments.text("path")?)?;
    let entry = call.stat(path)?;
    if entry.kind == EntryKind::Other {
        return Err(Trouble::Said("that is neither a file nor a directory nor a link".to_owned()));
    }
    let mut stat = Map::new();
    let path = if entry.path.is_root() { "." } else { entry.path.as_str() };
    stat.insert("path".to_owned(), json!(path));
    stat.insert("type".to_owned(), json!(entry.kind.as_str()));
    stat.insert("size".to_owned(), json!(entry.size.unwrap_or(0)));
    stat.extend(modified(&entry).map(|time| ("mtime".to_owned(), json!(time))));
    Ok(Answer::structured(json!({ "stat": stat })))
}

/// When an entry's content changed, RFC 3339 in UTC.
pub(super) fn modified(entry: &Entry) -> Option<String> {
    let (seconds, nanoseconds) = entry.modified?;
    let time = Timestamp::new(seconds, i32::try_from(nanoseconds).ok()?).ok()?;
    // Milliseconds are what a `Date` has.
    Some(format!("{time:.3}"))
}

fn mkdir(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let path = call.path(Kind::Mkdir, arguments.text("path")?)?;
    let recursive = arguments.flag("recursive")?;
    call.put(&Operation::Mkdir { path, recursive })?;
    Ok(ok())
}

fn rm(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let path = call.path(Kind::Remove, arguments.text("path")?)?;
    let recursive = arguments.flag("recursive")?;
    call.put(&Operation::Remove { path, recursive })?;
    Ok(ok())
}

fn rename(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let from = call.path(Kind::Rename, arguments.text("from")?)?;
    let to = call.path(Kind::Rename, arguments.text("to")?)?;
    call.put(&Operation::Rename { from, to, replace: true })?;
    Ok(ok())
}
