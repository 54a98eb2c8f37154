//! The report of an import about commits and branches.

use serde_json::{Value, json};

use super::processes::NAMESPACE;
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
pub(super) struct Branch {
    /// Its full name in the operator's repository.
    pub(super) reference: String,
    pub(super) commit: ObjectId,
    /// True if the newest commits of the agent's branch are left out, because one was
    /// refused.
    pub(super) is_partial: bool,
}

impl Branch {
    /// Returns its name in the private repository.
    pub(super) fn name(&self) -> String {
        let name = self.reference.splitn(NAMESPACE.split('/').count() + 2, '/').last();
        name.unwrap_or_default().to_owned()
    }
}

/// The report of an import.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) begun: GitSession,
    /// The policy in force.
    pub(super) policy: PolicyIdentity,
    pub(super) replayed: Vec<Replayed>,
    pub(super) branches: Vec<Branch>,
    /// Branches that are left out, with the reason.
    pub(super) refused: Vec<(String, &'static str)>,
}

impl Report {
    /// Returns true if a commit or branch is left out.
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
    pub(super) fn print(&self) {
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
