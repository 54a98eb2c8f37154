//! Checks of the state directory: its owner, its space, copies of backups, and the end of the log.
//! They leave nothing behind.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use cap_std::fs::Dir;
use indicatif::HumanBytes;
use portcullis_audit::PublicKey;
use rustix::{
    fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, ioctl_ficlone, openat, statvfs},
    io::Errno,
};
use serde_json::json;

use super::check::{Check, Status};
use crate::{
    app::{
        audit_log::{NEWER, is_unused},
        failure::Failure,
        policy_rollback, running_gateways, secret_key, state_directory, state_owner, trusted_paths,
    },
    cli::render::counted,
    config::{LoadedPolicy, Operator, audit::Audit},
    gateway::{AuditLog, LogError, LogInspection},
    operator_files,
    review::open_regular,
};

/// Free space below which a check warns.
const MIN_GOOD_SPACE: u64 = 256 << 20;
/// Minimum free space: less may not suffice for the records of a start.
const MIN_SPACE: u64 = 1 << 20;

/// Directories in it that a start opens.
const PARTS: [&str; 7] = ["approvals", "audit", "backups", "gateways", "keys", "logs", "policies"];

/// Checks the owner and the users who have access.
pub(super) fn directory(path: &Path) -> Check {
    const NAME: &str = "state directory";
    let shown = path.display().to_string();
    let means = "it contains the log and the backups; no other user has access";
    if operator_files::symlink_metadata(path).is_ok_and(|_| true) {
        return match state_directory::open(path) {
            Ok(_) => match rustix::fs::access(path, rustix::fs::Access::WRITE_OK) {
                Ok(()) => match parts(path) {
                    Ok(()) => Check::new(NAME, Status::Ok, shown, means),
                    Err(reason) => Check::new(NAME, Status::Failed, reason, means)
                        .help("put it back as it was, or name another directory with --state DIR"),
                },
                Err(error) => {
                    let found = format!("cannot be written: {error}");
                    Check::new(NAME, Status::Failed, found, means)
                        .help("mount it writable, or name another one with --state DIR")
                }
            },
            Err(failure) => {
                let check = Check::new(NAME, Status::Failed, shown, failure.message());
                match failure.advice() {
                    Some(advice) => check.help(advice),
                    None => check.help("name another directory with --state DIR"),
                }
            }
        };
    }
    let above = existing(path);
    if rustix::fs::access(&above, rustix::fs::Access::WRITE_OK).is_err() {
        let found = format!("cannot be made in `{}`", above.display());
        return Check::new(NAME, Status::Failed, found, means)
            .help("name a directory of your own with --state DIR");
    }
    Check::new(NAME, Status::Ok, format!("{shown} (not made yet)"), means)
}

/// Checks, as a start does, that its existing parts can be used.
///
/// # Errors
/// The reason why a part cannot be used.
fn parts(path: &Path) -> Result<(), String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for part in PARTS {
        let opened = match openat(CWD, path.join(part), flags, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(format!("`{part}` is no directory")),
            Err(error) => return Err(format!("`{part}` cannot be opened: {error}")),
            Ok(opened) => opened,
        };
        accessat(&opened, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
            .map_err(|error| format!("`{part}` cannot be written: {error}"))?;
    }
    // Another directory of that name is no backup store.
    state_directory::backup_store(path).map(drop).map_err(|failure| failure.message().to_owned())
}

/// Returns a failure if an agent could have chosen the directory or the configuration: no start
/// would trust them.
pub(super) fn trusted(
    workspace: &Path,
    state: &Path,
    config: (&Operator, &Audit),
) -> Option<Check> {
    let failure = trusted_paths::check_under(workspace, state, config).err()?;
    let means = "what the operator trusts lies where no agent can change it";
    Some(Check::new("trusted paths", Status::Failed, failure.message(), means))
}

/// Returns a failure if the directory is another workspace's: no gateway would use it.
pub(super) fn owner(path: &Path, root: &Path) -> Option<Check> {
    let state = state_directory::look(path).ok().flatten()?;
    // The check of the log tells that it is locked.
    if running_gateways::is_locked(&path.join("audit")) {
        return None;
    }
    let failure = state_owner::check(&state, path, root, None).err()?;
    let means = "log and backups of one workspace serve no other";
    let check = Check::new("state directory", Status::Failed, failure.message(), means);
    Some(check.help(failure.advice().unwrap_or_default()))
}

/// Returns a failure if a signed policy cannot come into force with this directory: a newer one, or
/// another one of its version, was in force.
pub(super) fn newest(path: &Path, loaded: &LoadedPolicy) -> Option<Check> {
    let there = loaded.signed_by.is_some() && operator_files::exists(path);
    let (_, state) = there.then(|| state_directory::open(path).ok()).flatten()?;
    let failure = policy_rollback::check(&state, &loaded.policy).err()?;
    let means = "an older signed policy, or another of its version, never comes back";
    let check = Check::new("policy", Status::Failed, failure.message(), means);
    Some(match failure.advice() {
        Some(advice) => check.help(advice),
        None => check,
    })
}

/// Returns a failure if no start could use the key for secrets.
pub(super) fn secret_key(path: &Path) -> Option<Check> {
    let state = state_directory::look(path).ok().flatten()?;
    let failure = secret_key::look(&state).err()?;
    let means = "placeholders and the hashes of findings are made with it";
    let check = Check::new("secrets key", Status::Failed, failure.message(), means);
    Some(check.help(failure.advice().unwrap_or_default()))
}

/// Returns the path itself, or its nearest ancestor that exists.
pub(super) fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| operator_files::exists(path)).unwrap_or(Path::new("/")).to_owned()
}

/// Checks the space for log and backups.
pub(super) fn space(path: &Path) -> Check {
    const NAME: &str = "free space";
    let means = "every change needs room for a copy of what it replaces";
    match statvfs(existing(path)) {
        Err(error) => Check::new(NAME, Status::Warning, "unknown", error.to_string()),
        Ok(facts) => {
            let free = facts.f_bavail.saturating_mul(facts.f_frsize);
            // Some file systems do not count files.
            let no_files = facts.f_files > 0 && facts.f_favail == 0;
            let status = match free {
                _ if no_files => Status::Failed,
                0..MIN_SPACE => Status::Failed,
                MIN_SPACE..MIN_GOOD_SPACE => Status::Warning,
                _ => Status::Ok,
            };
            let found = if no_files {
                "no room for another file".to_owned()
            } else {
                HumanBytes(free).to_string()
            };
            let check = Check::new(NAME, status, found, means)
                .facts(json!({ "bytes": free, "files": facts.f_favail }));
            if status == Status::Ok { check } else { check.help("make room, or use --state DIR") }
        }
    }
}

/// Checks that backups can share their blocks with the files of which they are copies.
pub(super) fn reflink(path: &Path) -> Check {
    const NAME: &str = "reflink";
    let above = existing(path);
    match try_reflink(&above) {
        Ok(()) => Check::new(
            NAME,
            Status::Ok,
            "works",
            "backups of files on the same file system cost no space until they differ",
        )
        .facts(json!({ "works": true })),
        Err(error) => Check::new(
            NAME,
            Status::Warning,
            "not on this file system",
            "backups are copies: as safe, but each takes the file's size and time",
        )
        .help("keep workspace and state on one XFS, Btrfs or bcachefs")
        .facts(json!({ "works": false, "error": error.to_string() })),
    }
}

/// Clones a file without a name into another one.
fn try_reflink(directory: &Path) -> io::Result<()> {
    let nameless = || -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file: OwnedFd = openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(file.into())
    };
    let mut source = nameless()?;
    source.write_all(&[7; 8192])?;
    source.sync_data()?;
    Ok(ioctl_ficlone(nameless()?, &source)?)
}

/// Checks the end of the log, as a start does.
pub(super) fn log(path: &Path, signer: Option<PublicKey>) -> Check {
    const NAME: &str = "audit log";
    let means = "`portcullis audit verify` checks everything";
    let refuses = "gateways refuse to start on such a log";
    match look(path, signer) {
        Ok(LogState::Gone(gone)) => {
            let check = Check::new(NAME, Status::Failed, gone.message(), refuses);
            check.help(gone.advice().unwrap_or_default())
        }
        Ok(LogState::None) => Check::new(NAME, Status::Ok, "none yet", "the first start makes it"),
        Ok(LogState::Locked) => Check::new(
            NAME,
            Status::Warning,
            "locked",
            "a gateway keeps the log locked longer than an append takes",
        )
        .help("look at the gateways that run on this workspace"),
        Ok(LogState::Unseen) => Check::new(
            NAME,
            Status::Warning,
            "not looked at: the last segment is compressed",
            "a start unpacks it first; `portcullis audit verify` verifies all of it now",
        )
        .facts(json!({ "records": null, "checked": "nothing" })),
        Ok(LogState::EndChecked { records, gateways }) => {
            let running = match gateways {
                0 => String::new(),
                gateways => format!(", {} running", counted(gateways as u64, "gateway")),
            };
            Check::new(
                NAME,
                Status::Ok,
                format!("{}{running}; only the end was checked", counted(records, "record")),
                means,
            )
            .facts(json!({ "records": records, "gateways": gateways, "checked": "end" }))
        }
        Ok(LogState::KeyMissing) => Check::new(
            NAME,
            Status::Warning,
            "`key.vkey` is missing, although the log has a key",
            "without the public key nobody can verify the log's checkpoints",
        )
        .help(
            "`portcullis audit verify` says what else is missing; the next gateway publishes the key \
             again, and records that",
        ),
        Ok(LogState::Torn { bytes }) => Check::new(
            NAME,
            Status::Warning,
            format!("torn: {} after the last record", counted(bytes as u64, "byte")),
            "a gateway or the machine died while it wrote",
        )
        .help("nothing to do: the next gateway sets them aside and records that"),
        Ok(LogState::Refused(error)) => {
            let check = Check::new(NAME, Status::Failed, error.to_string(), refuses);
            if error.is_newer() {
                return check.help(NEWER);
            }
            if !error.is_damage() {
                return check.help("run this as the user whose gateway writes it");
            }
            check.help(
                "keep a copy of the state directory; `portcullis audit verify` says what is \
                 wrong, `portcullis audit recover` sets it aside",
            )
        }
        Err(error) => Check::new(NAME, Status::Failed, "cannot be read", error.to_string())
            .help("run this as the user whose gateway writes it"),
    }
}

enum LogState {
    None,
    Gone(Failure),
    Locked,
    Unseen,
    EndChecked { records: u64, gateways: usize },
    KeyMissing,
    Torn { bytes: usize },
    Refused(LogError),
}

/// True if no public key is published.
fn lacks_key(state: &Dir) -> bool {
    AuditLog::published_keys(state).is_ok_and(|keys| keys.is_empty())
}

fn look(state: &Path, signer: Option<PublicKey>) -> io::Result<LogState> {
    // Where there is none, no gateway uses the log.
    let lock = match open_regular(&state.join("audit/lock")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other?),
    };
    if let Some(lock) = &lock
        && !running_gateways::lock_soon(lock)?
    {
        return Ok(LogState::Locked);
    }
    if let Err(gone) = is_unused(&state.join("audit")) {
        return Ok(LogState::Gone(gone));
    }
    let Some(dir) =
        state_directory::look(state).map_err(|failure| io::Error::other(failure.message()))?
    else {
        return Ok(LogState::None);
    };
    let has_key = signer.is_some() || dir.symlink_metadata("keys/checkpoint.key").is_ok();
    Ok(match AuditLog::look(&dir, signer) {
        Err(error) => LogState::Refused(error),
        Ok(None) => LogState::None,
        Ok(Some(LogInspection { torn: bytes @ 1.., .. })) => LogState::Torn { bytes },
        Ok(Some(LogInspection { records: None, .. })) => LogState::Unseen,
        Ok(Some(LogInspection { records: Some(1..), .. })) if has_key && lacks_key(&dir) => {
            LogState::KeyMissing
        }
        Ok(Some(LogInspection { records: Some(records), .. })) => {
            LogState::EndChecked { records, gateways: running_gateways::count(state)? }
        }
    })
}
