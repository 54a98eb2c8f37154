//! The result of each attempt, from the agent's reply and from the record in the
//! log. The two must agree with each other, and with the list.

use std::path::PathBuf;

use portcullis_audit::{AuditRecord, Directory, Hash, Kind, Reader, Receipt};
use serde_json::Value;

use super::{
    attempts::{Action, Attempt, ExpectedEnd},
    directory::DemoDirectory,
};
use crate::app::failure::{Context as _, Failure};

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttemptEnd {
    /// The policy allowed it, and it was done.
    Allowed,
    /// The policy denied it.
    Denied,
    /// The attempt bypassed the gateway, and the kernel refused it.
    Refused,
    /// The attempt bypassed the gateway, and it worked.
    Worked,
    /// The attempt was not denied, and still failed.
    Failed,
}

impl AttemptEnd {
    /// Returns the word in the table.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Refused => "refused",
            Self::Worked => "worked",
            Self::Failed => "failed",
        }
    }
}

/// A line of the table.
#[derive(Debug, Clone)]
pub(super) struct JudgedLine {
    pub(super) attempt: Attempt,
    pub(super) end: AttemptEnd,
    /// The policy's rule, or the kernel's error.
    pub(super) rule: String,
    /// The reason given by the policy.
    pub(super) reason: Option<String>,
    /// The receipt, if it passed the gateway.
    pub(super) receipt: Option<Receipt>,
    /// The id of the backup.
    pub(super) backup: Option<String>,
    /// The output of the shell.
    pub(super) output: Option<String>,
    /// The reason of a failure: another result than expected, or a reply that
    /// differs from the log.
    pub(super) wrong: Option<String>,
}

/// The log, with whose records replies are compared.
pub(super) struct ReplyChecker<'a> {
    directory: &'a DemoDirectory,
    log: PathBuf,
}

impl<'a> ReplyChecker<'a> {
    pub(super) fn new(directory: &'a DemoDirectory) -> Self {
        Self { directory, log: directory.state().join("audit") }
    }

    /// Judges a reply that the agent got over ACP.
    pub(super) fn acp(&self, attempt: &Attempt, message: &Value) -> Result<JudgedLine, Failure> {
        let receipt = message
            .pointer("/result/_meta/portcullis~1receipt")
            .or_else(|| message.pointer("/error/data/receipt"));
        self.gateway(attempt, message, at(message, "/error").is_null(), receipt)
    }

    /// Judges the JSON that `portcullis fs` printed.
    pub(super) fn command(
        &self,
        attempt: &Attempt,
        printed: &Value,
    ) -> Result<JudgedLine, Failure> {
        self.gateway(attempt, printed, at(printed, "/ok") == true, printed.get("receipt"))
    }

    fn gateway(
        &self,
        attempt: &Attempt,
        answer: &Value,
        done: bool,
        receipt: Option<&Value>,
    ) -> Result<JudgedLine, Failure> {
        let receipt: Option<Receipt> =
            receipt.and_then(|receipt| serde_json::from_value(receipt.clone()).ok());
        let Some(receipt) = receipt else {
            let wrong = Some("the gateway's answer names no record".to_owned());
            return Ok(JudgedLine::of(attempt, AttemptEnd::Failed, String::new(), wrong));
        };
        let record = self.record(&receipt)?;
        let draft = record.as_ref().map(|record| record.draft.clone()).unwrap_or_default();
        let end = match draft.decision.as_deref() {
            Some("deny") => AttemptEnd::Denied,
            Some("allow") if done => AttemptEnd::Allowed,
            _ => AttemptEnd::Failed,
        };
        let mut line = JudgedLine::of(attempt, end, draft.rule.clone().unwrap_or_default(), None);
        line.wrong = match &record {
            None => Some("the log does not contain the record that the reply names".to_owned()),
            Some(_) if draft.op.as_deref() != Some(attempt.operation()) => {
                Some("the record is about another operation".to_owned())
            }
            Some(_) if !names(&draft.path.unwrap_or_default(), attempt.path) => {
                Some("the record is about another path".to_owned())
            }
            Some(_) if done == (end == AttemptEnd::Denied) => {
                Some("the answer is not what the record says".to_owned())
            }
            Some(_) => None,
        }
        .or_else(|| self.not_as_it_must(attempt, end, answer));
        line.reason = draft.reason;
        line.backup = draft.backup;
        line.receipt = Some(receipt);
        Ok(line)
    }

    /// Judges an attempt in a shell of the sandbox that bypassed the gateway.
    pub(super) fn shell(&self, attempt: &Attempt, got: &Value) -> JudgedLine {
        let text = |key: &str| got.get(key).and_then(Value::as_str).unwrap_or_default();
        if !at(got, "/noShell").is_null() {
            // The other lines prove nothing either then.
            let wrong = (attempt.must == ExpectedEnd::Succeed)
                .then(|| format!("no shell can be run in the sandbox: {}", text("noShell")));
            return JudgedLine::of(attempt, AttemptEnd::Failed, "no shell".to_owned(), wrong);
        }
        let end = match (at(got, "/code") == 0, attempt.must) {
            (true, ExpectedEnd::Succeed) if text("stdout").is_empty() => AttemptEnd::Failed,
            (true, _) => AttemptEnd::Worked,
            (false, _) if !text("stdout").is_empty() => AttemptEnd::Worked,
            (false, _) => AttemptEnd::Refused,
        };
        let rule = match end {
            AttemptEnd::Refused => kernel_words(text("stderr")),
            AttemptEnd::Worked if attempt.must == ExpectedEnd::Succeed => "its own home".to_owned(),
            _ => "-".to_owned(),
        };
        let mut line = JudgedLine::of(attempt, end, rule, self.not_as_it_must(attempt, end, got));
        line.output = Some(text("stderr").to_owned()).filter(|output| !output.is_empty());
        line
    }

    /// Returns the record of a receipt, if its leaf hash matches.
    fn record(&self, receipt: &Receipt) -> Result<Option<AuditRecord>, Failure> {
        let source = Directory::new(&self.log);
        let entry = Reader::new(&source, receipt.seq).next().or_fail("cannot read the log")?;
        Ok(entry
            .filter(|entry| Hash::leaf(&entry.bytes) == receipt.leaf)
            .and_then(|entry| entry.record().ok()))
    }

    /// Returns the `start` record, which is the log's first.
    pub(super) fn start(&self) -> Result<Option<AuditRecord>, Failure> {
        let source = Directory::new(&self.log);
        let entry = Reader::new(&source, 0).next().or_fail("cannot read the log")?;
        let record = entry.and_then(|entry| entry.record().ok());
        Ok(record.filter(|record| record.kind == Kind::Start))
    }

    fn not_as_it_must(&self, attempt: &Attempt, end: AttemptEnd, answer: &Value) -> Option<String> {
        let disclosed = self.directory.discloses(&answer.to_string());
        match (attempt.must, end) {
            (ExpectedEnd::BeRefused, _) if disclosed => {
                Some("NOT REFUSED: the agent was given what it must not see".to_owned())
            }
            (ExpectedEnd::BeRefused, AttemptEnd::Denied | AttemptEnd::Refused) => None,
            (ExpectedEnd::BeRefused, AttemptEnd::Allowed | AttemptEnd::Worked) => {
                Some("NOT REFUSED".to_owned())
            }
            (ExpectedEnd::Succeed, AttemptEnd::Allowed) => match attempt.action {
                Action::Write if !self.directory.is_edited() => {
                    Some("the change is not on the disk".to_owned())
                }
                Action::Remove if !self.directory.is_gone(attempt.path) => {
                    Some("it is still there".to_owned())
                }
                _ => None,
            },
            (ExpectedEnd::Succeed, AttemptEnd::Worked) => None,
            (ExpectedEnd::Succeed, AttemptEnd::Denied | AttemptEnd::Refused) => {
                Some("it should have been allowed".to_owned())
            }
            (_, AttemptEnd::Failed) => Some(reason(answer)),
        }
    }
}

impl JudgedLine {
    fn of(attempt: &Attempt, end: AttemptEnd, rule: String, wrong: Option<String>) -> Self {
        Self {
            attempt: *attempt,
            end,
            rule,
            reason: None,
            receipt: None,
            backup: None,
            output: None,
            wrong,
        }
    }
}

/// Returns true if a record's path is that of the attempt. Paths outside the
/// workspace are recorded in full, as the agent gave them.
fn names(recorded: &str, shown: &str) -> bool {
    recorded == shown || recorded.strip_suffix(shown).is_some_and(|rest| rest.ends_with('/'))
}

/// Returns the kernel's error from the output of a shell or a tool, shortened for a
/// column; the JSON contains all of it.
fn kernel_words(stderr: &str) -> String {
    let last = stderr.trim_end().rsplit(": ").next().unwrap_or_default();
    let short = match last {
        "No such file or directory" | "Directory nonexistent" => "no such file",
        "Read-only file system" => "read-only",
        "Permission denied" => "permission denied",
        other => other,
    };
    format!("kernel: {}", short.chars().take(18).collect::<String>())
}

fn reason(answer: &Value) -> String {
    let message = at(answer, "/error/message").as_str();
    format!("failed: {}", message.unwrap_or("without a reason"))
}

/// Returns the value at a JSON pointer; null if there is none.
pub(super) fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    static NULL: Value = Value::Null;
    value.pointer(pointer).unwrap_or(&NULL)
}
