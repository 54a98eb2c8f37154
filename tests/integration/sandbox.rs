//! The agent's cell, from inside: a hostile agent is really run, as root and
//! as an ordinary user, and says how its attempts went.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    os::unix::net::UnixListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// An unprivileged user that need not be in `/etc/passwd`.
const USER: &str = "4321";

/// Who starts `portcullis run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    Root,
    User,
    /// A user, where no user namespace can be made.
    UserWithoutNamespaces,
}

/// The binary and the hostile agent, where every user can execute them.
fn tools() -> &'static Path {
    static TOOLS: OnceLock<TempDir> = OnceLock::new();
    TOOLS
        .get_or_init(|| {
            let dir = TempDir::new().unwrap();
            set_mode(dir.path(), 0o755);
            std::fs::copy(env!("CARGO_BIN_EXE_portcullis"), dir.path().join("portcullis")).unwrap();
            std::fs::create_dir(dir.path().join("agent")).unwrap();
            let script = dir.path().join("agent/hostile.py");
            std::fs::write(&script, include_str!("hostile.py")).unwrap();
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
struct Place {
    dir: TempDir,
    who: As,
    _socket: UnixListener,
}

/// How an agent ended and what it said.
#[derive(Debug)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ended {
    /// What the hostile agent reported.
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

impl Place {
    fn new(who: As) -> Self {
        let dir = TempDir::new().unwrap();
        let base = dir.path();
        for name in ["ws", "policies"] {
            std::fs::create_dir(base.join(name)).unwrap();
        }
        std::fs::write(base.join("ws/file.txt"), "secret\n").unwrap();
        std::fs::write(base.join("policies/policy.toml"), "name = \"test\"\n").unwrap();
        let socket = UnixListener::bind(base.join("socket")).unwrap();
        set_mode(&base.join("socket"), 0o777);
        let place = Self { dir, who, _socket: socket };
        if is_root() && who != As::Root {
            place.give_away();
        }
        place
    }

    /// Everything belongs to the user that runs.
    fn give_away(&self) {
        let done = Command::new("chown").args(["-R", USER]).arg(self.base()).status().unwrap();
        assert!(done.success());
    }

    fn base(&self) -> &Path {
        self.dir.path()
    }

    fn at(&self, name: &str) -> String {
        self.base().join(name).to_str().unwrap().to_owned()
    }

    /// `portcullis ARGS…` as the user of this place.
    fn command(&self, args: &[&str]) -> Command {
        let binary = tools().join("portcullis").to_str().unwrap().to_owned();
        let user: &[&str] =
            &["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--inh-caps=-all"];
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
    fn run(&self, options: &[&str], agent: &[&str]) -> Ended {
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

/// Waits with the agent's input held open: an editor that is still there.
fn end(mut child: Child) -> Ended {
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    Ended {
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
        let place = Place::new(who);
        let attempts = place.hostile_files(&[]);
        assert_eq!(attempts["list"], "empty", "{who:?}");
        none_worked(&attempts);
        place.untouched();
    }
}

#[test]
fn the_same_attempts_succeed_without_confinement() {
    for who in users() {
        let place = Place::new(who);
        let attempts = place.hostile_files(&["--unconfined"]);
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
        let attempts = Place::new(who).hostile(&[], &["powers"]);
        assert_eq!(attempts["capabilities"], "0 0 1", "{who:?}");
        for name in ["io_uring", "clone3", "a number from the future"] {
            assert_eq!(attempts[name], "ENOSYS", "{who:?} {name}");
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
        let place = Place::new(who);
        let attempts = place.hostile(&[], &["works"]);
        for (name, got) in &attempts {
            match name.as_str() {
                "who am I" => assert_eq!(got, "agent"),
                "where am I" => assert_eq!(got, &place.at("ws")),
                _ => assert_eq!(got, "ok", "{who:?} {name}"),
            }
        }
    }
}

#[test]
fn a_program_in_memory_is_confined_too() {
    for who in users() {
        let place = Place::new(who);
        let attempts = place.hostile(&[], &["memory", &place.at("ws/file.txt")]);
        assert_eq!(attempts["a program in memory"], "1", "{who:?}");
        let attempts = place.hostile(&[], &["memory", "/usr/bin/env"]);
        assert_eq!(attempts["a program in memory"], "0", "it runs at all: {who:?}");
    }
}

#[test]
fn descriptors_of_a_careless_parent_do_not_reach_the_agent() {
    for who in users() {
        let place = Place::new(who);
        let scripts = tools().join("agent");
        let script = scripts.join("hostile.py");
        let inner = place.command(&[
            "run",
            "--agent-read",
            scripts.to_str().unwrap(),
            "--",
            "/usr/bin/python3",
            script.to_str().unwrap(),
            "descriptors",
        ]);
        let mut outer = Command::new("sh");
        outer
            .args(["-c", "exec 7<\"$0\" 8>>\"$0/file.txt\" 9</ && exec \"$@\""])
            .arg(place.base().join("ws"))
            .arg(inner.get_program())
            .args(inner.get_args())
            .env_clear()
            .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ended = end(outer.spawn().unwrap());
        assert_eq!(ended.attempts()["descriptors"], "pipe,pipe,pipe", "{who:?} {ended:?}");
    }
}

#[test]
fn only_allowed_tcp_ports_can_be_reached() {
    for who in users() {
        let place = Place::new(who);
        let (allowed, denied) = (listener(), listener());
        let port = |l: &TcpListener| l.local_addr().unwrap().port().to_string();
        let (allowed_port, denied_port) = (port(&allowed), port(&denied));
        let topic = ["network", &allowed_port, &denied_port];

        let attempts = place.hostile(&["--agent-network", &allowed_port], &topic);
        assert_eq!(attempts["the allowed port"], "ok", "{who:?} {attempts:?}");
        assert_eq!(attempts["the denied port"], "EACCES", "{who:?}");
        for name in [
            "UDP",
            "UDP over IPv6",
            "MPTCP",
            "SMC",
            "SMC as a family",
            "SCTP",
            "SCTP in packets",
            "ping",
            "UDP-Lite",
            "raw",
            "packet",
            "vsock",
            "bluetooth",
            "crypto",
            "netlink audit",
            "sendto with fast open",
            "sendmsg with fast open",
            "sendmmsg with fast open",
            "fast open on connect",
            "an upper layer",
        ] {
            assert_eq!(attempts[name], "EPERM", "{who:?} {name}");
        }
        let mut rest = attempts;
        rest.remove("the allowed port");
        none_worked(&rest);
        allowed.accept().unwrap();
        denied.set_nonblocking(true).unwrap();
        assert!(denied.accept().is_err(), "something reached the denied port");
    }
}

#[test]
fn the_network_attempts_succeed_without_confinement() {
    let place = Place::new(users()[0]);
    let (one, other) = (listener(), listener());
    let port = |l: &TcpListener| l.local_addr().unwrap().port().to_string();
    let attempts = place.hostile(&["--unconfined"], &["network", &port(&one), &port(&other)]);
    for name in ["the allowed port", "the denied port", "UDP", "listen", "fast open on connect"] {
        assert_eq!(attempts[name], "ok", "{name}");
    }
    for name in ["sendto with fast open", "sendmsg with fast open"] {
        assert_ne!(attempts[name], "EPERM", "{name}");
    }
}

#[test]
fn name_resolution_opens_udp_and_nothing_else() {
    let place = Place::new(users()[0]);
    let (allowed, denied) = (listener(), listener());
    let port = |l: &TcpListener| l.local_addr().unwrap().port().to_string();
    let options = ["--agent-network", &port(&allowed), "--agent-network", "dns"];
    let attempts = place.hostile(&options, &["network", &port(&allowed), &port(&denied)]);
    for name in ["the allowed port", "UDP", "UDP over IPv6"] {
        assert_eq!(attempts[name], "ok", "{name}");
    }
    for name in ["MPTCP", "ping", "UDP-Lite", "raw", "SCTP", "listen"] {
        assert!(matches!(attempts[name].as_str(), "EPERM" | "EACCES"), "{name}");
    }
    assert_eq!(attempts["the denied port"], "EACCES");
}

#[test]
fn without_a_network_nothing_can_be_reached() {
    for who in users() {
        let place = Place::new(who);
        let port = listener();
        let number = port.local_addr().unwrap().port().to_string();
        let attempts = place.hostile(&["--agent-network", "none"], &["network", &number, &number]);
        let mut rest = attempts;
        // Nobody is there to hear.
        rest.remove("listen");
        none_worked(&rest);
        port.set_nonblocking(true).unwrap();
        assert!(port.accept().is_err());
    }
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn where_namespaces_are_forbidden_weaker_confinement_must_be_asked_for() {
    let place = Place::new(As::UserWithoutNamespaces);
    let refused = place.run(&[], &["/bin/true"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("user.max_user_namespaces"), "{refused:?}");
    assert!(refused.stderr.contains("--allow-partial"), "{refused:?}");

    let allowed = place.run(&["--allow-partial"], &["/bin/sh", "-c", "exit 5"]);
    assert_eq!(allowed.code, 5, "{allowed:?}");
    assert!(allowed.stderr.contains("only partly confined"), "{allowed:?}");
}

#[test]
fn partial_confinement_still_keeps_the_agent_from_content() {
    let place = Place::new(As::UserWithoutNamespaces);
    let attempts = place.hostile_files(&["--allow-partial"]);
    for name in [
        "read",
        "write",
        "create",
        "create in the current directory",
        "list",
        "chmod",
        "chown",
        "utime",
        "truncate",
        "unlink",
        "rename",
        "link",
        "symlink",
        "mkdir",
        "mkfifo",
        "setxattr",
        "getxattr",
        "listxattr",
        "inotify",
        "list the state",
        "write to the state",
        "read the policy",
        "write the policy",
        "connect to a socket",
        "connect to an abstract socket",
        "read through /proc/self/root",
        "read through a link",
    ] {
        assert_ne!(attempts[name], "ok", "{name}");
        assert_ne!(attempts[name], "empty", "{name}");
    }
    // What partial confinement cannot hide, and says so.
    assert_eq!(attempts["stat"], "ok");
    place.untouched();

    let (one, other) = (listener(), listener());
    let port = |l: &TcpListener| l.local_addr().unwrap().port().to_string();
    let options = ["--allow-partial", "--agent-network", &port(&one)];
    let attempts = place.hostile(&options, &["network", &port(&one), &port(&other)]);
    assert_eq!(attempts["the allowed port"], "ok");
    let mut rest = attempts;
    rest.remove("the allowed port");
    none_worked(&rest);
    none_worked(&place.hostile(&["--allow-partial"], &["network", &port(&one), &port(&other)]));
}

#[test]
fn full_confinement_is_not_weakened_by_allowing_partial() {
    let place = Place::new(users()[0]);
    let ended = place.run(&["--allow-partial"], &["/bin/true"]);
    assert_eq!(ended.code, 0);
    assert!(!ended.stderr.contains("warning"), "{ended:?}");
}

#[test]
fn unconfined_is_warned_about() {
    let place = Place::new(users()[0]);
    let ended = place.run(&["--unconfined"], &["/bin/cat", "file.txt"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("warning: the agent is not confined"), "{ended:?}");
}

#[test]
fn only_named_variables_reach_the_agent() {
    let place = Place::new(users()[0]);
    let ended = place.run(
        &["--agent-env", "GIVEN=value", "--agent-env", "NOT_SET"],
        &["/bin/sh", "-c", "env >&2"],
    );
    let mut names: Vec<_> = ended
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("agent: ")?.split('=').next())
        .filter(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["GIVEN", "HOME", "PATH", "TMPDIR", "USER"], "{ended:?}");
    let named = place.run(&["--agent-env", "SECRET_TOKEN"], &["/bin/sh", "-c", "env >&2"]);
    assert!(named.stderr.contains("SECRET_TOKEN=hunter2"));
}

#[test]
fn home_persists_and_tmp_does_not() {
    for who in users() {
        let place = Place::new(who);
        let script = "cat $HOME/mark /tmp/mark >&2; echo kept | tee $HOME/mark >/tmp/mark";
        let first = place.run(&[], &["/bin/sh", "-c", script]);
        assert!(!first.stderr.contains("kept"), "{first:?}");
        let second = place.run(&[], &["/bin/sh", "-c", script]);
        assert_eq!(second.stderr.matches("agent: kept").count(), 1, "{second:?}");
        let other = place.run(&["--agent", "other"], &["/bin/sh", "-c", script]);
        assert!(!other.stderr.contains("kept"), "homes of two agents: {other:?}");
    }
}

#[test]
fn what_the_agent_says_on_stderr_cannot_steer_a_terminal() {
    let place = Place::new(users()[0]);
    let ended = place.run(
        &[],
        &["/bin/sh", "-c", r"printf '\033[31mred\rportcullis: \342\200\256forged\n' >&2"],
    );
    assert!(!ended.stderr.contains('\u{1b}') && !ended.stderr.contains('\r'), "{ended:?}");
    let shown = r"agent: \u{1b}[31mred\rportcullis: \u{202e}forged";
    assert!(ended.stderr.contains(shown), "{ended:?}");
}

#[test]
fn the_exit_code_is_the_agents() {
    for who in users() {
        let place = Place::new(who);
        for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)] {
            let ended = place.run(&[], &["/bin/sh", "-c", script]);
            assert_eq!(ended.code, code, "{who:?} {script} {ended:?}");
        }
    }
}

#[test]
fn given_directories_are_given_as_said() {
    for who in users() {
        let place = Place::new(who);
        for name in ["tools", "data"] {
            std::fs::create_dir(place.base().join(name)).unwrap();
            std::fs::write(place.base().join(name).join("f"), "content\n").unwrap();
            set_mode(&place.base().join(name), 0o777);
        }
        std::os::unix::fs::symlink("tools", place.base().join("link")).unwrap();
        let (read, write) = (place.at("link"), place.at("data"));
        let ended = place.run(
            &["--agent-read", &read, "--agent-write", &write],
            &["/bin/sh", "-c", r#"cat "$0/f" >&2; echo x >"$1/new" && echo wrote >&2; echo x >"$0/new" || echo refused >&2"#, &read, &write],
        );
        assert!(ended.stderr.contains("agent: content"), "{who:?} {ended:?}");
        assert!(ended.stderr.contains("agent: wrote"), "{who:?} {ended:?}");
        assert!(ended.stderr.contains("agent: refused"), "{who:?} {ended:?}");
        assert!(!place.base().join("tools/new").exists());
    }
}

#[test]
fn overlapping_places_are_refused_before_anything_starts() {
    let place = Place::new(users()[0]);
    let inside = place.at("ws/.state");
    let ended = place.run(&["--state", &inside], &["/bin/true"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("workspace") && ended.stderr.contains("overlap"), "{ended:?}");
    for given in [place.at("ws"), place.at("."), "/".to_owned(), place.at("state")] {
        for option in ["--agent-read", "--agent-write"] {
            let ended = place.run(&[option, &given], &["/bin/true"]);
            assert_eq!(ended.code, 1, "{option} {given}");
            assert!(ended.stderr.contains("overlap"), "{option} {given}: {ended:?}");
        }
    }
}

#[test]
fn a_bind_mount_of_the_workspace_is_seen_through() {
    let place = Place::new(users()[0]);
    std::fs::create_dir(place.base().join("other")).unwrap();
    let inner = place.command(&["run", "--agent-read", &place.at("other"), "--", "/bin/true"]);
    let mut outer = Command::new("unshare");
    outer
        .args([
            "--mount",
            "--map-root-user",
            "sh",
            "-c",
            "mount --bind \"$0/ws\" \"$0/other\" && exec \"$@\"",
        ])
        .arg(place.base())
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_clear()
        .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ended = end(outer.spawn().unwrap());
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("overlap"), "{ended:?}");
}

#[test]
fn an_agent_that_may_not_read_its_own_installation_is_explained() {
    let place = Place::new(users()[0]);
    let venv = place.base().join("venv");
    std::fs::create_dir_all(venv.join("bin")).unwrap();
    std::fs::write(venv.join("pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    std::os::unix::fs::symlink("/usr/bin/python3", venv.join("bin/python")).unwrap();
    let agent = venv.join("bin/agent");
    std::fs::write(&agent, format!("#!{}/bin/python\nprint('hello')\n", venv.display())).unwrap();
    set_mode(&agent, 0o755);
    std::os::unix::fs::symlink("venv/bin/agent", place.base().join("agent")).unwrap();
    for name in [agent.to_str().unwrap(), &place.at("agent")] {
        let ended = place.run(&[], &[name]);
        assert_eq!(ended.code, 1, "{ended:?}");
        let advice = format!("`--agent-read {}`", venv.display());
        assert!(ended.stderr.contains(&advice), "{ended:?}");
        let ended = place.run(&["--agent-read", venv.to_str().unwrap()], &[name]);
        assert_eq!(ended.code, 0, "{ended:?}");
    }
}

#[test]
fn an_agent_that_dies_at_once_is_explained_by_its_command_line() {
    let place = Place::new(users()[0]);
    std::fs::create_dir(place.base().join("app")).unwrap();
    std::fs::write(place.base().join("app/main.py"), "print('hello')\n").unwrap();
    let script = place.at("app/main.py");
    let ended = place.run(&[], &["/usr/bin/python3", &script]);
    assert_ne!(ended.code, 0);
    assert!(ended.stderr.contains("ended at once"), "{ended:?}");
    assert!(ended.stderr.contains(&format!("`--agent-read {}`", place.at("app"))), "{ended:?}");
}

#[test]
fn a_program_in_the_workspace_or_nowhere_is_refused() {
    let place = Place::new(users()[0]);
    let program = place.base().join("ws/agent");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    set_mode(&program, 0o755);
    let ended = place.run(&[], &[program.to_str().unwrap()]);
    assert!(ended.code == 1 && ended.stderr.contains("lies in the workspace"), "{ended:?}");
    let ended = place.run(&[], &["no-such-agent"]);
    assert!(ended.code == 1 && ended.stderr.contains("`no-such-agent`"), "{ended:?}");
}

/// The processes of the host whose command line holds `mark`.
fn marked(mark: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(mark) {
            found.push(pid);
        }
    }
    found
}

fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    text.unwrap_or_default().split_whitespace().map(|n| n.parse().unwrap()).collect()
}

fn command_line(pid: i32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn kill(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// An agent whose children leave it, start sessions of their own, and stay.
/// Returns when all of it runs, with the broker's process.
fn family(place: &Place, options: &[&str], mark: &str) -> (Child, i32) {
    let script = format!(
        "trap '' TERM HUP; (setsid sleep {mark} &) ; sleep {mark} & \
         setsid sh -c 'sleep {mark} & sleep {mark}' & wait; sleep {mark}"
    );
    let child = place.start(options, &["/bin/sh", "-c", &script]);
    assert!(within(Duration::from_secs(20), || {
        marked(mark).iter().filter(|pid| command_line(**pid).starts_with("sleep")).count() == 4
    }));
    let broker = marked(mark)
        .into_iter()
        .find(|pid| children(*pid).iter().any(|c| command_line(*c).contains("gate-process")))
        .unwrap();
    (child, broker)
}

#[test]
fn no_process_survives_the_death_of_any_of_ours() {
    use rustix::process::Signal;
    let mut number = 400_000 + std::process::id() % 100_000;
    let mut cases: Vec<(As, &[&str])> = users().into_iter().map(|who| (who, &[][..])).collect();
    cases.push((As::UserWithoutNamespaces, &["--allow-partial"]));
    for (who, options) in cases {
        for victim in ["broker", "gate-process", "launch", "init", "agent"] {
            number += 1;
            let mark = number.to_string();
            let place = Place::new(who);
            let (mut child, broker) = family(&place, options, &mark);
            let below = |pid: i32, word: &str| {
                children(pid).into_iter().find(|c| command_line(*c).contains(word)).unwrap()
            };
            let launch = below(broker, "cell-stage launch");
            let init = below(launch, "cell-stage init");
            let gate = below(broker, "gate-process");
            let pid = match victim {
                "broker" => broker,
                "gate-process" => gate,
                "launch" => launch,
                "init" => init,
                _ => children(init)[0],
            };
            kill(pid, Signal::KILL);
            let gone = within(Duration::from_secs(15), || {
                marked(&mark).is_empty()
                    && [broker, launch, init, gate].iter().all(|pid| {
                        let line = command_line(*pid);
                        !line.contains("portcullis") && !line.contains("cell-stage")
                    })
            });
            assert!(gone, "{who:?} {victim}: {:?}", marked(&mark));
            child.wait().unwrap();
        }
    }
}

#[test]
fn a_signal_to_the_broker_stops_everything_in_order() {
    use rustix::process::Signal;
    let place = Place::new(users()[0]);
    // An agent that ends when its input closes is not killed.
    for (agent, code) in
        [("cat >/dev/null; exit 3", 3), ("trap 'exit 4' TERM; while :; do sleep 0.1; done", 4)]
    {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut child = place.start(&[], &["/bin/sh", "-c", &format!("echo up >&2; {agent}")]);
            let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
            let mut line = String::new();
            while !line.contains("agent: up") {
                line.clear();
                assert_ne!(std::io::BufRead::read_line(&mut stderr, &mut line).unwrap(), 0);
            }
            kill(i32::try_from(child.id()).unwrap(), signal);
            let stdin = child.stdin.take();
            assert_eq!(child.wait().unwrap().code(), Some(code), "{agent} {signal:?}");
            drop(stdin);
        }
    }
}

#[test]
fn an_agent_that_will_not_stop_is_killed() {
    use rustix::process::Signal;
    let place = Place::new(users()[0]);
    let mark = (700_000 + std::process::id() % 100_000).to_string();
    let (mut child, broker) = family(&place, &[], &mark);
    let start = Instant::now();
    kill(broker, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(marked(&mark).is_empty());
}

#[test]
fn bytes_pass_between_editor_and_agent() {
    let place = Place::new(users()[0]);
    let mut child = place.start(&[], &["/bin/cat"]);
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"hello\n").unwrap();
    drop(stdin);
    let ended = end(child);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "hello\n"), "{ended:?}");
}

#[test]
fn two_agents_do_not_see_each_other() {
    let place = Place::new(users()[0]);
    let other = Place::new(users()[0]);
    let mark = (800_000 + std::process::id() % 100_000).to_string();
    let (mut child, broker) = family(&place, &[], &mark);
    let ended = other.run(&[], &["/bin/sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' >&2"]);
    assert!(!ended.stderr.contains(&mark), "{ended:?}");
    kill(broker, rustix::process::Signal::KILL);
    child.wait().unwrap();
}
