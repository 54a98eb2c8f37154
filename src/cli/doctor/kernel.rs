//! Checks of the kernel's features, which are tried out: Landlock, openat2, namespaces, seccomp.

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
};
use serde_json::json;

use super::{
    check::{Check, Status},
    probe::{self, Probe},
};
use crate::{
    operator_files,
    sandbox::{landlock_flaws, namespace_advice},
};

/// The Landlock ABIs: the number, the kernel that it came with, and the use that is made of it.
const ABIS: [(u32, &str, &str); 10] = [
    (1, "5.13", "files open only where rules allow"),
    (2, "5.19", "files move between directories"),
    (3, "6.2", "truncating is writing (`run` needs it)"),
    (4, "6.7", "TCP only to ports of the policy"),
    (5, "6.10", "device ioctls are refused"),
    (6, "6.12", "signals, abstract sockets stay inside"),
    (7, "6.15", "Landlock's denials are not logged"),
    (8, "7.0", "all threads are restricted at once"),
    (9, "7.1", "UNIX sockets only where named"),
    (10, "7.2", "UDP only to port 53"),
];

/// The newest ABI without which `run` is weaker. Later ones close limits that SECURITY.md names.
const COMPLETE_LANDLOCK_ABI: u32 = 6;

/// The switches that forbid user namespaces, and the value that does.
const SWITCHES: [(&str, &str, &str); 3] = [
    ("user.max_user_namespaces", "/proc/sys/user/max_user_namespaces", "0"),
    ("kernel.unprivileged_userns_clone", "/proc/sys/kernel/unprivileged_userns_clone", "0"),
    (
        "kernel.apparmor_restrict_unprivileged_userns",
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
    ),
];

/// Checks the kernel's release.
pub(super) fn release() -> Check {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let machine = system.machine().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let found = format!("Linux {release} on {machine}");
    let check = if version >= (6, 2) {
        Check::new("kernel", Status::Ok, found, "new enough for all that `run` needs")
    } else {
        Check::new("kernel", Status::Warning, found, "older than 6.2, which has what `run` needs")
            .help("what was backported shows below; else use a newer kernel")
    };
    check.facts(json!({ "release": release, "machine": machine }))
}

/// Checks Landlock. Returns its ABI, too; 0 if it has none that `run` can use.
pub(super) fn landlock() -> (Check, u32) {
    const NAME: &str = "Landlock";
    let abi = match probe::try_apart(Probe::Landlock) {
        Ok(answer) => answer.as_u64().and_then(|abi| u32::try_from(abi).ok()).unwrap_or(0),
        Err(reason) => {
            let check = Check::new(
                NAME,
                Status::Failed,
                "not available",
                format!("the kernel cannot confine an agent: {reason}"),
            )
            .help(
                "use Linux 6.2 or newer with CONFIG_SECURITY_LANDLOCK, and `landlock` in the \
                 `lsm=` list of the kernel's command line; a container's seccomp profile must \
                 allow the landlock_* calls",
            )
            .facts(json!({ "abi": 0 }));
            return (check, 0);
        }
    };
    let newest = ABIS.map(|(number, _, _)| number).into_iter().max().unwrap_or(0);
    let missed: Vec<_> = (abi.saturating_add(1)..=newest).collect();
    let status = if abi >= COMPLETE_LANDLOCK_ABI { Status::Ok } else { Status::Warning };
    let means = "the kernel restricts agent and gateway to the files that they were given";
    let found = match abi {
        _ if abi > newest => format!("ABI {abi}, of which {newest} is used"),
        _ if missed.is_empty() => format!("ABI {abi}, all of it used"),
        _ => format!("ABI {abi}, all of it used; the newest known is {newest}"),
    };
    let mut check = Check::new(NAME, status, found, means);
    for (number, kernel, what) in ABIS {
        let line = format!("ABI {number:<2} Linux {kernel:<4}  {what}");
        let status = if number <= abi { Status::Ok } else { Status::Warning };
        check = check.detail(status, line);
    }
    if abi < COMPLETE_LANDLOCK_ABI {
        check = check.help("what is marked comes with a newer kernel");
    }
    let facts = json!({ "abi": abi, "used": abi.min(newest), "missed": missed });
    (check.facts(facts), abi)
}

/// Faults of this kernel's Landlock.
pub(super) fn errata(abi: u32) -> Check {
    const NAME: &str = "Landlock errata";
    match landlock_flaws(abi) {
        None => Check::new(
            NAME,
            Status::Warning,
            "the kernel does not say",
            "known faults may or may not be repaired",
        )
        .help("kernels say so since 6.15, and maintained older ones; keep yours up to date"),
        Some(flaws) => {
            let facts = json!({
                "open": flaws.iter().map(|flaw| flaw.number).collect::<Vec<_>>()
            });
            let check = if flaws.is_empty() {
                let means = "all known faults of this ABI are repaired";
                Check::new(NAME, Status::Ok, "none open", means)
            } else {
                let found = format!("{} open", flaws.len());
                Check::new(NAME, Status::Warning, found, "known faults, repaired in newer kernels")
                    .help("update the kernel within its series")
            };
            flaws
                .iter()
                .fold(check, |check, flaw| {
                    check.detail(Status::Warning, format!("{}: {}", flaw.number, flaw.meaning))
                })
                .facts(facts)
        }
    }
}

/// Checks that `openat2` refuses to leave a directory.
pub(super) fn openat2_works() -> Check {
    const NAME: &str = "openat2";
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let open = |path: &str| openat2(CWD, path, flags, Mode::empty(), beneath);
    match (open("."), open("..")) {
        (Ok(_), Err(Errno::XDEV)) => Check::new(
            NAME,
            Status::Ok,
            "works",
            "paths stay beneath the workspace, even if links change meanwhile",
        ),
        (inside, outside) => {
            let word = |result: Result<_, Errno>| match result {
                Ok(_) => "worked".to_owned(),
                Err(error) => error.to_string(),
            };
            let found = format!("opening `.` {}, opening `..` {}", word(inside), word(outside));
            Check::new(NAME, Status::Failed, found, "no path can be resolved safely").help(
                "use Linux 5.6 or newer; a container's seccomp profile must allow openat2, and \
                     systemd's RestrictSUIDSGID= forbids it",
            )
        }
    }
}

/// Checks that user namespaces allow all that a sandbox needs. `full` is true if a full sandbox can
/// be made without them, as root can.
pub(super) fn namespaces(full: bool) -> Check {
    const NAME: &str = "namespaces";
    let switches: Vec<_> = SWITCHES
        .iter()
        .map(|(name, path, forbids)| {
            let value =
                operator_files::read_to_string(path).ok().map(|text| text.trim().to_owned());
            let forbids = value.as_deref() == Some(forbids);
            (*name, value, forbids)
        })
        .collect();
    let tried = probe::try_apart(Probe::Namespaces);
    let mut check = match &tried {
        Ok(_) => Check::new(
            NAME,
            Status::Ok,
            "a user without privileges can make them",
            "the agent gets a root directory, processes and network of its own",
        ),
        Err(reason) if full => Check::new(
            NAME,
            Status::Ok,
            "not for users without privileges",
            format!("cannot {reason}; this user needs none of that"),
        ),
        Err(reason) => Check::new(
            NAME,
            Status::Warning,
            "not available",
            format!("cannot {reason}; the agent could be confined only in part"),
        )
        .help(format!("{}; or accept less with --allow-partial", namespace_advice())),
    };
    for (name, value, forbids) in &switches {
        if let Some(value) = value {
            let status = if *forbids && tried.is_err() { Status::Warning } else { Status::Ok };
            check = check.detail(status, format!("{name} = {value}"));
        }
    }
    let values: serde_json::Map<_, _> =
        switches.iter().map(|(name, value, _)| ((*name).to_owned(), json!(value))).collect();
    check.facts(json!({
        "works": tried.is_ok(),
        "error": tried.as_ref().err(),
        "switches": values,
    }))
}

/// Checks system call filters.
pub(super) fn seccomp() -> Check {
    const NAME: &str = "seccomp";
    match probe::try_apart(Probe::Filter) {
        Ok(_) => Check::new(
            NAME,
            Status::Ok,
            "works",
            "the agent may not make system calls that bypass the rules for files and sockets",
        ),
        Err(reason) => Check::new(NAME, Status::Failed, "not available", reason)
            .help("use a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64"),
    }
}
