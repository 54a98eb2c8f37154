//! Lifetimes of the processes, and the messages that pass between editor and
//! agent.

use std::time::Instant;

use super::*;

#[test]
fn the_exit_code_is_the_agents() {
    for who in users() {
        let world = SandboxWorld::new(who);
        for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)] {
            let ended = world.run(&[], &["/bin/sh", "-c", script]);
            assert_eq!(ended.code, code, "{who:?} {script} {ended:?}");
        }
    }
}

/// Returns the processes of the host whose command line contains `mark`.
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
fn family(world: &SandboxWorld, options: &[&str], mark: &str) -> (Child, i32) {
    let script = format!(
        "trap '' TERM HUP; (setsid sleep {mark} &) ; sleep {mark} & \
         setsid sh -c 'sleep {mark} & sleep {mark}' & wait; sleep {mark}"
    );
    let child = world.start(options, &["/bin/sh", "-c", &script]);
    assert!(within(Duration::from_secs(60), || {
        marked(mark).iter().filter(|pid| command_line(**pid).starts_with("sleep")).count() == 4
    }));
    let broker = marked(mark)
        .into_iter()
        .find(|pid| children(*pid).iter().any(|c| command_line(*c).contains("gateway-process")))
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
        for victim in ["broker", "gateway-process", "launch", "init", "agent"] {
            number += 1;
            let mark = number.to_string();
            let world = SandboxWorld::new(who);
            let (mut child, broker) = family(&world, options, &mark);
            let below = |pid: i32, word: &str| {
                children(pid).into_iter().find(|c| command_line(*c).contains(word)).unwrap()
            };
            let launch = below(broker, "sandbox-stage launch");
            let init = below(launch, "sandbox-stage init");
            let gateway = below(broker, "gateway-process");
            let pid = match victim {
                "broker" => broker,
                "gateway-process" => gateway,
                "launch" => launch,
                "init" => init,
                _ => children(init)[0],
            };
            kill(pid, Signal::KILL);
            let gone = within(Duration::from_secs(60), || {
                marked(&mark).is_empty()
                    && [broker, launch, init, gateway].iter().all(|pid| {
                        let line = command_line(*pid);
                        !line.contains("portcullis") && !line.contains("sandbox-stage")
                    })
            });
            assert!(gone, "{who:?} {victim}: {:?}", marked(&mark));
            child.wait().unwrap();
        }
    }
}

/// They forked faster than they were killed one by one, and lived on after `run`.
#[test]
fn an_agent_that_forks_without_end_outlived_its_run() {
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    let mark = (600_000 + std::process::id() % 100_000).to_string();
    std::fs::create_dir(world.base().join("flags")).unwrap();
    world.give_away_if_root();
    let (flags, stop) = (world.at("flags"), world.at("flags/stop"));
    let scripts = tools().join("agent");
    let script = scripts.join("hostile.py");
    let options =
        ["--allow-partial", "--agent-read", &flags, "--agent-read", scripts.to_str().unwrap()];
    let agent = ["/usr/bin/python3", script.to_str().unwrap(), "forks", &stop, "200", &mark];
    let ended = world.run(&options, &agent);
    let left = marked(&mark);
    std::fs::write(&stop, "").unwrap();
    assert_eq!((ended.code, left), (3, Vec::new()), "{ended:?}");
}

#[test]
fn a_signal_to_the_broker_stops_everything_in_order() {
    use rustix::process::Signal;
    let world = SandboxWorld::new(users()[0]);
    // An agent that ends when its input closes is not killed. It waits for no other program when it
    // is to end: on a busy machine that could take longer than it has.
    for (agent, code) in [
        ("echo up >&2; while read line; do :; done; exit 3", 3),
        ("trap 'exit 4' TERM; sleep 1000 & echo up >&2; while :; do wait; done", 4),
    ] {
        for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
            let mut child = world.start(&[], &["/bin/sh", "-c", agent]);
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
    let world = SandboxWorld::new(users()[0]);
    let mark = (700_000 + std::process::id() % 100_000).to_string();
    let (mut child, broker) = family(&world, &[], &mark);
    let start = Instant::now();
    kill(broker, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert!(start.elapsed() < Duration::from_secs(60));
    assert!(marked(&mark).is_empty());
}

#[test]
fn messages_pass_between_editor_and_agent() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let answer = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}"#;
        let mut child = world.start(&[], &["/bin/sh", "-c", "read line; echo \"$0\"; cat", answer]);
        let mut stdin = child.stdin.take().unwrap();
        let question = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}"#;
        std::io::Write::write_all(&mut stdin, format!("{question}\n").as_bytes()).unwrap();
        // An editor that goes at once leaves the agent little time to start.
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut heard = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut heard).unwrap();
        drop(stdin);
        std::io::Read::read_to_string(&mut stdout, &mut heard).unwrap();
        let ended = end(child);
        assert_eq!((ended.code, heard.trim_end()), (0, answer), "{who:?} {ended:?}");
    }
}

#[test]
fn the_gateway_is_confined_too() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let mark = (900_000 + std::process::id() % 100_000).to_string();
        let (mut child, broker) = family(&world, &[], &mark);
        let gateway = children(broker)
            .into_iter()
            .find(|c| command_line(*c).contains("gateway-process"))
            .unwrap();
        let status = std::fs::read_to_string(format!("/proc/{gateway}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        assert_eq!(field("CapEff:"), "0000000000000000", "{who:?}");
        assert_eq!(field("CapPrm:"), "0000000000000000");
        assert_eq!(field("NoNewPrivs:"), "1");
        assert_eq!(field("Seccomp:"), "2");
        if is_root() {
            // It had all of the operator's, such as keys of copies of the log.
            let variables = std::fs::read_to_string(format!("/proc/{gateway}/environ")).unwrap();
            let names =
                variables.split_terminator('\0').map(|line| line.split('=').next().unwrap());
            let kept = |name: &str| name == "HOME" || name == "PATH" || name.starts_with("XDG_");
            assert!(names.clone().all(kept), "{variables}");
        }
        if is_root() && who == As::User {
            // Not even its own user reads its memory, environment or files.
            for name in ["mem", "environ", "root", "fd"] {
                let looked = Command::new("setpriv")
                    .args(["--reuid", USER, "--regid", USER, "--clear-groups", "ls", "-L"])
                    .arg(format!("/proc/{gateway}/{name}/"))
                    .output()
                    .unwrap();
                let read = Command::new("setpriv")
                    .args(["--reuid", USER, "--regid", USER, "--clear-groups", "cat"])
                    .arg(format!("/proc/{gateway}/{name}"))
                    .output()
                    .unwrap();
                assert!(!looked.status.success() && !read.status.success(), "{name}");
            }
        }
        kill(broker, rustix::process::Signal::KILL);
        child.wait().unwrap();
    }
}

#[test]
fn two_agents_do_not_see_each_other() {
    let world = SandboxWorld::new(users()[0]);
    let other = SandboxWorld::new(users()[0]);
    let mark = (800_000 + std::process::id() % 100_000).to_string();
    let (mut child, broker) = family(&world, &[], &mark);
    let ended = other.run(&[], &["/bin/sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' >&2"]);
    assert!(!ended.stderr.contains(&mark), "{ended:?}");
    kill(broker, rustix::process::Signal::KILL);
    child.wait().unwrap();
}
