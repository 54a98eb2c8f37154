//! The broker's orders while the gateway serves: to stop, or to reload a policy. The
//! gateway cannot open policy files; it gets their texts, and compiles and tests them
//! before they replace the policy in force.

use std::{
    io::PipeReader,
    os::fd::{AsFd as _, OwnedFd},
};

use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    gateway_process::Closable,
    protocol::{EgressRole, Order},
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        policy_reload::Reloading,
        process::is_reload,
    },
    egress::Egress,
    sandbox::Channel,
};

/// The receiver of orders, with the state that they change.
pub(super) struct Orders<'a> {
    pub(super) channel: &'a Channel,
    pub(super) signals: &'a SignalFd,
    /// The policy reloads of the workspaces, in their order.
    pub(super) reloading: Vec<Reloading<'a>>,
    /// The agent's input, which is closed when the gateway must stop; `None` for a
    /// command, which gets the signals itself.
    pub(super) agent_in: Option<Closable>,
    /// The service of the sandbox's proxy, if it has one.
    pub(super) egress: Option<&'a Egress>,
}

impl Orders<'_> {
    fn stop(&self) {
        if let Some(agent_in) = &self.agent_in {
            agent_in.close();
        }
    }

    /// Follows orders until the gateway must stop, which closes the agent's input, or
    /// until `done` is closed.
    pub(super) fn follow(&self, done: &PipeReader) {
        loop {
            let mut waiting = [
                PollFd::from_borrowed_fd(done.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN),
            ];
            match poll(&mut waiting, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return self.stop(),
            }
            let [ended, signalled, ordered] = waiting.map(|fd| !fd.revents().is_empty());
            if ended {
                return;
            }
            while signalled && let Ok(Some(signal)) = self.signals.read_signal() {
                // `SIGHUP` is for the broker, which then checks the policy.
                if self.agent_in.is_some() && !is_reload(&signal) {
                    return self.stop();
                }
            }
            if !ordered {
                continue;
            }
            match self.channel.receive::<Order>() {
                Ok((Order::Policy { workspace, hash, trigger }, _)) => {
                    let reloading = self.reloading.get(workspace);
                    if reloading.is_some_and(|reloading| !reloading.reload(hash, &trigger))
                        && trigger == "signal"
                    {
                        errln!("portcullis: the policy is the one in force");
                    }
                }
                Ok((Order::NoPolicy { workspace, trigger, sha256, why }, _)) => {
                    if let Some(reloading) = self.reloading.get(workspace) {
                        reloading.refuse(sha256.as_deref(), &why, &trigger);
                    }
                }
                Ok((Order::Egress { role, is_restarted }, links)) => {
                    if let Err(error) = self.replace(role, is_restarted, links) {
                        let (error, role) = (error.message(), role.name());
                        tracing::error!(error, role, "a process of egress is not served");
                    }
                }
                // An ended broker, or an invalid message, ends it.
                Ok((Order::Stop, _)) | Err(_) => return self.stop(),
            }
        }
    }

    /// Records that a process of egress ended, or is another one, and goes on with that. Without a
    /// record nothing goes on.
    fn replace(
        &self,
        role: EgressRole,
        is_restarted: bool,
        mut links: Vec<OwnedFd>,
    ) -> Result<(), Failure> {
        let Some(egress) = self.egress else { return Ok(()) };
        egress.note(role.name(), is_restarted).or_fail("cannot record it")?;
        // Without links it ended, and there is no other.
        match role {
            EgressRole::Proxy => links
                .pop()
                .map_or(Ok(()), |link| egress.replace_proxy(link).or_fail("cannot start a thread")),
            EgressRole::Connector => {
                if !links.is_empty() {
                    egress.replace_connector(links);
                }
                Ok(())
            }
        }
    }
}
