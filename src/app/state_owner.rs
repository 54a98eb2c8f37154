//! The owner of a state directory: the workspace that its `start` records name. It serves no other
//! one, because with the log of another workspace `undo` would change the wrong files.
//!
//! The file `workspace` in the state directory names it, too: the newest `start` record may be
//! pruned, and before the first one the file alone says which of two first starts has the directory.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Once,
};

use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags, RenameFlags, openat};

use super::{
    failure::{Context as _, Failure},
    running_gateways, state_directory,
};
use crate::{
    app::audit_log::{begun_log, unreadable},
    model::for_shell,
    operator_files,
    review::{counted, recorded_workspace},
};

/// The name of the file, which contains the canonical path only.
const NAME: &str = "workspace";
/// Longest path that is read, in bytes.
const MAX_PATH: u64 = 1 << 16;

/// The right to a state directory, stored once the `start` record is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StateOwnership {
    /// The state directory belongs to this workspace.
    Own,
    /// The state directory belongs to no workspace yet.
    First,
    /// The state directory belonged to the workspace at this path, which has moved.
    Adopted(PathBuf),
}

/// Returns the workspace to which the state directory `state` at `path` belongs; `None` if no
/// gateway has started.
///
/// # Errors
/// When that cannot be determined, also because the newest `start` record names another workspace
/// than the file.
pub(crate) fn of(state: &Dir, path: &Path) -> Result<Option<PathBuf>, Failure> {
    let noted = noted(state, path)?;
    let directory = path.join("audit");
    // A start itself refuses another entry of its name, for one workspace of a service alone.
    if operator_files::symlink_metadata(&directory).is_ok_and(|facts| !facts.is_dir()) {
        return Ok(noted);
    }
    if running_gateways::is_locked(&directory) {
        errln!(
            "portcullis: warning: waiting for a lock of the state directory that another process \
             holds, `audit/lock`; `lslocks` shows which"
        );
    }
    let Some(log) = begun_log(&directory)? else { return Ok(noted) };
    let recorded = recorded_workspace(&log).map_err(|error| unreadable(&directory, &error))?;
    match (noted, recorded) {
        // An adoption is recorded before the file is written.
        (Some(noted), Some(recorded))
            if noted != recorded.path && recorded.adopted.as_ref() != Some(&noted) =>
        {
            Err(contradicted(path, &noted, &recorded.path))
        }
        (noted, recorded) => Ok(recorded.map(|recorded| recorded.path).or(noted)),
    }
}

/// Returns the failure for a file that names another workspace than the records.
fn contradicted(path: &Path, noted: &Path, recorded: &Path) -> Failure {
    let file = path.join(NAME);
    Failure::new(format_args!(
        "the file `{}` names the workspace `{}`, but the newest `start` record of the state \
         directory names `{}`",
        file.display(),
        noted.display(),
        recorded.display()
    ))
    .help(format_args!("{}; `portcullis audit verify` checks the records", remove(&file)))
}

/// Returns the advice to remove the file.
fn remove(file: &Path) -> String {
    format!(
        "remove the file `{}`: the records decide, and the next start writes it again",
        file.display()
    )
}

/// Returns the workspace that the file names, without reading the log.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn noted(state: &Dir, path: &Path) -> Result<Option<PathBuf>, Failure> {
    read(state).map_err(|error| {
        let file = path.join(NAME);
        let failure = Failure::new(format_args!(
            "cannot read `{}`, which says whose the state directory is: {error}",
            file.display()
        ));
        match error.kind() {
            io::ErrorKind::InvalidData => failure.help(remove(&file)),
            _ => failure,
        }
    })
}

/// Returns the workspace that the file names, in a directory that may be missing.
///
/// # Errors
/// As [`noted`] and [`state_directory::look`].
pub(crate) fn noted_at(path: &Path) -> Result<Option<PathBuf>, Failure> {
    state_directory::look(path)?.map_or(Ok(None), |state| noted(&state, path))
}

/// Refuses the state directory of a workspace other than that at `root`, unless the operator names
/// its former path with `adopt`, where it is no more.
///
/// # Errors
/// When it belongs to another workspace, or to one that is still there or served, and as [`of`].
pub(crate) fn check(
    state: &Dir,
    path: &Path,
    root: &Path,
    adopt: Option<&Path>,
) -> Result<StateOwnership, Failure> {
    let shown = path.display();
    match (of(state, path)?, adopt) {
        (Some(owner), _) if owner == root => Ok(match noted(state, path)? {
            // An adoption died between its record and the file.
            Some(old) if old != root => StateOwnership::Adopted(old),
            _ => StateOwnership::Own,
        }),
        (Some(owner), Some(old)) if is_named(&owner, old) => {
            check_left(&owner, root)?;
            check_unused(path)?;
            Ok(StateOwnership::Adopted(owner))
        }
        (Some(owner), _) => Err(of_another(path, &owner, root)),
        (None, Some(old)) => Err(Failure::new(format_args!(
            "the state directory `{shown}` belongs to no workspace yet, so also not to `{}`",
            old.display()
        ))
        .help("name the one to adopt with --state DIR, or leave --adopt out")),
        (None, None) => Ok(StateOwnership::First),
    }
}

/// Refuses the state directory at `path` for a service's log if it belongs to a workspace.
///
/// # Errors
/// When it does, and as [`noted`].
pub(crate) fn check_service(state: &Dir, path: &Path) -> Result<(), Failure> {
    let Some(owner) = noted(state, path)? else { return Ok(()) };
    Err(Failure::new(format_args!(
        "the state directory `{}` belongs to the workspace `{}`, not to a service",
        path.display(),
        owner.display()
    ))
    .help("name another directory with `[serve] state`"))
}

/// Returns the failure for the workspace at `root` of the state directory of `owner` at `path`.
pub(crate) fn of_another(path: &Path, owner: &Path, root: &Path) -> Failure {
    let here = root.display();
    let [state, former] = [path, owner].map(for_shell);
    Failure::new(format_args!(
        "the state directory `{}` belongs to the workspace `{}`, not to `{here}`",
        path.display(),
        owner.display()
    ))
    .help(format_args!(
        "use it with --workspace {former} --state {state}, or name another one with --state DIR; if \
         the workspace moved from there to `{here}`, say so once with --state {state} --adopt {former}"
    ))
}

/// Refuses to take the state directory from a workspace that is still at its path: it would serve
/// two. A link at its path may lead to where it is now.
fn check_left(owner: &Path, root: &Path) -> Result<(), Failure> {
    let there = match operator_files::metadata(owner) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(());
        }
        there => there.or_fail(format_args!("cannot look at `{}`", owner.display()))?,
    };
    if !there.is_dir() || operator_files::canonicalize(owner).is_ok_and(|path| path == root) {
        return Ok(());
    }
    let (old, here) = (owner.display(), root.display());
    Err(Failure::new(format_args!("nothing is adopted: the workspace `{old}` is still there")).help(
        format_args!(
            "`{here}` gets a state directory of its own without --adopt; if it is the workspace that \
             was `{old}`, rename what is there now first"
        ),
    ))
}

/// Refuses to take over a state directory in whose log a gateway records changes of files at the
/// former path.
fn check_unused(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let locked = running_gateways::lock(path);
    let (_lock, running) = locked.or_fail(format_args!("cannot lock the log in `{shown}`"))?;
    if running == 0 {
        return Ok(());
    }
    let running = counted(u64::try_from(running).unwrap_or(u64::MAX), "gateway");
    Err(Failure::new(format_args!(
        "nothing is adopted: {running} of the state directory `{shown}` still running"
    ))
    .help("end the agents and clients that use it first"))
}

/// Refuses the default state directory of the workspace at `named`, at `path`, if it is noted as that
/// of another one, which was at this path.
///
/// # Errors
/// When it is, and as [`noted_at`].
pub(crate) fn check_default(path: &Path, named: &Path) -> Result<(), Failure> {
    let Some(owner) = noted_at(path)?.filter(|owner| !is_named(owner, named)) else {
        return Ok(());
    };
    let here = operator_files::canonicalize(named).unwrap_or_else(|_| named.to_owned());
    Err(of_another(path, &owner, &here))
}

/// Notes for a reader, once, that the state directory at `path` is not that of the workspace at
/// `named`, which is named beside it.
pub(crate) fn note_other(path: &Path, named: &Path) {
    static NOTED: Once = Once::new();
    // A reader has to show a log of which nothing else can be read.
    let Ok(Some(owner)) = noted_at(path) else { return };
    if !is_named(&owner, named) {
        NOTED.call_once(|| {
            let (owner, named) = (owner.display(), named.display());
            errln!("portcullis: note: the log is of the workspace `{owner}`, not of `{named}`");
        });
    }
}

/// Returns true if `named` is a path of this workspace, which need not exist any more.
pub(crate) fn is_named(owner: &Path, named: &Path) -> bool {
    let absolute = std::path::absolute(named);
    absolute.is_ok_and(|path| path == owner)
        || state_directory::place(named).is_ok_and(|path| path == owner)
}

impl StateOwnership {
    /// Warns the operator of an adoption.
    pub(crate) fn warn(&self, path: &Path, root: &Path) {
        if let Self::Adopted(old) = self {
            errln!(
                "portcullis: warning: the state directory `{}` of the workspace `{}` belongs to \
                 `{}` from now on; homes and scratch directories of its agents stay behind",
                path.display(),
                old.display(),
                root.display()
            );
        }
    }

    /// Runs `record`, which records a start, and stores that the state directory at `path` belongs to
    /// the workspace at `root`. Two first starts may meet: the record follows, so only the
    /// workspace that got the directory is in the log. An adoption follows its record.
    ///
    /// # Errors
    /// That of `record`, when the owner cannot be stored, and when another workspace took the
    /// directory meanwhile.
    pub(crate) fn note_with<T>(
        &self,
        (state, path): (&Dir, &Path),
        root: &Path,
        record: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let note = || {
            self.note(state, root).map_err(|error| match read(state) {
                Ok(Some(owner)) if owner != root => of_another(path, &owner, root),
                _ => {
                    Failure::new(format_args!("cannot note whose the state directory is: {error}"))
                }
            })
        };
        if let Self::Adopted(old) = self {
            // Another workspace may adopt the directory at this moment: one of them is the first.
            let _lock = lock(state).or_fail("cannot lock the state directory")?;
            if let Some(owner) = of(state, path)?.filter(|it| it != old && it != root) {
                return Err(of_another(path, &owner, root));
            }
            let recorded = record()?;
            note()?;
            return Ok(recorded);
        }
        note()?;
        record()
    }

    /// Stores that the state directory belongs to the workspace at `root`.
    fn note(&self, state: &Dir, root: &Path) -> io::Result<()> {
        let noted = read(state)?;
        if noted.as_deref() == Some(root) {
            return Ok(());
        }
        let flags = match self {
            // The owner was compared under the lock of adoptions.
            Self::Adopted(_) => RenameFlags::empty(),
            _ => RenameFlags::NOREPLACE,
        };
        let path = root.as_os_str().as_encoded_bytes();
        match state_directory::write(state, NAME, path, flags) {
            // Another gateway of this workspace may have been first.
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists
                    && read(state)?.as_deref() == Some(root) =>
            {
                Ok(())
            }
            written => written,
        }
    }
}

/// Waits for the lock of adoptions, which the kernel releases when the file is closed.
fn lock(state: &Dir) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = File::from(openat(state, ".", flags, Mode::empty())?);
    directory.lock()?;
    Ok(directory)
}

fn read(state: &Dir) -> io::Result<Option<PathBuf>> {
    let Some(path) = state_directory::read(state, NAME, MAX_PATH)?.map(PathBuf::from) else {
        return Ok(None);
    };
    if path.is_absolute() {
        return Ok(Some(path));
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it contains no absolute path"))
}
