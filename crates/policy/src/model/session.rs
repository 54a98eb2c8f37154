//! Sessions: the agents of requests, and the transports.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// The name of an agent in policies and the log: 1 to 64 ASCII letters, digits, `.`, `_`, `-` or
/// `@`, not starting with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentName(String);

/// The text is not an [`AgentName`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an agent name is 1 to 64 letters, digits, `.`, `_`, `-` or `@`, and does not start with a dot"
)]
pub struct AgentNameError;

impl AgentName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if a name can contain this text.
    pub(crate) fn is_part(text: &str) -> bool {
        text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@'))
    }
}

impl FromStr for AgentName {
    type Err = AgentNameError;

    fn from_str(text: &str) -> Result<Self, AgentNameError> {
        if text.is_empty() || text.len() > 64 || text.starts_with('.') || !Self::is_part(text) {
            return Err(AgentNameError);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The transport of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// `portcullis fs` and `portcullis backup`.
    Cli,
    /// The Agent Client Protocol.
    Acp,
    /// The Model Context Protocol.
    Mcp,
    /// The `files` channel over a WebSocket.
    Files,
    /// The file system in an agent's sandbox.
    Mount,
    /// The proxy by which programs in an agent's sandbox connect to hosts.
    Proxy,
    /// The service itself, in records that belong to no agent.
    Serve,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Cli, Self::Acp, Self::Mcp, Self::Files, Self::Mount, Self::Proxy, Self::Serve];

    /// Returns the name in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cli => "cli",
            Self::Acp => "acp",
            Self::Mcp => "mcp",
            Self::Files => "files",
            Self::Mount => "mount",
            Self::Proxy => "proxy",
            Self::Serve => "serve",
        }
    }
}

/// The session of one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The ID by which limits and approvals are kept: random, unique among the sessions of a log;
    /// 32 hex digits.
    pub id: String,
    /// The agent's name.
    pub agent: AgentName,
    /// The system user that the gateway serves.
    pub user: String,
    /// The transport.
    pub transport: Transport,
    /// The ACP session that it is, if it is one.
    pub acp: Option<Arc<AcpSession>>,
}

impl Session {
    /// Returns the ID that its records have: an ACP session has that of its run.
    pub fn recorded_id(&self) -> &str {
        self.acp.as_ref().map_or(&self.id, |acp| &acp.run)
    }
}

/// An ACP session, as the records of its requests name it.
#[derive(Debug)]
pub struct AcpSession {
    /// The ID of the run's session.
    run: String,
    id: Arc<OnceLock<String>>,
    /// The tool call that the agent says is in progress in it.
    pub tool_call: ClaimedToolCall,
}

impl AcpSession {
    /// Makes one of the run whose session has the ID `run`.
    pub fn new(run: &str) -> Arc<Self> {
        let (id, tool_call) = Default::default();
        Arc::new(Self { run: run.to_owned(), id, tool_call })
    }

    /// Returns the same session without a tool call, for a part of it that has its own.
    pub fn without_tool_call(&self) -> Arc<Self> {
        let (run, id) = (self.run.clone(), Arc::clone(&self.id));
        Arc::new(Self { run, id, tool_call: ClaimedToolCall::default() })
    }

    /// Returns the ID in ACP, once the agent has given it one.
    pub fn id(&self) -> Option<&str> {
        self.id.get().map(String::as_str)
    }

    /// Sets the ID in ACP; the first one counts.
    pub fn set_id(&self, id: String) {
        let _ = self.id.set(id);
    }
}

impl PartialEq for AcpSession {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for AcpSession {}

/// The ACP tool call that an agent says is in progress. It is a claim: no decision depends on it.
#[derive(Debug, Default)]
pub struct ClaimedToolCall(Mutex<Option<Arc<str>>>);

impl ClaimedToolCall {
    /// Sets its ID.
    pub fn set(&self, id: Option<Arc<str>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// Returns its ID, if there is one.
    pub fn get(&self) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_names_cannot_forge_a_path_or_a_line() {
        for bad in ["", ".hidden", "a/b", "a b", "a\n", "é", &"x".repeat(65)] {
            assert_eq!(bad.parse::<AgentName>(), Err(AgentNameError), "{bad:?}");
        }
        assert_eq!("fast-agent@1.2".parse::<AgentName>().unwrap().as_str(), "fast-agent@1.2");
    }
}
