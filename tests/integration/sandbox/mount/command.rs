//! `portcullis exec`: streams, signals, exit codes and the summary.

use std::{
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt,
};

use super::*;

mod approvals;

#[test]
fn the_streams_are_the_commands_own() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let script = "cat; echo error >&2; echo again >/dev/stdout";
        let args = ["exec", "--quiet", "--", "sh", "-c", script];
        let mut child = world.limited(&args).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"\0input\n").unwrap();
        let ended = end(child);
        assert_eq!(ended.stdout, "\0input\nagain\n", "{who:?} {ended:?}");
        let others = ended.stderr.lines().filter(|line| !line.starts_with("portcullis: note:"));
        assert_eq!(others.collect::<Vec<_>>(), ["error"], "{who:?} {ended:?}");
    }
}

/// No descriptor of a file is in the sandbox, by which its mode or its content could be reached.
#[test]
fn files_that_are_streams_are_not_open_in_the_sandbox() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let (input, output) = (world.at("input"), world.at("output"));
        std::fs::write(&input, "what is read\n").unwrap();
        std::fs::write(&output, "what stood there\n").unwrap();
        set_mode(Path::new(&input), 0o640);
        let script = "cat; for fd in 0 1 2; do readlink /proc/self/fd/$fd | cut -d: -f1; \
            chmod 777 /proc/self/fd/$fd 2>/dev/null; done; for n in 1 2 3; do echo $n; echo $n >&2; done";
        let mut command = world.limited(&["exec", "--quiet", "--", "sh", "-c", script]);
        let file = std::fs::OpenOptions::new().append(true).open(&output).unwrap();
        command.stdin(std::fs::File::open(&input).unwrap());
        command.stdout(file.try_clone().unwrap()).stderr(file);
        assert_eq!(end(command.spawn().unwrap()).code, 0);
        let text = std::fs::read_to_string(&output).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("portcullis: note:"));
        let shown = "what stood there\nwhat is read\npipe\npipe\npipe\n1\n1\n2\n2\n3\n3";
        assert_eq!(lines.collect::<Vec<_>>().join("\n"), shown, "{who:?}");
        let mode = |path: &str| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&input), mode(&output)), (0o640, 0o644), "{who:?}");
    }
}

/// It was granted with a warning.
#[test]
fn an_agents_own_configuration_was_granted_to_a_command_that_named_it_once() {
    let world = SandboxWorld::new(users()[0]);
    std::fs::create_dir_all(world.base().join("home/.claude/hooks")).unwrap();
    std::os::unix::fs::symlink(world.base().join("home/.claude"), world.base().join("link"))
        .unwrap();
    let (path, inner, link) =
        (world.at("home/.claude"), world.at("home/.claude/hooks"), world.at("link"));
    let exec = |options: &[&str]| {
        end(world.limited(&[&["exec"], options, &["--", "true"]].concat()).spawn().unwrap())
    };
    for granted in [&path, &inner, &link] {
        for options in [&[][..], &["--accept-agent-config", &world.at("ws")]] {
            let ended = exec(&[&["--agent-write", granted.as_str()], options].concat());
            assert_eq!(ended.code, 1, "{granted} {ended:?}");
            assert!(ended.stderr.contains("--accept-agent-config"), "{ended:?}");
        }
    }
    let policy = format!("schema = 1\nname = \"p\"\nversion = 1\n[agent]\nwrite = [\"{path}\"]\n");
    std::fs::write(world.at("policies/policy.toml"), policy).unwrap();
    let policy = world.at("policies/policy.toml");
    assert_eq!(exec(&["--policy", &policy]).code, 1);
    assert!(!world.base().join("state/audit").exists());

    let ended = exec(&["--agent-write", &link, "--accept-agent-config", &path]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains(&format!("warning: `{link}`")), "{ended:?}");
    assert_eq!(world.facts()["agentConfig"], serde_json::json!([link]));
}

/// Such a grant was refused only where the configuration existed already, and of `~/.config` only
/// the default place was known.
#[test]
fn an_agents_configuration_that_was_not_made_yet_was_granted() {
    let world = SandboxWorld::new(users()[0]);
    let (dev, config) = (world.at("home/dev"), world.at("home/config"));
    std::fs::create_dir_all(&dev).unwrap();
    std::fs::create_dir_all(world.at("home/config/opencode")).unwrap();
    std::os::unix::fs::symlink(&dev, world.at("link")).unwrap();
    let data = world.at("home/data");
    std::fs::create_dir_all(world.at("home/data/opencode")).unwrap();
    let (opencode, logins) = (format!("{config}/opencode"), format!("{data}/opencode"));
    for (variable, value, granted) in [
        ("CLAUDE_CONFIG_DIR", format!("{dev}/claude"), &dev),
        ("CODEX_HOME", format!("{}/codex", world.at("link")), &dev),
        ("XDG_CONFIG_HOME", config, &opencode),
        ("XDG_DATA_HOME", data, &logins),
    ] {
        let mut command = world.limited(&["exec", "--agent-write", granted, "--", "true"]);
        let ended = end(command.env(variable, value).spawn().unwrap());
        assert_eq!(ended.code, 1, "{variable} {ended:?}");
        assert!(ended.stderr.contains("--accept-agent-config"), "{variable} {ended:?}");
    }
}

/// Skills that several agents read, the data of some, and settings for all users were granted without a
/// word.
#[test]
fn places_of_agents_were_granted_that_do_not_have_their_names() {
    let world = SandboxWorld::new(users()[0]);
    let places =
        [".agents/skills", ".codeium/windsurf", ".local/share/opencode", ".local/share/claude"];
    let places = places.map(|place| world.at(&format!("home/{place}")));
    for place in &places {
        std::fs::create_dir_all(place).unwrap();
    }
    for granted in places.iter().map(String::as_str).chain(["/etc/claude-code"]) {
        let exec = ["exec", "--agent-write", granted, "--", "true"];
        let ended = end(world.limited(&exec).spawn().unwrap());
        assert_eq!(ended.code, 1, "{granted} {ended:?}");
        assert!(ended.stderr.contains("--accept-agent-config"), "{granted} {ended:?}");
    }
}

#[test]
fn a_directory_as_a_stream_is_refused() {
    let world = SandboxWorld::new(users()[0]);
    let mut command = world.limited(&["exec", "--", "ls", "-A", "/proc/self/fd/0/"]);
    command.stdin(std::fs::File::open(world.at("ws")).unwrap());
    let ended = end(command.spawn().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{ended:?}");
    assert!(ended.stderr.contains("is a directory"), "{ended:?}");
}

/// Runs a command in a session with a terminal, in the foreground or in the background, types a line,
/// and prints what the terminal shows, or that it was stopped.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, sys, termios, time
terminal, inner = pty.openpty()
if os.fork() == 0:
    os.setsid()
    fcntl.ioctl(inner, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        if sys.argv[1] == 'foreground': os.tcsetpgrp(inner, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        for fd in (0, 1, 2): os.dup2(inner, fd)
        os.execvp(sys.argv[2], sys.argv[2:])
    _, status = os.waitpid(job, os.WUNTRACED)
    os.write(inner, b'stopped\n' if os.WIFSTOPPED(status) else b'ended %d\n' % (status >> 8))
    if os.WIFSTOPPED(status):
        os.kill(job, signal.SIGKILL)
    os._exit(0)
shown, until = b'', time.time() + 60
os.write(terminal, b'typed\n')
while time.time() < until and b'stopped' not in shown and b'ended' not in shown:
    if select.select([terminal], [], [], 1)[0]: shown += os.read(terminal, 4096)
print(shown.decode().replace(chr(13), ''))
"#;

/// It stopped `exec` and not the command, which went on without a process that enforced
/// `--timeout`.
#[test]
fn what_is_typed_stopped_a_command_in_the_background() {
    let world = SandboxWorld::new(users()[0]);
    let reads = "test -t 0 && echo terminal; read line; echo \"got $line\"; echo $line >&2";
    for (ground, script, shown) in
        [("foreground", reads, "got typed"), ("background", "sleep 1; exit 7", "ended 7")]
    {
        let command = world.command(&["exec", "--quiet", "--", "sh", "-c", script]);
        let mut inside = Command::new("python3");
        inside.args(["-c", TERMINAL, ground]).arg(command.get_program()).args(command.get_args());
        inside
            .env_clear()
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside.current_dir(world.at("ws"));
        let output = inside.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.lines().any(|line| line == shown), "{ground}: {output:?}");
        assert!(!text.lines().any(|line| line == "terminal"), "{ground}: {output:?}");
        assert_eq!(text.contains("got typed"), ground == "foreground", "{output:?}");
    }
}

#[test]
fn the_exit_code_is_the_commands() {
    let world = SandboxWorld::new(users()[0]);
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 139), ("kill -TERM $$", 143)]
    {
        assert_eq!(world.plain(&[], script).code, code, "{script}");
    }
    let mut none = world.limited(&["exec", "--", "no-such-program"]);
    let ended = end(none.spawn().unwrap());
    assert_eq!(ended.code, 127, "{ended:?}");
}

impl SandboxWorld {
    /// `portcullis exec OPTIONS… -- sh -c SCRIPT` under the default policy.
    pub(super) fn plain(&self, options: &[&str], script: &str) -> AgentOutput {
        let args = [&["exec"], options, &["--", "sh", "-c", script]].concat();
        end(self.limited(&args).spawn().unwrap())
    }
}

#[test]
fn a_command_whose_time_is_over_is_stopped() {
    let world = SandboxWorld::new(users()[0]);
    for script in ["exec sleep 50", "trap '' TERM; while :; do sleep 1; done"] {
        let began = std::time::Instant::now();
        let ended = world.plain(&["--timeout", "500ms"], script);
        assert_eq!(ended.code, 124, "{script}: {ended:?}");
        assert!(ended.stderr.contains("longer than `--timeout`"), "{ended:?}");
        assert!(began.elapsed() < Duration::from_secs(45), "{script}");
    }
    for bad in ["0s", "5", "-1s", "x"] {
        assert_eq!(world.plain(&["--timeout", bad], "true").code, 2, "{bad}");
    }
}

#[test]
fn signals_are_passed_on() {
    use rustix::process::{Signal, kill_process};
    let world = SandboxWorld::new(users()[0]);
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
        let script = format!(
            "trap 'echo got {name}; exit 5' {name}; sleep 1000 & echo ready; \
             while :; do wait; done"
        );
        let args = ["exec", "--quiet", "--", "sh", "-c", &script];
        let mut child = world.limited(&args).spawn().unwrap();
        let mut ready = [0; 6];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut ready).unwrap();
        kill_process(exec_of(&child), signal).unwrap();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        let ended = end(child);
        assert_eq!((ended.code, rest.trim()), (5, format!("got {name}").as_str()), "{ended:?}");
    }
}

#[test]
fn the_summary_tells_changes_and_denials_and_the_way_back() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        std::fs::create_dir(world.at("ws/empty")).unwrap();
        std::os::unix::fs::symlink("file.txt", world.at("ws/link")).unwrap();
        world.give_away_if(who != As::Root);
        std::fs::set_permissions(world.at("ws/empty"), PermissionsExt::from_mode(0o700)).unwrap();
        let script = "echo more >>file.txt; echo again >>file.txt; rm -f fixed.txt; rm -f fixed.txt; mkdir made
                      mv -T dir empty; ln -s empty new; mv -T new link; cat link/inner.txt";
        let ended = world.exec(&[], script);
        let line = |words: &str| ended.stderr.lines().any(|line| line.trim().starts_with(words));
        assert!(line("write    file.txt (2 versions)"), "{who:?} {ended:?}");
        assert!(line("mkdir    made"), "{who:?} {ended:?}");
        assert!(line("denied   remove fixed.txt, 2 times: rule fixed"), "{who:?} {ended:?}");
        // Each counts, though one line has both.
        assert!(ended.stderr.contains(", 2 denials, "), "{who:?} {ended:?}");
        // The way back works as it is printed.
        let undo =
            ended.stderr.lines().find_map(|line| line.trim().strip_prefix("undo: portcullis "));
        let mut args: Vec<_> = undo.unwrap().split(' ').collect();
        args.push("--yes");
        let undone = end(world.command(&args).spawn().unwrap());
        assert_eq!(undone.code, 0, "{undone:?}");
        assert_eq!(std::fs::read_to_string(world.at("ws/file.txt")).unwrap(), "secret\n");
        let ws = world.base().join("ws");
        assert!(
            ended.stdout.contains("inner") && !ws.join("made").exists() && !ws.join("new").exists()
        );
        assert_eq!(std::fs::read_to_string(ws.join("dir/inner.txt")).unwrap(), "inner\n");
        assert_eq!(std::fs::read_link(ws.join("link")).unwrap(), std::path::Path::new("file.txt"));
        assert_eq!(ws.join("empty").metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(ws.join("empty")).unwrap().count(), 0);
    }
}

/// Each child that a shell writes a file with closes a duplicate, which stores the content so far;
/// a file that a shell made stayed as an empty one when its last record was undone.
#[test]
fn what_was_stored_of_one_open_file_is_undone_at_once() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = "echo new >new.txt; (sh -c 'echo one'; sh -c 'echo two') >>file.txt; \
                  (sh -c 'echo one'; mv dir/inner.txt moved; sh -c 'echo two') >>dir/inner.txt";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let intents = |path: &str| -> Vec<u64> {
        let mut records = world.records();
        records.retain(|record| said(record, "kind") == "intent" && said(record, "path") == path);
        records.iter().map(|record| record["seq"].as_u64().unwrap()).collect()
    };
    let undo = |record: &u64| {
        let record = record.to_string();
        let policy = world.at("policies/policy.toml");
        let args = ["backup", "undo", "--policy", &policy, "--record", &record, "--yes"];
        let undone = end(world.command(&args).spawn().unwrap());
        assert_eq!(undone.code, 0, "{undone:?}");
    };
    let (new, file) = (intents("new.txt"), intents("file.txt"));
    assert_eq!((new.len(), file.len()), (2, 2), "{:#?}", world.records());
    undo(new.last().unwrap());
    assert!(!world.base().join("ws/new.txt").exists());
    // Whichever of them is named.
    undo(&file[0]);
    assert_eq!(std::fs::read_to_string(world.at("ws/file.txt")).unwrap(), "secret\n");
    // Under another name it is another step.
    undo(intents("moved").last().unwrap());
    assert_eq!(std::fs::read_to_string(world.at("ws/moved")).unwrap(), "inner\none\n");
}

#[test]
fn repeated_opens_are_counted_in_the_log_or_recorded_each() {
    let script = "sleep 0.1; for i in 1 2 3; do cat file.txt; cat shut.txt; done >/dev/null 2>&1";
    let rule = "\n[[rules]]\nid = \"shut\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"shut.txt\"]\n";
    for (choice, of_file, of_shut) in [("versions", 1, 1), ("opens", 3, 3)] {
        let world = SandboxWorld::mounted(users()[0]);
        let policy = world.at("policies/policy.toml");
        std::fs::write(&policy, format!("{POLICY}{rule}")).unwrap();
        std::fs::write(world.at("ws/shut.txt"), "shut\n").unwrap();
        let config = world.at("policies/portcullis.toml");
        std::fs::write(&config, format!("[audit]\nmount = \"{choice}\"\n")).unwrap();
        let ended = world.exec(&["--config", &config], script);
        let told = "denied   read shut.txt, 3 times: rule shut";
        assert!(ended.stderr.contains(told), "{choice} {ended:?}");
        let records = world.records();
        let count = |path: &str| {
            let reads =
                |record: &&Value| said(record, "op") == "read" && said(record, "path") == path;
            records.iter().filter(reads).count()
        };
        assert_eq!((count("file.txt"), count("shut.txt")), (of_file, of_shut), "{choice}");
        let repeats: Vec<_> = records.iter().filter(|r| said(r, "op") == "repeats").collect();
        let session = said(&records[0], "session");
        let shown = world.command(&[
            "audit",
            "session",
            session,
            "--records",
            "--workspace",
            &world.at("ws"),
        ]);
        let shown = end({ shown }.spawn().unwrap());
        if choice == "opens" {
            assert!(repeats.is_empty() && !shown.stdout.contains("repeats"), "{repeats:?}");
        } else {
            let paths = serde_json::json!([
                {"path": "file.txt", "opens": 2, "denials": 0},
                {"path": "shut.txt", "opens": 0, "denials": 2},
            ]);
            assert_eq!(repeats.len(), 1, "{repeats:?}");
            assert_eq!(
                (&repeats[0]["transport"], &repeats[0]["facts"]["paths"]),
                (&"mount".into(), &paths)
            );
            assert!(shown.stdout.contains("2 more opens, 2 more denials"), "{shown:?}");
        }
    }
}

/// It was stored once its program was gone, without the program's name.
#[test]
fn the_record_of_an_emptied_file_names_its_program() {
    let world = SandboxWorld::mounted(users()[0]);
    let ended = world.exec(&["--quiet"], "sh -c ': >file.txt'; sleep 1");
    assert_eq!(ended.code, 0, "{ended:?}");
    let records = world.records();
    let is_emptied = |r: &&Value| said(r, "kind") == "intent" && said(r, "path") == "file.txt";
    let intent = records.iter().find(is_emptied).unwrap();
    assert_eq!(intent["facts"]["process"]["program"], "sh", "{intent}");
}

/// Files that an untrusted command left in the home ran in the next one, with that one's network
/// and variables.
#[test]
fn a_home_is_kept_for_a_named_agent_alone() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let homes = || walk(&world.base().join("home/.local/share/portcullis/homes"));
        let leave =
            "test ! -e ~/left && mkdir -p ~/left/a/b && echo x >~/left/a/f && chmod 000 ~/left/a";
        for _ in 0..2 {
            let ended = world.exec(&["--quiet"], leave);
            assert_eq!(ended.code, 0, "{who:?} {ended:?}");
            let left = homes().into_iter().filter(|path| path.to_string_lossy().contains("exec"));
            assert_eq!(left.count(), 0, "{who:?} {ended:?}");
        }
        let named = ["--quiet", "--agent", "builder"];
        assert_eq!(world.exec(&named, "echo kept >~/left").code, 0, "{who:?}");
        assert_eq!(world.exec(&named, "cat ~/left").stdout, "kept\n", "{who:?}");
    }
}

/// A file that was cut by an error looked like a complete one.
#[test]
fn an_error_of_standard_input_was_not_told() {
    let world = SandboxWorld::new(users()[0]);
    let mut command = world.limited(&["exec", "--quiet", "--", "cat"]);
    // Its memory has no first page.
    command.stdin(std::fs::File::open("/proc/self/mem").unwrap());
    let ended = end(command.spawn().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{ended:?}");
    assert!(ended.stderr.contains("standard input"), "{ended:?}");
}

/// The error came after half a minute.
#[test]
fn a_command_that_is_too_long_is_refused_at_once() {
    let world = SandboxWorld::new(users()[0]);
    let long = "x".repeat(110_000);
    let ended = end(world.limited(&["exec", "--", "echo", &long]).spawn().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{:.300}", ended.stderr);
    assert!(ended.stderr.contains("too large"), "{:.300}", ended.stderr);
}

/// The record looked as if another command had run.
#[test]
fn the_end_of_a_long_command_was_left_out_without_a_word() {
    let world = SandboxWorld::new(users()[0]);
    let long = format!(": {}", "x".repeat(5000));
    let ended = end(world.limited(&["exec", "--", "sh", "-c", &long, "last"]).spawn().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    let facts = world.facts();
    assert_eq!(facts["command"], serde_json::json!(["sh", "-c"]), "{facts}");
    assert_eq!(facts["argumentsLeftOut"], 2, "{facts}");
}

#[test]
fn a_program_of_the_workspace_runs() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let program = world.at("ws/program");
        std::fs::write(&program, "#!/bin/sh\necho \"ran in $(pwd)\"\n").unwrap();
        set_mode(Path::new(&program), 0o755);
        world.give_away_if(who != As::Root);
        let ended = end(world.limited(&["exec", "--quiet", "--", &program]).spawn().unwrap());
        assert_eq!(ended.stdout, format!("ran in {}\n", world.at("ws")), "{who:?} {ended:?}");
    }
}

/// The state of a process: `T` where a signal stopped it.
fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap()
}

/// `exec` stopped, and its command went on.
#[test]
fn job_control_stops_and_continues_the_command_too() {
    for who in users() {
        let world = SandboxWorld::new(who);
        // It starts no program: one that is stopped before its execve(2) keeps the shell in vfork(2),
        // where it cannot be stopped.
        let script = "echo ready; while :; do :; done";
        let args = ["exec", "--quiet", "--", "sh", "-c", script];
        let mut child = world.limited(&args).spawn().unwrap();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let processes = beneath(child.id());
        let one = |words: &str| {
            let found =
                processes.iter().find(|(pid, line)| *pid != child.id() && line.contains(words));
            found.unwrap_or_else(|| panic!("{words}: {processes:?}")).0
        };
        let (exec, gateway) = (one(" exec --quiet"), one("gateway-process"));
        // The last one is beneath the others.
        let command = processes.iter().rfind(|(_, line)| line.starts_with("sh -c echo ready"));
        let command = command.unwrap().0;
        let exec_pid = rustix::process::Pid::from_raw(i32::try_from(exec).unwrap()).unwrap();
        let wait = |wanted: &dyn Fn() -> bool, what: &str| {
            let end = std::time::Instant::now() + Duration::from_secs(60);
            while !wanted() {
                let states = [exec, command, gateway].map(state);
                assert!(std::time::Instant::now() < end, "{who:?} {what} {states:?} {processes:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        for _ in 0..2 {
            rustix::process::kill_process(exec_pid, rustix::process::Signal::TSTP).unwrap();
            wait(&|| state(exec) == 'T' && state(command) == 'T', "stops");
            assert_ne!(state(gateway), 'T', "{who:?}");
            rustix::process::kill_process(exec_pid, rustix::process::Signal::CONT).unwrap();
            wait(&|| state(exec) != 'T' && state(command) != 'T', "continues");
        }
        rustix::process::kill_process(exec_pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(end(child).code, 143, "{who:?}");
    }
}
