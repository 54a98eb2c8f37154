//! The tools of the workspace file system module, and three more: `rename`,
//! `append_file` and `read_files`. Bytes are base64.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use rmcp::model;
use serde_json::{Map, Value, json};

use crate::{
    model::{
        Encoding, GlobQuery, GrepQuery, LineRange, Operation, OperationKind as Kind, WorkspacePath,
    },
    ops::{Content, Entry, EntryKind},
};

use super::{
    super::{
        answer::{self, Answer, Trouble},
        arguments::Arguments,
        call::Call,
    },
    Effect, Name, Run, Tool, into_object, object,
};

/// Most files of one `read_files`.
const MOST_FILES: usize = 100;

/// Every tool, the searches among them.
pub(super) fn tools(name: &Name) -> Vec<Tool> {
    let path = || json!({ "type": "string", "description": "Relative to the workspace" });
    let flag = |what: &str| json!({ "type": "boolean", "default": false, "description": what });
    let text = || json!({ "type": "string" });
    let paths = json!({
        "type": "array",
        "items": { "type": "string" },
        "minItems": 1,
        "maxItems": MOST_FILES,
    });
    let bytes = json!({ "type": "string", "contentEncoding": "base64" });
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
    let file = json!({
        "type": "object",
        "properties": {
            "path": text(),
            "content": bytes,
            "text": text(),
            "error": { "type": "object" },
        },
        "required": ["path"],
        "additionalProperties": false,
    });
    let number = json!({ "type": "integer", "minimum": 1 });
    let line = object(
        json!({
            "path": text(),
            "lineNumber": number,
            "line": text(),
            "cut": { "type": "boolean", "description": "The line is only a piece of a longer one" },
        }),
        &["path", "lineNumber", "line"],
    );
    let make = Maker { name };
    vec![
        make.tool("read_file", "Read a file", Kind::Read, Effect::Reads, read_file)
            .about(
                "Read a file: its bytes as base64, and its text. Secrets may be replaced by \
                placeholders, which stand for them when written back.",
            )
            .takes(object(json!({ "path": path() }), &["path"]))
            .gives(object(json!({ "content": bytes, "text": text() }), &["content", "text"])),
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
            .about("List what is directly in a directory; `.` is the workspace.")
            .takes(object(json!({ "path": path() }), &["path"]))
            .gives(object(json!({ "entries": { "type": "array", "items": entry } }), &["entries"])),
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
                "Read several files at once. A file that cannot be read has an error instead \
                of its content.",
            )
            .takes(object(json!({ "paths": paths }), &["paths"]))
            .gives(object(json!({ "files": { "type": "array", "items": file } }), &["files"])),
        make.tool("glob", "Find files by name", Kind::Glob, Effect::Reads, glob)
            .about("Paths that match a pattern such as `**/*.rs`, relative to the workspace.")
            .takes(object(json!({ "pattern": text() }), &["pattern"]))
            .gives(object(
                json!({ "matches": { "type": "array", "items": { "type": "string" } } }),
                &["matches"],
            )),
        make.tool("grep", "Find lines", Kind::Grep, Effect::Reads, grep)
            .about(
                "Lines that match a regular expression (a literal `.` is `\\.`), in all files \
                or beneath `path`.",
            )
            .takes(object(
                json!({
                    "pattern": text(),
                    "path": path(),
                    "ignoreCase": flag("Let case make no difference"),
                    "includeGlob": { "type": "string", "description": "Only files that match, by \
                        name or, with a `/`, by path below `path`; a file that `path` names is searched anyhow" },
                    "maxResults": { "type": "integer", "minimum": 1 },
                }),
                &["pattern"],
            ))
            .gives(object(json!({ "matches": { "type": "array", "items": line } }), &["matches"])),
    ]
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

fn read_file(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let content = call.read(arguments.text("path")?, LineRange::default(), Encoding::Base64)?;
    let text = shown_text(&content);
    let (bytes, decoded) = decode(content);
    Ok(Answer::with_text(text, json!({ "content": bytes, "text": decoded })))
}

/// Base64 and text of a content.
fn decode(content: Content) -> (String, String) {
    let bytes = STANDARD.encode(&content.bytes);
    let text = String::from_utf8(content.bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    (bytes, text)
}

/// What a model is shown of a content.
fn shown_text(content: &Content) -> String {
    match str::from_utf8(&content.bytes) {
        Ok(text) if content.text => text.to_owned(),
        _ => format!("{} bytes that are no text", content.bytes.len()),
    }
}

fn read_files(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let paths = arguments.texts("paths")?;
    if paths.is_empty() || paths.len() > MOST_FILES {
        let why = format!("`paths` must have 1 to {MOST_FILES} paths");
        return Err(Trouble::Arguments(why));
    }
    let mut files = Vec::new();
    let mut shown = Vec::new();
    let mut bytes = 0;
    for path in paths {
        match call.read_also(path, bytes, Encoding::Base64) {
            Ok(content) => {
                bytes += content.bytes.len();
                shown.push(format!("{path}:\n{}", shown_text(&content)));
                let (bytes, text) = decode(content);
                files.push(json!({ "path": path, "content": bytes, "text": text }));
            }
            Err(Trouble::Gate(error)) if error.receipt().is_some() && !call.is_cancelled() => {
                call.receipts.borrow_mut().extend(error.receipt().cloned());
                shown.push(format!("{path}: {error}"));
                files.push(json!({ "path": path, "error": answer::describe(&error) }));
            }
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(Answer::with_text(shown.join("\n---\n"), json!({ "files": files })))
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

fn ls(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let path = call.path(Kind::List, arguments.text("path")?)?;
    let listed = call.list(path)?;
    let entries: Vec<_> = listed.entries.iter().filter_map(file_entry).collect();
    Ok(Answer::structured(json!({ "entries": entries })))
}

/// An entry as the module has it, which knows no FIFOs and devices: those are
/// not served anyhow.
fn file_entry(entry: &Entry) -> Option<Value> {
    if entry.kind == EntryKind::Other {
        return None;
    }
    let mut object = Map::new();
    object.insert("name".to_owned(), json!(entry.path.file_name().unwrap_or(".")));
    object.insert("path".to_owned(), json!(entry.path.as_str()));
    object.insert("type".to_owned(), json!(entry.kind.as_str()));
    object.extend(entry.size.map(|size| ("size".to_owned(), json!(size))));
    Some(Value::Object(object))
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

fn glob(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let pattern = arguments.text("pattern")?.to_owned();
    let query = GlobQuery { pattern, ..GlobQuery::default() };
    let found = call.glob(WorkspacePath::root(), query)?;
    let served = found.entries.iter().filter(|entry| entry.kind != EntryKind::Other);
    let matches: Vec<_> = served.map(|entry| entry.path.as_str()).collect();
    Ok(Answer::structured(json!({ "matches": matches })).of_search(&found.summary))
}

fn grep(call: &Call<'_>, arguments: &Arguments) -> Result<Answer, Trouble> {
    let max_results = arguments.count("maxResults")?;
    if max_results == Some(0) {
        let why = "`maxResults` must be at least 1";
        return Err(Trouble::Arguments(why.to_owned()));
    }
    let query = GrepQuery {
        pattern: arguments.text("pattern")?.to_owned(),
        ignore_case: arguments.flag("ignoreCase")?,
        include: arguments.optional_text("includeGlob")?.map(str::to_owned),
        max_results,
        ..GrepQuery::default()
    };
    let path = call.path(Kind::Grep, arguments.optional_text("path")?.unwrap_or("."))?;
    let found = call.grep(path, query)?;
    let matches: Vec<_> = found
        .files
        .iter()
        .flat_map(|file| {
            file.lines.iter().filter(|line| line.matches).map(|line| {
                let (path, number) = (file.path.as_str(), line.number);
                match line.cut {
                    true => json!({ "path": path, "lineNumber": number, "line": line.text, "cut": true }),
                    false => json!({ "path": path, "lineNumber": number, "line": line.text }),
                }
            })
        })
        .collect();
    Ok(Answer::structured(json!({ "matches": matches })).of_search(&found.summary))
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
