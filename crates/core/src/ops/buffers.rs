//! Access of operations to the editor's unsaved buffers.

use crate::model::WorkspacePath;

/// The files in an editor, saved or not. A transport with an editor implements this; paths are
/// canonical.
pub trait Buffers: Sync {
    /// Reads the editor's content of a file; `None` if it knows no such file.
    ///
    /// # Errors
    /// When the editor cannot be asked or its reply is malformed.
    fn read(&self, path: &WorkspacePath) -> Result<Option<Vec<u8>>, BufferError>;

    /// Hands the complete new content of a file to the editor.
    ///
    /// # Errors
    /// When the editor cannot be asked or refuses.
    fn write(&self, path: &WorkspacePath, content: &[u8]) -> Result<(), BufferError>;
}

/// The reason why a call of the editor failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The editor does not offer to read or to write files.
    #[error("the editor does not offer `{0}`")]
    Unsupported(&'static str),
    /// The editor replied with an error; its text is not passed on.
    #[error("the editor refused with code {0}")]
    Refused(i64),
    /// The editor did not reply in time.
    #[error("the editor did not answer in time")]
    Timeout,
    /// The editor is gone.
    #[error("the editor is gone")]
    Gone,
    /// The editor's reply is malformed.
    #[error("the editor's answer is malformed")]
    Malformed,
}

/// The source and destination of content.
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
