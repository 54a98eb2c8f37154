//! Errors of requests that were not carried out, as transports may report them.

use std::fmt;

use portcullis_audit::{Draft, Receipt};

use super::pending_approval::ApprovalNeeded;
use crate::{
    audit_log, backup,
    model::PathError,
    ops::{self, BufferError},
    policy::Decision,
    workspace,
};

/// The rule that the agent sees for a denial about a hidden entry: the real one would reveal the
/// entry.
pub(super) const HIDDEN: &str = "workspace.hidden";

/// The reason of such a denial.
pub(super) const UNSEEN: &str = "something that is not shown keeps this from being done";

/// The reason why a request was not carried out, fit to be shown to the agent: no host path, no
/// content, and the same for a denied path whether or not it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Details>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Details {
    kind: ErrorKind,
    message: String,
    rule: Option<String>,
    reason: Option<String>,
    receipt: Option<Receipt>,
}

/// The kinds of [`Error`] that transports distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The policy or a built-in rule denies it.
    Denied,
    /// No such entry.
    NotFound,
    /// The request is invalid.
    InvalidInput,
    /// Another process changed the object at the same time.
    Conflict,
    /// The name exists already.
    AlreadyExists,
    /// A file stands where a directory is needed.
    NotADirectory,
    /// A directory stands where a file is needed.
    IsADirectory,
    /// The directory is not empty.
    NotEmpty,
    /// The disk or the backup store is full.
    NoSpace,
    /// The request was withdrawn before it took effect.
    Cancelled,
    /// The editor failed.
    Editor,
    /// The gateway cannot serve: the log cannot be written.
    Unavailable,
    /// The operating system failed.
    Io,
}

impl ErrorKind {
    /// Returns the word in records and in replies for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NotFound => "notFound",
            Self::InvalidInput => "invalidInput",
            Self::Conflict => "conflict",
            Self::AlreadyExists => "alreadyExists",
            Self::NotADirectory => "notADirectory",
            Self::IsADirectory => "isADirectory",
            Self::NotEmpty => "notEmpty",
            Self::NoSpace => "noSpace",
            Self::Cancelled => "cancelled",
            Self::Editor => "editor",
            Self::Unavailable => "unavailable",
            Self::Io => "io",
        }
    }
}

impl Error {
    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the rule that denied.
    pub fn rule(&self) -> Option<&str> {
        self.0.rule.as_deref()
    }

    /// Returns the reason in the rule that denied.
    pub fn reason(&self) -> Option<&str> {
        self.0.reason.as_deref()
    }

    /// Returns the receipt of the error's record; `None` when none could be written.
    pub fn receipt(&self) -> Option<&Receipt> {
        self.0.receipt.as_ref()
    }

    pub(super) fn with_receipt(mut self, receipt: Receipt) -> Self {
        self.0.receipt = Some(receipt);
        self
    }

    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Details {
            kind,
            message: message.into(),
            rule: None,
            reason: None,
            receipt: None,
        }))
    }

    pub(super) fn denied(decision: &Decision) -> Self {
        let message = match &decision.reason() {
            Some(reason) => format!("denied by rule `{}`: {reason}", decision.rule()),
            None => format!("denied by rule `{}`", decision.rule()),
        };
        Self(Box::new(Details {
            kind: ErrorKind::Denied,
            message,
            rule: Some(decision.rule().to_owned()),
            reason: decision.reason().map(str::to_owned),
            receipt: None,
        }))
    }
}

/// No request is served without a log.
impl From<audit_log::Error> for Error {
    fn from(error: audit_log::Error) -> Self {
        Self::new(ErrorKind::Unavailable, error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}

/// A request that was not carried out, before that is recorded.
pub(super) struct Stopped {
    pub(super) draft: Draft,
    pub(super) failure: Failure,
}

/// An internal failure, before it is recorded and rendered.
#[derive(Debug)]
pub(super) enum Failure {
    /// The object moved between two looks: the request is tried again.
    Moved,
    /// A decision denies it.
    Denied(Box<Decision>),
    /// A decision about a hidden entry denies it. The rule is for the record alone, the reason for
    /// the agent.
    Hidden(Box<Decision>, String),
    /// A person must approve it first.
    Ask(Box<ApprovalNeeded>),
    /// Nothing was done, for this reason.
    Rendered(Error),
    /// An operation failed.
    Operation(ops::Error),
    /// The log cannot be written.
    Log(audit_log::Error),
    /// The change failed after its intent; its outcome is recorded.
    Answered(Error),
}

impl Failure {
    /// A denial by a decision about a hidden entry.
    pub(super) fn hidden(decision: Decision) -> Self {
        Self::Hidden(Box::new(decision), UNSEEN.to_owned())
    }
}

impl From<Decision> for Failure {
    fn from(denial: Decision) -> Self {
        Self::Denied(Box::new(denial))
    }
}

impl From<ops::Error> for Failure {
    fn from(error: ops::Error) -> Self {
        match error {
            ops::Error::Workspace(error) => error.into(),
            ops::Error::Refused(decision) => Self::Denied(Box::new(decision)),
            ops::Error::Unseen(decision) => Self::hidden(*decision),
            error => Self::Operation(error),
        }
    }
}

/// Returns the denial of what is never served, whatever the policy says; `None` when an error of
/// the workspace is no decision.
pub(super) fn never_served(error: &workspace::Error) -> Option<Decision> {
    use workspace::Error as E;
    let (rule, reason) = match error {
        E::Outside => ("workspace.outside", "a link leads outside the workspace"),
        E::Mount => ("workspace.mount", "another file system is mounted there"),
        E::Loop => ("workspace.links", "too many links"),
        _ => return None,
    };
    Some(Decision::built_in_denial(rule, reason))
}

impl From<workspace::Error> for Failure {
    fn from(error: workspace::Error) -> Self {
        match (never_served(&error), error) {
            (Some(decision), _) => Self::Denied(Box::new(decision)),
            (None, workspace::Error::Moved) => Self::Moved,
            (None, error) => Self::Operation(error.into()),
        }
    }
}

impl From<backup::Error> for Failure {
    fn from(error: backup::Error) -> Self {
        match error {
            backup::Error::Changed => Self::Moved,
            error => Self::Operation(ops::Error::Backup(error)),
        }
    }
}

impl From<audit_log::Error> for Failure {
    fn from(error: audit_log::Error) -> Self {
        Self::Log(error)
    }
}

/// Renders an operation's error for a transport.
pub(super) fn render(error: &ops::Error) -> Error {
    use ops::Error as E;
    let kind = match error {
        E::Workspace(error) => workspace_kind(error),
        E::Refused(decision) => return Error::denied(decision),
        E::Unseen(_) => return Error::denied(&Decision::built_in_denial(HIDDEN, UNSEEN)),
        E::Conflict | E::Growing(_) => ErrorKind::Conflict,
        E::AlreadyExists => ErrorKind::AlreadyExists,
        E::NotEmpty => ErrorKind::NotEmpty,
        E::Cancelled => ErrorKind::Cancelled,
        E::Invalid(_) | E::Pattern(_) | E::Occurrences(_) => ErrorKind::InvalidInput,
        E::Owner | E::Watch(_) | E::Ungranted => ErrorKind::Io,
        E::Editor(BufferError::Unsupported(_)) => ErrorKind::InvalidInput,
        E::Editor(_) => ErrorKind::Editor,
        E::Backup(error @ backup::Error::Unknown(_)) => {
            return Error::new(ErrorKind::NotFound, error.to_string());
        }
        E::Backup(error @ backup::Error::Ambiguous(_)) => {
            return Error::new(ErrorKind::InvalidInput, error.to_string());
        }
        E::Backup(error @ backup::Error::Damaged(_)) => {
            return Error::new(ErrorKind::Io, error.to_string());
        }
        E::Backup(backup::Error::Full { .. } | backup::Error::NoSpace) => ErrorKind::NoSpace,
        E::Backup(backup::Error::Busy) => ErrorKind::Conflict,
        E::Backup(_) => ErrorKind::Io,
    };
    Error::new(kind, error.to_string())
}

fn workspace_kind(error: &workspace::Error) -> ErrorKind {
    use rustix::io::Errno;
    use workspace::Error as E;
    match error {
        E::NotFound => ErrorKind::NotFound,
        E::NotADirectory => ErrorKind::NotADirectory,
        E::IsADirectory => ErrorKind::IsADirectory,
        E::NotUtf8 | E::TooLong | E::TooLarge => ErrorKind::InvalidInput,
        E::Moved => ErrorKind::Conflict,
        E::Outside | E::Mount | E::Loop => ErrorKind::Denied,
        E::Os { errno: Errno::NOSPC | Errno::DQUOT, .. } => ErrorKind::NoSpace,
        E::Os { .. } => ErrorKind::Io,
    }
}

/// The reason why a peer's message never became an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The path lies outside the workspace.
    Outside,
    /// The path is invalid.
    Path(PathError),
    /// A parameter is missing or wrong, as the text explains.
    Parameters(String),
    /// The peer may not call this method, or the gateway does not know it.
    Method,
    /// The request was cancelled before it began.
    Cancelled,
    /// The operator's command names something that is missing, or that it is not made for.
    /// Nothing was decided.
    Unsuitable(ErrorKind, String),
}

impl Refusal {
    /// Returns true if the refusal denies the message.
    pub(super) fn is_denial(&self) -> bool {
        !matches!(self, Self::Cancelled | Self::Unsuitable(..))
    }

    pub(super) fn render(&self) -> Error {
        match self {
            Self::Outside => Error::denied(&Decision::built_in_denial(
                "workspace.outside",
                "the path is outside the workspace",
            )),
            Self::Path(PathError::Parent) => Error::denied(&Decision::built_in_denial(
                "workspace.outside",
                "the path contains `..`",
            )),
            Self::Path(error) => Error::new(ErrorKind::InvalidInput, error.to_string()),
            Self::Parameters(message) => Error::new(ErrorKind::InvalidInput, message.clone()),
            Self::Method => Error::new(ErrorKind::InvalidInput, "method not allowed"),
            Self::Cancelled => Error::new(ErrorKind::Cancelled, "cancelled"),
            Self::Unsuitable(kind, message) => Error::new(*kind, message.clone()),
        }
    }
}
