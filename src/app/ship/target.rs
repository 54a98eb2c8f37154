//! A place for copies of the log.

/// What a place shows of a copy.
pub(super) struct Seen {
    /// The newest checkpoint that arrived.
    pub(super) checkpoint: Option<Vec<u8>>,
    /// Whether the open segment has all that was sent of it.
    pub(super) has_open_segment: bool,
}

/// Where copies go. Everything may be sent again; the last time counts.
pub(super) trait Store: Send {
    /// Keeps the file `name` as a whole.
    fn put(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), String>;

    /// Keeps a piece of the open segment.
    fn piece(&mut self, segment: &str, offset: u64, bytes: Vec<u8>) -> Result<(), String>;

    /// What is there, where `sent` bytes of the open segment were sent; `None` where the
    /// place does not tell.
    fn look(&mut self, segment: &str, sent: u64) -> Result<Option<Seen>, String>;

    /// Forgets the pieces of a segment, which is there as a whole now.
    fn sealed(&mut self, segment: &str) -> Result<(), String>;
}
