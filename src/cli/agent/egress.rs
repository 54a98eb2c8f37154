//! The egress process and the connector, which stand between a sandbox and the network.
//!
//! The broker starts both and hands them their ends; the gateway process gets the other ones. Both
//! end with the broker, or when the gateway process closes its end.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    process::ExitCode,
    time::Duration,
};

use crate::{
    app::{
        failure::{Context as _, Failure},
        process::{self, Child},
    },
    egress::{run_connector, run_proxy},
    sandbox::{
        Channel, become_gate, refuse_descriptors, restrict_connector, restrict_front, stop_signals,
    },
};

/// The hidden words on the command line that make this process one or the other.
const PROXY_COMMAND: &str = "egress-process";
const CONNECTOR_COMMAND: &str = "connector-process";

/// The longest time that each may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The two processes of a sandbox; they are killed when this is dropped.
#[derive(Debug)]
pub(in crate::cli) struct Egress {
    _processes: [Child; 2],
}

/// The gateway process's ends: that of the egress process, and that of the connector.
pub(in crate::cli) type Links = [OwnedFd; 2];

impl Egress {
    /// Starts both, to serve what connects to `listener`.
    ///
    /// # Errors
    /// When one cannot be started or confined.
    pub(in crate::cli) fn start(listener: &OwnedFd) -> Result<(Self, Links), Failure> {
        let (proxy, proxy_link) = start(PROXY_COMMAND, Some(listener))?;
        // Who parses what an agent sends has no descriptors to hand on.
        refuse_descriptors(&proxy_link).or_fail("cannot start the egress process")?;
        let (connector, connector_link) = start(CONNECTOR_COMMAND, None)?;
        Ok((Self { _processes: [proxy, connector] }, [proxy_link, connector_link]))
    }
}

fn start(command: &str, listener: Option<&OwnedFd>) -> Result<(Child, OwnedFd), Failure> {
    const DOING: &str = "cannot start the egress process";
    let (child, control) = process::spawn_apart(command)?;
    let (link, theirs) = Channel::pair().or_fail(DOING)?;
    let descriptors: Vec<_> =
        [theirs.as_fd()].into_iter().chain(listener.map(OwnedFd::as_fd)).collect();
    control.send(&(), &descriptors).or_fail(DOING)?;
    let (confined, _) =
        control.receive_within::<Result<(), String>>(START_TIMEOUT).or_fail(DOING)?;
    confined.map_err(|why| Failure::new(format_args!("{DOING}: {why}")))?;
    Ok((child, link.into()))
}

/// Runs either process, if this one was started as it.
pub(crate) fn run_if_egress() -> Option<ExitCode> {
    process::run_if(PROXY_COMMAND, proxy).or_else(|| process::run_if(CONNECTOR_COMMAND, connector))
}

fn proxy(parent: u32) -> Result<(), Failure> {
    let [gateway, listener] = begin(parent, || restrict_front().map(drop))?;
    run_proxy(listener, gateway).or_fail("the egress process failed")
}

fn connector(parent: u32) -> Result<(), Failure> {
    let [gateway] = begin(parent, || restrict_connector().map(drop))?;
    run_connector(gateway).or_fail("the connector failed")
}

/// Takes what the broker hands over, and confines this process.
fn begin<const N: usize, E: std::fmt::Display>(
    parent: u32,
    confine: impl FnOnce() -> Result<(), E>,
) -> Result<[OwnedFd; N], Failure> {
    let control = become_gate(parent).or_fail("cannot start")?;
    // The broker and the gateway process say when to stop.
    let _signals = stop_signals().or_fail("cannot block signals")?;
    let ((), descriptors) = control.receive().or_fail("cannot start")?;
    let descriptors =
        descriptors.try_into().map_err(|_| Failure::new("the broker sent other descriptors"))?;
    let confined = confine().map_err(|error| error.to_string());
    control.send(&confined, &[]).or_fail("cannot answer the broker")?;
    confined.map_err(Failure::new)?;
    Ok(descriptors)
}
