//! Code shared by the commands that start a program in a sandbox with a gateway beside it:
//! options, the processes, and the messages between them.

pub(super) mod agent_config;
mod agent_limits;
pub(super) mod callback;
pub(super) mod command;
mod commands;
pub(super) mod credentials;
pub(super) mod egress;
pub(super) mod gateway_process;
mod gateway_start;
pub(super) mod operator_terminal;
pub(super) mod options;
mod orders;
pub(super) mod policy_watch;
pub(super) mod protocol;
pub(super) mod repository;
pub(super) mod start;
pub(super) mod supervisor;
pub(super) mod workspaces;

pub(crate) use egress::run_if_egress;
pub(crate) use gateway_process::run_if_gateway;
