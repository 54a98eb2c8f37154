//! Bounds that a policy no longer sets for the policies that extend it.
//!
//! An absent list or setting sets no bound, and its default applies. Where the stated value is the
//! same as the default, the policy itself decides as before, but a policy that extends it may be
//! laxer than it was.

use std::collections::BTreeSet;

use toml::de::{DeTable, DeValue};

use crate::{
    compare::SettingChange,
    model::{Access, OperationKind},
    outline::OutlineFile,
};

/// The settings that bound what a policy that extends the file can set, each with the laxest value,
/// which bounds nothing. Limits without a default are left out: their absence is a difference
/// between the policies themselves.
const SETTINGS: [(&str, &str); 31] = [
    ("mode", "observe"),
    ("network.mode", "observe"),
    ("network.credentials", ""),
    ("files.maxReadSize", ""),
    ("files.maxWriteSize", ""),
    ("files.binary.read", "base64"),
    ("files.binary.write", "base64"),
    ("files.symlinks", "beneath"),
    ("files.hardlinks.read", "allow"),
    ("files.hardlinks.write", "allow"),
    ("mount.maxReadSize", ""),
    ("mount.maxWriteSize", ""),
    ("mount.binary.read", "allow"),
    ("mount.binary.write", "allow"),
    ("scratch.paths", ""),
    ("scratch.maxSize", ""),
    ("scratch.keep", "true"),
    ("git.repository", "workspace"),
    ("git.history", "allow"),
    ("agent.env", ""),
    ("agent.read", ""),
    ("agent.write", ""),
    ("agent.terminal", "allow"),
    ("agent.limits.processes", ""),
    ("secrets.maxScanTime", ""),
    ("secrets.onRead", "warn"),
    ("secrets.onWrite", "warn"),
    ("extensions.allow.read", ""),
    ("extensions.allow.list", ""),
    ("extensions.allow.write", ""),
    ("extensions.allow.remove", ""),
];

/// Returns the bounds that a file of the old policy sets, and no file of the new one.
pub(super) fn lost_bounds(old: &[OutlineFile], new: &[OutlineFile]) -> Vec<SettingChange> {
    let (before, after) = (parsed(old), parsed(new));
    let settings = SETTINGS.into_iter().filter_map(|(key, laxest)| {
        let stated = before.iter().find_map(|file| stated(file, key, laxest))?;
        let is_kept = after.iter().any(|file| self::stated(file, key, laxest).is_some());
        (!is_kept).then(|| lost(key, stated))
    });
    let mut found: Vec<_> = settings.collect();
    let lists = [
        ("allowedPaths.read", Access::Read),
        ("allowedPaths.list", Access::List),
        ("allowedPaths.write", Access::Write),
        ("allowedPaths.remove", Access::Remove),
    ];
    for (key, access) in lists {
        let (before, after) = (bounded(old, access), bounded(new, access));
        let gone: Vec<_> = before.difference(&after).copied().collect();
        if !gone.is_empty() {
            found.push(lost(key, format!("a bound of {}", gone.join(", "))));
        }
    }
    found
}

fn lost(key: &'static str, old: String) -> SettingChange {
    let new = "no bound for policies that extend this one".to_owned();
    SettingChange { key, old, new, opens: true, decides: true }
}

/// Returns the operations with this access that some file bounds.
fn bounded(files: &[OutlineFile], access: Access) -> BTreeSet<&'static str> {
    let bounds =
        |operation: &OperationKind| files.iter().any(|file| file.bounds(*operation, access));
    OperationKind::ALL.into_iter().filter(bounds).map(OperationKind::as_str).collect()
}

/// A file's text, and the table that it is.
type Parsed<'t> = (&'t str, DeTable<'t>);

fn parsed(files: &[OutlineFile]) -> Vec<Parsed<'_>> {
    let parse = |text| (text, DeTable::parse_recoverable(text).0.into_inner());
    files.iter().map(|file| parse(&*file.text)).collect()
}

/// Returns a setting as it is written in the file, unless it is absent or has the laxest value.
fn stated((text, root): &Parsed<'_>, key: &str, laxest: &str) -> Option<String> {
    let (tables, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table = root;
    for part in tables.split('.').filter(|part| !part.is_empty()) {
        table = table.get(part)?.get_ref().as_table()?;
    }
    let value = table.get(name)?;
    let text = text.get(value.span())?;
    let is_laxest = match value.get_ref() {
        DeValue::String(word) => word == laxest,
        DeValue::Boolean(_) => text == laxest,
        _ => false,
    };
    (!is_laxest).then(|| text.split_whitespace().collect::<Vec<_>>().join(" "))
}
