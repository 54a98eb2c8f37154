//! The doors: each speaks one protocol and knows nothing of the others.
//!
//! A door parses (wire), asks the gateway (handle) and answers (render). It
//! decides nothing about files and never opens one.

pub mod acp;
pub mod desk;
mod frame;
pub mod http;
mod lane;
pub mod mcp;
mod paths;
mod question;
mod strict;
