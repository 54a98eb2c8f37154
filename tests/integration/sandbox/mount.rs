//! The mount in the sandbox: what programs reach through it, and that nothing else leads to
//! the workspace, in or out.

use std::os::unix::fs::MetadataExt as _;

use super::*;

mod abandoned_requests;
mod agents;
mod arguments;
mod command;
mod commands;
mod device;
mod devices;
mod ends;
mod exchange;
mod further;
mod homes;
mod import;
mod invisible;
mod kills;
mod limits;
mod login;
mod lookups;
mod repository;
mod scratch;
mod shell;
mod streams;
mod summary;
mod tracked_secrets;

/// The most seconds that a run here takes.
const LIMIT: &str = "300";

/// Gives a user other than root a device that every user may open, in a mount namespace of its own;
/// the place comes first.
const OPEN_DEVICE: &str = r#"{ test -e "$0/fuse" || mknod "$0/fuse" c 10 229; } && chmod 0666 "$0/fuse" &&
    mount --bind "$0/fuse" /dev/fuse && exec "$@""#;

/// A policy with a name that is denied, one that may be read alone, and one with secrets.
const POLICY: &str = r#"
schema = 1
name = "mounted"
version = 1

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]

[[rules]]
id = "hidden"
effect = "deny"
operations = ["read", "list", "write", "remove"]
paths = ["hidden", "hidden/**"]

[[rules]]
id = "fixed"
effect = "deny"
operations = ["write", "remove"]
paths = ["fixed.txt"]

[secrets]
onRead = "redact"

[[secrets.rules]]
id = "password"
regex = 'hunter[0-9]'
keywords = ["hunter"]
"#;

impl SandboxWorld {
    /// The same with a policy for a mount and files that it is about.
    fn mounted(who: As) -> Self {
        let world = Self::new(who);
        std::fs::write(world.at("policies/policy.toml"), POLICY).unwrap();
        for (name, text) in [
            ("ws/dir/inner.txt", "inner\n"),
            ("ws/hidden/file", "hidden\n"),
            ("ws/fixed.txt", "fixed\n"),
            ("ws/password.txt", "it is hunter2, really\n"),
        ] {
            let path = world.base().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        if is_root() && who != As::Root {
            world.give_away();
        }
        world
    }

    /// `portcullis ARGS…`, where a mount can be had and time is limited.
    fn limited(&self, args: &[&str]) -> Command {
        let script = if is_root() && self.who != As::Root { OPEN_DEVICE } else { r#"exec "$@""# };
        self.limited_after(script, args)
    }

    /// The same after a script, in a mount namespace of its own where this is root.
    fn limited_after(&self, script: &str, args: &[&str]) -> Command {
        let inner = self.command(args);
        let namespace: &[&str] = if is_root() { &["unshare", "--mount"] } else { &["env"] };
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", LIMIT])
            .args(namespace)
            .args(["sh", "-c", script])
            .arg(self.base())
            .arg(inner.get_program())
            .args(inner.get_args())
            .env_clear()
            .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `portcullis exec OPTIONS… -- sh -c SCRIPT`.
    fn exec(&self, options: &[&str], script: &str) -> AgentOutput {
        let policy = self.at("policies/policy.toml");
        let command = ["--policy", &policy, "--", "sh", "-c", script];
        end(self.limited(&[&["exec"], options, &command].concat()).spawn().unwrap())
    }

    /// Runs a command that was printed, as a shell reads it, where no variable names a workspace, a
    /// state directory or a policy.
    fn printed(&self, shell: &str, command: &str) -> AgentOutput {
        let inner = self.limited(&[]);
        let mut command_line = Command::new(shell);
        command_line.args(["-c", command]).env_clear();
        let is_kept = |name: &std::ffi::OsStr| !name.as_encoded_bytes().starts_with(b"PORTCULLIS_");
        let variables = inner.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command_line.envs(variables.filter(|(name, _)| is_kept(name)));
        command_line.env("PATH", format!("{}:/usr/bin:/bin", tools().display()));
        command_line.current_dir(self.base()).stdin(Stdio::piped());
        command_line.stdout(Stdio::piped()).stderr(Stdio::piped());
        end(command_line.spawn().unwrap())
    }
}

/// The processes beneath `child`, each with its command line.
fn beneath(child: u32) -> Vec<(u32, String)> {
    let mut found = vec![(child, String::new())];
    let mut next = 0;
    while let Some((pid, _)) = found.get(next).cloned() {
        next += 1;
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        for child in children.unwrap_or_default().split_whitespace() {
            let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            found.push((child.parse().unwrap(), line));
        }
    }
    found
}

/// The process of `portcullis exec` beneath `child`. timeout(1) passes a signal on once, and kills soon
/// after.
fn exec_of(child: &Child) -> rustix::process::Pid {
    let processes = beneath(child.id());
    let exec = processes.iter().find(|(_, line)| line.contains("portcullis exec "));
    let exec = exec.unwrap_or_else(|| panic!("{processes:?}")).0;
    rustix::process::Pid::from_raw(i32::try_from(exec).unwrap()).unwrap()
}

/// Has signals end an `exec` whose command has ended. The first one is the command's if `exec` has not
/// noted that yet.
#[track_caller]
fn ended_by_signals(child: &mut Child, exec: rustix::process::Pid) -> std::process::ExitStatus {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        // Fails if it has just ended.
        let _ = rustix::process::kill_process(exec, rustix::process::Signal::TERM);
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(20));
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
        }
        assert!(std::time::Instant::now() < end, "it goes on");
    }
}

/// Returns a field of a record.
fn said<'a>(record: &'a Value, field: &str) -> &'a str {
    record[field].as_str().unwrap_or_default()
}

#[test]
fn programs_read_and_write_through_the_gateway() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let script = "pwd; cat file.txt dir/inner.txt; ls; echo new >new.txt; mkdir made; \
                      mv new.txt made/; rm file.txt; cat made/new.txt";
        let ended = world.exec(&[], script);
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        let ws = world.at("ws");
        let expected =
            format!("{ws}\nsecret\ninner\ndir\nfile.txt\nfixed.txt\npassword.txt\nnew\n");
        assert_eq!(ended.stdout, expected, "{who:?} {ended:?}");
        assert_eq!(std::fs::read_to_string(world.at("ws/made/new.txt")).unwrap(), "new\n");
        assert!(!world.base().join("ws/file.txt").exists());
        let owner = world.base().join("ws").metadata().unwrap().uid();
        assert_eq!(world.base().join("ws/made/new.txt").metadata().unwrap().uid(), owner);
        // The sandbox is recorded before anything is done in it.
        let records = world.records();
        assert_eq!((said(&records[0], "kind"), said(&records[0], "transport")), ("start", "mount"));
        assert_eq!(records[0]["facts"]["mount"], true);
        assert_eq!(said(&records[1], "op"), "sandbox");
        assert_eq!(records[1]["facts"]["enforcement"], "full");
        // `status` looked at the `start` record alone.
        let status = end(world.command(&["status"]).spawn().unwrap());
        assert!(status.stdout.contains("enforcement full"), "{status:?}");
        let namespaces = records[1]["facts"]["namespaces"].as_array().unwrap();
        assert!(namespaces.contains(&"user".into()), "{namespaces:?}");
        let read = records.iter().find(|record| said(record, "op") == "read").unwrap();
        assert_eq!((said(read, "transport"), said(read, "path")), ("mount", "file.txt"));
        assert_eq!(read["facts"]["process"]["program"], "cat", "{read}");
        assert!(records.iter().all(
            |record| record["session"] == records[0]["session"] || record["session"].is_null()
        ));
    }
}

#[test]
fn what_is_hidden_is_missing_and_what_is_denied_stays() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let script = "cat hidden/file; cat missing; ls hidden; echo x >hidden; mkdir hidden; \
                      echo x >fixed.txt && echo wrote; rm fixed.txt; cat fixed.txt";
        let ended = world.exec(&[], script);
        assert_eq!(ended.stdout, "fixed\n", "{who:?} {ended:?}");
        for (name, error) in [
            ("cat: hidden/file", "No such file or directory"),
            ("cat: missing", "No such file or directory"),
            ("cannot create hidden", "Permission denied"),
            ("cannot create directory", "Permission denied"),
            ("cannot remove 'fixed.txt'", "Permission denied"),
        ] {
            let line = ended.stderr.lines().find(|line| line.contains(name));
            assert!(line.is_some_and(|line| line.contains(error)), "{who:?} {name}: {ended:?}");
        }
        assert_eq!(std::fs::read_to_string(world.at("ws/hidden/file")).unwrap(), "hidden\n");
        assert_eq!(std::fs::read_to_string(world.at("ws/fixed.txt")).unwrap(), "fixed\n");
    }
}

#[test]
fn secrets_are_redacted_whole() {
    let world = SandboxWorld::mounted(users()[0]);
    let ended = world.exec(&[], "cat password.txt; wc -c <password.txt; stat -c %s password.txt");
    assert!(!ended.stdout.contains("hunter"), "{ended:?}");
    let lines: Vec<_> = ended.stdout.lines().collect();
    let length = (lines[0].len() + 1).to_string();
    assert_eq!(lines[1..], [length.as_str(), length.as_str()], "{ended:?}");
}

impl SandboxWorld {
    fn give_away_if(&self, wanted: bool) {
        if wanted {
            self.give_away_if_root();
        }
    }
}

/// An object is by its number another one than the host's, and no other way leads to that.
#[test]
fn nothing_but_the_mount_leads_to_the_workspace() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let (ws, state) = (world.at("ws"), world.at("state"));
        let script = format!(
            "stat -c %d:%i . {ws} file.txt; cat /proc/1/root{ws}/file.txt; cat /proc/1/cwd/file.txt; \
             ls {state}; ls /proc/self/root{state}; ls /dev/fuse; umount {ws}; \
             mount -t tmpfs none {ws}; ls -l /proc/*/fd"
        );
        let ended = world.exec(&[], &script);
        for name in ["ws", "ws/file.txt"] {
            let facts = world.base().join(name).metadata().unwrap();
            let number = format!("{}:{}", facts.dev(), facts.ino());
            assert!(!ended.stdout.contains(&number), "{who:?} {ended:?}");
        }
        // The second name is through a process that it may not look into.
        assert!(!ended.stdout.contains("secret") && !ended.stdout.contains("fuse"), "{ended:?}");
        assert_eq!(
            ended.stderr.matches(&format!("cannot access '{state}'")).count(),
            1,
            "{ended:?}"
        );
        assert!(world.base().join("ws/file.txt").exists());
    }
}

#[test]
fn what_lies_in_the_workspace_is_not_given_past_the_mount() {
    let world = SandboxWorld::mounted(users()[0]);
    let dir = world.at("ws/dir");
    for option in ["--agent-read", "--agent-write"] {
        let ended = world.exec(&[option, &dir], "true");
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(
            ended.stderr.contains("an agent reaches a workspace only through the gateway"),
            "{ended:?}"
        );
    }
}

#[test]
fn an_agent_of_run_has_the_mount_beside_acp() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let policy = world.at("policies/policy.toml");
        let script = "pwd >&2; cat file.txt >&2; echo x >made; echo done >&2";
        let args = ["run", "--policy", &policy, "--", "sh", "-c", script];
        let ended = end(world.limited(&args).spawn().unwrap());
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        for line in [world.at("ws"), "secret".to_owned(), "done".to_owned()] {
            assert!(ended.stderr.contains(&format!("agent: {line}\n")), "{who:?} {ended:?}");
        }
        let records = world.records();
        let write = records.iter().find(|record| said(record, "op") == "write").unwrap();
        assert_eq!((said(write, "transport"), said(&records[0], "transport")), ("mount", "acp"));
        assert_eq!(write["session"], records[0]["session"]);
    }
}

#[test]
fn an_agent_whose_source_is_the_mount_is_offered_no_files_over_acp() {
    let world = SandboxWorld::mounted(users()[0]);
    let policy = world.at("policies/policy.toml");
    let script = "read line; echo \"$line\" >&2; cat file.txt >&2";
    let args =
        ["run", "--source", "mount", "--policy", &policy, "--no-mcp", "--", "sh", "-c", script];
    let mut child = world.limited(&args).spawn().unwrap();
    let fs = r#"{"readTextFile":true,"writeTextFile":true}"#;
    let params = format!(r#"{{"protocolVersion":1,"clientCapabilities":{{"fs":{fs}}}}}"#);
    let line = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#);
    let mut editor = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut editor, format!("{line}\n").as_bytes()).unwrap();
    let ended = end(child);
    assert_eq!(ended.code, 0, "{ended:?}");
    let none = r#""fs":{"readTextFile":false,"writeTextFile":false}"#;
    assert!(ended.stderr.contains(none) && ended.stderr.contains("agent: secret\n"), "{ended:?}");
    // Without one it would have no files at all.
    for without in ["--no-mount", "--unconfined"] {
        let ended = world.run(&["--source", "mount", without], &["true"]);
        assert_eq!(ended.code, 2, "{ended:?}");
    }
}

#[test]
fn with_no_mount_there_is_none() {
    let world = SandboxWorld::mounted(users()[0]);
    let ended = world
        .run(&["--no-mount"], &["/bin/sh", "-c", "ls -A >&2; grep -c fuse /proc/self/mounts >&2"]);
    assert!(ended.stderr.contains("agent: 0\n") && !ended.stderr.contains("file.txt"), "{ended:?}");
    let start = &world.records()[0];
    assert_eq!(start["facts"]["enforcement"], "full");
    assert!(world.records().iter().all(|record| said(record, "op") != "sandbox"));
}
