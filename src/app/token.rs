//! Tokens: 256 random bits, of which only a hash is stored.
//!
//! The hash is SHA-256 without salt and without work factor: those make it costly to
//! try the few passwords that people choose. A token is random, and 2^256 values
//! cannot be tried; a slow hash would only let clients with wrong tokens use up the
//! processor.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{
    app::failure::{Context as _, Failure},
    config::serve::TOKEN_PREFIX,
    gateway::random_bytes,
    serve::TokenHash,
};

/// Returns a new token.
pub(crate) fn make() -> Result<String, Failure> {
    let bytes = random_bytes::<32>().or_fail("cannot get random bytes")?;
    Ok(format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// Returns the hash that is stored.
pub(crate) fn hash(token: &str) -> [u8; 32] {
    TokenHash::of(token).0
}
