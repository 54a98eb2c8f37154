//! Whoever comes from the agent's cell to the gate's own MCP server, and the
//! session of which it is a part.
//!
//! The door through which the agent came invites it: the invitation is a random
//! word that the agent's MCP client says first. A guest has the limits and the
//! log of its host's session and no others; when that ends, the guest is sent
//! away. Decides about nothing.

use std::{
    collections::HashMap,
    fmt,
    net::Shutdown,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

use portcullis_rpc::random_hex;

use crate::{
    gateway::Ticket,
    lock,
    mcp::ClientMemory,
    model::{Door, Session},
};

/// Most guests at once.
const MOST: usize = 32;

/// Asks the person whom the host serves.
pub(super) trait Ask: Send + Sync {
    /// Puts the question; dropping what this gives takes it back.
    fn ask(&self, host: &str, ticket: &Arc<Ticket>) -> Option<Box<dyn Send>>;
}

/// What a guest has under way, for the host to take back.
pub(super) trait Stay: Send + Sync {
    /// Gives up what waits for a person.
    fn withdraw(&self);

    /// Nothing more begins, and nobody is asked any more.
    fn end(&self);
}

/// All invitations of one gate.
pub struct Guests {
    /// The program that an agent's MCP client starts, by its path in the cell.
    program: PathBuf,
    /// The socket to which that connects.
    socket: PathBuf,
    state: Mutex<State>,
    ask: OnceLock<Arc<dyn Ask>>,
    /// What all of them take together.
    memory: Arc<ClientMemory>,
}

#[derive(Default)]
struct State {
    invited: HashMap<String, Invited>,
    present: HashMap<u64, Present>,
    next: u64,
    closed: bool,
}

struct Invited {
    session: Session,
    host: Host,
}

/// The host's name of the session, once it has one.
type Host = Arc<OnceLock<String>>;

struct Present {
    session: String,
    stream: UnixStream,
    /// What it does, once it does anything.
    stay: Option<Arc<dyn Stay>>,
    /// Whether it was sent away.
    gone: bool,
}

/// One that was let in. Dropping it lets it go.
pub struct Guest {
    guests: Arc<Guests>,
    number: u64,
    session: Session,
    host: Host,
}

impl Guests {
    /// Nobody is invited yet; `program` and `socket` are paths in the cell.
    pub fn new(program: &Path, socket: &Path) -> Arc<Self> {
        Arc::new(Self {
            program: program.to_owned(),
            socket: socket.to_owned(),
            state: Mutex::default(),
            ask: OnceLock::new(),
            memory: Arc::default(),
        })
    }

    /// The command line, without the word.
    pub(super) fn command(&self) -> (&Path, &Path) {
        (&self.program, &self.socket)
    }

    /// Who asks where a rule asks; the first one counts.
    pub(super) fn asked_by(&self, ask: Arc<dyn Ask>) {
        let _ = self.ask.set(ask);
    }

    /// Invites guests into a session and gives the word; `host` is the name
    /// that the session has for the one that is asked about it, if it has one.
    pub(super) fn invite(&self, session: &Session, host: Option<&str>) -> Option<String> {
        let word = random_hex::<16>().ok()?;
        let name = Host::default();
        host.map(|host| name.set(host.to_owned()));
        let session = Session { door: Door::Mcp, ..session.clone() };
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        state.invited.insert(word.clone(), Invited { session, host: name });
        Some(word)
    }

    /// Says what the host calls a session from now on.
    pub(super) fn name(&self, session: &str, host: &str) {
        for invited in lock(&self.state).invited.values() {
            if invited.session.id == session {
                let _ = invited.host.set(host.to_owned());
            }
        }
    }

    /// Sends the guests of a session away and lets no more in.
    pub(super) fn dismiss(&self, session: &str) {
        let mut state = lock(&self.state);
        state.invited.retain(|_, invited| invited.session.id != session);
        state.of(session).for_each(Present::end);
    }

    /// Gives up what the guests of a session have waiting for a person.
    pub(super) fn withdraw(&self, session: &str) {
        lock(&self.state)
            .of(session)
            .filter_map(|one| one.stay.as_ref())
            .for_each(|s| s.withdraw());
    }

    /// Sends everybody away and lets nobody in any more.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.invited.clear();
        state.present.values_mut().for_each(Present::end);
    }

    /// Lets one in who knows a word.
    pub(super) fn admit(self: &Arc<Self>, word: &str, stream: UnixStream) -> Option<Guest> {
        let mut state = lock(&self.state);
        let invited = state.invited.get(word)?;
        let (session, host) = (invited.session.clone(), Arc::clone(&invited.host));
        if state.present.len() >= MOST {
            return None;
        }
        let number = state.next;
        state.next = number.wrapping_add(1);
        state.present.insert(number, Present::new(&session, stream));
        Some(Guest { guests: Arc::clone(self), number, session, host })
    }
}

impl fmt::Debug for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guests").finish_non_exhaustive()
    }
}

impl State {
    fn of<'a>(&'a mut self, session: &'a str) -> impl Iterator<Item = &'a mut Present> {
        self.present.values_mut().filter(move |present| present.session == session)
    }
}

impl Present {
    fn new(session: &Session, stream: UnixStream) -> Self {
        Self { session: session.id.clone(), stream, stay: None, gone: false }
    }

    /// What it said and is not begun is not; whoever reads from it or writes to it
    /// meets the end.
    fn end(&mut self) {
        self.gone = true;
        if let Some(stay) = &self.stay {
            stay.end();
        }
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Guest {
    /// The session.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Says what the host can take back from now on.
    pub(super) fn stays(&self, stay: Arc<dyn Stay>) {
        let mut state = lock(&self.guests.state);
        let Some(present) = state.present.get_mut(&self.number) else { return };
        if present.gone {
            stay.end();
        }
        present.stay = Some(stay);
    }

    /// The memory that it shares with all other guests.
    pub(super) fn memory(&self) -> &Arc<ClientMemory> {
        &self.guests.memory
    }

    /// Asks the host's person; dropping what this gives takes the question
    /// back.
    pub(super) fn ask(&self, ticket: &Arc<Ticket>) -> Option<Box<dyn Send>> {
        self.guests.ask.get()?.ask(self.host.get()?, ticket)
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("session", &self.session.id).finish_non_exhaustive()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let gone = lock(&self.guests.state).present.remove(&self.number);
        // Not while others wait for the lock.
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
            door: Door::Acp,
        }
    }

    #[test]
    fn who_knows_no_word_is_not_let_in_and_the_end_of_a_session_ends_its_guests_alone() {
        let guests = Guests::new(Path::new("/p"), Path::new("/s"));
        let first = guests.invite(&session("1"), None).unwrap();
        let second = guests.invite(&session("2"), Some("acp-2")).unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert!(guests.admit("", theirs.try_clone().unwrap()).is_none());
        let guest = guests.admit(&first, theirs.try_clone().unwrap()).unwrap();
        assert_eq!((guest.session().id.as_str(), guest.session().door), ("1", Door::Mcp));
        assert!(guest.host.get().is_none());
        guests.name("1", "acp-1");
        assert_eq!(guest.host.get().map(String::as_str), Some("acp-1"));
        guests.dismiss("1");
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
        assert!(guests.admit(&first, theirs.try_clone().unwrap()).is_none());
        assert!(guests.admit(&second, theirs.try_clone().unwrap()).is_some());
        guests.close();
        assert!(guests.admit(&second, theirs).is_none());
        assert!(guests.invite(&session("3"), None).is_none());
    }

    #[derive(Default)]
    struct Counts(Mutex<(u32, u32)>);

    impl Stay for Counts {
        fn withdraw(&self) {
            lock(&self.0).0 += 1;
        }

        fn end(&self) {
            lock(&self.0).1 += 1;
        }
    }

    #[test]
    fn who_was_sent_away_before_anything_was_begun_begins_nothing() {
        let guests = Guests::new(Path::new("/p"), Path::new("/s"));
        let (stream, _other) = UnixStream::pair().unwrap();
        let admit = |id: &str| {
            let word = guests.invite(&session(id), None).unwrap();
            guests.admit(&word, stream.try_clone().unwrap()).unwrap()
        };
        let (early, late) = (admit("1"), admit("2"));
        let stays = [Arc::<Counts>::default(), Arc::<Counts>::default()];
        early.stays(stays[0].clone());
        guests.withdraw("1");
        guests.withdraw("2");
        guests.dismiss("2");
        late.stays(stays[1].clone());
        assert_eq!((*lock(&stays[0].0), *lock(&stays[1].0)), ((1, 0), (0, 1)));
        guests.close();
        assert_eq!(*lock(&stays[0].0), (1, 1));
    }

    #[test]
    fn there_is_room_for_so_many_at_once() {
        let guests = Guests::new(Path::new("/p"), Path::new("/s"));
        let word = guests.invite(&session("1"), None).unwrap();
        let (stream, _other) = UnixStream::pair().unwrap();
        let mut all: Vec<_> =
            (0..MOST).map(|_| guests.admit(&word, stream.try_clone().unwrap()).unwrap()).collect();
        assert!(guests.admit(&word, stream.try_clone().unwrap()).is_none());
        all.pop();
        assert!(guests.admit(&word, stream).is_some());
    }
}
