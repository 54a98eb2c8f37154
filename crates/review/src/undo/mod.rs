//! Undo: restores the workspace to its state in the log, for one path, one record, one session, or
//! everything since a record.
//!
//! There are three steps, each of which can be inspected. [`History`] reads the changes from the
//! log. [`plan`] turns the selected changes into steps, newest change first. [`Preview`] compares
//! the steps with the current state. Then [`perform`] takes them one by one through the gateway,
//! each decided, backed up and recorded like any other change, so that an undo can be undone as
//! well.
//!
//! It knows only changes through the gateway: files of other programs are not touched. If another
//! program changed something that a step would replace, that is a conflict, which is shown and not
//! resolved automatically. It does not guess: a step is left out if its backup is gone, if the
//! policy denies it, or if it depends on one that is left out.

mod collapse;
mod error;
mod history;
mod interruption;
mod known_directories;
mod known_entries;
mod net_change;
mod path_index;
mod perform;
mod plan;
mod preview;
mod related;
mod simulate;
mod state;
mod state_reader;

pub use error::Error;
pub use history::{History, Select};
pub use net_change::leaves_a_change;
pub use perform::{Choice, Performed, perform};
pub use plan::{Action, Step, plan};
pub use preview::{Preview, Status};
