//! The parties behind requests: those that the gateway knows, and those that programs claim to be.

use portcullis_audit::RecordView;
use serde_json::Value;

/// The party behind a request, within a session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Actor {
    /// A command, by the number of the record of its start.
    Command(u64),
    /// A process in the mount that belongs to no command.
    Process {
        /// Its process ID in the sandbox, as the kernel reports it.
        pid: u64,
        /// Its name, which the process sets itself.
        claims: Option<String>,
    },
    /// A client of this transport.
    Client(String),
    /// The setup of the sandbox, before the agent's programs begin.
    Setup,
    /// The gateway itself.
    Gateway,
}

impl Actor {
    /// Returns the party that a record names.
    pub(crate) fn of(record: &RecordView<'_>) -> Self {
        let fact = |name: &str| record.facts.as_ref()?.get(name);
        if fact("setup") == Some(&Value::Bool(true)) {
            return Self::Setup;
        }
        // In the record of a command's start the fact `command` is the list of arguments.
        if let Some(command) = fact("command").and_then(Value::as_u64) {
            return Self::Command(command);
        }
        let pid = fact("process").and_then(|process| process.get("pid")?.as_u64());
        match (pid, record.transport()) {
            (Some(pid), _) => {
                let claims = fact("process").and_then(|process| process.get("program")?.as_str());
                Self::Process { pid, claims: claims.map(str::to_owned) }
            }
            (None, Some(transport)) => Self::Client(transport.to_owned()),
            (None, None) => Self::Gateway,
        }
    }
}
