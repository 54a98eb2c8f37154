//! The doors: each speaks one protocol and knows nothing of the others.
//!
//! A door parses (wire), asks the gateway (handle) and answers (render). It
//! decides nothing about files and never opens one.

pub mod acp;
mod count;
pub mod desk;
pub mod files;
pub mod guests;
mod hangup;
pub mod http;
pub mod inside;
pub mod mcp;
mod output;
mod pace;
mod paths;
mod question;

use portcullis_gate::{gateway, ops};
use portcullis_policy::{self as policy, model};
use portcullis_rpc::{buffer, lock};
