//! Random identifiers from the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// `N` random bytes in hexadecimal: 16 for an identifier, 32 for a secret.
///
/// # Errors
/// When the kernel gives too few bytes.
pub fn random_hex<const N: usize>() -> io::Result<String> {
    let mut bytes = [0_u8; N];
    if getrandom(&mut bytes, GetRandomFlags::empty())? != N {
        return Err(io::Error::other("no random bytes from the kernel"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
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
}
