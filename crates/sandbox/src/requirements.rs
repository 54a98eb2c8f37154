//! Features of this machine that decide how a sandbox is made, and advice for
//! an operator whose machine allows too little.

use rustix::{
    process::{Uid, geteuid},
    thread::CapabilitySet,
};

use super::{
    capabilities, landlock,
    launch_error::LaunchError,
    spec::{Enforcement, INNER_USER, Mode},
};

/// First of the numbers from which root takes a user for its agents: unused on
/// any usual system (users and containers end below 0x7000_0000, as systemd
/// documents).
const AGENT_USER: u32 = 0x7000_0000;
/// Number for systems that have only few users, such as containers.
const FALLBACK_USER: u32 = 65_533;

/// Returns the strongest mode of making a sandbox that may work here and that
/// the operator accepts. A `mount` needs a user namespace: without one the
/// host's own processes could enter it, too.
pub(super) fn choose(floor: Enforcement, mount: bool) -> Result<Mode, LaunchError> {
    if floor == Enforcement::None {
        return Ok(Mode::Open);
    }
    if !landlock::available() {
        return Err(LaunchError::Refused(format!(
            "this kernel has no Landlock of ABI 3 (Linux 6.2 with `lsm=landlock`); {}",
            unlock_advice()
        )));
    }
    let needed = CapabilitySet::SYS_ADMIN
        // For the loopback interface.
        | CapabilitySet::NET_ADMIN
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::SETPCAP
        | CapabilitySet::CHOWN
        | CapabilitySet::KILL
        | CapabilitySet::DAC_OVERRIDE;
    let mapping = CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::SETFCAP
        | CapabilitySet::CHOWN
        | CapabilitySet::KILL;
    match unprivileged_user() {
        Some(user) if !mount && capabilities::has(needed) => Ok(Mode::Root { user }),
        Some(user) if geteuid() == Uid::ROOT && capabilities::has(mapping) => {
            // Files in a mount show the numbers that they have outside.
            let inner = if mount { user } else { INNER_USER };
            Ok(Mode::Mapped { user, inner })
        }
        _ => Ok(Mode::User),
    }
}

/// Returns the mode without namespaces, or an error in words if it needs more,
/// too.
pub(super) fn partial() -> Result<Mode, String> {
    Ok(Mode::Partial { user: root_becomes(unprivileged_user()) })
}

/// Returns advice for a full sandbox, as far as the system shows what is
/// missing.
pub(super) fn advice() -> String {
    format!("{}; {}", switches(), unlock_advice())
}

/// Returns the same without the ways to run without one.
pub(super) fn switches() -> String {
    let switches = [
        ("/proc/sys/user/max_user_namespaces", "0", "set `user.max_user_namespaces` above 0"),
        (
            "/proc/sys/kernel/unprivileged_userns_clone",
            "0",
            "set `kernel.unprivileged_userns_clone` to 1",
        ),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "add an AppArmor profile that allows `userns` for this program, or set \
             `kernel.apparmor_restrict_unprivileged_userns` to 0",
        ),
    ];
    let found: Vec<_> = switches
        .into_iter()
        .filter(|(path, value, _)| read(path).is_some_and(|text| text.trim() == *value))
        .map(|(_, _, advice)| advice)
        .collect();
    if found.is_empty() {
        "a container may forbid namespaces: Podman allows them, Docker with `--security-opt \
         seccomp=unconfined --security-opt apparmor=unconfined`, Kubernetes with `hostUsers: false` \
         and the seccomp profile `Unconfined` (docs/containers.md)"
            .to_owned()
    } else {
        found.join("; ")
    }
}

fn unlock_advice() -> &'static str {
    "weaker enforcement must be asked for: `--allow-partial` where Landlock suffices, \
     `--unconfined` for none"
}

/// Returns the user that root becomes if it lacks the capabilities for a
/// sandbox, if it can.
fn root_becomes(user: Option<u32>) -> Option<u32> {
    let able = capabilities::has(
        CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN | CapabilitySet::KILL,
    );
    if geteuid() == Uid::ROOT && able { user } else { None }
}

/// Returns the first port that a process without privileges may listen on.
pub(super) fn first_unprivileged_port() -> u16 {
    let setting = read("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    setting.and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// Returns a user that owns nothing, and that this process may become.
fn unprivileged_user() -> Option<u32> {
    let map = read("/proc/self/uid_map")?;
    let groups = read("/proc/self/gid_map")?;
    [AGENT_USER, FALLBACK_USER]
        .into_iter()
        .find(|user| is_mapped(&map, *user) && is_mapped(&groups, *user))
}

/// True if a user is mapped in this user namespace (user_namespaces(7)).
fn is_mapped(map: &str, user: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().filter_map(|n| n.parse::<u64>().ok());
        let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(user))
    })
}

fn read(path: &str) -> Option<String> {
    use rustix::fs::{Mode as FileMode, OFlags, open};
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, FileMode::empty()).ok()?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(file), &mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_which_users_a_namespace_has() {
        let whole = "         0          0 4294967295\n";
        assert!(is_mapped(whole, AGENT_USER));
        let container = "0 100000 65536\n";
        assert!(!is_mapped(container, AGENT_USER) && is_mapped(container, FALLBACK_USER));
        assert!(!is_mapped("0 1000 1\n", FALLBACK_USER));
    }
}
