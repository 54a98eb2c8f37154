//! Descriptions of what a rename or removal does with directories and links.

use super::{Description, ShownMode, TOO_LARGE, bounded};
use crate::{
    backup::{self, Saved},
    gateway::pending_approval::ApprovalPreview,
    model::{Escaped, QuotedName, WorkspacePath},
    ops::SealedChange,
    policy::{Object, ObjectKind},
    workspace::Permit,
};

/// Maximum number of a directory's names that are shown.
const MAX_NAMES: usize = 50;

impl Description<'_> {
    /// Describes a rename, and what it replaces.
    pub(super) fn moves(&self, saved: &[Saved], sealed: &SealedChange<'_>) -> ApprovalPreview {
        let (from, to) = (sealed.permit(), sealed.backup_permit());
        let (old_name, new_name) = (from.path(), to.path());
        let replaces_link = !saved.is_empty() && to.object().kind == ObjectKind::Symlink;
        let replaced = match saved.is_empty() {
            true => String::new(),
            false if replaces_link => format!(", replacing {}", shown_link(to)),
            false => ", replacing what is there".to_owned(),
        };
        // The backup of a link has its target.
        let old = if replaces_link { Some(Vec::new()) } else { self.saved_content(saved) };
        let ApprovalPreview { text, is_open } = match (from.object().kind, old) {
            (ObjectKind::Directory, _) => {
                let entries = sealed.tree().iter().map(|walked| ListedEntry {
                    path: &walked.path,
                    object: walked.stat.object(false),
                    is_executable: walked.stat.is_executable(),
                });
                let mut listed = self.listed(old_name, entries.collect());
                if !sealed.tree().is_empty() {
                    listed.text.push_str("(the contents of files are not shown)\n");
                }
                listed
            }
            (ObjectKind::Symlink, old) => {
                let link = shown_link(from);
                let text = match old {
                    Some(old) if old.is_empty() => link,
                    Some(old) => {
                        format!("{link}\n{}", self.difference(to, old, None).text)
                    }
                    None => format!("{link}\n{TOO_LARGE}"),
                };
                ApprovalPreview { text, is_open: false }
            }
            (_, old) => match (old, sealed.content()) {
                (Some(old), Some(new)) => {
                    let is_open = self.may_read(to, &old) && self.may_read(from, new);
                    let contents = [(new_name, old), (old_name, new.to_vec())];
                    let text = self.shown_difference(contents, new_name, false);
                    ApprovalPreview { text, is_open }
                }
                _ => ApprovalPreview::open(TOO_LARGE.to_owned()),
            },
        };
        let mode = from.stat().filter(|stat| stat.kind == ObjectKind::File);
        let mode =
            mode.map_or_else(String::new, |stat| format!(", {}", ShownMode(stat.mode & 0o7777)));
        let (old_name, new_name) = (old_name.named(), new_name.named());
        ApprovalPreview {
            text: format!("renames {old_name} to {new_name}{mode}{replaced}\n{text}"),
            // The target of a link is its content.
            is_open: is_open && !replaces_link,
        }
    }

    /// Describes the removal of a directory by its backup.
    pub(super) fn removes(&self, path: &WorkspacePath, saved: &[Saved]) -> ApprovalPreview {
        let kept = saved.first().and_then(|saved| self.saved_tree(saved).ok());
        let ApprovalPreview { text, is_open } = match &kept {
            Some(kept) => {
                let entries = kept.iter();
                let entries = entries.map(|(path, object)| ListedEntry {
                    path,
                    object: *object,
                    is_executable: false,
                });
                self.listed(path, entries.collect())
            }
            None => ApprovalPreview::open("its entries cannot be shown".to_owned()),
        };
        ApprovalPreview { text: format!("{}\n{text}", self.named(path)), is_open }
    }

    fn saved_tree(&self, saved: &Saved) -> Result<Vec<(WorkspacePath, Object)>, backup::Error> {
        let backup_store = self.backup_store;
        let entry = backup_store.entry(saved)?;
        let mut tree = backup_store.tree(&entry)?;
        let mut kept = Vec::new();
        while let Some(node) = tree.next_node()? {
            // An entry without a path was refused before.
            let path = tree.path(&node).ok().filter(|path| *path != entry.path);
            kept.extend(path.map(|path| (path, node.kind.object())));
        }
        Ok(kept)
    }

    /// Lists the first names beneath a directory, those of executable files before the others, and
    /// their number.
    fn listed(&self, root: &WorkspacePath, mut entries: Vec<ListedEntry<'_>>) -> ApprovalPreview {
        if entries.is_empty() {
            return ApprovalPreview::open("with nothing in it".to_owned());
        }
        entries.sort_unstable_by_key(|entry| (!entry.is_executable, entry.path));
        let is_open = entries.iter().all(|entry| self.authorizer.lists(entry.path, &entry.object));
        let name = |entry: &ListedEntry<'_>| {
            let beneath = entry.path.rebase(root, &WorkspacePath::root());
            let executable = if entry.is_executable { " (executable)" } else { "" };
            let name = Escaped(beneath.as_ref().unwrap_or(entry.path).as_str());
            format!("  {name}{executable}\n")
        };
        let names: String = entries.iter().take(MAX_NAMES).map(name).collect();
        let more = match entries.len().saturating_sub(MAX_NAMES) {
            0 => String::new(),
            more => format!("(and {more} more)\n"),
        };
        let executable = match entries.iter().filter(|entry| entry.is_executable).count() {
            0 => String::new(),
            some => format!(", {some} of them executable"),
        };
        ApprovalPreview {
            text: bounded(format!("objects in it: {}{executable}\n{names}{more}", entries.len())),
            is_open,
        }
    }
}

/// An object beneath a directory.
struct ListedEntry<'a> {
    path: &'a WorkspacePath,
    object: Object,
    is_executable: bool,
}

/// Describes a link by its target.
pub(super) fn shown_link(permit: &Permit) -> String {
    match permit.link_target() {
        Ok(target) => format!("a link to {}", QuotedName(&target)),
        Err(error) => format!("a link whose target is unknown: {error}"),
    }
}
