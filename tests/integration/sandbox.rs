//! The agent's sandbox, from inside: a hostile agent is really run, as root and as an ordinary
//! user, and reports the results of its attempts.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    os::unix::net::UnixListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{copy_program, whole_lines};

mod advice;
mod descriptors;
mod further;
mod grants;
mod interpreters;
mod keys;
mod listening;
mod mount;
mod named_pipes;
mod network;
mod output;
mod presets;
mod processes;
mod start;
mod terminals;
mod trusted;
mod trusted_programs;

/// An unprivileged user that need not be in `/etc/passwd`.
const USER: &str = "4321";

/// The user that starts `portcullis run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    Root,
    User,
    /// A user, where no user namespace can be made.
    UserWithoutNamespaces,
}

/// The binary, the hostile agent and the one that works, where every user can execute them. They are
/// written once: other tests start them at any time.
fn tools() -> &'static Path {
    static TOOLS: OnceLock<TempDir> = OnceLock::new();
    TOOLS
        .get_or_init(|| {
            let dir = TempDir::new().unwrap();
            set_mode(dir.path(), 0o755);
            copy_program(env!("CARGO_BIN_EXE_portcullis"), &dir.path().join("portcullis"));
            std::fs::create_dir(dir.path().join("agent")).unwrap();
            let script = dir.path().join("agent/hostile.py");
            std::fs::write(&script, include_str!("hostile.py")).unwrap();
            let script = dir.path().join("agent/acp_agent.py");
            std::fs::write(&script, include_str!("acp_agent.py")).unwrap();
            dir
        })
        .path()
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The users that this test run can be: all of them for root, else only the
/// one that runs it.
fn users() -> Vec<As> {
    if is_root() { vec![As::Root, As::User] } else { vec![As::User] }
}

/// A workspace with a file, a state directory, a policy file and a socket.
struct SandboxWorld {
    dir: TempDir,
    who: As,
    /// Its number, where it is not root.
    user: &'static str,
    _socket: UnixListener,
}

/// The exit code and output of an agent.
#[derive(Debug)]
struct AgentOutput {
    code: i32,
    stdout: String,
    stderr: String,
}

impl AgentOutput {
    /// Returns the results that the hostile agent reported.
    fn attempts(&self) -> BTreeMap<String, String> {
        let found: BTreeMap<_, _> = self
            .stderr
            .lines()
            .filter_map(|line| line.strip_prefix("agent: "))
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .map(|v| (v["try"].as_str().unwrap().into(), v["got"].as_str().unwrap().into()))
            .collect();
        assert!(!found.is_empty(), "{self:?}");
        found
    }
}

impl SandboxWorld {
    fn new(who: As) -> Self {
        Self::in_directory(TempDir::new().unwrap(), who)
    }

    fn in_directory(dir: TempDir, who: As) -> Self {
        let base = dir.path();
        for name in ["ws", "policies"] {
            std::fs::create_dir(base.join(name)).unwrap();
        }
        std::fs::write(base.join("ws/file.txt"), "secret\n").unwrap();
        std::fs::write(
            base.join("policies/policy.toml"),
            "schema = 1\nname = \"test\"\nversion = 1\n",
        )
        .unwrap();
        let socket = UnixListener::bind(base.join("socket")).unwrap();
        set_mode(&base.join("socket"), 0o777);
        let world = Self { dir, who, user: USER, _socket: socket };
        if is_root() && who != As::Root {
            world.give_away();
        }
        world
    }

    fn give_away_if_root(&self) {
        if is_root() {
            self.give_away();
        }
    }

    /// Everything belongs to the user that runs.
    fn give_away(&self) {
        let owner = format!("{0}:{0}", self.user);
        let done = Command::new("chown").args(["-R", &owner]).arg(self.base()).status().unwrap();
        assert!(done.success());
    }

    fn base(&self) -> &Path {
        self.dir.path()
    }

    fn at(&self, name: &str) -> String {
        self.base().join(name).to_str().unwrap().to_owned()
    }

    /// Returns `portcullis ARGS…` as the user of this place.
    fn command(&self, args: &[&str]) -> Command {
        let binary = tools().join("portcullis").to_str().unwrap().to_owned();
        let user: &[&str] = &[
            "setpriv",
            "--reuid",
            self.user,
            "--regid",
            self.user,
            "--clear-groups",
            "--inh-caps=-all",
        ];
        let without = "echo 0 >/proc/sys/user/max_user_namespaces && \
            exec setpriv --inh-caps=-all --ambient-caps=-all \"$@\"";
        let namespace: &[&str] =
            &["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", without, "sh"];
        let mut words: Vec<&str> = Vec::new();
        if is_root() && self.who != As::Root {
            words.extend(user);
        }
        if self.who == As::UserWithoutNamespaces {
            words.extend(namespace);
        }
        words.push(&binary);
        words.extend(args);
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.base().join("home"))
            .env("PORTCULLIS_WORKSPACE", self.base().join("ws"))
            .env("PORTCULLIS_STATE", self.base().join("state"))
            .env("SECRET_TOKEN", "hunter2")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `portcullis run OPTIONS… -- AGENT…`, to its end.
    fn run(&self, options: &[&str], agent: &[&str]) -> AgentOutput {
        end(self.start(options, agent))
    }

    fn start(&self, options: &[&str], agent: &[&str]) -> Child {
        self.command(&[&["run"], options, &["--"], agent].concat()).spawn().unwrap()
    }

    /// The hostile agent on one topic.
    fn hostile(&self, options: &[&str], topic: &[&str]) -> BTreeMap<String, String> {
        let scripts = tools().join("agent");
        let script = scripts.join("hostile.py");
        let read = ["--agent-read", scripts.to_str().unwrap()];
        let agent = ["/usr/bin/python3", script.to_str().unwrap()];
        let ended = self.run(&[&read, options].concat(), &[&agent, topic].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.attempts()
    }

    fn hostile_files(&self, options: &[&str]) -> BTreeMap<String, String> {
        self.hostile(
            options,
            &[
                "files",
                &self.at("ws"),
                &self.at("state"),
                &self.at("policies/policy.toml"),
                &self.at("socket"),
            ],
        )
    }

    /// Every record of the log, oldest first.
    fn records(&self) -> Vec<Value> {
        self.records_in("state")
    }

    /// The same of the log in another state directory.
    fn records_in(&self, state: &str) -> Vec<Value> {
        let mut segments: Vec<_> = walk(&self.base().join(state).join("audit"));
        segments.retain(|path| path.extension().is_some_and(|e| e == "jsonl"));
        segments.sort();
        segments
            .iter()
            .flat_map(|s| {
                let text = std::fs::read_to_string(s).unwrap();
                whole_lines(&text).map(|l| serde_json::from_str(l).unwrap()).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Returns the facts of the last start, and of the sandbox after it if that has a record of its
    /// own.
    fn facts(&self) -> Value {
        let records = self.records();
        let start = records.iter().rposition(|record| record["kind"] == "start").unwrap();
        let mut facts = records[start]["facts"].clone();
        let sandbox = records[start..].iter().find(|record| record["op"] == "sandbox");
        let more = sandbox.and_then(|record| record["facts"].as_object().cloned());
        facts.as_object_mut().unwrap().extend(more.unwrap_or_default());
        facts
    }

    /// The workspace is as it was.
    fn untouched(&self) {
        let names: Vec<_> = std::fs::read_dir(self.base().join("ws"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["file.txt"]);
        assert_eq!(std::fs::read_to_string(self.base().join("ws/file.txt")).unwrap(), "secret\n");
    }
}

/// Runs a command by another program, which gets the place as its last argument before it.
fn wrapped(
    program: &str,
    arguments: &[&str],
    world: &SandboxWorld,
    inner: &Command,
) -> AgentOutput {
    let mut outer = Command::new(program);
    outer
        .args(arguments)
        .arg(world.base())
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_clear()
        .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    end(outer.spawn().unwrap())
}

/// Waits with the agent's input kept open, as an editor that is still there does.
fn end(mut child: Child) -> AgentOutput {
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    AgentOutput {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[track_caller]
fn none_worked(attempts: &BTreeMap<String, String>) {
    let worked: Vec<_> = attempts.iter().filter(|(_, got)| *got == "ok").collect();
    assert!(worked.is_empty(), "{worked:?}");
}

#[test]
fn an_agent_reaches_neither_workspace_nor_state_nor_policy() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let attempts = world.hostile_files(&["--no-mount"]);
        assert_eq!(attempts["list"], "empty", "{who:?}");
        none_worked(&attempts);
        world.untouched();
    }
}

#[test]
fn the_same_attempts_succeed_without_confinement() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let attempts = world.hostile_files(&["--unconfined"]);
        for name in [
            "read",
            "write",
            "create",
            "list",
            "stat",
            "chmod",
            "utime",
            "inotify",
            "unlink",
            "symlink",
            "mkfifo",
            "list the state",
            "read the policy",
            "connect to a socket",
            "read through /proc/self/root",
            "read through a link",
        ] {
            assert_eq!(attempts[name], "ok", "{who:?} {name}");
        }
    }
}

#[test]
fn an_agent_has_no_powers() {
    for who in users() {
        let attempts = SandboxWorld::new(who).hostile(&[], &["powers"]);
        assert_eq!(attempts["capabilities"], "0 0 1", "{who:?}");
        for name in ["io_uring", "io_setup", "clone3", "a number from the future"] {
            assert_eq!(attempts[name], "ENOSYS", "{who:?} {name}");
        }
        for name in ["splice", "sendfile", "tee", "vmsplice"] {
            assert_eq!(attempts[name], "EINVAL", "{who:?} {name}");
        }
        for name in [
            "mount",
            "umount",
            "unshare",
            "unshare nothing",
            "setns",
            "ptrace",
            "ptrace itself",
            "clone a user namespace",
            "keyctl",
            "add_key",
            "userfaultfd",
            "bpf",
            "perf",
            "process_vm_readv",
            "pidfd_getfd",
            "name_to_handle_at",
            "open_tree",
            "fsopen",
            "fanotify",
            "chroot",
        ] {
            assert_eq!(attempts[name], "EPERM", "{who:?} {name}");
        }
        let mut attempts = attempts;
        attempts.remove("capabilities");
        none_worked(&attempts);
    }
}

#[test]
fn an_agent_has_what_it_needs() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let attempts = world.hostile(&[], &["works"]);
        for (name, got) in &attempts {
            match name.as_str() {
                "who am I" => assert_eq!(got, "agent"),
                "where am I" => assert_eq!(got, &world.at("ws")),
                _ => assert_eq!(got, "ok", "{who:?} {name}"),
            }
        }
    }
}

#[test]
fn a_program_in_memory_is_confined_too() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let attempts = world.hostile(&["--no-mount"], &["memory", &world.at("ws/file.txt")]);
        assert_eq!(attempts["a program in memory"], "1", "{who:?}");
        let attempts = world.hostile(&[], &["memory", "/usr/bin/env"]);
        assert_eq!(attempts["a program in memory"], "0", "it runs at all: {who:?}");
    }
}

#[test]
fn descriptors_of_a_careless_parent_do_not_reach_the_agent() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let scripts = tools().join("agent");
        let script = scripts.join("hostile.py");
        let inner = world.command(&[
            "run",
            "--agent-read",
            scripts.to_str().unwrap(),
            "--",
            "/usr/bin/python3",
            script.to_str().unwrap(),
            "descriptors",
        ]);
        let script = "exec 7<\"$0\" 8>>\"$0/ws/file.txt\" 9</ && exec \"$@\"";
        let ended = wrapped("sh", &["-c", script], &world, &inner);
        assert_eq!(ended.attempts()["descriptors"], "pipe,pipe,pipe", "{who:?} {ended:?}");
    }
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Returns a port at which nothing listens. The kernel picks it for nobody, so that no other test gets
/// it before it is used.
fn unused_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 10_000).unwrap();
    loop {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[test]
fn what_the_agent_says_on_stderr_cannot_steer_a_terminal() {
    let world = SandboxWorld::new(users()[0]);
    let ended = world.run(
        &[],
        &["/bin/sh", "-c", r"printf '\033[31mred\rportcullis: \342\200\256forged\n' >&2"],
    );
    assert!(!ended.stderr.contains('\u{1b}') && !ended.stderr.contains('\r'), "{ended:?}");
    let shown = r"agent: \u{1b}[31mred\rportcullis: \u{202e}forged";
    assert!(ended.stderr.contains(shown), "{ended:?}");
}

fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}
