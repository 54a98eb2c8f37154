//! Signed policies: Ed25519 over the hash of a policy with all that it extends.
//!
//! The signature of `FILE` is `FILE.sig`, four lines:
//!
//! ```text
//! portcullis policy signature 1
//! key ed25519:BASE64 of the 32 bytes of the public key
//! policy HEX of SHA-256 over the policy's texts
//! signature BASE64 of 64 bytes
//! ```
//!
//! The signature is over [`CONTEXT`], the hash in hex and a newline, so that a signature
//! for another purpose is not valid here. The texts include embedded policies, so another
//! version of one needs another signature.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ed25519_dalek::{Signature, Signer as _, VerifyingKey};

use super::file::{read, reason};
use crate::gateway::random_bytes;

/// The first line of the signed message.
const CONTEXT: &str = "portcullis policy signature v1\n";
/// The first line of a signature file.
const HEADER: &str = "portcullis policy signature 1";
/// The prefix of a public key.
const PUBLIC: &str = "ed25519:";
/// The prefix of a private key's file.
const PRIVATE: &str = "portcullis policy key 1 ed25519 ";

/// A public key that verifies signatures of policies.
#[derive(Clone, PartialEq, Eq)]
pub struct PolicyKey(VerifyingKey);

/// A private key that signs policies. Never shown.
pub struct SigningKey(ed25519_dalek::SigningKey);

/// The reason why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is no public key.
    #[error(
        "expected `ed25519:` and 32 bytes in base64: the public key that `portcullis policy keygen` \
         prints, not the name of a file"
    )]
    Public,
    /// The file is no private key.
    #[error("the file is not a private key of `portcullis policy keygen`")]
    Private,
    /// The error of the system.
    #[error("{}", reason(.0))]
    Io(#[from] io::Error),
}

/// The reason why a policy is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The policy is embedded, and embedded policies are not signed.
    #[error("the embedded policy `{0}` has no signature")]
    Embedded(String),
    /// There is no readable signature.
    #[error("the policy has no signature that can be read: `{path}`: {reason}")]
    Unsigned {
        /// The path of the signature.
        path: String,
        /// The error.
        reason: String,
    },
    /// The file is no valid signature file.
    #[error("`{0}` is not a signature of a policy")]
    Malformed(String),
    /// The signature is for other texts.
    #[error("the policy, or what it extends, is not as it was when `{0}` was made")]
    Other(String),
    /// The signature's key is not an accepted one.
    #[error("the signature `{path}` is by the key {key}, which is not an accepted one")]
    Stranger {
        /// The path of the signature.
        path: String,
        /// Its key.
        key: String,
    },
    /// The signature is not valid.
    #[error("the signature `{0}` is not valid: it was not made with the key that it names")]
    Forged(String),
}

impl TrustError {
    /// Returns what the operator can do.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Embedded(_) => {
                "`portcullis policy show NAME > FILE.toml` makes a file of it, which can be signed"
            }
            Self::Unsigned { .. } | Self::Malformed(_) => {
                "`portcullis policy sign FILE.toml --key KEYFILE` makes FILE.toml.sig"
            }
            Self::Other(_) => {
                "look at what changed, then sign the policy again: `portcullis policy sign`"
            }
            Self::Stranger { .. } => {
                "sign the policy with an accepted key, or accept this key: with --key for \
                 `policy verify`, in `policyKeys` of portcullis.toml for starts"
            }
            Self::Forged(_) => {
                "do not use the policy: get it anew from its author, or read it and sign it again"
            }
        }
    }
}

impl SigningKey {
    /// Returns a new key.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn generate() -> io::Result<Self> {
        Ok(Self(ed25519_dalek::SigningKey::from_bytes(&random_bytes()?)))
    }

    /// Reads a key from a file.
    ///
    /// # Errors
    /// When there is no valid key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let bytes = read(path)?;
        let text = str::from_utf8(&bytes).map_err(|_| KeyError::Private)?;
        let seed = text.trim_end().strip_prefix(PRIVATE).ok_or(KeyError::Private)?;
        let seed = STANDARD.decode(seed).ok().and_then(|seed| seed.try_into().ok());
        Ok(Self(ed25519_dalek::SigningKey::from_bytes(&seed.ok_or(KeyError::Private)?)))
    }

    /// Writes the content of its file, which only its owner may read.
    ///
    /// # Errors
    /// The error of the system.
    pub fn write(&self, mut file: impl io::Write) -> io::Result<()> {
        writeln!(file, "{PRIVATE}{}", STANDARD.encode(self.0.to_bytes()))
    }

    /// Returns the public key.
    pub fn public(&self) -> PolicyKey {
        PolicyKey(self.0.verifying_key())
    }

    /// Returns the content of a signature file for the policy with this hash.
    pub fn sign(&self, sha256: &str) -> String {
        let signature = self.0.sign(message(sha256).as_bytes());
        format!(
            "{HEADER}\nkey {}\npolicy {sha256}\nsignature {}\n",
            self.public(),
            STANDARD.encode(signature.to_bytes())
        )
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public()).finish()
    }
}

impl fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC}{}", STANDARD.encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PolicyKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = text.strip_prefix(PUBLIC).and_then(|text| STANDARD.decode(text).ok());
        let bytes: [u8; 32] = bytes.and_then(|b| b.try_into().ok()).ok_or(KeyError::Public)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| KeyError::Public)?;
        // Such a key verifies arbitrary signatures.
        if key.is_weak() { Err(KeyError::Public) } else { Ok(Self(key)) }
    }
}

/// Returns the path of a policy file's signature.
pub fn signature_path(policy: &Path) -> PathBuf {
    let mut name = policy.as_os_str().to_owned();
    name.push(".sig");
    name.into()
}

/// Verifies the text of a signature file, shown as `shown`, for the policy with this hash;
/// returns the key, one of `keys`.
pub(super) fn verify(
    keys: &[PolicyKey],
    text: &str,
    sha256: &str,
    shown: String,
) -> Result<PolicyKey, TrustError> {
    let Some((key, signed, signature)) = parse(text) else {
        return Err(TrustError::Malformed(shown));
    };
    if signed != sha256 {
        return Err(TrustError::Other(shown));
    }
    // The operator's key counts, not the file's.
    let Some(key) = keys.iter().find(|known| known.to_string() == key) else {
        let key = crate::model::Escaped(key).to_string();
        return Err(TrustError::Stranger { path: shown, key });
    };
    key.0
        .verify_strict(message(sha256).as_bytes(), &signature)
        .map_err(|_| TrustError::Forged(shown))?;
    Ok(key.clone())
}

fn parse(text: &str) -> Option<(&str, &str, Signature)> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    if lines.next()? != HEADER {
        return None;
    }
    let key = lines.next()?.strip_prefix("key ")?;
    let sha256 = lines.next()?.strip_prefix("policy ")?;
    let signature = lines.next()?.strip_prefix("signature ")?;
    let signature: [u8; 64] = STANDARD.decode(signature).ok()?.try_into().ok()?;
    lines.next().is_none().then(|| (key, sha256, Signature::from_bytes(&signature)))
}

fn message(sha256: &str) -> String {
    format!("{CONTEXT}{sha256}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_counts_for_its_policy_and_its_key_only() {
        let (ours, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let keys = [ours.public()];
        let check = |text: &str, hash: &str| verify(&keys, text, hash, "f".into());
        let hash = "a".repeat(64);
        let good = ours.sign(&hash);
        check(&good, &hash).unwrap();
        assert!(matches!(check(&good, &"b".repeat(64)), Err(TrustError::Other(_))));
        let stranger = other.sign(&hash);
        assert!(matches!(check(&stranger, &hash), Err(TrustError::Stranger { .. })));
        let dressed = stranger.replace(&other.public().to_string(), &ours.public().to_string());
        assert!(matches!(check(&dressed, &hash), Err(TrustError::Forged(_))));
        let moved = ours.sign(&"b".repeat(64)).replace(&"b".repeat(64), &hash);
        assert!(matches!(check(&moved, &hash), Err(TrustError::Forged(_))));
        let late = good.strip_prefix('p').unwrap();
        for bad in ["", late, &format!("{good}\n"), good.trim_end(), &good.replace("==", "")] {
            assert!(matches!(check(bad, &hash), Err(TrustError::Malformed(_))), "{bad:?}");
        }
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let key = SigningKey::generate().unwrap();
        let text = key.public().to_string();
        assert_eq!(text.parse::<PolicyKey>().unwrap(), key.public());
        assert!(!format!("{key:?}").contains(&STANDARD.encode(key.0.to_bytes())));
        // The point of order 1 verifies arbitrary signatures.
        let weak = format!("ed25519:{}", STANDARD.encode([&[1][..], &[0; 31]].concat()));
        for bad in ["", "ed25519:", "ed25519:AAAA", text.trim_start_matches("ed25519:"), &weak] {
            assert!(bad.parse::<PolicyKey>().is_err(), "{bad}");
        }
    }
}
