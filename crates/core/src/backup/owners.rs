//! Owners that the gateway may give to restored objects.

use rustix::{
    process::{getegid, geteuid, getgroups},
    thread::{CapabilitySet, capabilities},
};

use super::Attributes;

/// The bits of a directory besides its permission bits that nothing but the operator sets: sticky
/// and set-group-id. No object gets set-user-id, and no file any of these bits.
pub(crate) const DIRECTORY_BITS: u32 = 0o3000;

/// Users and groups to which the gateway may give its new files. Without a capability, which
/// confined gateways lack, a process cannot give files to another user.
#[derive(Debug)]
pub(crate) struct AssignableOwners {
    user: u32,
    groups: Vec<u32>,
    all: bool,
}

impl AssignableOwners {
    /// Returns those of this process.
    pub(crate) fn of_this_process() -> Self {
        let groups = getgroups().unwrap_or_default();
        Self {
            user: geteuid().as_raw(),
            groups: groups.into_iter().chain([getegid()]).map(|group| group.as_raw()).collect(),
            all: capabilities(None).is_ok_and(|it| it.effective.contains(CapabilitySet::CHOWN)),
        }
    }

    /// True if an object can get its owner back.
    pub(crate) fn may_give(&self, attributes: &Attributes) -> bool {
        self.all || (attributes.uid == self.user && self.groups.contains(&attributes.gid))
    }

    /// Returns the mode that an object gets back. If it stays the gateway's own, the bits of group
    /// and others were meant for other users.
    pub(crate) fn mode(&self, attributes: &Attributes, is_directory: bool) -> u32 {
        let kept = match (self.may_give(attributes), is_directory) {
            (false, _) => 0o700,
            (true, false) => 0o777,
            (true, true) => 0o777 | DIRECTORY_BITS,
        };
        attributes.mode & kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: u32, gid: u32) -> Attributes {
        let (mtime, mtime_nanos, acl, default_acl) = (0, 0, None, None);
        Attributes { mode: 0o7754, uid, gid, mtime, mtime_nanos, acl, default_acl }
    }

    #[test]
    fn what_stays_the_gateways_own_is_opened_to_nobody_else() {
        let owners = AssignableOwners { user: 7, groups: vec![8, 9], all: false };
        let mode = |uid, gid| owners.mode(&of(uid, gid), false);
        assert_eq!([mode(7, 8), mode(7, 9), mode(7, 7), mode(0, 8)], [0o754, 0o754, 0o700, 0o700]);
        let directory = |uid, gid| owners.mode(&of(uid, gid), true);
        assert_eq!([directory(7, 8), directory(0, 8)], [0o3754, 0o700]);
        assert_eq!(AssignableOwners { all: true, ..owners }.mode(&of(0, 0), false), 0o754);
    }
}
