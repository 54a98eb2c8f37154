//! The loop of a process that serves programs: accepts connections until the gateway process says
//! to stop.

use std::{io, os::fd::OwnedFd, rc::Rc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    runtime, select,
    task::{JoinSet, LocalSet},
    time::{sleep, timeout},
};

use crate::{link::Link, refused::Refused};

/// The pause after an error that other connections cause, such as too many open files.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The timeout for closing connections at the end.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves each connection to `listener` by a future of the function that `make` returns, at most
/// `max_connections` at once, until `gateway` is closed or says to stop. The process must be
/// confined already, and have no other thread.
///
/// # Errors
/// When `make` fails, or a system call does.
pub(crate) fn run<Serving, Connection>(
    listener: OwnedFd,
    gateway: OwnedFd,
    max_connections: usize,
    make: impl FnOnce(Rc<Link>) -> io::Result<Serving>,
) -> io::Result<()>
where
    Serving: Fn(TcpStream) -> Connection,
    Connection: Future<Output = ()> + 'static,
{
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::from_std(listener)?;
        let link = Rc::new(Link::new(gateway)?);
        let serve = make(Rc::clone(&link))?;
        let mut connections = JoinSet::new();
        let followed = {
            let mut followed = std::pin::pin!(link.follow());
            loop {
                select! {
                    followed = &mut followed => break followed,
                    Some(_) = connections.join_next() => {}
                    accepted = listener.accept() => match accepted {
                        Ok((client, _)) if connections.len() < max_connections => {
                            // This fails only if the peer is gone, which is noticed later.
                            let _ = client.set_nodelay(true);
                            connections.spawn_local(serve(client));
                        }
                        Ok((client, _)) => {
                            // A reply that does not fit into the socket's buffer is lost.
                            let _ = client.try_write(&Refused::full().bytes());
                        }
                        Err(_) => sleep(ACCEPT_RETRY_INTERVAL).await,
                    },
                }
            }
        };
        let ended = async { while connections.join_next().await.is_some() {} };
        // Connections that are still open are dropped with the process.
        let _ = timeout(STOP_TIMEOUT, ended).await;
        followed
    })
}
