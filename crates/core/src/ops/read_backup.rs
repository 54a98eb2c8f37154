//! Disclosure of backups: content under the same checks as the file's own, and of a tree the
//! visible names.

use std::io::Read as _;

use portcullis_audit::Hash;

use super::{Content, Context, Entries, Entry, EntryKind, Error, Facts, Sealed};
use crate::{
    backup::{self, BackupStore, NodeKind},
    model::{Access, Encoding, WorkspacePath, is_text},
    policy::Query,
};

/// Reads the content of a backup of a file, link (its target) or buffer.
///
/// # Errors
/// When the backup is damaged or a tree, or the policy denies its content.
pub(crate) fn content(
    context: &Context<'_>,
    backup_store: &BackupStore,
    entry: &backup::Backup,
    encoding: Encoding,
) -> Result<Sealed<Content>, Error> {
    let bytes = bytes(context, Access::Read, backup_store.content(entry)?)?;
    let hash = Hash::of(&bytes);
    let view = context.disclose(&entry.path, bytes)?;
    let text = is_text(&view.bytes);
    if !text && encoding == Encoding::Text {
        return Err(Error::Invalid("the backup is binary; ask for it as base64"));
    }
    let facts = Facts {
        bytes: u64::try_from(view.bytes.len()).ok(),
        before: Some(hash),
        ..Facts::default()
    };
    let content =
        Content { bytes: view.bytes, text, redacted: view.redacted, whole: hash, part: None };
    Ok(Sealed::content(content, facts, context.labels_of(&entry.path)))
}

/// Lists the nodes of a tree's backup that the policy lets the agent see.
///
/// # Errors
/// When the backup is damaged or no tree.
pub(crate) fn tree(
    context: &Context<'_>,
    backup_store: &BackupStore,
    entry: &backup::Backup,
) -> Result<Sealed<Entries>, Error> {
    let mut tree = backup_store.tree(entry)?;
    let mut entries = Vec::new();
    while let Some(node) = tree.next_node()? {
        let Ok(path) = tree.path(&node) else {
            return Err(crate::workspace::Error::TooLong.into());
        };
        if !is_visible(context, &path) {
            continue;
        }
        let attributes = node.attributes.as_ref();
        entries.push(Entry {
            path,
            kind: match node.kind {
                NodeKind::Directory => EntryKind::Directory,
                NodeKind::File => EntryKind::File,
                NodeKind::Link => EntryKind::Symlink,
            },
            size: (node.kind == NodeKind::File).then_some(node.size),
            modified: attributes.map(|attributes| (attributes.mtime, attributes.mtime_nanos)),
            mode: attributes.map(|attributes| attributes.mode & 0o777),
        });
    }
    let mut facts = Facts { before: Some(entry.sha256), ..Facts::default() };
    facts.counts.insert("entries".to_owned(), u64::try_from(entries.len()).unwrap_or(u64::MAX));
    Ok(Sealed::names(Entries { entries, not_utf8: 0 }, facts))
}

/// Reads stored bytes: all, or one more than the policy allows for `access`.
pub(super) fn bytes(
    context: &Context<'_>,
    access: Access,
    content: backup::BackupContent,
) -> Result<Vec<u8>, Error> {
    all(content, context.max_size(access).saturating_add(1))
}

/// Reads stored bytes, at most `limit`.
pub(super) fn all(content: backup::BackupContent, limit: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut limited = content.take(limit);
    match limited.read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(limited.get_ref().failed(error).into()),
    }
}

fn is_visible(context: &Context<'_>, path: &WorkspacePath) -> bool {
    [Access::List, Access::Read].into_iter().all(|access| {
        let query = Query { agent: context.agent, operation: context.operation, access, path };
        context.policy.evaluate(&query).is_allow()
    })
}
