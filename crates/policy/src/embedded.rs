//! The policies that are built into the program.

use super::check::nearest;

/// Name and text of each, in the order of the documents.
pub const EMBEDDED: [(&str, &str); 7] = [
    ("baseline", include_str!("../../../policies/baseline.toml")),
    ("secrets", include_str!("../../../policies/secrets.toml")),
    ("default", include_str!("../../../policies/default.toml")),
    ("read-only", include_str!("../../../policies/read-only.toml")),
    ("coding-agent", include_str!("../../../policies/coding-agent.toml")),
    ("docs-writer", include_str!("../../../policies/docs-writer.toml")),
    ("strict", include_str!("../../../policies/strict.toml")),
];

/// Returns the text of the embedded policy `name`.
pub fn embedded(name: &str) -> Option<&'static str> {
    EMBEDDED.into_iter().find(|(known, _)| *known == name).map(|(_, text)| text)
}

/// True if `reference` has the form of an embedded policy's name rather than a file's: it has no
/// `/` and does not end in `.toml`.
pub fn is_name(reference: &str) -> bool {
    !reference.contains('/') && !reference.ends_with(".toml")
}

/// Returns the message for the name of an embedded policy that does not exist.
pub fn unknown_name(name: &str) -> String {
    let names = EMBEDDED.map(|(name, _)| name);
    match nearest(name, names.into_iter()) {
        Some(near) => format!("no embedded policy has this name; did you mean `{near}`?"),
        None => format!(
            "no embedded policy has this name; there are {}; a file needs a `/` or `.toml`",
            names.join(", ")
        ),
    }
}
