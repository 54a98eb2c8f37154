//! Landlock: restricts the files and ports that a process may still use.
//!
//! Every right of ABI 3 is required. Rights that newer kernels add are used where available, as
//! [`Applied`] reports. Landlock never grants anything.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, LandlockStatus,
    NetPort, PathBeneath, RestrictSelf, RestrictSelfAttr as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, make_bitflags,
};
use rustix::fs::FileType;

/// Rights that a rule allows beneath its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessRight {
    /// Read files, list directories, execute.
    Read,
    /// Read files and list directories, but execute nothing.
    ReadOnlyData,
    /// All rights but the creation of device nodes.
    Write,
    /// Read and write, but execute nothing and make neither device nodes nor sockets: the gateway's
    /// right on a workspace.
    Data,
    /// Read from and write to a device.
    Device,
    /// Use terminals.
    Terminal,
}

/// A directory or file, and the right that is allowed beneath it.
#[derive(Debug)]
pub(super) struct Rule<'a> {
    pub(super) parent: BorrowedFd<'a>,
    pub(super) right: AccessRight,
}

/// Restrictions of the calling thread.
#[derive(Debug)]
pub(super) struct Restriction<'a> {
    /// The only files that are allowed.
    pub(super) rules: &'a [Rule<'a>],
    /// The only ports that are allowed; `None` where a network namespace isolates the process.
    pub(super) ports: Option<Ports<'a>>,
    /// True if refusals may appear in the kernel's audit log (ABI 7). An agent could fill that by
    /// restricting itself further.
    pub(super) logged: bool,
}

/// Ports, on any interface and any host.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ports<'a> {
    /// TCP ports to connect to.
    pub(super) connect: &'a [u16],
    /// TCP ports to bind to.
    pub(super) bind: &'a [u16],
    /// True if UDP to name servers is allowed.
    pub(super) dns: bool,
}

/// Restrictions that the kernel enforces now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Applied {
    /// The Landlock ABI of the running kernel, as far as this program knows it.
    pub(super) abi: u32,
    /// Device ioctls are restricted (ABI 5).
    pub(super) ioctl: bool,
    /// Abstract UNIX sockets and signals are confined to the sandbox (ABI 6).
    pub(super) scopes: bool,
    /// UDP ports are restricted (ABI 10).
    pub(super) udp: bool,
}

/// Landlock could not be applied.
pub(super) type LandlockError = RulesetError;

/// True if the kernel has Landlock of at least ABI 3.
pub(super) fn available() -> bool {
    hard().handle_access(AccessFs::from_all(ABI::V3)).is_ok()
}

/// True if TCP ports can be restricted (ABI 4).
pub(super) fn restricts_tcp() -> bool {
    hard().handle_access(AccessNet::from_all(ABI::V4)).is_ok()
}

/// True if abstract UNIX sockets and signals can be confined (ABI 6).
pub(super) fn has_scopes() -> bool {
    hard().scope(Scope::from_all(ABI::V6)).is_ok()
}

/// Restricts the calling thread and, since ABI 8, all others; before that the process must have no
/// other thread.
pub(super) fn restrict(restriction: &Restriction<'_>) -> Result<Applied, LandlockError> {
    let mut applied =
        Applied { abi: 0, ioctl: has_ioctl(), scopes: has_scopes(), udp: restricts_udp() };
    let files = files(&applied);
    let mut ruleset = hard().handle_access(files)?;
    if restriction.ports.is_some() {
        if restricts_tcp() {
            ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
        }
        if applied.udp {
            ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V10))?;
        }
    }
    if applied.scopes {
        ruleset = ruleset.scope(Scope::from_all(ABI::V6))?;
    }
    let mut created = ruleset.create()?;
    for rule in restriction.rules {
        let kind = rustix::fs::fstat(rule.parent).map(|s| FileType::from_raw_mode(s.st_mode));
        let mut access = rights(rule.right);
        if kind != Ok(FileType::Directory) {
            access &= AccessFs::from_file(ABI::V9);
        }
        // A rule for a socket itself, not for those that lie in a directory.
        if kind == Ok(FileType::Socket) {
            access |= AccessFs::ResolveUnix;
        }
        created = created.add_rule(PathBeneath::new(rule.parent, access & files))?;
    }
    for (port, access) in ports(restriction.ports.unwrap_or_default(), &applied) {
        created = created.add_rule(NetPort::new(port, access))?;
    }
    if !restriction.logged && controls_log() {
        created = created.log_same_exec(false)?.log_subdomains(false)?;
    }
    if restricts_threads() {
        created = created.all_threads(true)?;
    }
    let status = created.restrict_self()?;
    if let LandlockStatus::Available { effective_abi, kernel_abi } = status.landlock {
        applied.abi = u32::try_from(kernel_abi.unwrap_or(effective_abi as i32)).unwrap_or(0);
    }
    // A hard requirement that was not met has failed above; this guards against a change of that
    // library.
    if status.ruleset != RulesetStatus::FullyEnforced {
        applied.abi = 0;
    }
    Ok(applied)
}

/// Returns the rights on files that this kernel restricts.
fn files(applied: &Applied) -> BitFlags<AccessFs> {
    let mut files = AccessFs::from_all(ABI::V3);
    if applied.ioctl {
        files |= AccessFs::IoctlDev;
    }
    if restricts_sockets() {
        files |= AccessFs::ResolveUnix;
    }
    files
}

fn ports(ports: Ports<'_>, applied: &Applied) -> Vec<(u16, AccessNet)> {
    let with = |access| move |port: &u16| (*port, access);
    let connect = ports.connect.iter().map(with(AccessNet::ConnectTcp));
    let bind = ports.bind.iter().map(with(AccessNet::BindTcp));
    // To send, a socket is bound to a port that the kernel picks, which is number 0.
    let dns = [(53, AccessNet::ConnectSendUdp), (0, AccessNet::BindUdp)];
    let dns = dns.into_iter().filter(|_| ports.dns && applied.udp);
    connect.chain(bind).chain(dns).collect()
}

fn hard() -> Ruleset {
    Ruleset::default().set_compatibility(CompatLevel::HardRequirement)
}

fn has_ioctl() -> bool {
    hard().handle_access(AccessFs::IoctlDev).is_ok()
}

/// True if logging can be configured (ABI 7).
fn controls_log() -> bool {
    flags().log_subdomains(false).is_ok()
}

/// True if all threads can be restricted at once (ABI 8).
fn restricts_threads() -> bool {
    flags().all_threads(true).is_ok()
}

/// True if connections to UNIX sockets can be restricted by path (ABI 9).
fn restricts_sockets() -> bool {
    hard().handle_access(AccessFs::ResolveUnix).is_ok()
}

/// True if UDP ports can be restricted (ABI 10).
fn restricts_udp() -> bool {
    hard().handle_access(AccessNet::BindUdp).is_ok()
}

fn flags() -> RestrictSelf {
    RestrictSelf::default().set_compatibility(CompatLevel::HardRequirement)
}

fn rights(right: AccessRight) -> BitFlags<AccessFs> {
    let all = AccessFs::from_all(ABI::V3);
    match right {
        AccessRight::Read => AccessFs::from_read(ABI::V3),
        AccessRight::ReadOnlyData => make_bitflags!(AccessFs::{ReadFile | ReadDir}),
        AccessRight::Write => all & !make_bitflags!(AccessFs::{MakeChar | MakeBlock}),
        AccessRight::Data => {
            all & !make_bitflags!(AccessFs::{Execute | MakeChar | MakeBlock | MakeSock | MakeFifo})
        }
        AccessRight::Device => make_bitflags!(AccessFs::{ReadFile | WriteFile}),
        AccessRight::Terminal => {
            make_bitflags!(AccessFs::{ReadFile | WriteFile | ReadDir | IoctlDev})
        }
    }
}
