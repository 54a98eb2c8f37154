//! The commands of a sandbox, by session.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use portcullis_rpc::Notify;
use serde_json::{Value, json};

use crate::{
    command::{CommandLine, Exit},
    gateway::{self, Approver, Gateway},
    lock,
    model::{AcpSession, Session, Transport},
    output::{Output, Part},
};

/// The maximum of unreleased commands of a session.
pub const MAX_COMMANDS: usize = 32;
/// The maximum of unreleased commands of all sessions.
const MAX_ALL: usize = 128;
/// The maximum of bytes of a command's output that are stored.
pub const MAX_OUTPUT: usize = 1024 * 1024;
/// The maximum of threads that wait for commands.
const MAX_WAITING: usize = 8;
/// Interval at which a waiting thread checks if its wait is cancelled.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The kind of record of a command's exit.
const ENDED: &str = "command.ended";
/// The maximum length of a tool call's identifier in a record, in characters.
const MAX_TOOL_CALL: usize = 128;
/// The maximum length in bytes of a tool call's identifier that is searched for secrets: callers wait
/// meanwhile.
const MAX_SEARCHED: usize = 1024;

/// Starts commands in a sandbox. None of its methods waits for the command.
pub trait Starter: Send + Sync {
    /// Starts a command; its progress is reported as [`Event`]s.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    fn start(&self, number: u64, command: CommandLine) -> Result<(), String>;

    /// Kills a command with all of its descendants.
    fn kill(&self, number: u64);

    /// Kills a command likewise, and removes it.
    fn release(&self, number: u64);
}

/// Events of a command.
#[derive(Debug)]
pub enum Event<'a> {
    /// The command has started.
    Started,
    /// The command could not be started, for this reason.
    NotStarted(String),
    /// The command has written these bytes.
    Output(&'a [u8]),
    /// The command has ended.
    Ended(Exit),
    /// The command is removed.
    Released,
}

/// The state of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The start was requested.
    Starting,
    /// The command runs.
    Running,
    /// The command could not be started, for this reason.
    NotStarted(String),
    /// The command has ended; processes that it left may continue.
    Ended(Exit),
}

impl State {
    /// Returns true if the state is final.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::NotStarted(_) | Self::Ended(_))
    }
}

/// A snapshot of a command.
#[derive(Debug, Clone)]
pub struct View {
    /// Its state.
    pub state: State,
    /// A part of its output.
    pub output: Part,
    /// The number of bytes that it has written.
    pub total: u64,
}

/// The reason why a command is not started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command was denied, which is recorded.
    #[error(transparent)]
    Refused(#[from] gateway::Error),
    /// The command line is invalid.
    #[error("{0}")]
    Invalid(&'static str),
    /// There are too many unreleased commands.
    #[error("too many commands are not released: at most {MAX_COMMANDS} in a session")]
    TooMany,
    /// The sandbox accepts no more commands.
    #[error("the sandbox accepts no more commands")]
    Closed,
}

/// The commands of a sandbox.
pub struct Registry {
    gateway: Arc<Gateway>,
    starter: Box<dyn Starter>,
    all: Mutex<Commands>,
    changed: Notify,
    /// Locked while a command is recorded and entered.
    entering: Mutex<()>,
    /// The number of threads that wait for a command's end.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Commands {
    by_number: BTreeMap<u64, Command>,
    is_closed: bool,
    /// The number of changes so far.
    changes: u64,
}

struct Command {
    session: Session,
    begun: Instant,
    state: State,
    output: Output,
    /// Set once the session has released it.
    is_released: bool,
}

impl Registry {
    /// Returns an empty registry.
    pub fn new(gateway: Arc<Gateway>, starter: Box<dyn Starter>) -> Self {
        let (all, changed, entering, waiting) = Default::default();
        Self { gateway, starter, all, changed, entering, waiting }
    }

    /// Starts a command for `session`, and returns its number, which is that of its record. The
    /// last `limit` bytes of its output are stored, at most [`MAX_OUTPUT`]. Waits where the policy
    /// asks for an approval.
    ///
    /// # Errors
    /// When it is denied, or cannot be started.
    pub fn start(
        &self,
        session: &Session,
        command: CommandLine,
        limit: usize,
        approver: &dyn Approver,
    ) -> Result<u64, Error> {
        command.check().map_err(Error::Invalid)?;
        // Nobody is asked about a command for which there is no room.
        self.make_room(&session.id)?;
        let allowed = self.gateway.decide_command(session, &command.request(), approver)?;
        let _entering = lock(&self.entering);
        self.make_room(&session.id)?;
        let number = self.gateway.record_command(allowed)?.seq;
        // The tool call in which it is shown counts, and not that in progress when it ends.
        let acp = session.acp.as_deref().map(AcpSession::without_tool_call);
        let entered = Command {
            session: Session { acp, ..session.clone() },
            begun: Instant::now(),
            state: State::Starting,
            output: Output::new(limit.min(MAX_OUTPUT)),
            is_released: false,
        };
        lock(&self.all).by_number.insert(number, entered);
        if let Err(reason) = self.starter.start(number, command) {
            self.handle_event(number, Event::NotStarted(reason));
        }
        Ok(number)
    }

    /// Ensures that a further command may start. If necessary it releases the oldest MCP task of
    /// the session that has ended: MCP clients release none.
    fn make_room(&self, session: &str) -> Result<(), Error> {
        let all = lock(&self.all);
        if all.is_closed {
            return Err(Error::Closed);
        }
        let entered = || all.by_number.iter().filter(|(_, command)| !command.is_released);
        let own = || entered().filter(|(_, command)| command.session.id == session);
        if own().count() < MAX_COMMANDS && entered().count() < MAX_ALL {
            return Ok(());
        }
        let is_spent = |(_, command): &(&u64, &Command)| {
            command.session.transport == Transport::Mcp && command.state.is_over()
        };
        let spent = own().find(is_spent).map(|(number, _)| *number).ok_or(Error::TooMany)?;
        drop(all);
        self.release(session, spent);
        Ok(())
    }

    /// Returns a command of a session with the last `limit` bytes of its output.
    pub fn view(&self, session: &str, number: u64, limit: usize) -> Option<View> {
        self.look(session, number, |output| output.last(limit))
    }

    /// Returns a command with at most `limit` bytes from the offset `from` on, or from the first
    /// stored byte after it.
    pub fn view_after(
        &self,
        session: &str,
        number: u64,
        (from, limit): (u64, usize),
    ) -> Option<View> {
        self.look(session, number, |output| output.after(from, limit))
    }

    fn look(&self, session: &str, number: u64, part: impl Fn(&Output) -> Part) -> Option<View> {
        let all = lock(&self.all);
        let command = all.of(session, number)?;
        let state = command.state.clone();
        Some(View { state, output: part(&command.output), total: command.output.total() })
    }

    /// Kills a command with all of its descendants; returns false where the session has none of
    /// that number.
    pub fn kill(&self, session: &str, number: u64) -> bool {
        let is_there = lock(&self.all).of(session, number).is_some();
        if is_there {
            self.starter.kill(number);
        }
        is_there
    }

    /// Kills a command likewise, and removes it.
    pub fn release(&self, session: &str, number: u64) -> bool {
        let mut all = lock(&self.all);
        let command = all.by_number.get_mut(&number);
        let command = command.filter(|command| !command.is_released);
        let Some(command) = command.filter(|command| command.session.id == session) else {
            return false;
        };
        command.is_released = true;
        match command.state {
            // There is nothing to kill, and no event will follow.
            State::NotStarted(_) => drop(all.by_number.remove(&number)),
            _ => self.starter.release(number),
        }
        all.changes += 1;
        self.changed.notify_all();
        true
    }

    /// Notes the ACP tool call in which a command is shown, unless its identifier is too long.
    pub fn note_tool_call(&self, session: &str, number: u64, id: &str) {
        if id.len() > MAX_SEARCHED {
            return;
        }
        // A secret that is cut is no longer found.
        let Some(id) = self.gateway.redact_text(id) else { return };
        let mut all = lock(&self.all);
        if let Some(command) = all.by_number.get_mut(&number)
            && command.session.id == session
            && let Some(acp) = &command.session.acp
        {
            let id: String = id.chars().take(MAX_TOOL_CALL).collect();
            acp.tool_call.set(Some(id.into()));
        }
    }

    /// Releases all commands of a session, because it has ended.
    pub fn end_session(&self, session: &str) {
        let all = lock(&self.all);
        let own = all.by_number.iter().filter(|(_, command)| command.session.id == session);
        let numbers: Vec<_> = own.map(|(number, _)| *number).collect();
        drop(all);
        for number in numbers {
            self.release(session, number);
        }
    }

    /// Starts no more commands, releases all, and waits until their exits are recorded, at most
    /// for `timeout`.
    pub fn end(&self, timeout: Duration) {
        let mut all = lock(&self.all);
        all.is_closed = true;
        let every = all.by_number.iter().map(|(n, command)| (*n, command.session.id.clone()));
        let every: Vec<_> = every.collect();
        drop(all);
        for (number, session) in every {
            self.release(&session, number);
        }
        let end = Instant::now() + timeout;
        let mut all = lock(&self.all);
        while !all.by_number.is_empty() {
            match self.changed.wait(all, Some(end)) {
                Some(again) => all = again,
                None => return,
            }
        }
    }

    /// Waits until something has changed since `seen`, or the deadline has passed; returns the
    /// number of changes so far.
    pub fn wait_for_change(&self, seen: u64, deadline: Option<Instant>) -> u64 {
        let mut all = lock(&self.all);
        while all.changes == seen {
            match self.changed.wait(all, deadline) {
                Some(again) => all = again,
                None => return seen,
            }
        }
        all.changes
    }

    /// Wakes the threads that wait for a change.
    pub fn wake(&self) {
        let mut all = lock(&self.all);
        all.changes += 1;
        self.changed.notify_all();
    }

    /// Waits until a command is over, `until` has passed, or the wait is cancelled; returns false
    /// at once if too many threads wait already.
    pub fn wait(
        &self,
        session: &str,
        number: u64,
        until: Instant,
        is_given_up: impl Fn() -> bool,
    ) -> bool {
        let may_wait = self.waiting.fetch_add(1, Ordering::SeqCst) < MAX_WAITING;
        if may_wait {
            self.wait_while(session, number, (until, is_given_up), |state| !state.is_over());
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        may_wait
    }

    /// Waits until a command runs or is over, or `until` has passed.
    pub fn wait_for_start(&self, session: &str, number: u64, until: Instant) {
        let is_starting = |state: &State| *state == State::Starting;
        self.wait_while(session, number, (until, || false), is_starting);
    }

    fn wait_while(
        &self,
        session: &str,
        number: u64,
        (until, is_given_up): (Instant, impl Fn() -> bool),
        goes_on: impl Fn(&State) -> bool,
    ) {
        let mut all = lock(&self.all);
        while all.of(session, number).is_some_and(|command| goes_on(&command.state)) {
            let now = Instant::now();
            if now >= until || is_given_up() {
                return;
            }
            all = match self.changed.wait(all, Some(until.min(now + CHECK_INTERVAL))) {
                Some(again) => again,
                None => lock(&self.all),
            };
        }
    }

    /// Handles an event of a command.
    pub fn handle_event(&self, number: u64, event: Event<'_>) {
        let mut all = lock(&self.all);
        let Some(command) = all.by_number.get_mut(&number) else { return };
        match event {
            Event::Started => command.state = State::Running,
            Event::Output(bytes) => command.output.push(bytes),
            Event::NotStarted(reason) => self.close(number, command, State::NotStarted(reason)),
            Event::Ended(exit) => self.close(number, command, State::Ended(exit)),
            Event::Released => {
                self.close(number, command, State::Ended(Exit::Lost));
                all.by_number.remove(&number);
            }
        }
        all.changes += 1;
        self.changed.notify_all();
    }

    /// Handles the end of the sandbox with all commands.
    pub fn handle_end(&self) {
        let mut all = lock(&self.all);
        all.is_closed = true;
        for (number, command) in &mut all.by_number {
            self.close(*number, command, State::Ended(Exit::Lost));
        }
        // Nothing will release them any more.
        all.by_number.clear();
        all.changes += 1;
        self.changed.notify_all();
    }

    /// Notes the end of a command, once, and records it.
    fn close(&self, number: u64, command: &mut Command, state: State) {
        if command.state.is_over() {
            return;
        }
        command.state = state;
        let mut facts = BTreeMap::from([
            ("command".to_owned(), Value::from(number)),
            ("milliseconds".to_owned(), millis(command.begun.elapsed()).into()),
            ("outputBytes".to_owned(), command.output.total().into()),
        ]);
        match &command.state {
            State::Ended(Exit::Lost) => drop(facts.insert("lost".to_owned(), true.into())),
            State::Ended(exit) => facts.extend(exit.members()),
            State::NotStarted(reason) => drop(facts.insert("notStarted".to_owned(), json!(reason))),
            State::Starting | State::Running => {}
        }
        if let Err(error) = self.gateway.note(&command.session, ENDED, facts) {
            tracing::error!(%error, "cannot record the end of a command");
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl Commands {
    fn of(&self, session: &str, number: u64) -> Option<&Command> {
        let command = self.by_number.get(&number)?;
        (command.session.id == session && !command.is_released).then_some(command)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
