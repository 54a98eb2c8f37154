//! Gateways under load, in processes of their own: `tests/support/load_generator.rs`.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    common::{World, example},
    consistency, scripted_agent,
};

/// A process, and its output.
pub(crate) struct LoadGenerator {
    pub(crate) child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    listener: JoinHandle<()>,
    complaints: JoinHandle<String>,
}

/// A system call that it believes to make and does not.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pretended {
    /// `fsync`, which is for files and directories of the workspace.
    Fsync,
    /// `fdatasync`, which is for the log and the files of the backup store.
    Fdatasync,
}

impl LoadGenerator {
    /// The world must have a policy of its own.
    pub(crate) fn start(world: &World, seed: u64, seconds: u64) -> Self {
        Self::run(example("load_generator"), world, seed, seconds)
    }

    /// The same, with syncs that succeed and are not made.
    pub(crate) fn pretending(what: Pretended, world: &World, seed: u64, seconds: u64) -> Self {
        let call = match (what, cfg!(target_arch = "x86_64")) {
            (Pretended::Fsync, true) => "done:74",
            (Pretended::Fsync, false) => "done:82",
            (Pretended::Fdatasync, true) => "done:75",
            (Pretended::Fdatasync, false) => "done:83",
        };
        let mut command = Command::new("python3");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/without.py");
        command.arg(script).arg(call).arg(example("load_generator").get_program());
        Self::run(command, world, seed, seconds)
    }

    fn run(mut command: Command, world: &World, seed: u64, seconds: u64) -> Self {
        let mut child = command
            .args([world.root(), world.state(), world.base().join("policy/policy.toml")])
            .args([seed.to_string(), seconds.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut errors = child.stderr.take().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&lines);
        Self {
            child,
            lines,
            // A kill leaves half a line at most.
            listener: thread::spawn(move || {
                output
                    .lines()
                    .map_while(Result::ok)
                    .map_while(|line| serde_json::from_str(&line).ok())
                    .for_each(|line| said.lock().unwrap().push(line));
            }),
            complaints: thread::spawn(move || {
                let mut text = Vec::new();
                let _ = std::io::Read::read_to_end(&mut errors, &mut text);
                String::from_utf8_lossy(&text).into_owned()
            }),
        }
    }

    /// Waits until its gateway is open and has served a request.
    #[track_caller]
    pub(crate) fn wait_for_request(&self) {
        let end = Instant::now() + scripted_agent::TIMEOUT;
        while self.lines.lock().unwrap().is_empty() {
            assert!(Instant::now() < end, "it makes no request");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops it between two system calls, at any point.
    pub(crate) fn pause(&self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        scripted_agent::kill(pid, Signal::STOP);
        let end = Instant::now() + scripted_agent::TIMEOUT;
        let stopped = |task: fs::DirEntry| {
            // Gone since it was listed, it does not run either.
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.is_empty() || status.contains("State:\tT") || status.contains("State:\tZ")
        };
        let tasks = || fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        while !tasks().all(|task| stopped(task.unwrap())) {
            assert!(Instant::now() < end, "it does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn resume(&self) {
        scripted_agent::kill(i32::try_from(self.child.id()).unwrap(), Signal::CONT);
    }

    /// Returns its output so far.
    pub(crate) fn said(&self) -> Vec<Value> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for its end, and returns its output.
    pub(crate) fn end(mut self) -> Vec<Value> {
        self.child.wait().unwrap();
        let complaints = self.complaints.join().unwrap();
        assert!(!complaints.contains("panicked"), "{complaints}");
        self.listener.join().unwrap();
        std::mem::take(&mut *self.lines.lock().unwrap())
    }
}

/// Returns the receipts in the output of gateways.
pub(crate) fn receipts(lines: &[Value]) -> Vec<Value> {
    lines.iter().map(|line| line["receipt"].clone()).filter(Value::is_object).collect()
}

/// Checks that every file consists of complete blocks, at least one. Returns
/// the number of files.
#[track_caller]
pub(crate) fn files_are_whole(root: &Path) -> usize {
    let files: BTreeMap<_, _> =
        consistency::snapshot(root).into_iter().filter(|(_, what)| what != "directory").collect();
    for (name, what) in &files {
        let (_mode, text) = what.split_once(' ').unwrap();
        assert!(!text.is_empty(), "`{name}` is empty");
        let mut rest = text;
        while !rest.is_empty() {
            let block = || -> Option<&str> {
                let (head, body) = rest.split_once('\n')?;
                let mut words = head.strip_prefix("block ")?.split(' ');
                let length = words.nth(2)?.parse().ok()?;
                let (filler, body) = body.split_at_checked(length)?;
                let body = body.strip_prefix("\nend\n")?;
                filler.bytes().all(|byte| byte == b'-').then_some(body)
            };
            rest = block().unwrap_or_else(|| {
                let start: String = rest.chars().take(60).collect();
                panic!("`{name}` is torn at {start:?}, of {} bytes", text.len())
            });
        }
    }
    files.len()
}
