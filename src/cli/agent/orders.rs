//! The broker's orders while the gateway serves: to stop, or to reload a policy. The
//! gateway cannot open policy files; it gets their texts, and compiles and tests them
//! before they replace the policy in force.

use std::{io::PipeReader, os::fd::AsFd as _};

use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};

use super::{gateway_process::Closable, protocol::Order};
use crate::{
    app::{policy_reload::Reloading, process::is_reload},
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
                // An ended broker, or an invalid message, ends it.
                Ok((Order::Stop, _)) | Err(_) => return self.stop(),
            }
        }
    }
}
