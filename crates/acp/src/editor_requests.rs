//! The gateway's own requests to the editor.
//!
//! Their IDs are strings with a random prefix, which distinguishes them from every ID of an agent.
//! Each waits for its reply for a bounded time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, SyncSender},
    },
    time::Duration,
};

use portcullis_rpc::{BoundedQueue, Id};
use serde::Serialize;
use serde_json::value::RawValue;

use super::render;
use crate::lock;

/// A reply of the editor.
#[derive(Debug)]
pub(super) enum Answer {
    Result(Box<RawValue>),
    Error(Box<RawValue>),
    /// The line with the reply was refused.
    Unreadable,
}

/// Reasons why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoReply {
    #[error("the editor did not answer in time")]
    Timeout,
    #[error("the editor is gone")]
    Gone,
}

/// The recipient of a reply.
enum Waiter {
    /// A thread that waits for it.
    Thread(SyncSender<Answer>),
    /// A callback for its arrival.
    Later(Box<dyn FnOnce(Answer) + Send>),
}

/// Pending requests to the editor.
pub(super) struct EditorRequests {
    editor: Arc<BoundedQueue<Vec<u8>>>,
    prefix: String,
    next: AtomicU64,
    waiting: Mutex<HashMap<String, Waiter>>,
    closed: AtomicBool,
    timeout: Duration,
}

impl EditorRequests {
    /// Makes the table; `secret` makes the IDs unguessable.
    pub(super) fn new(editor: Arc<BoundedQueue<Vec<u8>>>, secret: &str, timeout: Duration) -> Self {
        Self {
            editor,
            prefix: format!("portcullis-{secret}-"),
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            closed: AtomicBool::new(false),
            timeout,
        }
    }

    /// True if an ID is one of the gateway's own.
    pub(super) fn owns(&self, id: &Id) -> bool {
        matches!(id, Id::Text(text) if text.starts_with(&self.prefix))
    }

    /// Makes a name that no agent can guess from one that it may know.
    pub(super) fn unguessable(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Sends a request to the editor and waits for the reply.
    pub(super) fn call(&self, method: &str, params: &impl Serialize) -> Result<Answer, NoReply> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let id = self.begin(method, params, Waiter::Thread(sender))?;
        match receiver.recv_timeout(self.timeout) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => Err(NoReply::Gone),
            Err(RecvTimeoutError::Timeout) => {
                self.give_up(&id);
                Err(NoReply::Timeout)
            }
        }
    }

    /// Sends a request to the editor without waiting: the thread that receives the reply passes it
    /// to `answered`, at most once. Returns the ID of the request.
    pub(super) fn post(
        &self,
        method: &str,
        params: &impl Serialize,
        answered: impl FnOnce(Answer) + Send + 'static,
    ) -> Result<String, NoReply> {
        self.begin(method, params, Waiter::Later(Box::new(answered)))
    }

    /// Stops waiting for a reply, and notifies the editor if there was none yet.
    pub(super) fn give_up(&self, id: &str) {
        if lock(&self.waiting).remove(id).is_some() {
            let cancel = render::cancel(&Id::Text(id.to_owned()));
            // The notification is optional; an editor that does not read gets none.
            let _ = self.editor.push_line_within(cancel, Duration::ZERO);
        }
    }

    fn begin(
        &self,
        method: &str,
        params: &impl Serialize,
        waiter: Waiter,
    ) -> Result<String, NoReply> {
        let id = format!("{}{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed));
        lock(&self.waiting).insert(id.clone(), waiter);
        // Checked after the insertion, since `close` empties the table after setting the flag.
        if self.closed.load(Ordering::SeqCst) {
            lock(&self.waiting).remove(&id);
            return Err(NoReply::Gone);
        }
        let line = render::request(&Id::Text(id.clone()), method, params);
        if self.editor.push_line_within(line, self.timeout).is_err() {
            lock(&self.waiting).remove(&id);
            return Err(NoReply::Timeout);
        }
        Ok(id)
    }

    /// Passes the editor's reply to its recipient; false if there is none.
    pub(super) fn answer(&self, id: &Id, answer: Answer) -> bool {
        let Id::Text(id) = id else { return false };
        let waiting = lock(&self.waiting).remove(id);
        match waiting {
            Some(Waiter::Thread(sender)) => sender.try_send(answer).is_ok(),
            Some(Waiter::Later(answered)) => {
                answered(answer);
                true
            }
            None => false,
        }
    }

    /// Ends all pending requests, and refuses later ones.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        lock(&self.waiting).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn editor_requests(timeout: u64) -> (Arc<BoundedQueue<Vec<u8>>>, EditorRequests) {
        let queue = Arc::new(BoundedQueue::new(1000));
        let editor_requests =
            EditorRequests::new(Arc::clone(&queue), "5eed", Duration::from_millis(timeout));
        (queue, editor_requests)
    }

    #[test]
    fn an_answer_reaches_the_one_that_asked_and_only_once() {
        let (_queue, editor_requests) = editor_requests(60_000);
        let id = Id::Text("portcullis-5eed-0".into());
        assert!(
            editor_requests.owns(&id) && !editor_requests.owns(&Id::Text("portcullis-0".into()))
        );
        thread::scope(|scope| {
            let asked = scope.spawn(|| editor_requests.call("m", &()));
            while !editor_requests.answer(&id, Answer::Unreadable) {
                thread::yield_now();
            }
            assert!(matches!(asked.join().unwrap(), Ok(Answer::Unreadable)));
        });
        assert!(!editor_requests.answer(&id, Answer::Unreadable));
    }

    #[test]
    fn a_silent_editor_is_given_up_on_and_told_so() {
        let (queue, editor_requests) = editor_requests(20);
        assert_eq!(editor_requests.call("m", &()).unwrap_err(), NoReply::Timeout);
        let _request = queue.pop();
        let cancel = String::from_utf8(queue.pop().unwrap()).unwrap();
        assert!(cancel.contains("$/cancel_request"), "{cancel}");
    }

    #[test]
    fn closing_ends_the_waiting() {
        let (_queue, editor_requests) = editor_requests(60_000);
        thread::scope(|scope| {
            let asked = scope.spawn(|| editor_requests.call("m", &()));
            thread::sleep(Duration::from_millis(20));
            editor_requests.close();
            assert_eq!(asked.join().unwrap().unwrap_err(), NoReply::Gone);
        });
        assert_eq!(editor_requests.call("m", &()).unwrap_err(), NoReply::Gone);
    }
}
