//! The search for the key in a server's replies, also where the key is split.
//!
//! The search finds the key as it is, in Base64 and in hexadecimal digits. It does not stop a
//! server that sends another form of the key.

use std::rc::Rc;

use bytes::Bytes;
use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, Encoding, HEXLOWER};
use memchr::memmem;
use zeroize::Zeroizing;

/// The forms of the key that the search finds. One search for each is several times as fast as one
/// automaton for all. No searcher is stored: it would have a copy of its form, which nobody zeroizes.
pub(super) struct KeyForms {
    forms: Vec<Form>,
    /// The key in hexadecimal digits in lower case, which stand for those in upper case, too.
    hexadecimal: Form,
    longest: usize,
}

/// A form of the key, which is as secret as the key.
type Form = Zeroizing<Vec<u8>>;

/// The error for bytes in which the key was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyFound;

impl KeyForms {
    pub(super) fn new(key: &str) -> Self {
        let bytes = key.as_bytes();
        let mut forms = vec![Zeroizing::new(bytes.to_vec())];
        for before in 0..3 {
            for encoding in [BASE64_NOPAD, BASE64URL_NOPAD] {
                forms.push(in_base64(&encoding, bytes, before));
            }
        }
        let hexadecimal = Zeroizing::new(HEXLOWER.encode(bytes).into_bytes());
        forms.sort_by(|one, other| one.as_slice().cmp(other));
        forms.dedup_by(|one, other| one == other);
        let lengths = forms.iter().map(|form| form.len());
        let longest = lengths.max().unwrap_or(0).max(hexadecimal.len());
        Self { forms, hexadecimal, longest }
    }

    pub(super) fn are_in(&self, bytes: &[u8]) -> bool {
        self.forms.iter().any(|form| memmem::find(bytes, form).is_some())
            || memmem::find(&bytes.to_ascii_lowercase(), &self.hexadecimal).is_some()
    }

    /// Returns true if one of them is in the name of a header, which is in lower case.
    pub(super) fn are_in_name(&self, name: &[u8]) -> bool {
        let mut forms = self.forms.iter().map(|form| Zeroizing::new(form.to_ascii_lowercase()));
        forms.any(|form| memmem::find(name, &form).is_some())
            || memmem::find(name, &self.hexadecimal).is_some()
    }

    /// Returns the length of the longest suffix of `bytes` with which a form of the key could
    /// begin.
    fn begun(&self, bytes: &[u8]) -> usize {
        let begins = |length: &usize| {
            let end = bytes.get(bytes.len().saturating_sub(*length)..).unwrap_or_default();
            self.forms.iter().any(|form| form.len() > end.len() && form.starts_with(end))
                || self.hexadecimal.len() > end.len()
                    && self.hexadecimal.starts_with(&end.to_ascii_lowercase())
        };
        (1..self.longest.min(bytes.len() + 1)).rev().find(begins).unwrap_or(0)
    }
}

/// Returns the part of the Base64 encoding of `bytes` that depends on no bytes around them, where
/// `before` other bytes come first.
fn in_base64(encoding: &Encoding, bytes: &[u8], before: usize) -> Form {
    let all = Zeroizing::new([&vec![0; before][..], bytes].concat());
    let encoded = Zeroizing::new(encoding.encode(&all));
    let (first, end) = ((before * 8).div_ceil(6), (before + bytes.len()) * 8 / 6);
    Zeroizing::new(encoded.as_bytes().get(first..end).unwrap_or_default().to_vec())
}

/// A search in a body, part by part.
pub(super) struct Search {
    forms: Rc<KeyForms>,
    /// The last bytes, with which the key could begin. They are passed on once later bytes rule
    /// that out.
    held: Vec<u8>,
}

impl Search {
    pub(super) fn new(forms: &Rc<KeyForms>) -> Self {
        Self { forms: Rc::clone(forms), held: Vec::new() }
    }

    /// Searches the next bytes, and returns those that may be passed on.
    pub(super) fn pass(&mut self, bytes: Bytes) -> Result<Bytes, KeyFound> {
        let mut bytes = match self.held.is_empty() {
            true => bytes,
            false => [&self.held[..], &bytes].concat().into(),
        };
        if self.forms.are_in(&bytes) {
            return Err(KeyFound);
        }
        let begun = self.forms.begun(&bytes);
        self.held = bytes.split_off(bytes.len() - begun).to_vec();
        Ok(bytes)
    }

    /// Returns the bytes that are left at the end of the body.
    pub(super) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sk-test-0123456789abcdef";

    fn found(body: &[u8], size: usize) -> Result<Vec<u8>, KeyFound> {
        let mut search = Search::new(&Rc::new(KeyForms::new(KEY)));
        let mut passed = Vec::new();
        for part in body.chunks(size) {
            passed.extend(search.pass(Bytes::copy_from_slice(part))?);
        }
        passed.extend(search.rest());
        Ok(passed)
    }

    #[test]
    fn the_key_is_found_however_it_is_split_and_written() {
        let digits: String = KEY.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mixed = digits.replacen('b', "B", 2).replacen('d', "D", 1);
        let mut bodies = vec![KEY.to_owned(), digits.to_uppercase(), digits, mixed];
        bodies.extend(
            ["", "a", "ab", "abc", "x-api-key: "]
                .map(|before| BASE64_NOPAD.encode(format!("{before}{KEY} and more").as_bytes())),
        );
        for body in bodies {
            let body = format!("sk-sk-test-{body}!");
            for size in [1, 2, 7, body.len()] {
                assert_eq!(found(body.as_bytes(), size), Err(KeyFound), "{body} {size}");
            }
        }
    }

    /// A name lost the case of its letters, and with them the key was not found.
    #[test]
    fn the_key_is_found_in_the_name_of_a_header() {
        let forms = KeyForms::new("sk-test-Q7hP2v0A");
        for name in ["x-sk-test-q7hp2v0a", &HEXLOWER.encode(b"sk-test-Q7hP2v0A")] {
            assert!(forms.are_in_name(name.as_bytes()), "{name}");
        }
        assert!(!forms.are_in_name(b"x-sk-test-q7hp2v0"));
    }

    #[test]
    fn what_is_not_the_key_is_passed_on_whole_and_at_once() {
        let body = b"sk-test-0123456789abcde sk-test-sk-t data: {}\n\n";
        for size in [1, 3, body.len()] {
            assert_eq!(found(body, size).unwrap(), body);
        }
        let mut search = Search::new(&Rc::new(KeyForms::new(KEY)));
        let event = Bytes::from_static(b"data: {\"a\": 1}\n\n");
        assert_eq!(search.pass(event.clone()).unwrap(), event);
        assert_eq!(search.pass(Bytes::from_static(b"text sk-te")).unwrap(), &b"text "[..]);
        assert_eq!(search.held(), 5);
        assert_eq!(search.pass(Bytes::from_static(b"nt")).unwrap(), &b"sk-tent"[..]);
    }
}
