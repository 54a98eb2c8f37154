//! Who asks, and through which door.

use std::{fmt, str::FromStr};

/// The name under which a policy and the log know an agent: 1 to 64 ASCII
/// letters, digits, `.`, `_`, `-` or `@`, not starting with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentName(String);

/// A text is not an [`AgentName`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an agent name is 1 to 64 letters, digits, `.`, `_`, `-` or `@`, and does not start with a dot"
)]
pub struct AgentNameError;

impl AgentName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a name can have this text in it.
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

/// Through which door a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Door {
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
    /// The service itself, in records of no agent's.
    Serve,
}

impl Door {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Cli, Self::Acp, Self::Mcp, Self::Files, Self::Mount, Self::Proxy, Self::Serve];

    /// The word in the log.
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

/// One agent's visit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Random, unique among the sessions of a log; 32 hex digits.
    pub id: String,
    /// The agent's name.
    pub agent: AgentName,
    /// The operating system user on whose behalf the gate runs.
    pub user: String,
    /// The door.
    pub door: Door,
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
