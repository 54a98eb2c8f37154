//! The lifecycle of workers: their messages, their ends, and the reports about them.

use std::time::Instant;

use serde_json::json;

use super::{
    broker::{Broker, RETRY_INTERVALS, facts},
    messages::{FromWorker, ToFront, WorkspaceAnswer},
    workers::{SessionRequest, WorkerProcess},
};
use crate::model::Escaped;

impl Broker {
    pub(super) fn start(&mut self, name: &str) -> Result<(), WorkspaceAnswer> {
        if self.failing.get(name).is_some_and(|(until, _)| Instant::now() < *until) {
            return Err(WorkspaceAnswer::Unavailable);
        }
        let Some(place) = self.plan.places.get(name) else {
            return Err(WorkspaceAnswer::UnknownWorkspace);
        };
        let unreachable = self.plan.unreachable(Some(place), &self.front_listeners.control);
        match WorkerProcess::start(&self.plan, place, unreachable) {
            Ok(worker) => {
                self.workers.insert(name.to_owned(), worker);
                Ok(())
            }
            Err(failure) => {
                self.record_failed_start(name, failure.message());
                Err(WorkspaceAnswer::Unavailable)
            }
        }
    }

    pub(super) fn handle_worker(&mut self, name: &str, message: FromWorker) {
        match message {
            FromWorker::Ready { apart } => {
                self.failing.remove(name);
                let Some(worker) = self.workers.get_mut(name) else { return };
                let Some(place) = self.plan.places.get(name) else { return };
                if let Err(failure) = worker.set_ready(&self.plan, place) {
                    errln!(
                        "portcullis: warning: the log of `{name}` is not copied: {}",
                        Escaped(failure.message())
                    );
                }
                let facts = facts([
                    ("workspace", json!(name)),
                    ("process", json!(worker.id())),
                    ("unreachable", json!(apart.tried)),
                ]);
                let waiting = std::mem::take(&mut worker.waiting);
                self.service_log.note("worker.start", facts);
                for session_request in waiting {
                    // A worker that ended meanwhile has been removed.
                    if self.workers.contains_key(name) {
                        self.begin(name, session_request);
                    } else {
                        self.answer(
                            session_request.request_number,
                            WorkspaceAnswer::Unavailable,
                            None,
                        );
                    }
                }
            }
            FromWorker::Failed { reason } => {
                self.record_failed_start(name, &reason);
                let Some(worker) = self.workers.remove(name) else { return };
                self.refuse_all(&worker.waiting);
                worker.end();
            }
            FromWorker::Numbers(numbers) => {
                // A message for which the front has no room is repeated in a second.
                let workspace = name.to_owned();
                let _ = self
                    .front_listeners
                    .channel
                    .send_now(&ToFront::Numbers { workspace, numbers }, &[]);
            }
            FromWorker::Spans { spans, lost } => self.export(name, spans, lost),
            FromWorker::Begun { number } => self.report_begin(name, number, true),
            FromWorker::NotBegun { number } => {
                self.report_begin(name, number, false);
                self.remove_session(name, number);
            }
            FromWorker::Ended { number } => {
                // Its end may be reported before its beginning.
                self.report_begin(name, number, true);
                self.remove_session(name, number);
            }
        }
    }

    /// Replies that a session has begun, or that it has not.
    fn report_begin(&mut self, name: &str, number: u64, begun: bool) {
        let session_request = self.workers.get_mut(name).and_then(|worker| worker.begun(number));
        match session_request {
            Some((session_request, stream)) if begun => {
                self.answer(session_request.request_number, WorkspaceAnswer::Stream, Some(stream));
            }
            Some((session_request, _)) => {
                let found =
                    self.busy(name, &session_request, "the worker could not begin the session");
                self.answer(session_request.request_number, found, None);
            }
            None => {}
        }
    }

    fn remove_session(&mut self, name: &str, number: u64) {
        if let Some(worker) = self.workers.get_mut(name) {
            worker.ended(number);
        }
    }

    /// Records that a worker failed to start: requests for it fail at once during a pause.
    pub(super) fn record_failed_start(&mut self, name: &str, reason: &str) {
        errln!("portcullis: error: the workspace `{name}` cannot be served: {}", Escaped(reason));
        self.service_log.deny("worker.start", reason, facts([("workspace", json!(name))]));
        let (first, longest) = RETRY_INTERVALS;
        let pause = self.failing.get(name).map_or(first, |(_, pause)| (*pause * 2).min(longest));
        self.failing.insert(name.to_owned(), (Instant::now() + pause, pause));
    }

    pub(super) fn refuse_all(&self, session_requests: &[SessionRequest]) {
        for session_request in session_requests {
            self.answer(session_request.request_number, WorkspaceAnswer::Unavailable, None);
        }
    }

    /// Notifies the front of a worker's end.
    fn notify_gone(&self, name: &str, died: bool) {
        let forget = !self.plan.places.contains_key(name);
        let message = ToFront::Gone { workspace: name.to_owned(), died, forget };
        // Only metrics depend on it.
        let _ = self.front_listeners.channel.send_now(&message, &[]);
    }

    /// Handles a worker that ended unexpectedly.
    pub(super) fn handle_unexpected_end(&mut self, name: &str, reason: &str) {
        let Some(mut worker) = self.workers.remove(name) else { return };
        let left = worker.unanswered();
        let (ready, process) = (worker.is_ready(), worker.id());
        self.refuse_all(&worker.waiting);
        self.notify_gone(name, true);
        let how = worker.end();
        if !ready {
            return self.record_failed_start(name, &format!("its process ended: {how}"));
        }
        errln!(
            "portcullis: warning: the worker of `{name}` ended ({how}: {reason}); the next session \
             starts another"
        );
        let facts = facts([("workspace", json!(name)), ("process", json!(process))]);
        self.service_log.deny("worker.stop", &format!("it ended by itself: {how}"), facts);
        for session_request in left {
            self.retry(name, session_request);
        }
    }

    /// Handles a worker that has stopped as requested.
    pub(super) fn handle_end(&mut self, at: usize) {
        let worker = self.stopping.swap_remove(at);
        if !self.workers.contains_key(&worker.name) {
            self.notify_gone(&worker.name, false);
        }
        let facts = facts([("workspace", json!(worker.name)), ("process", json!(worker.id()))]);
        let how = worker.end();
        if how == "exit status: 0" {
            self.service_log.note("worker.stop", facts);
        } else {
            self.service_log.deny("worker.stop", &how, facts);
        }
    }

    /// Stops the worker of a workspace, because the whole `service` stops or because
    /// the workspace has changed; the workspace may get another worker at once.
    pub(super) fn stop_worker(&mut self, name: &str, service: bool) {
        if let Some(mut worker) = self.workers.remove(name) {
            self.refuse_all(&std::mem::take(&mut worker.waiting));
            self.refuse_all(&worker.unanswered());
            worker.stop(service);
            self.stopping.push(worker);
        }
    }
}
