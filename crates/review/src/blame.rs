//! The changes of a file, also under its earlier names, and whether it is still as the log says.

use std::{collections::BTreeMap, io, mem};

use portcullis_audit::Hash;

use super::{Filter, Log, MAX_READ, PathFilter, Scanned, scan::MAX_STORED_BYTES};
use crate::{
    change::Change,
    gateway::{
        Backup, BackupError, BackupId, BackupKind, BackupNodeKind, BackupStore, Fingerprint,
        Follow, Workspace, WorkspaceError, WorkspaceView,
    },
    model::{OperationKind, WorkspacePath},
    policy::ObjectKind,
};

/// The log's, the backup store's and the disk's account of one path.
#[derive(Debug)]
pub struct Blame {
    /// The path, with links in its directories resolved.
    pub path: WorkspacePath,
    /// The reason why the files were not looked at, if there is one.
    pub not_checked: Option<String>,
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
    /// The workspace of the log is not available, or something in it cannot be looked at.
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
        "the log has more changes of the path, or renames of any, than are looked at together: there \
         is no room for record {0}"
    )]
    TooMany(u64),
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

/// Determines the changes of the file at `path` in `workspace`. Without a workspace, and for a path
/// that cannot be looked at, it determines them from the log alone.
///
/// # Errors
/// If the log or the backup store cannot be read.
pub fn blame(
    log: &Log,
    backup_store: Option<&BackupStore>,
    workspace: Option<&Workspace>,
    path: &WorkspacePath,
) -> Result<Blame, BlameError> {
    let (path, found) = match workspace {
        Some(workspace) => look(workspace.view(), path),
        None => (path.clone(), Ok(FileState::NotChecked)),
    };
    let (found, not_checked) = match found {
        Ok(found) => (found, None),
        // An agent can make it so, and would hide from the log what it did.
        Err(error) => (FileState::NotChecked, Some(error.to_string())),
    };
    let renames = Filter { ops: vec!["rename".to_owned()], ..Filter::default() };
    let (renames, mut scanned) = log.changes(&renames, |_| true)?;
    let spans = names(&path, renames)?;
    let related = spans.iter().map(|span| span.name.as_str().to_owned()).collect();
    let related = Filter { paths: vec![PathFilter::Related(related)], ..Filter::default() };
    let name_at = |seq| spans.get(spans.partition_point(|span| span.from > seq)).map(|s| &s.name);
    let (changes, more) = log.changes(&related, |change| {
        // The rename that begins a span belongs to it by the new name.
        name_at(change.seq).is_some_and(|name| touches(change, name))
    })?;
    if more.damaged > scanned.damaged {
        scanned = more;
    }
    let mut cached = CachedBackups { backup_store, of: BTreeMap::new() };
    let mut versions = Vec::new();
    for change in changes.into_iter().rev() {
        let name = name_at(change.seq).filter(|name| **name != path).cloned();
        if change.is_nothing() {
            continue;
        }
        let kept = cached.kept(&change)?;
        versions.push(Version { change, name, kept });
    }
    let state = compare(&mut cached, &path, &versions, found)?;
    Ok(Blame { path, not_checked, versions, state, scanned })
}

/// Returns the canonical path, or `path` if there is none, and the state on disk. A link at the
/// path itself is not followed: an agent that replaced the file with it would have the changes of
/// another file reported. Other processes may change the workspace meanwhile.
fn look(
    workspace: WorkspaceView<'_>,
    path: &WorkspacePath,
) -> (WorkspacePath, Result<FileState, WorkspaceError>) {
    let resolved = match workspace.resolve(path, Follow::No) {
        Ok(resolved) => resolved,
        Err(error) => return (path.clone(), Err(error)),
    };
    let path = resolved.path().clone();
    let found = match resolved.object().kind {
        ObjectKind::Missing => Ok(FileState::Nothing),
        ObjectKind::File => hash_of(workspace, &path),
        _ => Ok(FileState::Other),
    };
    (path, found)
}

fn hash_of(
    workspace: WorkspaceView<'_>,
    path: &WorkspacePath,
) -> Result<FileState, WorkspaceError> {
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
}

/// Returns the names of the file that is now at `path`, newest first.
///
/// # Errors
/// If there are too many to be held: without the oldest ones, who made the file is not known.
fn names(path: &WorkspacePath, renames: Vec<Change>) -> Result<Vec<Span>, BlameError> {
    let (mut spans, mut name, mut bytes) = (Vec::new(), path.clone(), 0);
    for change in renames.into_iter().rev().filter(Change::is_made) {
        let Some(to) = &change.to else { continue };
        let other = change.exchange.then(|| name.rebase(&change.path, to)).flatten();
        let Some(before) = other.or_else(|| name.rebase(to, &change.path)) else { continue };
        bytes += name.as_str().len();
        if bytes > MAX_STORED_BYTES {
            return Err(BlameError::TooMany(change.seq));
        }
        spans.push(Span { name: mem::replace(&mut name, before), from: change.seq });
    }
    spans.push(Span { name, from: 0 });
    Ok(spans)
}

/// True if the change was of the object at `name`, by itself or with a directory above it, or counts
/// it among the parents that it made. Of two changes that count it only one made it, and the log does
/// not say which.
fn touches(change: &Change, name: &WorkspacePath) -> bool {
    let above = |path: &WorkspacePath| name.is_within(path);
    match change.operation {
        _ if change.makes_directory(name) => true,
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
            // The content is that of an entry in it.
            _ if change.makes_directory(name) => was_there = true,
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

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "writes a log of its own")]
mod tests {
    use portcullis_audit::Segment;

    use super::*;

    /// Makes a log of changes, each an intent with its outcome. The texts are further fields of the
    /// intents.
    fn log(changes: &[String]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let line = |seq: usize, fields: &str| {
            format!(
                r#"{{"v":1,"seq":{seq},"t":"2026-11-21T08:00:00.000000Z",{fields},"nonce":"{:032}","prev":"{:064}"}}
"#,
                0, 0
            )
        };
        let lines = changes.iter().enumerate().map(|(number, fields)| {
            let (intent, outcome) = (number * 2, number * 2 + 1);
            let ended = format!(r#""kind":"outcome","of":{intent},"result":"ok""#);
            line(intent, &format!(r#""kind":"intent",{fields}"#)) + &line(outcome, &ended)
        });
        let name = directory.path().join(Segment::of(0).to_string());
        std::fs::write(name, lines.collect::<String>()).unwrap();
        directory
    }

    fn write(path: &str) -> String {
        format!(r#""op":"write","path":"{path}""#)
    }

    fn rename(from: &str, to: &str) -> String {
        format!(r#""op":"rename","path":"{from}","to":"{to}""#)
    }

    fn seqs(directory: &tempfile::TempDir, path: &str) -> Vec<u64> {
        let log = Log::open(directory.path()).unwrap();
        let found = blame(&log, None, None, &WorkspacePath::parse(path).unwrap()).unwrap();
        found.versions.iter().map(|version| version.change.seq).collect()
    }

    /// The history began, after a thousand renames, with the last name, without the write.
    #[test]
    fn an_agent_hid_what_it_wrote_behind_a_thousand_renames() {
        let there_and_back = (0..1002).map(|number| match number % 2 {
            0 => rename("d", "e"),
            _ => rename("e", "d"),
        });
        let changes: Vec<_> = [write("d/run.sh")].into_iter().chain(there_and_back).collect();
        let found = seqs(&log(&changes), "d/run.sh");
        assert_eq!((found.len(), found.last()), (1003, Some(&0)));
        let on = (0..1500).map(|number| rename(&format!("d{number}"), &format!("d{}", number + 1)));
        let changes: Vec<_> = [write("d0/run.sh")].into_iter().chain(on).collect();
        let found = seqs(&log(&changes), "d1500/run.sh");
        assert_eq!((found.len(), found.last()), (1501, Some(&0)));
    }

    /// Nothing named the change for whose entry the gateway had made the directory.
    #[test]
    fn a_directory_that_was_made_as_a_parent_was_made_by_nobody() {
        let made = |fields: String, directories: u64| {
            format!(r#"{fields},"counts":{{"directories":{directories}}}"#)
        };
        let changes = [
            made(write("a/b/c/f"), 2),
            write("a/b/c/g"),
            rename("a/b", "a/d"),
            made(rename("a/d/c/f", "x/y/f"), 1),
        ];
        let log = log(&changes);
        assert_eq!(seqs(&log, "a/d/c"), [4, 0]);
        assert_eq!(seqs(&log, "a/d"), [4, 0]);
        assert_eq!(seqs(&log, "a"), Vec::<u64>::new());
        assert_eq!(seqs(&log, "x/y"), [6]);
        assert_eq!(seqs(&log, "x"), Vec::<u64>::new());
        assert_eq!(seqs(&log, "x/y/f"), [6, 4, 0]);
    }
}
