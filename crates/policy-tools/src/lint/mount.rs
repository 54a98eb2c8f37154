//! Statements that do not apply to the mount: bounds of `[files]` and `[limits]` that `[mount]`
//! does not have, and rules about operations that no program of a mount requests.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::{finding::Finding, subject::Subject};
use crate::{
    model::OperationKind,
    outline::{Statement, StatementKind},
};

/// Bounds that do not apply at the mount, each with the key of `[mount]` that does. The rate of
/// operations is left out: it bounds no damage, and programs do not repeat what it denies.
const BOUNDS: [(&str, &str); 7] = [
    ("files.maxReadSize", "maxReadSize"),
    ("files.maxWriteSize", "maxWriteSize"),
    ("files.binary.read", "binary.read"),
    ("files.binary.write", "binary.write"),
    ("limits.bytesWritten", "bytesWritten"),
    ("limits.filesRemoved", "filesRemoved"),
    ("limits.denials", "denials"),
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
    let Some(text) = subject.outline.get(file).map(|file| &file.text) else { return };
    let (root, _) = DeTable::parse_recoverable(text);
    let is_in_mount = |key: &str| {
        subject.outline.iter().any(|file| {
            let (root, _) = DeTable::parse_recoverable(&file.text);
            stated(root.get_ref(), &format!("mount.{key}")).is_some()
        })
    };
    let unbounded = BOUNDS.into_iter().filter_map(|(bound, key)| {
        let (span, value) = stated(root.get_ref(), bound)?;
        // `binary` with another word bounds nothing.
        let is_bound =
            value.as_str().is_none_or(|word| !key.starts_with("binary.") || word == "deny");
        (is_bound && !is_in_mount(key)).then_some((span, bound, key))
    });
    let (mut bounds, mut keys, mut first) = (Vec::new(), Vec::new(), None);
    for (span, bound, key) in unbounded {
        bounds.push(format!("`{bound}`"));
        keys.push(format!("`{key}`"));
        first.get_or_insert(span);
    }
    let Some(span) = first else { return };
    found.push(Finding {
        id: "mount-unbounded",
        file,
        span,
        message: format!(
            "at the mount, where programs of `exec`, `shell` and `run` read and write files, {} \
             {} not hold, and `[mount]` does not say what does",
            bounds.join(", "),
            if bounds.len() == 1 { "does" } else { "do" }
        ),
        suggestion: format!("give `[mount]` its own {}", keys.join(", ")),
    });
}

/// Returns the place of a key and its value: `limits.denials`.
fn stated<'t, 'i>(root: &'t DeTable<'i>, key: &str) -> Option<(Range<usize>, &'t DeValue<'i>)> {
    let (tables, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table = root;
    for part in tables.split('.').filter(|part| !part.is_empty()) {
        table = table.get(part)?.get_ref().as_table()?;
    }
    let (at, value) = table.get_key_value(name)?;
    Some((at.span(), value.get_ref()))
}
