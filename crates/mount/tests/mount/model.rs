//! Random system calls of a program in the mount, on hostile names and links, compared with
//! the model in memory with which `tests/integration/model.rs` compares the gateway.
//! `PORTCULLIS_TEST_BUDGET` multiplies the number of calls; `PORTCULLIS_TEST_SEED` is the
//! first seed.

#![expect(clippy::indexing_slicing, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../../tests/support/model.rs"]
mod tree;

mod posix;

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use portcullis_policy::model::{
    AsOperation, Encoding, LineRange, WorkspacePath,
    request::{Append, List, Mkdir, Read, Remove, Rename, Stat, Write},
};
use serde_json::{Value, json};

use self::{
    posix::{Answer, Call},
    tree::{MODEL_POLICY, Tree, on_disk, plant},
};
use crate::{
    rig::{Rig, budget, with},
    seeded_random::Random,
};

const SEQUENCES: u64 = 12;
const LENGTH: u64 = 60;

/// Carries out the calls that it reads, one a line, and prints each result.
const PROGRAM: &str = r#"
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def store(path, flags, text, at=None):
    fd = os.open(path, flags, 0o644)
    try:
        os.write(fd, text) if at is None else os.pwrite(fd, text, at)
        os.fsync(fd)
    finally: os.close(fd)
def stage(path, text):
    fd = os.open(os.path.dirname(path) or '.', os.O_TMPFILE | os.O_RDWR, 0o644)
    try:
        os.write(fd, text)
        os.link('/proc/self/fd/%d' % fd, path, src_dir_fd=0, follow_symlinks=True)
    finally: os.close(fd)
def kind(path, follow):
    facts = os.stat(path, follow_symlinks=follow)
    return {0o100000: 'file %d' % facts.st_size, 0o040000: 'directory', 0o120000: 'symlink'}[facts.st_mode & 0o170000]
def rename(old, new, flags):
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), 'renameat2')
def lists(path):
    return json.dumps([[name, kind(os.path.join(path, name), False)] for name in sorted(os.listdir(path), key=os.fsencode)])
def read(path):
    with open(path, 'rb', 0) as file: return file.read().decode(errors='replace')
calls = {
    'read': lambda path, text, number: read(path),
    'write': lambda path, text, number: store(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, text.encode()),
    'append': lambda path, text, number: store(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, text.encode()),
    'create': lambda path, text, number: store(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, text.encode()),
    'stage': lambda path, text, number: stage(path, text.encode()),
    'patch': lambda path, text, number: store(path, os.O_RDWR, text.encode(), number),
    'truncate': lambda path, text, number: os.truncate(path, number),
    'list': lambda path, text, number: lists(path),
    'stat': lambda path, text, number: kind(path, True),
    'readlink': lambda path, text, number: os.readlink(path),
    'mkdir': lambda path, text, number: os.mkdir(path),
    'rmdir': lambda path, text, number: os.rmdir(path),
    'unlink': lambda path, text, number: os.unlink(path),
    'rename': rename,
    'symlink': lambda path, text, number: os.symlink(text, path),
}
for line in sys.stdin:
    name, path, text, number = json.loads(line)
    try:
        said = calls[name](path or '.', text, number)
        answer = [True, 'changed' if said is None else said]
    except OSError as error: answer = [False, errno.errorcode[error.errno]]
    print(json.dumps(answer), flush=True)
"#;

/// A program in the mount.
struct Program {
    child: Child,
    calls: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(rig: &Rig<'_>) -> Self {
        let mut command = rig.command("python3", &["-c", PROGRAM]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { calls: child.stdin.take().unwrap(), answers, child }
    }

    fn call(&mut self, call: &Call) -> Answer {
        let Call { name, path, text, number } = call;
        writeln!(self.calls, "{}", json!([name, path.as_str(), text, number])).unwrap();
        let answer: (bool, String) =
            serde_json::from_str(&self.answers.next().unwrap().unwrap()).unwrap();
        match answer {
            (true, said) if *name == "list" => {
                let entries: Vec<(String, String)> = serde_json::from_str(&said).unwrap();
                Ok(entries.iter().map(|(name, kind)| format!("{name:?} {kind}\n")).collect())
            }
            (true, said) => Ok(said),
            // The model treats a loop of links as leading out.
            (false, error) if error == "ELOOP" => Err("EACCES".to_owned()),
            (false, error) => Err(error),
        }
    }

    fn end(self) {
        let Self { mut child, calls, .. } = self;
        drop(calls);
        assert!(child.wait().unwrap().success());
    }
}

/// Returns the recorded changes since a record: operation, path and new path.
fn changes(rig: &Rig<'_>, since: usize) -> (Vec<String>, usize) {
    let records = rig.records();
    let new = records.iter().skip(since);
    let made = |intent: &Value| {
        let is_of = |r: &&Value| r["kind"] == "outcome" && r["of"] == intent["seq"];
        new.clone().find(is_of).is_some_and(|outcome| outcome["result"] == "ok")
    };
    let intents = new.clone().filter(|r| r["kind"] == "intent" && made(r));
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let line = |r: &Value| [&r["op"], &r["path"], &r["to"]].map(word).join(" ");
    (intents.map(line).collect(), records.len())
}

/// Returns the equivalent request of another transport, if there is one.
fn request(call: &Call) -> Option<Box<dyn AsOperation>> {
    let path = call.path.clone();
    let content = call.text.clone().into_bytes();
    Some(match call.name {
        "read" => Box::new(Read { path, range: LineRange::default(), encoding: Encoding::Text }),
        "write" => Box::new(Write { path, content, mode: None }),
        "append" => Box::new(Append { path, content }),
        "list" => Box::new(List { path }),
        "stat" => Box::new(Stat { path }),
        "mkdir" => Box::new(Mkdir { path, recursive: false, mode: None }),
        "rmdir" | "unlink" => Box::new(Remove { path, recursive: false }),
        "rename" if call.number < 2 => {
            let to = WorkspacePath::parse(&call.text).unwrap();
            Box::new(Rename { from: path, to, replace: call.number == 0 })
        }
        _ => return None,
    })
}

/// Runs a sequence and counts its results.
fn sequence(seed: u64, results: &mut BTreeMap<String, u64>) {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    with(
        MODEL_POLICY,
        |_| {},
        |rig| {
            let root = rig.host(".");
            let mut tree = Tree::empty();
            let mut history: Vec<String> =
                (0..8).map(|_| plant(&root, &mut tree, &mut random)).collect();
            let (mut program, mut seen) = (Program::start(rig), 0);
            for _ in 0..LENGTH {
                if random.below(6) == 0 {
                    history.push(plant(&root, &mut tree, &mut random));
                }
                let call = random.call(&tree);
                history.push(format!("{call:?}"));
                let tell = || format!("seed {seed}:\n{}", history.join("\n"));
                let before = tree.clone();
                let (expected, made) = tree.call(&call);
                let got = program.call(&call);
                assert_eq!(got, expected, "{}\nin {before:#?}", tell());
                assert_eq!(on_disk(&root), tree.0, "{}\nin {before:#?}", tell());
                let (recorded, records) = changes(rig, seen);
                assert_eq!(recorded, made, "{}", tell());
                seen = records;
                // The other transports have the same result, unless they would be given an invisible
                // name to write through: the kernel follows links and names what is behind them.
                let is_asked = call.name != "rename" || !recorded.is_empty();
                let is_seen = recorded.is_empty() || !call.names_hidden();
                if let (Ok(said), Some(request), true) = (&got, request(&call), is_asked && is_seen)
                {
                    let mut other = before;
                    let answer = other.apply(request.as_operation());
                    assert_eq!(answer.as_ref(), Ok(said), "{}", tell());
                    assert_eq!(other, tree, "{}", tell());
                }
                let answer = got.map_or_else(|error| error, |_| "ok".to_owned());
                let name = if call.number == posix::EXCHANGE && call.name == "rename" {
                    "exchange"
                } else {
                    call.name
                };
                *results.entry(format!("{name} {answer}")).or_default() += 1;
            }
            program.end();
            rig.verify();
        },
    );
}

#[test]
fn a_program_in_the_mount_does_what_the_model_does() {
    let first = std::env::var("PORTCULLIS_TEST_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mut results = BTreeMap::new();
    for seed in 0..SEQUENCES * budget() {
        sequence(first + seed, &mut results);
    }
    for (call, answers) in [
        ("read", "ok ENOENT EISDIR"),
        ("write", "ok EISDIR EACCES"),
        ("append", "ok EISDIR"),
        ("create", "ok EEXIST EACCES"),
        ("stage", "ok EEXIST EACCES"),
        ("patch", "ok EISDIR"),
        ("truncate", "ok EISDIR"),
        ("list", "ok ENOENT ENOTDIR"),
        ("stat", "ok ENOENT"),
        ("readlink", "ok ENOENT EINVAL"),
        ("mkdir", "ok EEXIST EACCES"),
        ("rmdir", "ok ENOENT ENOTDIR"),
        ("unlink", "ok ENOENT EISDIR"),
        ("rename", "ok ENOENT"),
        ("exchange", "ok ENOENT"),
        ("symlink", "ok EEXIST EACCES"),
    ] {
        for answer in answers.split(' ') {
            let times = results.get(&format!("{call} {answer}")).copied().unwrap_or_default();
            assert!(times > 0, "`{call}` was never `{answer}`: {results:#?}");
        }
    }
}
