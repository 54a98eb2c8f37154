//! The current content of a file: on the disk, in the editor, or both.

use std::fs::File;

use super::{BufferError, Context, Error, Source};
use crate::{
    backup::holds,
    model::Access,
    policy::ObjectKind,
    workspace::{self, Permit, read_bounded},
};
use std::os::fd::AsFd as _;

/// The content that an agent would read now, and its source.
pub(super) struct Current {
    /// The file on the disk; `None` if it is missing.
    pub(super) disk: Option<File>,
    /// The editor's buffer, if it takes precedence.
    pub(super) buffer: Option<Vec<u8>>,
}

impl Current {
    /// Opens the file, and reads the editor's buffer as the source demands.
    pub(super) fn look(context: &Context<'_>, permit: &Permit) -> Result<Self, Error> {
        let disk = match permit.object().kind {
            ObjectKind::Missing => None,
            _ => Some(permit.open_file(context.workspace)?),
        };
        let buffer = match context.source {
            Source::Disk => None,
            // The editor would look for it by a name that may be an alias of another entry.
            _ if disk.is_none() && context.workspace.has_aliases() => None,
            Source::Auto(buffers) | Source::Editor(buffers) => {
                let pinned = match context.name_locks.pin(context.workspace, permit) {
                    // A link on the way that is hidden from the agent, or a newer object: neither
                    // was decided on.
                    Err(Error::Workspace(workspace::Error::Moved)) if disk.is_none() => {
                        return Ok(Self { disk, buffer: None });
                    }
                    pinned => pinned?,
                };
                let read = buffers.read(permit.path());
                drop(pinned);
                match read {
                    // Not every editor has an error code for a missing file.
                    Err(BufferError::Refused(_)) if disk.is_none() => None,
                    read => read?,
                }
            }
        };
        Ok(Self { disk, buffer })
    }

    /// Looks at the content for a change, as [`Current::look`]: a buffer that equals the disk does
    /// not count, so that the change goes to the disk.
    pub(super) fn look_for_change(context: &Context<'_>, permit: &Permit) -> Result<Self, Error> {
        let mut current = match Self::look(context, permit) {
            // An editor without reads has no buffer to lose.
            Err(Error::Editor(BufferError::Unsupported(_)))
                if matches!(context.source, Source::Auto(_)) =>
            {
                Self::look(&Context { source: Source::Disk, ..*context }, permit)?
            }
            other => other?,
        };
        if let (Source::Auto(_), Some(buffer), Some(disk)) =
            (context.source, &current.buffer, &current.disk)
            && holds(disk.as_fd(), buffer)?
        {
            current.buffer = None;
        }
        Ok(current)
    }

    /// Returns the bytes, at most one more than the policy allows for `access`.
    pub(super) fn bytes(
        &self,
        context: &Context<'_>,
        permit: &Permit,
        access: Access,
    ) -> Result<Option<Vec<u8>>, Error> {
        match (&self.buffer, &self.disk, context.source) {
            (Some(buffer), _, _) => Ok(Some(buffer.clone())),
            (None, _, Source::Editor(_)) | (None, None, _) => Ok(None),
            (None, Some(disk), _) => {
                let size = permit.stat().map_or(0, |stat| stat.size);
                Ok(Some(read_bounded(disk, size, context.max_size(access))?))
            }
        }
    }

    /// Returns the bytes as [`Current::bytes`], where a missing file is an error.
    pub(super) fn existing_bytes(
        &self,
        context: &Context<'_>,
        permit: &Permit,
        access: Access,
    ) -> Result<Vec<u8>, Error> {
        self.bytes(context, permit, access)?.ok_or(Error::Workspace(workspace::Error::NotFound))
    }
}
