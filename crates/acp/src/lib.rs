//! The Agent Client Protocol: a line proxy between an editor and an agent.
//!
//! Both use JSON-RPC 2.0, one message per line (ACP v1, transport `stdio`). Messages pass byte for
//! byte, except for `initialize`, login methods in errors, the gateway's own entry among the MCP
//! servers of a session, and terminals in tool calls. The agent's messages to the editor are an
//! allow list, because editors run commands that agents name. `fs/*` is served by the gateway and
//! never forwarded, and so is `terminal/*` where the policy allows it. The content that the editor
//! attaches to a prompt is not decided here.
//!
//! `portcullis-rpc` parses, `agent` and `editor` handle, `render` writes. One thread for each peer
//! reads and handles its lines. Several workers serve `fs/*`, so that a slow editor stalls only the
//! request that waits for it. A read that waits for no more than the file is served by the reader
//! thread while no other request is in progress. A line is written at once if its peer accepts it
//! without blocking, else by a thread for each peer. All queues are bounded.

use std::{
    io::{self, Read},
    os::fd::AsFd,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use crate::gateway::{Approvals, Gateway};

use portcullis_rpc::BoundedQueue;
pub use portcullis_rpc::output::{Output, write_now};

pub use allowed::{ForwardError, acts, check_forward};
pub use config::{Config, SourceMode, SourceModeError};
pub use editor_user::EditorUser;
pub use logins::{RemovedLogin, variables as login_variables};
pub use notices::OperatorOutput;
use peer_reader::{PeerReader, PeerReaders};
pub use portcullis_mcp::FurtherWorkspace;
pub use portcullis_rpc::framing::line_for;
use proxy::AcpProxy;

mod agent;
mod allowed;
mod asker;
mod buffers;
mod config;
mod directories;
mod editor;
mod editor_requests;
mod editor_user;
mod initialize;
mod inject;
mod logins;
mod notices;
mod params;
mod peer_reader;
mod permission_request;
mod prompt_turns;
mod proxy;
mod render;
mod request_queue;
mod sessions;
mod terminal_content;
mod terminal_requests;
mod terminal_updates;
mod terminals;
mod tool_calls;
mod workspaces;

use portcullis_core as gateway;
use portcullis_mcp::{attach as mcp_attach, paths, question};
use portcullis_policy::model;
use portcullis_rpc::{count, hangup, lock, spin_wait};

/// Number of `fs/*` requests that are served in parallel.
const MAX_WORKERS: usize = 8;
/// Maximum number of bytes that wait to be written; a larger line waits alone.
const MAX_OUTBOUND_BYTES: usize = 4 * 1024 * 1024;

/// The peer that ended the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// The agent closed its output.
    Agent,
    /// The editor closed the gateway's input or stopped reading. The agent's input was closed, and
    /// the agent may still be running.
    Editor,
}

/// Reasons why a connection could not be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name cannot be forwarded.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A thread or a pipe could not be made, or no random number was available.
    #[error("it cannot be begun: {0}")]
    Start(#[from] io::Error),
}

/// Serves one connection until a peer ends it. Each peer is a pair of a stream to read from and one
/// to write to. Both are dropped, and so closed, when they are no longer needed, except by a thread
/// that is blocked in a write, which ends when that returns.
///
/// # Errors
/// If it cannot start; nothing was served then.
pub fn serve(
    gateway: &Gateway,
    config: &Config,
    editor: (impl Read + AsFd + Send, impl Output),
    agent: (impl Read + AsFd + Send, impl Output),
) -> Result<ClosedBy, Error> {
    let queues = Queues::new();
    let (editor_reader, agent_reader) = (PeerReader::new(&editor.0)?, PeerReader::new(&agent.0)?);
    let readers = PeerReaders { editor: editor_reader, agent: agent_reader };
    let proxy = AcpProxy::new(gateway, config, &queues, &readers)?;
    let served = thread::scope(|scope| {
        let started = (|| {
            // An editor that no longer reads is gone, even if it still sends.
            let gone = readers.editor.stopper()?;
            write(&queues.to_editor, editor.1, "acp-editor-out", move || {
                PeerReader::stop_by(gone)
            })?;
            write(&queues.to_agent, agent.1, "acp-agent-out", || {})?;
            // Requests that wait for an approval take no threads from the others.
            for _ in 0..MAX_WORKERS + Approvals::MAX_WAITING {
                thread::Builder::new()
                    .name("acp-fs".to_owned())
                    .spawn_scoped(scope, || proxy.work())?;
            }
            thread::Builder::new().name("acp-editor".to_owned()).spawn_scoped(scope, || {
                readers
                    .editor
                    .read(editor.0, config.max_line, |frame| proxy.handle_editor_frame(frame));
                let _ = queues.ended.push(ClosedBy::Editor, 1);
            })?;
            thread::Builder::new().name("acp-agent".to_owned()).spawn_scoped(scope, || {
                readers
                    .agent
                    .read(agent.0, config.max_line, |frame| proxy.handle_agent_frame(frame));
                let _ = queues.ended.push(ClosedBy::Agent, 1);
            })?;
            thread::Builder::new()
                .name("acp-terminals".to_owned())
                .spawn_scoped(scope, || proxy.follow_terminals())?;
            Ok(())
        })();
        let ending = started.map(|()| shut_down(&proxy, &queues, config.grace));
        proxy.stop_jobs();
        proxy.editor_requests.close();
        proxy.stop_terminals();
        queues.discard();
        readers.editor.stop();
        readers.agent.stop();
        ending
    });
    served.map_err(Error::Start)
}

/// Waits for the end of one peer and ends the rest.
fn shut_down(proxy: &AcpProxy<'_>, queues: &Queues, grace: Duration) -> ClosedBy {
    let first = queues.ended.pop().unwrap_or(ClosedBy::Editor);
    // Waiting requests are cancelled; running ones are completed.
    proxy.stop_jobs();
    match first {
        ClosedBy::Editor => {
            proxy.editor_requests.close();
            proxy.agent_requests.wait_idle(grace);
            // The closed input signals the end to the agent; its last messages still pass.
            queues.to_agent.close();
            if queues.ended.pop_within(grace).is_some() {
                proxy.output.ended();
            }
        }
        ClosedBy::Agent => {
            proxy.output.ended();
            proxy.agent_requests.wait_idle(grace);
            proxy.editor_requests.close();
            proxy.fail_editor_requests(grace);
        }
    }
    queues.to_editor.close();
    queues.to_editor.wait_finished(grace);
    first
}

/// The queues between the threads of one connection.
struct Queues {
    to_editor: Arc<BoundedQueue<Vec<u8>>>,
    to_agent: Arc<BoundedQueue<Vec<u8>>>,
    ended: BoundedQueue<ClosedBy>,
}

impl Queues {
    fn new() -> Self {
        Self {
            to_editor: Arc::new(BoundedQueue::new(MAX_OUTBOUND_BYTES)),
            to_agent: Arc::new(BoundedQueue::new(MAX_OUTBOUND_BYTES)),
            ended: BoundedQueue::new(2),
        }
    }

    fn discard(&self) {
        self.to_editor.discard();
        self.to_agent.discard();
    }
}

fn write(
    queue: &Arc<BoundedQueue<Vec<u8>>>,
    stream: impl Output,
    name: &str,
    broken: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let stream = Arc::new(Mutex::new(stream));
    let at_once = Arc::clone(&stream);
    // The thread meets the same error again and handles it.
    queue.set_shortcut(move |mut line| {
        let written = lock(&at_once).write_now(&line).unwrap_or_default();
        line.drain(..written.min(line.len()));
        if line.is_empty() { None } else { Some(line) }
    });
    let queue = Arc::clone(queue);
    let run = move || {
        while let Some(line) = queue.pop() {
            let mut stream = lock(&stream);
            if stream.write_all(&line).and_then(|()| stream.flush()).is_err() {
                broken();
                break;
            }
        }
        queue.finish();
        drop(stream);
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
