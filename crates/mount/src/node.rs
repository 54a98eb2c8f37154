//! A node: an entry of the workspace as this mount knows it.

use std::{collections::HashMap, sync::Arc, time::Instant};

use portcullis_core::Version;
use portcullis_policy::ObjectKind;

use crate::{
    attributes::Attr,
    staged::{Staged, Time},
    view_cache::{Key, View},
};

/// A policy id that never matches: the content has to be decided again.
pub(crate) const NO_POLICY: u64 = u64::MAX;

/// The state of a node's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameState {
    Named,
    Unlinked,
    Replaced,
}

/// Times that a node shows for a version instead of the host's: those that it had while
/// the version was staged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) version: Version,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
}

/// A read of a link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LinkRead {
    pub(crate) policy: u64,
    /// True if only the sandbox's setup runs.
    pub(crate) is_setup: bool,
    /// `None` if it was refused.
    pub(crate) target: Option<String>,
}

/// The content that all handles of an open file read.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) bytes: Bytes,
    /// The policy under which it was decided, or [`NO_POLICY`].
    pub(crate) policy: u64,
}

impl Content {
    /// Returns the bytes of a view; a staged version is counted separately.
    pub(crate) fn view_size(&self) -> u64 {
        match &self.bytes {
            Bytes::View(view, _) => view.len() as u64,
            Bytes::Staged(_) => 0,
        }
    }

    /// Returns the size; none while a program changes it, since only the kernel knows it then.
    fn size(&self) -> Option<u64> {
        match &self.bytes {
            Bytes::View(view, _) => Some(view.len() as u64),
            Bytes::Staged(staged) => Some(staged.shows()).filter(|s| !s.dirty).map(|s| s.size),
        }
    }

    /// Returns true if it is shorter than `size`, or longer, as far as a read up to `end` shows.
    pub(crate) fn differs(&self, size: u64, end: u64) -> bool {
        self.size().is_some_and(|own| size < own || (size > own && end > own))
    }

    /// Returns true if it has `size`, or a program changes it.
    pub(crate) fn has_size(&self, size: u64) -> bool {
        self.size().is_none_or(|own| own == size)
    }

    /// Returns true if it is `before` with more at the end, and `size` is one on the way.
    pub(crate) fn continues(&self, before: &Self, size: u64) -> bool {
        match (&self.bytes, &before.bytes) {
            (Bytes::View(view, _), Bytes::View(before, _)) => {
                (before.len() as u64..=view.len() as u64).contains(&size)
                    && view.starts_with(before)
            }
            _ => false,
        }
    }
}

/// The bytes of an open file.
#[derive(Debug, Clone)]
pub(crate) enum Bytes {
    /// The view at the last open, with its version, if that is certain.
    View(View, Option<Version>),
    /// The staged version, shared by all handles.
    Staged(Arc<Staged>),
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) parent: u64,
    pub(crate) name: Arc<str>,
    pub(crate) name_state: NameState,
    pub(crate) children: HashMap<Arc<str>, u64>,
    pub(crate) lookups: u64,
    pub(crate) opens: u64,
    pub(crate) kind: ObjectKind,
    /// The host's inode number; none while the file is staged only.
    pub(crate) inode: Option<u64>,
    /// The content while it is open.
    pub(crate) content: Option<Content>,
    /// The last content shown: if it is shown again, the kernel may keep its pages.
    pub(crate) shown: Option<Key>,
    /// The time at which the kernel last had to list a directory, which gave it the attributes of
    /// the entries.
    pub(crate) listed: Option<Instant>,
    /// The size of a version's view.
    pub(crate) size: Option<(Key, u64)>,
    pub(crate) times: Option<Times>,
    /// The last attributes returned.
    pub(crate) returned_attr: Option<Attr>,
    /// True if their size is that of the content of an open, which the kernel may not know.
    pub(crate) is_corrected: bool,
    /// The reason of the last refusal.
    pub(crate) reason: Option<Arc<str>>,
    /// The last recorded read of a link.
    pub(crate) link_read: Option<LinkRead>,
    /// The last version whose read was denied, and the rule.
    pub(crate) denied: Option<(Key, Arc<str>)>,
}

impl Node {
    pub(crate) fn new(parent: u64, name: Arc<str>, kind: ObjectKind, inode: Option<u64>) -> Self {
        Self {
            parent,
            name,
            name_state: NameState::Named,
            children: HashMap::new(),
            lookups: 0,
            opens: 0,
            kind,
            inode,
            content: None,
            shown: None,
            listed: None,
            size: None,
            times: None,
            returned_attr: None,
            is_corrected: false,
            reason: None,
            link_read: None,
            denied: None,
        }
    }

    /// Returns true if its content was decided under this policy, at this path.
    pub(crate) fn is_shown_under(&self, policy: u64) -> bool {
        self.content.as_ref().is_some_and(|content| content.policy == policy)
    }

    /// Notes the size of the content with which it is opened.
    pub(crate) fn correct_size(&mut self, size: u64) {
        if let Some(attr) = self.returned_attr.as_mut().filter(|attr| attr.size != size) {
            attr.size = size;
            self.is_corrected = true;
        }
    }

    /// Returns the size with which it was opened, if the kernel may not know it.
    pub(crate) fn corrected_size(&self) -> Option<u64> {
        self.returned_attr.filter(|_| self.is_corrected).map(|attr| attr.size)
    }

    /// Returns true if a handle is open.
    pub(crate) fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// Returns true if exactly one handle is open.
    pub(crate) fn is_open_once(&self) -> bool {
        self.opens == 1
    }

    /// Returns true if it was removed or replaced.
    pub(crate) fn is_detached(&self) -> bool {
        self.name_state != NameState::Named
    }

    /// Returns true if it exists in this mount only.
    pub(crate) fn is_staged_only(&self) -> bool {
        self.inode.is_none() && self.staged().is_some()
    }

    /// Returns the staged version of a file that has no name yet.
    pub(crate) fn unnamed(&self) -> Option<&Arc<Staged>> {
        let is_unnamed = self.name_state == NameState::Unlinked && self.is_staged_only();
        self.staged().filter(|_| is_unnamed)
    }

    /// Returns its staged version.
    pub(crate) fn staged(&self) -> Option<&Arc<Staged>> {
        match &self.content.as_ref()?.bytes {
            Bytes::Staged(staged) => Some(staged),
            Bytes::View(..) => None,
        }
    }
}
