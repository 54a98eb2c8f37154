//! Why a text is no note, no key or no signature.

/// Why a text is no note, no key or no signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// Not a signed note.
    #[error("the text is no signed note")]
    Note,
    /// Not a checkpoint in a note.
    #[error("the note is no checkpoint")]
    Checkpoint,
    /// Not a public key, or of another kind.
    #[error("expected a public key: NAME+HASH+BASE64, Ed25519")]
    PublicKey,
    /// Not a private key.
    #[error("expected a private key: PRIVATE+KEY+NAME+HASH+BASE64, Ed25519")]
    PrivateKey,
    /// A key's name has a blank or a plus in it, or is empty.
    #[error("a key's name must be a text without blanks and `+`")]
    Name,
    /// No signature line says by which of two keys it is.
    #[error("two different keys have one name and one hash")]
    Ambiguous,
    /// No signature is by a key that is known.
    #[error("no signature is by a known key")]
    Unsigned,
    /// A signature by a known key is wrong.
    #[error("a signature is wrong")]
    Signature,
}
