//! The home directory of a command: of a named agent it is kept, and else it goes with the
//! command, or what one command leaves there would run in the next, with what that is granted.

use std::path::{Path, PathBuf};

use super::AGENT;
use crate::{
    app::{
        failure::{Context as _, Failure},
        session::random_id,
    },
    model::AgentName,
    sandbox::remove_home,
};

/// A home directory. Dropping it removes one that is not kept.
pub(super) struct Home {
    /// The last component of its path.
    name: AgentName,
    is_kept: bool,
    path: Option<PathBuf>,
}

impl Home {
    /// The home of the agent, if it was named, and else a new one.
    pub(super) fn of(agent: Option<&AgentName>) -> Result<Self, Failure> {
        let name = match agent {
            Some(agent) => agent.clone(),
            None => format!("{AGENT}.{}", random_id()?).parse().or_fail("cannot name a home")?,
        };
        Ok(Self { name, is_kept: agent.is_some(), path: None })
    }

    pub(super) fn name(&self) -> &AgentName {
        &self.name
    }

    /// It may be there from now on.
    pub(super) fn is_at(&mut self, path: &Path) {
        self.path = Some(path.to_owned());
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let Some(path) = self.path.take().filter(|_| !self.is_kept) else { return };
        match remove_home(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => errln!(
                "portcullis: warning: cannot remove the command's home directory `{}`: {error}",
                path.display()
            ),
            _ => {}
        }
    }
}
