//! SHA-256 in the form of the log.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// A SHA-256 hash (FIPS 180-4); as text 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Hash([u8; 32]);

/// The text is not a [`Hash`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not 64 lower-case hexadecimal digits")]
pub struct HashError;

impl Hash {
    /// 32 zero bytes: the `prev` of the first record of a chain.
    pub const ZERO: Self = Self([0; 32]);

    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Computes the leaf hash of a record line without its newline: SHA-256 over a zero byte and
    /// the line (RFC 6962, section 2.1).
    pub fn leaf(line: &[u8]) -> Self {
        Self(Sha256::new().chain_update([0]).chain_update(line).finalize().into())
    }

    /// Wraps the bytes of a hash.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses a text, without a branch for each digit, since every line of a log has one.
    pub(crate) fn from_digits(digits: &[u8; 64]) -> Option<Self> {
        const INVALID_DIGIT: u8 = 0xf0;
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => INVALID_DIGIT,
        };
        let (mut bytes, mut wrong) = ([0; 32], 0);
        for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            let (high, low) = (nibble(*high), nibble(*low));
            wrong |= (high | low) & INVALID_DIGIT;
            *byte = high << 4 | low;
        }
        (wrong == 0).then_some(Self(bytes))
    }

    /// Returns the text in ASCII.
    pub(crate) fn digits(&self) -> [u8; 64] {
        const DIGITS: [u8; 16] = *b"0123456789abcdef";
        let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or_default();
        let mut digits = [0; 64];
        for (pair, byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(&self.0) {
            *pair = [digit(byte >> 4), digit(byte & 15)];
        }
        digits
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Hash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        let digits = text.as_bytes().try_into().map_err(|_length| HashError)?;
        Self::from_digits(digits).ok_or(HashError)
    }
}

impl TryFrom<String> for Hash {
    type Error = HashError;

    fn try_from(text: String) -> Result<Self, HashError> {
        text.parse()
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_hash_are_inverse() {
        let hash = Hash::of(b"abc");
        assert_eq!(
            hash.to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!("zz".parse::<Hash>(), Err(HashError));
        assert_eq!(hash.to_string().to_uppercase().parse::<Hash>(), Err(HashError));
    }
}
