//! Drops all capabilities irrevocably.

use rustix::{
    fs::{Gid, Uid},
    io,
    thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities,
        capability_is_in_bounding_set, clear_ambient_capability_set,
        configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
        set_capabilities_secure_bits, set_no_new_privs, set_thread_groups, set_thread_res_gid,
        set_thread_res_uid,
    },
};

/// True if this process has any capability.
pub(super) fn any() -> io::Result<bool> {
    let sets = capabilities(None)?;
    Ok(!(sets.effective | sets.permitted | sets.inheritable).is_empty())
}

/// True if this process has all of `wanted` in effect.
pub(super) fn has(wanted: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// True if a program could still regain a capability, were it not for
/// `no_new_privs`.
pub(super) fn any_in_bounding_set() -> io::Result<bool> {
    for bit in single_bits(CapabilitySet::all()) {
        match capability_is_in_bounding_set(bit) {
            Ok(false) => {}
            Ok(true) => return Ok(true),
            Err(io::Errno::INVAL) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}

/// Becomes another user, without supplementary groups. The kernel drops the
/// capabilities of a process that leaves user 0 (capabilities(7)).
pub(super) fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// Lets the capabilities of this process survive the next exec of a process
/// that is not user 0.
pub(super) fn make_ambient() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable = sets.permitted;
    set_capabilities(None, sets)?;
    for capability in sets.permitted.iter() {
        // Bits without a name come as a remainder.
        for bit in single_bits(capability) {
            configure_capability_in_ambient_set(bit, true)?;
        }
    }
    Ok(())
}

/// Drops all capabilities, those that an executable could regain included, and
/// the means to get any. Becomes `user` meanwhile, if given. Works with or
/// without capabilities to begin with.
pub(super) fn drop_all(user: Option<u32>) -> io::Result<()> {
    // Before the change of user: a process that is not root may not do it.
    if has(CapabilitySet::SETPCAP) {
        for bit in single_bits(CapabilitySet::all()) {
            match capability_is_in_bounding_set(bit) {
                Ok(true) => remove_capability_from_bounding_set(bit)?,
                Ok(false) => {}
                // The number after the last that this kernel knows.
                Err(io::Errno::INVAL) => break,
                Err(e) => return Err(e),
            }
        }
        set_capabilities_secure_bits(
            CapabilitiesSecureBits::NO_ROOT
                | CapabilitiesSecureBits::NO_ROOT_LOCKED
                | CapabilitiesSecureBits::NO_SETUID_FIXUP
                | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
                | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
                | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
                | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
        )?;
    }
    if let Some(user) = user {
        become_user(user, user)?;
    }
    clear_ambient_capability_set()?;
    keep_only(CapabilitySet::empty())?;
    set_no_new_privs(true)
}

/// Drops all capabilities but `retained`.
pub(super) fn keep_only(retained: CapabilitySet) -> io::Result<()> {
    let permitted = capabilities(None)?.permitted & retained;
    set_capabilities(
        None,
        CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() },
    )
}

/// Tries to take back a dropped capability, which the kernel must refuse.
pub(super) fn take_back() -> io::Result<()> {
    let wanted = CapabilitySet::SETUID;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: wanted, permitted: wanted, inheritable })
}

/// Clears the ambient set, so that no capability survives the next exec.
pub(super) fn clear_ambient() -> io::Result<()> {
    clear_ambient_capability_set()
}

fn single_bits(set: CapabilitySet) -> impl Iterator<Item = CapabilitySet> {
    let bits = set.bits();
    (0..u64::BITS)
        .map(|n| 1_u64 << n)
        .filter(move |bit| bits & bit != 0)
        .map(CapabilitySet::from_bits_retain)
}
