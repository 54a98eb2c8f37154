//! Writes a backup.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::Ordering,
};

use portcullis_audit::Hash;
use rustix::fs::{fdatasync, fstat, fsync};

use super::{
    BackupId, BackupStore, Error,
    copy::{Sink, regular, start_writing},
    format::{Attributes, BackupKind, Trailer, TreeTrailer},
    name::{Name, PathKey, VersionRun},
    temp::Temp,
    tree,
};
use crate::{
    model::{OperationKind, Session},
    workspace::Permit,
};

/// The session and change for which a backup is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meta<'a> {
    /// The session that asked for the change.
    pub session: &'a Session,
    /// The change.
    pub operation: OperationKind,
    /// SHA-256 of the content that the change stores, if the agent made it up itself: a moved or
    /// restored content is not its own.
    pub after: Option<Hash>,
    /// True if the backup is made even if it does not fit within the policy's size: a full store
    /// must not prevent the operator from undoing what filled it.
    pub beyond_size: bool,
}

/// The object to back up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// A regular file, open for reading.
    File(BorrowedFd<'a>),
    /// A symbolic link's target.
    Link(&'a [u8]),
    /// A directory with everything in it, open for reading.
    Tree(BorrowedFd<'a>),
    /// An editor's unsaved buffer.
    Bytes(&'a [u8]),
}

/// A backup, durable once it is settled ([`BackupStore::settle`]). Return it to the store as soon
/// as it is known if the change was made: [`BackupStore::keep`] or [`BackupStore::discard`].
#[must_use]
#[derive(Debug)]
pub(crate) struct Saved {
    /// The backup's id, for the record.
    pub id: BackupId,
    /// SHA-256 of the stored content; of a tree its
    /// [`fingerprint`](super::fingerprint).
    pub sha256: Hash,
    /// Bytes of stored content.
    pub bytes: u64,
    /// Number of objects that it copies: more than one only for a tree.
    pub objects: u64,
    pub(super) name: Name,
    versions: u64,
    /// True if others must be deleted to make space for it.
    crowded: bool,
    /// The backup's file until it is settled.
    loose: Option<Temp>,
}

impl BackupStore {
    /// Makes a backup of `origin` under the permit's path. It must be settled before the change is
    /// made: other data that must be durable by then is written in between, and mostly synced
    /// together with it.
    ///
    /// A file that another process changes meanwhile is copied nevertheless: hash and stored bytes
    /// agree, whatever it was. A tree must not change.
    ///
    /// # Errors
    /// [`Error::Full`] when retention leaves no space and must, [`Error::NoSpace`] when the disk is
    /// full, [`Error::NotRegular`], and for trees [`Error::Special`], [`Error::Mount`],
    /// [`Error::NotUtf8`], [`Error::TooLarge`] and [`Error::Changed`]. Nothing is left behind then.
    pub(crate) fn save(
        &self,
        permit: &Permit,
        meta: &Meta<'_>,
        origin: Origin<'_>,
    ) -> Result<Saved, Error> {
        let key = PathKey::of(permit.path());
        let earlier = self.names_of(key)?;
        let mut temp = Temp::new(&self.tmp)?;
        let most = if meta.beyond_size { u64::MAX } else { self.retention().size };
        let body = Body::store(self, &temp.file, origin, most)?;
        // Later than all backups of this path, even if the clock was set back: the order must not
        // depend on the clock.
        let after = earlier.last().map_or(0, |newest| newest.id.micros().saturating_add(1));
        let id = BackupId::new(self.now().max(after))?;
        let own = self.own_run(&earlier, meta.session, &body);
        self.newest.fetch_max(id.micros(), Ordering::Relaxed);
        let group = own.unwrap_or_else(|| VersionRun::of(meta.session, id));
        let trailer = Trailer {
            v: 1,
            id: id.to_string(),
            path: permit.path().as_str().to_owned(),
            kind: body.kind,
            operation: meta.operation.as_str().to_owned(),
            session: meta.session.recorded_id().to_owned(),
            agent: meta.session.agent.as_str().to_owned(),
            boot: self.boot.clone(),
            attributes: body.attributes,
            sha256: body.sha256,
            after: meta.after,
            size: body.size,
            tree: body.tree,
            packed: None,
        };
        let size = trailer.write(&temp.file, body.end)?;
        start_writing(&temp.file);
        let name = Name { key, id, group, size, object: None };
        let crowded = self.reserve(&name, meta.beyond_size)?;
        if let Err(errno) = temp.complete(name.to_string()) {
            self.release(&name)?;
            return Err(Error::os("store the backup")(errno));
        }
        let versions = earlier.len() as u64 + 1;
        let (sha256, bytes, loose) = (body.sha256, body.size, Some(temp));
        let objects = trailer.tree.map_or(1, |tree| tree.nodes);
        Ok(Saved { id, sha256, bytes, objects, name, versions, crowded, loose })
    }

    /// Ends every run, because entries were exchanged. A second exchange restores what a path
    /// stored before, and an undo needs a backup of it to reverse both.
    pub(crate) fn end_runs(&self) {
        self.exchanged.fetch_max(self.newest.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns the run that a content continues: it is the content that the last change of the path
    /// stored, and the session made that up itself. Any other content may be the only copy, moved
    /// or written here meanwhile.
    fn own_run(&self, earlier: &[Name], session: &Session, body: &Body) -> Option<VersionRun> {
        let last = earlier.last()?;
        if last.id.micros() <= self.exchanged.load(Ordering::Relaxed) {
            return None;
        }
        let first = earlier.iter().find(|name| name.group == last.group)?;
        let is_content = matches!(body.kind, BackupKind::File | BackupKind::Buffer);
        if !is_content || last.group != VersionRun::of(session, first.id) {
            return None;
        }
        // An unreadable backup continues no run.
        let stored = self.describe(last).ok()??.after;
        (stored == Some(body.sha256)).then_some(last.group)
    }

    /// Syncs a backup and its name. It is found ([`BackupStore::find`]) from now on.
    ///
    /// # Errors
    /// Of the system; then it must be discarded.
    pub(crate) fn settle(&self, saved: &mut Saved) -> Result<(), Error> {
        let Some(temp) = &mut saved.loose else { return Ok(()) };
        fdatasync(&temp.file).map_err(Error::os("sync the backup"))?;
        // After a power failure it may still be in `tmp`; the next opening moves it to its place.
        fsync(&self.tmp).map_err(Error::os("sync the backup store"))?;
        let name = saved.name.to_string();
        let shard = self.shards.make(&name)?;
        temp.publish(shard.as_fd(), &name).map_err(Error::os("store the backup"))?;
        saved.loose = None;
        Ok(())
    }

    /// Retains the backup of a change that was made, and deletes those past the retention, so that
    /// it fits. Not before the change, because changes that fail would displace good versions.
    ///
    /// # Errors
    /// Of the system; the backup is retained even so.
    pub(crate) fn keep(&self, saved: Saved) -> Result<(), Error> {
        if saved.versions > self.retention().versions {
            self.prune_path(saved.name.key)?;
        }
        if saved.crowded { self.make_room(&saved.name) } else { Ok(()) }
    }

    /// Deletes the backup of a change that was not made.
    ///
    /// # Errors
    /// Of the system; then a needless backup stays.
    pub(crate) fn discard(&self, saved: Saved) -> Result<(), Error> {
        match saved.loose {
            Some(temp) => {
                drop(temp);
                self.release(&saved.name)
            }
            None => self.forget(&saved.name).map(drop),
        }
    }
}

/// The part of a backup before the trailer.
struct Body {
    kind: BackupKind,
    attributes: Option<Attributes>,
    sha256: Hash,
    size: u64,
    tree: Option<TreeTrailer>,
    end: u64,
}

impl Body {
    fn store(
        backup_store: &BackupStore,
        file: &File,
        origin: Origin<'_>,
        most: u64,
    ) -> Result<Self, Error> {
        let mut sink = Sink::new(file, most);
        let (kind, attributes, (sha256, size), tree) = match origin {
            Origin::File(fd) => {
                let attributes = Attributes::read(fd, &regular(fd)?)?;
                (BackupKind::File, Some(attributes), sink.take(fd)?, None)
            }
            Origin::Tree(fd) => {
                let stat = fstat(fd).map_err(Error::os("look at the directory"))?;
                let attributes = Attributes::read(fd, &stat)?;
                let spill = Temp::new(&backup_store.tmp)?;
                let (sha256, size, tree) = tree::pack(fd, &mut sink, &spill.file)?;
                (BackupKind::Tree, Some(attributes), (sha256, size), Some(tree))
            }
            Origin::Link(bytes) | Origin::Bytes(bytes) => {
                sink.write(bytes)?;
                let link = matches!(origin, Origin::Link(_));
                let kind = if link { BackupKind::Link } else { BackupKind::Buffer };
                (kind, None, (Hash::of(bytes), bytes.len() as u64), None)
            }
        };
        Ok(Self { kind, attributes, sha256, size, tree, end: sink.position() })
    }
}
