//! Requests in progress whose program no longer waits, and those of a session that may do no more.

use std::{
    io::{BufRead as _, BufReader},
    time::Instant,
};

use super::*;

/// Has a close(2) take long: the rules about secrets look through what it stores. `closing` returns
/// while one is under way.
const DRIVER: &str = r"
import os, signal, sys, time
def big(name):
    file = os.open(name, os.O_WRONLY | os.O_CREAT)
    for n in range(24): os.write(file, b'one two three 44\n' * (1 << 16))
    return file
def child(do):
    pid = os.fork()
    if pid: return pid
    try: do()
    except OSError as error: os._exit(error.errno)
    os._exit(0)
def closing(name):
    ready, told = os.pipe()
    def do():
        file = big(name); os.write(told, b'x'); os.close(file)
    pid = child(do)
    os.read(ready, 1)
    time.sleep(0.3)
    return pid
def ended(pid): return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def killed(pid):
    begun = time.time()
    os.kill(pid, signal.SIGKILL)
    return ended(pid), time.time() - begun
";

/// The time in which a program is gone that was killed, or half of that which its request takes.
const AT_ONCE: f64 = 1.0;

/// A policy with so many rules about secrets that are slow.
fn slow(rules: usize, more: &str) -> String {
    let mut text = format!(
        "{}\n{more}\n[secrets]\nonWrite = \"deny\"\nonRead = \"redact\"\nmaxScanTime = \"10m\"\n",
        POLICY.split("[secrets]").next().unwrap()
    );
    for number in 0..rules {
        text += &format!(
            "[[secrets.rules]]\nid = \"slow{number}\"\nregex = '[a-z]+ [a-z]+[0-9]{{9}}'\n"
        );
    }
    text
}

impl SandboxWorld {
    fn slow(rules: usize, more: &str) -> Self {
        let world = Self::mounted(users()[0]);
        std::fs::write(world.at("policies/policy.toml"), slow(rules, more)).unwrap();
        world
    }

    fn python(&self, options: &[&str], script: &str) -> Child {
        let (policy, script) = (self.at("policies/policy.toml"), format!("{DRIVER}{script}"));
        let command = ["--quiet", "--policy", &policy, "--", "python3", "-uc", &script];
        self.limited(&[&["exec"], options, &command].concat()).spawn().unwrap()
    }

    /// Kind, result and rule of the records about a path.
    fn about(&self, path: &str) -> Vec<[String; 3]> {
        let mut records = self.records();
        records.retain(|record| said(record, "path") == path);
        let words =
            |record: &Value| ["kind", "result", "rule"].map(|field| said(record, field).to_owned());
        records.iter().map(words).collect()
    }

    fn has_begun(&self, path: &str) -> bool {
        self.about(path).iter().any(|[kind, ..]| kind == "intent")
    }
}

/// It waited in the kernel until the gateway had finished its request.
#[test]
fn a_killed_program_is_free_while_its_request_waits() {
    let world = SandboxWorld::slow(8, "");
    // In a directory of its own: the kernel locks that while a name in it is looked up.
    let text = "one two three 44\n".repeat(24 << 16);
    std::fs::write(world.at("ws/dir/text.txt"), text).unwrap();
    let script = r"
closer = closing('big')
mover = child(lambda: os.rename('big', 'moved'))
reader = child(lambda: os.read(os.open('dir/text.txt', os.O_RDONLY), 1))
time.sleep(0.3)
for pid in [mover, reader, closer]: print(*killed(pid))
begun = time.time()
os.close(big('other'))
print(0, time.time() - begun)
# What is left of it is stored with the last descriptor.
os.fsync(os.open('big', os.O_WRONLY))
";
    let ended = end(world.python(&[], script));
    assert_eq!(ended.code, 0, "{ended:?}");
    let lines: Vec<(i32, f64)> = ended
        .stdout
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(code, time)| (code.parse().unwrap(), time.parse().unwrap()))
        .collect();
    let [mover, reader, closer, (_, whole)] = lines[..] else { panic!("{ended:?}") };
    assert!(whole > 1.5 * AT_ONCE, "it is not slow: {ended:?}");
    for (code, time) in [mover, reader, closer] {
        assert_eq!(code, -9, "{ended:?}");
        assert!(time < AT_ONCE.max(whole / 2.0), "{ended:?}");
    }
    // Waiting requests were not carried out, and closed files are stored with the last descriptor.
    assert!(!world.base().join("ws/moved").exists(), "{ended:?}");
    assert!(world.records().iter().all(|record| said(record, "op") != "rename"));
    assert_eq!(std::fs::metadata(world.at("ws/big")).unwrap().len(), (24 << 16) * 17);
}

/// Programs do not expect that files interrupt them.
#[test]
fn a_signal_that_is_handled_interrupts_nothing() {
    let world = SandboxWorld::slow(4, "");
    let script = r"
closer = closing('big')
def rename():
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    os.rename('big', 'moved')
print(ended(child(rename)), ended(closer))
";
    let ended = end(world.python(&[], script));
    assert_eq!(ended.stdout, "0 0\n", "{ended:?}");
    assert!(world.base().join("ws/moved").exists());
}

/// It was stored under the policy that had let it begin.
#[test]
fn a_policy_that_revokes_stops_what_has_not_begun() {
    let world = SandboxWorld::slow(16, "");
    let mut child = world.python(&[], "pid = closing('big'); print('closing'); print(ended(pid))");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "closing");
    let rule = "[[rules]]\nid = \"revoked\"\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"big\"]\n";
    let revoked = slow(16, rule).replace("version = 1", "version = 2");
    std::fs::write(world.at("policies/policy.toml"), revoked).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "13");
    let ended = end(child);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("version 2 is in force"), "{ended:?}");
    assert!(!world.base().join("ws/big").exists() && !world.has_begun("big"), "{ended:?}");
    assert!(world.about("big").iter().any(|[.., rule]| rule == "revoked"), "{ended:?}");
    let verified = world.command(&["audit", "verify", "--workspace", &world.at("ws")]);
    assert_eq!(end({ verified }.spawn().unwrap()).code, 0);
}

/// The denial that closes a session left those that were under way to their end.
#[test]
fn a_session_that_is_closed_stores_nothing_more() {
    let world = SandboxWorld::slow(12, "[mount]\ndenials = 3\n");
    let script = r"
closer = closing('big')
for n in range(3):
    try: os.open('fixed.txt', os.O_WRONLY)
    except OSError: pass
print(ended(closer))
";
    let ended = end(world.python(&[], script));
    assert_eq!(ended.stdout, "13\n", "{ended:?}");
    assert!(!world.base().join("ws/big").exists() && !world.has_begun("big"), "{ended:?}");
    assert!(world.about("big").iter().any(|[.., rule]| rule == "mount.denials"), "{ended:?}");
}

/// The gateway worked on it until its process ended, and no record has its outcome.
#[test]
fn what_is_under_way_when_the_gateway_stops_is_given_up_on_record() {
    let world = SandboxWorld::slow(64, "");
    let begun = Instant::now();
    let script = "closing('big'); print('closing'); time.sleep(50)";
    let ended = end(world.python(&["--timeout", "12s"], script));
    assert_eq!((ended.code, ended.stdout.as_str()), (124, "closing\n"), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert!(!world.base().join("ws/big").exists() && !world.has_begun("big"), "{ended:?}");
    assert_eq!(world.about("big").last().unwrap()[..2], ["decision", "cancelled"], "{ended:?}");
    let records = world.records();
    assert_eq!(said(records.last().unwrap(), "kind"), "stop", "{records:?}");
}

/// Look-ups of large files, which a command left behind at its timeout, kept the gateway from
/// recording its denials, and the files in scratch directories.
#[test]
fn what_was_counted_is_on_record_whatever_is_under_way() {
    let rule = "[[rules]]\nid = \"shut\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"fixed.txt\"]\n\
        [scratch]\npaths = [\"target\"]\n";
    let world = SandboxWorld::slow(64, rule);
    for number in 0..8 {
        let text = "one two three 44\n".repeat(8 << 16);
        std::fs::write(world.at(&format!("ws/dir/{number}")), text).unwrap();
    }
    let script = r"
os.mkdir('target')
open('target/x', 'w').close()
for n in range(20):
    try: open('fixed.txt').read()
    except OSError: pass
for n in range(8): child(lambda: os.stat('dir/%d' % n))
print('looking'); time.sleep(50)
";
    let begun = Instant::now();
    let ended = end(world.python(&["--timeout", "12s"], script));
    assert_eq!((ended.code, ended.stdout.as_str()), (124, "looking\n"), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let records = world.records();
    let one = |op: &str| records.iter().find(|record| said(record, "op") == op);
    let denials = one("repeats").and_then(|record| record["facts"]["denials"].as_u64());
    assert_eq!(denials, Some(19), "{records:?}");
    assert!(one("scratch").is_some(), "{records:?}");
    assert_eq!(said(records.last().unwrap(), "kind"), "stop", "{records:?}");
}

/// Files that the command below leaves open, each with content.
const LEFT_OPEN: usize = 4_000;

impl SandboxWorld {
    /// Starts a command whose child in the background has many written files open when it ends, with
    /// exit code 7.
    fn leave_open(&self, options: &[&str]) -> Child {
        let script = format!(
            "
ready, told = os.pipe()
os.mkdir('many')
def do():
    os.setsid()
    for n in range({LEFT_OPEN}):
        file = os.open(f'many/{{n}}', os.O_RDWR | os.O_CREAT)
        os.write(file, b'x' * 200)
    os.write(told, b'x')
    time.sleep(600)
child(do)
os.read(ready, 1)
print(time.time())
os._exit(7)"
        );
        let (policy, script) = (self.at("policies/policy.toml"), format!("{DRIVER}{script}"));
        let raise = ["sh", "-c", "ulimit -n $(ulimit -Hn); exec \"$@\"", "sh"];
        let command = ["--policy", &policy, "--"];
        let python = ["python3", "-uc", &script];
        self.limited(&[&["exec"], options, &command, &raise, &python].concat()).spawn().unwrap()
    }
}

fn now() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_secs_f64()
}

/// Each of them was committed when the kernel closed it, for minutes, and a timeout that came
/// meanwhile was taken for one of the command.
#[test]
fn files_of_killed_children_kept_exec_from_ending() {
    let world = SandboxWorld::mounted(users()[0]);
    let ended = end(world.leave_open(&["--json", "--timeout", "150s"]));
    let took = now() - ended.stdout.trim().parse::<f64>().unwrap();
    assert!(took < 60.0, "{took}");
    assert_eq!(ended.code, 7, "{ended:?}");
    let summary: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(summary["timedOut"], false, "{summary}");
    let count = |list: &str, more: &str| {
        summary[list].as_array().unwrap().len() as u64 + summary[more].as_u64().unwrap()
    };
    let (stored, failed) = (count("changes", "moreChanges"), count("failures", "moreFailures"));
    // A change is the directory.
    assert!(failed > 0 && stored + failed > LEFT_OPEN as u64, "{stored} {failed}");
    let records = world.records();
    let unstored: Vec<_> = records.iter().filter(|r| said(r, "op") == "unstored").collect();
    assert_eq!(unstored.len(), 1, "{unstored:?}");
    let writes = unstored[0]["facts"]["writes"].as_u64().unwrap();
    assert!((1..=failed).contains(&writes), "{unstored:?}");
    let verify = ["audit", "verify", "--workspace", &world.at("ws")];
    assert_eq!(end(world.command(&verify).spawn().unwrap()).code, 0);
}

/// Only the command got it, which had ended.
#[test]
fn a_signal_did_not_end_exec_after_its_command() {
    let world = SandboxWorld::mounted(users()[0]);
    let mut child = world.leave_open(&["--quiet"]);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let exec = exec_of(&child);
    std::thread::sleep(Duration::from_secs(2));
    ended_by_signals(&mut child, exec);
    let ended = end(child);
    // A second signal may end it before it exits with 1.
    assert!([1, -1].contains(&ended.code), "{ended:?}");
    assert!(ended.stderr.contains("a signal ended the gateway"), "{ended:?}");
}

/// The gateway waited for the end of the exec to name its program, and the exec for the gateway,
/// which was to store the file that it closed: up to two minutes for each program that `cargo`
/// started.
#[test]
fn an_exec_that_closed_a_changed_file_stood_still() {
    const SCRIPT: &str = r#"python3 -c '
import os, time
begun = time.monotonic()
for number in range(20):
    file = os.open(f"made{number}", os.O_CREAT | os.O_WRONLY)
    os.write(file, b"text")
    child = os.posix_spawn("/bin/true", ["true"], {})
    assert os.waitpid(child, 0)[1] == 0
    os.close(file)
print(time.monotonic() - begun)'"#;
    let world = SandboxWorld::mounted(users()[0]);
    let ended = world.exec(&["--timeout", "150s"], SCRIPT);
    assert_eq!(ended.code, 0, "{ended:?}");
    let took: f64 = ended.stdout.trim().parse().unwrap();
    assert!(took < 100.0, "{took}");
    let records = world.records();
    let is_named = |record: &&Value| record["facts"]["process"]["parents"].is_array();
    let writes = records.iter().filter(|record| said(record, "op") == "write");
    assert!(writes.filter(is_named).count() >= 20, "{records:?}");
}
