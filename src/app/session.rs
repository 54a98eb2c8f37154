//! The session of a process.

use super::failure::{Context as _, Failure};
use crate::{
    gateway::random_hex,
    model::{AgentName, Session, Transport},
};

/// Returns a new session of `agent` in this process.
pub(crate) fn session(agent: AgentName, transport: Transport) -> Result<Session, Failure> {
    Ok(Session { id: random_id()?, agent, user: user(), transport, acp: None })
}

/// Returns 128 random bits as 32 hex digits.
pub(crate) fn random_id() -> Result<String, Failure> {
    random_hex::<16>().or_fail("cannot get random bytes")
}

/// Returns the name of the user that runs this process, or the number if there is no
/// name.
pub(crate) fn user() -> String {
    let uid = nix::unistd::getuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}
