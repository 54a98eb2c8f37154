//! Writing a kept tree out again, node by node, one descriptor at a time
//! however deep it is.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};

use super::{
    Error,
    restore::{apply, write},
};
use crate::{
    backup::{self, Attributes, Node, NodeKind, Owners},
    workspace::{self, Identity, Stat},
};

/// A directory that still gets entries. What it may be in the end, it becomes
/// when it is complete: its mode may forbid to write to it.
struct Level {
    identity: Identity,
    attributes: Option<Attributes>,
}

/// Fills `top`, an empty directory that nobody else knows, with the tree.
///
/// # Errors
/// When the entry is damaged, and as the system says.
pub(super) fn unpack(tree: &mut backup::Tree, top: &OwnedFd, owners: &Owners) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut current = openat(top, ".", flags, Mode::empty())
        .map_err(workspace::Error::os("open the directory"))?;
    let root = tree.next_node()?.ok_or(workspace::Error::NotFound)?;
    let mut levels =
        vec![Level { identity: Stat::of(&current)?.identity, attributes: root.attributes }];
    while let Some(node) = tree.next_node()? {
        while u64::try_from(levels.len()).is_ok_and(|depth| depth > node.depth) {
            current = finish(current, &mut levels, owners)?;
        }
        match node.kind {
            NodeKind::Directory => {
                mkdirat(&current, &node.name, Mode::RWXU)
                    .map_err(workspace::Error::os("make the directory"))?;
                current = openat(&current, &node.name, flags, Mode::empty())
                    .map_err(workspace::Error::os("open the directory"))?;
                let identity = Stat::of(&current)?.identity;
                levels.push(Level { identity, attributes: node.attributes });
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
    owners: &Owners,
) -> Result<(), Error> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, &node.name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(workspace::Error::os("create the file"))?;
    write(&file, tree.content(node)?)?;
    node.attributes.as_ref().map_or(Ok(()), |attributes| apply(&file, attributes, owners))
}

/// Completes the directory and goes up to the one above it.
fn finish(current: OwnedFd, levels: &mut Vec<Level>, owners: &Owners) -> Result<OwnedFd, Error> {
    let done = levels.pop();
    let above = match levels.last() {
        None => None,
        Some(level) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let above = openat(&current, "..", flags, Mode::empty())
                .map_err(workspace::Error::os("open the directory"))?;
            // Somebody guessed the name and moved the directory.
            if Stat::of(&above)?.identity != level.identity {
                return Err(Error::Conflict);
            }
            Some(above)
        }
    };
    if let Some(attributes) = done.and_then(|level| level.attributes) {
        apply(&current, &attributes, owners)?;
    }
    Ok(above.unwrap_or(current))
}
