//! Limits of open files. A process may send a descriptor in a message as long as its
//! user has no more in flight than this process may have open: so agents get fewer
//! than the processes of Portcullis, and cannot keep those from sending.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most open files that this program asks for. Some programs that it starts walk
/// through all numbers that they could have.
const OWN: u64 = 524_288;
/// Most open files of an agent, and what it gets if only there are a little more.
const AGENT: u64 = 65_536;
const AGENT_LEAST: u64 = 4096;
/// The distance between the limit of an agent and that of the gate: two messages full of descriptors.
const RESERVE: u64 = 512;
/// With fewer files than that there is nothing to share.
const FEW: u64 = 1024;

/// Has this process, and those that it starts, open as many files as the system lets
/// it. Returns how many it could have before.
pub fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OWN).min(OWN);
    if limit.current.is_some_and(|current| current < most) {
        // With fewer it can do less.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
    limit.current
}

/// Gives this process the limits of an agent: `current`, and a maximum below that of
/// the gate if it is confined.
pub(super) fn set(current: Option<u64>, is_confined: bool) -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    if is_confined {
        limit.maximum = Some(of_agent(limit.maximum.unwrap_or(u64::MAX)));
    }
    limit.current = current.or(limit.current);
    if let Some(maximum) = limit.maximum {
        limit.current = Some(limit.current.unwrap_or(maximum).min(maximum));
    }
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// The maximum of an agent where the operator's is `maximum`.
fn of_agent(maximum: u64) -> u64 {
    if maximum < FEW {
        return maximum;
    }
    (maximum / 2).min(AGENT).max(maximum.saturating_sub(RESERVE).min(AGENT_LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_has_fewer_files_than_the_gate_and_enough() {
        let given = [64, 1024, 4096, 8192, 20_000, 524_288, 1 << 30, u64::MAX];
        let got = [64, 512, 3584, 4096, 10_000, AGENT, AGENT, AGENT];
        assert_eq!(given.map(of_agent), got);
    }
}
