//! From the path that was asked for to the object that is meant.
//!
//! Links are expanded here, one component after the other, because the policy
//! must be asked about every name before the kernel is; the kernel then opens
//! the canonical path with links forbidden.

use std::{collections::VecDeque, os::fd::OwnedFd};

use rustix::{fs::OFlags, io::Errno};

use super::{Error, Identity, Stat, Workspace, beneath::lookup_error};
use crate::{
    model::WorkspacePath,
    policy::{Object, ObjectKind},
};

/// As many links as Linux follows in one lookup (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// Whether a link in the last component is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// The operation is about what the link points to.
    Yes,
    /// The operation is about the link itself (remove, rename).
    No,
}

/// What is met on the way from a name that was asked for to what it means.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Met<'a> {
    /// A name to which a link leads, with all that follows.
    Name(&'a WorkspacePath),
    /// The same where a `..` leads out again: what is there alone makes the difference.
    Left(&'a WorkspacePath),
    /// A link with something behind it, itself.
    Link(&'a WorkspacePath),
}

/// What a path means at this moment. An open handle keeps the object's
/// identity from being given to another one meanwhile.
#[derive(Debug)]
pub struct Resolved {
    path: WorkspacePath,
    through_symlink: bool,
    found: Option<(Stat, OwnedFd)>,
}

impl Resolved {
    /// The canonical path: no component of it is a link, but the last one when
    /// links were not to be followed. When something is missing, where it
    /// would be.
    pub fn path(&self) -> &WorkspacePath {
        &self.path
    }

    /// What the policy wants to know of the object.
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

    /// The object's facts; `None` when nothing is there.
    pub fn stat(&self) -> Option<&Stat> {
        self.found.as_ref().map(|(stat, _)| stat)
    }

    /// The object's identity; `None` when nothing is there.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.stat().map(|stat| stat.identity)
    }

    /// A handle (`O_PATH`) on the object; `None` when nothing is there.
    pub(super) fn handle(&self) -> Option<&OwnedFd> {
        self.found.as_ref().map(|(_, handle)| handle)
    }
}

impl Workspace {
    /// Finds out what `path` means, without opening anything that could block
    /// or act, for whom no policy binds.
    ///
    /// # Errors
    /// As [`Workspace::resolve_heeding`].
    pub(crate) fn resolve(&self, path: &WorkspacePath, follow: Follow) -> Result<Resolved, Error> {
        self.resolve_heeding(path, follow, &mut |_| true)
    }

    /// The same for who was allowed to ask about `path`: `follows` says of what is met on
    /// the way whether it may be followed.
    ///
    /// A missing object is no error: the answer says where it would be, so
    /// that the policy can be asked before existence is told. For the same reason
    /// what may not be followed is no error, whatever is there: it is passed as if it
    /// were missing.
    ///
    /// # Errors
    /// [`Error::Outside`], [`Error::Mount`], [`Error::Loop`] and what the
    /// system says.
    pub(crate) fn resolve_heeding(
        &self,
        path: &WorkspacePath,
        follow: Follow,
        follows: &mut dyn FnMut(Met<'_>) -> bool,
    ) -> Result<Resolved, Error> {
        match self.look(path.as_str()) {
            Ok((stat, handle)) if follow == Follow::No || stat.kind != ObjectKind::Symlink => {
                let found = Some((stat, handle));
                return Ok(Resolved { path: path.clone(), through_symlink: false, found });
            }
            // With links forbidden, the kernel meets a link before it misses
            // anything behind it.
            Err(Errno::NOENT) => {
                let path = path.clone();
                return Ok(Resolved { path, through_symlink: false, found: None });
            }
            // What else is wrong may be so of a name that is not told of.
            Ok(_) | Err(_) => {}
        }
        self.expand(path.components().map(str::to_owned).collect(), 0, follow, follows)
    }

    /// Finds out what a link at `link`, whose directories are no links, with this target
    /// would mean, whatever is there now.
    ///
    /// # Errors
    /// As [`Workspace::resolve_heeding`].
    pub(crate) fn resolve_target(
        &self,
        link: &WorkspacePath,
        target: &str,
        follows: &mut dyn FnMut(Met<'_>) -> bool,
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

    /// Walks component by component and replaces links by their targets, after `links`
    /// links.
    fn expand(
        &self,
        mut pending: VecDeque<String>,
        mut links: usize,
        follow: Follow,
        follows: &mut dyn FnMut(Met<'_>) -> bool,
    ) -> Result<Resolved, Error> {
        let mut walked: Vec<String> = Vec::new();
        let mut found = None;
        // How deep the name lies that was passed unseen.
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
            let met = match self.look(&walked.join("/")) {
                // What is missing is passed by its name, so that a `..` behind
                // it leads on as if it were there, and a link behind that is
                // followed: otherwise the answer would tell whether it is.
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
                met => met,
            };
            found = None;
            if !may_follow(&walked, &pending, links, follows) {
                hidden = Some(walked.len());
                continue;
            }
            // An ancestor became a link since it was walked through.
            let (_, handle) = met.map_err(lookup_error("look up the path"))?;
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
        // A walk that ended with `..` left the handle of where it came from.
        let found = match found {
            Some(found) => Some(found),
            None if hidden.is_some() || (links > 0 && !follows(Met::Name(&canonical))) => None,
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

/// Whether the link at `walked`, behind which is `pending`, may be followed.
fn may_follow(
    walked: &[String],
    pending: &VecDeque<String>,
    links: usize,
    follows: &mut dyn FnMut(Met<'_>) -> bool,
) -> bool {
    let Ok(link) = WorkspacePath::parse(&walked.join("/")) else { return false };
    // Without a link the name is part of the one that was asked about.
    let named = links == 0
        || match if_missing(walked, pending) {
            Some(names) => {
                WorkspacePath::parse(&names.join("/")).is_ok_and(|name| follows(Met::Name(&name)))
            }
            None => follows(Met::Left(&link)),
        };
    let is_last = pending.iter().all(|component| matches!(component.as_str(), "" | "."));
    named && (is_last || follows(Met::Link(&link)))
}

/// The name that would be asked about if nothing were at `walked`: with all that
/// follows, if that does not lead out again.
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

/// The target of the link that `handle` (`O_PATH`) names.
pub(crate) fn read_link(handle: &OwnedFd) -> Result<String, Error> {
    let target =
        rustix::fs::readlinkat(handle, c"", Vec::new()).map_err(Error::os("read the link"))?;
    target.into_string().map_err(|_| Error::NotUtf8)
}
