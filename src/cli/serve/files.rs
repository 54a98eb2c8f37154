//! The `files` channel in a worker: one thread for all its clients, of which
//! thousands may be idle; a few other threads do blocking work.

use std::{
    os::{fd::OwnedFd, unix::net},
    sync::{Arc, atomic::AtomicBool},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{net::UnixStream, sync::mpsc};

use crate::{
    app::failure::{Context as _, Failure},
    gateway::Gateway,
    model::Session,
    serve::files::{Channel, ChannelLimits},
};

/// Threads for requests: those carried out, and as many that wait for approvals as
/// the gateway lets wait.
const MAX_THREADS: usize = 32;
/// Time for which an idle thread is retained.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum of new clients in the queue.
const MAX_QUEUED: usize = 1024;

/// The channel. Dropping it ends it, once its clients have ended.
pub(super) struct Files {
    begin: Option<mpsc::Sender<Client>>,
    thread: Option<JoinHandle<()>>,
}

struct Client {
    session: Session,
    stream: net::UnixStream,
    revoked: Arc<AtomicBool>,
    ended: Box<dyn FnOnce() + Send>,
}

impl Files {
    /// Starts the thread.
    pub(super) fn start(gateway: Arc<Gateway>, limits: ChannelLimits) -> Result<Self, Failure> {
        let (begin, clients) = mpsc::channel(MAX_QUEUED);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_THREADS)
            .thread_keep_alive(IDLE_TIMEOUT)
            .build()
            .or_fail("cannot serve the channel `files`")?;
        let run = move || {
            runtime.block_on(serve(Channel::new(gateway, limits), clients));
        };
        let thread = thread::Builder::new()
            .name("files".to_owned())
            .spawn(run)
            .or_fail("cannot start a thread")?;
        Ok(Self { begin: Some(begin), thread: Some(thread) })
    }

    /// Serves a client, until it closes its side or is `revoked`; calls `ended` at
    /// its end.
    pub(super) fn serve(
        &self,
        session: Session,
        stream: OwnedFd,
        revoked: Arc<AtomicBool>,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<(), Failure> {
        let (stream, ended) = (net::UnixStream::from(stream), Box::new(ended));
        let client = Client { session, stream, revoked, ended };
        let begun = self.begin.as_ref().map(|begin| begin.blocking_send(client));
        match begun {
            Some(Ok(())) => Ok(()),
            _ => Err(Failure::new("the channel `files` is not served any more")),
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.begin.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(channel: Arc<Channel>, mut clients: mpsc::Receiver<Client>) {
    while let Some(Client { session, stream, revoked, ended }) = clients.recv().await {
        let channel = Arc::clone(&channel);
        tokio::spawn(async move {
            let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
            let served = match stream {
                Ok(stream) => channel.serve(session, stream, revoked).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = served {
                tracing::info!(%error, "a session ended early");
            }
            drop(channel);
            ended();
        });
    }
}
