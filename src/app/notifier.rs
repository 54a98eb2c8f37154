//! The notifier: a process of the operator's that sends a notification when a request waits for an
//! approval.
//!
//! A gateway is confined and reaches neither network nor desktop. It sends the ids of the requests
//! that wait, and nothing else: they are random, and a notification has one of them and a number.
//! The URL and the program come from the operator's configuration.

mod delivery;
mod schedule;
#[cfg(feature = "webhooks")]
mod webhook;

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    executed_files::all_on_path,
    failure::{Context as _, Failure},
    process::{self, Child},
    trusted_paths::{first_of_operator, of_agents, served_agents},
};
use crate::{
    config::{
        Operator,
        approvals::{Notifications, Webhook},
    },
    sandbox::{
        AgentPath, Channel, ChannelError, Trusted, TrustedPaths, become_gateway, refuse_descriptors,
    },
};

use delivery::Delivery;
use schedule::Schedule;

/// The hidden argument that starts the process.
const COMMAND: &str = "notifier";
/// The program that shows notifications on a desktop.
const NOTIFY_SEND: &str = "notify-send";
/// The wait for a change where none is due.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The destinations of notifications.
#[derive(Debug, Serialize, Deserialize)]
struct NotifierOrder {
    /// The program that shows them, absolute.
    program: Option<PathBuf>,
    webhook: Option<Webhook>,
}

/// The requests that wait.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitingRequests {
    /// Their ids, the oldest first.
    ids: Vec<String>,
}

/// Finds the program that shows notifications on a desktop, if the configuration wants it: the first
/// in `PATH` that none of the `agents` can choose. It is looked up once, because an agent could make
/// another one later.
///
/// # Errors
/// When an agent could choose all that there are.
pub(crate) fn find(
    notifications: &Notifications,
    agents: Vec<AgentPath>,
) -> Result<Option<PathBuf>, Failure> {
    if !notifications.desktop {
        return Ok(None);
    }
    let agents = TrustedPaths { trusted: Vec::new(), agents };
    let found = all_on_path(NOTIFY_SEND.as_ref()).into_iter().filter(|path| path.is_absolute());
    first_of_operator(&Trusted::Notifier, found, &agents)
}

/// Returns what the notifier does.
fn order(notifications: &Notifications) -> Option<NotifierOrder> {
    let program = notifications.program.clone();
    if notifications.desktop && program.is_none() {
        errln!("portcullis: warning: there is no `{NOTIFY_SEND}`: no desktop notifications");
        errln!("  help: install it (libnotify), or remove `desktop` from `[approvals.notify]`");
    }
    let order = NotifierOrder { program, webhook: notifications.webhook.clone() };
    (order.program.is_some() || order.webhook.is_some()).then_some(order)
}

/// Starts the notifier, if the configuration wants notifications. The gateway gets the channel; the
/// process ends when the channel's other ends are closed, or with this process.
///
/// # Errors
/// When it does not start.
pub(crate) fn start(operator: &Operator) -> Result<Option<(Child, OwnedFd)>, Failure> {
    const DOING: &str = "cannot start the notifier";
    let notifications = &operator.notifications;
    let Some(order) = order(notifications) else { return Ok(None) };
    let (child, channel) = process::spawn_beside(COMMAND, operator.key_variables())?;
    channel.send(&order, &[]).or_fail(DOING)?;
    Ok(Some((child, channel.into())))
}

/// Sends one notification, to try the configuration.
///
/// # Errors
/// When something of the configuration is not there, and the first failure.
pub(crate) fn send_test(operator: &Operator, reference: &str) -> Result<(), String> {
    // No start has checked that no agent can choose it.
    let find = || {
        let here = of_agents(Path::new("."), &[])?.agents;
        find(&operator.notifications, [here, served_agents(operator)?].concat())
    };
    let program = find().map_err(|failure| failure.message().to_owned())?;
    let notifications = &Notifications { program, ..operator.notifications.clone() };
    let order = order(notifications).ok_or("there is no program or server that gets it")?;
    let is_missing = notifications.desktop && order.program.is_none();
    Delivery::new(order.program, order.webhook)?.send(reference, 1)?;
    if is_missing { Err(format!("to the desktop: there is no `{NOTIFY_SEND}`")) } else { Ok(()) }
}

/// The gateway's end.
#[derive(Debug)]
pub(crate) struct Notifier(Channel);

impl From<OwnedFd> for Notifier {
    fn from(channel: OwnedFd) -> Self {
        Self(channel.into())
    }
}

impl Notifier {
    /// Reports the requests that wait. Never blocks, and never fails a request: a message that is
    /// lost is repaired by the next one.
    pub(crate) fn report(&self, ids: Vec<String>) {
        let _ = self.0.send_now(&WaitingRequests { ids }, &[]);
    }
}

/// Runs the process, if this one was started as it.
pub(crate) fn run_if_notifier() -> Option<ExitCode> {
    process::run_if(COMMAND, run)
}

fn run(parent: u32) -> Result<(), Failure> {
    let channel = become_gateway(parent).or_fail("cannot start")?;
    let (NotifierOrder { program, webhook }, _) = channel.receive().or_fail("cannot start")?;
    refuse_descriptors(&channel).or_fail("cannot start")?;
    let mut delivery = match Delivery::new(program, webhook) {
        Ok(delivery) => delivery,
        Err(reason) => {
            return Err(Failure::new(format_args!("cannot send notifications: {reason}")));
        }
    };
    let mut schedule = Schedule::default();
    loop {
        let wait = schedule.due_in(Instant::now()).unwrap_or(IDLE_TIMEOUT);
        match channel.receive_within::<WaitingRequests>(wait) {
            Ok((WaitingRequests { ids }, _)) => schedule.set_waiting(ids),
            Err(ChannelError::Timeout) => {}
            Err(ChannelError::Closed) => return Ok(()),
            Err(error) => return Err(error).or_fail("the notifier cannot go on"),
        }
        if let Some((reference, count)) = schedule.take(Instant::now()) {
            delivery.deliver(&reference, count);
        }
    }
}
