//! The queue of `fs/*` and `terminal/create` requests.
//!
//! It is bounded in number and bytes. Requests about the same path are served in order, and so are
//! those for commands; others in parallel. A request can be cancelled until a worker takes it, but
//! not afterwards, so that changes are atomic. A request that waits for an approval has not begun,
//! so it can be cancelled and does not block others.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use portcullis_commands::CommandLine;
use portcullis_rpc::{Id, Notify};

use crate::{
    FurtherWorkspace,
    gateway::Ticket,
    lock,
    model::{
        AsOperation, Operation, WorkspacePath,
        request::{Read, Write},
    },
};

use super::sessions::SessionLink;

/// The method of requests that start a command.
pub(super) const CREATE_TERMINAL: &str = "terminal/create";

/// A request on its way to the gateway.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub(super) id: Id,
    pub(super) session_link: Arc<SessionLink>,
    pub(super) request: AgentRequest,
    /// Its workspace, if that is a further one.
    pub(super) further: Option<Arc<FurtherWorkspace>>,
    /// The path in the agent's request.
    pub(super) path: Option<String>,
}

/// The kinds of requests.
#[derive(Debug)]
pub(super) enum AgentRequest {
    File(FileRequest),
    /// The start of a command of whose output this many bytes are stored.
    Command(CommandLine, usize),
}

/// The kinds of `fs/*` requests.
#[derive(Debug)]
pub(super) enum FileRequest {
    Read(Read),
    Write(Write),
}

impl AsOperation for FileRequest {
    fn as_operation(&self) -> Operation<'_> {
        match self {
            Self::Read(read) => Operation::Read(read),
            Self::Write(write) => Operation::Write(write),
        }
    }
}

impl QueuedRequest {
    fn weight(&self) -> usize {
        match &self.request {
            AgentRequest::File(FileRequest::Read(_)) => 0,
            AgentRequest::File(FileRequest::Write(write)) => write.content.len(),
            AgentRequest::Command(command, _) => command.size(),
        }
    }

    /// Returns what one request at a time can occupy: a path, or the start of commands.
    fn place(&self) -> Option<&WorkspacePath> {
        match &self.request {
            AgentRequest::File(file) => Some(file.as_operation().path()),
            AgentRequest::Command(..) => None,
        }
    }
}

/// A job that is being served and waits for an approval.
pub(super) struct Waiting {
    /// The ACP session that it belongs to.
    pub(super) acp_id: String,
    pub(super) ticket: Arc<Ticket>,
}

/// The queue of jobs.
pub(super) struct RequestQueue {
    state: Mutex<State>,
    /// A worker may find a job.
    work: Notify,
    /// There may be room, or fewer jobs in progress.
    progress: Notify,
    most: usize,
    most_bytes: usize,
    most_running: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<QueuedRequest>,
    running: HashMap<Id, Option<WorkspacePath>>,
    /// Running jobs that wait for an approval: they occupy neither a worker's slot nor their path.
    paused: HashMap<Id, Waiting>,
    answering: usize,
    bytes: usize,
    closed: bool,
}

/// The right to serve a job, from [`RequestQueue::alone`]. Dropping it marks the job as answered.
pub(super) struct ExclusiveService<'a>(&'a RequestQueue);

impl Drop for ExclusiveService<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

/// Reasons why a job was not queued.
#[derive(Debug)]
pub(super) enum PushError {
    /// Its ID is in use.
    Duplicate,
    /// The connection is ending; contains the job.
    Closed(QueuedRequest),
}

impl RequestQueue {
    /// Makes a queue of at most `most` waiting jobs with `most_bytes` of content. At most
    /// `most_running` are served in parallel, without those that wait for an approval.
    pub(super) fn new(most: usize, most_bytes: usize, most_running: usize) -> Self {
        let (work, progress) = (Notify::default(), Notify::default());
        Self { state: Mutex::default(), work, progress, most, most_bytes, most_running }
    }

    /// Marks a job as waiting for an approval.
    pub(super) fn pause(&self, id: &Id, waiting: Waiting) {
        let mut state = self.lock();
        if state.closed {
            waiting.ticket.withdraw();
        }
        state.paused.insert(id.clone(), waiting);
        self.work.notify_all();
    }

    /// Marks a job as no longer waiting for an approval.
    pub(super) fn resume(&self, id: &Id) {
        self.lock().paused.remove(id);
    }

    /// Withdraws the questions of the jobs that `which` selects; true if there were any.
    pub(super) fn withdraw(&self, which: impl Fn(&Id, &Waiting) -> bool) -> bool {
        let state = self.lock();
        let mut any = false;
        for (_, waiting) in state.paused.iter().filter(|(id, waiting)| which(id, waiting)) {
            waiting.ticket.withdraw();
            any = true;
        }
        any
    }

    /// Queues a job, waiting for room.
    pub(super) fn push(&self, queued: QueuedRequest) -> Result<(), Box<PushError>> {
        let mut state = self.lock();
        if state.has(&queued.id) {
            return Err(Box::new(PushError::Duplicate));
        }
        let weight = queued.weight();
        while !state.closed
            && !state.waiting.is_empty()
            && (state.waiting.len() >= self.most
                || state.bytes.saturating_add(weight) > self.most_bytes)
        {
            match self.progress.wait(state, None) {
                Some(again) => state = again,
                None => return Err(Box::new(PushError::Closed(queued))),
            }
        }
        if state.closed {
            return Err(Box::new(PushError::Closed(queued)));
        }
        state.bytes = state.bytes.saturating_add(weight);
        state.waiting.push_back(queued);
        // Busy workers look for a job when they are done.
        self.work.notify_one();
        Ok(())
    }

    /// Takes the first job whose path is not in use; `None` once closed.
    pub(super) fn take(&self) -> Option<QueuedRequest> {
        let mut state = self.lock();
        loop {
            if let Some(queued) = state.next(self.most_running) {
                state.running.insert(queued.id.clone(), queued.place().cloned());
                self.progress.notify_all();
                if !state.waiting.is_empty() {
                    self.work.notify_one();
                }
                return Some(queued);
            }
            if state.closed {
                return None;
            }
            state = self.work.wait(state, None)?;
        }
    }

    /// Marks a job as served. Its ID and path are free before the agent gets the reply and may use
    /// them again. The reply is still to be sent.
    pub(super) fn served(&self, id: &Id) {
        let mut state = self.lock();
        state.running.remove(id);
        state.paused.remove(id);
        state.answering += 1;
        self.progress.notify_all();
        // Slot and path are free, so a job that waited for them can be taken.
        if !state.waiting.is_empty() {
            self.work.notify_all();
        }
    }

    /// Returns the right to serve a job without queueing it, as one whose reply is still to be
    /// sent. `None` unless no other job waits or runs.
    pub(super) fn alone(&self) -> Option<ExclusiveService<'_>> {
        let mut state = self.lock();
        if state.closed || !state.waiting.is_empty() || !state.running.is_empty() {
            return None;
        }
        state.answering += 1;
        Some(ExclusiveService(self))
    }

    /// Marks a served job as answered.
    pub(super) fn answered(&self) {
        let mut state = self.lock();
        state.answering = state.answering.saturating_sub(1);
        self.progress.notify_all();
    }

    /// True if a job with this ID waits or runs.
    pub(super) fn contains(&self, id: &Id) -> bool {
        self.lock().has(id)
    }

    /// Removes and returns the waiting jobs that `which` selects.
    pub(super) fn cancel(&self, which: impl Fn(&QueuedRequest) -> bool) -> Vec<QueuedRequest> {
        let mut state = self.lock();
        let (gone, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(which);
        state.waiting = kept;
        state.bytes = state.waiting.iter().map(QueuedRequest::weight).sum();
        self.progress.notify_all();
        gone.into()
    }

    /// Closes the queue, and returns the waiting jobs.
    pub(super) fn close(&self) -> Vec<QueuedRequest> {
        let mut state = self.lock();
        state.closed = true;
        self.work.notify_all();
        drop(state);
        self.withdraw(|_, _| true);
        self.cancel(|_| true)
    }

    /// Waits until every running job is answered; false if some are not after `timeout`.
    pub(super) fn wait_idle(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.running.is_empty() || state.answering > 0 {
            match self.progress.wait(state, Some(end)) {
                Some(again) => state = again,
                None => return false,
            }
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn has(&self, id: &Id) -> bool {
        self.running.contains_key(id) || self.waiting.iter().any(|queued| queued.id == *id)
    }

    fn next(&mut self, most_running: usize) -> Option<QueuedRequest> {
        if self.running.len().saturating_sub(self.paused.len()) >= most_running {
            return None;
        }
        let at_work = self.running.iter().filter(|(id, _)| !self.paused.contains_key(id));
        let mut busy: HashSet<_> = at_work.map(|(_, place)| place.as_ref()).collect();
        let free = self.waiting.iter().position(|queued| busy.insert(queued.place()))?;
        let queued = self.waiting.remove(free)?;
        self.bytes = self.bytes.saturating_sub(queued.weight());
        Some(queued)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::model::{Encoding, LineRange, Session, Transport};

    use super::*;

    fn queued(id: i64, path: &str) -> QueuedRequest {
        let session = Session {
            id: String::new(),
            agent: "a".parse().unwrap(),
            user: String::new(),
            transport: Transport::Acp,
            acp: None,
        };
        QueuedRequest {
            id: Id::Number(id),
            session_link: Arc::new(SessionLink { acp_id: "s".into(), session }),
            request: AgentRequest::File(FileRequest::Read(Read {
                path: WorkspacePath::parse(path).unwrap(),
                range: LineRange::default(),
                encoding: Encoding::Text,
            })),
            further: None,
            path: Some(path.into()),
        }
    }

    #[test]
    fn empty_arguments_of_a_queued_command_weighed_nothing() {
        let command = CommandLine::new("true".to_owned(), vec![String::new(); 1000]);
        let queued = QueuedRequest { request: AgentRequest::Command(command, 0), ..queued(1, "a") };
        assert!(queued.weight() > 24_000, "{}", queued.weight());
    }

    #[test]
    fn one_path_is_served_in_order_and_others_overtake() {
        let agent_requests = RequestQueue::new(10, 10, 10);
        for (id, path) in [(1, "a"), (2, "a"), (3, "b")] {
            agent_requests.push(queued(id, path)).unwrap();
        }
        assert_eq!(agent_requests.take().unwrap().id, Id::Number(1));
        assert_eq!(agent_requests.take().unwrap().id, Id::Number(3));
        agent_requests.served(&Id::Number(1));
        assert_eq!(agent_requests.take().unwrap().id, Id::Number(2));
    }

    #[test]
    fn what_runs_can_neither_be_cancelled_nor_doubled() {
        let agent_requests = RequestQueue::new(10, 10, 10);
        agent_requests.push(queued(1, "a")).unwrap();
        agent_requests.push(queued(2, "b")).unwrap();
        agent_requests.take().unwrap();
        assert!(agent_requests.cancel(|queued| queued.id == Id::Number(1)).is_empty());
        assert!(matches!(*agent_requests.push(queued(1, "c")).unwrap_err(), PushError::Duplicate));
        assert_eq!(agent_requests.cancel(|queued| queued.id == Id::Number(2)).len(), 1);
        assert!(!agent_requests.contains(&Id::Number(2)));
    }

    #[test]
    fn one_is_alone_only_while_nobody_else_waits_or_runs_and_is_waited_for() {
        let agent_requests = RequestQueue::new(10, 10, 10);
        let alone = agent_requests.alone().unwrap();
        assert!(!agent_requests.wait_idle(Duration::ZERO));
        drop(alone);
        assert!(agent_requests.wait_idle(Duration::ZERO));
        agent_requests.push(queued(1, "a")).unwrap();
        assert!(agent_requests.alone().is_none());
        agent_requests.take().unwrap();
        assert!(agent_requests.alone().is_none());
        agent_requests.served(&Id::Number(1));
        assert!(agent_requests.alone().is_some());
        agent_requests.close();
        assert!(agent_requests.alone().is_none());
    }

    #[test]
    fn a_full_queue_holds_back_until_closed() {
        let agent_requests = RequestQueue::new(1, 10, 10);
        agent_requests.push(queued(1, "a")).unwrap();
        thread::scope(|scope| {
            let pusher = scope.spawn(|| agent_requests.push(queued(2, "b")));
            thread::sleep(Duration::from_millis(10));
            assert_eq!(agent_requests.close().len(), 1);
            assert!(matches!(*pusher.join().unwrap().unwrap_err(), PushError::Closed(_)));
        });
        assert!(agent_requests.take().is_none());
        assert!(agent_requests.wait_idle(Duration::ZERO));
    }
}
