//! Private stand-in, dropped when the real module lands.
use crate::model::WorkspacePath;

/// The editor's buffers.
pub trait Buffers: Sync {
    /// Reads a buffer.
    ///
    /// # Errors
    /// When the editor does not answer.
    fn read(&self, path: &WorkspacePath) -> Result<Option<Vec<u8>>, BufferError>;
    /// Writes a buffer.
    ///
    /// # Errors
    /// When the editor does not answer.
    fn write(&self, path: &WorkspacePath, content: &[u8]) -> Result<(), BufferError>;
}

/// Why the editor gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BufferError(pub String);
