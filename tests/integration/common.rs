//! The builder of every test: a fresh workspace, a state directory beside it, and the real binary
//! with a scrubbed environment.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// A policy that allows everything.
pub(crate) const ALL: &str = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n\
    write = [\"**\"]\nremove = [\"**\"]\n";

/// A workspace and its state, gone when dropped.
pub(crate) struct World {
    dir: TempDir,
    policy: Option<String>,
}

/// Result of a finished command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn denied(self, rule: &str) -> Self {
        assert_eq!(self.code, 3, "{self:?}");
        assert!(self.stderr.contains(&format!("`{rule}`")), "{self:?}");
        self
    }
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("ws")).unwrap();
        Self { dir, policy: None }
    }

    /// The same under a policy with this text, where syncs are free.
    pub(crate) fn in_memory(policy: &str) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        std::fs::create_dir(dir.path().join("ws")).unwrap();
        let mut world = Self { dir, policy: None };
        world.set_policy(policy);
        world
    }

    /// The same under a policy with this text.
    pub(crate) fn with_policy(text: &str) -> Self {
        let mut world = Self::new();
        world.set_policy(text);
        world
    }

    /// A world where everything is allowed but for `rules`.
    pub(crate) fn with_rules(rules: &str) -> Self {
        Self::with_policy(&format!("{ALL}{rules}"))
    }

    pub(crate) fn set_policy(&mut self, text: &str) {
        let directory = self.dir.path().join("policy");
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("policy.toml");
        std::fs::write(&file, text).unwrap();
        self.policy = Some(file.to_str().unwrap().to_owned());
    }

    pub(crate) fn use_policy(&mut self, name: &str) {
        self.policy = Some(name.to_owned());
    }

    /// The directory that holds workspace, state and policy.
    pub(crate) fn base(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("ws")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// `portcullis ARGS…` with workspace, state and policy set.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path().join("home"))
            .env("PORTCULLIS_WORKSPACE", self.root())
            .env("PORTCULLIS_STATE", self.state())
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        if let Some(policy) = &self.policy {
            command.env("PORTCULLIS_POLICY", policy);
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Done {
        done(self.command(args).output().unwrap())
    }

    pub(crate) fn run_with_input(&self, args: &[&str], input: impl AsRef<[u8]>) -> Done {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.as_ref().to_owned();
        let writer = std::thread::spawn(move || {
            // The gateway may refuse before it has read everything.
            let _ = std::io::Write::write_all(&mut stdin, &input);
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        done(output)
    }

    pub(crate) fn fs(&self, args: &[&str]) -> Done {
        self.run(&[&["fs"], args].concat())
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Done {
        self.run_with_input(&["fs", "write", path], content)
    }

    /// Every record of the log, oldest first.
    pub(crate) fn records(&self) -> Vec<Value> {
        let mut segments: Vec<_> = std::fs::read_dir(self.state().join("audit"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
            .collect();
        segments.sort();
        segments
            .iter()
            .flat_map(|segment| {
                let text = std::fs::read_to_string(segment).unwrap();
                // A gateway that runs may have written half of the last line.
                let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
                lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<_>>()
            })
            .collect()
    }

    /// The records of requests: decisions, intents and outcomes.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let mut records = self.records();
        records.retain(|record| {
            matches!(record["kind"].as_str(), Some("decision" | "intent" | "outcome"))
        });
        records
    }

    /// Returns the last record of a request. Records of scratch directories that a mount left, and
    /// of the end of a prompt turn, come after it.
    pub(crate) fn last(&self) -> Value {
        let mut requests = self.requests().into_iter();
        requests.rfind(|record| record["op"] != "scratch" && record["op"] != "acp.prompt").unwrap()
    }
}

/// A program of `tests/support`, which cargo builds as an example.
pub(crate) fn example(name: &str) -> Command {
    let directory = Path::new(env!("CARGO_BIN_EXE_portcullis")).parent().unwrap();
    let program = directory.join("examples").join(name);
    assert!(
        program.exists(),
        "`{name}` is missing: `cargo test` builds it, for `cargo test --test integration` \
         `cargo build --examples` does"
    );
    Command::new(program)
}

pub(crate) fn done(output: Output) -> Done {
    Done {
        code: output.status.code().unwrap_or(-1),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The lines of a log, without the last one that its gateway may still be writing.
pub(crate) fn whole_lines(text: &str) -> std::str::Lines<'_> {
    text.rfind('\n').map_or("", |end| &text[..end]).lines()
}

/// Factor of the number of cases that a test tries. `tests/run.sh full` sets it.
pub(crate) fn budget() -> u64 {
    std::env::var("PORTCULLIS_TEST_BUDGET").map_or(1, |budget| budget.parse().unwrap())
}

/// Has a thread beside the test end, also if the test fails.
pub(crate) struct Stop<'a>(pub(crate) &'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Copies a program by another process: what another test starts meanwhile would
/// inherit a descriptor that is open for writing it, and such a file cannot be
/// executed (ETXTBSY).
#[track_caller]
pub(crate) fn copy_program(program: &str, to: &Path) {
    let status = Command::new("cp").arg(program).arg(to).status().unwrap();
    assert!(status.success(), "cannot copy {program} to {}", to.display());
}

/// True if the kernel lets a socket refuse descriptors: Linux 6.16.
pub(crate) fn sockets_refuse_descriptors() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(16))
}

/// Sends a descriptor to a socket, and returns the kernel's result.
pub(crate) fn send_descriptor(path: &Path) -> Result<(), rustix::io::Errno> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let sent = [std::os::fd::AsFd::as_fd(&stream)];
    assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
    let text = [std::io::IoSlice::new(b"G")];
    sendmsg(&stream, &text, &mut control, SendFlags::empty()).map(drop)
}

/// The processor time that a process has taken, in hundredths of a second.
pub(crate) fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// A program of Python that runs its arguments on a terminal of their own.
pub(crate) const ON_TERMINAL: &str = "import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
