//! Signed notes (C2SP `signed-note` and `tlog-cosignature`): a text, a blank line, signature lines.

mod error;
mod key;
mod line;

use std::fmt;

use line::SignatureLine;

pub use error::NoteError;
pub use key::{PrivateKey, PublicKey, distinct, parse_keys};

/// Maximum length of a note, in bytes.
pub const MAX_NOTE: usize = 64 * 1024;

/// A text with signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    text: String,
    lines: Vec<SignatureLine>,
}

/// The verified signatures of a note.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The log's key.
    pub by: PublicKey,
    /// Known witnesses that cosigned, each with its time in seconds since 1970.
    pub witnesses: Vec<(PublicKey, u64)>,
    /// Known witnesses with invalid signatures.
    pub wrong: Vec<PublicKey>,
    /// Number of further signatures, by unknown keys.
    pub unknown: usize,
}

impl Signed {
    /// Refuses invalid signatures of witnesses, too: for keys each of which the caller trusts.
    ///
    /// # Errors
    ///
    /// If there is one.
    pub fn without_wrong(self) -> Result<Self, NoteError> {
        if self.wrong.is_empty() { Ok(self) } else { Err(NoteError::Signature) }
    }
}

impl Note {
    /// Parses a note.
    ///
    /// # Errors
    ///
    /// If it is not a note.
    pub fn parse(bytes: &[u8]) -> Result<Self, NoteError> {
        let text = str::from_utf8(bytes).map_err(|_utf8| NoteError::Note)?;
        let control = |c: char| c < ' ' && c != '\n';
        if bytes.len() > MAX_NOTE || text.contains(control) {
            return Err(NoteError::Note);
        }
        let (body, signatures) = text.rsplit_once("\n\n").ok_or(NoteError::Note)?;
        let signatures = signatures.strip_suffix('\n').ok_or(NoteError::Note)?;
        let lines = signatures.split('\n').map(str::parse).collect::<Result<Vec<_>, _>>()?;
        if body.is_empty() || lines.len() > 100 {
            return Err(NoteError::Note);
        }
        Ok(Self { text: format!("{body}\n"), lines })
    }

    /// Assembles a note; `signatures` are lines with their newlines.
    ///
    /// # Errors
    ///
    /// If the result is not a note.
    pub fn assemble(text: &str, signatures: &str) -> Result<Self, NoteError> {
        Self::parse(format!("{text}\n{signatures}").as_bytes())
    }

    /// Returns the signed text, with its last newline.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Verifies the signatures: a log's key among `keys` must have signed it. Of several, the
    /// result names the one that the text's first line names, if that is among them: the origin of
    /// a checkpoint.
    ///
    /// # Errors
    ///
    /// If none signed it, or if a log's signature by one of the keys is invalid. An invalid
    /// signature of a witness is not the log's fault: it is part of the result.
    pub fn verify(&self, keys: &[PublicKey]) -> Result<Signed, NoteError> {
        let mut by = None;
        let mut witnesses: Vec<(PublicKey, u64)> = Vec::new();
        let (mut wrong, mut unknown) = (Vec::new(), 0);
        for line in &self.lines {
            let Some(key) = keys.iter().find(|key| key.is_named_by(line)) else {
                unknown += 1;
                continue;
            };
            let time = match key.check(line, &self.text) {
                Err(_signature) if key.is_witness() => {
                    wrong.push(key.clone());
                    continue;
                }
                checked => checked?,
            };
            match time {
                None if by.is_none() || self.text.lines().next() == Some(key.name()) => {
                    by = Some(key.clone());
                }
                None => {}
                Some(time) if !witnesses.iter().any(|(known, _)| known == key) => {
                    witnesses.push((key.clone(), time));
                }
                Some(_again) => {}
            }
        }
        Ok(Signed { by: by.ok_or(NoteError::Unsigned)?, witnesses, wrong, unknown })
    }

    /// Returns those of `witnesses` that cosigned it, irrespective of other signatures.
    ///
    /// # Errors
    ///
    /// If a cosignature by one of `witnesses` is invalid.
    pub fn cosigners<'k>(
        &self,
        witnesses: &'k [PublicKey],
    ) -> Result<Vec<&'k PublicKey>, NoteError> {
        let mut cosigners = Vec::new();
        for (key, line) in self.made_by(witnesses) {
            key.check(line, &self.text)?;
            cosigners.push(key);
        }
        Ok(cosigners)
    }

    /// Adds the cosignatures by `witnesses` that `other`, a note with the same text, has in
    /// addition, and removes invalid ones. Also returns the number of cosignatures added.
    ///
    /// # Errors
    ///
    /// If `other` has a different text or an invalid cosignature, or if the result cannot be
    /// parsed.
    pub fn cosigned(
        &self,
        other: &Self,
        witnesses: &[PublicKey],
    ) -> Result<(Self, usize), NoteError> {
        if self.text != other.text {
            return Err(NoteError::Signature);
        }
        let mut cosigned = self.clone();
        let is_wrong = |line: &SignatureLine| {
            let key = witnesses.iter().find(|key| key.is_witness() && key.is_named_by(line));
            key.is_some_and(|key| key.check(line, &self.text).is_err())
        };
        cosigned.lines.retain(|line| !is_wrong(line));
        let mut added = 0;
        for (key, line) in other.made_by(witnesses) {
            key.check(line, &self.text)?;
            if !cosigned.lines.iter().any(|own| key.is_named_by(own)) {
                cosigned.lines.push(line.clone());
                added += 1;
            }
        }
        Ok((Self::parse(cosigned.to_string().as_bytes())?, added))
    }

    /// Returns the signature lines that name one of `witnesses`, each with its key.
    fn made_by<'n, 'k>(
        &'n self,
        witnesses: &'k [PublicKey],
    ) -> impl Iterator<Item = (&'k PublicKey, &'n SignatureLine)> {
        self.lines.iter().filter_map(|line| {
            let mut known = witnesses.iter().filter(|key| key.is_witness());
            known.find(|key| key.is_named_by(line)).map(|key| (key, line))
        })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.lines.iter().try_for_each(|line| line.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use super::{key::cosign, *};

    #[test]
    fn reads_what_other_implementations_wrote() {
        // The example of Go's golang.org/x/mod/sumdb/note.
        let key: PublicKey =
            "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW".parse().unwrap();
        let note = "If you think cryptography is the answer to your problem,\n\
            then you don't know what your problem is.\n\n\
            — PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";
        let note = Note::parse(note.as_bytes()).unwrap();
        assert_eq!(note.verify(std::slice::from_ref(&key)).unwrap().by, key);
        assert_eq!(
            key.to_string(),
            "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
        );
        let secret = PrivateKey::from_secret(
            "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz",
        )
        .unwrap();
        assert_eq!(secret.public(), key);
        assert_eq!(Note::assemble(note.text(), &secret.sign(note.text())), Ok(note));
    }

    #[test]
    fn signatures_are_by_known_keys_and_right() {
        let key = PrivateKey::from_seed("example.com/log", [7; 32]).unwrap();
        let again = PrivateKey::from_secret(&key.to_secret()).unwrap();
        assert_eq!(again.public(), key.public());
        assert_eq!(key.public().to_string().parse(), Ok(key.public()));
        let text = "example.com/log\n1\nroot\n";
        let (witness, line) = cosign("witness.example", [9; 32], 1_700_000_000, text);
        let note = Note::assemble(text, &(key.sign(text) + &line)).unwrap();
        assert_eq!(Note::parse(note.to_string().as_bytes()), Ok(note.clone()));
        let signed = note.verify(&[key.public(), witness.clone()]).unwrap();
        assert_eq!(signed.witnesses, [(witness.clone(), 1_700_000_000)]);
        assert_eq!(note.verify(&[key.public()]).unwrap().unknown, 1);
        assert_eq!(note.verify(std::slice::from_ref(&witness)), Err(NoteError::Unsigned));
        let other = Note { text: text.replace('1', "2"), ..note.clone() };
        assert_eq!(other.verify(&[key.public()]), Err(NoteError::Signature));
        let old = Note::assemble(text, &line.replace("AAAAAGVT8QA", "AAAAAGVT8QE")).unwrap();
        let with = Note { lines: [note.lines[..1].to_vec(), old.lines].concat(), ..note.clone() };
        if with != note {
            let signed = with.verify(&[key.public(), witness.clone()]).unwrap();
            assert_eq!((signed.witnesses, signed.wrong), (vec![], vec![witness]));
        }
    }

    /// Unverified signatures were stored, of which one more than the maximum made a note
    /// unreadable, and an invalid one remained beside the valid one.
    #[test]
    fn only_right_cosignatures_by_known_witnesses_are_added() {
        let key = PrivateKey::from_seed("example.com/log", [7; 32]).unwrap();
        let text = "example.com/log\n1\nroot\n";
        let note = |more: &str| Note::assemble(text, &(key.sign(text) + more)).unwrap();
        let (witness, right) = cosign("witness.example", [9; 32], 1_700_000_000, text);
        let known = std::slice::from_ref(&witness);
        // The time differs from the signed one.
        let wrong = cosign("witness.example", [9; 32], 1_700_000_000, "other\n1\nroot\n").1;
        let strangers: String =
            (0..98).map(|seed| cosign("stranger", [seed; 32], 7, text).1).collect();
        let alone = note("");
        assert_eq!(alone.cosigned(&note(&right), known), Ok((note(&right), 1)));
        assert_eq!(note(&right).cosigned(&alone, known), Ok((note(&right), 0)));
        assert_eq!(note(&right).cosigned(&note(&right), known), Ok((note(&right), 0)));
        assert_eq!(
            alone.cosigned(&note(&(strangers.clone() + &right)), known),
            Ok((note(&right), 1))
        );
        assert_eq!(alone.cosigned(&note(&strangers), known), Ok((alone.clone(), 0)));
        assert_eq!(alone.cosigned(&note(&right), &[]), Ok((alone.clone(), 0)));
        assert_eq!(alone.cosigned(&note(&wrong), known), Err(NoteError::Signature));
        assert_eq!(note(&wrong).cosigned(&note(&right), known), Ok((note(&right), 1)));
        // The witness need not return the signatures of others.
        let only = Note::assemble(text, &right).unwrap();
        assert_eq!(only.cosigners(known), Ok(vec![&witness]));
        assert_eq!(alone.cosigned(&only, known), Ok((note(&right), 1)));
        // The result can always be parsed again.
        let (other, more) = cosign("other", [8; 32], 7, text);
        let full = note(&(strangers + &right));
        assert_eq!(full.cosigned(&note(&more), &[witness.clone(), other]), Err(NoteError::Note));
        let elsewhere = Note::assemble("example.com/log\n2\nroot\n", &right).unwrap();
        assert_eq!(alone.cosigned(&elsewhere, known), Err(NoteError::Signature));
    }

    /// Two keys with equal name and hash: the hash has 32 bits, so they can be found by trying.
    const COLLIDING: [&str; 2] = [
        "n+79e788cf+ATRCZgYoi1eUUgP2bK3D7Khq2G+jOZjeiE0Wq8MnIFqB",
        "n+79e788cf+AeZQcAT5GmZ/kzQudhQmKuMM8Pa8uPW8amLB5wKa38CJ",
    ];

    #[test]
    fn two_keys_of_one_name_and_hash_are_refused() {
        let [one, other] = COLLIDING.map(|key| key.parse::<PublicKey>().unwrap());
        assert_eq!((one.name(), one.id()), (other.name(), other.id()));
        assert_ne!(one, other);
        let [one, other] = COLLIDING;
        assert_eq!(parse_keys(&format!("{one}\n{other}\n")), Err(NoteError::Ambiguous));
        assert_eq!(parse_keys(&format!("{one}\n{one}\n")).unwrap().len(), 2);
    }

    #[test]
    fn what_is_no_note_is_refused() {
        for wrong in [
            "",
            "\n\n",
            "a\n",
            "a\n\n",
            "a\n\nb\n",
            "a\n\n— n\n",
            "a\n\n— n AAAA\n",
            "a\n\n— n AAAAAAAA",
            "a\t\n\n— n AAAAAAAA\n",
        ] {
            assert_eq!(Note::parse(wrong.as_bytes()), Err(NoteError::Note), "{wrong:?}");
        }
        assert!(Note::parse("a\n\n— n AAAAAAAA\n".as_bytes()).is_ok());
        assert_eq!("a+00000000+AQ==".parse::<PublicKey>(), Err(NoteError::PublicKey));
        assert_eq!(PrivateKey::from_seed("a b", [0; 32]).unwrap_err(), NoteError::Name);
    }
}
