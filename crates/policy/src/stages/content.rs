//! The checks of content: of all bytes that are disclosed or stored.

use super::finding::Finding;
use crate::{
    Decision, Effect, Policy,
    model::{Access, Transport, is_text},
    settings::Binary,
};

const TOO_LARGE: &str = "the content is too large";

impl Policy {
    /// Returns the first reason why `content` is denied for `access`.
    pub(crate) fn content_denial(
        &self,
        access: Access,
        transport: Transport,
        content: &[u8],
    ) -> Option<Finding<'_>> {
        let files = &self.settings;
        let mount = &files.mount;
        let (size_rule, size, binary_rule, binary) = match (access, transport) {
            (Access::List | Access::Remove, _) => return None,
            (Access::Read, Transport::Mount) => {
                ("mount.maxReadSize", mount.max_read, "mount.binary.read", mount.binary_read)
            }
            (Access::Write, Transport::Mount) => {
                ("mount.maxWriteSize", mount.max_write, "mount.binary.write", mount.binary_write)
            }
            (Access::Read, _) => {
                ("files.maxReadSize", files.max_read, "files.binary.read", files.binary_read)
            }
            (Access::Write, _) => {
                ("files.maxWriteSize", files.max_write, "files.binary.write", files.binary_write)
            }
        };
        if u64::try_from(content.len()).unwrap_or(u64::MAX) > size.value {
            return Some(Finding::fixed(size_rule, size.location, TOO_LARGE));
        }
        if binary.value == Binary::Deny && !is_text(content) {
            return Some(Finding::fixed(
                binary_rule,
                binary.location,
                "the content is not text: it contains a NUL byte or is not UTF-8",
            ));
        }
        None
    }

    /// Returns the denial of a write through the mount that makes a file so large that its content is
    /// never there: by the policy's limit or, if that is larger, by the mount's own.
    pub fn deny_write_of_size(&self, size: u64) -> Decision {
        let limit = self.settings.mount.max_write;
        match size > limit.value {
            true => Finding::fixed("mount.maxWriteSize", limit.location, TOO_LARGE)
                .decision(Effect::Deny, self),
            false => Decision::built_in_denial("mount.fileSize", TOO_LARGE),
        }
    }

    /// Returns the maximum number of bytes that may be disclosed or stored at once by way of
    /// `transport`. A larger read or write is denied, so no more than one byte more needs to be
    /// loaded.
    pub fn max_size(&self, access: Access, transport: Transport) -> u64 {
        let files = &self.settings;
        match (access, transport) {
            (Access::List | Access::Remove, _) => u64::MAX,
            (Access::Read, Transport::Mount) => files.mount.max_read.value,
            (Access::Write, Transport::Mount) => files.mount.max_write.value,
            (Access::Read, _) => files.max_read.value,
            (Access::Write, _) => files.max_write.value,
        }
    }

    /// Returns the decision if neither the object nor the content is denied.
    pub(crate) fn no_objection(&self) -> Decision {
        Decision::new(Effect::Allow, "files")
    }
}
