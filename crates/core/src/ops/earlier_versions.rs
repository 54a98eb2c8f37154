//! Secrets of a file that is missing, from the versions that the session itself removed or replaced
//! at that path, or at a name to which it renamed the file.
//!
//! Programs such as git replace a file by removing it and making another one. The placeholders of
//! the new one were shown of an earlier version, whose backup has the secrets.

use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

use super::{Context, Error, Findings, SomeAttributes, read_backup};
use crate::{
    backup::{Backup, BackupId, BackupKind},
    model::{Access, OperationKind, WorkspacePath},
    policy::{Query, Secrets},
};

/// Maximum number of versions that are searched for the secrets of placeholders.
const MAX_VERSIONS: usize = 20;
/// The permission bits of the owner.
const OWNER: u32 = 0o700;

/// The content of a file that is made anew.
pub(super) struct Renewed<'t> {
    /// The content with its secrets.
    pub(super) content: Cow<'t, [u8]>,
    /// The backup that has them.
    pub(super) from: Backup,
}

impl Renewed<'_> {
    /// Returns the identifier of the backup, for the record.
    pub(super) fn backup(&self) -> BackupId {
        self.from.id
    }

    /// Returns the attributes of the new file: nobody but its owner may do more with it than with
    /// the earlier version.
    pub(super) fn attributes(&self, asked: SomeAttributes) -> SomeAttributes {
        let Some(before) = self.from.restored_mode() else { return asked };
        let mode = asked.mode.unwrap_or(before) & (before | OWNER);
        SomeAttributes { mode: Some(mode), ..asked }
    }
}

impl Context<'_> {
    /// Decides on `text` as the content of the missing file at `path`: its placeholders must all be
    /// those of one version that this session removed or replaced there, or after it renamed the
    /// file. `None` if there is none that can be read.
    ///
    /// # Errors
    /// [`Error::Refused`] when the policy denies the result, with the reason of the newest version.
    pub(super) fn store_anew<'t>(
        &self,
        path: &WorkspacePath,
        text: &'t [u8],
    ) -> Result<Option<Renewed<'t>>, Error> {
        let mut newest = None;
        let begun = Instant::now();
        let limit = self.policy.secrets().map_or(Duration::ZERO, Secrets::max_scan_time);
        for from in self.earlier_versions(path)? {
            // A pruned or damaged backup has no secrets to put back.
            let Ok(stored) = self.backup_store.content(&from) else { continue };
            let Ok(version) = read_backup::bytes(self, Access::Read, stored) else { continue };
            let findings = Findings::default();
            let alone = Context { findings: &findings, ..*self };
            let stored = self
                .check(Access::Read, path, &version)
                .and_then(|()| alone.store(path, Some(&version), text.into()));
            match stored {
                Ok(content) => {
                    self.findings.take_over(&findings);
                    return Ok(Some(Renewed { content, from }));
                }
                Err(error @ Error::Refused(_)) => {
                    newest.get_or_insert((error, findings));
                }
                Err(error) => return Err(error),
            }
            if begun.elapsed() > limit {
                break;
            }
        }
        let Some((error, findings)) = newest else { return Ok(None) };
        self.findings.take_over(&findings);
        Err(error)
    }

    /// Returns the backups of files that this session removed or replaced at `path` or at a later
    /// name of it, newest first. A later name counts if the agent may read it and its content has
    /// no other labels: an error would compare its content with that of `path`.
    fn earlier_versions(&self, path: &WorkspacePath) -> Result<Vec<Backup>, Error> {
        let session = self.session.recorded_id();
        let may_read = |path: &WorkspacePath| {
            let (access, operation) = (Access::Read, OperationKind::Read);
            self.policy.evaluate(&Query { agent: self.agent, operation, access, path }).is_allow()
        };
        let is_own = |entry: &Backup| entry.session == session && entry.kind == BackupKind::File;
        let mut entries = Vec::new();
        for name in self.last_renames.names_of(session, path) {
            let is_like_path =
                || may_read(&name) && self.labels_of(&name).ids().eq(self.labels_of(path).ids());
            if name == *path || is_like_path() {
                let versions = self.backup_store.newest_of(&name)?;
                for entry in
                    versions.filter(|entry| entry.as_ref().map_or(true, is_own)).take(MAX_VERSIONS)
                {
                    entries.push(entry?);
                }
            }
        }
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.id));
        entries.truncate(MAX_VERSIONS);
        Ok(entries)
    }
}
