//! Resolution of a requested path to its object.
//!
//! Links are expanded here, one component after the other, because the policy must decide on every
//! name before the kernel looks it up; the kernel then opens the canonical path with links
//! forbidden.

use std::{collections::VecDeque, os::fd::OwnedFd};

use rustix::{fs::OFlags, io::Errno};

use super::{Error, Identity, Stat, Workspace, beneath::lookup_error};
use crate::{
    model::WorkspacePath,
    policy::{Object, ObjectKind},
};

/// Maximum number of links that Linux follows in one lookup (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// The treatment of a link in the last component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// The operation is about the link's target.
    Yes,
    /// The operation is about the link itself (remove, rename).
    No,
}

/// A component on the way from a requested name to its object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VisitedName<'a> {
    /// A name to which a link leads, with all components after it.
    Name(&'a WorkspacePath),
    /// A link target that a later `..` leaves again; only whether this component exists affects the
    /// result.
    Left(&'a WorkspacePath),
    /// The name of a link that has components after it.
    Link(&'a WorkspacePath),
}

/// The object of a path at one moment. An open descriptor prevents another object from getting its
/// identity meanwhile.
#[derive(Debug)]
pub struct Resolved {
    path: WorkspacePath,
    through_symlink: bool,
    found: Option<(Stat, OwnedFd)>,
}

impl Resolved {
    /// Returns the canonical path: no component of it is a link, except the last one if links were
    /// not followed. Of a missing object, the path that it would have.
    pub fn path(&self) -> &WorkspacePath {
        &self.path
    }

    /// Returns the facts about the object that the policy needs.
    pub fn object(&self) -> Object {
        match &self.found {
            Some((stat, _)) => stat.object(self.through_symlink),
            None => Object {
                kind: ObjectKind::Missing,
                links: 0,
                through_symlink: self.through_symlink,
            },
        }
    }

    /// Returns the object's attributes; `None` if it is missing.
    pub fn stat(&self) -> Option<&Stat> {
        self.found.as_ref().map(|(stat, _)| stat)
    }

    /// Returns the object's identity; `None` if it is missing.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.stat().map(|stat| stat.identity)
    }

    /// Returns a descriptor (`O_PATH`) of the object; `None` if it is missing.
    pub(super) fn handle(&self) -> Option<&OwnedFd> {
        self.found.as_ref().map(|(_, handle)| handle)
    }
}

impl Workspace {
    /// Resolves `path` without a policy, and without opening anything that could block or act.
    ///
    /// # Errors
    /// As [`Workspace::resolve_with`].
    pub(crate) fn resolve(&self, path: &WorkspacePath, follow: Follow) -> Result<Resolved, Error> {
        self.resolve_with(path, follow, &mut |_| true)
    }

    /// Resolves `path`, which was decided on: `follows` decides on each component on the way.
    ///
    /// A missing object is no error: the result has the path that it would have, so that the policy
    /// can decide before its existence is revealed. For the same reason a component that may not be
    /// followed is no error, whatever is there: it is passed as if it were missing.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Mount`], [`Error::Loop`] and errors of the system.
    pub(crate) fn resolve_with(
        &self,
        path: &WorkspacePath,
        follow: Follow,
        follows: &mut dyn FnMut(VisitedName<'_>) -> bool,
    ) -> Result<Resolved, Error> {
        match self.look(path.as_str()) {
            Ok((stat, handle)) if follow == Follow::No || stat.kind != ObjectKind::Symlink => {
                let found = Some((stat, handle));
                return Ok(Resolved { path: path.clone(), through_symlink: false, found });
            }
            // With links forbidden, the kernel finds a link before it misses an entry behind it.
            Err(Errno::NOENT) => {
                let path = path.clone();
                return Ok(Resolved { path, through_symlink: false, found: None });
            }
            // Other errors may be about a hidden name.
            Ok(_) | Err(_) => {}
        }
        self.expand(path.components().map(str::to_owned).collect(), 0, follow, follows)
    }

    /// Resolves `target` as the target of a link at `link`, whose directories are no links,
    /// whatever is there now.
    ///
    /// # Errors
    /// As [`Workspace::resolve_with`].
    pub(crate) fn resolve_target(
        &self,
        link: &WorkspacePath,
        target: &str,
        follows: &mut dyn FnMut(VisitedName<'_>) -> bool,
    ) -> Result<Resolved, Error> {
        if target.starts_with('/') {
            return Err(Error::Outside);
        }
        let parent = link.parent().ok_or(Error::Outside)?;
        let names = parent.components().chain(target.split('/')).map(str::to_owned).collect();
        self.expand(names, 1, Follow::Yes, follows)
    }

    fn look(&self, path: &str) -> Result<(Stat, OwnedFd), Errno> {
        let handle = self.lookup(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let stat = Stat::from_raw(&rustix::fs::fstat(&handle)?);
        Ok((stat, handle))
    }

    /// Walks component by component and replaces links by their targets, after `links` links.
    fn expand(
        &self,
        mut pending: VecDeque<String>,
        mut links: usize,
        follow: Follow,
        follows: &mut dyn FnMut(VisitedName<'_>) -> bool,
    ) -> Result<Resolved, Error> {
        let mut walked: Vec<String> = Vec::new();
        let mut found = None;
        // Depth of the hidden name that was passed.
        let mut hidden: Option<usize> = None;
        while let Some(component) = pending.pop_front() {
            match component.as_str() {
                "" | "." => continue,
                ".." => {
                    walked.pop().ok_or(Error::Outside)?;
                    found = None;
                    hidden = hidden.filter(|depth| *depth <= walked.len());
                    continue;
                }
                _ => walked.push(component),
            }
            if hidden.is_some() {
                continue;
            }
            let is_last = pending.is_empty();
            let component = match self.look(&walked.join("/")) {
                // A missing component is passed by its name, so that a `..` behind it continues as
                // if it existed, and a link behind that is followed: otherwise the result would
                // reveal whether it exists.
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    found = None;
                    continue;
                }
                Ok((stat, handle))
                    if stat.kind != ObjectKind::Symlink || (follow == Follow::No && is_last) =>
                {
                    found = Some((stat, handle));
                    continue;
                }
                component => component,
            };
            found = None;
            if !may_follow(&walked, &pending, links, follows) {
                hidden = Some(walked.len());
                continue;
            }
            // An ancestor became a link since it was walked through.
            let (_, handle) = component.map_err(lookup_error("look up the path"))?;
            links += 1;
            if links > MAX_LINKS {
                return Err(Error::Loop);
            }
            let target = read_link(&handle)?;
            if target.starts_with('/') {
                return Err(Error::Outside);
            }
            walked.pop();
            for component in target.rsplit('/') {
                pending.push_front(component.to_owned());
            }
        }
        let canonical = WorkspacePath::parse(&walked.join("/")).map_err(|_| Error::TooLong)?;
        // A walk that ended with `..` left no descriptor of its end.
        let found = match found {
            Some(found) => Some(found),
            None if hidden.is_some() || (links > 0 && !follows(VisitedName::Name(&canonical))) => {
                None
            }
            None => match self.look(canonical.as_str()) {
                Ok((stat, _)) if stat.kind == ObjectKind::Symlink && follow == Follow::Yes => {
                    return Err(Error::Moved);
                }
                Ok(found) => Some(found),
                Err(Errno::NOENT | Errno::NOTDIR) => None,
                Err(errno) => return Err(lookup_error("look up the path")(errno)),
            },
        };
        Ok(Resolved { path: canonical, through_symlink: links > 0, found })
    }
}

/// True if the link at `walked`, with `pending` behind it, may be followed.
fn may_follow(
    walked: &[String],
    pending: &VecDeque<String>,
    links: usize,
    follows: &mut dyn FnMut(VisitedName<'_>) -> bool,
) -> bool {
    let Ok(link) = WorkspacePath::parse(&walked.join("/")) else { return false };
    // Without a link before, the name is part of the requested one.
    let named = links == 0
        || match if_missing(walked, pending) {
            Some(names) => WorkspacePath::parse(&names.join("/"))
                .is_ok_and(|name| follows(VisitedName::Name(&name))),
            None => follows(VisitedName::Left(&link)),
        };
    let is_last = pending.iter().all(|component| matches!(component.as_str(), "" | "."));
    named && (is_last || follows(VisitedName::Link(&link)))
}

/// Returns the name to decide on if nothing were at `walked`: with all components after it, unless
/// they lead out again.
fn if_missing(walked: &[String], pending: &VecDeque<String>) -> Option<Vec<String>> {
    let mut names = walked.to_vec();
    for component in pending {
        match component.as_str() {
            "" | "." => {}
            ".." if names.len() == walked.len() => return None,
            ".." => drop(names.pop()),
            _ => names.push(component.clone()),
        }
    }
    Some(names)
}

/// Reads the target of the link behind `handle` (`O_PATH`).
pub(crate) fn read_link(handle: &OwnedFd) -> Result<String, Error> {
    let target =
        rustix::fs::readlinkat(handle, c"", Vec::new()).map_err(Error::os("read the link"))?;
    target.into_string().map_err(|_| Error::NotUtf8)
}
