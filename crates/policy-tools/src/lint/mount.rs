//! Statements that do not apply to the mount: bounds of `[files]` and `[limits]` in a policy without
//! `[mount]`, and rules about operations that no program of a mount requests.

use toml::de::DeTable;

use super::{finding::Finding, subject::Subject};
use crate::{
    model::OperationKind,
    outline::{OutlineFile, Statement, StatementKind},
};

/// Sections and those of their keys that `[mount]` has, too.
const BOUNDS: [(&str, &[&str]); 2] = [
    ("files", &["maxReadSize", "maxWriteSize", "binary"]),
    ("limits", &["operationsPerSecond", "bytesWritten", "filesRemoved", "denials"]),
];

/// Returns the rules that are about such operations alone. They are no findings: other transports
/// request these operations.
pub fn not_in_mount<'o>(subject: Subject<'o>) -> Vec<&'o Statement> {
    use OperationKind as O;
    let is_elsewhere = |operation| {
        matches!(operation, O::Stat | O::Append | O::Edit | O::Glob | O::Grep | O::Watch)
    };
    let statements = subject.outline.iter().flat_map(|file| &file.statements);
    let rules = statements.filter(|statement| matches!(statement.kind, StatementKind::Rule(_)));
    rules.filter(|rule| rule.actions().all(|(operation, _)| is_elsewhere(operation))).collect()
}

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let says_of_mount = |file: &OutlineFile| {
        let (root, _) = DeTable::parse_recoverable(&file.text);
        root.get_ref().contains_key("mount")
    };
    let Some(text) = subject.outline.get(file).map(|file| &file.text) else { return };
    if subject.outline.iter().any(says_of_mount) {
        return;
    }
    let (root, _) = DeTable::parse_recoverable(text);
    let (mut stated, mut keys, mut span) = (Vec::new(), Vec::new(), None);
    for (section, bounds) in BOUNDS {
        let Some(table) = root.get_ref().get(section).and_then(|table| table.get_ref().as_table())
        else {
            continue;
        };
        for key in bounds {
            let Some((at, _)) = table.get_key_value(*key) else { continue };
            stated.push(format!("`{section}.{key}`"));
            keys.push(format!("`{key}`"));
            span.get_or_insert_with(|| at.span());
        }
    }
    let Some(span) = span else { return };
    found.push(Finding {
        id: "mount-unbounded",
        file,
        span,
        message: format!(
            "at the mount, where programs of `exec`, `shell` and `run` read and write files, {} \
             {} not hold, and no `[mount]` says what does",
            stated.join(", "),
            if stated.len() == 1 { "does" } else { "do" }
        ),
        suggestion: format!("add `[mount]` with its own {}", keys.join(", ")),
    });
}
