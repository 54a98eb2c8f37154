//! Checkpoints: the tree heads that a log's key signs (C2SP `tlog-checkpoint`).

use std::{
    fmt,
    io::{self, BufRead, Read as _},
};

use crate::{Hash, Note, NoteError, base64};

/// The file of the newest checkpoint, in the log's directory.
pub const NEWEST: &str = "checkpoint";
/// The directory of the stored checkpoints, each named by its size.
pub const HISTORY: &str = "checkpoints";
/// The file of the public keys: the current one first, then former ones.
pub const KEYS: &str = "key.vkey";
/// The file of the segments' root hashes: line N, counted from 0, is that of segment N.
pub const ROOTS: &str = "roots";
/// Bytes of a line of that file: a hash in hexadecimal digits, and a newline.
pub const ROOT_LINE: u64 = 65;
/// The file of the newest checkpoint's frontier.
pub const FRONTIER: &str = "frontier";

/// Reads a line of the file of root hashes into `line`; of a line that is too long only the
/// beginning. Returns the length of the complete line in bytes.
///
/// # Errors
///
/// The error of the system.
pub fn read_root_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    let read = file.take(ROOT_LINE).read_until(b'\n', line)? as u64;
    if read < ROOT_LINE || line.ends_with(b"\n") {
        return Ok(read);
    }
    Ok(read + file.skip_until(b'\n')? as u64)
}

/// A tree head: the number of records and their root hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log's origin: the name of its key.
    pub origin: String,
    /// The number of records.
    pub size: u64,
    /// The root hash over their leaf hashes.
    pub root: Hash,
}

impl Checkpoint {
    /// Parses the checkpoint in a note.
    ///
    /// # Errors
    ///
    /// If the note is not a checkpoint. Signatures are not checked here, but by [`Note::verify`].
    pub fn of(note: &Note) -> Result<Self, NoteError> {
        let parse = || {
            let mut lines = note.text().strip_suffix('\n')?.split('\n');
            let (origin, size, root) = (lines.next()?, lines.next()?, lines.next()?);
            let checkpoint = Self {
                origin: origin.to_owned(),
                size: size.parse().ok()?,
                root: Hash::from_bytes(base64::decode(root)?.try_into().ok()?),
            };
            // Further lines extend the format; empty ones do not.
            let whole = lines.all(|line| !line.is_empty()) && !origin.is_empty();
            (whole && checkpoint.size.to_string() == size).then_some(checkpoint)
        };
        parse().ok_or(NoteError::Checkpoint)
    }
}

/// Formats the text that is signed.
impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = base64::encode(self.root.as_bytes());
        writeln!(f, "{}\n{}\n{root}", self.origin, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrivateKey;

    #[test]
    fn a_checkpoint_is_three_lines() {
        let key = PrivateKey::from_seed("example.com/log", [1; 32]).unwrap();
        let checkpoint =
            Checkpoint { origin: "example.com/log".to_owned(), size: 7, root: Hash::of(b"x") };
        let note = |text: &str| Note::assemble(text, &key.sign(text)).unwrap();
        let text = checkpoint.to_string();
        let root = base64::encode(Hash::of(b"x").as_bytes());
        assert_eq!(text, format!("example.com/log\n7\n{root}\n"));
        assert_eq!(Checkpoint::of(&note(&text)), Ok(checkpoint.clone()));
        assert_eq!(Checkpoint::of(&note(&format!("{text}more\n"))), Ok(checkpoint));
        for wrong in [
            text.replace("\n7\n", "\n07\n"),
            text.replace("\n7\n", "\n-7\n"),
            text.replace('=', ""),
            "a\n7\n".to_owned(),
        ] {
            assert_eq!(Checkpoint::of(&note(&wrong)), Err(NoteError::Checkpoint), "{wrong}");
        }
    }
}
