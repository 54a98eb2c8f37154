//! The net change of a session: the log says if it left one.

use portcullis_audit::Source;

use super::{
    Action, Error, History, Select, Step,
    plan::{Expected, ExpectedMode, plan},
};
use crate::gateway::BackupStore;

/// Returns true if the changes of a session left something to undo, also if that was undone since.
/// An entry that was made and removed again, content that was written again, and times are no change.
///
/// # Errors
/// If the log or the backup store cannot be read.
pub fn leaves_a_change<S: Source>(
    source: &S,
    session: &str,
    backup_store: Option<&BackupStore>,
) -> Result<bool, Error> {
    let history = History::read(source, &Select::Session(session.to_owned()))?;
    let steps = plan(&history, backup_store)?;
    Ok(history.undone > 0 || steps.iter().any(|step| is_change(step, &history)))
}

fn is_change(step: &Step, history: &History) -> bool {
    let content_before = || {
        let oldest = step.records.last()?;
        let at = history.selected.binary_search_by_key(oldest, |change| change.seq).ok()?;
        history.selected.get(at)?.before
    };
    step.interrupted.is_some()
        || match (&step.action, step.expected) {
            (Action::Remove, Expected::Missing) => false,
            (Action::SetAttributes(before), Expected::Attributes(after)) => {
                after.mode.is_some() && after.mode != before.mode
            }
            (Action::Restore(_), Expected::Content(after)) => {
                step.mode != ExpectedMode::Kept || content_before() != Some(after)
            }
            _ => true,
        }
}
