//! MCP as it is on stdin and stdout, one message a line, over an upgraded
//! connection: for programs that carry a client's standard streams here.
//!
//! `GET /workspaces/NAME/mcp` with `Connection: Upgrade` and
//! `Upgrade: mcp-lines`. Nothing is looked at: the worker reads the lines.

use std::sync::Arc;

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CONNECTION, HeaderValue, UPGRADE},
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};

use super::{
    Caller, Front,
    reply::{self, Body},
};
use crate::model::Door;

/// What the header `Upgrade` says.
const PROTOCOL: &str = "mcp-lines";

/// Whether a request asks for this, and not for MCP over HTTP.
pub(super) fn wanted<B>(request: &Request<B>) -> bool {
    let upgrade = request.headers().get(UPGRADE);
    request.method() == Method::GET
        && upgrade.is_some_and(|word| word.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes()))
}

/// Opens a session and pumps its lines until either side ends.
pub(super) async fn handle(
    front: Arc<Front>,
    caller: Caller,
    workspace: &str,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let mut worker = match front.open(&caller, workspace, Door::Mcp).await {
        Ok(worker) => worker,
        Err(error) => return reply::refused(&error),
    };
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let mut client = TokioIo::new(upgraded);
        tokio::select! {
            // How it ended is the worker's to record.
            _ = copy_bidirectional(&mut client, &mut worker) => {}
            () = front.stopping() => {
                // The worker ends the session; what it still says goes out.
                let _ = worker.shutdown().await;
                let _ = tokio::io::copy(&mut worker, &mut client).await;
                let _ = client.shutdown().await;
            }
        }
    });
    let mut reply = Response::new(reply::whole(""));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    reply
}
