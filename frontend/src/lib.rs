//! The doors: each speaks one protocol and knows nothing of the others.
//!
//! A door parses (wire), asks the gateway (handle) and answers (render). It
//! decides nothing about files and never opens one.

pub mod acp;
mod brake;
mod buffer;
mod count;
pub mod desk;
pub mod files;
mod frame;
mod glimpse;
pub mod guests;
pub mod http;
pub mod inside;
mod lane;
pub mod mcp;
mod output;
mod pace;
mod paths;
mod question;
mod stock;
mod strict;

use portcullis_gate::{gateway, ops};
use portcullis_policy::{self as policy, model};

/// 128 random bits in hex.
fn random_hex() -> Option<String> {
    let mut bytes = [0u8; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok()?;
    (got == bytes.len()).then(|| format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Locks; a panic elsewhere while holding the lock left the plain data behind
/// it whole.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
