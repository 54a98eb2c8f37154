//! Messages between `portcullis approve` and a gateway: one line of JSON each way.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gateway::{Answer, AnswerError, Question};

/// The version of the messages. The reply [`Reply::Refused`] stays the same in all versions.
pub(super) const VERSION: u64 = 1;

/// A line to the gateway.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Message {
    /// [`VERSION`].
    pub(super) version: u64,
    /// The secret of the nonce file, which proves that the sender can read the state
    /// directory.
    pub(super) nonce: String,
    pub(super) request: Request,
}

/// A request of `portcullis approve`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum Request {
    /// List the pending approvals.
    List,
    /// Answer a pending approval.
    Answer {
        /// Its id.
        id: String,
        /// The answer.
        answer: Choice,
    },
}

/// An [`Answer`] as it is transmitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Choice {
    /// Approve once.
    Once,
    /// Approve for the rest of the session.
    Session,
    /// Reject.
    Reject,
}

impl From<Choice> for Answer {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Once => Self::Once,
            Choice::Session => Self::Session,
            Choice::Reject => Self::Reject,
        }
    }
}

/// The reply of a gateway.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply {
    /// The pending approvals, the oldest first.
    Waiting(Vec<Item>),
    /// The answer was accepted.
    Taken(Box<Item>),
    /// No pending approval has this id here.
    Unknown,
    /// The answer came too late; the text says how the request ended.
    Over(String),
    /// The gateway refuses the sender.
    Refused(String),
}

/// A pending approval. All texts are untrusted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item {
    /// The id to answer to.
    pub id: String,
    /// The requesting agent.
    pub agent: String,
    /// Its session in the log.
    pub session: String,
    /// The part of the session for which an approval "for the session" counts, if that is an ACP
    /// session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_part: Option<String>,
    /// The operation.
    pub operation: String,
    /// The canonical path, the host, port and credential of a connection, or the beginning of a
    /// command's line.
    pub path: String,
    /// The path as it was asked for.
    pub asked_path: String,
    /// The new path of a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The rules with the effect `ask`.
    pub rules: Vec<ItemRule>,
    /// SHA-256 of the content before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// SHA-256 of the content after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// SHA-256 of the entry that a rename moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<String>,
    /// The mode and time to set, of a new file or by a change of attributes, as in the
    /// record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Value>,
    /// SHA-256 of a command with its arguments, variables and directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// SHA-256 of the policy.
    pub policy_sha256: String,
    /// The change, as a preview.
    pub change: String,
    /// Seconds until the timeout, if there is one.
    pub seconds_left: Option<u64>,
}

/// A rule with the effect `ask`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ItemRule {
    /// Its id.
    pub id: String,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Its reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Item {
    /// Returns true for the same request of the same session, asked about once more.
    pub(crate) fn is_equal_request(&self, other: &Self) -> bool {
        let (id, seconds_left) = (other.id.clone(), other.seconds_left);
        Self { id, seconds_left, ..self.clone() } == *other
    }
}

impl From<&Question> for Item {
    fn from(question: &Question) -> Self {
        let binding = &question.binding;
        let rules = question.rules.iter().map(|rule| ItemRule {
            id: rule.rule().to_owned(),
            location: rule.location().map(ToString::to_string),
            reason: rule.reason().map(str::to_owned),
        });
        let elapsed = question.since.elapsed();
        let left = question.timeout.map(|timeout| rounded_up(timeout.saturating_sub(elapsed)));
        Self {
            id: question.id.clone(),
            agent: question.session.agent.to_string(),
            session: question.session.recorded_id().to_owned(),
            session_part: question.session.acp.as_ref().map(|_| question.session.id.clone()),
            operation: binding.operation.to_string(),
            path: binding.path.clone(),
            asked_path: question.asked_path.clone(),
            to: binding.to.clone(),
            rules: rules.collect(),
            before: binding.before.map(|hash| hash.to_string()),
            after: binding.after.map(|hash| hash.to_string()),
            moved: binding.moved.clone(),
            attributes: binding.attributes.clone(),
            command: binding.command.map(|hash| hash.to_string()),
            policy_sha256: binding.policy_sha256.clone(),
            change: question.change.clone(),
            seconds_left: left,
        }
    }
}

/// Returns the seconds of a time, with a begun one as a whole.
fn rounded_up(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

impl From<AnswerError> for Reply {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Unknown(_) => Self::Unknown,
            AnswerError::Over { how, .. } => Self::Over(how),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with a timeout of one second was announced as one that waits up to 0 s.
    #[test]
    fn a_begun_second_is_left_whole() {
        let left = [0, 1, 999, 1000, 1001].map(|millis| rounded_up(Duration::from_millis(millis)));
        assert_eq!(left, [0, 1, 1, 1, 2]);
        assert_eq!(rounded_up(Duration::from_secs(1) - Duration::from_nanos(1)), 1);
    }
}
