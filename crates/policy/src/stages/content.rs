//! The checks of content: of all the bytes that are disclosed or stored.

use super::finding::Finding;
use crate::{
    Decision, Effect, Policy,
    model::{Access, is_text},
    settings::Binary,
};

impl Policy {
    /// The first thing that `content` may not be for `access`.
    pub(crate) fn content_denial(&self, access: Access, content: &[u8]) -> Option<Finding<'_>> {
        let settings = &self.settings;
        let (size_rule, size, binary_rule, binary) = match access {
            Access::Read => {
                ("files.maxReadSize", settings.max_read, "files.binary.read", settings.binary_read)
            }
            Access::Write => (
                "files.maxWriteSize",
                settings.max_write,
                "files.binary.write",
                settings.binary_write,
            ),
            Access::List | Access::Remove => return None,
        };
        if u64::try_from(content.len()).unwrap_or(u64::MAX) > size.value {
            return Some(Finding::fixed(size_rule, size.place, "the content is too large"));
        }
        if binary.value == Binary::Deny && !is_text(content) {
            return Some(Finding::fixed(
                binary_rule,
                binary.place,
                "the content is not text: it holds a NUL byte or is not UTF-8",
            ));
        }
        None
    }

    /// The most bytes that may be disclosed or stored at once; a read or write
    /// beyond it is denied, so nobody needs to load more than one byte more.
    pub fn max_size(&self, access: Access) -> u64 {
        match access {
            Access::Read => self.settings.max_read.value,
            Access::Write => self.settings.max_write.value,
            Access::List | Access::Remove => u64::MAX,
        }
    }

    /// What is said when neither the object nor the content is objected to.
    pub(crate) fn no_objection(&self) -> Decision {
        Decision {
            effect: Effect::Allow,
            rule: "files".to_owned(),
            place: None,
            reason: None,
            would_deny: false,
        }
    }
}
