//! Parts that all protocols share: framing, strict JSON, JSON-RPC messages, and bounds on queues
//! and memory.
//!
//! It is independent of files, policies and any single protocol, and imports no other crate of the
//! workspace.

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
mod parsed_size;
mod queue;
pub mod response;
pub mod spin_wait;
pub mod strict_json;

pub use envelope::PartialEnvelope;
pub use framing::Frame;
pub use id::Id;
pub use memory_budget::{MemoryBudget, MemoryShares, Reservation};
pub use message::{Addressee, InvalidMessage, Message, MessageError, Outcome, is_text};
pub use object::{Object, folds_to};
pub use parsed_size::{parsed_size, value_size};
pub use queue::{BoundedQueue, Notify, Rejected};
pub use strict_json::JsonError;

/// Locks a mutex. The data is plain, so it is valid even after a panic of another holder.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
