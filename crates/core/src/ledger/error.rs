//! Errors of the log.

use portcullis_audit::{ChainError, NoteError, Segment};
use rustix::io::Errno;

/// Why a record is not in the log. Words only: no path, no content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused.
    #[error("cannot {action}: {errno}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        errno: Errno,
    },
    /// Something else than a gate changed the log under a running gate.
    #[error(
        "the audit log was {what} while in use; stop the gates, look at it with \
         `portcullis audit verify` and start again"
    )]
    Tampered {
        /// What happened to it.
        what: &'static str,
    },
    /// The end of the log is not what a gate leaves behind.
    #[error(
        "the audit log is damaged in `{segment}`: {reason}; see `portcullis audit verify`, \
         then `portcullis audit recover`"
    )]
    Damaged {
        /// Where.
        segment: Segment,
        /// What was found.
        reason: String,
    },
    /// The record cannot be written; the log is as it was.
    #[error(transparent)]
    Record(#[from] ChainError),
    /// An outcome, or a recovery, of what is no intent that waits for one.
    #[error("record {0} is no intent that waits for an outcome")]
    NoIntent(u64),
    /// A segment of which nothing can be read.
    #[error(
        "the segment `{0}` cannot be read, and so not be set aside: put it back from a copy, or \
         move it out of the log's directory; see `portcullis audit verify`"
    )]
    Unreadable(String),
    /// Something else has the name of a file or directory of the log.
    #[error("`{0}` in the state directory is no {1} of the audit log: move it away, and try again")]
    Irregular(String, &'static str),
    /// Something went wrong with this file of the log.
    #[error("`{0}`: {1}")]
    File(String, Box<Self>),
    /// A file is longer than what a repair copies.
    #[error(
        "`{0}` in the log's directory has {1} bytes, more than a repair sets aside: move it away, \
         and try again"
    )]
    TooLong(String, u64),
    /// The log's public keys are incomplete, and a new one would not show that.
    #[error(
        "the audit log's `key.vkey` is gone, damaged or lacks a key that signed the log: put it \
         back from a copy, or with `portcullis audit recover`, before the log gets a new key"
    )]
    KeysIncomplete,
    /// A repair needs the log for itself.
    #[error("{0} gates use the log; stop them first")]
    InUse(usize),
    /// A key or a checkpoint in the state directory is none, or not signed.
    #[error(
        "a key or a checkpoint of the audit log is damaged: {0}; see `portcullis audit verify`"
    )]
    Note(#[from] NoteError),
    /// Another process keeps a lock.
    #[error(
        "another process holds the lock `{0}` of the state directory and does not let go of it; \
         nothing is written meanwhile: wait for it or end it, and try again"
    )]
    Locked(&'static str),
    /// The log was signed before, but the private key is not there any more.
    #[error(
        "the audit log was signed before, but its private key is gone: put it back, or go on with \
         another one: `portcullis audit key --new`"
    )]
    KeyGone,
    /// The private key's file holds something else.
    #[error(
        "the audit log's private key `keys/checkpoint.key` is damaged: put it back, or go on with \
         another one: `portcullis audit key --new`"
    )]
    KeyDamaged,
    /// A checkpoint is there, and its key is not named in the log's directory.
    #[error(
        "no key in the audit log's `key.vkey` signed its newest checkpoint: the file is gone, lacks \
         a key or is another log's; see `portcullis audit verify`, then `portcullis audit recover`, \
         which puts back the keys that the log tells"
    )]
    Unsigned,
    /// The log was signed with another key before.
    #[error(
        "the audit log was signed with another key before: configure that one, or go on with the \
         new one: `portcullis audit key --new`"
    )]
    OtherKey,
    /// The log was signed before, and nothing tells with which key.
    #[error(
        "the audit log's public key `key.vkey` is gone or damaged, and neither the private key here \
         nor one that a record names signed a checkpoint: put it back from a copy of the log, or as \
         `portcullis audit key` printed it"
    )]
    PublicKeyGone,
    /// Where the newest checkpoint left off is not known, and much is to be read
    /// to find out.
    #[error(
        "where the last checkpoint left off is not noted any more: `portcullis audit checkpoint` \
         reads the whole log once"
    )]
    FrontierGone,
    /// Nobody signed.
    #[error("the signer did not sign the checkpoint: {0}")]
    Signer(String),
    /// A repair did what was agreed to, and that was not enough.
    #[error("the repair is done, but the log is still damaged: {0}")]
    StillDamaged(String),
    /// This gate ended its lifetime.
    #[error("the gate has stopped")]
    Stopped,
    /// The log is not what the operator agreed to repair.
    #[error("the log changed since it was looked at; look again")]
    Changed,
}

impl Error {
    /// True if the log is not what gates leave behind: waiting or trying again does not
    /// help.
    pub fn is_damage(&self) -> bool {
        if let Self::File(_, error) = self {
            return error.is_damage();
        }
        matches!(
            self,
            Self::Damaged { .. }
                | Self::Unreadable(_)
                | Self::Irregular(..)
                | Self::TooLong(..)
                | Self::KeysIncomplete
                | Self::Note(_)
                | Self::Unsigned
                | Self::PublicKeyGone
                | Self::StillDamaged(_)
        )
    }

    /// True if this user may not do what is needed.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::File(_, error) => error.is_denied(),
            Self::Io { errno, .. } => matches!(*errno, Errno::ACCESS | Errno::PERM),
            _ => false,
        }
    }

    /// True if there is no room on the disk.
    pub fn is_full(&self) -> bool {
        match self {
            Self::File(_, error) => error.is_full(),
            Self::Io { errno, .. } => matches!(*errno, Errno::NOSPC | Errno::DQUOT),
            _ => false,
        }
    }

    /// True if the log is as it was and takes records again once another process
    /// lets it.
    pub(super) fn passes(&self) -> bool {
        matches!(self, Self::Locked(_))
    }

    /// The same with the name of the file that it is about.
    pub(super) fn of(self, name: &str) -> Self {
        Self::File(name.to_owned(), Box::new(self))
    }

    /// Makes an error of the system's answer to `action`.
    pub(super) fn io(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Io { action, errno }
    }

    /// The same for the standard library's errors.
    pub(super) fn std(action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Io { action, errno: Errno::from_io_error(&error).unwrap_or(Errno::IO) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_errors() {
        let error = |errno| Error::io("write the log")(errno).of("lock");
        assert!(error(Errno::NOSPC).is_full() && error(Errno::DQUOT).is_full());
        assert!(!error(Errno::ACCESS).is_full() && !Error::Stopped.is_full());
    }
}
