//! Keys, receipts and checkpoints from outside, with which a log is compared.

use std::{
    io::{self, Read},
    path::Path,
};

use portcullis_audit::{
    Checkpoint, Directory, FileEntry, Hash, KEYS, MAX_NOTE, NEWEST, Note, NoteError, PublicKey,
    Receipt, Report, Signed, Source as _, Verifier, Warning, WarningKind, distinct, parse_keys,
};

use super::location::LogSource;
use crate::{
    app::{
        audit_log::unreadable,
        failure::{Context as _, Exit, Failure},
    },
    gateway::AuditLog,
    model::Escaped,
    operator_files,
    review::{is_foreign, read_regular},
};

/// The advice if no known key signed a checkpoint.
pub(super) const OTHER_KEY: &str = "a log whose key was changed has one for each time: give all \
                                    of them that you trust, with --key for each or in one file, \
                                    such as a copy of `audit/key.vkey`; if that was never done, \
                                    compare the log with a copy";

/// A head that was stored outside the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoredHead {
    /// A record.
    Record {
        /// Its sequence number.
        seq: u64,
        /// Its leaf hash.
        leaf: Hash,
    },
    /// A checkpoint whose signature is valid.
    Checkpoint(Checkpoint),
}

impl StoredHead {
    /// Parses a receipt, or the file of a checkpoint, which must be signed by one of
    /// `trusted`, or, without any, by a key of the log in `directory`.
    pub(super) fn read(
        text: &str,
        trusted: &[PublicKey],
        directory: &Path,
    ) -> Result<Self, Failure> {
        if let Some(head) = Self::receipt(text) {
            return Ok(head);
        }
        let Ok(note) = small(Path::new(text)) else {
            return Err(Failure::new(format_args!(
                "`{text}` is neither a receipt nor a file: expected a receipt as JSON, SEQ:HASH \
                 with 64 \
                 hexadecimal digits, or a file with a checkpoint"
            ))
            .exit(Exit::Usage));
        };
        let text = String::from_utf8_lossy(&note);
        if let Some(head) = Self::receipt(text.trim()) {
            return Ok(head);
        }
        checkpoint(&note, trusted, directory).map(Self::Checkpoint)
    }

    fn receipt(text: &str) -> Option<Self> {
        if let Ok(Receipt { seq, leaf, .. }) = serde_json::from_str(text) {
            return Some(Self::Record { seq, leaf });
        }
        let (seq, leaf) = text.split_once(':')?;
        Some(Self::Record { seq: seq.parse().ok()?, leaf: leaf.parse().ok()? })
    }
}

/// Returns the checkpoint in a note signed by one of `trusted`, or, without any, by a
/// key of the log in `directory`.
pub(super) fn checkpoint(
    note: &[u8],
    trusted: &[PublicKey],
    directory: &Path,
) -> Result<Checkpoint, Failure> {
    let doing = "cannot use the checkpoint";
    let note = Note::parse(note).or_fail(doing)?;
    let own;
    let keys = if trusted.is_empty() {
        // A writer of the log may have written any key there.
        let bytes = published(directory)?;
        own = parse_keys(&String::from_utf8_lossy(&bytes)).or_fail("the log's public key")?;
        &own
    } else {
        trusted
    };
    let wrong = |failure: Failure| failure.exit(Exit::Audit);
    let signed = note.verify(keys).and_then(Signed::without_wrong).map_err(|error| {
        let failure = wrong(Failure::new(format_args!("{doing}: {error}")));
        match error {
            NoteError::Unsigned => failure.help(OTHER_KEY),
            _ => failure,
        }
    })?;
    let checkpoint = Checkpoint::of(&note).or_fail(doing)?;
    if checkpoint.origin != signed.by.name() {
        return Err(wrong(Failure::new(format_args!(
            "{doing}: it is of another log than its key"
        ))));
    }
    Ok(checkpoint)
}

/// Reads the newest checkpoint in the log's directory, as a note; `None` if there is
/// none.
pub(super) fn newest(directory: &Path) -> Result<Option<Vec<u8>>, Failure> {
    match read_regular(&directory.join(NEWEST), MAX_NOTE as u64) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).or_fail("cannot read the newest checkpoint"),
    }
}

/// Reads the file of the log's public keys.
pub(super) fn published(directory: &Path) -> Result<Vec<u8>, Failure> {
    let read = read_regular(&directory.join(KEYS), MAX_NOTE as u64);
    read.or_fail("cannot read the log's public key")
}

/// The last checkpoint that gateways stored beside the key.
enum Noted {
    /// There is none.
    Nothing,
    /// This one.
    Checkpoint(Checkpoint),
    /// It cannot be read.
    Unreadable(Warning),
}

/// Reads the last checkpoint that gateways stored beside the key in the state directory
/// `state`: a writer who has access to the log's directory only cannot change it.
///
/// # Errors
/// When it cannot be read, and when nothing but an unreadable one is left of all checkpoints.
fn noted(state: &Path, source: &Directory) -> Result<Noted, Failure> {
    let bytes = match read_regular(&state.join(AuditLog::LAST_SIGNED), MAX_NOTE as u64) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Noted::Nothing),
        Err(error) if is_foreign(&error) => {
            return Err(Failure::new(format_args!(
                "`{}`, which notes the last checkpoint, is no regular file of the audit log",
                state.join(AuditLog::LAST_SIGNED).display()
            ))
            .help("move it away, and try again")
            .exit(Exit::Audit));
        }
        read => read.or_fail(format_args!(
            "cannot read `{}`, which notes the last checkpoint",
            state.join(AuditLog::LAST_SIGNED).display()
        ))?,
    };
    let path = state.join(AuditLog::LAST_SIGNED);
    match Note::parse(&bytes).and_then(|note| Checkpoint::of(&note)) {
        Ok(checkpoint) => Ok(Noted::Checkpoint(checkpoint)),
        // A power failure may have left any content, but not without a checkpoint in the log.
        Err(error) if has_checkpoint(source).or_fail("cannot read the audit log")? => {
            let shown = path.display();
            let detail =
                format!("the log is not compared with the last checkpoint: `{shown}`: {error}");
            let kind = WarningKind::UnreadableHead;
            Ok(Noted::Unreadable(Warning { kind, count: 1, seq: None, detail }))
        }
        Err(error) => Err(Failure::new(format_args!(
            "the audit log is damaged: a checkpoint of it was signed, and none is left; `{}`, which \
             notes the last one, cannot be read: {error}",
            path.display()
        ))
        .help(
            "put the log and the note back from a copy; without one, `portcullis audit recover` goes \
             on with what is left",
        )
        .exit(Exit::Audit)),
    }
}

/// Returns true if a checkpoint is in the log's directory, which the verifier judges.
fn has_checkpoint(source: &Directory) -> io::Result<bool> {
    let is_newest = |file: &FileEntry| file.name == NEWEST;
    Ok(source.list()?.iter().any(is_newest) || !source.history()?.is_empty())
}

/// Returns the verifier of the log that `log` names. The log of a state directory is
/// compared with the checkpoint beside its key, and the configured witnesses are known. A warning
/// says that it is not compared.
pub(super) fn verifier<'a>(
    log: &LogSource,
    source: &'a Directory,
    trusted: Vec<PublicKey>,
    mut witnesses: Vec<PublicKey>,
) -> Result<(Verifier<'a, Directory>, Option<Warning>), Failure> {
    let mut noted_last = Noted::Nothing;
    if log.dir.is_none() {
        noted_last = noted(&log.location.state()?, source)?;
        witnesses.extend(log.location.audit()?.witness_keys().map_err(Failure::new)?);
    }
    let verifier = Verifier::new(source).trust(trusted).witnesses(witnesses);
    Ok(match noted_last {
        Noted::Nothing => (verifier, None),
        Noted::Checkpoint(checkpoint) => (verifier.expect_checkpoint(checkpoint), None),
        Noted::Unreadable(warning) => (verifier, Some(warning)),
    })
}

/// Returns the report of a verifier without keys of options, and prints the warning of
/// [`verifier`], for a command that prints no other.
pub(super) fn verified(
    log: &LogSource,
    source: &Directory,
    heads: impl Iterator<Item = (u64, Hash)>,
    directory: &Path,
) -> Result<Report, Failure> {
    let (verifier, warning) = verifier(log, source, Vec::new(), Vec::new())?;
    if let Some(warning) = warning {
        errln!("portcullis: warning: {}", Escaped(&warning.detail));
    }
    let verifier = heads.fold(verifier, |verifier, (seq, leaf)| verifier.expect(seq, leaf));
    verifier.run().map_err(|error| unreadable(directory, &error))
}

/// Returns the keys of options, each a file or a key's text.
pub(super) fn keys(options: &[String]) -> Result<Vec<PublicKey>, Failure> {
    let mut keys = Vec::new();
    for option in options {
        match option.parse() {
            Ok(key) => keys.push(key),
            Err(_no_key) => {
                let bytes = small(Path::new(option))
                    .or_fail(format_args!("cannot read the key `{option}`"))?;
                let read = parse_keys(&String::from_utf8_lossy(&bytes));
                keys.extend(read.or_fail(format_args!("`{option}`"))?);
            }
        }
    }
    distinct(&keys).or_fail("the keys that are given")?;
    Ok(keys)
}

/// Reads a small file that the operator names, which may be a pipe.
pub(super) fn small(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    operator_files::open(path)?.take(MAX_NOTE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_are_heads() {
        let leaf = Hash::of(b"x");
        let read = |text: &str| StoredHead::read(text, &[], Path::new("/nowhere"));
        assert_eq!(read(&format!("7:{leaf}")).unwrap(), StoredHead::Record { seq: 7, leaf });
        let receipt = Receipt { seq: 7, leaf, durable: true };
        let receipt = serde_json::to_string(&receipt).unwrap();
        assert_eq!(read(&receipt).unwrap(), StoredHead::Record { seq: 7, leaf });
        for wrong in ["", "7", "7:", "x:00", "{}", "7:00"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
