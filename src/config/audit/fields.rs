//! The keys of the section, with types and bounds.

use std::ops::Range;

use toml::de::DeTable;

use crate::policy::{Field, Shape, optional, required};

const TEXTS: Shape = Shape::List(&Shape::Text);
/// A bound that no sensible value exceeds.
const MAX_NUMBER: u64 = 1_000_000_000_000;

/// The key of the file that this module reads.
pub(super) const FIELDS: &[Field] = &[optional("audit", Shape::Table(AUDIT))];

const AUDIT: &[Field] = &[
    optional("durability", Shape::Word(&["written", "synced"])),
    optional(
        "checkpoints",
        Shape::Table(&[
            optional("records", Shape::Integer(1, MAX_NUMBER)),
            optional("seconds", Shape::Integer(1, MAX_NUMBER)),
        ]),
    ),
    optional("signer", TEXTS),
    optional("publicKey", Shape::Text),
    optional("witnesses", TEXTS),
    optional("ship", Shape::Tables(TARGET)),
    optional(
        "compress",
        Shape::Table(&[
            optional("enabled", Shape::Boolean),
            optional("afterDays", Shape::Integer(0, 4_294_967_295)),
        ]),
    ),
    optional("search", Shape::Word(&["files", "summary"])),
    optional("mount", Shape::Word(&["versions", "opens"])),
];

const TARGET: &[Field] = &[
    required("to", Shape::Text),
    optional("headers", Shape::Texts),
    optional("options", Shape::Texts),
];

/// Returns the location of the value of the section's `key`.
pub(super) fn place(text: &str, key: &str) -> Range<usize> {
    let (root, _) = DeTable::parse_recoverable(text);
    let section = root.get_ref().get("audit").and_then(|audit| audit.get_ref().as_table());
    section.and_then(|section| section.get(key)).map_or(0..0, |value| value.span())
}
