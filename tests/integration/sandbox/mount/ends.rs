//! Access of other processes to a mount, and the mount after its server has ended.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    time::Instant,
};

use super::*;

/// A program in the mount, as long as this is here.
struct RunningMount {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl RunningMount {
    /// Starts a script by `exec`, which prints `ready` first.
    fn start(world: &SandboxWorld, script: &str) -> Self {
        let script = format!("echo ready; {script}");
        let args = ["exec", "--quiet", "--", "sh", "-c", &script];
        Self::start_with(world, &args)
    }

    fn start_with(world: &SandboxWorld, args: &[&str]) -> Self {
        Self::of(world.limited(args).spawn().unwrap())
    }

    fn of(mut child: Child) -> Self {
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        Self { child, lines }
    }

    /// The processes beneath it, each with its command line.
    fn processes(&self) -> Vec<(u32, String)> {
        beneath(self.child.id())
    }

    fn one(&self, words: &str) -> u32 {
        let processes = self.processes();
        // The last one is beneath the others.
        let found = processes.iter().rfind(|(_, line)| line.contains(words));
        found.unwrap_or_else(|| panic!("{words}: {processes:?}")).0
    }

    fn end(mut self) -> AgentOutput {
        self.child.stdin.take();
        let rest: Vec<_> = self.lines.map(Result::unwrap).collect();
        let output = self.child.wait_with_output().unwrap();
        AgentOutput {
            code: output.status.code().unwrap_or(-1),
            stdout: rest.join("\n"),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Open descriptors of FUSE's device.
fn devices(pid: u32) -> usize {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let targets = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.ends_with("fuse")).count()
}

#[test]
fn only_the_gateway_keeps_the_descriptor_and_nobody_outside_gets_in() {
    for who in users() {
        let world = SandboxWorld::new(who);
        // Its process is the one whose input is open still.
        let inside = RunningMount::start(&world, "cat >/dev/null; cat file.txt");
        let gateway = inside.one("gateway-process");
        let program = inside.one("cat >/dev/null");
        if is_root() {
            for (pid, line) in inside.processes() {
                let least = usize::from(pid == gateway);
                assert!((devices(pid) > 0) == (least > 0), "{who:?} {pid} {line}");
            }
            let path = format!("/proc/{program}/root{}", world.at("ws"));
            let error = std::fs::read_dir(path).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(13), "{who:?} {error}");
            let path = format!("/proc/{program}/cwd/file.txt");
            let error = std::fs::read(path).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(13), "{who:?} {error}");
        }
        let ended = inside.end();
        assert_eq!((ended.code, ended.stdout.as_str()), (0, "secret"), "{who:?} {ended:?}");
    }
}

/// The kernel writes the memory of a process that is not dumpable into no core file, and gives root
/// what `/proc` has of it.
#[test]
fn no_process_that_has_a_key_or_content_leaves_a_core_file() {
    use std::os::unix::fs::MetadataExt as _;

    let user = if is_root() { As::User } else { users()[0] };
    let world = SandboxWorld::new(user);
    let policy = "schema = 1\nname = \"keyed\"\nextends = [\"default\"]\n[network]\ncredentials = [\"model\"]\n\
        [[network.rules]]\nid = \"model\"\neffect = \"allow\"\nhosts = [\"127.0.0.1\"]\n\
        ports = [443]\n";
    let config = "[[credentials]]\nid = \"model\"\npreset = \"claude-code\"\nhost = \"127.0.0.1\"\n\
        from = \"env:OPERATORS_KEY\"\n";
    let files = [("policies/keyed.toml", policy), ("policies/portcullis.toml", config)];
    let [policy, config] = files.map(|(name, text)| {
        std::fs::write(world.at(name), text).unwrap();
        world.at(name)
    });
    world.give_away_if_root();
    let options = ["exec", "--quiet", "--policy", &policy, "--config", &config];
    let script = ["--", "sh", "-c", "echo ready; cat >/dev/null; true"];
    let mut command = world.limited(&[&options[..], &script].concat());
    let inside =
        RunningMount::of(command.env("OPERATORS_KEY", "a-key-of-the-tests").spawn().unwrap());
    let owner = |pid: u32| std::fs::metadata(format!("/proc/{pid}/status")).unwrap().uid();
    assert_ne!(owner(inside.one("cat >/dev/null")), 0);
    for name in
        [" exec ", "gateway-process", "egress-process", "connector-process", "credential-process"]
    {
        assert_eq!(owner(inside.one(name)), 0, "{name}");
    }
    let ended = inside.end();
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn programs_do_not_hang_when_the_gateway_is_killed() {
    for who in users() {
        let world = SandboxWorld::new(who);
        // It starts no program, which could take longer than `exec` lets it run.
        let script = "while read -r line <file.txt; do :; done; echo lost; \
            read -r line <file.txt; cd /; echo over";
        let mut inside = RunningMount::start(&world, script);
        let gateway = inside.one("gateway-process");
        std::thread::sleep(Duration::from_millis(200));
        let killed = Instant::now();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(i32::try_from(gateway).unwrap()).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        assert_eq!(inside.lines.next().unwrap().unwrap(), "lost", "{who:?}");
        // Some 20 ms on an idle machine.
        assert!(killed.elapsed() < Duration::from_secs(10), "{who:?} {:?}", killed.elapsed());
        let ended = inside.end();
        assert!(killed.elapsed() < Duration::from_secs(60), "{:?}", killed.elapsed());
        assert!(ended.stderr.contains("Transport endpoint is not connected"), "{ended:?}");
        assert!(ended.stderr.contains("the gateway failed"), "{who:?} {ended:?}");
        assert_ne!(ended.code, 0);
        assert_eq!(std::fs::read_to_string(world.at("ws/file.txt")).unwrap(), "secret\n");
    }
}

#[test]
fn nothing_is_left_when_the_broker_is_killed() {
    let world = SandboxWorld::new(users()[0]);
    let inside = RunningMount::start(&world, "cat >/dev/null");
    let processes = inside.processes();
    let gateway = inside.one("gateway-process");
    let status = std::fs::read_to_string(format!("/proc/{gateway}/status")).unwrap();
    let broker = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    let broker = rustix::process::Pid::from_raw(broker.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(broker, rustix::process::Signal::KILL).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let alive = || {
        let shown = |(pid, _): &&(u32, String)| Path::new(&format!("/proc/{pid}/cwd")).exists();
        processes.iter().skip(1).filter(shown).count()
    };
    while alive() > 0 {
        assert!(Instant::now() < end, "{processes:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    inside.end();
}

/// It was stopped only once the mount was gone, so what it wrote then was lost.
#[test]
fn an_agent_that_stays_after_its_editor_stores_what_it_writes_when_it_is_stopped() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let policy = world.at("policies/policy.toml");
        // It starts no program when it is to end: that could take longer than it has.
        let script = "trap 'echo late >late.txt; exit 3' TERM; sleep 1000 & echo up >&2; \
                      while :; do wait; done";
        let args = ["run", "--policy", &policy, "--", "sh", "-c", script];
        let mut child = world.limited(&args).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut text = String::new();
        while !text.contains("agent: up\n") {
            assert_ne!(stderr.read_line(&mut text).unwrap(), 0, "{text}");
        }
        // The editor leaves.
        child.stdin.take();
        let gone = Instant::now();
        stderr.read_to_string(&mut text).unwrap();
        assert_eq!(end(child).code, 3, "{who:?} {text}");
        assert_eq!(std::fs::read_to_string(world.at("ws/late.txt")).unwrap(), "late\n");
        assert!(!text.contains("still had the mount"), "{who:?} {text}");
        assert!(gone.elapsed() < Duration::from_secs(60), "{:?}", gone.elapsed());
    }
}

/// Signals were blocked, and no longer read.
#[test]
fn exec_can_be_stopped_while_it_writes_its_summary() {
    let world = SandboxWorld::mounted(users()[0]);
    let policy = world.at("policies/policy.toml");
    // The summary does not fit into the rest of the pipe, which has no reader.
    let script = "for n in $(seq 100); do echo x >made-$n; done; \
                  head -c 60000 /dev/zero >&2; echo done";
    let args = ["exec", "--json", "--policy", &policy, "--", "sh", "-c", script];
    let mut child = world.limited(&args).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
    std::thread::sleep(Duration::from_secs(3));
    assert!(child.try_wait().unwrap().is_none());
    let exec = exec_of(&child);
    ended_by_signals(&mut child, exec);
}

/// The records about scratch directories.
fn scratch_records(world: &SandboxWorld) -> Vec<Value> {
    let mut records = world.records();
    records.retain(|record| said(record, "op") == "scratch");
    records
}

/// The next session counted them without the contents of a closed directory, and the files that the
/// previous one had left were not recorded.
#[test]
fn scratch_of_a_killed_session_is_on_record_with_the_next_one() {
    for who in users() {
        let world = SandboxWorld::with_scratch(who, "");
        let script = "mkdir -p target/a/b; head -c 1048576 /dev/zero >target/a/b/f; chmod 0 target/a; \
                      chmod 0 target; echo ready; sleep 30";
        let policy = world.at("policies/policy.toml");
        let args = ["exec", "--quiet", "--policy", &policy, "--", "sh", "-c", script];
        let inside = RunningMount::start_with(&world, &args);
        let gateway = i32::try_from(inside.one("gateway-process")).unwrap();
        let gateway = rustix::process::Pid::from_raw(gateway).unwrap();
        rustix::process::kill_process(gateway, rustix::process::Signal::KILL).unwrap();
        inside.end();
        assert_eq!(scratch_records(&world), Vec::<Value>::new(), "{who:?}");
        let session = said(&world.records()[0], "session").to_owned();
        let _ = std::fs::remove_file(world.base().join("fuse"));
        let ended = world.exec(&[], "stat -c %a target; chmod 700 target; stat -c %a target/a");
        assert_eq!(ended.stdout, "0\n0\n", "{who:?} {ended:?}");
        let records = scratch_records(&world);
        let facts: Vec<_> = records.iter().map(|record| record["facts"].clone()).collect();
        let numbers = |facts: &Value| (facts["entries"].clone(), facts["bytes"].clone());
        let expected = (4.into(), (3 * 4096 + 1_048_576).into());
        assert_eq!(facts.len(), 2, "{who:?} {records:?}");
        assert_eq!(
            (&facts[0]["previousSession"], numbers(&facts[0])),
            (&session.into(), expected.clone())
        );
        assert_eq!((facts[1].get("previousSession"), numbers(&facts[1])), (None, expected));
        assert_ne!(records[0]["session"], facts[0]["previousSession"]);
    }
}

/// Regression: where nothing was left, and where a signal or the timeout ended it, there was no
/// record.
#[test]
fn each_end_of_a_session_has_a_record_of_its_scratch() {
    let world = SandboxWorld::with_scratch(users()[0], "");
    let ways: [(&[&str], &str); 5] = [
        (&[], "true"),
        (&[], "mkdir target; exit 7"),
        (&[], "kill -9 $$"),
        (&["--timeout", "1s"], "trap '' TERM; while :; do sleep 0.1; done"),
        (&["--timeout", "1s"], "echo x >target/f; sleep 30 & sleep 30"),
    ];
    for (number, (options, script)) in ways.into_iter().enumerate() {
        let _ = std::fs::remove_file(world.base().join("fuse"));
        let ended = world.exec(options, script);
        let records = scratch_records(&world);
        assert_eq!(records.len(), number + 1, "{script}: {ended:?} {records:?}");
        assert_eq!(records[number]["facts"].get("previousSession"), None, "{script}");
    }
    let policy = world.at("policies/policy.toml");
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let args = ["exec", "--policy", &policy, "--", "sh", "-c", "echo ready; sleep 30"];
        let _ = std::fs::remove_file(world.base().join("fuse"));
        let mut child = world.limited(&args).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let exec =
            beneath(child.id()).into_iter().find(|(_, line)| line.contains(" exec --policy"));
        let exec = i32::try_from(exec.unwrap().0).unwrap();
        let before = scratch_records(&world).len();
        rustix::process::kill_process(rustix::process::Pid::from_raw(exec).unwrap(), signal)
            .unwrap();
        let ended = end(child);
        assert_eq!(scratch_records(&world).len(), before + 1, "{signal:?} {ended:?}");
    }
}

/// The kernel reports the last close of a file when no process waits for it any more.
#[test]
fn files_that_a_command_emptied_as_it_ended_were_as_before() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let path = |number: u32| world.at(&format!("ws/many{number}"));
        for number in 0..40 {
            std::fs::write(path(number), "as before").unwrap();
        }
        if is_root() && who != As::Root {
            world.give_away();
        }
        let script = "python3 -c 'import os\nfor n in range(40): os.open(\"many%d\" % n, os.O_WRONLY | os.O_TRUNC)'";
        let ended = world.exec(&[], script);
        assert_eq!(ended.code, 0, "{ended:?}");
        let left: Vec<_> =
            (0..40).filter(|n| !std::fs::read(path(*n)).unwrap().is_empty()).collect();
        assert!(left.is_empty(), "{who:?} {left:?} {ended:?}");
    }
}

/// Its exit code was that of a command that failed.
#[test]
fn a_program_that_does_not_start_ends_as_in_a_shell() {
    let world = SandboxWorld::new(users()[0]);
    for (program, code) in
        [("no-such-program", 127), ("/no/such/program", 127), ("/etc/passwd", 126), ("/usr", 126)]
    {
        let ended = end(world.limited(&["exec", "--", program]).spawn().unwrap());
        assert_eq!(ended.code, code, "{program} {ended:?}");
        assert!(ended.stderr.contains(program), "{ended:?}");
    }
}
