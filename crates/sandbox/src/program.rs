//! A program of the system that processes untrusted data, such as git on an agent's repository.
//!
//! It has its standard streams, the named directories, and the system's programs and libraries to
//! read. It reaches no network and no other file, starts no process, and is bounded in memory and
//! time. It keeps the user, so that it can read that user's private directories. Landlock is
//! required.

use std::{
    ffi::OsString,
    io,
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
};

use nix::unistd::alarm;
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2},
    process::{Resource, Rlimit, chdir, setrlimit, setsid},
};
use serde::{Deserialize, Serialize};

use super::{
    capabilities,
    landlock::{self, AccessRight, Ports, Restriction, Rule},
    process,
    seccomp::{self, Purpose},
};

/// The hidden subcommand that makes this binary confine itself and become such a program.
pub const PROGRAM_COMMAND: &str = "confined-program";

/// Paths that programs need to start; links there are the system's own.
const SYSTEM: [(&str, AccessRight); 10] = [
    ("/usr", AccessRight::Read),
    ("/bin", AccessRight::Read),
    ("/sbin", AccessRight::Read),
    ("/lib", AccessRight::Read),
    ("/lib32", AccessRight::Read),
    ("/lib64", AccessRight::Read),
    ("/nix/store", AccessRight::Read),
    ("/etc/ld.so.cache", AccessRight::ReadOnlyData),
    ("/dev/null", AccessRight::Device),
    ("/dev/urandom", AccessRight::ReadOnlyData),
];

/// Maximum of its open files.
const MAX_FILES: u64 = 512;

/// A program with all that it is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Program {
    /// Its file, absolute.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment, and no other variable.
    pub environment: Vec<(OsString, OsString)>,
    /// The directory in which it starts.
    pub directory: PathBuf,
    /// Directories that it may read. No link leads to them.
    pub read: Vec<PathBuf>,
    /// Directories in which it may make and change files, likewise.
    pub write: Vec<PathBuf>,
    /// Maximum of bytes of its address space.
    pub memory: u64,
    /// Maximum of seconds of processor time.
    pub seconds: u32,
    /// Seconds after which it is killed, even if it waits; 0 counts as 1.
    pub timeout: u32,
}

/// The program could not be confined or executed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {0}: {1}")]
struct ProgramFailure(&'static str, String);

fn failed<E: std::fmt::Display>(step: &'static str) -> impl Fn(E) -> ProgramFailure {
    move |error| ProgramFailure(step, error.to_string())
}

impl Program {
    /// Starts it, with pipes for its standard input and output. Its standard error is discarded,
    /// since it may repeat an agent's text.
    ///
    /// # Errors
    /// If the process cannot be started. A failure to confine it shows in its exit code.
    pub fn spawn(&self) -> io::Result<Child> {
        let order = serde_json::to_string(self)?;
        Command::new("/proc/self/exe")
            .args([PROGRAM_COMMAND, &std::process::id().to_string(), &order])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
    }

    /// Confines this process, which has no other thread, and executes the program.
    fn execute(self, parent: u32) -> Result<std::convert::Infallible, ProgramFailure> {
        process::close_inherited().map_err(failed("close inherited descriptors"))?;
        process::die_with(parent).map_err(failed("follow the process that started this one"))?;
        setsid().map_err(failed("start a session"))?;
        chdir(&self.directory).map_err(failed("enter the directory"))?;
        self.limit().map_err(failed("limit resources"))?;
        if !landlock::available() {
            return Err(ProgramFailure("confine the program", "no Landlock of ABI 3".to_owned()));
        }
        capabilities::drop_all(None).map_err(failed("give up capabilities"))?;
        self.restrict_files()?;
        seccomp::restrict(Purpose::Program).map_err(failed("filter system calls"))?;
        process::unblock_signals().map_err(failed("unblock signals"))?;
        let error = Command::new(&self.program)
            .args(self.arguments)
            .env_clear()
            .envs(self.environment)
            .exec();
        Err(failed("execute the program")(error))
    }

    fn limit(&self) -> rustix::io::Result<()> {
        let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(Resource::As, limit(self.memory))?;
        setrlimit(Resource::Cpu, limit(self.seconds.into()))?;
        setrlimit(Resource::Core, limit(0))?;
        setrlimit(Resource::Nofile, limit(MAX_FILES))?;
        // The alarm persists across exec.
        alarm::set(self.timeout.max(1));
        Ok(())
    }

    fn restrict_files(&self) -> Result<(), ProgramFailure> {
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let system = SYSTEM.into_iter().filter_map(|(name, right)| {
            // Not every system has all of them.
            Some((open(name, path, Mode::empty()).ok()?, right))
        });
        let mut places: Vec<_> = system.collect();
        let flags = path | OFlags::DIRECTORY;
        for (directories, right) in
            [(&self.read, AccessRight::ReadOnlyData), (&self.write, AccessRight::Data)]
        {
            for directory in directories {
                let resolve = ResolveFlags::NO_SYMLINKS;
                let opened = openat2(CWD, directory, flags, Mode::empty(), resolve);
                places.push((opened.map_err(failed("open a directory of the program"))?, right));
            }
        }
        let rules: Vec<_> =
            places.iter().map(|(fd, right)| Rule { parent: fd.as_fd(), right: *right }).collect();
        let ports = Some(Ports::default());
        let restriction = Restriction { rules: &rules, ports, logged: false };
        landlock::restrict(&restriction).map(drop).map_err(failed("restrict files"))
    }
}

/// Runs the program that the command line describes; returns only if it cannot be executed.
pub fn run_program(parent: u32, order: &str) -> ExitCode {
    let Ok(program) = serde_json::from_str::<Program>(order) else { return ExitCode::from(2) };
    match program.execute(parent) {
        Err(_) => ExitCode::FAILURE,
    }
}
