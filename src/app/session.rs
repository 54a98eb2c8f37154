//! The session of a process.

use super::failure::{Context as _, Failure};
use crate::{
    gateway::random_hex,
    model::{AgentName, Door, Session},
};

/// A session of `agent` in this process.
pub(crate) fn session(agent: AgentName, door: Door) -> Result<Session, Failure> {
    Ok(Session { id: random_id()?, agent, user: user(), door })
}

/// 128 random bits, 32 hex digits.
pub(crate) fn random_id() -> Result<String, Failure> {
    random_hex::<16>().or_fail("cannot get random bytes")
}

/// The name of the user that runs this process, or the number when it has no
/// name.
pub(crate) fn user() -> String {
    let uid = nix::unistd::getuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}
