//! One node: an entry of the workspace as this mount knows it.

use std::{collections::HashMap, sync::Arc};

use portcullis_core::Version;
use portcullis_policy::ObjectKind;
use rustix::io::Errno;

use crate::{
    attributes::Attr,
    memo::{Key, View},
    staged::{Staged, Time},
};

/// Of what has to be decided on again, whatever the policy.
pub(crate) const NO_POLICY: u64 = u64::MAX;

/// Whether a node has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Named,
    Unlinked,
    Replaced,
}

/// Times that a node shows for one version instead of the host's: those that it had while
/// it was staged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) version: Version,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
}

/// What all handles of an open file read.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) bytes: Bytes,
    /// The policy under which it was decided, or [`NO_POLICY`].
    pub(crate) policy: u64,
}

impl Content {
    /// What a view of it has; a staged version counts its bytes itself.
    pub(crate) fn view_size(&self) -> u64 {
        match &self.bytes {
            Bytes::View(view, _) => view.len() as u64,
            Bytes::Staged(_) => 0,
        }
    }
}

/// The bytes of an open file.
#[derive(Debug, Clone)]
pub(crate) enum Bytes {
    /// As they were shown at the last open; the version, if it is certain.
    View(View, Option<Version>),
    /// Those that everybody shares who has the file open.
    Staged(Arc<Staged>),
}

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) parent: u64,
    pub(crate) name: Arc<str>,
    pub(crate) place: Place,
    pub(crate) children: HashMap<Arc<str>, u64>,
    pub(crate) lookups: u64,
    pub(crate) opens: u64,
    pub(crate) kind: ObjectKind,
    /// The host's inode; none while the file is staged only.
    pub(crate) inode: Option<u64>,
    /// What is read and written while it is open.
    pub(crate) content: Option<Content>,
    /// What was last shown of it: if it is shown again, the kernel may keep its pages.
    pub(crate) shown: Option<Key>,
    /// How long the view of a version is.
    pub(crate) size: Option<(Key, u64)>,
    pub(crate) times: Option<Times>,
    /// What was last told of it.
    pub(crate) told: Option<Attr>,
    /// Why the last request was refused.
    pub(crate) why: Option<Arc<str>>,
    /// The version that was last denied to be read, and the rule that did.
    pub(crate) denied: Option<(Key, Arc<str>)>,
    /// An error that no program has heard of yet.
    pub(crate) unheard: Option<Errno>,
}

impl Node {
    pub(crate) fn new(parent: u64, name: Arc<str>, kind: ObjectKind, inode: Option<u64>) -> Self {
        Self {
            parent,
            name,
            place: Place::Named,
            children: HashMap::new(),
            lookups: 0,
            opens: 0,
            kind,
            inode,
            content: None,
            shown: None,
            size: None,
            times: None,
            told: None,
            why: None,
            denied: None,
            unheard: None,
        }
    }

    /// Whether what it shows was decided on under this policy, at this path.
    pub(crate) fn is_shown_under(&self, policy: u64) -> bool {
        self.content.as_ref().is_some_and(|content| content.policy == policy)
    }

    /// Whether a handle is open.
    pub(crate) fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// Whether exactly one handle is open.
    pub(crate) fn is_open_once(&self) -> bool {
        self.opens == 1
    }

    /// Whether it was removed or replaced.
    pub(crate) fn is_detached(&self) -> bool {
        self.place != Place::Named
    }

    /// Whether it exists in this mount alone.
    pub(crate) fn is_staged_only(&self) -> bool {
        self.inode.is_none() && self.staged().is_some()
    }

    /// The staged version of a file that has no name yet.
    pub(crate) fn unnamed(&self) -> Option<&Arc<Staged>> {
        let is_unnamed = self.place == Place::Unlinked && self.is_staged_only();
        self.staged().filter(|_| is_unnamed)
    }

    /// Its staged version.
    pub(crate) fn staged(&self) -> Option<&Arc<Staged>> {
        match &self.content.as_ref()?.bytes {
            Bytes::Staged(staged) => Some(staged),
            Bytes::View(..) => None,
        }
    }
}
