//! The gate: what stands between a request and the workspace.
//!
//! The modules are layers, each of which imports only from those before it:
//! [`ledger`] records, [`workspace`] finds, [`backup`] keeps, [`ops`] prepares
//! and makes a change, [`gateway`] has it all happen in the right order.

pub mod backup;
pub mod gateway;
pub mod ledger;
pub mod ops;
pub mod workspace;

use portcullis_policy::{self as policy, model};
