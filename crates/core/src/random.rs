//! Random bytes from the kernel.

use data_encoding::HEXLOWER;
use rustix::{
    io::{Errno, retry_on_intr},
    rand::{GetRandomFlags, getrandom},
};

/// Returns `N` random bytes.
///
/// # Errors
/// When the kernel returns none.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], Errno> {
    let (mut bytes, mut filled) = ([0; N], 0);
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}

/// Returns `N` random bytes in hexadecimal: 16 for an identifier, 32 for a secret.
///
/// # Errors
/// When the kernel returns none.
pub fn random_hex<const N: usize>() -> Result<String, Errno> {
    random_bytes::<N>().map(|bytes| HEXLOWER.encode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_have_two_digits_for_each_byte_and_differ() {
        let (one, other) = (random_hex::<16>().unwrap(), random_hex::<16>().unwrap());
        assert_eq!((one.len(), random_hex::<32>().unwrap().len()), (32, 64));
        assert!(one != other && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    /// A signal may interrupt a read of more than 256 bytes (`getrandom(2)`).
    #[test]
    fn many_bytes_are_all_random() {
        let bytes = random_bytes::<4096>().unwrap();
        assert!(bytes.as_chunks::<64>().0.iter().all(|part| part.iter().any(|byte| *byte != 0)));
    }
}
