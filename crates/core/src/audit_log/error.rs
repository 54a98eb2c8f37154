//! Errors of the log.

use portcullis_audit::{ChainError, LineError, NoteError, Segment, VERSION};
use rustix::io::Errno;

/// The reason why segments are neither removed nor compressed.
pub(super) const NO_ROOTS: &str = "`roots`, which must list the full segments, does not reach that far \
                                   or is damaged; `portcullis audit checkpoint` stores it anew";

/// The reason why a record is not in the log. Messages have no path of the workspace and no
/// content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused.
    #[error("cannot {action}: {errno}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// Another program changed the log under a running gateway.
    #[error(
        "the audit log was {what} while in use; stop the gateways, look at it with \
         `portcullis audit verify` and start again"
    )]
    Tampered {
        /// The change.
        what: &'static str,
    },
    /// The end of the log is not in a state that a gateway leaves.
    #[error(
        "the audit log is damaged in `{segment}`: {reason}; see `portcullis audit verify`, \
         then `portcullis audit recover`"
    )]
    Damaged {
        /// The damaged segment.
        segment: Segment,
        /// The damage.
        reason: String,
    },
    /// A record has another version of the format.
    #[error(
        "a newer portcullis wrote the audit log: `{segment}` has records of format version {found}, \
         and this portcullis knows version {VERSION} only"
    )]
    Newer {
        /// The segment of the record.
        segment: Segment,
        /// The version.
        found: u64,
    },
    /// The record cannot be written; the log is unchanged.
    #[error(transparent)]
    Record(#[from] ChainError),
    /// The record that an outcome or a recovery is for is no open intent.
    #[error("record {0} is no intent that waits for an outcome")]
    NoIntent(u64),
    /// The file of a segment cannot be read at all.
    #[error(
        "the segment `audit/{0}` cannot be read, and so not be set aside: put it back from a \
         copy; if there is none, move it out of the log's directory; see `portcullis audit verify`"
    )]
    Unreadable(String),
    /// Another kind of file has the name of a file or directory of the log.
    #[error("`{0}` in the state directory is no {1} of the audit log: move it away, and try again")]
    Irregular(String, &'static str),
    /// The error is about this file of the log.
    #[error("`{0}`: {1}")]
    File(String, Box<Self>),
    /// A file is longer than what a repair copies.
    #[error(
        "`{0}` in the log's directory has {1} bytes, more than a repair sets aside: move it away, \
         and try again"
    )]
    TooLong(String, u64),
    /// The log's public keys are incomplete, which a new one would hide.
    #[error(
        "the audit log's `key.vkey` is gone, damaged or lacks a key that signed the log: put it \
         back from a copy, or with `portcullis audit recover`, before the log gets a new key"
    )]
    KeysIncomplete,
    /// Gateways use the log, and a repair needs it alone.
    #[error("{0} gateways use the log; stop them first")]
    InUse(usize),
    /// A key or a checkpoint in the state directory is invalid, or not signed.
    #[error(
        "a key or a checkpoint of the audit log is damaged: {0}; see `portcullis audit verify`"
    )]
    Note(#[from] NoteError),
    /// Another process has a lock.
    #[error(
        "another process holds the lock `{0}` of the state directory and does not let go of it; \
         nothing is written meanwhile: wait for it or end it, and try again"
    )]
    Locked(&'static str),
    /// The log was signed before, but the private key is missing.
    #[error(
        "the audit log was signed before, but its private key is gone: put it back, or go on with \
         another one: `portcullis audit key --new`"
    )]
    KeyGone,
    /// The file of the private key has other content.
    #[error(
        "the audit log's private key `keys/checkpoint.key` is damaged: put it back, or go on with \
         another one: `portcullis audit key --new`"
    )]
    KeyDamaged,
    /// A checkpoint exists, and its key is not among those of the log's directory.
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
    /// The log was signed before, and its public key is unknown.
    #[error(
        "the audit log's public key `key.vkey` is gone or damaged, and neither the private key here \
         nor one that a record names signed a checkpoint: put it back from a copy of the log, or as \
         `portcullis audit key` printed it"
    )]
    PublicKeyGone,
    /// The tree up to the newest checkpoint is not stored, and much has to be read to compute it.
    #[error(
        "the position of the last checkpoint is not stored any more: `portcullis audit \
         checkpoint` reads the complete log once"
    )]
    FrontierGone,
    /// The signer did not sign.
    #[error("the signer did not sign the checkpoint: {0}")]
    Signer(String),
    /// A repair was made as agreed, and the log is still damaged.
    #[error("the repair is done, but the log is still damaged: {0}")]
    StillDamaged(String),
    /// The gateway's lifetime has ended.
    #[error("the gateway has stopped")]
    Stopped,
    /// The list of roots is missing, short or damaged.
    #[error("{NO_ROOTS}")]
    NoRoots,
    /// The log is not the one for which the operator agreed to a repair.
    #[error("the log changed since it was looked at; look again")]
    Changed,
}

impl Error {
    /// True if the log is in a state that gateways do not leave: neither waiting nor another
    /// attempt helps.
    pub fn is_damage(&self) -> bool {
        if let Self::File(_, error) = self {
            return error.is_damage();
        }
        matches!(
            self,
            Self::Damaged { .. }
                | Self::Newer { .. }
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

    /// True if a newer version of this program wrote the log, as far as its records say.
    pub fn is_newer(&self) -> bool {
        match self {
            Self::File(_, error) => error.is_newer(),
            Self::Newer { .. } => true,
            _ => false,
        }
    }

    /// Returns the error of a line of `segment` that is no record of this format.
    pub(super) fn line(segment: Segment, error: &LineError) -> Self {
        match *error {
            LineError::Version { found } => Self::Newer { segment, found },
            ref other => Self::Damaged { segment, reason: other.to_string() },
        }
    }

    /// True if this user lacks the permission.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::File(_, error) => error.is_denied(),
            Self::Io { errno, .. } => matches!(*errno, Errno::ACCESS | Errno::PERM),
            _ => false,
        }
    }

    /// True if the disk is full.
    pub fn is_full(&self) -> bool {
        match self {
            Self::File(_, error) => error.is_full(),
            Self::Io { errno, .. } => matches!(*errno, Errno::NOSPC | Errno::DQUOT),
            _ => false,
        }
    }

    /// True if the log is unchanged and takes records again once another process releases it.
    pub(super) fn passes(&self) -> bool {
        matches!(self, Self::Locked(_))
    }

    /// Adds the name of the file.
    pub(super) fn of(self, name: &str) -> Self {
        Self::File(name.to_owned(), Box::new(self))
    }

    /// Converts the system's error on `action`.
    pub(super) fn io(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Io { action, errno }
    }

    /// Converts the standard library's error on `action`.
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
