//! A place for copies of the log.

use std::io;

use portcullis_audit::LogFile;

/// Where copies go. Everything may be sent again; the last time counts.
pub(super) trait Store: Send {
    /// Keeps the file `name` as a whole.
    fn put(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String>;

    /// Keeps a piece of the open segment.
    fn piece(&mut self, segment: &str, offset: u64, bytes: Vec<u8>) -> Result<(), String>;

    /// The newest checkpoint that arrived, if one did; `None` where the place gives nothing out.
    fn checkpoint(&mut self) -> Result<Option<Option<Vec<u8>>>, String>;

    /// Bytes of the file `name`; `None` where there is no such file.
    fn length(&mut self, name: &str) -> Result<Option<u64>, String>;

    /// Whether the open segment has the `sent` bytes, as far as the place says that.
    fn has_open(&mut self, segment: &str, sent: u64) -> Result<bool, String>;

    /// A segment, to be read; `None` where that is not cheap.
    fn read(&mut self, segment: &str) -> Option<io::Result<LogFile>>;

    /// Whether [`Store::length`] asks nobody else, so that each look may ask for all.
    fn is_near(&self) -> bool;

    /// Forgets the pieces of a segment, which is there as a whole now.
    fn sealed(&mut self, segment: &str) -> Result<(), String>;
}
