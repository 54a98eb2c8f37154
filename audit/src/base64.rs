//! Base64 as in RFC 4648, section 4: the standard alphabet, with padding, and only the canonical
//! text of each byte string.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes `bytes`.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = (0..3).fold(0_u32, |group, at| {
            group << 8 | u32::from(chunk.get(at).copied().unwrap_or_default())
        });
        for at in 0..4_usize {
            let index = (group >> (18 - 6 * at)) & 63;
            let digit = ALPHABET.get(index as usize).copied().unwrap_or_default();
            text.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// Decodes a canonical text; `None` for any other text.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let (groups, rest) = text.as_bytes().as_chunks::<4>();
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for group in groups {
        let mut value = 0_u32;
        for digit in group.iter().take_while(|digit| **digit != b'=') {
            let index = ALPHABET.iter().position(|known| known == digit)?;
            value = value << 6 | u32::try_from(index).ok()?;
        }
        let digits = group.iter().take_while(|digit| **digit != b'=').count();
        let [_, three @ ..] = (value << (6 * (4 - digits))).to_be_bytes();
        bytes.extend(three.iter().take(digits.checked_sub(1)?));
    }
    // Any other text that decodes to the same bytes is not canonical.
    (rest.is_empty() && encode(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_texts() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        for wrong in ["Zg", "Zg=", "Zh==", "Z===", "====", "Zg==Zg==", "Zm9\n", "Zm9v ", "Zm-_"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
