//! A place for copies of the log.

/// Where copies go. Everything may be sent again; the last time counts.
pub(super) trait Store: Send {
    /// Keeps the file `name` as a whole.
    fn put(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String>;

    /// Keeps a piece of the open segment.
    fn piece(&mut self, segment: &str, offset: u64, bytes: Vec<u8>) -> Result<(), String>;

    /// Forgets the pieces of a segment, which is there as a whole now.
    fn sealed(&mut self, segment: &str) -> Result<(), String>;
}
