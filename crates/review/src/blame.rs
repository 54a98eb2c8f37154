//! The changes of a file, also under its earlier names, and whether it is still as the log says.

use std::{collections::BTreeMap, io};

use portcullis_audit::Hash;

use super::{Filter, Log, MAX_READ, PathFilter, Scanned};
use crate::{
    change::Change,
    gateway::{
        Backup, BackupError, BackupId, BackupKind, BackupNodeKind, BackupStore, Fingerprint,
        Follow, Workspace, WorkspaceView,
    },
    model::{OperationKind, WorkspacePath},
    policy::ObjectKind,
};

/// Maximum number of renames through which a file is followed.
const MAX_NAMES: usize = 1000;

/// The log's, the backup store's and the disk's account of one path.
#[derive(Debug)]
pub struct Blame {
    /// The path, with links in its directories resolved.
    pub path: WorkspacePath,
    /// Its changes, newest first.
    pub versions: Vec<Version>,
    /// The comparison of the disk with the log.
    pub state: State,
    /// The parts of the log that could not be read.
    pub scanned: Scanned,
}

/// One change of the path.
#[derive(Debug)]
pub struct Version {
    /// The change.
    pub change: Change,
    /// The file's name at that time, if it was a different one.
    pub name: Option<WorkspacePath>,
    /// The content that the change replaced, if the backup store still has it.
    pub kept: Option<VersionBackup>,
}

/// A backup of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionBackup {
    /// The backup.
    pub id: BackupId,
    /// The kind of the original; a tree if the file was part of a directory.
    pub kind: BackupKind,
    /// Bytes of content.
    pub bytes: u64,
}

/// Results of comparing the disk with the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The content is as recorded.
    Same(Hash),
    /// The content differs.
    Differs {
        /// The recorded hash.
        recorded: Hash,
        /// The hash on disk.
        found: Hash,
    },
    /// Nothing is there, but the log records a content of exactly this path.
    Missing,
    /// Nothing is there, as recorded.
    Removed,
    /// Something is there, but the log records its removal.
    Recreated,
    /// Something is there, but no record has its content.
    NotRecorded,
    /// Nothing is there, and no record says that anything was.
    Unknown,
    /// The entry is not a regular file.
    NotAFile,
    /// The workspace of the log is not available.
    NotChecked,
}

impl State {
    /// Returns the name for programs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Same(_) => "same",
            Self::Differs { .. } => "differs",
            Self::Missing => "missing",
            Self::Removed => "removed",
            Self::Recreated => "recreated",
            Self::NotRecorded => "notRecorded",
            Self::Unknown => "unknown",
            Self::NotAFile => "notAFile",
            Self::NotChecked => "notChecked",
        }
    }
}

/// Reasons why a file's changes could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum BlameError {
    /// The log cannot be read.
    #[error("cannot read the audit log: {0}")]
    Log(#[from] io::Error),
    /// The log has more changes of the path, or renames, than are held in memory.
    #[error(
        "the log has more changes of the path, or renames of any, than are looked at together: those \
         from record {0} on were not looked at"
    )]
    TooMany(u64),
    /// The path cannot be read.
    #[error("cannot look at the path: {0}")]
    Workspace(#[from] crate::gateway::WorkspaceError),
    /// The backup store cannot be read.
    #[error("cannot read the backups: {0}")]
    Backups(#[from] BackupError),
}

/// The state of the path on disk.
enum FileState {
    Nothing,
    File(Hash),
    Other,
    NotChecked,
}

/// Determines the changes of the file at `path` in `workspace`, or without a workspace from the log
/// alone.
///
/// # Errors
/// If the log, the backup store or the workspace cannot be read.
pub fn blame(
    log: &Log,
    backup_store: Option<&BackupStore>,
    workspace: Option<&Workspace>,
    path: &WorkspacePath,
) -> Result<Blame, BlameError> {
    let (path, found) = match workspace {
        Some(workspace) => look(workspace.view(), path)?,
        None => (path.clone(), FileState::NotChecked),
    };
    let renames = Filter { ops: vec!["rename".to_owned()], ..Filter::default() };
    let (renames, mut scanned) = log.changes(&renames)?;
    let spans = names(&path, &renames);
    let mut paths = Vec::new();
    for span in &spans {
        let above = span.name.ancestors();
        paths.extend(above.iter().chain([&span.name]).map(|p| PathFilter::Exact(shown(p))));
    }
    let (changes, more) = log.changes(&Filter { paths, ..Filter::default() })?;
    if more.damaged > scanned.damaged {
        scanned = more;
    }
    let mut cached = CachedBackups { backup_store, of: BTreeMap::new() };
    let mut versions = Vec::new();
    for change in changes.into_iter().rev() {
        let Some(span) = spans.iter().find(|span| span.holds(change.seq)) else { continue };
        // The rename that begins a span belongs to it by the new name.
        if change.is_nothing() || !touches(&change, &span.name) {
            continue;
        }
        let kept = cached.kept(&change)?;
        let name = (span.name != path).then(|| span.name.clone());
        versions.push(Version { change, name, kept });
    }
    let state = compare(&mut cached, &path, &versions, found)?;
    Ok(Blame { path, versions, state, scanned })
}

/// Returns the canonical path and the state on disk. Other processes may change it meanwhile.
fn look(
    workspace: WorkspaceView<'_>,
    path: &WorkspacePath,
) -> Result<(WorkspacePath, FileState), BlameError> {
    let resolved = workspace.resolve(path, Follow::Yes)?;
    let path = resolved.path().clone();
    let found = match resolved.object().kind {
        ObjectKind::Missing => FileState::Nothing,
        ObjectKind::File => hash_of(workspace, &path)?,
        _ => FileState::Other,
    };
    Ok((path, found))
}

/// Formats a path as records do.
fn shown(path: &WorkspacePath) -> String {
    if path.is_root() { ".".to_owned() } else { path.as_str().to_owned() }
}

fn hash_of(workspace: WorkspaceView<'_>, path: &WorkspacePath) -> Result<FileState, BlameError> {
    Ok(match workspace.fingerprint(path, MAX_READ)? {
        Fingerprint::Missing => FileState::Nothing,
        Fingerprint::File(hash, _) => FileState::File(hash),
        Fingerprint::Other(_) | Fingerprint::Unsupported => FileState::Other,
    })
}

/// A range of records in which a file had one name.
struct Span {
    name: WorkspacePath,
    /// The first record, which may be the rename to the name.
    from: u64,
    /// The record after the last one.
    until: u64,
}

impl Span {
    fn holds(&self, seq: u64) -> bool {
        (self.from..self.until).contains(&seq)
    }
}

/// Returns the names of the file that is now at `path`, newest first.
fn names(path: &WorkspacePath, renames: &[Change]) -> Vec<Span> {
    let mut spans = Vec::new();
    let (mut name, mut until) = (path.clone(), u64::MAX);
    while spans.len() < MAX_NAMES {
        let came = renames.iter().rev().find_map(|change| {
            let to = change.to.as_ref()?;
            let other = change.exchange.then(|| name.rebase(&change.path, to)).flatten();
            let before = other.or_else(|| name.rebase(to, &change.path));
            let before = before.filter(|_| change.seq < until && change.is_made())?;
            Some((change.seq, before))
        });
        let Some((seq, before)) = came else { break };
        spans.push(Span { name, from: seq, until });
        (name, until) = (before, seq);
    }
    spans.push(Span { name, from: 0, until });
    spans
}

/// True if the change was of the object at `name`, by itself or with a directory above it.
fn touches(change: &Change, name: &WorkspacePath) -> bool {
    let above = |path: &WorkspacePath| name.is_within(path);
    match change.operation {
        OperationKind::Rename => above(&change.path) || change.to.as_ref().is_some_and(above),
        OperationKind::Remove | OperationKind::Restore => above(&change.path),
        _ => change.path == *name,
    }
}

/// A cache of the backup store's entries by path.
struct CachedBackups<'v> {
    backup_store: Option<&'v BackupStore>,
    of: BTreeMap<String, Vec<Backup>>,
}

impl CachedBackups<'_> {
    fn entry(&mut self, path: &WorkspacePath, id: BackupId) -> Result<Option<&Backup>, BlameError> {
        let Some(backup_store) = self.backup_store else { return Ok(None) };
        let key = path.as_str().to_owned();
        if !self.of.contains_key(&key) {
            self.of.insert(key.clone(), backup_store.entries_of(path)?.entries);
        }
        let entries = self.of.get(&key).map(Vec::as_slice).unwrap_or_default();
        Ok(entries.iter().find(|entry| entry.id == id))
    }

    fn kept(&mut self, change: &Change) -> Result<Option<VersionBackup>, BlameError> {
        let Some(id) = change.backup else { return Ok(None) };
        // An entry that a rename replaced was at its new path.
        let at = change.to.as_ref().unwrap_or(&change.path).clone();
        let mut found = self.entry(&at, id)?.map(kept);
        if found.is_none() {
            found = self.entry(&change.path, id)?.map(kept);
        }
        Ok(found)
    }

    /// Returns the hash that the file had in a restored directory.
    fn within(
        &mut self,
        change: &Change,
        name: &WorkspacePath,
    ) -> Result<Option<Hash>, BlameError> {
        let (Some(backup_store), Some(id)) = (self.backup_store, change.restored) else {
            return Ok(None);
        };
        let Ok(entry) = backup_store.find(&id.to_string()) else { return Ok(None) };
        if entry.kind != BackupKind::Tree {
            return Ok(None);
        }
        let mut tree = backup_store.tree(&entry)?.at(change.path.clone());
        while let Some(node) = tree.next_node()? {
            let at = tree.path(&node);
            if node.kind == BackupNodeKind::File && at.is_ok_and(|at| at == *name) {
                return Ok(node.sha256);
            }
        }
        Ok(None)
    }
}

fn kept(entry: &Backup) -> VersionBackup {
    VersionBackup { id: entry.id, kind: entry.kind, bytes: entry.bytes }
}

/// Compares the disk with the newest change that records a state.
fn compare(
    cached: &mut CachedBackups<'_>,
    path: &WorkspacePath,
    versions: &[Version],
    found: FileState,
) -> Result<State, BlameError> {
    let mut recorded = None;
    let (mut gone, mut was_there) = (false, false);
    for Version { change, name, .. } in versions {
        if !change.is_made() {
            continue;
        }
        let name = name.as_ref().unwrap_or(path);
        match change.operation {
            OperationKind::Remove => gone = true,
            OperationKind::Rename if name.is_within(&change.path) && !change.exchange => {
                gone = true
            }
            // A rename keeps the content, which an earlier change has.
            OperationKind::Rename => continue,
            OperationKind::SetAttributes => continue,
            OperationKind::Restore if change.path != *name => {
                recorded = cached.within(change, name)?;
            }
            _ => (recorded, was_there) = (change.after, true),
        }
        break;
    }
    Ok(match (found, recorded) {
        (FileState::NotChecked, _) => State::NotChecked,
        (FileState::Nothing, _) if gone => State::Removed,
        (FileState::File(_) | FileState::Other, _) if gone => State::Recreated,
        (FileState::Nothing, Some(_)) => State::Missing,
        (FileState::Nothing, None) if was_there => State::Missing,
        (FileState::Nothing, None) => State::Unknown,
        (FileState::File(found), Some(recorded)) if found == recorded => State::Same(found),
        (FileState::File(found), Some(recorded)) => State::Differs { recorded, found },
        (FileState::File(_), None) => State::NotRecorded,
        (FileState::Other, _) => State::NotAFile,
    })
}
