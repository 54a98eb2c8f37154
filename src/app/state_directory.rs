//! The state directory: log, backups, and former policies.

mod files;
mod format;

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use cap_std::fs::Dir;
use etcetera::{BaseStrategy as _, base_strategy::Xdg};
use portcullis_audit::Hash;
use rustix::{fs::OFlags, io::Errno};

use super::{
    failure::{Context as _, Failure},
    workspace::open_workspace,
};
use crate::{
    gateway::{BackupStore, Workspace},
    model::for_shell,
    operator_files,
    sandbox::canonicalize_missing,
};

pub(super) use files::{read, sync, write};
pub(crate) use format::{around, check_at, is_marked, mark};

/// Names of which a start makes one first.
const OWN_NAMES: [&str; 6] = ["audit", "backups", "format", "gateways", "keys", "workspace"];

/// Returns the default state directory of the workspace at `root`:
/// `$XDG_STATE_HOME/portcullis/NAME-HASH`, where the hash of the root's canonical
/// path distinguishes workspaces of the same name.
///
/// # Errors
/// When there is no home directory.
pub(crate) fn default_directory(root: &Path) -> Result<PathBuf, Failure> {
    let dirs = Xdg::new()
        .or_fail("cannot find a place for the state")
        .map_err(|failure| failure.help("name a directory with --state DIR"))?;
    Ok(default_parent(&dirs).join(slug(root)))
}

/// Returns the directory that contains all default state directories.
pub(crate) fn default_parent(dirs: &Xdg) -> PathBuf {
    let base = dirs.state_dir().unwrap_or_else(|| dirs.home_dir().join(".local/state"));
    base.join("portcullis")
}

/// Returns the state directory of the workspace at `workspace`: `named`, if the
/// operator named one.
///
/// # Errors
/// When there is no such workspace, and as [`default_directory`].
pub(crate) fn directory(named: Option<&PathBuf>, workspace: &Path) -> Result<PathBuf, Failure> {
    if let Some(named) = named {
        return Ok(named.clone());
    }
    let workspace = open_workspace(workspace)?;
    directory_of(None, &workspace)
}

/// Returns the state directory of an open workspace, whose path may lead elsewhere
/// by now.
///
/// # Errors
/// As [`default_directory`].
pub(crate) fn directory_of(
    named: Option<&PathBuf>,
    workspace: &Workspace,
) -> Result<PathBuf, Failure> {
    named.map_or_else(|| default_directory(workspace.root()), |named| Ok(named.clone()))
}

/// Returns a name for the workspace at `root` that is safe as a file name.
fn slug(root: &Path) -> String {
    named(root, root.as_os_str().as_encoded_bytes())
}

/// Returns the name of the directories of data of the agents of the workspace at `root`, whose state
/// directory has the canonical path `state`. Another workspace at either path has another name: it
/// must not get their credentials.
pub(crate) fn agent_data_name(root: &Path, state: &Path) -> String {
    let [root_bytes, state] = [root, state].map(|path| path.as_os_str().as_encoded_bytes());
    named(root, &[root_bytes, b"\0", state].concat())
}

/// Returns the name of the directory at `root` with a hash of `distinct`.
fn named(root: &Path, distinct: &[u8]) -> String {
    let name = root.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        .take(40)
        .collect();
    let hash = format!("{:.16}", Hash::of(distinct));
    if name.is_empty() { hash } else { format!("{name}-{hash}") }
}

/// Returns the directory's canonical path, also if it is missing.
///
/// # Errors
/// When the current directory is gone, or a name on the way cannot be looked up.
pub(crate) fn place(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .and_then(|path| canonicalize_missing(&path))
        .or_fail("cannot look up a state directory")
}

/// Opens the directory; creates it with mode 0700 if it is missing.
///
/// # Errors
/// When it is a link, belongs to another user, is accessible to others, or has another format.
pub(crate) fn open(path: &Path) -> Result<(PathBuf, Dir), Failure> {
    let shown = path.display();
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .or_fail(format_args!("cannot make the state directory `{shown}`"))?;
    let opened = opened(path).map_err(|error| refusal(path, &error))?;
    let look =
        opened.metadata().or_fail(format_args!("cannot look at the state directory `{shown}`"))?;
    if look.uid() != rustix::process::geteuid().as_raw() {
        return Err(Failure::new(format_args!(
            "the state directory `{shown}` belongs to another user"
        ))
        .help("name a directory of your own with --state DIR"));
    }
    if look.mode() & 0o077 != 0 {
        if is_no_state(&opened) {
            return Err(no_state(path));
        }
        return Err(Failure::new(format_args!("the state directory `{shown}` lets others in"))
            .help(format_args!("chmod 700 {}", for_shell(path))));
    }
    let canonical =
        operator_files::canonicalize(path).or_fail("cannot resolve the state directory")?;
    let state = Dir::from_std_file(opened);
    format::check(&state, path)?;
    Ok((canonical, state))
}

// Not `O_PATH`, as a `Dir` opens it: its entries must be synced.
fn opened(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    operator_files::open_with(path, &options)
}

fn refusal(path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    match Errno::from_io_error(error) {
        Some(Errno::NOTDIR | Errno::LOOP) => {
            Failure::new(format_args!("the state directory `{shown}` is a link or a file"))
                .help("name the directory itself with --state DIR")
        }
        _ => Failure::new(format_args!("cannot open the state directory `{shown}`: {error}")),
    }
}

/// Returns true if a directory has files, but none of a state directory: another one was named. Only
/// one that lets others in can be, because a start makes its directory without that access.
fn is_no_state(opened: &File) -> bool {
    let Ok(entries) = rustix::fs::Dir::read_from(opened) else { return false };
    let names = entries.flatten().map(|entry| entry.file_name().to_bytes().to_vec());
    let mut names = names.filter(|name| !matches!(&**name, b"." | b"..")).peekable();
    let is_own = |name: Vec<u8>| OWN_NAMES.iter().any(|own| own.as_bytes() == name);
    names.peek().is_some() && !names.any(is_own)
}

fn no_state(path: &Path) -> Failure {
    Failure::new(format_args!(
        "`{}` is not a state directory: it has other files, and no audit log",
        path.display()
    ))
    .help("name the workspace with --workspace DIR, or the state directory with --state DIR")
}

/// Opens the directory for reading, also if it cannot be written or belongs to
/// another user. `None` if it is missing.
///
/// # Errors
/// When it is a link or a file, or has another format; the error of the system.
pub(crate) fn look(path: &Path) -> Result<Option<Dir>, Failure> {
    match opened(path) {
        Ok(opened) => {
            let lets_in = opened.metadata().is_ok_and(|look| look.mode() & 0o077 != 0);
            if lets_in && is_no_state(&opened) {
                return Err(no_state(path));
            }
            let state = Dir::from_std_file(opened);
            format::check(&state, path)?;
            Ok(Some(state))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(refusal(path, &error)),
    }
}

/// Opens the backups in the state directory at `path` for reading; `None` if there
/// are none.
///
/// # Errors
/// As [`look`], and when there is no valid backup store.
pub(crate) fn backup_store(path: &Path) -> Result<Option<BackupStore>, Failure> {
    let state = look(path)?;
    let backup_store =
        state.as_ref().map(BackupStore::look).transpose().or_fail("cannot open the backups")?;
    Ok(backup_store.flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_of_the_same_name_have_different_slugs() {
        let (one, other) = (slug(Path::new("/a/web app")), slug(Path::new("/b/web app")));
        assert!(one.starts_with("webapp-") && other.starts_with("webapp-"));
        assert_ne!(one, other);
        assert!(!slug(Path::new("/")).is_empty());
    }
}
