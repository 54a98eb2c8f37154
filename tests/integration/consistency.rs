//! Properties of workspace, log and backup store after the gateway that follows
//! a crash or a fault has started and stopped again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use cap_std::fs::Dir;
use portcullis::{
    gateway::{BackupStore, Fingerprint, Workspace},
    model::WorkspacePath,
};
use portcullis_audit::Hash;
use serde_json::Value;

use crate::common::World;

/// Starts a gateway, which repairs the state, and checks that nothing is
/// missing and nothing left over. No other process may use the state. Returns
/// the number of backups of changes.
#[track_caller]
pub(crate) fn check(world: &World) -> usize {
    let next = world.fs(&["ls"]);
    assert_eq!(next.code, 0, "the next start needs help: {next:?}");
    world.run(&["audit", "verify"]).ok();
    assert_eq!(leftovers(world), Vec::<PathBuf>::new());
    let records = world.records();
    every_intent_is_resolved(&records);
    backups_are_complete(world, &records)
}

/// Files and directories that exist only while something is done.
pub(crate) fn leftovers(world: &World) -> Vec<PathBuf> {
    let mut found: Vec<_> = walk(&world.root())
        .into_iter()
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(".portcullis-"))
        .collect();
    let state = world.state();
    found.extend(walk(&state.join("backups/tmp")));
    found.extend(
        walk(&state.join("policies"))
            .into_iter()
            .filter(|path| path.extension().is_none_or(|extension| extension != "toml")),
    );
    found.extend(walk(&state.join("audit/quarantine")).into_iter().filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("incoming-") || name.ends_with(".pending")
    }));
    found.extend(
        walk(&state.join("gateways"))
            .into_iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == "lock")),
    );
    found
}

/// Everything beneath a directory; nothing when it is not there.
pub(crate) fn walk(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&entry.path()));
        }
        found.push(entry.path());
    }
    found.sort();
    found
}

#[track_caller]
fn every_intent_is_resolved(records: &[Value]) {
    let resolved: BTreeSet<_> = records.iter().filter_map(|record| record["of"].as_u64()).collect();
    for intent in records.iter().filter(|record| record["kind"] == "intent") {
        assert!(resolved.contains(&intent["seq"].as_u64().unwrap()), "not resolved: {intent}");
    }
}

/// Checks that each change has its pre-image in the backup store, byte for
/// byte; retention must have deleted nothing.
#[track_caller]
fn backups_are_complete(world: &World, records: &[Value]) -> usize {
    let state = Dir::from_std_file(fs::File::open(world.state()).unwrap());
    let backup_store = BackupStore::look(&state).unwrap().unwrap();
    let listing = backup_store.entries().unwrap();
    assert!(listing.damaged.is_empty(), "{:?}", listing.damaged);
    let entries: BTreeMap<_, _> =
        listing.entries.iter().map(|entry| (entry.id.to_string(), entry)).collect();
    for entry in &listing.entries {
        backup_store.verify(entry).unwrap();
    }
    let made: BTreeSet<_> = records
        .iter()
        .filter(|record| matches!(record["result"].as_str(), Some("ok" | "committed")))
        .filter_map(|record| record["of"].as_u64())
        .collect();
    let mut kept = 0;
    for intent in records.iter().filter(|record| record["kind"] == "intent") {
        if !made.contains(&intent["seq"].as_u64().unwrap()) {
            continue;
        }
        let Some(id) = intent["backup"].as_str() else {
            assert!(intent["before"].is_null(), "nothing was kept: {intent}");
            assert_ne!(intent["op"], "remove", "nothing was kept: {intent}");
            continue;
        };
        let entry = entries.get(id).unwrap_or_else(|| panic!("not in the backup store: {intent}"));
        assert_eq!(intent["before"], entry.sha256.to_string(), "{intent}");
        kept += 1;
    }
    kept
}

/// Returns the entries of a workspace: mode and content of files, targets of
/// links.
pub(crate) fn snapshot(root: &Path) -> BTreeMap<String, String> {
    walk(root)
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let look = fs::symlink_metadata(&path).unwrap();
            let what = if look.is_dir() {
                "directory".to_owned()
            } else if look.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else {
                let mode = look.permissions().mode() & 0o7777;
                format!("{mode:o} {}", String::from_utf8_lossy(&fs::read(&path).unwrap()))
            };
            (name, what)
        })
        .collect()
}

/// The records that some replies' receipts name are in the log.
#[track_caller]
pub(crate) fn receipts_are_kept(world: &World, receipts: &[Value]) {
    let lines: Vec<_> = walk(&world.state().join("audit"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .flat_map(|path| {
            let text = fs::read_to_string(path).unwrap();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    for receipt in receipts {
        let seq = usize::try_from(receipt["seq"].as_u64().unwrap()).unwrap();
        let line = lines.get(seq).unwrap_or_else(|| panic!("lost: {receipt}"));
        let leaf = portcullis_audit::Hash::leaf(line.as_bytes()).to_string();
        assert_eq!(receipt["leaf"], leaf, "another record than was promised: {line}");
    }
}

/// The hash of the directory at `path`, as backups have it.
pub(crate) fn tree_hash(world: &World, path: &str) -> Hash {
    let workspace = Workspace::open(&world.root()).unwrap();
    let path = WorkspacePath::parse(path).unwrap();
    match workspace.view().fingerprint(&path, u64::MAX).unwrap() {
        Fingerprint::Other(hash) => hash,
        other => panic!("{path}: {other:?}"),
    }
}
