//! A build in the mount while gateway, program or launcher are killed: files that the build was
//! told are stored are there, every file is of one version, and the next gateway repairs the state.
//! `PORTCULLIS_TEST_BUDGET` multiplies the number of rounds.

use std::{
    io::{BufRead as _, BufReader},
    time::Instant,
};

use super::*;
use crate::common::budget;

/// Kills of each kind, times the budget.
const ROUNDS: u64 = 2;
/// The files that the build makes, one after the other, again and again.
const FILES: u64 = 5;
const SIZE: usize = 20_000;
/// Time in which a gateway is killed that never seems to wait for a page.
const INVALIDATIONS: Duration = Duration::from_secs(6);

/// Prints the number of each version that is in its place.
const BUILD: &str = "n=$1; mkdir -p out; while :; do n=$((n + 1)); f=out/$((n % 5)); \
    yes $n | head -c 20000 >$f.new && mv $f.new $f && echo $n; done";

/// Has many reads of one file under way, which the gateway answers again each time.
const READERS: &str = "for i in 1 2 3 4 5 6; do \
    while dd if=big of=/dev/null bs=1M iflag=nocache; do :; done 2>/dev/null & done; \
    sleep 1; echo ready; wait";

#[derive(Debug, Clone, Copy)]
enum Victim {
    Gateway,
    Program,
    Launcher,
}

/// Runs a build that goes on after version `from` and is killed after a while; returns the last
/// version that it was told is stored.
fn round(world: &SandboxWorld, from: u64, victim: Victim, pause: Duration) -> u64 {
    let (policy, from) = (world.at("policies/policy.toml"), from.to_string());
    let args = ["exec", "--quiet", "--policy", &policy, "--", "sh", "-c", BUILD, "sh", &from];
    // Without its gateway the build complains again and again, and nobody reads it.
    let mut child = world.limited(&args).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last: u64 = lines.next().unwrap().unwrap().parse().unwrap();
    std::thread::sleep(pause);
    let processes = beneath(child.id());
    let identities = identities(&processes);
    let one = |words: &str| {
        let found = processes.iter().rfind(|(_, line)| line.contains(words));
        found.unwrap_or_else(|| panic!("{words}: {processes:?}")).0
    };
    let gateway = one("gateway-process");
    let killed = match victim {
        Victim::Gateway => gateway,
        // The first one: a program that it is about to start has the same command line.
        Victim::Program => {
            processes.iter().find(|(_, line)| line.starts_with("sh -c n=$1")).unwrap().0
        }
        Victim::Launcher => {
            let status = std::fs::read_to_string(format!("/proc/{gateway}/status")).unwrap();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
            parent.trim().parse().unwrap()
        }
    };
    kill(killed);
    for line in lines.map_while(Result::ok) {
        // The last line may be cut off.
        last = last.max(line.parse().unwrap_or(0));
    }
    drop(child.stdin.take());
    wait_for_end(child, &identities, victim);
    last
}

fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

/// Returns when a process began, in ticks since the machine's start; `None` if all of its threads have
/// ended.
fn start_time(process: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?.count();
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let has_ended = fields.next()? == "Z" && threads < 2;
    (!has_ended).then(|| fields.nth(18).map(str::to_owned))?
}

/// The number, start and command line of each process that has not ended. The number alone is another
/// process's soon: tests beside this one start all the processes that they can.
fn identities(processes: &[(u32, String)]) -> Vec<(u32, String, &str)> {
    let all = processes.iter();
    all.filter_map(|(pid, line)| Some((*pid, start_time(*pid)?, line.as_str()))).collect()
}

/// Waits until `child` and all `processes` beneath it have ended.
fn wait_for_end(mut child: Child, processes: &[(u32, String, &str)], victim: Victim) {
    let end = Instant::now() + Duration::from_secs(60);
    let is_alive = |(pid, start, _): &(u32, String, &str)| start_time(*pid).as_ref() == Some(start);
    while child.try_wait().unwrap().is_none() || processes.iter().any(is_alive) {
        let left: Vec<_> = processes.iter().filter(|process| is_alive(process)).collect();
        assert!(Instant::now() < end, "{victim:?}: {left:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Checks that each file is complete, and of the last stored version or a later one.
fn check(world: &SandboxWorld, last: u64, victim: Victim) {
    for version in last.saturating_sub(FILES - 1).max(1)..=last {
        let name = format!("ws/out/{}", version % FILES);
        let bytes = std::fs::read_to_string(world.at(&name)).unwrap();
        let found: u64 = bytes.lines().next().unwrap().parse().unwrap();
        let whole = format!("{found}\n").repeat(SIZE);
        assert!(
            found >= version && found % FILES == version % FILES,
            "{victim:?} {found} {version}"
        );
        assert!(bytes.len() == SIZE && whole.starts_with(&bytes), "{victim:?} {name} {found}");
    }
}

#[test]
fn a_build_whose_gateway_program_or_launcher_is_killed_loses_nothing() {
    let world = SandboxWorld::mounted(users()[0]);
    std::fs::write(world.at("outside.txt"), "outside\n").unwrap();
    let mut last = 0;
    for number in 0..ROUNDS * budget() {
        for victim in [Victim::Gateway, Victim::Program, Victim::Launcher] {
            let pause = Duration::from_millis(50 + number * 61 % 250);
            last = round(&world, last, victim, pause);
            check(&world, last, victim);
        }
    }
    // The next gateway settles the remains of the last one.
    let ended = world.exec(&[], "true");
    assert_eq!(ended.code, 0, "{ended:?}");
    let verified =
        end(world.command(&["audit", "verify", "--workspace", &world.at("ws")]).spawn().unwrap());
    assert_eq!(verified.code, 0, "{verified:?}");
    let find =
        Command::new("find").args([&world.at("ws"), "-name", ".portcullis*"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&find.stdout), "");
    assert_eq!(std::fs::read_to_string(world.at("outside.txt")).unwrap(), "outside\n");
    assert_eq!(std::fs::read_to_string(world.at("ws/hidden/file")).unwrap(), "hidden\n");
    let records = world.records();
    let answered: std::collections::BTreeSet<_> =
        records.iter().filter_map(|record| record["of"].as_u64()).collect();
    let is_open = |record: &&Value| {
        said(record, "kind") == "intent" && !answered.contains(&record["seq"].as_u64().unwrap())
    };
    let open: Vec<_> = records.iter().filter(is_open).collect();
    assert_eq!(open, Vec::<&Value>::new());
}

/// True if a thread of a process waits in the kernel for a page that another one has locked, as far as
/// this process may know.
fn waits_for_page(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    // A thread may end meanwhile.
    let mut waits = threads.into_iter().flatten().flatten().map(|thread| thread.path());
    waits.any(|thread| {
        let wait = std::fs::read_to_string(thread.join("wchan"));
        wait.is_ok_and(|wait| wait.contains("folio_lock"))
    })
}

#[test]
fn a_gateway_killed_while_it_invalidates_a_page_blocks_no_program() {
    let (policy, _) = POLICY.split_once("[secrets]").unwrap();
    for who in users() {
        let world = SandboxWorld::mounted(who);
        std::fs::write(world.at("ws/big"), vec![b'x'; 32 << 20]).unwrap();
        world.give_away_if(who != As::Root);
        let path = world.at("policies/policy.toml");
        let mut version = 1;
        for _ in 0..budget() {
            for victim in [Victim::Gateway, Victim::Launcher] {
                let args = ["exec", "--quiet", "--policy", &path, "--", "sh", "-c", READERS];
                let mut child = world.limited(&args).stderr(Stdio::null()).spawn().unwrap();
                let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
                assert_eq!(lines.next().unwrap().unwrap(), "ready");
                let processes = beneath(child.id());
                let identities = identities(&processes);
                let one = |words: &str| {
                    let found = processes.iter().find(|(_, line)| line.contains(words));
                    found.unwrap_or_else(|| panic!("{words}: {processes:?}")).0
                };
                let gateway = one("gateway-process");
                let end = Instant::now() + INVALIDATIONS;
                let mut next = Instant::now();
                while !waits_for_page(gateway) && Instant::now() < end {
                    // All pages are dropped when a changed policy is read.
                    if next <= Instant::now() {
                        version += 1;
                        let text = policy.replace("version = 1", &format!("version = {version}"));
                        std::fs::write(&path, text).unwrap();
                        next += Duration::from_secs(2);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                kill(match victim {
                    Victim::Launcher => one("portcullis exec "),
                    _ => gateway,
                });
                wait_for_end(child, &identities, victim);
            }
        }
    }
}
