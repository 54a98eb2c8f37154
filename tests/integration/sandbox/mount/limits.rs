//! Bounds on the resources of programs in a sandbox.

use std::io::{BufRead as _, BufReader, Write as _};

use serde_json::json;

use super::*;

/// A program that starts as many processes as it can, which do the same; prints their number when
/// it can start no more; and works on with a file of the workspace after a line of input.
const FORK_BOMB: &str = r"
import os, time
if os.fork() == 0:
    while True:
        try: os.fork()
        except OSError: time.sleep(0.1)
refused = 0
while not refused:
    try:
        if os.fork() == 0: time.sleep(1000)
    except OSError as error: refused = error.errno
print('refused', refused, sum(name.isdigit() for name in os.listdir('/proc')), flush=True)
input()
open('bomb.txt', 'w').write(open('file.txt').read())
";

const LIMITED: &str = "\n[agent.limits]\nprocesses = 64\n";

impl SandboxWorld {
    /// A mounted place with more in its policy.
    fn limited_by(who: As, more: &str) -> Self {
        let world = Self::mounted(who);
        std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{more}")).unwrap();
        std::fs::write(world.at("ws/bomb.py"), FORK_BOMB).unwrap();
        world.give_away_if_not_root();
        world
    }

    fn give_away_if_not_root(&self) {
        if is_root() && self.who != As::Root {
            self.give_away();
        }
    }
}

/// `refused 11 65`: the error of fork(2), and how many processes there are.
#[track_caller]
fn is_bounded(line: &str, most: usize) {
    let words: Vec<_> = line.split_whitespace().collect();
    let ["refused", errno, count] = words[..] else { panic!("{line:?}") };
    assert_eq!(errno, rustix::io::Errno::AGAIN.raw_os_error().to_string());
    // With the sandbox's init.
    let count: usize = count.parse().unwrap();
    assert!((most - 8..=most + 1).contains(&count), "{count}");
}

/// Nothing limited them: the machine's users could start no more.
#[test]
fn a_fork_bomb_took_all_processes_of_the_machine() {
    for who in users() {
        let world = SandboxWorld::limited_by(who, LIMITED);
        let policy = world.at("policies/policy.toml");
        let args = ["exec", "--policy", &policy, "--json", "--", "python3", "bomb.py"];
        let mut child = world.limited(&args).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        is_bounded(&line, 64);
        // Other programs of the same user.
        let other = world.command(&["policy", "check", &policy]).output().unwrap();
        assert!(other.status.success(), "{other:?}");
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let ended = end(child);
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        let text = std::fs::read_to_string(world.at("ws/bomb.txt")).unwrap();
        assert_eq!(text, "secret\n");
        let limit = &world.facts()["agentLimits"]["processes"];
        assert_eq!(limit["max"], 64);
        assert!(["rlimit", "cgroup"].contains(&limit["by"].as_str().unwrap()), "{limit}");
    }
}

#[test]
fn a_fork_bomb_on_a_terminal_or_of_an_agent_is_bounded() {
    let world = SandboxWorld::limited_by(users()[0], LIMITED);
    let script = "echo | python3 bomb.py; cat bomb.txt";
    let mut operator = world.shell_script(&[], script);
    operator.sees("secret");
    is_bounded(&operator.line_with("refused"), 64);
    let policy = world.at("policies/policy.toml");
    let args = ["run", "--mount", "--policy", &policy, "--", "sh", "-c", "echo | python3 bomb.py"];
    let ended = end(world.limited(&args).spawn().unwrap());
    let line = ended.stderr.lines().find_map(|line| line.strip_prefix("agent: ")).unwrap();
    is_bounded(line, 64);
}

/// A user's limit is also about what runs in namespaces of that user: an agent could take it all.
#[test]
fn without_a_policy_an_agent_could_start_any_number_of_processes() {
    let script = r"
import threading
threading.stack_size(65536)
stop, count = threading.Event(), 1
try:
    while count < 6000:
        threading.Thread(target=stop.wait, daemon=True).start()
        count += 1
except RuntimeError: pass
print(count)
stop.set()
";
    for (operators, most) in [(None, 4096), (Some(2000), 1000)] {
        let who = users().pop().unwrap();
        let world = SandboxWorld::new(who);
        let limited = world.limited(&["exec", "--quiet", "--", "python3", "-c", script]);
        let mut command = Command::new("prlimit");
        let operators = operators.map(|most| format!("--nproc={most}:{most}"));
        command.arg(operators.as_deref().unwrap_or("--core=0:0"));
        command.arg(limited.get_program()).args(limited.get_args());
        command
            .env_clear()
            .envs(limited.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.current_dir("/").output().unwrap();
        let count = String::from_utf8_lossy(&output.stdout).trim().parse::<u64>();
        let count = count.unwrap_or_else(|_| panic!("{who:?} {output:?}"));
        assert!((most - 8..=most).contains(&count), "{who:?} {count}");
        assert_eq!(world.facts()["agentLimits"]["processes"]["max"], most);
    }
}

#[test]
fn memory_and_processors_were_not_limited() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let script = r"
import os
try: bytearray(2 << 30)
except MemoryError: print('no memory')
print(len(os.sched_getaffinity(0)))
try: os.sched_setaffinity(0, range(os.cpu_count()))
except PermissionError: print('no processors')
print(open('/proc/self/oom_score_adj').read().strip())
";
        let options = ["--agent-limit", "memory=512MiB", "--agent-limit", "cpu=1"];
        let args = [&["exec", "--quiet"], &options[..], &["--", "python3", "-c", script]].concat();
        let ended = end(world.limited(&args).spawn().unwrap());
        assert_eq!(ended.stdout, "no memory\n1\nno processors\n1000\n", "{who:?} {ended:?}");
        let facts = world.facts();
        let limits = &facts["agentLimits"];
        assert_eq!(limits["cpu"], json!({ "max": 1, "by": "affinity" }));
        assert_eq!(limits["memory"]["max"], 512 << 20);
        let is_of_each = limits["memory"]["by"] == "rlimit";
        assert_eq!(ended.stderr.contains("warning: the limit on memory"), is_of_each, "{ended:?}");
    }
}

#[test]
fn limits_hold_without_namespaces_where_the_kernel_counts_them() {
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    let script = "import os; print(len(os.sched_getaffinity(0)))";
    let options = ["--allow-partial", "--agent-limit", "processes=512", "--agent-limit", "cpu=1"];
    let ended = world.run(&options, &["/usr/bin/python3", "-c", script]);
    assert!(ended.stderr.contains("agent: 1\n"), "{ended:?}");
    assert_eq!(world.facts()["agentLimits"]["processes"]["max"], 512);
}

/// It left no record, and nothing said which limit it was.
#[test]
fn a_file_that_grew_past_every_limit_was_refused_without_a_record() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = "for n in 1 2 3; do truncate -s 10G file.txt; done; truncate -s 10G new.txt
        dd if=/dev/zero of=new.txt bs=1 count=1 seek=10G 2>/dev/null
        getfattr -n user.portcullis.why --only-values file.txt 2>/dev/null; echo; stat -c %s file.txt";
    let ended = world.exec(&[], script);
    assert!(ended.stdout.ends_with("\n7\n"), "{ended:?}");
    assert!(ended.stderr.contains("File too large"), "{ended:?}");
    assert!(ended.stderr.contains("mount.maxWriteSize"), "{ended:?}");
    let records = world.records();
    let of = |path: &str| {
        let is = |record: &&Value| {
            said(record, "path") == path && said(record, "rule") == "mount.maxWriteSize"
        };
        records.iter().filter(is).collect::<Vec<_>>()
    };
    assert_eq!((of("file.txt").len(), of("new.txt").len()), (1, 1), "{records:#?}");
    let record = of("file.txt")[0];
    let shown = (said(record, "op"), said(record, "decision"), &record["facts"]["size"]);
    assert_eq!(shown, ("write", "deny", &json!(10_u64 << 30)), "{record}");
    assert_eq!(record["facts"]["process"]["program"], "truncate", "{record}");
    // Further ones are counted: two of each file.
    let repeats = records.iter().filter(|record| said(record, "op") == "repeats");
    let denials = repeats.map(|record| record["facts"]["denials"].as_u64().unwrap());
    assert_eq!(denials.sum::<u64>(), 4, "{records:#?}");
}
