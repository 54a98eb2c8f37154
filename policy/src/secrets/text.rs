//! The texts that a content can be read as.

use std::borrow::Cow;

use crate::model::is_text;

/// What is looked at: the bytes themselves and, of what is not text, what they
/// are as UTF-16 in both byte orders, from the first byte and from the second.
/// A byte order mark is not believed: whoever gets the bytes can read them in
/// any way.
pub(super) fn readings(content: &[u8]) -> Vec<Cow<'_, [u8]>> {
    let mut readings = vec![Cow::Borrowed(content)];
    if !is_text(content) {
        for start in [content, content.get(1..).unwrap_or_default()] {
            readings.push(decode(start, u16::from_le_bytes));
            readings.push(decode(start, u16::from_be_bytes));
        }
    }
    readings
}

fn decode(content: &[u8], unit: impl Fn([u8; 2]) -> u16) -> Cow<'_, [u8]> {
    let (pairs, _) = content.as_chunks::<2>();
    let units = pairs.iter().map(|pair| unit(*pair));
    let text: String =
        char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
    Cow::Owned(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf_16_is_read_in_both_byte_orders_and_at_odd_places() {
        let units: Vec<u16> = "key=ą😀".encode_utf16().collect();
        let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        let reads = |content: &[u8], text: &str| {
            readings(content).iter().any(|reading| String::from_utf8_lossy(reading).contains(text))
        };
        assert!(reads(&little, "key=ą😀") && reads(&big, "key=ą😀"));
        assert!(reads(&[&[0xff, 0xfe], &*little].concat(), "key=ą😀"));
        assert!(reads(&[&[0xfe, 0xff], &*big].concat(), "key=ą😀"));
        assert!(reads(&[&[7], &*little, &[0, 0]].concat(), "key="));
        assert_eq!(readings("plain ą".as_bytes()).len(), 1);
    }
}
