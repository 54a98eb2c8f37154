//! Landlock: which files and ports a process may still use.
//!
//! Every right of ABI 3 is required; what newer kernels add is used where they
//! have it, and [`Applied`] says what that was. Landlock never grants anything.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, LandlockStatus,
    NetPort, PathBeneath, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, Scope, make_bitflags,
};

/// What a rule allows beneath its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// Read files, list directories, execute.
    Read,
    /// Read files and list directories, but execute nothing.
    ReadOnlyData,
    /// Everything but making device nodes.
    Write,
    /// Read and write, but execute nothing and make neither device nodes nor
    /// sockets: what the gate needs on a workspace.
    Data,
    /// Read from and write to a device.
    Device,
}

/// A directory or file, and what is allowed beneath it.
#[derive(Debug)]
pub(super) struct Rule<'a> {
    pub(super) place: BorrowedFd<'a>,
    pub(super) right: Right,
}

/// What the kernel enforces now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Applied {
    /// The Landlock ABI of the running kernel, as far as we know it.
    pub(super) abi: u32,
    /// TCP ports are restricted (ABI 4).
    pub(super) tcp: bool,
    /// Device ioctls are restricted (ABI 5).
    pub(super) ioctl: bool,
    /// Abstract UNIX sockets and signals are confined to the cell (ABI 6).
    pub(super) scopes: bool,
}

/// Landlock could not be applied.
pub(super) type LandlockError = RulesetError;

/// Whether the kernel has Landlock with at least ABI 3.
pub(super) fn available() -> bool {
    hard().handle_access(AccessFs::from_all(ABI::V3)).is_ok()
}

/// Whether TCP ports can be restricted (ABI 4).
pub(super) fn restricts_tcp() -> bool {
    hard().handle_access(AccessNet::from_all(ABI::V4)).is_ok()
}

/// Whether abstract UNIX sockets and signals can be confined (ABI 6).
pub(super) fn has_scopes() -> bool {
    hard().scope(Scope::from_all(ABI::V6)).is_ok()
}

/// Restricts the calling thread: nothing but `rules`, and no TCP but
/// connections to `ports`. The process must have no other thread.
pub(super) fn restrict(rules: &[Rule<'_>], ports: &[u16]) -> Result<Applied, LandlockError> {
    let mut applied =
        Applied { abi: 0, tcp: restricts_tcp(), ioctl: has_ioctl(), scopes: has_scopes() };
    let mut ruleset = hard().handle_access(AccessFs::from_all(ABI::V3))?;
    if applied.tcp {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
    }
    if applied.ioctl {
        ruleset = ruleset.handle_access(AccessFs::IoctlDev)?;
    }
    if applied.scopes {
        ruleset = ruleset.scope(Scope::from_all(ABI::V6))?;
    }
    let mut created = ruleset.create()?;
    for rule in rules {
        let directory = rustix::fs::fstat(rule.place)
            .is_ok_and(|s| rustix::fs::FileType::from_raw_mode(s.st_mode).is_dir());
        let mut access = rights(rule.right);
        if !directory {
            access &= AccessFs::from_file(ABI::V3);
        }
        created = created.add_rule(PathBeneath::new(rule.place, access))?;
    }
    for port in ports {
        created = created.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    let status = created.restrict_self()?;
    if let LandlockStatus::Available { effective_abi, kernel_abi } = status.landlock {
        applied.abi = u32::try_from(kernel_abi.unwrap_or(effective_abi as i32)).unwrap_or(0);
    }
    // A hard requirement that did not hold has failed above; this guards
    // against a change of that library.
    if status.ruleset != RulesetStatus::FullyEnforced {
        applied.abi = 0;
    }
    Ok(applied)
}

fn hard() -> Ruleset {
    Ruleset::default().set_compatibility(CompatLevel::HardRequirement)
}

fn has_ioctl() -> bool {
    hard().handle_access(AccessFs::IoctlDev).is_ok()
}

fn rights(right: Right) -> BitFlags<AccessFs> {
    let all = AccessFs::from_all(ABI::V3);
    match right {
        Right::Read => AccessFs::from_read(ABI::V3),
        Right::ReadOnlyData => make_bitflags!(AccessFs::{ReadFile | ReadDir}),
        Right::Write => all & !make_bitflags!(AccessFs::{MakeChar | MakeBlock}),
        Right::Data => {
            all & !make_bitflags!(AccessFs::{Execute | MakeChar | MakeBlock | MakeSock | MakeFifo})
        }
        Right::Device => make_bitflags!(AccessFs::{ReadFile | WriteFile}),
    }
}
