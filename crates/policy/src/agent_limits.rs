//! Resource limits on the programs of an agent: `[agent.limits]`. The sandbox enforces them. Of two
//! limits the smaller one applies, and a missing one sets no bound.

/// The limits on an agent's programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentLimits {
    /// Maximum bytes of memory, at least [`MIN_MEMORY`].
    pub memory: Option<u64>,
    /// Maximum number of processes and threads, at least 8; `None` stands for 4,096.
    pub processes: Option<u64>,
    /// Maximum number of processors, at least 1.
    pub cpu: Option<u64>,
}

/// Default maximum of processes and threads of an agent. Podman gives a container half as many, and
/// systemd gives a service 4,915 of the 32,768 that the smallest machines have in all. A build of
/// 256 jobs has about 1,000, a test runner with 32 workers of Node.js about 400.
const DEFAULT_PROCESSES: u64 = 4096;

/// Minimum memory with which programs start.
pub const MIN_MEMORY: u64 = 64 << 20;

/// The range of `processes`: from a program that starts a few to the maximum of Linux.
pub const PROCESSES: (u64, u64) = (8, 4_194_304);

/// The range of `cpu`.
pub const PROCESSORS: (u64, u64) = (1, 8192);

impl AgentLimits {
    /// Returns the maximum number of processes and threads.
    pub fn most_processes(&self) -> u64 {
        self.processes.unwrap_or(DEFAULT_PROCESSES)
    }

    /// Returns the smaller of both, limit by limit.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let least = |ours: Option<u64>, theirs: Option<u64>| ours.into_iter().chain(theirs).min();
        Self {
            memory: least(self.memory, other.memory),
            processes: least(self.processes, other.processes),
            cpu: least(self.cpu, other.cpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_limits_the_smaller_holds() {
        let ours = AgentLimits { memory: Some(5), processes: Some(7), cpu: None };
        let theirs = AgentLimits { memory: Some(9), processes: Some(3), cpu: Some(1) };
        let both = AgentLimits { memory: Some(5), processes: Some(3), cpu: Some(1) };
        assert_eq!(ours.and(theirs), both);
        assert_eq!(theirs.and(ours), both);
        assert_eq!(ours.and(AgentLimits::default()), ours);
    }
}
