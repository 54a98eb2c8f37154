//! Finds backups and opens their content.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    sync::{Arc, OnceLock},
};

use portcullis_audit::Hash;

use super::{
    AssignableOwners, Attributes, BackupId, BackupKind, BackupStore, Error, Node, NodeKind, Saved,
    content::{BackupContent, StoredContent, read_error},
    format::Trailer,
    name::{Name, PathKey},
    range::Range,
    tree::TreeHasher,
};
use crate::model::{OperationKind, PathError, WorkspacePath};

/// More than a link's target can be (`PATH_MAX`).
const MAX_TARGET: u64 = 4096;

/// The description of one backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Its id.
    pub id: BackupId,
    /// The path of the object.
    pub path: WorkspacePath,
    /// The kind of the object.
    pub kind: BackupKind,
    /// The change before which it was made.
    pub operation: OperationKind,
    /// The session that made the change.
    pub session: String,
    /// The agent's name.
    pub agent: String,
    /// Mode, owner, time and access control list; links and buffers have none.
    pub attributes: Option<Attributes>,
    /// SHA-256 of the content; of a tree its [`fingerprint`](super::fingerprint).
    pub sha256: Hash,
    /// Bytes of content.
    pub bytes: u64,
    /// Number of files, links and directories in a tree, itself included.
    pub nodes: Option<u64>,
    /// Bytes on the disk: its own, and those of the object with its content, which other backups
    /// may share.
    pub stored: u64,
    /// The lifetime of the gateway that made it; backups of earlier versions have none.
    pub boot: Option<String>,
    /// SHA-256 of the content that the agent stored in its place, if it did.
    pub(super) after: Option<Hash>,
    pub(super) name: Name,
}

impl Backup {
    /// Returns the mode that a restored object gets from this process; `None` for links
    /// and buffers, which have none.
    pub fn restored_mode(&self) -> Option<u32> {
        let (attributes, is_directory) = (self.attributes.as_ref()?, self.kind == BackupKind::Tree);
        Some(AssignableOwners::of_this_process().mode(attributes, is_directory))
    }
}

/// The backups in a store.
#[derive(Debug, Default)]
pub struct BackupList {
    /// Backups, oldest first.
    pub entries: Vec<Backup>,
    /// Backups that cannot be read.
    pub damaged: Vec<BackupId>,
}

impl BackupStore {
    /// Returns all backups, oldest first.
    ///
    /// # Errors
    /// Of the system.
    pub fn entries(&self) -> Result<BackupList, Error> {
        self.describe_all(self.names()?)
    }

    /// Returns the backups of one path, oldest first.
    ///
    /// # Errors
    /// Of the system.
    pub fn entries_of(&self, path: &WorkspacePath) -> Result<BackupList, Error> {
        let mut listing = self.describe_all(self.names_of(PathKey::of(path))?)?;
        listing.entries.retain(|entry| entry.path == *path);
        Ok(listing)
    }

    /// Returns the backups of one path that can be read, newest first. Each is opened when it is asked
    /// for.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn newest_of(
        &self,
        path: &WorkspacePath,
    ) -> Result<impl Iterator<Item = Result<Backup, Error>>, Error> {
        let mut names = self.names_of(PathKey::of(path))?;
        names.dedup_by(|two, one| two.is_twin(one));
        let described =
            names.into_iter().rev().filter_map(move |name| match self.describe(&name) {
                Err(Error::Damaged(_)) => None,
                described => described.transpose(),
            });
        Ok(described.filter(move |entry| entry.as_ref().map_or(true, |entry| entry.path == *path)))
    }

    /// Finds the backup with the id `text`, first among those of `path`, which are in one directory.
    ///
    /// # Errors
    /// As [`BackupStore::find`].
    pub(crate) fn find_from(&self, path: &WorkspacePath, text: &str) -> Result<Backup, Error> {
        let entry = text.parse().map_or(Ok(None), |id| self.entry_of(path, &id))?;
        entry.map_or_else(|| self.find(text), Ok)
    }

    /// Finds the backup with the id `text`, or the only one with an id that starts so.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Ambiguous`], [`Error::Damaged`], and errors of the system.
    pub fn find(&self, text: &str) -> Result<Backup, Error> {
        let mut names = self.names()?;
        names.retain(|name| name.id.to_string().starts_with(text));
        names.dedup_by(|two, one| two.is_twin(one));
        match names.as_slice() {
            [name] if !text.is_empty() => {
                self.describe(name)?.ok_or_else(|| Error::Unknown(text.to_owned()))
            }
            [] => Err(Error::Unknown(text.to_owned())),
            _ => Err(Error::Ambiguous(text.to_owned())),
        }
    }

    /// Finds the backup of `path` with this id; `None` if it is missing. Reads one directory only.
    ///
    /// # Errors
    /// [`Error::Damaged`], and errors of the system.
    pub fn entry_of(&self, path: &WorkspacePath, id: &BackupId) -> Result<Option<Backup>, Error> {
        Ok(self.entry_at(PathKey::of(path), id)?.filter(|entry| entry.path == *path))
    }

    /// Returns a backup that was saved and settled. Reads one directory only.
    ///
    /// # Errors
    /// [`Error::Unknown`] when it is gone, [`Error::Damaged`], and errors of the system.
    pub(crate) fn entry(&self, saved: &Saved) -> Result<Backup, Error> {
        let entry = self.entry_at(saved.name.key, &saved.id)?;
        entry.ok_or_else(|| Error::Unknown(saved.id.to_string()))
    }

    fn entry_at(&self, key: PathKey, id: &BackupId) -> Result<Option<Backup>, Error> {
        let names = self.names_of(key)?;
        let name = names.iter().find(|name| name.id == *id);
        name.map_or(Ok(None), |name| self.describe(name))
    }

    /// Opens the content of a file, a link (its target) or a buffer; the read fails at its end if
    /// it differs from what was stored.
    ///
    /// # Errors
    /// [`Error::WrongType`] for a tree, and errors of the system.
    pub fn content(&self, entry: &Backup) -> Result<BackupContent, Error> {
        if entry.kind == BackupKind::Tree {
            return Err(Error::WrongType { id: entry.id, expected: "a file or link" });
        }
        let (file, trailer, _) = self.reopen(entry)?;
        let body = self.body(file, &trailer);
        Ok(BackupContent::new(entry.id, body.open(entry.id)?, 0, entry.bytes, entry.sha256))
    }

    /// Reads the target of a link.
    ///
    /// # Errors
    /// As [`BackupStore::content`]; [`Error::Damaged`] if the content is another one.
    pub(crate) fn link_target(&self, entry: &Backup) -> Result<Vec<u8>, Error> {
        let (mut target, mut content) = (Vec::new(), self.content(entry)?.take(MAX_TARGET));
        match content.read_to_end(&mut target) {
            Ok(_) => Ok(target),
            Err(error) => Err(content.get_ref().failed(error)),
        }
    }

    /// Opens the nodes of a tree, after a comparison of its manifest with its hash.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::Damaged`], and errors of the system.
    pub fn tree(&self, entry: &Backup) -> Result<Tree, Error> {
        let wrong = Error::WrongType { id: entry.id, expected: "a tree" };
        if entry.kind != BackupKind::Tree {
            return Err(wrong);
        }
        let (file, trailer, _) = self.reopen(entry)?;
        let tree = trailer.tree.as_ref().ok_or(wrong)?;
        let (source, at) = match &trailer.packed {
            None => (Arc::clone(&file), entry.bytes),
            Some(packed) => {
                let compressed = Range::new(&file, packed.manifest);
                let mut manifest = self.objects.scratch()?;
                let damaged = |error: io::Error| match error.raw_os_error() {
                    Some(_) => Error::io("unpack the backup")(error),
                    None => Error::Damaged(entry.id),
                };
                let decoder = zstd::stream::read::Decoder::new(compressed).map_err(damaged)?;
                let bound = tree.manifest.saturating_add(1);
                io::copy(&mut decoder.take(bound), &mut manifest).map_err(damaged)?;
                (Arc::new(manifest), 0)
            }
        };
        let manifest = || {
            BackupContent::new(
                entry.id,
                Arc::clone(&source),
                at,
                tree.manifest,
                tree.manifest_sha256,
            )
        };
        manifest().drain()?;
        let body = self.body(file, &trailer);
        let trail = PathBuilder::new(entry.path.clone());
        Ok(Tree { id: entry.id, lines: BufReader::new(manifest()), body, trail })
    }

    /// Removes the backups of dead gateways that no record names: each gateway with the time of its
    /// first record, in microseconds since 1970, and the ids that its intents name. Returns the
    /// number of removed backups.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn remove_unnamed(
        &self,
        dead: &[(&str, i64, &BTreeSet<String>)],
    ) -> Result<u64, Error> {
        let Some(since) = dead.iter().map(|(_, since, _)| *since).min() else { return Ok(0) };
        let mut removed = 0;
        for name in self.names()?.iter().filter(|name| name.id.micros() >= since) {
            // A damaged backup is left to the operator.
            let Ok(Some(entry)) = self.describe(name) else { continue };
            let unnamed = dead.iter().any(|(boot, _, named)| {
                entry.boot.as_deref() == Some(*boot) && !named.contains(&entry.id.to_string())
            });
            if unnamed && self.forget(name)? {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Compares everything in a backup with its hashes.
    ///
    /// # Errors
    /// [`Error::Damaged`] when it differs, and errors of the system.
    pub fn verify(&self, entry: &Backup) -> Result<(), Error> {
        if entry.kind != BackupKind::Tree {
            return self.content(entry)?.drain();
        }
        let mut tree = self.tree(entry)?;
        let mut print = TreeHasher::default();
        while let Some(node) = tree.next_node()? {
            if node.kind == NodeKind::File {
                tree.content(&node)?.drain()?;
            }
            print.add_node(&node);
        }
        if print.finish() == entry.sha256 { Ok(()) } else { Err(Error::Damaged(entry.id)) }
    }

    fn describe_all(&self, mut names: Vec<Name>) -> Result<BackupList, Error> {
        let mut listing = BackupList::default();
        names.dedup_by(|two, one| two.is_twin(one));
        for name in names {
            match self.describe(&name) {
                Ok(Some(entry)) => listing.entries.push(entry),
                // Removed since its name was read.
                Ok(None) => {}
                Err(Error::Damaged(id)) => listing.damaged.push(id),
                Err(error) => return Err(error),
            }
        }
        Ok(listing)
    }

    pub(super) fn describe(&self, name: &Name) -> Result<Option<Backup>, Error> {
        let Some((file, name)) = self.open_entry(name)? else { return Ok(None) };
        let damaged = Error::Damaged(name.id);
        let Some(trailer) = Trailer::read(&file)? else { return Err(damaged) };
        let Ok(path) = WorkspacePath::parse(&trailer.path) else { return Err(damaged) };
        let Ok(operation) = trailer.operation.parse() else { return Err(damaged) };
        if trailer.id != name.id.to_string()
            || PathKey::of(&path) != name.key
            || trailer.packed.as_ref().map(|packed| packed.object) != name.object
        {
            return Err(damaged);
        }
        let object = match name.object {
            Some(object) => self.objects.find(object)?.map_or(0, |object| object.size),
            None => 0,
        };
        Ok(Some(Backup {
            id: name.id,
            path,
            kind: trailer.kind,
            operation,
            session: trailer.session,
            agent: trailer.agent,
            attributes: trailer.attributes,
            sha256: trailer.sha256,
            bytes: trailer.size,
            nodes: trailer.tree.as_ref().map(|tree| tree.nodes),
            stored: name.size.saturating_add(object),
            boot: trailer.boot,
            after: trailer.after,
            name,
        }))
    }

    /// Opens a described backup again, and reads the place of its content.
    pub(super) fn reopen(&self, entry: &Backup) -> Result<(Arc<File>, Trailer, Name), Error> {
        let (file, name) = self.open_entry(&entry.name)?.ok_or_else(|| unknown(entry))?;
        let trailer = Trailer::read(&file)?.ok_or(Error::Damaged(entry.id))?;
        // The description had these values; a tree's nodes and a file's bytes are compared.
        if (trailer.sha256, trailer.size) != (entry.sha256, entry.bytes) {
            return Err(Error::Damaged(entry.id));
        }
        Ok((Arc::new(file), trailer, name))
    }

    fn body(&self, file: Arc<File>, trailer: &Trailer) -> StoredContent {
        match &trailer.packed {
            None => StoredContent { source: None, file: OnceLock::from(file) },
            Some(packed) => StoredContent {
                source: Some((Arc::clone(&self.objects), packed.object)),
                file: OnceLock::new(),
            },
        }
    }

    /// Opens a backup's file, also if it was packed since its name was read.
    fn open_entry(&self, name: &Name) -> Result<Option<(File, Name)>, Error> {
        if let Some(file) = self.shards.file(&name.to_string())? {
            return Ok(Some((file, *name)));
        }
        for twin in self.names_of(name.key)?.iter().filter(|other| other.is_twin(name)) {
            if let Some(file) = self.shards.file(&twin.to_string())? {
                return Ok(Some((file, *twin)));
            }
        }
        Ok(None)
    }
}

/// Maximum length of a manifest's line in bytes: a name, a hash, and access control lists, which
/// the kernel bounds to 64 KiB each.
const MAX_NODE: u64 = 1 << 20;

/// The nodes of a tree's backup, each directory before its entries.
#[derive(Debug)]
pub struct Tree {
    id: BackupId,
    lines: BufReader<BackupContent>,
    body: StoredContent,
    trail: PathBuilder,
}

impl Tree {
    /// Returns the next node; `None` after the last.
    ///
    /// # Errors
    /// [`Error::Damaged`], and errors of the system.
    pub fn next_node(&mut self) -> Result<Option<Node>, Error> {
        let mut line = Vec::new();
        (&mut self.lines)
            .take(MAX_NODE)
            .read_until(b'\n', &mut line)
            .map_err(|error| read_error(self.id, error))?;
        if line.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).map_err(|_| Error::Damaged(self.id))
    }

    /// Returns the tree with its nodes' paths beneath `root`.
    #[must_use]
    pub fn at(self, root: WorkspacePath) -> Self {
        Self { trail: PathBuilder::new(root), ..self }
    }

    /// Returns the path of the node that was read last.
    ///
    /// # Errors
    /// When it is too long.
    pub fn path(&mut self, node: &Node) -> Result<WorkspacePath, PathError> {
        self.trail.path(node)
    }

    /// Opens the content of a file in the tree.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the node is no file or the tree's content is missing, and errors of
    /// the system.
    pub fn content(&self, node: &Node) -> Result<BackupContent, Error> {
        let sha256 = node.sha256.ok_or(Error::Damaged(self.id))?;
        Ok(BackupContent::new(self.id, self.body.open(self.id)?, node.offset, node.size, sha256))
    }

    /// Returns the [`fingerprint`](super::fingerprint) of the tree after a restore, with the modes
    /// as far as they can be restored: see [`AssignableOwners::mode`].
    ///
    /// # Errors
    /// As [`Tree::next_node`].
    pub fn restored_fingerprint(mut self) -> Result<Hash, Error> {
        let (mut print, owners) = (TreeHasher::default(), AssignableOwners::of_this_process());
        while let Some(mut node) = self.next_node()? {
            if let Some(attributes) = &mut node.attributes {
                attributes.mode = owners.mode(attributes, node.kind == NodeKind::Directory);
            }
            print.add_node(&node);
        }
        Ok(print.finish())
    }
}

/// Builds the paths of the nodes of a [`Tree`], read in its order.
#[derive(Debug)]
pub(crate) struct PathBuilder {
    root: WorkspacePath,
    directories: Vec<WorkspacePath>,
}

impl PathBuilder {
    /// Builds paths beneath `root`, the tree's old or new path.
    pub(crate) fn new(root: WorkspacePath) -> Self {
        Self { root, directories: Vec::new() }
    }

    /// Returns the path of the next node.
    ///
    /// # Errors
    /// When it is too long.
    pub(crate) fn path(&mut self, node: &Node) -> Result<WorkspacePath, PathError> {
        let depth = usize::try_from(node.depth).unwrap_or(usize::MAX);
        self.directories.truncate(depth);
        let path = match self.directories.last() {
            Some(directory) => directory.join(&node.name)?,
            None => self.root.clone(),
        };
        if node.kind == NodeKind::Directory {
            self.directories.push(path.clone());
        }
        Ok(path)
    }
}

fn unknown(entry: &Backup) -> Error {
    Error::Unknown(entry.id.to_string())
}
