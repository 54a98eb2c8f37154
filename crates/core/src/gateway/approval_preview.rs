//! Descriptions of requests for the person who is asked, and the part that the sender of the
//! request, which may be the agent, may see.

use std::{fmt, io::Read as _};

use portcullis_audit::Draft;

use super::{
    approvals::{Binding, DisclosedQuestion},
    authorizer::Authorizer,
    diff::{CONTEXT, unified_diff},
    pending_approval::ApprovalPreview,
    record,
};
use crate::{
    backup::{self, BackupStore, Saved},
    model::{
        Access, Escaped, Operation, OperationKind, QuotedName, WorkspacePath,
        request::{Append, Edit, Mkdir, Remove, Rename, Restore, SetAttributes, Symlink, Write},
    },
    ops::{Context, SealedChange},
    policy::{Decision, LabelIds, Object, ObjectKind, Query, path_accesses},
    workspace::Permit,
};

/// Maximum size of a content of which a diff is made, in bytes.
pub(super) const MAX_SHOWN: u64 = 1 << 20;

/// Maximum size of a diff that is shown, in bytes.
const MAX_DIFF: usize = 64 << 10;

/// Maximum number of a directory's names that are shown.
const MAX_NAMES: usize = 50;

/// The text in place of a diff.
const TOO_LARGE: &str = "the content is too large to be shown";

const SECRET: &str = "the content has secrets and is not shown";
/// The text beside what the agent sent, where it may not see the rest.
const UNDISCLOSED: &str = "(existing content is not shown here; `portcullis approve` shows it)";

/// The description of a request for a person.
pub(super) struct Description<'a> {
    pub(super) operation: Operation<'a>,
    pub(super) authorizer: Authorizer<'a>,
    pub(super) context: Context<'a>,
    /// The labels of what the agent was shown.
    pub(super) carried: LabelIds,
    pub(super) backup_store: &'a BackupStore,
}

impl Description<'_> {
    /// Returns the part of a question for the sender of the request: all of it where the agent may
    /// look, and otherwise only what the request itself contains, the same whatever is there.
    pub(super) fn disclosed_part(
        &self,
        draft: &Draft,
        binding: &Binding,
        rules: &[Decision],
        shown: &ApprovalPreview,
    ) -> DisclosedQuestion {
        if shown.is_open && self.may_look(draft) {
            let Binding { path, to, .. } = binding.clone();
            return DisclosedQuestion {
                path,
                to,
                rules: rules.to_vec(),
                change: shown.text.clone(),
            };
        }
        DisclosedQuestion {
            path: record::shown(self.operation.path()),
            to: self.operation.new_path().map(record::shown),
            rules: self.rules_by_name(),
            change: self.sent(),
        }
    }

    /// True if the agent may list and read, without an approval, the paths of the request and the
    /// names that links on the way led to.
    pub(super) fn may_look(&self, draft: &Draft) -> bool {
        let parse = |path: &String| WorkspacePath::parse(path).ok();
        let found = [&draft.path, &draft.resolved, &draft.to].into_iter().flatten().map(parse);
        let kinds = [(OperationKind::Stat, Access::List), (OperationKind::Read, Access::Read)];
        let policy = self.context.policy;
        let sent = self.operation.new_path().cloned().map(Some);
        let followed = self.authorizer.obligations.followed().into_iter().map(Some);
        found.chain(sent).chain(followed).all(|path| {
            path.is_some_and(|path| {
                policy.labels().of(&path).ids().all(|id| self.carried.contains(id))
                    && kinds.into_iter().all(|(operation, access)| {
                        policy.evaluate(&self.query(operation, access, &path)).is_allow()
                    })
            })
        })
    }

    /// True if the agent may read this content of the permit's object, provided that it may read
    /// the path.
    fn may_read(&self, permit: &Permit, content: &[u8]) -> bool {
        let query = self.query(OperationKind::Read, Access::Read, permit.path());
        let object = permit.object();
        let may_be_opened = match object.kind {
            ObjectKind::Missing => true,
            ObjectKind::File => self.context.policy.evaluate_object(&query, &object).is_allow(),
            _ => false,
        };
        may_be_opened
            && self
                .context
                .policy
                .evaluate_content(&query, self.context.transport, content)
                .is_allow()
    }

    fn query<'q>(
        &'q self,
        operation: OperationKind,
        access: Access,
        path: &'q WorkspacePath,
    ) -> Query<'q> {
        Query { agent: self.context.agent, operation, access, path }
    }

    /// Returns the rules that ask about the requested names, whatever these lead to.
    fn rules_by_name(&self) -> Vec<Decision> {
        let (operation, to) = (self.operation.kind(), self.operation.new_path());
        let mut rules: Vec<Decision> = Vec::new();
        for (access, path) in path_accesses(operation, self.operation.path(), to) {
            let decision = self.context.policy.evaluate(&self.query(operation, access, path));
            if decision.is_ask() && !rules.iter().any(|known| known.rule() == decision.rule()) {
                rules.push(decision);
            }
        }
        rules
    }

    /// Describes a request that discloses content or names.
    pub(super) fn discloses(&self) -> ApprovalPreview {
        ApprovalPreview::open(self.named(self.operation.path()))
    }

    /// Describes the change of a file in a commit, with the content in the agent's repository.
    pub(super) fn imports(&self, before: Option<&[u8]>, content: Option<&[u8]>) -> ApprovalPreview {
        let path = self.operation.path();
        let (old, new) = (before.unwrap_or_default(), content.unwrap_or_default());
        let named = match self.operation {
            Operation::Write(Write { mode: Some(mode), .. }) => {
                format!("write {}, {}", path.named(), ShownMode(*mode))
            }
            _ => self.named(path),
        };
        ApprovalPreview::open(format!("{named}\n{}", diff(path, old, new, content.is_none())))
    }

    /// Describes a request that would fail.
    pub(super) fn fails(&self) -> ApprovalPreview {
        match self.operation.kind().is_mutation() {
            // There is no effect to show.
            true => {
                let (kind, path) = (self.operation.kind(), self.operation.path());
                ApprovalPreview::open(format!("{kind} {}, which fails as things are", path.named()))
            }
            false => self.discloses(),
        }
    }

    /// Describes the request by its own content alone.
    fn sent(&self) -> String {
        use Operation as O;
        let path = self.operation.path();
        let named = self.named(path);
        let lines = match self.operation {
            O::Write(Write { content, .. }) | O::Append(Append { content, .. }) => {
                self.lines('+', content)
            }
            O::Edit(Edit { old, new, .. }) => {
                let [old, new] =
                    [('-', old), ('+', new)].map(|(sign, text)| self.lines(sign, text.as_bytes()));
                format!("{old}{new}")
            }
            O::Remove(_) | O::Rename(_) => String::new(),
            O::Mkdir(_) | O::SetAttributes(_) | O::Symlink(_) | O::Restore(_) => return named,
            O::Read(_) | O::List(_) | O::Names(_) | O::Stat(_) | O::Recall(_) => return named,
            O::Glob(_) | O::Grep(_) | O::Watch(_) => return named,
        };
        format!("{named}\n{lines}{UNDISCLOSED}")
    }

    /// Returns a content that the agent sent, with a sign before each line.
    fn lines(&self, sign: char, content: &[u8]) -> String {
        let path = self.operation.path();
        let text = match str::from_utf8(content) {
            _ if content.len() as u64 > MAX_SHOWN => format!("{TOO_LARGE}\n"),
            Err(_) => format!("binary content: {} bytes\n", content.len()),
            // A placeholder in place of the agent's guess would reveal whether it is right.
            Ok(_) if self.shown(path, content.to_vec()).as_deref() != Some(content) => {
                format!("{SECRET}\n")
            }
            Ok(text) => text.split_inclusive('\n').map(|line| format!("{sign}{line}")).collect(),
        };
        let text = bounded(text);
        if text.is_empty() || text.ends_with('\n') { text } else { format!("{text}\n") }
    }

    /// Describes the request in a few words, with `path` as its path.
    fn named(&self, path: &WorkspacePath) -> String {
        use Operation as O;
        let name = path.named();
        match self.operation {
            O::Write(Write { mode: Some(mode), .. }) => {
                format!("write {name}, with {} if it is new", ShownMode(*mode))
            }
            O::Write(_) | O::Append(_) | O::Edit(_) => {
                format!("{} {name}", self.operation.kind())
            }
            O::Rename(Rename { to, .. }) => format!("renames {name} to {}", to.named()),
            O::Mkdir(Mkdir { mode: Some(mode), .. }) => {
                format!("makes the directory {name}, mode {mode:04o}")
            }
            O::Mkdir(_) => format!("makes the directory {name}"),
            O::SetAttributes(SetAttributes { mode, modified, .. }) => {
                let mode = mode.map(|mode| format!(" {}", ShownMode(mode)));
                let time = modified.map(|(seconds, _)| format!(" time {seconds}"));
                let set = [mode, time].into_iter().flatten().collect::<String>();
                format!("sets of {name}:{set}")
            }
            O::Symlink(Symlink { target, .. }) => {
                format!("makes {name} a symbolic link to {}", QuotedName(target))
            }
            O::Restore(Restore { backup, .. }) => {
                format!("puts the backup {} at {name}", Escaped(backup))
            }
            O::Remove(Remove { recursive: true, .. }) => {
                format!("removes {name} with everything in it")
            }
            O::Remove(_) => format!("removes {name}"),
            O::Read(_) | O::List(_) | O::Names(_) | O::Stat(_) | O::Recall(_) => {
                format!("discloses {name}")
            }
            O::Glob(_) | O::Grep(_) | O::Watch(_) => format!("discloses {name}"),
        }
    }

    /// Describes the effect of a change; of a file's content, a unified diff from its backup.
    pub(super) fn describe(&self, saved: &[Saved], sealed: &SealedChange<'_>) -> ApprovalPreview {
        use Operation as O;
        let permit = sealed.permit();
        let path = permit.path();
        match (self.operation, sealed.content()) {
            (O::Rename(_), _) => self.moves(saved, sealed),
            (O::Remove(_), _) => match (permit.object().kind, self.saved_content(saved)) {
                (ObjectKind::Directory, _) => self.removes(path, saved),
                (_, Some(old)) => self.difference(permit, old, None),
                (_, None) => ApprovalPreview::open(self.named(path)),
            },
            (O::Write(_) | O::Append(_) | O::Edit(_), Some(new)) => {
                let mut shown = match self.saved_content(saved) {
                    Some(old) => self.difference(permit, old, Some(new)),
                    None => ApprovalPreview::open(TOO_LARGE.to_owned()),
                };
                if let O::Write(Write { mode: Some(mode), .. }) = self.operation
                    && saved.is_empty()
                {
                    shown.text = format!("new file, {}\n{}", ShownMode(*mode), shown.text);
                }
                shown
            }
            _ => ApprovalPreview::open(self.named(path)),
        }
    }

    /// Describes a rename, and what it replaces.
    fn moves(&self, saved: &[Saved], sealed: &SealedChange<'_>) -> ApprovalPreview {
        let (from, to) = (sealed.permit(), sealed.backup_permit());
        let (old_name, new_name) = (from.path(), to.path());
        let replaced = if saved.is_empty() { "" } else { ", replacing what is there" };
        let ApprovalPreview { text, is_open } =
            match (from.object().kind, self.saved_content(saved)) {
                (ObjectKind::Directory, _) => {
                    let tree = sealed.tree().iter();
                    self.listed(old_name, tree.map(|w| (&w.path, w.stat.object(false))).collect())
                }
                (ObjectKind::Symlink, _) => {
                    let target = from.link_target().unwrap_or_default();
                    ApprovalPreview {
                        text: format!("a link to {}", QuotedName(&target)),
                        is_open: false,
                    }
                }
                (_, old) => match (old, sealed.content()) {
                    (Some(old), Some(new)) => {
                        let is_open = self.may_read(to, &old) && self.may_read(from, new);
                        let shown = (self.shown(new_name, old), self.shown(old_name, new.to_vec()));
                        let text = match shown {
                            (Some(old), Some(new)) => diff(new_name, &old, &new, false),
                            _ => SECRET.to_owned(),
                        };
                        ApprovalPreview { text, is_open }
                    }
                    _ => ApprovalPreview::open(TOO_LARGE.to_owned()),
                },
            };
        let (old_name, new_name) = (old_name.named(), new_name.named());
        ApprovalPreview {
            text: format!("renames {old_name} to {new_name}{replaced}\n{text}"),
            is_open,
        }
    }

    /// Describes the removal of a directory by its backup.
    fn removes(&self, path: &WorkspacePath, saved: &[Saved]) -> ApprovalPreview {
        let kept = saved.first().and_then(|saved| self.saved_tree(saved).ok());
        let ApprovalPreview { text, is_open } = match &kept {
            Some(kept) => {
                self.listed(path, kept.iter().map(|(path, what)| (path, *what)).collect())
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

    /// Lists the first names beneath a directory, and their number.
    fn listed(
        &self,
        root: &WorkspacePath,
        mut entries: Vec<(&WorkspacePath, Object)>,
    ) -> ApprovalPreview {
        if entries.is_empty() {
            return ApprovalPreview::open("with nothing in it".to_owned());
        }
        entries.sort_unstable_by_key(|(path, _)| *path);
        let is_open = entries.iter().all(|(path, object)| self.authorizer.lists(path, object));
        let name = |(path, _): &(&WorkspacePath, Object)| {
            let beneath = path.rebase(root, &WorkspacePath::root());
            format!("  {}\n", Escaped(beneath.as_ref().unwrap_or(path).as_str()))
        };
        let names: String = entries.iter().take(MAX_NAMES).map(name).collect();
        let more = match entries.len().saturating_sub(MAX_NAMES) {
            0 => String::new(),
            more => format!("(and {more} more)\n"),
        };
        ApprovalPreview {
            text: bounded(format!("objects in it: {}\n{names}{more}", entries.len())),
            is_open,
        }
    }

    /// Describes the change of the permit's file; without `new` it is removed.
    fn difference(&self, permit: &Permit, old: Vec<u8>, new: Option<&[u8]>) -> ApprovalPreview {
        let path = permit.path();
        let is_open = self.may_read(permit, &old);
        let old = self.shown(path, old);
        let is_removed = new.is_none();
        let new = self.shown(path, new.unwrap_or_default().to_vec());
        let text = match (old, new) {
            (Some(old), Some(new)) => diff(path, &old, &new, is_removed),
            _ => SECRET.to_owned(),
        };
        ApprovalPreview { text, is_open }
    }

    /// Returns the content as the policy lets a reader see it.
    fn shown(&self, path: &WorkspacePath, content: Vec<u8>) -> Option<Vec<u8>> {
        self.context.shown(path, content)
    }

    /// Reads the backup of what is replaced; empty for a new file.
    fn saved_content(&self, saved: &[Saved]) -> Option<Vec<u8>> {
        // The agent saw the buffer, if there is one; its backup is the last.
        let Some(saved) = saved.last() else { return Some(Vec::new()) };
        let backup_store = self.backup_store;
        let entry = backup_store.entry(saved).ok()?;
        let mut old = Vec::new();
        backup_store.content(&entry).ok()?.take(MAX_SHOWN + 1).read_to_end(&mut old).ok()?;
        (old.len() as u64 <= MAX_SHOWN).then_some(old)
    }
}

/// The bits of a mode, and whether they make the file executable.
struct ShownMode(u32);

impl fmt::Display for ShownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let executable = if self.0 & 0o111 == 0 { "" } else { " (executable)" };
        write!(f, "mode {:04o}{executable}", self.0)
    }
}

/// Returns a unified diff, cut after [`MAX_DIFF`] bytes.
fn diff(path: &WorkspacePath, old: &[u8], new: &[u8], removed: bool) -> String {
    if new.len() as u64 > MAX_SHOWN {
        return TOO_LARGE.to_owned();
    }
    let (Ok(old), Ok(new)) = (str::from_utf8(old), str::from_utf8(new)) else {
        return format!("binary content: {} bytes become {}", old.len(), new.len());
    };
    if old == new {
        return if removed {
            format!("removes the empty file {}", path.named())
        } else {
            String::new()
        };
    }
    let (from, to) = match (old.is_empty(), removed) {
        (true, _) => ("/dev/null".to_owned(), format!("b/{path}")),
        (_, true) => (format!("a/{path}"), "/dev/null".to_owned()),
        _ => (format!("a/{path}"), format!("b/{path}")),
    };
    bounded(unified_diff(old, new, (&from, &to), CONTEXT))
}

/// Returns the text, or as many of its first lines as are shown.
fn bounded(text: String) -> String {
    if text.len() <= MAX_DIFF {
        return text;
    }
    let shown = text.get(..text.floor_char_boundary(MAX_DIFF)).unwrap_or_default();
    let shown = shown.rsplit_once('\n').map_or(shown, |(lines, _)| lines);
    format!("{shown}\n(the rest of the change, {} bytes, is not shown)\n", text.len() - shown.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text).unwrap()
    }

    #[test]
    fn a_diff_says_what_becomes_of_the_file() {
        let made = diff(&path("a"), b"", b"x\n", false);
        assert!(made.starts_with("--- /dev/null\n+++ b/a\n") && made.contains("\n+x"), "{made}");
        let gone = diff(&path("a"), b"x\n", b"", true);
        assert!(gone.contains("+++ /dev/null") && gone.contains("\n-x"), "{gone}");
        assert_eq!(diff(&path("a"), b"\xff", b"x", false), "binary content: 1 bytes become 1");
    }

    #[test]
    fn a_name_makes_no_line_of_a_diff() {
        let hostile = path("a\n+forged \u{1b}[31m");
        let shown = "a\\n+forged \\u{1b}[31m";
        assert_eq!(diff(&hostile, b"", b"", true), format!("removes the empty file \"{shown}\""));
        let gone = diff(&hostile, b"x\n", b"", true);
        assert!(gone.starts_with(&format!("--- a/{shown}\n+++ /dev/null\n@@ ")), "{gone}");
    }

    #[test]
    fn a_long_diff_is_cut_at_a_line_and_says_so() {
        let new = "żółć\n".repeat(50_000);
        let shown = diff(&path("a"), b"", new.as_bytes(), false);
        assert!(shown.len() < MAX_DIFF + 200, "{}", shown.len());
        assert!(shown.contains("\n(the rest of the change, "), "{shown}");
    }
}
