//! The `fs/*` requests that wait for a worker or are being served.
//!
//! Bounded in number and bytes. Requests about the same path are served one
//! after the other in the order in which they came; others side by side. A
//! request can be cancelled until a worker takes it, never afterwards, so a
//! change is not torn; while one waits for a person nothing is done yet, so it
//! can be given up, and it holds up nobody.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

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

use super::sessions::Visit;

/// One request that passed the door and not yet the gateway.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: Id,
    pub(super) visit: Arc<Visit>,
    pub(super) request: FileRequest,
    /// The workspace that it is about, if that is a further one.
    pub(super) further: Option<Arc<FurtherWorkspace>>,
    /// The path as the agent wrote it.
    pub(super) path: String,
}

/// What an `fs/*` request asks for.
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

impl Job {
    fn weight(&self) -> usize {
        match &self.request {
            FileRequest::Read(_) => 0,
            FileRequest::Write(write) => write.content.len(),
        }
    }
}

/// A job that is being served and waits for a person.
pub(super) struct Waiting {
    /// The session that it belongs to.
    pub(super) acp_id: String,
    pub(super) ticket: Arc<Ticket>,
}

/// The queue.
pub(super) struct Jobs {
    state: Mutex<State>,
    /// A worker may find something to do.
    work: Notify,
    /// There may be room, or less to wait for.
    progress: Notify,
    most: usize,
    most_bytes: usize,
    most_running: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: HashMap<Id, WorkspacePath>,
    /// Those that run and wait for a person: they hold neither a worker's
    /// place nor their path.
    paused: HashMap<Id, Waiting>,
    answering: usize,
    bytes: usize,
    closed: bool,
}

/// See [`Jobs::alone`]. Ends when the answer was given.
pub(super) struct Alone<'a>(&'a Jobs);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

/// The job did not go in.
#[derive(Debug)]
pub(super) enum PushError {
    /// Its id is in use.
    Duplicate,
    /// The connection is ending; the job comes back.
    Closed(Job),
}

impl Jobs {
    /// At most `most` jobs and `most_bytes` of content wait, and at most
    /// `most_running` are served side by side, not counting those that wait
    /// for a person.
    pub(super) fn new(most: usize, most_bytes: usize, most_running: usize) -> Self {
        let (work, progress) = (Notify::default(), Notify::default());
        Self { state: Mutex::default(), work, progress, most, most_bytes, most_running }
    }

    /// A job waits for a person from now on.
    pub(super) fn pause(&self, id: &Id, waiting: Waiting) {
        let mut state = self.lock();
        if state.closed {
            waiting.ticket.withdraw();
        }
        state.paused.insert(id.clone(), waiting);
        self.work.notify_all();
    }

    /// It goes on.
    pub(super) fn resume(&self, id: &Id) {
        self.lock().paused.remove(id);
    }

    /// Gives the jobs up that wait for a person and that `which` picks; true
    /// if there were any.
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
    pub(super) fn push(&self, job: Job) -> Result<(), Box<PushError>> {
        let mut state = self.lock();
        if state.has(&job.id) {
            return Err(Box::new(PushError::Duplicate));
        }
        let weight = job.weight();
        while !state.closed
            && !state.waiting.is_empty()
            && (state.waiting.len() >= self.most
                || state.bytes.saturating_add(weight) > self.most_bytes)
        {
            match self.progress.wait(state, None) {
                Some(again) => state = again,
                None => return Err(Box::new(PushError::Closed(job))),
            }
        }
        if state.closed {
            return Err(Box::new(PushError::Closed(job)));
        }
        state.bytes = state.bytes.saturating_add(weight);
        state.waiting.push_back(job);
        // Workers that are busy look again when they are done.
        self.work.notify_one();
        Ok(())
    }

    /// Takes the first job whose path nobody is at; `None` once closed.
    pub(super) fn take(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.next(self.most_running) {
                state.running.insert(job.id.clone(), job.request.as_operation().path().clone());
                self.progress.notify_all();
                if !state.waiting.is_empty() {
                    self.work.notify_one();
                }
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = self.work.wait(state, None)?;
        }
    }

    /// Says that the job is served: its id and path are free again, before the
    /// agent hears of it and may use them. Its answer is still to be given.
    pub(super) fn served(&self, id: &Id) {
        let mut state = self.lock();
        state.running.remove(id);
        state.paused.remove(id);
        state.answering += 1;
        self.progress.notify_all();
        // Place and path are free: a job that waited for them can be taken.
        if !state.waiting.is_empty() {
            self.work.notify_all();
        }
    }

    /// The right to serve a job without queueing it, which counts as being
    /// answered; only while no other one waits or runs.
    pub(super) fn alone(&self) -> Option<Alone<'_>> {
        let mut state = self.lock();
        if state.closed || !state.waiting.is_empty() || !state.running.is_empty() {
            return None;
        }
        state.answering += 1;
        Some(Alone(self))
    }

    /// Says that the answer of a served job was given.
    pub(super) fn answered(&self) {
        let mut state = self.lock();
        state.answering = state.answering.saturating_sub(1);
        self.progress.notify_all();
    }

    /// Whether a job of this id waits or runs.
    pub(super) fn contains(&self, id: &Id) -> bool {
        self.lock().has(id)
    }

    /// Takes the jobs out that wait and that `which` picks.
    pub(super) fn cancel(&self, which: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut state = self.lock();
        let (gone, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(which);
        state.waiting = kept;
        state.bytes = state.waiting.iter().map(Job::weight).sum();
        self.progress.notify_all();
        gone.into()
    }

    /// Lets no more jobs in; those that wait come back.
    pub(super) fn close(&self) -> Vec<Job> {
        let mut state = self.lock();
        state.closed = true;
        self.work.notify_all();
        drop(state);
        self.withdraw(|_, _| true);
        self.cancel(|_| true)
    }

    /// Waits until every job that ran is answered; false when some still do after `timeout`.
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
        self.running.contains_key(id) || self.waiting.iter().any(|job| job.id == *id)
    }

    fn next(&mut self, most_running: usize) -> Option<Job> {
        if self.running.len().saturating_sub(self.paused.len()) >= most_running {
            return None;
        }
        let at_work = self.running.iter().filter(|(id, _)| !self.paused.contains_key(id));
        let mut busy: HashSet<&WorkspacePath> = at_work.map(|(_, path)| path).collect();
        let free =
            self.waiting.iter().position(|job| busy.insert(job.request.as_operation().path()))?;
        let job = self.waiting.remove(free)?;
        self.bytes = self.bytes.saturating_sub(job.weight());
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crate::model::{Door, Encoding, LineRange, Session};

    use super::*;

    fn job(id: i64, path: &str) -> Job {
        let session = Session {
            id: String::new(),
            agent: "a".parse().unwrap(),
            user: String::new(),
            door: Door::Acp,
        };
        Job {
            id: Id::Number(id),
            visit: Arc::new(Visit { acp_id: "s".into(), session }),
            request: FileRequest::Read(Read {
                path: WorkspacePath::parse(path).unwrap(),
                range: LineRange::default(),
                encoding: Encoding::Text,
            }),
            further: None,
            path: path.into(),
        }
    }

    #[test]
    fn one_path_is_served_in_order_and_others_overtake() {
        let jobs = Jobs::new(10, 10, 10);
        for (id, path) in [(1, "a"), (2, "a"), (3, "b")] {
            jobs.push(job(id, path)).unwrap();
        }
        assert_eq!(jobs.take().unwrap().id, Id::Number(1));
        assert_eq!(jobs.take().unwrap().id, Id::Number(3));
        jobs.served(&Id::Number(1));
        assert_eq!(jobs.take().unwrap().id, Id::Number(2));
    }

    #[test]
    fn what_runs_can_neither_be_cancelled_nor_doubled() {
        let jobs = Jobs::new(10, 10, 10);
        jobs.push(job(1, "a")).unwrap();
        jobs.push(job(2, "b")).unwrap();
        jobs.take().unwrap();
        assert!(jobs.cancel(|job| job.id == Id::Number(1)).is_empty());
        assert!(matches!(*jobs.push(job(1, "c")).unwrap_err(), PushError::Duplicate));
        assert_eq!(jobs.cancel(|job| job.id == Id::Number(2)).len(), 1);
        assert!(!jobs.contains(&Id::Number(2)));
    }

    #[test]
    fn one_is_alone_only_while_nobody_else_waits_or_runs_and_is_waited_for() {
        let jobs = Jobs::new(10, 10, 10);
        let alone = jobs.alone().unwrap();
        assert!(!jobs.wait_idle(Duration::ZERO));
        drop(alone);
        assert!(jobs.wait_idle(Duration::ZERO));
        jobs.push(job(1, "a")).unwrap();
        assert!(jobs.alone().is_none());
        jobs.take().unwrap();
        assert!(jobs.alone().is_none());
        jobs.served(&Id::Number(1));
        assert!(jobs.alone().is_some());
        jobs.close();
        assert!(jobs.alone().is_none());
    }

    #[test]
    fn a_full_queue_holds_back_until_closed() {
        let jobs = Jobs::new(1, 10, 10);
        jobs.push(job(1, "a")).unwrap();
        thread::scope(|scope| {
            let pusher = scope.spawn(|| jobs.push(job(2, "b")));
            thread::sleep(Duration::from_millis(10));
            assert_eq!(jobs.close().len(), 1);
            assert!(matches!(*pusher.join().unwrap().unwrap_err(), PushError::Closed(_)));
        });
        assert!(jobs.take().is_none());
        assert!(jobs.wait_idle(Duration::ZERO));
    }
}
