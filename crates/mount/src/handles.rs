//! Open handles.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::AtomicU32},
};

use rustix::io::Errno;

use crate::{directory::List, staged::Staged};

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) node: u64,
    /// The staged version, if the file is open for writing. If its commit was refused, the
    /// handle is unusable.
    pub(crate) staged: Option<Arc<Staged>>,
    /// The thread that last closed a descriptor of it without a commit.
    pub(crate) closer: AtomicU32,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) node: u64,
    pub(crate) list: Mutex<Option<List>>,
}

#[derive(Debug, Clone)]
enum Handle {
    File(Arc<OpenFile>),
    Directory(Arc<OpenDirectory>),
}

/// The open handles of a mount.
#[derive(Debug)]
pub(crate) struct Handles {
    open: HashMap<u64, Handle>,
    next: u64,
    limit: usize,
    was_full: bool,
}

impl Handles {
    pub(crate) fn new(limit: usize) -> Self {
        Self { open: HashMap::new(), next: 1, limit, was_full: false }
    }

    /// Checks that there is room for a further handle.
    ///
    /// # Errors
    /// `ENFILE`.
    pub(crate) fn room(&mut self) -> Result<(), Errno> {
        if self.open.len() < self.limit {
            return Ok(());
        }
        self.was_full = true;
        Err(Errno::NFILE)
    }

    /// Returns true if a handle was ever refused for lack of room.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    pub(crate) fn add_file(&mut self, file: OpenFile) -> Result<u64, Errno> {
        self.add(Handle::File(Arc::new(file)))
    }

    pub(crate) fn add_directory(&mut self, directory: OpenDirectory) -> Result<u64, Errno> {
        self.add(Handle::Directory(Arc::new(directory)))
    }

    fn add(&mut self, handle: Handle) -> Result<u64, Errno> {
        self.room()?;
        let id = self.next;
        self.next += 1;
        self.open.insert(id, handle);
        Ok(id)
    }

    pub(crate) fn file(&self, id: u64) -> Result<Arc<OpenFile>, Errno> {
        match self.open.get(&id) {
            Some(Handle::File(file)) => Ok(Arc::clone(file)),
            _ => Err(Errno::BADF),
        }
    }

    pub(crate) fn directory(&self, id: u64) -> Result<Arc<OpenDirectory>, Errno> {
        match self.open.get(&id) {
            Some(Handle::Directory(directory)) => Ok(Arc::clone(directory)),
            _ => Err(Errno::BADF),
        }
    }

    /// Returns true if an open file shares a staged version.
    pub(crate) fn share(&self, version: &Arc<Staged>) -> bool {
        self.open.values().any(|handle| match handle {
            Handle::File(file) => file.staged.as_ref().is_some_and(|own| Arc::ptr_eq(own, version)),
            Handle::Directory(_) => false,
        })
    }

    /// Closes a handle; returns its node.
    pub(crate) fn remove(&mut self, id: u64) -> Option<u64> {
        Some(match self.open.remove(&id)? {
            Handle::File(file) => file.node,
            Handle::Directory(directory) => directory.node,
        })
    }
}
