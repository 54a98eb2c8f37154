//! The front's process: confined before it has a second thread, then an HTTP server.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    process::ExitCode,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use portcullis_rpc::lock;
use tokio::sync::{mpsc, oneshot};

use super::messages::{
    FromFront, FrontRequest, FrontStart, StreamProtocol, ToFront, WorkspaceAnswer,
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        logging, process,
    },
    model::Transport,
    sandbox::{Channel, IsolationReport, become_gateway, restrict_front, stop_signals},
    serve::{
        BrokerNotice, BrokerReply, BrokerRequest, BrokerRequestKind, Caller, Front, Listener,
        OpenError, Questions,
    },
};

/// The hidden first argument that makes this process a front.
const COMMAND: &str = "front-process";
/// Timeout for connections to end when the service stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<BrokerReply, OpenError>>>>>;

/// Runs the front, if this process was started as one.
pub(crate) fn run_if_front() -> Option<ExitCode> {
    process::run_if(COMMAND, run)
}

/// Starts a front.
pub(super) fn spawn() -> Result<(process::Child, Channel), Failure> {
    process::spawn(COMMAND)
}

fn run(parent: u32) -> Result<(), Failure> {
    let channel = become_gateway(parent).or_fail("cannot start the front")?;
    // The broker orders the stop.
    let _signals = stop_signals().or_fail("cannot block signals")?;
    let (ToFront::Start(start), sockets) =
        channel.receive::<ToFront>().or_fail("cannot start the front")?
    else {
        return Err(Failure::new("the broker began with something else"));
    };
    let (front, questions) = Front::new(start.guard.clone().into(), start.limits());
    let ready = confine(&start).and_then(|found| {
        if let Some(pem) = &start.tls {
            front.set_tls(&pem.certificate, &pem.key).map_err(Failure::new)?;
        }
        Ok(found)
    });
    match ready {
        Ok((apart, dropped_capabilities)) => channel
            .send(&FromFront::Ready { apart, dropped_capabilities }, &[])
            .or_fail("cannot answer the broker")?,
        Err(failure) => {
            let reason = failure.message().to_owned();
            return channel
                .send(&FromFront::Failed { reason }, &[])
                .or_fail("cannot answer the broker");
        }
    }
    logging::start_on_stderr(&start.log)?;
    // Until then connections wait in the kernel's queue.
    let (ToFront::Serve, _) = channel.receive::<ToFront>().or_fail("the service did not start")?
    else {
        return Err(Failure::new("the broker sent an unexpected message"));
    };
    serve(&start.tcp, sockets, &front, questions, channel)
}

fn confine(start: &FrontStart) -> Result<(IsolationReport, bool), Failure> {
    let looked = start.unreachable.before().map_err(Failure::new)?;
    let report = restrict_front().or_fail("cannot confine the front")?;
    let apart = looked.after().map_err(Failure::new)?;
    Ok((apart, report.dropped_capabilities))
}

fn serve(
    tcp: &[bool],
    sockets: Vec<OwnedFd>,
    front: &Arc<Front>,
    questions: Questions,
    channel: Channel,
) -> Result<(), Failure> {
    let listeners = tcp.iter().zip(sockets);
    let listeners =
        listeners.map(|(tcp, fd)| if *tcp { Listener::Tcp(fd) } else { Listener::Unix(fd) });
    let channel = Arc::new(channel);
    let waiting = Waiting::default();
    let (asker, put) = (Arc::clone(&channel), Arc::clone(&waiting));
    let Questions { asks, told } = questions;
    let tell = Arc::clone(&channel);
    in_thread("front-asks", move || ask(asks, &asker, &put))?;
    in_thread("front-tells", move || report(told, &tell))?;
    let last = Arc::clone(&channel);
    let hears = Arc::clone(front);
    in_thread("front-hears", move || hear(&channel, &waiting, &hears))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .or_fail("cannot start the front")?;
    runtime.block_on(front.serve(listeners.collect(), STOP_TIMEOUT)).or_fail("cannot serve")?;
    runtime.shutdown_background();
    for BrokerNotice::Throttled { peer, attempts } in front.unreported() {
        let message = FromFront::Throttled { peer: peer.to_string(), attempts };
        last.send(&message, &[]).or_fail("cannot tell the broker")?;
    }
    Ok(())
}

fn in_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
        .or_fail("cannot start a thread")
}

/// Sends requests to the broker.
fn ask(mut asks: mpsc::Receiver<BrokerRequest>, channel: &Channel, waiting: &Waiting) {
    let mut number = 0;
    while let Some(BrokerRequest { caller, request, reply }) = asks.blocking_recv() {
        if reply.is_closed() {
            continue;
        }
        number += 1;
        let Some(message) = broker_message(number, caller, request) else { continue };
        lock(waiting).insert(number, reply);
        if let Err(error) = channel.send(&message, &[]) {
            tracing::error!(%error, "the broker cannot be asked");
            lock(waiting).remove(&number);
        }
    }
}

/// Converts a request to a message; `None` if it needs a caller and has none.
fn broker_message(
    number: u64,
    caller: Option<Caller>,
    request: BrokerRequestKind,
) -> Option<FromFront> {
    let request = match request {
        BrokerRequestKind::Session { workspace, transport } => {
            let transport = if transport == Transport::Files {
                StreamProtocol::Files
            } else {
                StreamProtocol::Mcp
            };
            // A longer name cannot exist, and is not sent as a whole.
            let workspace = workspace.chars().take(128).collect();
            FrontRequest::Session { workspace, transport }
        }
        BrokerRequestKind::Workspaces => FrontRequest::Workspaces,
        BrokerRequestKind::Metrics => FrontRequest::Metrics,
        BrokerRequestKind::Ready => return Some(FromFront::IsReady { number }),
    };
    let Caller { token, peer } = caller?;
    Some(FromFront::Ask { number, token: token.0, peer: peer.to_string(), request })
}

fn report(mut told: mpsc::Receiver<BrokerNotice>, channel: &Channel) {
    while let Some(BrokerNotice::Throttled { peer, attempts }) = told.blocking_recv() {
        let message = FromFront::Throttled { peer: peer.to_string(), attempts };
        if channel.send(&message, &[]).is_err() {
            return;
        }
    }
}

/// Handles the broker's replies and orders until it has ended.
fn hear(channel: &Channel, waiting: &Waiting, front: &Front) {
    loop {
        let (message, files) = match channel.receive::<ToFront>() {
            Ok(received) => received,
            Err(error) => {
                tracing::info!(%error, "the broker is gone");
                return front.stop();
            }
        };
        match message {
            ToFront::Answer { number, answer } => {
                let Some(reply) = lock(waiting).remove(&number) else { continue };
                // The receiver may be gone; a stream is closed then.
                let _ = reply.send(found(answer, files));
            }
            ToFront::Numbers { workspace, numbers } => front.set_numbers(workspace, numbers),
            ToFront::Exported(exported) => front.set_exported(exported),
            ToFront::Gone { workspace, died, forget } => {
                front.worker_gone(&workspace, died, forget);
            }
            ToFront::Guard(guard) => front.set_guard(guard.into()),
            ToFront::Tls(pem) => {
                if let Err(error) = front.set_tls(&pem.certificate, &pem.key) {
                    errln!("portcullis: warning: the old certificate stays: {error}");
                }
            }
            ToFront::Stop => front.stop(),
            ToFront::Start(_) | ToFront::Serve => {}
        }
    }
}

fn found(answer: WorkspaceAnswer, files: Vec<OwnedFd>) -> Result<BrokerReply, OpenError> {
    match answer {
        WorkspaceAnswer::Stream => {
            files.into_iter().next().map(BrokerReply::Stream).ok_or(OpenError::Unavailable)
        }
        WorkspaceAnswer::Workspaces(names) => Ok(BrokerReply::Workspaces(names)),
        WorkspaceAnswer::Granted => Ok(BrokerReply::Granted),
        WorkspaceAnswer::Ready(verdict) => Ok(BrokerReply::Ready(verdict)),
        WorkspaceAnswer::Unauthorised => Err(OpenError::Unauthorised),
        WorkspaceAnswer::UnknownWorkspace => Err(OpenError::UnknownWorkspace),
        WorkspaceAnswer::Busy => Err(OpenError::Busy),
        WorkspaceAnswer::Unavailable => Err(OpenError::Unavailable),
    }
}
