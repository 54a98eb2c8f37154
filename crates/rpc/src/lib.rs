//! Parts that all protocols share: framing, strict JSON, JSON-RPC messages,
//! and bounds on queues and memory.
//!
//! Knows nothing of files, policies or any one protocol, and imports no other
//! crate of the workspace.

pub mod buffer;
pub mod count;
mod envelope;
pub mod framing;
pub mod hangup;
mod id;
mod memory_budget;
mod message;
mod object;
pub mod output;
pub mod pace;
mod queue;
pub mod response;
pub mod strict_json;

pub use envelope::PartialEnvelope;
pub use framing::Frame;
pub use id::Id;
pub use memory_budget::{MemoryBudget, MemoryShares, Reservation};
pub use message::{Addressee, InvalidMessage, Message, MessageError, Outcome, is_text};
pub use object::{Object, folds_to};
pub use queue::{BoundedQueue, Notify, Rejected};
pub use strict_json::JsonError;

/// Locks. A panic elsewhere leaves plain data behind the lock, which stays usable.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
