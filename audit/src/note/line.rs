//! Signature lines: a dash, the key's name, and the key's ID with the signature in base64.

use std::{fmt, str::FromStr};

use super::error::NoteError;
use crate::base64;

/// The beginning of each signature line.
const DASH: &str = "\u{2014} ";

/// One signature of a note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SignatureLine {
    pub(super) name: String,
    pub(super) id: u32,
    pub(super) bytes: Vec<u8>,
}

impl fmt::Display for SignatureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&self.id.to_be_bytes(), self.bytes.as_slice()].concat();
        writeln!(f, "{DASH}{} {}", self.name, base64::encode(&bytes))
    }
}

impl FromStr for SignatureLine {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let parse = || {
            let (name, signature) = text.strip_prefix(DASH)?.split_once(' ')?;
            let bytes = base64::decode(signature)?;
            let (id, bytes) = bytes.split_first_chunk()?;
            let line =
                Self { name: name.to_owned(), id: u32::from_be_bytes(*id), bytes: bytes.to_vec() };
            (is_name(name) && !bytes.is_empty()).then_some(line)
        };
        parse().ok_or(NoteError::Note)
    }
}

/// True if `name` is valid for a key.
pub(super) fn is_name(name: &str) -> bool {
    let wrong = |c: char| c.is_whitespace() || c.is_control() || c == '+';
    !name.is_empty() && !name.contains(wrong)
}
