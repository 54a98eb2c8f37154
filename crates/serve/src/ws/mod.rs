//! The `files` channel over a WebSocket (RFC 6455): the handshake, and a pump
//! between the socket and the worker, which parses the messages.
//!
//! `GET /workspaces/NAME/ws`. Every close has a reason. A client that does not read,
//! does not answer pings or sends a message slowly is disconnected after a timeout;
//! memory for messages is bounded for all clients together. Extensions are not
//! offered, so nothing is ever decompressed.

mod bounds;
mod frames;
mod handshake;
mod pump;

use std::sync::Arc;

use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;

use super::{
    Caller, Front,
    reply::{self, Body},
};
use crate::model::Transport;
pub use bounds::Bounds;
pub(super) use bounds::{Sockets, cover};
pub(super) use frames::{MAX_UNRESERVED_BYTES, RESERVATION_STEP};
use pump::pump;

/// Completes the handshake, opens a session and pumps until either side ends.
pub(super) async fn handle(
    front: Arc<Front>,
    caller: Caller,
    workspace: &str,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let accept = match handshake::accept(&request) {
        Ok(accept) => accept,
        Err(refused) => return *refused,
    };
    let worker = match front.open(&caller, workspace, Transport::Files).await {
        Ok(worker) => worker,
        Err(error) => return reply::refused(&error),
    };
    let reply = handshake::accepted(accept, request.headers());
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let (from_worker, to_worker) = worker.into_split();
        let worker = (from_worker, to_worker);
        let sockets = front.sockets();
        let share = sockets.share(caller.token);
        pump(sockets, share, TokioIo::new(upgraded), worker, || front.stopping()).await;
    });
    reply
}
