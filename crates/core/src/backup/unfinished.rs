//! Unfinished files in `tmp` of gateways that were killed or lost power.

use std::{fs::File, sync::Arc};

use rustix::{
    fs::{
        AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, fdatasync, flock, fsync, openat,
        renameat_with, unlinkat,
    },
    io::Errno,
};

use super::{
    BackupStore, Error,
    content::BackupContent,
    format::Trailer,
    name::{Name, PathKey},
};
use crate::model::WorkspacePath;

const ACTION: &str = "clear the backup store";

impl BackupStore {
    /// Moves complete backups to their place, since their changes may have been made, and removes
    /// the rest. Leaves files alone that are still being written.
    pub(super) fn clear_unfinished(&self) -> Result<(), Error> {
        for entry in Dir::read_from(&self.tmp).map_err(Error::os(ACTION))? {
            let entry = entry.map_err(Error::os(ACTION))?;
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let Ok(file) = openat(&self.tmp, entry.file_name(), flags, Mode::empty()) else {
                continue;
            };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            // Open, and so locked, to the end: the maker of an unlocked one may continue with it.
            let file = Arc::new(File::from(file));
            let name = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
            match name.map_or(Ok(None), |name| whole(&file, name)) {
                Ok(Some(name)) => self.finish(&file, &name)?,
                Ok(None) => match unlinkat(&self.tmp, entry.file_name(), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(Error::os(ACTION)(errno)),
                },
                // It may be the only copy of what was changed.
                Err(error) => tracing::warn!(%error, "an unfinished backup cannot be read"),
            }
        }
        Ok(())
    }

    fn finish(&self, file: &File, name: &Name) -> Result<(), Error> {
        fdatasync(file).map_err(Error::os(ACTION))?;
        let text = name.to_string();
        let shard = self.shards.make(&text)?;
        match renameat_with(&self.tmp, &text, &shard, &text, RenameFlags::NOREPLACE) {
            Ok(()) => fsync(&shard).map_err(Error::os(ACTION)),
            // Its writer did this at the same time.
            Err(Errno::NOENT) => Ok(()),
            // The file system completed only half of the move before a power failure.
            Err(Errno::EXIST) => {
                unlinkat(&self.tmp, &text, AtFlags::empty()).map_err(Error::os(ACTION))
            }
            Err(errno) => Err(Error::os(ACTION)(errno)),
        }
    }
}

/// Returns the name if the file is the complete backup of that name. Trees are not accepted: they
/// were in their place before their changes began.
fn whole(file: &Arc<File>, name: Name) -> Result<Option<Name>, Error> {
    let Some(trailer) = Trailer::read(file)? else { return Ok(None) };
    let is_named = trailer.id == name.id.to_string()
        && WorkspacePath::parse(&trailer.path).is_ok_and(|path| PathKey::of(&path) == name.key);
    if !is_named || trailer.tree.is_some() || trailer.packed.is_some() {
        return Ok(None);
    }
    let content = BackupContent::new(name.id, Arc::clone(file), 0, trailer.size, trailer.sha256);
    match content.drain() {
        Ok(()) => Ok(Some(name)),
        Err(Error::Damaged(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
