//! The author's tools, through their command line.

mod documents;
mod effects;
mod every_key;
mod exceptions;
mod host_changes;
mod hostile;
mod hosts;
mod implied;
mod init;
mod learn;
mod lint;
mod lost_bounds;
mod narrowing;
mod not_in_mount;
mod observing;
mod piped;
mod progress;
mod schema;
mod searching;
mod tests;

use crate::common::World;

/// A file beside the workspace, where policies lie.
fn policy_file(world: &World, name: &str, text: &str) {
    std::fs::write(world.base().join(name), text).unwrap();
}
