//! XXH64, the checksum of Zstandard frames (RFC 8878, section 3.1.1). No
//! protection from anybody: that is the chain's.

const P1: u64 = 0x9e37_79b1_85eb_ca87;
const P2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const P3: u64 = 0x1656_67b1_9e37_79f9;
const P4: u64 = 0x85eb_ca77_c2b2_ae63;
const P5: u64 = 0x27d4_eb2f_1656_67c5;

/// The checksum, with seed 0, of the bytes so far.
pub(crate) struct Xxh64 {
    lanes: [u64; 4],
    /// What is no whole stripe of 32 bytes yet.
    rest: Vec<u8>,
    length: u64,
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

impl Xxh64 {
    pub(crate) fn new() -> Self {
        let lanes = [P1.wrapping_add(P2), P2, 0, 0_u64.wrapping_sub(P1)];
        Self { lanes, rest: Vec::with_capacity(32), length: 0 }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        self.length = self.length.wrapping_add(bytes.len() as u64);
        if !self.rest.is_empty() {
            let missing = bytes.len().min(32 - self.rest.len());
            let (first, more) = bytes.split_at(missing);
            self.rest.extend_from_slice(first);
            bytes = more;
            if self.rest.len() < 32 {
                return;
            }
            let whole = std::mem::take(&mut self.rest);
            self.stripes(&whole);
        }
        let rest = self.stripes(bytes);
        self.rest.extend_from_slice(rest);
    }

    /// Takes whole stripes; returns what follows them.
    fn stripes<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (stripes, rest) = bytes.as_chunks::<32>();
        for stripe in stripes {
            let (words, _none) = stripe.as_chunks::<8>();
            for (lane, word) in self.lanes.iter_mut().zip(words) {
                *lane = round(*lane, u64::from_le_bytes(*word));
            }
        }
        rest
    }

    pub(crate) fn finish(&self) -> u64 {
        let mut hash = if self.length < 32 {
            P5
        } else {
            let turned = self.lanes.iter().zip([1, 7, 12, 18]);
            let sum = turned.fold(0, |sum: u64, (lane, by)| sum.wrapping_add(lane.rotate_left(by)));
            self.lanes
                .iter()
                .fold(sum, |hash, lane| (hash ^ round(0, *lane)).wrapping_mul(P1).wrapping_add(P4))
        };
        hash = hash.wrapping_add(self.length);
        let (words, rest) = self.rest.as_chunks::<8>();
        for word in words {
            hash ^= round(0, u64::from_le_bytes(*word));
            hash = hash.rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
        }
        let (halves, rest) = rest.as_chunks::<4>();
        for half in halves {
            hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(P1);
            hash = hash.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
        }
        for byte in rest {
            hash = (hash ^ u64::from(*byte).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
        }
        hash = (hash ^ hash >> 33).wrapping_mul(P2);
        hash = (hash ^ hash >> 29).wrapping_mul(P3);
        hash ^ hash >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By libxxhash: the hashes of so many bytes that count up.
    const EXPECTED: [(usize, u64); 10] = [
        (0, 0xef46_db37_51d8_e999),
        (1, 0xe934_a84a_db05_2768),
        (4, 0xffce_d860_4453_cc1e),
        (13, 0x13d1_7c4c_7797_23a8),
        (31, 0xc346_d2b5_9b4d_8ee1),
        (32, 0xcbf5_9c51_16ff_32b4),
        (33, 0x0c53_5d1a_cafb_8ead),
        (77, 0x93f8_5c1b_6280_ead3),
        (256, 0x1fac_be84_06cd_904b),
        (1000, 0x6ef4_36b0_0eba_4078),
    ];

    #[test]
    fn is_xxh64_however_it_is_fed() {
        let text: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for (length, expected) in EXPECTED {
            for piece in [1, 7, 31, 32, 33, 1000] {
                let mut hash = Xxh64::new();
                text[..length].chunks(piece).for_each(|bytes| hash.update(bytes));
                assert_eq!(hash.finish(), expected, "{length} in pieces of {piece}");
            }
        }
    }
}
