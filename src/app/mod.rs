//! Code shared by commands: state directory, policy loading, serving processes, messages.
//!
//! A command imports from here, never from another command.

#[macro_use]
pub(crate) mod output;

pub(crate) mod agent_sandbox;
pub(crate) mod approval_socket;
pub(crate) mod audit_log;
pub(crate) mod bootstrap;
pub(crate) mod connection_help;
pub(crate) mod connection_notices;
pub(crate) mod default_agents;
mod executed_files;
pub(crate) mod failure;
pub(crate) mod git;
pub(crate) mod housekeeping;
pub(crate) mod launch;
pub(crate) mod logging;
pub(crate) mod mount;
pub(crate) mod new_file;
pub(crate) mod notifier;
pub(crate) mod opened;
pub(crate) mod options;
pub(crate) mod pager;
pub(crate) mod path_argument;
pub(crate) mod policy_loading;
pub(crate) mod policy_reload;
pub(crate) mod policy_rollback;
pub(crate) mod policy_texts;
pub(crate) mod policy_transfer;
pub(crate) mod preset_hosts;
pub(crate) mod presets;
pub(crate) mod process;
pub(crate) mod record_time;
pub(crate) mod running_gateways;
pub(crate) mod scratch;
pub(crate) mod secret_key;
pub(crate) mod service_check;
pub(crate) mod session;
pub(crate) mod ship;
pub(crate) mod signer;
pub(crate) mod state_directory;
pub(crate) mod state_owner;
pub(crate) mod stderr;
pub(crate) mod token;
pub(crate) mod trusted_paths;
pub(crate) mod workspace;
