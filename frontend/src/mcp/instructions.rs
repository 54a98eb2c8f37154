//! The instructions that a client gets for its model: where the files are, what is
//! denied, how to ask, how to undo.
//!
//! Of the policy they say no more than the list of tools does: which operations it never
//! allows this agent, and that some wait for a person. Patterns and rules would tell of
//! files that the agent may not know of.

use crate::model::{OperationKind, WorkspacePath};

use super::{Config, Place, shared::Shared};

/// What the model is told under the policy in force.
pub(super) fn text(config: &Config, shared: &Shared) -> String {
    let policy = shared.gateway.policy();
    let shown = shared.offer.under(&policy);
    let root = shared.roots.absolute(&WorkspacePath::root());
    let surroundings = match config.place {
        Place::Cell => {
            "Your own file tools and your shell do not have these files: to them the directory is \
             empty or stale. Read, search and change files with these tools."
        }
        Place::Host => {
            "Use these tools for these files, not your own file tools and not your shell: what \
             those change is neither kept nor recorded."
        }
        Place::Remote => {
            "The directory is on the server's machine: your own file tools and your shell may \
             have no such files, or others. Use these tools."
        }
    };
    let denied = match closed(&shared.offer.closed(&shown)) {
        Some(closed) => format!("It never allows you to {closed}. "),
        None => String::new(),
    };
    let asked = match shown.asks {
        true => {
            let seconds = policy.approval_timeout().as_secs();
            let who = match config {
                Config { attached: Some(_), .. } => "the user of the editor",
                Config { elicit: true, .. } => "your user, if your client can ask",
                Config { .. } => "the operator",
            };
            format!(
                "Some calls need a person's approval. There is no tool to ask for it: make the \
                 call, and it waits up to {seconds} s until {who} answers, or somebody with \
                 `portcullis approve`. A rejection is final; do not repeat the call.\n"
            )
        }
        false => String::new(),
    };
    format!(
        "The files of the workspace {root}, through a gate. Paths are relative to it, or absolute \
         beneath it. {surroundings}\n\
         A policy decides about every call. {denied}A call that is denied says by which rule and \
         why. Do not look for another way to do it: tell your user what you need.\n\
         {asked}\
         What you replace or remove is kept in a backup first. You have no tool to undo; your \
         user has: `portcullis backup undo --session {session}` takes back what this session \
         changed, and asks before. Every call is recorded.",
        session = shared.session.id,
    )
}

/// Words for operations that are never allowed.
fn closed(kinds: &[OperationKind]) -> Option<String> {
    let (last, others) = kinds.split_last()?;
    let others: Vec<_> = others.iter().map(|kind| kind.as_str()).collect();
    Some(match others.as_slice() {
        [] => last.to_string(),
        others => format!("{} or {last}", others.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_listed_as_a_sentence_has_them() {
        use OperationKind as Kind;
        assert_eq!(closed(&[]), None);
        assert_eq!(closed(&[Kind::Write]).unwrap(), "write");
        assert_eq!(closed(&[Kind::Write, Kind::Edit]).unwrap(), "write or edit");
        assert_eq!(
            closed(&[Kind::Write, Kind::Edit, Kind::Remove]).unwrap(),
            "write, edit or remove"
        );
    }
}
