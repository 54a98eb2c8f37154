//! Access of programs to the history of the workspace's repository, which shows files that rules
//! hide.

use toml::de::DeTable;

use super::{finding::Finding, subject::Subject};
use crate::{
    entry_operation::{EntryOperation, decide},
    examples::agents,
    model::WorkspacePath,
    policy::{Effect, Scratch},
};

/// Maximum number of paths that a message names.
const MAX_NAMED: usize = 10;

/// Returns the tracked paths that the policy lets no agent, or not all of them, read by name.
pub fn hidden<'t>(subject: Subject<'t>) -> Vec<&'t WorkspacePath> {
    let agents = agents(subject.outline.iter());
    let is_hidden = |path: &&WorkspacePath| {
        let deny = |agent| decide(subject.policy, agent, EntryOperation::Read, path, None);
        agents.iter().any(|agent| deny(agent).enforced() != Effect::Allow)
    };
    subject.tracked.into_iter().flatten().filter(is_hidden).collect()
}

/// True if programs of an agent can read the objects of the workspace's git repository.
pub fn shows_git_objects(subject: Subject<'_>) -> bool {
    agents(subject.outline.iter()).iter().any(|agent| subject.policy.shows_git_objects(agent))
}

/// Lists some paths, and the number of the others.
pub fn named(paths: &[&WorkspacePath]) -> String {
    let some = paths.iter().take(MAX_NAMED).map(|path| format!("`{path}`"));
    let some = some.collect::<Vec<_>>().join(", ");
    match paths.len().saturating_sub(MAX_NAMED) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}

pub(super) fn lint(subject: Subject<'_>, file: usize, found: &mut Vec<Finding>) {
    let Some(text) = subject.outline.get(file).map(|file| &file.text) else { return };
    let (root, _) = DeTable::parse_recoverable(text);
    let git = root.get_ref().get("git").and_then(|table| table.get_ref().as_table());
    let (name, advice) = if subject.policy.scratch().is_some_and(Scratch::history) {
        (
            "history",
            "leave `history` out, or allow it only where no commit ever had a secret: commits \
             before HEAD were not looked at",
        )
    } else if shows_git_objects(subject) {
        ("repository", "leave `repository` out, or deny reading `.git`")
    } else {
        return;
    };
    let Some((key, _)) = git.and_then(|git| git.get_key_value(name)) else { return };
    let hidden = hidden(subject);
    let what = match &*hidden {
        [] => "whatever rules hide, secrets among it".to_owned(),
        paths => format!("{} tracked files that rules hide: {}", paths.len(), named(paths)),
    };
    found.push(Finding {
        id: "git-history",
        file,
        span: key.span(),
        message: format!("programs can read in the history of the workspace's repository {what}"),
        suggestion: advice.to_owned(),
    });
}
