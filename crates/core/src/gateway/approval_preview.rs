//! Descriptions of requests for the person who is asked, and the part that the sender of the
//! request, which may be the agent, may see.

mod entries;

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
    backup::{BackupStore, NodeKind, Saved},
    model::{
        Access, Escaped, Operation, OperationKind, QuotedName, WorkspacePath,
        request::{Append, Edit, Mkdir, Remove, Rename, Restore, SetAttributes, Symlink, Write},
    },
    ops::{Context, SealedChange},
    policy::{Decision, LabelIds, ObjectKind, Query, path_accesses},
    workspace::Permit,
};

/// Maximum size of a content of which a diff is made, in bytes.
pub(super) const MAX_SHOWN: u64 = 1 << 20;

/// Maximum size of a diff that is shown, in bytes.
const MAX_DIFF: usize = 64 << 10;

/// The text in place of a diff.
const TOO_LARGE: &str = "the content is too large to be shown";

const SECRET: &str = "the content has secrets and is not shown";
/// The text after a difference of which a part is not shown.
const PLACEHOLDERS: &str =
    "(what placeholders stand for is not shown, and may be anything: look at the files)\n";
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
        let policy = self.context.policy;
        let sent = self.operation.new_path().cloned().map(Some);
        let followed = self.authorizer.obligations.followed().into_iter().map(Some);
        found.chain(sent).chain(followed).all(|path| {
            path.is_some_and(|path| {
                policy.labels().of(&path).ids().all(|id| self.carried.contains(id))
                    && policy.may_look(self.context.agent, &path)
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
            for question in decision.questions() {
                if !rules.iter().any(|known| known.rule() == question.rule()) {
                    rules.push(question.clone());
                }
            }
        }
        rules
    }

    /// Describes a request that discloses content or names.
    pub(super) fn discloses(&self) -> ApprovalPreview {
        ApprovalPreview::open(self.named(self.operation.path()))
    }

    /// Describes the change of a file in a commit, with the content in the agent's repository, or the
    /// target of the symbolic link, that it replaces.
    pub(super) fn imports(
        &self,
        before: Option<&[u8]>,
        content: Option<&[u8]>,
        link: Option<&str>,
    ) -> ApprovalPreview {
        let path = self.operation.path();
        let link = link.map(QuotedName);
        let named = match (self.operation, link) {
            (Operation::Write(Write { mode: Some(mode), .. }), _) => {
                format!("write {}, {}", path.named(), ShownMode(*mode))
            }
            (Operation::Remove(_), Some(link)) => {
                return ApprovalPreview::open(format!(
                    "removes the symbolic link {} to {link}\n",
                    path.named()
                ));
            }
            _ => self.named(path),
        };
        let replaced = link.map(|link| format!(", in place of the symbolic link to {link}"));
        let lines = match (before, content) {
            (None, None) => String::new(),
            (old, new) => {
                let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
                diff(path, old, new, content.is_none())
            }
        };
        ApprovalPreview::open(format!("{named}{}\n{lines}", replaced.unwrap_or_default()))
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

    /// Describes the effect of a change, with the directories that it makes on the way.
    pub(super) fn describe(&self, saved: &[Saved], sealed: &SealedChange<'_>) -> ApprovalPreview {
        let shown = self.effect(saved, sealed);
        let made = match self.context.workspace.missing_ancestors(sealed.backup_permit().path()) {
            Ok(made) => made,
            Err(error) => {
                let text =
                    format!("the directories that it makes are unknown: {error}\n{}", shown.text);
                return ApprovalPreview { text, is_open: false };
            }
        };
        // Each one but the first is in the one before.
        let names = match made.as_slice() {
            [] => return shown,
            [one] => format!("the directory {}", one.named()),
            [first, .., last] => {
                format!("{} directories, {} to {}", made.len(), first.named(), last.named())
            }
        };
        let directory = NodeKind::Directory.object();
        ApprovalPreview {
            text: format!("makes {names}\n{}", shown.text),
            is_open: shown.is_open
                && made.iter().all(|path| self.authorizer.lists(path, &directory)),
        }
    }

    /// Describes the effect on the entry itself; of a file's content, a unified diff from its backup.
    fn effect(&self, saved: &[Saved], sealed: &SealedChange<'_>) -> ApprovalPreview {
        use Operation as O;
        let permit = sealed.permit();
        let path = permit.path();
        match (self.operation, sealed.content()) {
            (O::Rename(_), _) => self.moves(saved, sealed),
            (O::Remove(_), _) => match (permit.object().kind, self.saved_content(saved)) {
                (ObjectKind::Directory, _) => self.removes(path, saved),
                (ObjectKind::Symlink, _) => ApprovalPreview {
                    text: format!("removes {}, {}", path.named(), entries::shown_link(permit)),
                    is_open: false,
                },
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

    /// Describes the change of the permit's file; without `new` it is removed.
    fn difference(&self, permit: &Permit, old: Vec<u8>, new: Option<&[u8]>) -> ApprovalPreview {
        let path = permit.path();
        let is_open = self.may_read(permit, &old);
        let contents = [(path, old), (path, new.unwrap_or_default().to_vec())];
        ApprovalPreview { text: self.shown_difference(contents, path, new.is_none()), is_open }
    }

    /// Returns the difference of two contents, each as the policy lets a reader of its path see it.
    fn shown_difference(
        &self,
        [(old_path, old), (new_path, new)]: [(&WorkspacePath, Vec<u8>); 2],
        path: &WorkspacePath,
        is_removed: bool,
    ) -> String {
        let shown = (self.shown(old_path, old.clone()), self.shown(new_path, new.clone()));
        let (Some(shown_old), Some(shown_new)) = shown else { return SECRET.to_owned() };
        let mut text = diff(path, &shown_old, &shown_new, is_removed);
        if (shown_old, shown_new) != (old, new) {
            text.push_str(PLACEHOLDERS);
        }
        text
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
