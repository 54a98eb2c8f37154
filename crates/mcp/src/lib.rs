//! The Model Context Protocol over stdin and stdout: one client, which is the agent
//! or acts for it.
//!
//! `rmcp` implements the protocol's revisions; its input and output pass `wire`,
//! which bounds lines and refuses what two parsers could read differently. `tools`
//! turns a call into operations, which the gateway decides; `answer` renders
//! results. One thread reads lines and handles the protocol; it also carries out
//! short operations while no other request waits. All other operations run on a few
//! other threads.

use std::{fs::File, io, sync::Arc, time::Duration};

use rmcp::ServiceExt as _;

use crate::gateway::{Approvals, Gateway};

use paths::Roots;

mod approver;
mod arguments;
pub mod attach;
mod call;
mod call_slot;
mod changes;
mod closed;
mod config;
mod denials;
mod elicit;
mod further;
mod instructions;
mod introduction;
mod line;
mod listen;
mod memory;
pub mod paths;
mod progress;
pub mod question;
mod reader;
mod resources;
mod suspended;
mod tool_catalog;
mod tool_result;

mod in_flight;
mod operations;
mod running;
pub mod sandbox_socket;
mod server;
mod shared;
mod subscription;
mod tools;
mod wire;
mod writer;

use portcullis_core as gateway;
use portcullis_policy::{self as policy, model};
use portcullis_rpc::{count, hangup, lock, output, spin_wait};

pub use config::{ClientLocation, Config};
pub use elicit::REQUEST;
pub use further::FurtherWorkspace;
pub use in_flight::{FrontRefusal, IN_USE, REFUSED, REPEATED};
pub use introduction::shorten;
pub(crate) use memory::ClientMemory;
pub use memory::values_of;
pub use reader::Input;
pub use server::announced;
pub use tools::{Name, NameError, Toolset};
pub use wire::{message, request_id};

/// Maximum of operations in parallel.
const MAX_WORKERS: usize = 4;
/// Timeout for the client to read the last replies.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a client cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A thread did not start, or the client's stream cannot be used.
    #[error("it cannot be begun: {0}")]
    Start(#[from] io::Error),
    /// The client violated the protocol.
    #[error("the client does not speak the protocol: {0}")]
    Protocol(String),
}

/// Serves one client until it closes its side and all its requests are done. Calls
/// that wait for an approval then are not carried out.
///
/// # Errors
/// When it cannot start, or the client violates the protocol at the beginning.
pub fn serve(
    gateway: &Arc<Gateway>,
    config: Config,
    input: Input,
    output: File,
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Calls that wait for an approval take no threads from the others.
        .max_blocking_threads(MAX_WORKERS + Approvals::MAX_WAITING)
        .thread_keep_alive(Duration::from_secs(60))
        .build()?;
    let roots = Roots::new(&config.root, config.alias.as_deref());
    let (max_line, attached) = (config.max_line, config.attached.clone());
    let server = server::Server::new(Arc::clone(gateway), config, roots, output)?;
    let shared = server.shared();
    if let Some(client) = attached {
        client.set_control(server.shared());
    }
    let wire = {
        let _inside = runtime.enter();
        wire::Wire::new(&shared, &server.under_way, input, max_line)?
    };
    let served = runtime.block_on(async {
        match (listen::Listening { server }).serve(wire).await {
            Ok(running) => running.waiting().await.map(drop).map_err(|error| error.to_string()),
            // A client that leaves before it begins is no error.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    });
    shared.close();
    // Waits for operations that have begun, so that no change is interrupted.
    drop(runtime);
    shared.end(STOP_TIMEOUT);
    served.map_err(Error::Protocol)
}
