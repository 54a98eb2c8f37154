//! Names that no agent can guess.

use rustix::{
    io::Errno,
    rand::{GetRandomFlags, getrandom},
};

/// Returns 64 random bits in hexadecimal.
pub(super) fn random_hex() -> Result<String, Errno> {
    let mut bytes = [0; 8];
    // The kernel returns so few bytes in one call.
    getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
