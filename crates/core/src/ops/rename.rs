//! The operation `rename`.

use std::{
    fs::File,
    os::fd::{AsFd as _, BorrowedFd},
};

use portcullis_audit::Hash;
use rustix::{
    fs::{OFlags, RenameFlags, renameat_with},
    io::Errno,
};

use super::{
    Change, Committed, Context, Error, Facts, SealedChange,
    atomic_exchange::{self, Expected},
    parents,
    remove::Target,
};
use crate::{
    backup::{self, Origin, Saved, content_hash, fingerprint},
    model::{Access, Transport, WorkspacePath},
    policy::ObjectKind,
    workspace::{
        self, EntryIdentity, Parent, Permit, Stat, TempName, Walked, Workspace, read_bounded,
    },
};

struct Rename<'a> {
    context: Context<'a>,
    from: Permit,
    to: Permit,
    moving: Stat,
    /// The object that the rename replaces.
    replaced: Option<(Stat, Target)>,
    /// The entries beneath a directory that were decided on.
    tree: Vec<Walked>,
    /// The content of the file, if it is shown to a person.
    content: Option<Vec<u8>>,
}

/// Checks that the rename is possible. `tree` has the entries beneath a directory that were decided
/// on. With `replace` a file or link with the new name is replaced, and an empty directory by a
/// directory. `shown` asks for the description for a person: the hash of everything that moves,
/// which has to be read, and the content of a file of at most this many bytes.
///
/// # Errors
/// When the entry is missing, the new name is taken by an entry that is not replaced, or a
/// directory would move into itself.
pub(crate) fn prepare<'a>(
    context: &Context<'a>,
    from: Permit,
    to: Permit,
    tree: Vec<Walked>,
    replace: bool,
    shown: Option<u64>,
) -> Result<SealedChange<'a>, Error> {
    if from.path().is_root() || to.path().is_root() {
        return Err(Error::Invalid("the workspace itself is never renamed"));
    }
    let moving = *from.stat().ok_or(Error::Workspace(workspace::Error::NotFound))?;
    if moving.kind == ObjectKind::Directory
        && from.path() != to.path()
        && to.path().is_within(from.path())
    {
        return Err(Error::Invalid("a directory cannot be moved into itself"));
    }
    parents::check_may_rename(context.workspace, from.path())?;
    parents::check_may_rename(context.workspace, to.path())?;
    let replaced = match to.stat() {
        None => None,
        Some(_) if replace && from.path() == to.path() => None,
        Some(stat)
            if replace && stat.identity != moving.identity && gives_way(stat.kind, moving.kind) =>
        {
            let target = Target::open(context, &to, stat.kind)?;
            target.check_is_empty()?;
            Some((*stat, target))
        }
        Some(_) => return Err(Error::AlreadyExists),
    };
    check_contents(context, &from, to.path(), moving.kind, &tree)?;
    let mut facts = Facts {
        to: Some(to.path().clone()),
        entry: Some(EntryIdentity::of(from.handle()?)?),
        ..Facts::default()
    };
    if replaced.is_some() {
        facts.temp = Some(TempName::new()?);
        facts.after = Some(hash_of(context, &from, moving.kind)?);
    }
    let mut content = None;
    if let Some(most) = shown {
        let (moved, short) = match moving.kind {
            ObjectKind::Directory => (tree_hash(context, from.path(), &tree)?, None),
            ObjectKind::File => short_content(context, &from, &moving, most)?,
            kind => (hash_of(context, &from, kind)?, None),
        };
        (facts.moved, content) = (Some(with_mode(moved, moving.mode)), short);
    }
    let change: Box<dyn Change + 'a> =
        Box::new(Rename { context: *context, from, to, moving, replaced, tree, content });
    Ok(SealedChange::new(change, facts))
}

/// True if an entry of the kind `moving` may replace one of the kind `there`.
fn gives_way(there: ObjectKind, moving: ObjectKind) -> bool {
    use ObjectKind as K;
    match there {
        K::File | K::Symlink => moving != K::Directory,
        K::Directory => moving == K::Directory,
        K::Fifo | K::Socket | K::Device | K::Missing => false,
    }
}

/// Decides whether everything that moves may have its new name, where secret rules depend on paths.
/// A file that is too large to be disclosed is too large at its new path too.
pub(super) fn check_contents(
    context: &Context<'_>,
    from: &Permit,
    to: &WorkspacePath,
    kind: ObjectKind,
    tree: &[Walked],
) -> Result<(), Error> {
    let secrets = context.policy.secrets().filter(|secrets| secrets.depends_on_path());
    let Some(secrets) = secrets else { return Ok(()) };
    // A limit of one transport may be higher than that of another.
    let sizes = Transport::ALL.map(|transport| context.policy.max_size(Access::Read, transport));
    let most = sizes.into_iter().max().unwrap_or(u64::MAX);
    let check = |file: &File, size: u64, old: &WorkspacePath| {
        let new = old.rebase(from.path(), to).ok_or(workspace::Error::TooLong)?;
        if secrets.is_same_for(old, &new) {
            return Ok(());
        }
        let content = read_bounded(file, size, most)?;
        if u64::try_from(content.len()).is_ok_and(|length| length > most) {
            return Ok(());
        }
        context.check_renamed(old, &new, &content)
    };
    if kind == ObjectKind::File {
        let size = from.stat().map_or(0, |stat| stat.size);
        check(&from.open_file(context.workspace)?, size, from.path())?;
    }
    for walked in tree.iter().filter(|walked| walked.stat.kind == ObjectKind::File) {
        let file = context.workspace.open_listed(&walked.path, OFlags::RDONLY)?;
        if Stat::of(&file)?.identity != walked.stat.identity {
            return Err(Error::Workspace(workspace::Error::Moved));
        }
        check(&File::from(file), walked.stat.size, &walked.path)?;
    }
    Ok(())
}

/// Returns the hash of the moved object: after a crash it distinguishes the object from the
/// replaced one.
pub(super) fn hash_of(
    context: &Context<'_>,
    from: &Permit,
    kind: ObjectKind,
) -> Result<Hash, Error> {
    match kind {
        ObjectKind::Symlink => Ok(Hash::of(from.link_target()?.as_bytes())),
        ObjectKind::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let directory = from.open(context.workspace, flags)?;
            fingerprint(directory.as_fd(), context.policy.backups().size).map_err(too_large)
        }
        _ => hash(context, from.open_file(context.workspace)?.as_fd(), 0),
    }
}

/// Returns the hash of a file, and its content if it has at most `most` bytes.
fn short_content(
    context: &Context<'_>,
    from: &Permit,
    moving: &Stat,
    most: u64,
) -> Result<(Hash, Option<Vec<u8>>), Error> {
    if moving.size > most.min(context.policy.backups().size) {
        return Ok((hash_of(context, from, moving.kind)?, None));
    }
    let bytes = read_bounded(&from.open_file(context.workspace)?, moving.size, most)?;
    match bytes.len() as u64 == moving.size {
        true => Ok((Hash::of(&bytes), Some(bytes))),
        false => Err(Error::Workspace(workspace::Error::Moved)),
    }
}

/// Returns the hash of a moved file after `before` bytes of others: a file that is too large for a
/// backup is not read.
fn hash(context: &Context<'_>, file: BorrowedFd<'_>, before: u64) -> Result<Hash, Error> {
    let most = context.policy.backups().size.saturating_sub(before);
    content_hash(file, most).map_err(too_large)
}

fn too_large(error: backup::Error) -> Error {
    match error {
        backup::Error::Large => Error::Invalid(
            "what moves must be read for this, and is larger than `backups.keep.size` of the policy",
        ),
        error => error.into(),
    }
}

/// Returns the hash of what moves and its permission bits: an approval applies to both.
fn with_mode(content: Hash, mode: u32) -> Hash {
    Hash::of(format!("{:04o} {content}", mode & 0o7777).as_bytes())
}

/// Returns the hash of everything beneath a directory: name, kind, permission bits and content of
/// each entry, each text with its length.
fn tree_hash(context: &Context<'_>, root: &WorkspacePath, tree: &[Walked]) -> Result<Hash, Error> {
    let mut entries: Vec<&Walked> = tree.iter().collect();
    entries.sort_unstable_by_key(|walked| &walked.path);
    let (mut all, mut bytes) = (Vec::new(), 0_u64);
    for walked in entries {
        let content = match walked.stat.kind {
            ObjectKind::Symlink => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW;
                let link = context.workspace.open_listed(&walked.path, flags)?;
                let target = rustix::fs::readlinkat(&link, "", Vec::new())
                    .map_err(workspace::Error::os("read the link"))?;
                Hash::of(target.as_bytes())
            }
            ObjectKind::File => {
                let file = context.workspace.open_listed(&walked.path, OFlags::RDONLY)?;
                if Stat::of(&file)?.identity != walked.stat.identity {
                    return Err(Error::Workspace(workspace::Error::Moved));
                }
                let hash = hash(context, file.as_fd(), bytes)?;
                bytes = bytes.saturating_add(walked.stat.size);
                hash
            }
            _ => Hash::ZERO,
        };
        let name = walked.path.rebase(root, &WorkspacePath::root());
        let name = name.as_ref().unwrap_or(&walked.path).as_str();
        let kind = format!("{:?} {:04o}", walked.stat.kind, walked.stat.mode & 0o7777);
        for part in [name, &kind, &content.to_string()] {
            all.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            all.extend_from_slice(part.as_bytes());
        }
    }
    Ok(Hash::of(&all))
}

impl Change for Rename<'_> {
    fn permit(&self) -> &Permit {
        &self.from
    }

    fn backup_permit(&self) -> &Permit {
        &self.to
    }

    fn content(&self) -> Option<&[u8]> {
        self.content.as_deref()
    }

    fn tree(&self) -> &[Walked] {
        &self.tree
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        self.replaced.iter().map(|(_, target)| target.origin()).collect()
    }

    fn commit(
        self: Box<Self>,
        temp: Option<&TempName>,
        saved: &[Saved],
    ) -> Result<Committed, Error> {
        let workspace = self.context.workspace;
        let (from, to) = (self.from.path(), self.to.path());
        if from == to {
            return Ok(Committed::Unchanged);
        }
        parents::create(workspace, to)?;
        let old = workspace.open_parent(from)?;
        let new = workspace.open_parent(to)?;
        let _excluded = self.context.name_locks.exclude(&[&old, &new])?;
        workspace.confirm(&old).map_err(Error::unbegun)?;
        workspace.confirm(&new).map_err(Error::unbegun)?;
        match (&self.replaced, temp, saved.first()) {
            (Some((stat, _)), Some(temp), Some(saved)) => {
                let replaced = Expected::new(stat.identity, saved);
                self.replace(&old, &new, temp, &replaced)?;
            }
            (None, ..) => self.move_to_free_name(&old, &new)?,
            (Some(_), ..) => return Err(Error::Conflict),
        }
        self.context.last_renames.add(self.context.session.recorded_id(), from, to);
        new.sync()?;
        old.sync()?;
        Ok(Committed::Stored(None))
    }
}

impl Rename<'_> {
    /// Moves the object aside, beside the one that it replaces, and exchanges the two there. If
    /// they were exchanged by their own names, another process could replace either before the
    /// comparison.
    fn replace(
        &self,
        old: &Parent,
        new: &Parent,
        temp: &TempName,
        replaced: &Expected,
    ) -> Result<(), Error> {
        match renameat_with(old, old.name(), new, temp.as_str(), RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(Error::Conflict),
            Err(errno) => return Err(workspace::Error::os("rename")(errno).into()),
        }
        let is_aside = || -> bool {
            new.stat(temp.as_str()).is_ok_and(|stat| stat.identity == self.moving.identity)
        };
        let done = if is_aside() && self.tree_is_as_decided(temp.as_str()) {
            atomic_exchange::replace(
                self.context.workspace,
                new,
                temp,
                self.from.handle()?,
                replaced,
            )
        } else {
            Err(Error::Conflict)
        };
        if done.is_err() && new.stat(temp.as_str()).is_ok() {
            atomic_exchange::put_back((new, temp.as_str()), (old, old.name()))?;
        }
        done
    }

    /// Renames, then compares the moved object with the one that was decided on; renames back if
    /// they differ.
    fn move_to_free_name(&self, old: &Parent, new: &Parent) -> Result<(), Error> {
        match renameat_with(old, old.name(), new, new.name(), RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(atomic_exchange::taken(new)),
            Err(Errno::NOENT) => return Err(Error::Conflict),
            Err(Errno::XDEV) if self.moving.kind == ObjectKind::Directory => {
                return Err(Error::Invalid(atomic_exchange::OVERLAY_LOWER));
            }
            Err(errno) => return Err(workspace::Error::os("rename")(errno).into()),
        }
        let is_listed = new.lists(new.name()).unwrap_or(false);
        let same = new.stat(new.name()).is_ok_and(|stat| stat.identity == self.moving.identity);
        let in_place = self.context.workspace.confirm(new).is_ok();
        if same && in_place && self.tree_is_as_decided(new.name()) {
            return Ok(());
        }
        renameat_with(new, new.name(), old, old.name(), RenameFlags::NOREPLACE)
            .map_err(workspace::Error::os("rename back"))?;
        Err(if is_listed { Error::Conflict } else { Error::Invalid(atomic_exchange::ALIAS) })
    }

    /// True if the tree that was decided on is the one that moved, which has `name` in the new
    /// directory.
    fn tree_is_as_decided(&self, name: &str) -> bool {
        let (workspace, kind) = (self.context.workspace, self.moving.kind);
        let at = self.to.path().parent().and_then(|parent| parent.join(name).ok());
        at.is_some_and(|at| is_as_decided(workspace, kind, &self.tree, self.from.path(), &at))
    }
}

/// True if the entries of the directory that has the path `at` now are the `tree` that was decided
/// on while it was at `from`; true for other kinds.
pub(super) fn is_as_decided(
    workspace: &Workspace,
    kind: ObjectKind,
    tree: &[Walked],
    from: &WorkspacePath,
    at: &WorkspacePath,
) -> bool {
    if kind != ObjectKind::Directory {
        return true;
    }
    let key =
        |walked: &Walked, path: Option<WorkspacePath>| path.map(|p| (p, walked.stat.identity));
    let Ok(now) = workspace.walk(at) else { return false };
    let mut now: Vec<_> = now.iter().map(|w| key(w, Some(w.path.clone()))).collect();
    let mut decided: Vec<_> = tree.iter().map(|w| key(w, w.path.rebase(from, at))).collect();
    now.sort_unstable();
    decided.sort_unstable();
    now == decided
}
