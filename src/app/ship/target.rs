//! The interface of a store for copies of the log.

use std::io;

use portcullis_audit::LogFile;

/// A store for copies. Everything may be sent again; the last version counts.
pub(super) trait Store: Send {
    /// Stores the complete file `name`.
    fn put(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String>;

    /// Stores a piece of the open segment.
    fn piece(&mut self, segment: &str, offset: u64, bytes: Vec<u8>) -> Result<(), String>;

    /// Returns the newest checkpoint that arrived, if one did; `None` where the store refuses
    /// reads.
    fn checkpoint(&mut self) -> Result<Option<Option<Vec<u8>>>, String>;

    /// Returns the size of the file `name` in bytes; `None` if it is missing.
    fn length(&mut self, name: &str) -> Result<Option<u64>, String>;

    /// Returns true if the open segment has the `sent` bytes, as far as the store reports.
    fn has_open(&mut self, segment: &str, sent: u64) -> Result<bool, String>;

    /// Opens a segment for reading; `None` where that is expensive.
    fn read(&mut self, segment: &str) -> Option<io::Result<LogFile>>;

    /// Returns true if [`Store::length`] is local, so that each check may ask for all files.
    fn is_near(&self) -> bool;

    /// Removes the pieces of a segment that is stored completely now.
    fn sealed(&mut self, segment: &str) -> Result<(), String>;
}
