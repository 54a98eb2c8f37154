//! Limits of open files. A process may send descriptors in messages only while its user has fewer
//! in flight than this process may have open. So agents get fewer than the processes of Portcullis,
//! and cannot keep those from sending.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Maximum of open files that this program asks for. Some programs that it starts iterate over all
/// possible descriptors.
const MAX_OWN_FILES: u64 = 524_288;
/// Maximum of open files of an agent, and the least that it gets where the limit is only a little
/// higher.
const MAX_AGENT_FILES: u64 = 65_536;
const MIN_AGENT_FILES: u64 = 4096;
/// Distance between the limit of an agent and that of the gateway process: two messages full of
/// descriptors.
const FILE_DISTANCE: u64 = 512;
/// Limit below which nothing is shared.
const MIN_SHARED_FILES: u64 = 1024;

/// Raises the limit of open files of this process, and of those that it starts, as far as the
/// system allows. Returns the previous limit.
pub fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(MAX_OWN_FILES).min(MAX_OWN_FILES);
    if limit.current.is_some_and(|current| current < most) {
        // A failure leaves the lower limit, which suffices for less work.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
    limit.current
}

/// Gives this process the limits of an agent: `current`, and a maximum below that of the gateway
/// process if it is confined.
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

/// Returns the maximum of an agent where the operator's is `maximum`.
fn of_agent(maximum: u64) -> u64 {
    if maximum < MIN_SHARED_FILES {
        return maximum;
    }
    (maximum / 2)
        .min(MAX_AGENT_FILES)
        .max(maximum.saturating_sub(FILE_DISTANCE).min(MIN_AGENT_FILES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_has_fewer_files_than_the_gateway_and_enough() {
        let given = [64, 1024, 4096, 8192, 20_000, 524_288, 1 << 30, u64::MAX];
        let got = [64, 512, 3584, 4096, 10_000, MAX_AGENT_FILES, MAX_AGENT_FILES, MAX_AGENT_FILES];
        assert_eq!(given.map(of_agent), got);
    }
}
