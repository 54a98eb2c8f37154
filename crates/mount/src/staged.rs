//! The staged version of a file: written content that is not committed yet.
//!
//! Each node has at most one, shared by all handles. It begins with the shown content,
//! or empty, and is copied at its first change.

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use portcullis_core::{Base, Version};
use portcullis_policy::model::WorkspacePath;
use rustix::io::Errno;

use crate::{budget::Budget, view_cache::View};

/// Seconds since 1970 and nanoseconds.
pub(crate) type Time = (i64, u32);

/// Returns the current time.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// A staged version.
#[derive(Debug)]
pub(crate) struct Staged {
    content: Mutex<StagedContent>,
    /// Locked during a commit, so that commits follow each other.
    commits: Mutex<()>,
}

#[derive(Debug)]
struct StagedContent {
    bytes: StagedBytes,
    /// The version on the disk from which it began, if any.
    base: Option<Version>,
    /// The number of changes.
    revision: u64,
    /// The last committed revision.
    committed: Option<u64>,
    /// The errors of further use, once it was discarded.
    dropped: Option<Dropped>,
    first: Option<FirstCommit>,
    modified: Time,
    changed: Time,
    attributes: Pending,
    budget: Arc<Budget>,
    /// Bytes charged to the budget.
    charged: u64,
}

#[derive(Debug)]
enum StagedBytes {
    Shared(View),
    Own(Vec<u8>),
}

/// The errors of a discarded version.
#[derive(Debug, Clone, Copy)]
struct Dropped {
    /// That of the refused commit, for further commits: the program that wrote may have another
    /// handle than the one whose commit was refused.
    commit: Errno,
    /// That of reads and writes.
    other: Errno,
}

/// Attributes that are set with the next commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) mode: Option<u32>,
    pub(crate) modified: Option<Time>,
}

/// The first commit of a staged version: the number of its record, and the path at that
/// time.
pub(crate) type FirstCommit = (u64, WorkspacePath);

/// Attributes of a staged version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StagedAttributes {
    pub(crate) size: u64,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) mode: Option<u32>,
    /// True if the disk has other content.
    pub(crate) dirty: bool,
    pub(crate) base: Option<Version>,
}

/// The content and attributes of a commit.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) bytes: Vec<u8>,
    pub(crate) revision: u64,
    pub(crate) base: Base,
    pub(crate) attributes: Pending,
    pub(crate) first: Option<FirstCommit>,
}

impl Staged {
    /// Returns a new empty file, which a commit must create.
    pub(crate) fn created(budget: &Arc<Budget>, mode: u32) -> Self {
        let attributes = Pending { mode: Some(mode), modified: None };
        Self::new(StagedBytes::Own(Vec::new()), None, None, attributes, budget)
    }

    /// Returns an existing file that is emptied.
    pub(crate) fn emptied(budget: &Arc<Budget>) -> Self {
        let staged =
            Self::new(StagedBytes::Own(Vec::new()), None, Some(0), Pending::default(), budget);
        staged.lock().revision = 1;
        staged
    }

    /// Returns an existing file with its shown content; `modified` and `changed` are its
    /// times.
    pub(crate) fn from_view(
        budget: &Arc<Budget>,
        view: View,
        base: Version,
        (modified, changed): (Time, Time),
    ) -> Result<Self, Errno> {
        let shared = StagedBytes::Shared(view);
        let staged = Self::new(shared, Some(base), Some(0), Pending::default(), budget);
        {
            let mut content = staged.lock();
            content.charge()?;
            (content.modified, content.changed) = (modified, changed);
        }
        Ok(staged)
    }

    fn new(
        bytes: StagedBytes,
        base: Option<Version>,
        committed: Option<u64>,
        attributes: Pending,
        budget: &Arc<Budget>,
    ) -> Self {
        let content = StagedContent {
            bytes,
            base,
            revision: 0,
            committed,
            dropped: None,
            first: None,
            modified: now(),
            changed: now(),
            attributes,
            budget: Arc::clone(budget),
            charged: 0,
        };
        Self { content: Mutex::new(content), commits: Mutex::default() }
    }

    /// Returns the attributes.
    pub(crate) fn shows(&self) -> StagedAttributes {
        let content = self.lock();
        StagedAttributes {
            size: content.len(),
            modified: content.attributes.modified.unwrap_or(content.modified),
            changed: content.changed,
            mode: content.attributes.mode,
            dirty: content.is_dirty(),
            base: content.base,
        }
    }

    /// Checks that it can still be used.
    ///
    /// # Errors
    /// That of use after it was discarded.
    pub(crate) fn live(&self) -> Result<(), Errno> {
        self.lock().live()
    }

    /// Checks that no commit was refused.
    ///
    /// # Errors
    /// That of the commit.
    pub(crate) fn accepted(&self) -> Result<(), Errno> {
        self.lock().accepted()
    }

    /// Passes the bytes from `offset`, at most `count`, to `take`.
    ///
    /// # Errors
    /// When it was discarded.
    pub(crate) fn read<T>(
        &self,
        offset: u64,
        count: usize,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Errno> {
        let content = self.lock();
        content.live()?;
        let bytes = content.bytes();
        Ok(take(bytes.get(range(bytes.len(), offset, count)).unwrap_or_default()))
    }

    /// Writes `data` at `offset`, or at the end; returns the offset.
    ///
    /// # Errors
    /// `EFBIG`, `EDQUOT`, and when it was discarded.
    pub(crate) fn write(&self, offset: Option<u64>, data: &[u8]) -> Result<u64, Errno> {
        let mut content = self.lock();
        content.live()?;
        let offset = offset.unwrap_or_else(|| content.len());
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        let length = content.len().max(end);
        let bytes = content.change(length)?;
        let (from, to) = (index(offset)?, index(end)?);
        bytes.get_mut(from..to).ok_or(Errno::IO)?.copy_from_slice(data);
        content.touch();
        Ok(offset)
    }

    /// Changes the size; zeros are added.
    ///
    /// # Errors
    /// As [`Staged::write`].
    pub(crate) fn resize(&self, size: u64) -> Result<(), Errno> {
        let mut content = self.lock();
        content.live()?;
        content.change(size)?;
        content.touch();
        Ok(())
    }

    /// Empties it; the file's former content is irrelevant from then on.
    ///
    /// # Errors
    /// When it was discarded.
    pub(crate) fn empty(&self) -> Result<(), Errno> {
        let mut content = self.lock();
        content.live()?;
        content.change(0)?;
        content.base = None;
        content.touch();
        Ok(())
    }

    /// Extends it to `size`, if it is shorter.
    ///
    /// # Errors
    /// As [`Staged::write`].
    pub(crate) fn grow(&self, size: u64) -> Result<(), Errno> {
        if self.lock().len() >= size { self.live() } else { self.resize(size) }
    }

    /// Zeroes at most `count` bytes from `offset` on.
    pub(crate) fn clear(&self, offset: u64, count: u64) -> Result<(), Errno> {
        let mut content = self.lock();
        content.live()?;
        let size = content.len();
        let bytes = content.change(size)?;
        let range = range(bytes.len(), offset, usize::try_from(count).unwrap_or(usize::MAX));
        bytes.get_mut(range).unwrap_or_default().fill(0);
        content.touch();
        Ok(())
    }

    /// Sets attributes for the next commit; returns false if there will be none.
    pub(crate) fn set_attributes(&self, new: Pending) -> bool {
        let mut content = self.lock();
        if !content.is_dirty() || content.dropped.is_some() {
            return false;
        }
        let attributes = &mut content.attributes;
        attributes.mode = new.mode.or(attributes.mode);
        attributes.modified = new.modified.or(attributes.modified);
        content.changed = now();
        true
    }

    /// Restarts from the shown content, unless it was changed.
    ///
    /// # Errors
    /// `EDQUOT`; it is unchanged then.
    pub(crate) fn renew(
        &self,
        view: View,
        base: Version,
        (modified, changed): (Time, Time),
    ) -> Result<(), Errno> {
        let mut content = self.lock();
        if content.is_dirty() || content.dropped.is_some() {
            return Ok(());
        }
        let before = std::mem::replace(&mut content.bytes, StagedBytes::Shared(view));
        if let Err(error) = content.charge() {
            content.bytes = before;
            return Err(error);
        }
        content.base = Some(base);
        content.first = None;
        (content.modified, content.changed) = (modified, changed);
        Ok(())
    }

    /// Waits for commits in progress, and excludes new ones.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the content to commit; `None` if the disk has it.
    ///
    /// # Errors
    /// As [`Staged::accepted`].
    pub(crate) fn stored(&self) -> Result<Option<Stored>, Errno> {
        let content = self.lock();
        content.accepted()?;
        Ok(content.is_dirty().then(|| Stored {
            bytes: content.bytes().to_vec(),
            revision: content.revision,
            base: match content.base {
                _ if content.committed.is_none() => Base::Nothing,
                Some(version) => Base::Version(version),
                // None of the former content was kept.
                None => Base::Anything,
            },
            attributes: content.attributes,
            first: content.first.clone(),
        }))
    }

    /// Notes that the disk has `stored`, as version `base`.
    pub(crate) fn committed(
        &self,
        stored: &Stored,
        base: Option<Version>,
        first: Option<FirstCommit>,
    ) {
        let mut content = self.lock();
        content.first = first;
        content.committed = Some(stored.revision);
        content.base = base;
        if let Some(modified) = stored.attributes.modified
            && content.revision == stored.revision
        {
            content.modified = modified;
        }
        if content.attributes == stored.attributes {
            content.attributes = Pending::default();
        }
    }

    /// Notes that the version `before` on the disk was replaced by one with the same
    /// content.
    pub(crate) fn rebase(&self, before: Version, base: Version, (modified, changed): (Time, Time)) {
        let mut content = self.lock();
        if content.base != Some(before) {
            return;
        }
        content.base = Some(base);
        if !content.is_dirty() {
            (content.modified, content.changed) = (modified, changed);
        }
    }

    /// Discards the content; further use fails. A shell closes a duplicate before the
    /// program writes, and ignores the error. So if nothing was written yet, the first
    /// write returns `error` itself.
    pub(crate) fn discard(&self, error: Errno) {
        let mut content = self.lock();
        let other = if content.len() == 0 { error } else { Errno::IO };
        content.dropped = Some(Dropped { commit: error, other });
        content.bytes = StagedBytes::Own(Vec::new());
        content.give_back();
    }

    fn lock(&self) -> MutexGuard<'_, StagedContent> {
        // Each change of the content is one step.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StagedContent {
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            StagedBytes::Shared(view) => view,
            StagedBytes::Own(bytes) => bytes,
        }
    }

    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn live(&self) -> Result<(), Errno> {
        self.dropped.map_or(Ok(()), |dropped| Err(dropped.other))
    }

    fn accepted(&self) -> Result<(), Errno> {
        self.dropped.map_or(Ok(()), |dropped| Err(dropped.commit))
    }

    fn is_dirty(&self) -> bool {
        self.committed != Some(self.revision)
    }

    fn touch(&mut self) {
        self.revision += 1;
        self.modified = now();
        self.changed = self.modified;
        // A time that was set applies to earlier content only.
        self.attributes.modified = None;
    }

    /// Returns its own bytes, resized to this length.
    fn change(&mut self, length: u64) -> Result<&mut Vec<u8>, Errno> {
        if length > self.budget.file() {
            return Err(Errno::FBIG);
        }
        let size = index(length)?;
        if length > self.charged {
            self.budget.take(length - self.charged)?;
            self.charged = length;
        }
        if let StagedBytes::Shared(view) = &self.bytes {
            let kept = view.get(..view.len().min(size)).unwrap_or_default();
            let mut own = Vec::new();
            own.try_reserve_exact(size).map_err(|_| Errno::NOMEM)?;
            own.extend_from_slice(kept);
            self.bytes = StagedBytes::Own(own);
        }
        let StagedBytes::Own(bytes) = &mut self.bytes else { return Err(Errno::IO) };
        bytes.try_reserve(size.saturating_sub(bytes.len())).map_err(|_| Errno::NOMEM)?;
        bytes.resize(size, 0);
        if length < self.charged {
            // Otherwise memory returned to the budget would still be in use.
            bytes.shrink_to(size);
            self.budget.give_back(self.charged - length);
            self.charged = length;
        }
        Ok(bytes)
    }

    /// Charges its bytes to the budget.
    fn charge(&mut self) -> Result<(), Errno> {
        let length = self.len();
        if length > self.charged {
            self.budget.take(length - self.charged)?;
        } else {
            self.budget.give_back(self.charged - length);
        }
        self.charged = length;
        Ok(())
    }

    fn give_back(&mut self) {
        self.budget.give_back(self.charged);
        self.charged = 0;
    }
}

impl Drop for StagedContent {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Returns the range of at most `count` bytes from `offset` within `length`.
pub(crate) fn range(length: usize, offset: u64, count: usize) -> Range<usize> {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(length);
    from..from.saturating_add(count).min(length)
}

fn index(offset: u64) -> Result<usize, Errno> {
    usize::try_from(offset).map_err(|_| Errno::FBIG)
}

#[cfg(test)]
mod tests;
