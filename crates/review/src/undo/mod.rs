//! Putting the workspace back to what the log says it was: one path, what one
//! record or session did, or everything since a record.
//!
//! Three steps, each of which can be looked at: [`History`] reads from the log
//! which changes were made, [`plan`] turns those that shall be undone into
//! steps, newest change first, and [`Preview`] compares the steps with what is
//! there now. [`perform`] then takes them one by one through the gate, each
//! decided, backed up and recorded as any other change, so that an undo can be
//! undone as well.
//!
//! It knows what went through the gate and nothing else: files that others made
//! are not touched, and where somebody else changed what a step would replace,
//! that is a conflict, which is shown and not resolved by itself. It refuses to
//! guess: a step whose backup is gone, that the policy denies, or that depends
//! on one that is left out, is left out too.

mod collapse;
mod error;
mod history;
mod look;
mod perform;
mod plan;
mod simulate;

pub use error::Error;
pub use history::{History, Select};
pub use look::{Preview, Status};
pub use perform::{Choice, Failed, Performed, Why, perform};
pub use plan::{Action, Step, plan};
