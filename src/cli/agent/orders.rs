//! The broker's orders while the gateway serves: to stop, or to reload a policy. The
//! gateway cannot open policy files; it gets their texts, and compiles and tests them
//! before they replace the policy in force.

use std::{
    collections::BTreeMap,
    io::PipeReader,
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    gateway_process::Closable,
    protocol::{EgressRole, GatewayOrder},
};
use crate::{
    app::{
        bootstrap::Started,
        failure::{Context as _, Failure},
        policy_reload::Reloading,
        process::is_reload,
    },
    egress::Egress,
    sandbox::Channel,
};

/// The receiver of orders, with the state that they change.
pub(super) struct OrderReceiver<'a> {
    /// The workspace in which the program begins.
    pub(super) started: &'a Started,
    pub(super) channel: &'a Channel,
    pub(super) signals: &'a SignalFd,
    /// The policy reloads of the workspaces, in their order.
    pub(super) reloading: Vec<Reloading<'a>>,
    /// The agent's input, which is closed when the gateway must stop; `None` for a
    /// command, which gets the signals itself.
    pub(super) agent_in: Option<Closable>,
    /// The service of the sandbox's proxy, if it has one.
    pub(super) egress: Option<&'a Egress>,
    /// True until the agent's own programs begin.
    pub(super) setup: &'a AtomicBool,
}

impl OrderReceiver<'_> {
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
            match self.channel.receive::<GatewayOrder>() {
                Ok((GatewayOrder::Policy { workspace, hash, trigger }, _)) => {
                    let reloading = self.reloading.get(workspace);
                    if reloading.is_some_and(|reloading| !reloading.reload(hash, &trigger))
                        && trigger == "signal"
                    {
                        errln!("portcullis: the policy is the one in force");
                    }
                }
                Ok((GatewayOrder::NoPolicy { workspace, trigger, sha256, reason }, _)) => {
                    if let Some(reloading) = self.reloading.get(workspace) {
                        reloading.refuse(sha256.as_deref(), &reason, &trigger);
                    }
                }
                Ok((GatewayOrder::Egress { role, is_restarted }, links)) => {
                    if let Err(error) = self.replace(&role, is_restarted, links) {
                        let error = error.message();
                        tracing::error!(error, %role, "a process of egress is not served");
                    }
                }
                Ok((GatewayOrder::Callback { port }, answers)) => {
                    if let Err(error) = self.record_callback(port, answers) {
                        let error = error.message();
                        tracing::error!(error, port, "a port of a login is not opened");
                    }
                }
                Ok((GatewayOrder::Begin, answers)) => {
                    self.setup.store(false, Ordering::Release);
                    // A broker that has ended needs none.
                    let _ = answer(answers);
                }
                // An ended broker, or an invalid message, ends it.
                Ok((GatewayOrder::Stop, _)) | Err(_) => return self.stop(),
            }
        }
    }

    /// Records that a port leads to the login, and notifies the broker, which waits for that.
    fn record_callback(&self, port: u16, answers: Vec<OwnedFd>) -> Result<(), Failure> {
        let Started { gateway, session, .. } = self.started;
        let facts = BTreeMap::from([("port".to_owned(), port.into())]);
        gateway.note_durably(session, "callback", facts).or_fail("cannot record it")?;
        answer(answers)
    }

    /// Records that a process of egress ended, or is another one, and goes on with that. Without a
    /// record nothing goes on.
    fn replace(
        &self,
        role: &EgressRole,
        is_restarted: bool,
        mut links: Vec<OwnedFd>,
    ) -> Result<(), Failure> {
        let Some(egress) = self.egress else { return Ok(()) };
        egress.note(&role.name(), is_restarted).or_fail("cannot record it")?;
        let replaced = match (role, links.pop()) {
            (EgressRole::Connector, None) => {
                egress.lose_connector();
                Ok(())
            }
            (_, None) => Ok(()),
            (EgressRole::Proxy, Some(link)) => egress.replace(None, link),
            (EgressRole::Credential { id }, Some(link)) => egress.replace(Some(id), link),
            (EgressRole::Connector, Some(link)) => {
                links.push(link);
                egress.replace_connector(links)
            }
        };
        replaced.or_fail("cannot serve it")
    }
}

/// Answers the broker, which waits for that.
fn answer(answers: Vec<OwnedFd>) -> Result<(), Failure> {
    let answer = |answer| Channel::from(answer).send(&(), &[]);
    answers.into_iter().try_for_each(answer).or_fail("cannot answer the broker")
}
