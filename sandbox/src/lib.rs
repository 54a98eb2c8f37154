//! Confinement: the agent's cell, the gate's own restrictions, and the checks
//! before either.
//!
//! The *broker* ([`Cell::launch`]) starts the binary anew as the first of
//! three stages ([`Stage`]): the launcher leaves the host's namespaces, the
//! init builds the cell's root directory and stays as its process 1, and the
//! last confines itself, tests that from inside, waits for the word and
//! becomes the agent. The *gate* restricts itself with [`restrict_gate`].
//!
//! This crate decides nothing about requests, reads no policy and no agent's
//! words, and contains no unsafe code: processes are made by executing this
//! binary again.

mod bait;
mod broker;
mod capabilities;
mod channel;
mod enter;
mod gate;
mod hatch;
mod hint;
mod home;
mod init;
mod landlock;
mod launcher;
mod layout;
mod mounts;
mod nesting;
mod overlap;
mod probe;
mod process;
mod reach;
mod requirements;
mod root;
mod seccomp;
mod selftest;
mod spec;
mod stage;
mod syscalls;

pub use broker::{LaunchError, PendingAgent, RunningAgent};
pub use channel::{Channel, ChannelError, stream_pair, take_standard_streams};
pub use gate::{
    GateAccess, GateError, GateReport, become_gate, restrict_front, restrict_gate, restrict_worker,
};
pub use hatch::{PROGRAM as HATCH_PROGRAM, SOCKET as HATCH_SOCKET};
pub use hint::ProgramError;
pub use home::HomeError;
pub use layout::GrantError;
pub use overlap::{OverlapError, Territory, all_apart};
pub use probe::{
    Flaw, landlock_abi, landlock_flaws, namespace_advice, namespaces, system_call_filter,
};
pub use process::{
    RELOAD_SIGNAL, STOP_SIGNALS, close_inherited, ignores_children, not_dumpable,
    outlive_size_limit, stop_signals,
};
pub use reach::{Apart, Outside, TooFar};
pub use spec::{Cell, Enforcement, Grant, Network, Probe, Report};
pub use stage::{CELL_COMMAND, Stage};
