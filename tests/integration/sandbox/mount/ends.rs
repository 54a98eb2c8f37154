//! Who else gets into a mount, and what becomes of it when its server ends.

use std::{
    io::{BufRead as _, BufReader},
    time::Instant,
};

use super::*;

/// A program in the mount, as long as this is here.
struct Inside {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Inside {
    /// Starts a script by `exec`, which says `ready` first.
    fn start(place: &Place, script: &str) -> Self {
        let script = format!("echo ready; {script}");
        let args = ["exec", "--quiet", "--", "sh", "-c", &script];
        let mut child = place.limited(&args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        Self { child, lines }
    }

    /// The processes beneath it, each with its command line.
    fn processes(&self) -> Vec<(u32, String)> {
        let mut found = vec![(self.child.id(), String::new())];
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

    fn one(&self, words: &str) -> u32 {
        let processes = self.processes();
        // The last one is beneath the others.
        let found = processes.iter().rfind(|(_, line)| line.contains(words));
        found.unwrap_or_else(|| panic!("{words}: {processes:?}")).0
    }

    fn end(mut self) -> Ended {
        self.child.stdin.take();
        let rest: Vec<_> = self.lines.map(Result::unwrap).collect();
        let output = self.child.wait_with_output().unwrap();
        Ended {
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
fn only_the_gate_keeps_the_descriptor_and_nobody_outside_gets_in() {
    for who in users() {
        let place = Place::new(who);
        // Its process is the one whose input is open still.
        let inside = Inside::start(&place, "cat >/dev/null; cat file.txt");
        let gate = inside.one("gate-process");
        let program = inside.one("cat >/dev/null");
        if is_root() {
            for (pid, line) in inside.processes() {
                let least = usize::from(pid == gate);
                assert!((devices(pid) > 0) == (least > 0), "{who:?} {pid} {line}");
            }
            let path = format!("/proc/{program}/root{}", place.at("ws"));
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

#[test]
fn programs_do_not_hang_when_the_gate_is_killed() {
    for who in users() {
        let place = Place::new(who);
        let script = "while cat file.txt >/dev/null; do :; done; echo lost; ls . ; cd /; echo over";
        let inside = Inside::start(&place, script);
        let gate = inside.one("gate-process");
        std::thread::sleep(Duration::from_millis(200));
        let killed = Instant::now();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(i32::try_from(gate).unwrap()).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        let ended = inside.end();
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
        assert!(ended.stdout.contains("lost"), "{who:?} {ended:?}");
        assert!(ended.stderr.contains("Transport endpoint is not connected"), "{ended:?}");
        assert!(ended.stderr.contains("the gate failed"), "{who:?} {ended:?}");
        assert_ne!(ended.code, 0);
        assert_eq!(std::fs::read_to_string(place.at("ws/file.txt")).unwrap(), "secret\n");
    }
}

#[test]
fn nothing_is_left_when_the_broker_is_killed() {
    let place = Place::new(users()[0]);
    let inside = Inside::start(&place, "cat >/dev/null");
    let processes = inside.processes();
    let gate = inside.one("gate-process");
    let status = std::fs::read_to_string(format!("/proc/{gate}/status")).unwrap();
    let broker = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    let broker = rustix::process::Pid::from_raw(broker.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(broker, rustix::process::Signal::KILL).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
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
        let place = Place::mounted(who);
        let policy = place.at("policies/policy.toml");
        let script = "trap 'echo late >late.txt; exit 3' TERM; while :; do sleep 0.1; done";
        let args = ["run", "--policy", &policy, "--", "sh", "-c", script];
        let mut child = place.limited(&args).spawn().unwrap();
        // The editor goes at once.
        child.stdin.take();
        let gone = Instant::now();
        let ended = end(child);
        assert_eq!(ended.code, 3, "{who:?} {ended:?}");
        assert_eq!(std::fs::read_to_string(place.at("ws/late.txt")).unwrap(), "late\n");
        assert!(!ended.stderr.contains("still had the mount"), "{who:?} {ended:?}");
        assert!(gone.elapsed() < Duration::from_secs(15), "{:?}", gone.elapsed());
    }
}
