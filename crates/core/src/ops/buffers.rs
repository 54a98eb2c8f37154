//! The editor's unsaved buffers, as far as operations need to know of them.

use crate::model::WorkspacePath;

/// The files as an editor holds them, saved or not. A door that has an editor
/// behind it implements this; paths are canonical.
pub trait Buffers: Sync {
    /// The editor's content of a file; `None` when it knows no such file.
    ///
    /// # Errors
    /// When the editor cannot be asked or its answer cannot be understood.
    fn read(&self, path: &WorkspacePath) -> Result<Option<Vec<u8>>, BufferError>;

    /// Hands a file's whole new content to the editor.
    ///
    /// # Errors
    /// When the editor cannot be asked or refuses.
    fn write(&self, path: &WorkspacePath, content: &[u8]) -> Result<(), BufferError>;
}

/// Why the editor did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The editor does not offer to read or to write files.
    #[error("the editor does not offer `{0}`")]
    Unsupported(&'static str),
    /// The editor answered with an error; its text is not passed on.
    #[error("the editor refused with code {0}")]
    Refused(i64),
    /// The editor did not answer in time.
    #[error("the editor did not answer in time")]
    Timeout,
    /// The editor is gone.
    #[error("the editor is gone")]
    Gone,
    /// The editor's answer is not one.
    #[error("the editor's answer is malformed")]
    Malformed,
}

/// Where content comes from and goes to.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// The disk alone.
    Disk,
    /// Reads see the editor's buffers; writes go to the disk, and through the
    /// editor where its buffer and the disk differ.
    Auto(&'a dyn Buffers),
    /// Reads and writes of content go through the editor alone.
    Editor(&'a dyn Buffers),
}
