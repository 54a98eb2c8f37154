//! The session that a command line names.

use std::collections::BTreeSet;

use crate::{
    app::failure::Failure,
    model::Escaped,
    review::{Log, similar_session},
};

/// The maximum of sessions that a message names.
const MAX_SHOWN: usize = 10;

/// Returns the part of a message that says what became of the first records of `log`; empty if it has
/// them.
pub(super) fn pruned(log: &Log) -> String {
    let first = log.begins();
    first
        .map(|first| format!("; the records before record {} {}", first.seq, first.reason()))
        .unwrap_or_default()
}

/// Returns the one session of those that `name` names in `log`; `list` is the command that lists all.
///
/// # Errors
/// If there is none, or more than one.
pub(super) fn one(
    log: &Log,
    candidates: BTreeSet<String>,
    name: &str,
    list: &str,
) -> Result<String, Failure> {
    let shown = candidates.iter().take(MAX_SHOWN).map(|id| Escaped(id).to_string());
    let shown = shown.collect::<Vec<_>>().join(", ");
    let mut candidates = candidates.into_iter();
    match (candidates.next(), candidates.next()) {
        (Some(session), None) => Ok(session),
        (None, _) => {
            let pruned = pruned(log);
            let failure =
                Failure::new(format_args!("no such session: `{}`{pruned}", Escaped(name)));
            Err(failure.help(match similar_session(log, name) {
                Ok(Some(near)) => format!("did you mean `{}`?", Escaped(&near)),
                _ => format!("`{list}` lists those to name; `last` is the newest"),
            }))
        }
        (Some(_), Some(_)) => {
            Err(Failure::new(format_args!("more than one session begins with `{}`", Escaped(name)))
                .help(format_args!("name one of: {shown}")))
        }
    }
}
