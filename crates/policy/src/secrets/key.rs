//! The key of placeholders and of the hashes of findings.
//!
//! The caller provides the key; this module neither makes nor stores one.

use std::fmt;

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// A secret key of 256 bits, from the state directory.
#[derive(Clone)]
pub struct SecretKey(Hmac<Sha256>);

impl SecretKey {
    /// Length of a key in bytes.
    pub const LENGTH: usize = 32;

    /// Makes the key from these random bytes.
    pub fn new(bytes: &[u8; Self::LENGTH]) -> Self {
        // HMAC (RFC 2104) pads a key with zeros to the block size of the hash.
        let mut block = [0_u8; 64];
        block.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Self(Hmac::new(&block.into()))
    }

    /// Computes 128 bits of the HMAC-SHA256 over `parts`, each with its length, as hex digits.
    /// `purpose` separates hashes for different uses.
    pub(super) fn tag(&self, purpose: &str, parts: &[&[u8]]) -> String {
        let mut mac = self.0.clone();
        for part in [purpose.as_bytes()].iter().chain(parts) {
            mac.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            mac.update(part);
        }
        let bytes = mac.finalize().into_bytes();
        HEXLOWER.encode(bytes.get(..16).unwrap_or(&bytes))
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_depends_on_key_purpose_and_where_the_parts_end() {
        let (one, other) = (SecretKey::new(&[1; 32]), SecretKey::new(&[2; 32]));
        let tag = one.tag("p", &[b"ab", b"c"]);
        assert_eq!(tag.len(), 32);
        assert_eq!(tag, one.tag("p", &[b"ab", b"c"]));
        for different in [
            one.tag("p", &[b"a", b"bc"]),
            one.tag("q", &[b"ab", b"c"]),
            other.tag("p", &[b"ab", b"c"]),
        ] {
            assert_ne!(tag, different);
        }
        assert_eq!(format!("{one:?}"), "SecretKey");
    }
}
