//! The operator's standard streams under `portcullis exec`: the command reaches their content, and
//! nothing else of them.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _},
    net::{TcpListener, UdpSocket},
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Instant,
};

use rustix::{
    fs::{Mode, OFlags, fcntl_getfl, fstat, open},
    io::{ioctl_fionread, read},
    pipe::fcntl_setpipe_size,
    process::{Signal, kill_process},
};

use super::*;

/// Prints the types of the streams, and tries what a descriptor of the operator's would allow.
const ATTACK: &str = r#"
import fcntl, os, stat
def attempt(what):
    try: return what()
    except OSError as error: return error
read = lambda: os.read(os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK), 65536)
attempt(lambda: os.write(os.open('/proc/self/fd/0', os.O_WRONLY), b'injected\n'))
stolen = attempt(read)
for fd in 0, 1, 2:
    facts = os.fstat(fd)
    print(facts.st_ino if stat.S_ISFIFO(facts.st_mode) else 'no pipe', end=' ')
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
print(b'before' in stolen if isinstance(stolen, bytes) else False)
"#;

/// Two ends of a pipe or of a socket: the one to read, and the one to write.
fn ends(is_socket: bool) -> (OwnedFd, OwnedFd) {
    if is_socket {
        let (one, other) = UnixStream::pair().unwrap();
        return (one.into(), other.into());
    }
    let (reader, writer) = std::io::pipe().unwrap();
    (reader.into(), writer.into())
}

/// Pipes and sockets were passed on as they are: a command gave lines to the shell whose script it
/// ran in, read what its operator had written before, had writes fail after it, and connected a
/// socket to where it has no network.
#[test]
fn no_stream_of_the_operator_is_open_in_the_sandbox() {
    for (who, is_socket) in users().into_iter().flat_map(|who| [(who, false), (who, true)]) {
        let world = SandboxWorld::new(who);
        let (input, feeder) = ends(is_socket);
        let (output, sink) = ends(is_socket);
        let (errors, error_sink) = ends(is_socket);
        let (mut output, mut before) = (File::from(output), File::from(sink.try_clone().unwrap()));
        before.write_all(b"before\n").unwrap();
        let args = ["exec", "--quiet", "--", "/usr/bin/python3", "-S", "-c", ATTACK];
        let mut command = world.limited(&args);
        let shared = [&input, &sink, &error_sink].map(|fd| fd.try_clone().unwrap());
        command.stdin(input.try_clone().unwrap()).stdout(sink).stderr(error_sink);
        let mut child = command.spawn().unwrap();
        drop(command);
        let status = child.wait().unwrap();
        assert!(status.success(), "{who:?} {is_socket} {status}");
        for stream in &shared {
            assert!(!fcntl_getfl(stream).unwrap().contains(OFlags::NONBLOCK), "{who:?}");
        }
        let own = shared.each_ref().map(|fd| fstat(fd).unwrap().st_ino.to_string());
        drop((before, feeder, shared, errors));
        let mut rest = String::new();
        File::from(input).read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "{who:?} {is_socket}");
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        let said = text.strip_prefix("before\n").unwrap_or_else(|| panic!("{who:?} {text:?}"));
        let words: Vec<_> = said.split_whitespace().collect();
        assert!(words.len() == 4 && !words.contains(&"no"), "{who:?} {is_socket} {words:?}");
        assert!(own.iter().all(|inode| !words.contains(&inode.as_str())), "{words:?} {own:?}");
        assert_eq!(words[3], "False");
    }
}

#[test]
fn a_socket_that_is_no_connection_is_refused_as_a_stream() {
    let world = SandboxWorld::new(users()[0]);
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for (socket, kind) in [(OwnedFd::from(datagrams), "datagrams"), (listener.into(), "listening")]
    {
        let mut command = world.limited(&["exec", "--", "echo", "ran"]);
        command.stdin(socket);
        let ended = end(command.spawn().unwrap());
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{kind} {ended:?}");
        assert!(ended.stderr.contains(kind), "{kind} {ended:?}");
    }
}

/// `exec` reads no more input than this before the command asks for it.
#[test]
fn input_is_read_ahead_by_no_more_than_a_page() {
    let world = SandboxWorld::new(users()[0]);
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(&[b'x'; 100_000]).unwrap();
    for (count, most) in [(1, 4096), (10_000, 10_000 + 2 * 4096)] {
        input.rewind().unwrap();
        let script = format!("head -c {count} | wc -c; sleep 0.5");
        let mut command = world.limited(&["exec", "--quiet", "--", "sh", "-c", &script]);
        command.stdin(input.try_clone().unwrap());
        let ended = end(command.spawn().unwrap());
        assert_eq!((ended.code, ended.stdout.trim()), (0, count.to_string().as_str()));
        let taken = input.stream_position().unwrap();
        assert!((count..=most).contains(&taken), "{count} {taken}");
    }
}

/// A full disk was not noticed: the command and `exec` ended with 0.
#[test]
fn output_that_cannot_be_stored_is_told_and_gives_an_exit_code() {
    let world = SandboxWorld::new(users()[0]);
    for (options, script, code) in [
        (&["--quiet"][..], "echo lost", 1),
        (&["--json"], "echo lost", 1),
        (&[], "echo lost; exit 7", 7),
        (&["--quiet"], "true", 0),
    ] {
        let args = [&["exec"], options, &["--", "sh", "-c", script]].concat();
        let mut command = world.limited(&args);
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        let ended = end(command.spawn().unwrap());
        assert_eq!(ended.code, code, "{options:?} {ended:?}");
        let is_told = ended.stderr.contains("cannot write the command's standard output");
        assert_eq!(is_told, code != 0, "{options:?} {ended:?}");
    }
}

#[test]
fn a_command_hears_that_its_reader_has_gone() {
    let world = SandboxWorld::new(users()[0]);
    let mut child = world.limited(&["exec", "--quiet", "--", "yes"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 2]).unwrap();
    drop(stdout);
    let ended = end(child);
    assert_eq!(ended.code, 128 + 13, "{ended:?}");
}

/// Regression: while its output was not read, `exec` waited, and handled neither the timeout nor
/// signals.
#[test]
fn a_reader_that_stalls_keeps_neither_time_nor_signals_from_exec() {
    let world = SandboxWorld::new(users()[0]);
    let fifo = world.at("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // It stays open, and is not read.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let stalled = open(&fifo, flags, Mode::empty()).unwrap();
    let start = |args: &[&str]| {
        let mut command = world.limited(args);
        command.stdout(File::options().write(true).open(&fifo).unwrap());
        command.spawn().unwrap()
    };
    let child = start(&["exec", "--timeout", "1s", "--", "yes"]);
    let began = Instant::now();
    let ended = end(child);
    assert_eq!(ended.code, 124, "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    for told in ["longer than `--timeout`", "nobody read it in time", "no denials"] {
        assert!(ended.stderr.contains(told), "{told} {ended:?}");
    }

    let size = usize::try_from(ioctl_fionread(&stalled).unwrap()).unwrap();
    assert_eq!(read(&stalled, &mut vec![0; size][..]).unwrap(), size);
    let mut child = start(&["exec", "--quiet", "--", "yes"]);
    while ioctl_fionread(&stalled).unwrap() < 60_000 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let exec = exec_of(&child);
    kill_process(exec, Signal::TERM).unwrap();
    // The command has ended by now.
    std::thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().unwrap().is_none());
    ended_by_signals(&mut child, exec);
}

/// The command's output was written where the file ended before the gateway had written there.
#[test]
fn messages_of_the_gateway_are_not_written_over() {
    let rule = "\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\"]\npaths = [\"*.txt\"]\n";
    let world = SandboxWorld::mounted(users()[0]);
    std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{rule}")).unwrap();
    let script = "for n in 1 2 3; do echo x 2>/dev/null >asked-$n.txt; sleep 0.5; \
                  echo \"line $n ..............................\" >&2; done";
    let policy = world.at("policies/policy.toml");
    let args = ["exec", "--quiet", "--policy", &policy, "--", "sh", "-c", script];
    let mut command = world.limited(&args);
    command.stderr(File::create(world.at("errors")).unwrap());
    end(command.spawn().unwrap());
    let text = std::fs::read_to_string(world.at("errors")).unwrap();
    for n in 1..=3 {
        let own = format!("line {n} ..............................");
        assert!(text.lines().any(|line| line == own), "{text}");
        assert!(text.contains(&format!(" approval of write `asked-{n}.txt` by ")), "{text}");
    }
    assert_eq!(text.matches("  help: in another shell, `portcullis approve ").count(), 3, "{text}");
}

/// It was given up after a second.
#[test]
fn the_summary_waits_for_a_slow_reader() {
    let world = SandboxWorld::mounted(users()[0]);
    // The command's output leaves no room in the pipe.
    let script = "echo x >made; echo ready >&2; read go; head -c 4000 /dev/zero >&2";
    let policy = world.at("policies/policy.toml");
    let args = ["exec", "--policy", &policy, "--", "sh", "-c", script];
    let mut child = world.limited(&args).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    fcntl_setpipe_size(stderr.get_ref(), 4096).unwrap();
    let mut line = String::new();
    while line != "ready\n" {
        line.clear();
        stderr.read_line(&mut line).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    std::thread::sleep(Duration::from_secs(5));
    let mut text = Vec::new();
    stderr.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("  undo: portcullis undo"), "{}", text.replace('\0', ""));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A line that the command had not ended was the beginning of the summary.
#[test]
fn the_summary_begins_on_a_line_of_its_own() {
    let world = SandboxWorld::new(users()[0]);
    for (script, end) in [("printf '{} ' >&2", "{} "), ("echo '{}' >&2", "{}"), ("true", "")] {
        let ended = world.plain(&["--json"], script);
        let mut lines = ended.stderr.lines().rev();
        let summary: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert_eq!(summary["exitCode"], 0, "{ended:?}");
        let before = lines.next().unwrap();
        assert!(before == end || end.is_empty() && !before.is_empty(), "{ended:?}");
        let ended = world.plain(&[], script);
        assert!(ended.stderr.lines().any(|l| l.starts_with("portcullis: no changes")), "{ended:?}");
    }
}

#[test]
fn a_summary_that_nobody_gets_gives_an_exit_code() {
    let world = SandboxWorld::new(users()[0]);
    for (options, script, code) in [
        (&[][..], "true", 1),
        (&["--json"], "true", 1),
        (&["--json"], "exit 7", 7),
        (&["--quiet"], "true", 0),
    ] {
        let args = [&["exec"], options, &["--", "sh", "-c", script]].concat();
        let mut child = world.limited(&args).spawn().unwrap();
        drop(child.stderr.take());
        let ended = end(child);
        assert_eq!(ended.code, code, "{options:?} {script} {ended:?}");
    }
}
