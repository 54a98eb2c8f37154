//! The texts as which a content can be read.

use std::{borrow::Cow, char::REPLACEMENT_CHARACTER};

use crate::model::is_text;

/// The byte order mark in UTF-8, which every reading is in; it is not part of the text.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Returns the readings of a content: the bytes themselves and, for content that is not text, its
/// decodings as UTF-16 in both byte orders, from the first byte and from the second. A byte order
/// mark is not trusted, since a receiver of the bytes can read them in any way. Each reading is
/// made on demand, since it may be half as large again as the content.
pub(super) fn readings(content: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let wide: &[(usize, bool)] = if is_text(content) { &[] } else { &WIDE };
    let decoded = wide.iter().map(|(start, is_little_endian)| {
        let (pairs, _) = content.get(*start..).unwrap_or_default().as_chunks::<2>();
        let units = pairs.iter().map(|pair| match is_little_endian {
            true => u16::from_le_bytes(*pair),
            false => u16::from_be_bytes(*pair),
        });
        let text = char::decode_utf16(units).map(|read| read.unwrap_or(REPLACEMENT_CHARACTER));
        Cow::Owned(text.collect::<String>().into_bytes())
    });
    std::iter::once(Cow::Borrowed(content)).chain(decoded)
}

/// The starting byte, and whether the first byte of a unit is its low one.
const WIDE: [(usize, bool); 4] = [(0, true), (0, false), (1, true), (1, false)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf_16_is_read_in_both_byte_orders_and_at_odd_places() {
        let units: Vec<u16> = "key=ą😀".encode_utf16().collect();
        let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        let reads = |content: &[u8], text: &str| {
            readings(content).any(|reading| String::from_utf8_lossy(&reading).contains(text))
        };
        assert!(reads(&little, "key=ą😀") && reads(&big, "key=ą😀"));
        assert!(reads(&[&[0xff, 0xfe], &*little].concat(), "key=ą😀"));
        assert!(reads(&[&[0xfe, 0xff], &*big].concat(), "key=ą😀"));
        assert!(reads(&[&[7], &*little, &[0, 0]].concat(), "key="));
        assert_eq!(readings("plain ą".as_bytes()).count(), 1);
    }
}
