//! What an import says of commits and branches.

use serde_json::{Value, json};

use super::sessions::Begun;
use crate::{
    git::{ObjectId, Outcome, Replayed},
    model::Escaped,
};

/// A branch that an import makes or moves.
#[derive(Debug)]
pub(super) struct Branch {
    /// Its whole name in the operator's repository.
    pub(super) reference: String,
    pub(super) commit: ObjectId,
    /// Whether the newest commits of the agent's branch are left out, for one was refused.
    pub(super) is_partial: bool,
}

/// All that is said.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) begun: Begun,
    pub(super) replayed: Vec<Replayed>,
    pub(super) branches: Vec<Branch>,
    /// Branches of other names, with why they are left out.
    pub(super) refused: Vec<(String, &'static str)>,
}

impl Report {
    /// Whether anything is left out.
    pub(super) fn refuses(&self) -> bool {
        let is_refused = |one: &Replayed| matches!(one.outcome, Outcome::Refused(_));
        !self.refused.is_empty() || self.replayed.iter().any(is_refused)
    }

    pub(super) fn object(&self, imported: bool) -> Value {
        let commits = self.replayed.iter().map(|one| {
            let (from, subject) = (one.from.to_string(), &one.subject);
            match &one.outcome {
                Outcome::Imported { commit, paths, .. } => {
                    let commit = commit.to_string();
                    json!({ "from": from, "subject": subject, "commit": commit, "paths": paths })
                }
                Outcome::Known { commit } => {
                    let commit = commit.to_string();
                    json!({ "from": from, "subject": subject, "commit": commit, "known": true })
                }
                Outcome::Refused(why) => {
                    let why = why.iter().map(|(path, why)| json!({ "path": path, "reason": why }));
                    let refused: Vec<_> = why.collect();
                    json!({ "from": from, "subject": subject, "refused": refused })
                }
            }
        });
        let branches = self.branches.iter().map(|branch| {
            json!({
                "ref": branch.reference,
                "commit": branch.commit.to_string(),
                "partial": branch.is_partial,
            })
        });
        let refused =
            self.refused.iter().map(|(name, why)| json!({ "branch": name, "reason": why }));
        json!({
            "session": self.begun.session,
            "agent": self.begun.agent,
            "base": self.begun.commit.to_string(),
            "imported": imported,
            "commits": commits.collect::<Vec<_>>(),
            "branches": branches.collect::<Vec<_>>(),
            "refusedBranches": refused.collect::<Vec<_>>(),
        })
    }

    /// Prints the commits and branches for a person.
    pub(super) fn print(&self) {
        let short = |id: &ObjectId| id.to_string().chars().take(12).collect::<String>();
        for one in &self.replayed {
            let subject = Escaped(&one.subject);
            match &one.outcome {
                Outcome::Imported { commit, paths, .. } => {
                    let word = if *paths == 1 { "path" } else { "paths" };
                    outln!("{}  {subject} ({paths} {word})", short(commit));
                }
                Outcome::Known { commit } => {
                    outln!("{}  {subject} (imported before)", short(commit));
                }
                Outcome::Refused(why) => {
                    outln!("refused       {subject} (the agent's {})", short(&one.from));
                    for (path, why) in why {
                        match path {
                            Some(path) => outln!("  {}: {}", Escaped(path), Escaped(why)),
                            None => outln!("  {}", Escaped(why)),
                        }
                    }
                }
            }
        }
        for branch in &self.branches {
            let partial = if branch.is_partial { ", without what was refused" } else { "" };
            outln!("{} is {}{partial}", Escaped(&branch.reference), short(&branch.commit));
        }
        for (name, why) in &self.refused {
            outln!("refused       the branch {}: {why}", Escaped(name));
        }
    }
}
