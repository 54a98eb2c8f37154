//! What is allowed.

mod decision;

pub use decision::{Decision, Effect, Place};
mod stub;
pub use stub::*;
