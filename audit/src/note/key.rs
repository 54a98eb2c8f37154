//! The keys of notes: public ones of logs and witnesses, private ones of logs.

use std::{collections::HashMap, fmt, str::FromStr};

use ed25519_dalek::{Signature as Ed25519, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest, Sha256};

use super::{
    error::NoteError,
    line::{SignatureLine, is_name},
};
use crate::base64;

/// The algorithm byte of a log's own Ed25519 signature.
const ED25519: u8 = 1;
/// The algorithm byte of a witness's cosignature with its time.
const COSIGNATURE: u8 = 4;

/// Returns the four bytes by which signature lines name a key: the beginning of a hash over its
/// name, its algorithm and itself.
fn key_id(name: &str, algorithm: u8, key: &[u8]) -> u32 {
    let hash = Sha256::new()
        .chain_update(name.as_bytes())
        .chain_update([b'\n', algorithm])
        .chain_update(key)
        .finalize();
    hash.iter().take(4).fold(0, |id, byte| id << 8 | u32::from(*byte))
}

/// The public key of a log or a witness: `NAME+HASH+BASE64`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    name: String,
    algorithm: u8,
    key: VerifyingKey,
}

impl PublicKey {
    /// Returns the name; for a log it is also the origin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the key is a witness's.
    pub fn is_witness(&self) -> bool {
        self.algorithm == COSIGNATURE
    }

    pub(super) fn id(&self) -> u32 {
        key_id(&self.name, self.algorithm, self.key.as_bytes())
    }

    /// True if a signature line names this key.
    pub(super) fn is_named_by(&self, line: &SignatureLine) -> bool {
        self.name == line.name && self.id() == line.id
    }

    /// Verifies a signature. Returns the time of a cosignature in seconds since 1970, or `None` for
    /// a log's own signature; an error if it is not over `text` by this key.
    pub(super) fn check(&self, line: &SignatureLine, text: &str) -> Result<Option<u64>, NoteError> {
        let verify = |message: &[u8], bytes: &[u8]| {
            let bytes: &[u8; 64] = bytes.try_into().map_err(|_length| NoteError::Signature)?;
            let signature = Ed25519::from_bytes(bytes);
            self.key.verify_strict(message, &signature).map_err(|_wrong| NoteError::Signature)
        };
        if self.algorithm == ED25519 {
            return verify(text.as_bytes(), &line.bytes).map(|()| None);
        }
        let (time, signature) = line.bytes.split_first_chunk().ok_or(NoteError::Signature)?;
        let time = u64::from_be_bytes(*time);
        verify(format!("cosignature/v1\ntime {time}\n{text}").as_bytes(), signature)?;
        Ok(Some(time))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&[self.algorithm], self.key.as_bytes().as_slice()].concat();
        write!(f, "{}+{:08x}+{}", self.name, self.id(), base64::encode(&bytes))
    }
}

impl FromStr for PublicKey {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let parse = || {
            let mut parts = text.splitn(3, '+');
            let (name, id, key) = (parts.next()?, parts.next()?, parts.next()?);
            let bytes = base64::decode(key)?;
            let (algorithm, key) = bytes.split_first()?;
            let key = VerifyingKey::from_bytes(key.try_into().ok()?).ok()?;
            // A point has one canonical encoding (RFC 8032, section 5.1.3).
            let canonical = key.to_edwards().compress();
            if canonical.as_bytes() != key.as_bytes() {
                return None;
            }
            let known = matches!(*algorithm, ED25519 | COSIGNATURE) && is_name(name);
            let key = Self { name: name.to_owned(), algorithm: *algorithm, key };
            (known && id == format!("{:08x}", key.id())).then_some(key)
        };
        parse().ok_or(NoteError::PublicKey)
    }
}

/// Parses the keys in a file: one per line; empty lines and those that begin with `#` are skipped.
///
/// # Errors
///
/// If a line is not a key, if there is none, or if two of them are [`NoteError::Ambiguous`].
pub fn parse_keys(text: &str) -> Result<Vec<PublicKey>, NoteError> {
    let trim = |line| str::trim_matches(line, [' ', '\t', '\r']);
    let lines = text.split('\n').map(trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let keys = lines.map(str::parse).collect::<Result<Vec<_>, _>>()?;
    if keys.is_empty() { Err(NoteError::PublicKey) } else { distinct(&keys).map(|()| keys) }
}

/// Checks that a signature line names at most one of `keys`.
///
/// # Errors
///
/// [`NoteError::Ambiguous`]: with four bytes of hash, a second key with the same hash can be found.
pub fn distinct(keys: &[PublicKey]) -> Result<(), NoteError> {
    let mut known = HashMap::new();
    for key in keys {
        if *known.entry((key.name(), key.id())).or_insert(key) != key {
            return Err(NoteError::Ambiguous);
        }
    }
    Ok(())
}

/// A private key: `PRIVATE+KEY+NAME+HASH+BASE64`, the format of Go's `note` package.
#[derive(Clone)]
pub struct PrivateKey {
    name: String,
    key: SigningKey,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateKey").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PrivateKey {
    /// Makes a key from `seed`, 32 random bytes.
    ///
    /// # Errors
    ///
    /// If `name` is not valid for a key.
    pub fn from_seed(name: &str, seed: [u8; 32]) -> Result<Self, NoteError> {
        if !is_name(name) {
            return Err(NoteError::Name);
        }
        Ok(Self { name: name.to_owned(), key: SigningKey::from_bytes(&seed) })
    }

    /// Returns its public key.
    pub fn public(&self) -> PublicKey {
        PublicKey { name: self.name.clone(), algorithm: ED25519, key: self.key.verifying_key() }
    }

    /// Returns its text, which is secret.
    pub fn to_secret(&self) -> String {
        let bytes = [&[ED25519], self.key.as_bytes().as_slice()].concat();
        let id = self.public().id();
        format!("PRIVATE+KEY+{}+{id:08x}+{}", self.name, base64::encode(&bytes))
    }

    /// Parses the text of a private key.
    ///
    /// # Errors
    ///
    /// If it is not one.
    pub fn from_secret(text: &str) -> Result<Self, NoteError> {
        let parse = || {
            let mut parts = text.strip_prefix("PRIVATE+KEY+")?.splitn(3, '+');
            let (name, id, key) = (parts.next()?, parts.next()?, parts.next()?);
            let bytes = base64::decode(key)?;
            let seed = bytes.strip_prefix(&[ED25519])?.try_into().ok()?;
            let key = Self::from_seed(name, seed).ok()?;
            (id == format!("{:08x}", key.public().id())).then_some(key)
        };
        parse().ok_or(NoteError::PrivateKey)
    }

    /// Signs `text`; returns the signature line with its newline.
    pub fn sign(&self, text: &str) -> String {
        let signature = self.key.sign(text.as_bytes()).to_bytes();
        SignatureLine { name: self.name.clone(), id: self.public().id(), bytes: signature.to_vec() }
            .to_string()
    }
}

/// Makes a witness's key and cosignature for tests.
#[cfg(test)]
pub(crate) fn cosign(name: &str, seed: [u8; 32], time: u64, text: &str) -> (PublicKey, String) {
    let key = SigningKey::from_bytes(&seed);
    let public =
        PublicKey { name: name.to_owned(), algorithm: COSIGNATURE, key: key.verifying_key() };
    let signature = key.sign(format!("cosignature/v1\ntime {time}\n{text}").as_bytes());
    let bytes = [&time.to_be_bytes(), signature.to_bytes().as_slice()].concat();
    let line = SignatureLine { name: name.to_owned(), id: public.id(), bytes }.to_string();
    (public, line)
}
