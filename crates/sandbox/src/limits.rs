//! Limits on the resources that the programs of a sandbox use: memory, processes and processors.
//!
//! A cgroup bounds all of them together where one can be made ([`Cgroup`](super::cgroup::Cgroup)).
//! Resource limits apply everywhere: `RLIMIT_NPROC`, which the kernel counts by user and user
//! namespace, and `RLIMIT_DATA`, which bounds each process. The system call filter refuses changes
//! of the processors.

use std::{io, thread};

use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use serde::{Deserialize, Serialize};

/// The processes of the sandbox itself that count besides: the init. Where the first stage has the
/// agent's user, it counts too, which leaves the agent one less.
const OWN_PROCESSES: u64 = 1;

/// Limits on the resources that the programs of a sandbox use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: u64,
    /// True if the sandbox must not be made where their number cannot be enforced: the operator
    /// asked for it.
    pub needs_processes: bool,
    /// Processors.
    pub cpu: Option<u64>,
}

impl ResourceLimits {
    /// Lowers the default number of processes to half of those that the operator may have: the
    /// processes in a user's namespaces count as the user's, too.
    fn beside_the_operators(self) -> Self {
        let operators = getrlimit(Resource::Nproc).current.filter(|_| !self.needs_processes);
        Self { processes: self.processes.min(operators.map_or(u64::MAX, |most| most / 2)), ..self }
    }

    /// Returns the maximum of processes and threads, with those of the sandbox itself.
    pub(super) fn all_processes(&self) -> u64 {
        self.processes.saturating_add(OWN_PROCESSES)
    }
}

/// The controllers by which a cgroup enforces limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Controllers {
    pub(super) memory: bool,
    pub(super) pids: bool,
}

/// A part of the kernel that enforces a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// A cgroup, on all processes of the sandbox together.
    Cgroup,
    /// A resource limit.
    Rlimit,
    /// The CPU affinity.
    Affinity,
}

/// A limit in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcedLimit {
    /// The limit.
    pub max: u64,
    /// The part of the kernel that enforces it.
    pub by: Mechanism,
}

/// The limits in force.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcedLimits {
    /// Bytes of memory: of all processes together by a cgroup, of each by a resource limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<EnforcedLimit>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<EnforcedLimit>,
    /// Processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<EnforcedLimit>,
}

/// A limit that was asked for cannot be enforced.
#[derive(Debug, thiserror::Error)]
pub(super) enum LimitError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nothing counts the agent's processes.
    #[error(
        "{0}, and no cgroup can be made; start it as another user, or where a cgroup is delegated \
         (docs/agents.md, \"Limits\")"
    )]
    Processes(&'static str),
}

/// Puts the limits in force for this process, which has the agent's user, and its descendants.
/// Processors are taken from number `first_processor` on.
pub(super) fn enforce(
    limits: &ResourceLimits,
    cgroup: Controllers,
    first_processor: usize,
) -> Result<EnforcedLimits, LimitError> {
    let mut enforced = EnforcedLimits::default();
    if let Some(max) = limits.cpu {
        keep_to(max, first_processor)?;
        enforced.cpu = Some(EnforcedLimit { max, by: Mechanism::Affinity });
    }
    let limits = limits.beside_the_operators();
    let counted = count_processes(limits.all_processes())?;
    let by = match (cgroup.pids, counted) {
        (true, _) => Some(Mechanism::Cgroup),
        (false, Ok(())) => Some(Mechanism::Rlimit),
        (false, Err(reason)) if limits.needs_processes => {
            return Err(LimitError::Processes(reason));
        }
        (false, Err(_)) => None,
    };
    enforced.processes = by.map(|by| EnforcedLimit { max: limits.processes, by });
    if let Some(max) = limits.memory {
        if !cgroup.memory {
            lower(Resource::Data, max)?;
        }
        let by = if cgroup.memory { Mechanism::Cgroup } else { Mechanism::Rlimit };
        enforced.memory = Some(EnforcedLimit { max, by });
    }
    Ok(enforced)
}

/// Has the kernel limit processes and threads to `most`, and tests that. If it does not, or the
/// limit is reached already, the previous limit is restored and the reason is returned.
fn count_processes(most: u64) -> io::Result<Result<(), &'static str>> {
    let before = getrlimit(Resource::Nproc);
    let most = most.min(before.current.unwrap_or(u64::MAX));
    let current = |most| setrlimit(Resource::Nproc, Rlimit { current: Some(most), ..before });
    current(1)?;
    let is_refused = !starts_a_thread();
    current(most)?;
    let reason = match (is_refused, starts_a_thread()) {
        (true, true) => {
            setrlimit(Resource::Nproc, Rlimit { current: Some(most), maximum: Some(most) })?;
            return Ok(Ok(()));
        }
        (true, false) => "the agent's user has as many processes already",
        (false, _) => "the kernel does not count the processes of root",
    };
    setrlimit(Resource::Nproc, before)?;
    Ok(Err(reason))
}

fn starts_a_thread() -> bool {
    thread::Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok())
}

fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = Some(most.min(getrlimit(resource).maximum.unwrap_or(u64::MAX)));
    Ok(setrlimit(resource, Rlimit { current: most, maximum: most })?)
}

/// Restricts this process to `most` of its processors, or to all that it has.
fn keep_to(most: u64, first: usize) -> io::Result<()> {
    let own = sched_getaffinity(None)?;
    let own: Vec<_> = (0..CpuSet::MAX_CPU).filter(|number| own.is_set(*number)).collect();
    let count = usize::try_from(most).unwrap_or(usize::MAX).min(own.len());
    let first = first.checked_rem(own.len()).unwrap_or(0);
    let mut allowed = CpuSet::new();
    for number in own.iter().cycle().skip(first).take(count) {
        allowed.set(*number);
    }
    Ok(sched_setaffinity(None, &allowed)?)
}
