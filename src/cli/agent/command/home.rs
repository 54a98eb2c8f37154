//! The home directory of a command. A named agent's persists; otherwise it is removed after the
//! command, because files that one command leaves there could be run by the next command with that
//! command's rights.

use std::{io, path::Path};

use crate::{
    app::{
        default_agents::EXEC,
        failure::{Context as _, Failure},
        session::random_id,
    },
    model::AgentName,
    sandbox::TemporaryHome,
};

/// A home directory. Dropping it removes a temporary one.
pub(super) struct Home {
    /// The last component of its path.
    name: AgentName,
    is_persistent: bool,
    temporary: Option<TemporaryHome>,
}

impl Home {
    /// Returns the home of the agent, if it is named, otherwise a new one.
    pub(super) fn of(agent: Option<&AgentName>) -> Result<Self, Failure> {
        let name = match agent {
            Some(agent) => agent.clone(),
            None => format!("{EXEC}.{}", random_id()?).parse().or_fail("cannot name a home")?,
        };
        Ok(Self { name, is_persistent: agent.is_some(), temporary: None })
    }

    pub(super) fn name(&self) -> &AgentName {
        &self.name
    }

    /// Creates and locks the home at `path` if it is temporary; removes homes that killed commands
    /// left.
    pub(super) fn prepare_at(&mut self, path: &Path) -> Result<(), Failure> {
        let homes = path.parent().unwrap_or(path);
        TemporaryHome::remove_abandoned(homes, |home, error| warn(home, &error))
            .or_fail(format_args!("cannot read the home directories in `{}`", homes.display()))?;
        if !self.is_persistent {
            let locked = TemporaryHome::lock(path);
            self.temporary = Some(locked.or_fail("cannot create the command's home directory")?);
        }
        Ok(())
    }
}

fn warn(home: &Path, error: &io::Error) {
    errln!(
        "portcullis: warning: cannot remove the home directory `{}` of a command that has ended: {error}",
        home.display()
    );
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take()
            && let Err(error) = temporary.remove()
        {
            warn(Path::new(self.name.as_str()), &error);
        }
    }
}
