//! The session whose commits are imported.

use std::{collections::BTreeSet, path::PathBuf};

use crate::{
    app::{
        audit_log::begun_log,
        failure::{Context as _, Failure},
        git::{head::Head, session::GitSession},
        opened::Opened,
    },
    cli::{gateway_options::GatewayOptions, session_name},
    model::Escaped,
    review::named_sessions,
};

const DOING: &str = "cannot look for the session in the audit log";

/// The advice where no session had a private repository.
const HAS_ONE: &str = "an agent has one under `portcullis run` and `exec` where the workspace has a \
                       git repository with a commit";

/// Returns the session whose identifier begins with `wanted`, and those before it, the oldest first;
/// `last` is the newest.
pub(super) fn find(
    opened: &Opened,
    wanted: &str,
) -> Result<(GitSession, Vec<GitSession>), Failure> {
    let Some(log) = begun_log(&opened.state_path.join("audit"))? else {
        return Err(Failure::new("no session of this workspace is on record yet").help(HAS_ONE));
    };
    let mut found = GitSession::all(opened)?;
    if wanted == "last" {
        let none = "no session had a private git repository and a commit to begin with";
        return found.pop().map(|begun| (begun, found)).ok_or_else(|| {
            let writable: Vec<_> = opened.policy.agent().write.iter().map(PathBuf::from).collect();
            match Head::of_workspace(opened.workspace.root(), &writable) {
                Ok(_) => Failure::new(none).help(HAS_ONE),
                Err(failure) => {
                    let advice = failure.advice().map(|advice| format!("; {advice}"));
                    let advice = advice.unwrap_or_default();
                    Failure::new(none).help(format_args!("{}{advice}", failure.message()))
                }
            }
        });
    }
    let named = named_sessions(&log, wanted).or_fail(DOING)?;
    let has_repository = |id: &&String| found.iter().any(|begun| begun.session == **id);
    let candidates: BTreeSet<_> = named.iter().filter(has_repository).cloned().collect();
    let candidates = if candidates.is_empty() { named } else { candidates };
    let list = GatewayOptions::of(opened).command("git import --list");
    let session = session_name::one(&log, candidates, wanted, &list)?;
    let at = found.iter().position(|begun| begun.session == session);
    found.truncate(at.map_or(0, |at| at + 1));
    found.pop().map(|begun| (begun, found)).ok_or_else(|| {
        Failure::new(format_args!("session {} had no private git repository", Escaped(&session)))
            .help(format_args!("`{list}` lists those that had one"))
    })
}
