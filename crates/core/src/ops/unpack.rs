//! Restores a tree from its backup, node by node, with one descriptor at a time at any depth.

use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    os::fd::{AsFd, OwnedFd},
};

use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};

use super::{
    Error, atomic_exchange,
    restore::{apply, write},
};
use crate::{
    backup::{self, AssignableOwners, Attributes, Node, NodeKind},
    workspace::{self, Identity, Stat, stream_names},
};

/// A directory that still gets entries. It gets its attributes when it is complete: its mode may
/// forbid writes.
struct Level {
    identity: Identity,
    attributes: Option<Attributes>,
    /// The names of its entries, where the file system may have changed them.
    names: Option<BTreeSet<String>>,
}

/// Fills `top`, an empty directory that no other process knows, with the tree. `aliases` is true if
/// the file system may give an entry another name than the requested one.
///
/// # Errors
/// When the backup is damaged or a name cannot be given; errors of the system.
pub(super) fn unpack(
    tree: &mut backup::Tree,
    top: &OwnedFd,
    owners: &AssignableOwners,
    aliases: bool,
) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut current = openat(top, ".", flags, Mode::empty())
        .map_err(workspace::Error::os("open the directory"))?;
    let root = tree.next_node()?.ok_or(workspace::Error::NotFound)?;
    let level = |directory: &OwnedFd, attributes| -> Result<Level, Error> {
        let identity = Stat::of(directory)?.identity;
        Ok(Level { identity, attributes, names: aliases.then(BTreeSet::new) })
    };
    let mut levels = vec![level(&current, root.attributes)?];
    while let Some(node) = tree.next_node()? {
        while u64::try_from(levels.len()).is_ok_and(|depth| depth > node.depth) {
            current = finish(current, &mut levels, owners)?;
        }
        if let Some(Level { names: Some(names), .. }) = levels.last_mut() {
            names.insert(node.name.clone());
        }
        match node.kind {
            NodeKind::Directory => {
                mkdirat(&current, &node.name, Mode::RWXU)
                    .map_err(workspace::Error::os("make the directory"))?;
                current = openat(&current, &node.name, flags, Mode::empty())
                    .map_err(workspace::Error::os("open the directory"))?;
                levels.push(level(&current, node.attributes)?);
            }
            NodeKind::File => file(tree, &current, &node, owners)?,
            NodeKind::Link => {
                let target = node.target.as_deref().unwrap_or_default();
                symlinkat(target, &current, &node.name)
                    .map_err(workspace::Error::os("make the link"))?;
            }
        }
    }
    while !levels.is_empty() {
        current = finish(current, &mut levels, owners)?;
    }
    Ok(())
}

fn file(
    tree: &backup::Tree,
    directory: impl AsFd,
    node: &Node,
    owners: &AssignableOwners,
) -> Result<(), Error> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, &node.name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(workspace::Error::os("create the file"))?;
    write(&file, tree.content(node)?)?;
    node.attributes.as_ref().map_or(Ok(()), |attributes| apply(&file, attributes, owners))
}

/// Completes the directory and goes up to the one above it.
fn finish(
    current: OwnedFd,
    levels: &mut Vec<Level>,
    owners: &AssignableOwners,
) -> Result<OwnedFd, Error> {
    let done = levels.pop();
    let above = match levels.last() {
        None => None,
        Some(level) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let above = openat(&current, "..", flags, Mode::empty())
                .map_err(workspace::Error::os("open the directory"))?;
            // Another process guessed the name and moved the directory.
            if Stat::of(&above)?.identity != level.identity {
                return Err(Error::Conflict);
            }
            Some(above)
        }
    };
    let Some(Level { attributes, names, .. }) = done else { return Ok(above.unwrap_or(current)) };
    if let Some(names) = names {
        check_names(&current, names)?;
    }
    if let Some(attributes) = attributes {
        apply(&current, &attributes, owners)?;
    }
    Ok(above.unwrap_or(current))
}

/// Checks that all `names` are those of entries.
fn check_names(directory: impl AsFd, mut names: BTreeSet<String>) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(directory, ".", flags, Mode::empty())
        .map_err(workspace::Error::os("open the directory"))?;
    stream_names(directory, |name, _| {
        names.remove(name);
        ControlFlow::Continue(())
    })?;
    if names.is_empty() { Ok(()) } else { Err(Error::Invalid(atomic_exchange::ALIAS)) }
}
