//! The front as the broker sees it, and its listening sockets.

use std::{
    fs::OpenOptions,
    io,
    net::TcpListener,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{
            fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
            net::{SocketAddr, UnixDatagram, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::Mode;

use super::{
    front,
    messages::{FromFront, FrontStart, GuardMessage, Pem, ToFront},
    plan::Plan,
};
use crate::{
    app::{
        failure::{Context as _, Failure},
        process::Child,
    },
    config::serve::{Listen, Service},
    operator_files,
    sandbox::{Channel, IsolationReport, refuse_descriptors},
    serve::check_tls,
};

/// Timeout for the front to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The file in the service's state directory with which processes test that they are
/// confined.
const CONTROL: &str = "out-of-reach";

/// The sockets, with the front behind them.
pub(super) struct FrontListeners {
    sockets: Vec<Socket>,
    child: Child,
    pub(super) channel: Channel,
    pub(super) control: PathBuf,
    /// The certificate of the front. Stored, because its files may be half replaced
    /// when another front needs them.
    pem: Option<Pem>,
}

/// A listening socket.
struct Socket {
    fd: OwnedFd,
    at: Listen,
    /// Device and inode number of its path when it was created.
    created: Option<(u64, u64)>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Listen::Unix(path) = &self.at
            && found(path) == self.created
        {
            // A stale path is harmless; another program's socket may be in use.
            let _ = operator_files::remove_file(path);
        }
    }
}

impl FrontListeners {
    /// Opens the sockets and starts a front that has proved its confinement. It
    /// accepts no connection before [`serve`](Self::serve).
    pub(super) fn open(plan: &Plan, control: PathBuf) -> Result<(Self, IsolationReport), Failure> {
        let sockets =
            plan.service.listen.iter().map(Socket::open).collect::<Result<Vec<_>, Failure>>()?;
        let pem = pem(&plan.service)?;
        let (child, channel) = front::spawn()?;
        let mut front_listeners = Self { sockets, child, channel, control, pem };
        let apart = front_listeners.start_front(plan)?;
        Ok((front_listeners, apart))
    }

    /// Returns the listening addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &Listen> {
        self.sockets.iter().map(|socket| &socket.at)
    }

    /// Lets the front accept connections; must be called after the start is
    /// recorded.
    pub(super) fn serve(&self) -> Result<(), Failure> {
        self.channel.send(&ToFront::Serve, &[]).or_fail("cannot start the front")
    }

    /// Replaces a front that has ended.
    pub(super) fn replace(&mut self, plan: &Plan) -> Result<(), Failure> {
        (self.child, self.channel) = front::spawn()?;
        self.start_front(plan).map(drop)?;
        self.serve()
    }

    /// Reads the certificate again, for this front and later ones; returns the
    /// message for the front.
    pub(super) fn renew(&mut self, service: &Service) -> Result<Option<ToFront>, Failure> {
        // A service with TLS does not drop it without a restart.
        if self.pem.is_some()
            && let Some(pem) = pem(service)?
        {
            self.pem = Some(pem);
        }
        Ok(self.pem.clone().map(ToFront::Tls))
    }

    fn start_front(&mut self, plan: &Plan) -> Result<IsolationReport, Failure> {
        let limits = &plan.service.limits;
        let start = FrontStart {
            tcp: self.sockets.iter().map(|socket| matches!(socket.at, Listen::Tcp(_))).collect(),
            guard: guard(&plan.service, self.addresses()),
            tls: self.pem.clone(),
            connections: limits.connections,
            head_bytes: limits.head_bytes,
            head_seconds: limits.head_seconds,
            body_seconds: limits.body_seconds,
            idle_seconds: plan.service.idle.as_secs(),
            session_idle_seconds: plan.service.session_idle.as_secs(),
            failed_logins: limits.failed_logins,
            message_bytes: limits.message_bytes,
            message_memory: limits.message_memory,
            unreachable: plan.unreachable(None, &self.control),
            log: "warn".to_owned(),
        };
        let files: Vec<_> = self.sockets.iter().map(|socket| socket.fd.as_fd()).collect();
        self.channel
            .send(&ToFront::Start(Box::new(start)), &files)
            .or_fail("cannot start the front")?;
        match self
            .channel
            .receive_within::<FromFront>(START_TIMEOUT)
            .or_fail("the front did not start")?
            .0
        {
            FromFront::Ready { apart, dropped_capabilities } => {
                if dropped_capabilities {
                    errln!(
                        "portcullis: note: started as root: front and workers gave up their powers; \
                         files of other users may be out of reach"
                    );
                }
                Ok(apart)
            }
            FromFront::Failed { reason } => {
                Err(Failure::new(format_args!("the front cannot start: {reason}")))
            }
            FromFront::Ask { .. } | FromFront::IsReady { .. } | FromFront::Throttled { .. } => {
                Err(Failure::new("the front sent an unexpected message"))
            }
        }
    }

    /// Returns the exit status of a front; kills it if it is alive.
    pub(super) fn end(&mut self) -> String {
        let ended = self.child.ended().or_else(|| self.child.kill());
        ended.map_or_else(|| "unknown".to_owned(), |status| status.to_string())
    }

    /// Returns the last messages of a front that stops.
    pub(super) fn final_messages(&self) -> Vec<FromFront> {
        let mut messages = Vec::new();
        while let Ok((message, _)) = self.channel.receive_within::<FromFront>(Duration::ZERO) {
            messages.push(message);
        }
        messages
    }

    /// Returns true if the front has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.ended().is_some()
    }
}

/// Returns the hosts and origins that a front accepts.
pub(super) fn guard<'a>(
    service: &Service,
    addresses: impl Iterator<Item = &'a Listen>,
) -> GuardMessage {
    let address = |listen: &Listen| match listen {
        Listen::Tcp(address) => Some(address.ip().to_canonical()),
        Listen::Unix(_) => None,
    };
    GuardMessage {
        hosts: service.hosts.clone(),
        addresses: addresses.filter_map(address).collect(),
        origins: service.origins.clone(),
    }
}

/// Reads the certificate, if one is configured, and checks it.
fn pem(service: &Service) -> Result<Option<Pem>, Failure> {
    let Some(tls) = &service.tls else { return Ok(None) };
    let read = |what: &str, path: &Path| {
        let shown = path.display();
        operator_files::read_to_string(path)
            .or_fail(format_args!("cannot read the {what} `{shown}`"))
    };
    let certificate = read("certificate", &tls.certificate)?;
    let key = read("certificate's key", &tls.key)?;
    check_tls(&certificate, &key).map_err(|error| {
        Failure::new(error).help(format_args!(
            "`[serve] tls` names `{}` and `{}`",
            tls.certificate.display(),
            tls.key.display()
        ))
    })?;
    Ok(Some(Pem { certificate, key }))
}

impl Socket {
    fn open(at: &Listen) -> Result<Self, Failure> {
        let opened = match at {
            Listen::Tcp(address) => TcpListener::bind(address).and_then(|socket| {
                let at = Listen::Tcp(socket.local_addr()?);
                Ok(Self { fd: socket.into(), at, created: None })
            }),
            Listen::Unix(path) => {
                let socket = |socket: UnixListener| Self {
                    fd: socket.into(),
                    at: at.clone(),
                    created: found(path),
                };
                bind(path)
                    .and_then(|socket| refuse_descriptors(&socket).map(|()| socket))
                    .map(socket)
            }
        };
        let opened = opened.or_fail(format_args!("cannot listen at `{at}`"));
        opened.map_err(|failure| {
            failure.help("is another `serve` running? name another with --listen")
        })
    }
}

/// Returns device and inode number of a path.
fn found(path: &Path) -> Option<(u64, u64)> {
    operator_files::symlink_metadata(path).ok().map(|look| (look.dev(), look.ino()))
}

/// Binds a UNIX socket to which only the owner can connect: the mode is right from
/// the beginning.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let stale = operator_files::symlink_metadata(path)
        .is_ok_and(|look| look.file_type().is_socket())
        && UnixStream::connect(path).is_err();
    if stale {
        operator_files::remove_file(path)?;
    }
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    bound
}

/// Creates the file with which processes test that they are confined.
pub(super) fn control(state: &Path) -> Result<PathBuf, Failure> {
    let path = state.join(CONTROL);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    operator_files::open_with(&path, &options).or_fail("cannot make the file for the self-test")?;
    Ok(path)
}

/// Notifies the service manager, if it expects that.
pub(super) fn notify(word: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let told = UnixDatagram::unbound().and_then(|socket| {
        let address = match path.to_string_lossy().strip_prefix('@') {
            Some(name) => {
                use std::os::linux::net::SocketAddrExt as _;
                SocketAddr::from_abstract_name(name)?
            }
            None => SocketAddr::from_pathname(&path)?,
        };
        socket.send_to_addr(word.as_bytes(), &address)
    });
    if let Err(error) = told {
        errln!("portcullis: warning: cannot notify the service manager: {error}");
    }
}
