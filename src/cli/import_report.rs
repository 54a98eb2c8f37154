//! The report of an import about commits and branches.

use serde_json::{Value, json};

use crate::{
    app::git::session::{GitSession, PolicyIdentity},
    cli::{
        render::counted,
        rows::{cut, stdout_width, wrapped},
    },
    git::{ObjectId, Outcome, Replayed},
    model::{Escaped, Quoted},
};

/// The digits of a commit that are shown, and the column of a subject.
const SHORT_ID_LENGTH: usize = 12;
const COLUMN: usize = 14;
/// The width of a line without a terminal.
const WIDTH: usize = 80;

/// A branch that an import creates or moves.
#[derive(Debug)]
pub(in crate::cli) struct Branch {
    /// Its name in the private repository.
    pub(in crate::cli) name: String,
    /// Its full name in the operator's repository.
    pub(in crate::cli) reference: String,
    pub(in crate::cli) commit: ObjectId,
    /// True if the newest commits of the agent's branch are left out, because one was
    /// refused.
    pub(in crate::cli) is_partial: bool,
}

/// The report of an import.
#[derive(Debug)]
pub(in crate::cli) struct Report {
    pub(in crate::cli) begun: GitSession,
    /// The policy in force.
    pub(in crate::cli) policy: PolicyIdentity,
    pub(in crate::cli) replayed: Vec<Replayed>,
    pub(in crate::cli) branches: Vec<Branch>,
    /// Branches that are left out, with the reason.
    pub(in crate::cli) refused: Vec<(String, &'static str)>,
}

impl Report {
    /// Returns true if a commit or branch is left out.
    pub(in crate::cli) fn refuses(&self) -> bool {
        let is_refused = |one: &Replayed| matches!(one.outcome, Outcome::Refused(_));
        !self.refused.is_empty() || self.replayed.iter().any(is_refused)
    }

    pub(in crate::cli) fn object(&self, imported: bool) -> Value {
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
                Outcome::Refused(reason) => {
                    let reason = reason
                        .iter()
                        .map(|(path, reason)| json!({ "path": path, "reason": reason }));
                    let refused: Vec<_> = reason.collect();
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
            self.refused.iter().map(|(name, reason)| json!({ "branch": name, "reason": reason }));
        json!({
            "session": self.begun.session,
            "agent": self.begun.agent,
            "base": self.begun.commit.to_string(),
            "policy": self.policy.json(),
            "sessionPolicy": self.begun.policy.json(),
            "imported": imported,
            "commits": commits.collect::<Vec<_>>(),
            "branches": branches.collect::<Vec<_>>(),
            "refusedBranches": refused.collect::<Vec<_>>(),
        })
    }

    /// Prints the commits and branches for people. No text of the agent's looks like another
    /// line.
    pub(in crate::cli) fn print(&self) {
        let short =
            |id: &ObjectId| id.to_string().chars().take(SHORT_ID_LENGTH).collect::<String>();
        let columns = stdout_width();
        let line = |word: &str, subject: &str, end: &str| {
            let room = columns.unwrap_or(WIDTH).saturating_sub(COLUMN + end.len() + 1).max(COLUMN);
            outln!("{word:COLUMN$}{} {end}", cut(&Escaped(subject).to_string(), room));
        };
        for one in &self.replayed {
            match &one.outcome {
                Outcome::Imported { commit, paths, .. } => {
                    let paths = counted(*paths as u64, "path");
                    line(&short(commit), &one.subject, &format!("({paths})"));
                }
                Outcome::Known { commit } => {
                    line(&short(commit), &one.subject, "(imported before)");
                }
                Outcome::Refused(reason) => {
                    let from = format!("(the agent's {})", short(&one.from));
                    line("refused", &one.subject, &from);
                    for (path, reason) in reason {
                        let path = path.iter().map(|path| format!("{}: ", Quoted(path)));
                        let text = path.collect::<String>() + &Escaped(reason).to_string();
                        outln!("{}", wrapped(&text, 2, COLUMN, columns));
                    }
                }
            }
        }
        for branch in &self.branches {
            let partial = if branch.is_partial { ", without what was refused" } else { "" };
            let text = format!("{} is {}{partial}", branch.reference, short(&branch.commit));
            outln!("{}", wrapped(&text, 0, COLUMN, columns));
        }
        for (name, reason) in &self.refused {
            let text = format!("{:COLUMN$}the branch {name}: {reason}", "refused");
            outln!("{}", wrapped(&text, 0, COLUMN + 4, columns));
        }
    }
}
