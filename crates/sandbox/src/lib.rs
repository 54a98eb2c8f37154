//! Confinement: the agent's sandbox, the gateway process's own restrictions,
//! and the checks before either.
//!
//! The *broker* ([`SandboxSpec::launch`]) executes this binary again as the first of
//! three stages ([`Stage`]). The launcher leaves the host's namespaces. The
//! init builds the root directory of the sandbox and remains its process 1. The
//! last stage confines itself, tests its confinement, waits for the broker's
//! order and becomes the agent. The *gateway process* restricts itself with
//! [`restrict_gateway`].
//!
//! This crate decides no requests, parses neither policies nor an agent's
//! messages, and has no unsafe code: processes are made by executing this
//! binary again.

mod agent_programs;
mod broker;
mod built_sandbox;
mod capabilities;
mod cgroup;
mod channel;
mod command_starter;
mod commands;
mod confine;
mod descriptor_passing;
mod dispatch;
mod enter;
mod file_limit;
mod file_locations;
mod forwarder;
mod home;
mod init;
mod isolation;
mod landlock;
mod launch_error;
mod launcher;
mod layout;
mod limits;
mod loopback;
mod machine_keys;
mod messages;
mod mount;
mod mounts;
mod named_pipes;
mod probe;
mod process;
mod process_tree;
mod program;
mod program_files;
mod proxy;
mod pseudo_terminal;
mod random;
mod relay;
mod requirements;
mod resolve;
mod resolver;
mod root;
mod running_agent;
mod sandbox_socket;
mod seccomp;
mod self_test_sockets;
mod selftest;
mod sockets;
mod spec;
mod stage;
mod streams;
mod syscalls;
mod terminal;
mod trusted_paths;

pub use agent_programs::ProgramGrants;
pub use built_sandbox::{BuiltSandbox, PendingAgent};
pub use channel::{Channel, ChannelError, stream_pair, take_standard_streams};
pub use commands::{CommandEvent, CommandLine, Commands, Exit};
pub use confine::{
    ConfinementError, ConfinementReport, become_gateway, restrict_connector, restrict_front,
    restrict_gateway, restrict_gateway_beside, restrict_worker,
};
pub use descriptor_passing::refuse_descriptors;
pub use file_limit::raise_file_limit;
pub use forwarder::{Forwarded, Outputs, Stream};
pub use home::{HomeError, TemporaryHome, lock_homes, remove_tree, share_homes};
pub use isolation::{IsolationError, IsolationReport, UnreachablePaths};
pub use launch_error::LaunchError;
pub use layout::GrantError;
pub use limits::{EnforcedLimit, EnforcedLimits, Mechanism, ResourceLimits};
pub use mount::{Mount, NoMount};
pub use named_pipes::{
    ANNOUNCEMENTS, END, MAX_CLIENTS, NONCE, input as pipe_in, output as pipe_out,
};
pub use probe::{
    LandlockErratum, landlock_abi, landlock_flaws, namespace_advice, namespaces, system_call_filter,
};
pub use process::{
    RELOAD_SIGNAL, close_inherited, has_lost_first_thread, ignores_children, not_dumpable,
    outlive_size_limit, own_program, stop_signals, suspend, suspend_signal, unblock_signals,
    while_stoppable,
};
pub use program::{PROGRAM_COMMAND, Program, run_program};
pub use program_files::{ProgramError, interpreter_line};
pub use resolve::canonicalize_missing;
pub use resolver::ResolverFiles;
pub use running_agent::RunningAgent;
pub use sandbox_socket::Opened;
pub use sockets::{SocketTables, Sockets, UnconnectedSocket};
pub use spec::{
    DeniedGrant, Enforcement, GatewayAddress, Grant, Listener, Network, Probe, Report, SandboxSpec,
    StandardStreams, Workspace,
};
pub use stage::{STAGE_COMMAND, Stage};
pub use terminal::is_on_terminal;
pub use trusted_paths::{
    Access, AgentPath, SYSTEM_DIRECTORIES, TrustError, Trusted, TrustedPath, TrustedPaths,
    all_apart,
};
