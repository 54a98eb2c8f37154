//! What is allowed.

mod decision;

pub use decision::{Decision, Effect, Place};
