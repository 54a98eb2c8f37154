//! MCP clients in the sandbox, attached to the session of their agent.
//!
//! The transport of that session issues a token, which the client sends first. An
//! attached client shares the limits and the log of its session; when the session
//! ends, the client is disconnected. This module decides nothing.

use std::{
    collections::HashMap,
    fmt,
    net::Shutdown,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

use crate::{
    ClientMemory,
    gateway::{TOKEN_PREFIX, Ticket, random_hex},
    lock,
    model::{Session, Transport},
};

/// The environment variable with an MCP client's token: other processes can see
/// command lines where an agent is partly confined.
pub const ATTACH_TOKEN: &str = "PORTCULLIS_ATTACH_TOKEN";

/// Maximum of clients at once.
const MAX_CLIENTS: usize = 32;

/// Asks the user of a session's editor.
pub trait UserApprover: Send + Sync {
    /// Asks the user; dropping the result withdraws the question. `acp_id` is the
    /// session's id over ACP.
    fn ask(&self, acp_id: &str, ticket: &Arc<Ticket>) -> Option<Box<dyn Send>>;
}

/// Control of an attached client's requests by its session.
pub trait Control: Send + Sync {
    /// Withdraws the pending approvals.
    fn withdraw(&self);

    /// Ends the client: no request begins, and none is approved any more.
    fn end(&self);
}

/// The tokens and attached clients of one gateway.
pub struct AttachTokens {
    /// The MCP server program that the agent starts, by its path in the sandbox.
    program: PathBuf,
    /// The socket to which that program connects.
    socket: PathBuf,
    state: Mutex<State>,
    ask: OnceLock<Arc<dyn UserApprover>>,
    /// The memory of all attached clients.
    memory: Arc<ClientMemory>,
}

#[derive(Default)]
struct State {
    issued: HashMap<String, Issued>,
    connected: HashMap<u64, Connected>,
    next: u64,
    closed: bool,
}

struct Issued {
    session: Session,
    acp_id: AcpId,
}

/// The session's id over ACP, once it has one.
type AcpId = Arc<OnceLock<String>>;

struct Connected {
    session: String,
    stream: UnixStream,
    /// Control of its requests, once it has any.
    control: Option<Arc<dyn Control>>,
    /// Set when it was disconnected.
    gone: bool,
}

/// An attached client. Dropping it detaches it.
pub struct AttachedClient {
    tokens: Arc<AttachTokens>,
    number: u64,
    session: Session,
    acp_id: AcpId,
}

impl AttachTokens {
    /// Returns a set without tokens; `program` and `socket` are paths in the sandbox.
    pub fn new(program: &Path, socket: &Path) -> Arc<Self> {
        Arc::new(Self {
            program: program.to_owned(),
            socket: socket.to_owned(),
            state: Mutex::default(),
            ask: OnceLock::new(),
            memory: Arc::default(),
        })
    }

    /// Returns program and socket, without the token.
    pub fn command(&self) -> (&Path, &Path) {
        (&self.program, &self.socket)
    }

    /// Sets the function that asks the user; only the first call counts.
    pub fn set_ask_user(&self, ask: Arc<dyn UserApprover>) {
        let _ = self.ask.set(ask);
    }

    /// Issues a token for a session; `acp_id` is the session's id over ACP, if it has
    /// one.
    pub fn issue(&self, session: &Session, acp_id: Option<&str>) -> Option<String> {
        let token = format!("{TOKEN_PREFIX}{}", random_hex::<16>().ok()?);
        let known = AcpId::default();
        acp_id.map(|acp_id| known.set(acp_id.to_owned()));
        let session = Session { transport: Transport::Mcp, ..session.clone() };
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        state.issued.insert(token.clone(), Issued { session, acp_id: known });
        Some(token)
    }

    /// Sets the id that a session has over ACP.
    pub fn set_acp_id(&self, session: &str, acp_id: &str) {
        for issued in lock(&self.state).issued.values() {
            if issued.session.id == session {
                let _ = issued.acp_id.set(acp_id.to_owned());
            }
        }
    }

    /// Disconnects the clients of a session and attaches no more.
    pub fn end_session(&self, session: &str) {
        let mut state = lock(&self.state);
        state.issued.retain(|_, issued| issued.session.id != session);
        state.of(session).for_each(Connected::end);
    }

    /// Withdraws the pending approvals of a session's clients.
    pub fn withdraw(&self, session: &str) {
        lock(&self.state)
            .of(session)
            .filter_map(|client| client.control.as_ref())
            .for_each(|control| control.withdraw());
    }

    /// Disconnects all clients and attaches no more.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.issued.clear();
        state.connected.values_mut().for_each(Connected::end);
    }

    /// Attaches a client with a valid token; `None` without one, or when there are too
    /// many.
    pub fn attach(self: &Arc<Self>, token: &str, stream: UnixStream) -> Option<AttachedClient> {
        let mut state = lock(&self.state);
        let issued = state.issued.get(token)?;
        let (session, acp_id) = (issued.session.clone(), Arc::clone(&issued.acp_id));
        if state.connected.len() >= MAX_CLIENTS {
            return None;
        }
        let number = state.next;
        state.next = number.wrapping_add(1);
        state.connected.insert(number, Connected::new(&session, stream));
        Some(AttachedClient { tokens: Arc::clone(self), number, session, acp_id })
    }
}

impl fmt::Debug for AttachTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachTokens").finish_non_exhaustive()
    }
}

impl State {
    fn of<'a>(&'a mut self, session: &'a str) -> impl Iterator<Item = &'a mut Connected> {
        self.connected.values_mut().filter(move |client| client.session == session)
    }
}

impl Connected {
    fn new(session: &Session, stream: UnixStream) -> Self {
        Self { session: session.id.clone(), stream, control: None, gone: false }
    }

    /// Disconnects the client: its requests that have not begun do not begin, and
    /// threads that read from it or write to it get an end of file or an error.
    fn end(&mut self) {
        self.gone = true;
        if let Some(control) = &self.control {
            control.end();
        }
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl AttachedClient {
    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Sets the control of the client's requests.
    pub fn set_control(&self, control: Arc<dyn Control>) {
        let mut state = lock(&self.tokens.state);
        let Some(client) = state.connected.get_mut(&self.number) else { return };
        if client.gone {
            control.end();
        }
        client.control = Some(control);
    }

    /// Returns the memory shared with all other clients.
    pub(crate) fn memory(&self) -> &Arc<ClientMemory> {
        &self.tokens.memory
    }

    /// Asks the user of the session's editor; dropping the result withdraws the
    /// question.
    pub fn ask(&self, ticket: &Arc<Ticket>) -> Option<Box<dyn Send>> {
        self.tokens.ask.get()?.ask(self.acp_id.get()?, ticket)
    }
}

impl fmt::Debug for AttachedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedClient").field("session", &self.session.id).finish_non_exhaustive()
    }
}

impl Drop for AttachedClient {
    fn drop(&mut self) {
        let gone = lock(&self.tokens.state).connected.remove(&self.number);
        // Dropped without the lock.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn session(id: &str) -> Session {
        Session {
            id: id.to_owned(),
            agent: "a".parse().unwrap(),
            user: "u".to_owned(),
            transport: Transport::Acp,
            acp: None,
        }
    }

    #[test]
    fn a_client_without_token_is_refused_and_the_end_of_a_session_ends_its_clients_alone() {
        let tokens = AttachTokens::new(Path::new("/p"), Path::new("/s"));
        let first = tokens.issue(&session("1"), None).unwrap();
        let second = tokens.issue(&session("2"), Some("acp-2")).unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert!(tokens.attach("", theirs.try_clone().unwrap()).is_none());
        let client = tokens.attach(&first, theirs.try_clone().unwrap()).unwrap();
        assert_eq!(
            (client.session().id.as_str(), client.session().transport),
            ("1", Transport::Mcp)
        );
        assert!(client.acp_id.get().is_none());
        tokens.set_acp_id("1", "acp-1");
        assert_eq!(client.acp_id.get().map(String::as_str), Some("acp-1"));
        tokens.end_session("1");
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
        assert!(tokens.attach(&first, theirs.try_clone().unwrap()).is_none());
        assert!(tokens.attach(&second, theirs.try_clone().unwrap()).is_some());
        tokens.close();
        assert!(tokens.attach(&second, theirs).is_none());
        assert!(tokens.issue(&session("3"), None).is_none());
    }

    #[derive(Default)]
    struct Counts(Mutex<(u32, u32)>);

    impl Control for Counts {
        fn withdraw(&self) {
            lock(&self.0).0 += 1;
        }

        fn end(&self) {
            lock(&self.0).1 += 1;
        }
    }

    #[test]
    fn a_client_that_was_disconnected_early_begins_nothing() {
        let tokens = AttachTokens::new(Path::new("/p"), Path::new("/s"));
        let (stream, _other) = UnixStream::pair().unwrap();
        let attach = |id: &str| {
            let token = tokens.issue(&session(id), None).unwrap();
            tokens.attach(&token, stream.try_clone().unwrap()).unwrap()
        };
        let (early, late) = (attach("1"), attach("2"));
        let controls = [Arc::<Counts>::default(), Arc::<Counts>::default()];
        early.set_control(controls[0].clone());
        tokens.withdraw("1");
        tokens.withdraw("2");
        tokens.end_session("2");
        late.set_control(controls[1].clone());
        assert_eq!((*lock(&controls[0].0), *lock(&controls[1].0)), ((1, 0), (0, 1)));
        tokens.close();
        assert_eq!(*lock(&controls[0].0), (1, 1));
    }

    #[test]
    fn there_is_a_maximum_of_clients() {
        let tokens = AttachTokens::new(Path::new("/p"), Path::new("/s"));
        let token = tokens.issue(&session("1"), None).unwrap();
        let (stream, _other) = UnixStream::pair().unwrap();
        let mut all: Vec<_> = (0..MAX_CLIENTS)
            .map(|_| tokens.attach(&token, stream.try_clone().unwrap()).unwrap())
            .collect();
        assert!(tokens.attach(&token, stream.try_clone().unwrap()).is_none());
        all.pop();
        assert!(tokens.attach(&token, stream).is_some());
    }
}
