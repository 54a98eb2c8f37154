//! The doors: each speaks one protocol and knows nothing of the others.
//!
//! A door parses (wire), asks the gateway (handle) and answers (render). It
//! decides nothing about files and never opens one.

pub mod acp;
pub mod approval_socket;
mod count;
pub mod files;
mod hangup;
pub mod http;
pub mod mcp;
pub mod mcp_attach;
mod output;
mod pace;
mod paths;
mod question;
pub mod sandbox_socket;

use portcullis_core as gateway;
use portcullis_policy::{self as policy, model};
use portcullis_rpc::{buffer, lock};
