//! A mount of a real gateway in a mount namespace of its own, and programs in it.

use std::{
    ffi::CString,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, unshare};
use portcullis_core::{AuditLog, Gateway, Workspace};
use portcullis_mount::{Mount, Options, Scratch, Session as Served, Stopper};
use portcullis_policy::{
    PolicySource, SecretKey, compile,
    model::{Session, Transport},
};
use rustix::{
    fs::{Mode, OFlags, open},
    mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount},
};
use serde_json::Value;

/// A policy that allows everything.
pub(crate) const ALL: &str = "schema = 1\nname = \"test\"\nversion = 1\n[allowedPaths]\n\
    read = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n";

/// The time after which what should come is not waited for any longer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until `holds` returns true; returns false if it does not in time.
pub(crate) fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the factor for the number of random tests.
pub(crate) fn budget() -> u64 {
    std::env::var("PORTCULLIS_TEST_BUDGET").map_or(1, |budget| budget.parse().unwrap())
}

/// A served mount, used from the thread in whose namespace it is.
pub(crate) struct Rig<'a> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) mount: &'a Mount<'a>,
    session: Session,
    stopper: OnceLock<Stopper>,
    /// Set when the device is closed, after the end of the server.
    is_gone: AtomicBool,
    base: PathBuf,
}

/// The result of a finished program.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    #[track_caller]
    pub(crate) fn fails(self, with: &str) -> Self {
        assert!(self.code != 0 && self.code != 124 && self.code != 137, "{self:?}");
        assert!(self.stderr.contains(with), "{self:?}");
        self
    }
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(137),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Rig<'_> {
    /// Returns the session of the mount.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Ends the server.
    pub(crate) fn stop(&self) {
        self.stopper.get().unwrap().stop();
    }

    /// Returns true once the server has ended and closed its device.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Runs a shell script in the mount.
    pub(crate) fn sh(&self, script: &str) -> Done {
        self.command("sh", &["-ec", script]).output().unwrap().into()
    }

    /// Runs a Python program in the mount.
    pub(crate) fn python(&self, script: &str) -> Done {
        self.command("python3", &["-c", script]).output().unwrap().into()
    }

    /// Returns the command of a program in the mount, which is killed if it takes
    /// too long.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        self.command_within(300, program, arguments)
    }

    /// Returns such a command with a timeout in seconds.
    pub(crate) fn command_within(
        &self,
        seconds: u64,
        program: &str,
        arguments: &[&str],
    ) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", &(seconds * budget()).to_string(), program]).args(arguments);
        command.current_dir(self.base.join("mnt"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.base.join("home")).env("LC_ALL", "C.UTF-8");
        command
    }

    /// Returns a path in the directory of the scratch directories.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.base.join("scratch").join(name)
    }

    /// Returns the host path of a file or directory of the workspace.
    pub(crate) fn host(&self, name: &str) -> PathBuf {
        self.base.join("ws").join(name)
    }

    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> String {
        String::from_utf8(std::fs::read(self.host(name)).unwrap()).unwrap()
    }

    /// Returns all records of the log, the oldest first.
    pub(crate) fn records(&self) -> Vec<Value> {
        let directory = self.base.join("state/audit");
        let mut segments: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        segments.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
        segments.sort();
        let text: String =
            segments.iter().map(|segment| std::fs::read_to_string(segment).unwrap()).collect();
        // The gateway may be writing the last one.
        let whole = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the records about a path: kind, operation and result.
    pub(crate) fn about(&self, path: &str) -> Vec<String> {
        let mut records = self.records();
        records.retain(|record| record["path"] == path);
        let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let line = |r: &Value| [&r["kind"], &r["op"], &r["result"]].map(word).join(" ");
        records.iter().map(line).collect()
    }
}

/// Ends the mount, also when a test fails.
struct Ends<'a>(&'a Rig<'a>, PathBuf);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let _ = unmount(&self.1, UnmountFlags::DETACH);
        self.0.stop();
    }
}

/// Runs `test` in a namespace with a mount of a workspace that `fill` filled.
pub(crate) fn with(policy: &str, fill: impl FnOnce(&Path), test: impl FnOnce(&Rig<'_>) + Send) {
    with_options(policy, Options::new(0, 0), fill, test);
}

/// Runs `test` with other options.
pub(crate) fn with_options(
    policy: &str,
    options: Options,
    fill: impl FnOnce(&Path),
    test: impl FnOnce(&Rig<'_>) + Send,
) {
    with_end(policy, options, fill, test, |_| {});
}

/// Runs `test`, and then a check of what remains after the mount.
pub(crate) fn with_end(
    policy: &str,
    mut options: Options,
    fill: impl FnOnce(&Path),
    test: impl FnOnce(&Rig<'_>) + Send,
    end: impl FnOnce(&Rig<'_>),
) {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    for name in ["ws", "mnt", "home", "state"] {
        std::fs::create_dir(base.join(name)).unwrap();
    }
    fill(&base.join("ws"));
    let gateway = gateway(policy, &base);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    options.processes = Some(open("/proc", flags, Mode::empty()).unwrap());
    let session = Session {
        id: "0123456789abcdef0123456789abcdef".to_owned(),
        agent: "tester".parse().unwrap(),
        user: "root".to_owned(),
        transport: Transport::Mount,
        acp: None,
    };
    options.roots = vec![base.join("mnt")];
    if let Some(rules) = gateway.policy().scratch() {
        let place = base.join("scratch");
        std::fs::create_dir(&place).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = open(&place, flags, Mode::empty()).unwrap();
        options.scratch = Some(Scratch::open(&place, rules.clone()).unwrap());
    }
    let served = Mount::new(&gateway, session.clone(), options);
    let rig = Rig {
        gateway: &gateway,
        mount: &served,
        session,
        stopper: OnceLock::new(),
        is_gone: AtomicBool::new(false),
        base: base.clone(),
    };
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        let (began, begun) = channel();
        let rig = &rig;
        let tester = scope.spawn(move || {
            let point = rig.base.join("mnt");
            sender.send(mount_at(&point)).unwrap();
            rig.stopper.set(begun.recv().unwrap()).unwrap();
            let _ends = Ends(rig, point);
            test(rig);
        });
        if let Ok(device) = receiver.recv() {
            let deadline = Instant::now() + TIMEOUT;
            let session = Served::begin(device, deadline).unwrap();
            began.send(session.stopper()).unwrap();
            served.serve(&session).unwrap();
            drop(session);
            rig.is_gone.store(true, Ordering::Release);
        }
        if let Err(panic) = tester.join() {
            std::panic::resume_unwind(panic);
        }
        end(rig);
    });
}

/// Mounts in a new mount namespace of this thread.
fn mount_at(point: &Path) -> OwnedFd {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions",
        device.as_raw_fd()
    );
    let options = CString::new(options).unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("portcullis", point, "fuse.portcullis", flags, Some(options.as_c_str())).unwrap();
    device
}

fn gateway(policy: &str, base: &Path) -> Gateway {
    let policy = compile(&PolicySource::from_text("test.toml", policy)).unwrap();
    let state = base.join("state");
    std::fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let state = cap_std::fs::Dir::from_std_file(std::fs::File::open(&state).unwrap());
    let audit_log = AuditLog::open(&state).unwrap();
    let key = SecretKey::new(&[7; SecretKey::LENGTH]);
    let workspace = Workspace::open(&base.join("ws")).unwrap();
    Gateway::open(workspace, Arc::new(policy), audit_log, &state, key).unwrap()
}
