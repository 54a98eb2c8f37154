//! Git on an untrusted repository: confined, and with a configuration of ours only.
//!
//! A process gets a new git directory that contains only a configuration, and links to the
//! necessary directories of the repository. So neither configuration nor hooks of the repository
//! are used, and grafts, replacements and shallow histories have no effect.

pub(crate) mod directories;
pub(crate) mod head;
pub(crate) mod private;
pub(crate) mod session;
pub(crate) mod workspace;

use std::{
    ffi::OsString,
    fs::File,
    io::{Read as _, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
};

use super::{
    failure::{Context as _, Failure},
    session::random_id,
    trusted_paths,
};
use crate::{
    git::Format,
    operator_files,
    sandbox::{Program, SYSTEM_DIRECTORIES},
};

/// Limits of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum memory in bytes, into which packs and indexes are mapped.
    memory: u64,
    /// Maximum processor time in seconds.
    seconds: u32,
    /// Timeout after which it is killed.
    timeout: Duration,
}

/// The limits of a process that the operator started and waits for.
const ORDERED: Bounds = Bounds { memory: 4 << 30, seconds: 60, timeout: Duration::from_secs(600) };

const CONFIG: &str = "\tbare = true
\tcommitGraph = false
\tmultiPackIndex = false
\tlogAllRefUpdates = false
\thooksPath = /dev/null
\tfsync = loose-object,reference
\tpackedGitWindowSize = 32m
\tpackedGitLimit = 256m
[gc]
\tauto = 0
";

/// The system's git.
#[derive(Debug, Clone)]
pub(crate) struct Git(PathBuf);

impl Git {
    /// Finds git in the operator's `PATH`, in directories that no agent of the workspace can
    /// change.
    pub(crate) fn find(workspace: &Path) -> Result<Self, Failure> {
        let paths = trusted_paths::of_agents(workspace, &[])?;
        let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
        let found = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
        let mut found = found.filter_map(|directory| {
            let named = directory.join("git");
            let program = operator_files::canonicalize(&named).ok()?;
            let is_system = SYSTEM_DIRECTORIES.iter().any(|system| program.starts_with(system));
            let is_chosen_by_us = || paths.check_way(&"program", &named).is_ok();
            (is_system && is_chosen_by_us()).then_some(program)
        });
        found.next().map(Self).ok_or_else(|| {
            Failure::new("there is no `git` in a directory of the system that PATH names")
                .help("install git beneath /usr")
        })
    }
}

/// The prefix of workshops' names in a state directory.
const PREFIX: &str = "git-";

/// Temporary git directories for processes, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryGitDirectories {
    path: PathBuf,
    /// Keeps other processes from removing it.
    _lock: File,
}

impl TemporaryGitDirectories {
    /// Creates a workshop in the state directory, or another directory of the operator's. Removes
    /// workshops that killed processes left there.
    pub(crate) fn make(state: &Path) -> Result<Self, Failure> {
        const DOING: &str = "cannot make a git directory";
        remove_abandoned(state);
        loop {
            let path = state.join(format!("{PREFIX}{}", random_id()?));
            operator_files::create_private_dir_all(&path).or_fail(DOING)?;
            // Until it is locked, another process may remove it as abandoned.
            match lock(&path) {
                Ok(lock) if operator_files::exists(&path) => return Ok(Self { path, _lock: lock }),
                Ok(_) => {}
                Err(error) if !operator_files::exists(&path) || error == Errno::WOULDBLOCK => {}
                Err(error) => return Err(error).or_fail(DOING),
            }
        }
    }

    /// Creates a git directory for objects of this format, with links to parts elsewhere.
    pub(crate) fn git_directory(
        &self,
        name: &str,
        format: Format,
        links: &[(&str, PathBuf)],
    ) -> Result<PathBuf, Failure> {
        let make = || {
            let path = self.path.join(name);
            operator_files::create_private_dir_all(&path)?;
            let has = |name: &str| links.iter().any(|(link, _)| *link == name);
            let mut extensions = String::new();
            if format != Format::Sha1 {
                extensions += &format!("\tobjectFormat = {}\n", format.as_str());
            }
            if has("reftable") {
                extensions += "\trefStorage = reftable\n";
            }
            let version = u8::from(!extensions.is_empty());
            let config = format!(
                "[core]\n\trepositoryFormatVersion = {version}\n{CONFIG}[extensions]\n{extensions}"
            );
            operator_files::write(path.join("config"), config)?;
            operator_files::write(path.join("HEAD"), "ref: refs/heads/none\n")?;
            if !has("refs") {
                operator_files::create_private_dir_all(path.join("refs"))?;
            }
            for (name, target) in links {
                symlink(target, path.join(name))?;
            }
            Ok::<_, std::io::Error>(path)
        };
        make().or_fail("cannot make a git directory")
    }
}

fn lock(path: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = File::from(open(path, flags, Mode::empty())?);
    flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

fn remove_abandoned(state: &Path) {
    // Best effort: a remainder is harmless.
    for entry in operator_files::read_dir(state).into_iter().flatten().flatten() {
        let is_workshop = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        let Some(_lock) = is_workshop.then(|| lock(&entry.path()).ok()).flatten() else { continue };
        let _ = operator_files::remove_dir_all(entry.path());
    }
}

impl Drop for TemporaryGitDirectories {
    fn drop(&mut self) {
        if let Err(error) = operator_files::remove_dir_all(&self.path) {
            tracing::warn!(%error, "a git directory could not be removed");
        }
    }
}

/// The repository of a git process.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    pub(crate) git: Git,
    /// The temporary git directory.
    pub(crate) directory: PathBuf,
    /// The directory of its objects.
    pub(crate) objects: PathBuf,
    /// Further directories that it may read.
    pub(crate) read: Vec<PathBuf>,
}

impl Repository {
    /// Starts `git ARGUMENTS`, which may write in `write`.
    pub(crate) fn start(&self, arguments: &[&str], write: &[PathBuf]) -> Result<Running, Failure> {
        self.start_within(ORDERED, arguments, write)
    }

    /// Starts it with other limits.
    fn start_within(
        &self,
        bounds: Bounds,
        arguments: &[&str],
        write: &[PathBuf],
    ) -> Result<Running, Failure> {
        let mut environment: Vec<(OsString, OsString)> = [
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_SYSTEM", "/dev/null"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("HOME", "/nonexistent"),
            ("LC_ALL", "C"),
            ("PATH", "/nonexistent"),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
        environment.push(("GIT_DIR".into(), self.directory.clone().into()));
        environment.push(("GIT_OBJECT_DIRECTORY".into(), self.objects.clone().into()));
        let mut read = self.read.clone();
        read.push(self.directory.clone());
        if !write.contains(&self.objects) {
            read.push(self.objects.clone());
        }
        let program = Program {
            program: self.git.0.clone(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment,
            directory: self.directory.clone(),
            read,
            write: write.to_vec(),
            memory: bounds.memory,
            seconds: bounds.seconds,
            timeout: u32::try_from(bounds.timeout.as_secs()).unwrap_or(u32::MAX),
        };
        let mut child = program.spawn().or_fail("cannot start git")?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Running { child, input, output }),
            _ => Err(Failure::new("cannot start git")),
        }
    }
}

/// A running git process. It ends with its input.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    pub(crate) input: ChildStdin,
    pub(crate) output: ChildStdout,
}

impl Running {
    /// Sends the input, and returns at most `most` bytes of output. `None` if the process failed,
    /// or has more output.
    pub(crate) fn finish(
        mut self,
        input: impl FnOnce(&mut ChildStdin) -> std::io::Result<()>,
        most: u64,
    ) -> Option<Vec<u8>> {
        // A process that ended early reports that by its exit code.
        let written = input(&mut self.input).and_then(|()| self.input.flush());
        drop(self.input);
        let mut output = Vec::new();
        let read = self.output.by_ref().take(most + 1).read_to_end(&mut output);
        drop(self.output);
        let ended = self.child.wait().is_ok_and(|status| status.success());
        let is_whole = u64::try_from(output.len()).is_ok_and(|length| length <= most);
        (written.is_ok() && read.is_ok() && ended && is_whole).then_some(output)
    }
}

/// The output of a process that has its input, to be read by another process.
#[derive(Debug)]
pub(crate) struct Piped {
    child: Child,
    pub(crate) output: ChildStdout,
}

impl Running {
    /// Sends all of its input, which must fit in a pipe, and leaves its output to another process.
    pub(crate) fn piped(mut self, input: &str) -> std::io::Result<Piped> {
        self.input.write_all(input.as_bytes())?;
        Ok(Piped { child: self.child, output: self.output })
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        // The reader may have stopped early.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
