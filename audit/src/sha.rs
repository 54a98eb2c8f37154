//! SHA-256 of bytes that already lie one behind the other: for a verifier,
//! what the general interface costs around each record counts.

use sha2::block_api::compress256;

use crate::Hash;

/// The initial state (FIPS 180-4, section 5.3.3).
const START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The hash of `bytes`.
pub(crate) fn digest(bytes: &[u8]) -> Hash {
    let mut state = START;
    let (blocks, rest) = bytes.as_chunks::<64>();
    compress256(&mut state, blocks);
    let mut last = [[0_u8; 64]; 2];
    let padding = last.as_flattened_mut();
    let bits = (bytes.len() as u64).wrapping_mul(8).to_be_bytes();
    let end = if rest.len() < 56 { 64 } else { 128 };
    let parts = [(0, rest), (rest.len(), &[0x80]), (end - 8, &bits)];
    for (at, part) in parts {
        if let Some(place) = padding.get_mut(at..at + part.len()) {
            place.copy_from_slice(part);
        }
    }
    compress256(&mut state, last.get(..end / 64).unwrap_or(&last));
    let mut hash = [0; 32];
    for (place, word) in hash.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *place = word.to_be_bytes();
    }
    Hash::from_bytes(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_sha_256_at_every_length() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..=bytes.len() {
            assert_eq!(digest(&bytes[..length]), Hash::of(&bytes[..length]), "{length}");
        }
    }
}
