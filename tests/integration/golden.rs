//! Golden files of the contracts that users and their programs rely on. A change of one is
//! intended, and goes with its document and its line in CHANGELOG.md.
//!
//! `PORTCULLIS_GOLDEN=write cargo test golden` writes them anew.

mod commands;
mod keys;
mod records;
mod state;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::Value;

/// Compares `found` with `tests/golden/NAME`.
#[track_caller]
pub(crate) fn golden(name: &str, found: &str) {
    same(&format!("tests/golden/{name}"), found);
}

/// Compares `found` with the file at `path`, from the sources' root.
#[track_caller]
pub(crate) fn same(path: &str, found: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("PORTCULLIS_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&file, found).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    let changes: Vec<_> = similar_lines(&expected, found);
    assert!(
        changes.is_empty(),
        "{path} is stale; run this test with `PORTCULLIS_GOLDEN=write` to update it:\n{}",
        changes.join("\n")
    );
}

/// The lines that only one of the texts has.
fn similar_lines(old: &str, new: &str) -> Vec<String> {
    if old == new {
        return Vec::new();
    }
    let (before, after): (BTreeSet<_>, BTreeSet<_>) =
        (old.lines().collect(), new.lines().collect());
    let gone = before.difference(&after).map(|line| format!("- {line}"));
    let come = after.difference(&before).map(|line| format!("+ {line}"));
    let mut changes: Vec<_> = gone.chain(come).collect();
    if changes.is_empty() {
        changes.push("the order of the lines".to_owned());
    }
    changes
}

/// The shapes of JSON values under headings: each member's path and its types.
#[derive(Default)]
pub(crate) struct Shapes(BTreeMap<String, BTreeMap<String, BTreeSet<&'static str>>>);

impl Shapes {
    pub(crate) fn add(&mut self, heading: &str, value: &Value) {
        shape(value, "", self.0.entry(heading.to_owned()).or_default());
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (heading, members) in &self.0 {
            text += &format!("{heading}\n");
            for (path, types) in members {
                let types: Vec<_> = types.iter().copied().collect();
                text += &format!("    {path}: {}\n", types.join(" | "));
            }
        }
        text
    }
}

fn shape(value: &Value, path: &str, members: &mut BTreeMap<String, BTreeSet<&'static str>>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(list) => {
            list.iter().for_each(|item| shape(item, &format!("{path}[]"), members));
            "array"
        }
        Value::Object(object) => {
            for (key, item) in object {
                let parts = key.split('/').map(|part| if is_hash(part) { "HASH" } else { part });
                let key = parts.collect::<Vec<_>>().join("/");
                let dot = if path.is_empty() { "" } else { "." };
                shape(item, &format!("{path}{dot}{key}"), members);
            }
            "object"
        }
    };
    if !path.is_empty() {
        members.entry(path.to_owned()).or_default().insert(kind);
    }
}

fn is_hash(text: &str) -> bool {
    text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
