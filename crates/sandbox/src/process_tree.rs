//! The processes of a command: those of its process group and their descendants, as far as `/proc`
//! shows them.
//!
//! A process that left the group, and whose parent has ended, is not found any more; it ends with
//! the sandbox.

use std::{collections::HashSet, fs::File, io::Read as _};

use rustix::{
    fs::{Dir, Mode, OFlags, open},
    process::{Pid, Signal, kill_process, kill_process_group},
};

/// A process, with its parent and group.
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
}

/// Kills all processes of the command that `leader` leads. They are stopped first, so that none of
/// them forks meanwhile, or loses its parent.
pub(super) fn kill(leader: Pid) {
    let mut stopped = HashSet::new();
    loop {
        let members = members(leader);
        let fresh: Vec<_> = members.difference(&stopped).copied().collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            stopped.insert(pid);
            signal(pid, Signal::STOP);
        }
    }
    // Without `/proc` only the group is found. Processes that have ended need no signal.
    let _ = kill_process_group(leader, Signal::KILL);
    stopped.into_iter().for_each(|pid| signal(pid, Signal::KILL));
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // As above.
        let _ = kill_process(pid, signal);
    }
}

/// Returns the PIDs of the command's processes; the leader's PID is not reused until it is waited
/// for.
fn members(leader: Pid) -> HashSet<i32> {
    let leader = leader.as_raw_nonzero().get();
    let processes = processes();
    let mut members = HashSet::new();
    loop {
        let before = members.len();
        for Process { pid, parent, group } in &processes {
            if *pid == leader || *group == leader || members.contains(parent) {
                members.insert(*pid);
            }
        }
        if members.len() == before {
            return members;
        }
    }
}

fn processes() -> Vec<Process> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = open("/proc", flags, Mode::empty()) else { return Vec::new() };
    let Ok(entries) = Dir::new(directory) else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok());
    numbers.filter_map(look).collect()
}

/// Reads no `stat`: that waits for the end of an `execve(2)` in progress, which waits for a mount
/// where it closes files.
fn look(pid: i32) -> Option<Process> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = open(format!("/proc/{pid}/status"), flags, Mode::empty());
    let mut bytes = Vec::new();
    File::from(file.ok()?).read_to_end(&mut bytes).ok()?;
    // The program's name may contain any bytes but a line end.
    let status = String::from_utf8_lossy(&bytes);
    let field = |name| {
        let numbers = status.lines().find_map(|line| line.strip_prefix(name))?;
        numbers.split_ascii_whitespace().next()?.parse().ok()
    };
    Some(Process { pid, parent: field("PPid:")?, group: field("NSpgid:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_with_its_parent_and_group() {
        let own = i32::try_from(std::process::id()).unwrap();
        let found = look(own).unwrap();
        let parent = i32::try_from(std::os::unix::process::parent_id()).unwrap();
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        assert_eq!((found.pid, found.parent, found.group), (own, parent, group));
        assert!(members(Pid::from_raw(own).unwrap()).contains(&own));
    }
}
