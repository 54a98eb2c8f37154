//! Errors of notes, keys and signatures.

/// Reasons why a text is not a note, a key or a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// It is not a signed note.
    #[error("the text is no signed note")]
    Note,
    /// The note is not a checkpoint.
    #[error("the note is no checkpoint")]
    Checkpoint,
    /// It is not a public key of a known algorithm.
    #[error("expected a public key: NAME+HASH+BASE64, Ed25519")]
    PublicKey,
    /// It is not a private key.
    #[error("expected a private key: PRIVATE+KEY+NAME+HASH+BASE64, Ed25519")]
    PrivateKey,
    /// A key's name is empty, or contains a blank or a plus.
    #[error("a key's name must be a text without blanks and `+`")]
    Name,
    /// Two keys have the same name and hash, so signature lines do not tell them apart.
    #[error("two different keys have one name and one hash")]
    Ambiguous,
    /// No signature is by a known key.
    #[error("no signature is by a known key")]
    Unsigned,
    /// A signature by a known key is invalid.
    #[error("a signature is wrong")]
    Signature,
}
