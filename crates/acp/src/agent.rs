//! Messages from the agent to the editor.
//!
//! Replies to the editor's requests, `session/update` and `session/request_permission` pass, and
//! the names that the operator forwards. `fs/*` is served here and never passes, and so is
//! `terminal/*` where the policy allows it. Every other request is answered with −32601, every
//! other notification dropped, and both are recorded.

use std::sync::{Arc, Mutex};

use portcullis_rpc::{
    Frame, Id, InvalidMessage, Message, MessageError, Object, Outcome, is_text, response,
};
use serde_json::value::RawValue;

use crate::{
    gateway::{Approver, Client, Refusal, Source, Ticket},
    lock,
    model::{
        Encoding,
        request::{Read, Write},
    },
};

use super::{
    SourceMode,
    asker::EditorApprover,
    buffers::EditorBuffers,
    initialize, logins,
    params::{self, FileOperation, Method, Params},
    paths::OutsideWorkspace,
    proxy::{AcpProxy, LineTreatment, Peer},
    render,
    request_queue::{AgentRequest, FileRequest, PushError, QueuedRequest},
    sessions::Effect,
    terminals::Terminals,
};

impl AcpProxy<'_> {
    /// Handles a frame from the agent.
    pub(super) fn handle_agent_frame(&self, frame: Frame) {
        let line = match frame {
            Frame::Line(line) => line,
            Frame::TooLong { head } | Frame::GivenUp { head } => {
                return self
                    .malformed(Peer::Agent, &InvalidMessage::new(MessageError::TooLong, &head));
            }
            Frame::Incomplete { head, .. } => {
                if is_text(&head) {
                    self.output.text(&head);
                }
                self.dropped(Peer::Agent, &MessageError::Incomplete, None);
                return;
            }
        };
        let message = Message::parse_line(&line);
        match &message {
            Ok(_) => self.output.message(),
            Err(_) if is_text(&line) => self.output.text(&line),
            Err(_) => {}
        }
        let pass = match message {
            Ok(Message::Request { id, method, params }) => self.agent_asks(&id, &method, params),
            Ok(Message::Notification { method, params }) => {
                self.agent_notes(&line, &method, params)
            }
            Ok(Message::Reply { id, outcome }) => self.agent_replies(&line, &id, outcome),
            Err(malformed) => {
                self.malformed(Peer::Agent, &malformed);
                LineTreatment::Stop
            }
        };
        match pass {
            LineTreatment::Forward => self.send(Peer::Editor, line),
            LineTreatment::Rebuilt(line) => self.send(Peer::Editor, line),
            LineTreatment::Stop => true,
        };
    }

    fn agent_asks(&self, id: &Id, method: &str, params: Option<&RawValue>) -> LineTreatment {
        if self.in_use(Peer::Agent, id) {
            self.repeated(id, Some(method));
            return LineTreatment::Stop;
        }
        if self.editor_requests.owns(id) {
            let receipt =
                self.dropped(Peer::Agent, &"the id is one of the gateway's own", Some(method));
            let line =
                render::error(id, response::INVALID_REQUEST, "`id` is reserved", receipt.as_ref());
            self.send(Peer::Agent, line);
            return LineTreatment::Stop;
        }
        if let Some(file) = Method::named(method) {
            self.file_request(id, file, params);
            return LineTreatment::Stop;
        }
        if let Some(terminals) = &self.terminals
            && Terminals::serves(method)
        {
            self.terminal_request(terminals, (id, method), params);
            return LineTreatment::Stop;
        }
        if method.starts_with("fs/") || !self.allowed.request(method) {
            let error = self.gateway.refuse_method(&self.connection, method, &Refusal::Method);
            self.pause(Peer::Agent);
            self.send(Peer::Agent, render::coded(id, render::METHOD, &error, None));
            return LineTreatment::Stop;
        }
        if !self.note_agent_asked(id) {
            let text = "too many unanswered requests";
            let receipt = self.dropped(Peer::Agent, &text, Some(method));
            self.send(Peer::Agent, render::error(id, response::INTERNAL, text, receipt.as_ref()));
            return LineTreatment::Stop;
        }
        self.note_tool_call(method, params);
        LineTreatment::Forward
    }

    fn agent_notes(&self, line: &[u8], method: &str, params: Option<&RawValue>) -> LineTreatment {
        if method == "$/cancel_request" {
            return self.agent_cancels(params);
        }
        if !method.starts_with("fs/") && self.allowed.notification(method) {
            self.note_tool_call(method, params);
            let shown = params.and_then(|params| self.with_terminals(params));
            let shown = shown.and_then(|params| rebuilt(line, "params", params));
            return shown.map_or(LineTreatment::Forward, LineTreatment::Rebuilt);
        }
        self.dropped(Peer::Agent, &"the notification is not one that passes", Some(method));
        LineTreatment::Stop
    }

    /// Handles `$/cancel_request {requestId}`, for a request that the gateway serves or for one
    /// that passed.
    fn agent_cancels(&self, params: Option<&RawValue>) -> LineTreatment {
        let params = params.and_then(|params| Object::parse(params.get()));
        let id = params.and_then(|params| Id::parse(params.get("requestId")?));
        if let Some(id) = &id {
            if lock(&self.agent_asked).contains(id) {
                return LineTreatment::Forward;
            }
            // A request that is being served is completed and answered.
            let served = self.agent_requests.contains(id);
            self.agent_requests.withdraw(|waiting, _| waiting == id);
            let cancelled = self.agent_requests.cancel(|queued| queued.id == *id);
            cancelled.iter().for_each(|queued| self.cancelled(queued));
            if served || !cancelled.is_empty() || self.cancel_terminal(id) {
                return LineTreatment::Stop;
            }
        }
        self.dropped(Peer::Agent, &"nothing to cancel", Some("$/cancel_request"));
        LineTreatment::Stop
    }

    fn agent_replies(&self, line: &[u8], id: &Id, outcome: Outcome<'_>) -> LineTreatment {
        let Some(effect) = lock(&self.editor_asked).remove(id) else {
            self.dropped(Peer::Agent, &"a reply to nothing that was asked", None);
            return LineTreatment::Stop;
        };
        let cleaned = match (&effect, outcome) {
            (Effect::Initialize, Outcome::Result(result)) => {
                self.output.login_removed(logins::removed(result, &self.allowed));
                initialize::result(result, &self.allowed).map(|new| new.map(|new| ("result", new)))
            }
            (_, Outcome::Error(error)) => {
                self.output.login_removed(logins::removed(error, &self.allowed));
                initialize::error(error, &self.allowed, self.output.removed())
                    .map(|new| new.map(|new| ("error", new)))
            }
            _ => Ok(None),
        };
        match cleaned {
            Ok(None) => {
                self.settle(effect, Some(outcome));
                LineTreatment::Forward
            }
            Ok(Some((key, new))) => {
                self.settle(effect, Some(outcome));
                let what = "parts of a reply that make the editor act";
                let receipt = self.dropped(Peer::Agent, &what, None);
                LineTreatment::Rebuilt(rebuilt(line, key, new).unwrap_or_else(|| {
                    let text = "the reply cannot be passed on";
                    render::error(id, response::INTERNAL, text, receipt.as_ref())
                }))
            }
            Err(error) => {
                self.settle(effect, None);
                let receipt = self.dropped(Peer::Agent, &error, None);
                let text = error.to_string();
                LineTreatment::Rebuilt(render::error(
                    id,
                    response::INTERNAL,
                    &text,
                    receipt.as_ref(),
                ))
            }
        }
    }

    fn file_request(&self, id: &Id, method: Method, params: Option<&RawValue>) {
        let refuse = |session, path: Option<&str>, refusal| {
            let error = self.gateway.refuse(session, method.word(), path, &refusal);
            self.pause(Peer::Agent);
            self.send(Peer::Agent, render::refusal(id, &error, path));
        };
        let Params { session, path, what } = match params::parse(method, params) {
            Ok(params) => params,
            Err(bad) => {
                let refusal = Refusal::Parameters(bad.message);
                return refuse(&self.connection, bad.path.as_deref(), refusal);
            }
        };
        let Some(session_link) = self.sessions.get(&session) else {
            let refusal = Refusal::Parameters("`sessionId` names no session".to_owned());
            return refuse(&self.connection, Some(&path), refusal);
        };
        let (further, inside) = match self.locate(&path) {
            Ok(located) => located,
            Err(not) => return refuse(&session_link.session, Some(&path), refusal_of(not)),
        };
        let request = match what {
            FileOperation::Read(range) => {
                FileRequest::Read(Read { path: inside, range, encoding: Encoding::Text })
            }
            FileOperation::Write(content) => {
                FileRequest::Write(Write { path: inside, content, mode: None })
            }
        };
        let request = AgentRequest::File(request);
        let queued =
            QueuedRequest { id: id.clone(), session_link, request, further, path: Some(path) };
        if let AgentRequest::File(file) = &queued.request
            && self.is_quick(&queued, file)
            && let Some(_alone) = self.agent_requests.alone()
        {
            // No other request waits for this thread, and no other thread has to be woken.
            let line = self.answer(&queued, file, Client::asking(&WithdrawingApprover));
            self.send(Peer::Agent, line);
            return;
        }
        self.push(queued);
    }

    /// Queues a request.
    pub(super) fn push(&self, queued: QueuedRequest) {
        let id = queued.id.clone();
        match self.agent_requests.push(queued).map_err(|no| *no) {
            Ok(()) => {}
            Err(PushError::Closed(queued)) => self.cancelled(&queued),
            Err(PushError::Duplicate) => self.repeated(&id, None),
        }
    }

    /// Refuses a request whose ID another one uses. Without an error, the agent would take the
    /// reply to the other request for the reply to this one.
    fn repeated(&self, id: &Id, method: Option<&str>) {
        let text = "the id of the request is in use";
        let receipt = self.dropped(Peer::Agent, &text, method);
        self.send(
            Peer::Agent,
            render::error(id, response::INVALID_REQUEST, text, receipt.as_ref()),
        );
    }

    /// Serves queued requests, as one worker, until the queue is closed.
    pub(super) fn work(&self) {
        while let Some(queued) = self.agent_requests.take() {
            let id = queued.id.clone();
            let line = self.serve(&queued);
            self.agent_requests.served(&id);
            if let Some(line) = line {
                self.send(Peer::Agent, line);
            }
            self.agent_requests.answered();
        }
    }

    /// Returns the reply; `None` if it follows later.
    fn serve(&self, queued: &QueuedRequest) -> Option<Vec<u8>> {
        let (session_link, id) = (&queued.session_link, &queued.id);
        let asker = EditorApprover { proxy: self, session_link, id, call: Mutex::default() };
        let file = match &queued.request {
            AgentRequest::File(file) => file,
            AgentRequest::Command(command, limit) => {
                return self.start_command(queued, (command, *limit), &asker);
            }
        };
        let offers = *lock(&self.offers);
        let buffers = EditorBuffers {
            editor_requests: &self.editor_requests,
            roots: self.workspace_of(queued).1,
            session: &queued.session_link.acp_id,
            offers,
        };
        let source = match self.source {
            SourceMode::Auto if offers.read => Source::Auto(&buffers),
            SourceMode::Auto | SourceMode::Disk | SourceMode::Mount => Source::Disk,
            // Reads that the editor does not offer are refused, never served from the disk.
            SourceMode::Editor => Source::Editor(&buffers),
        };
        Some(self.answer(queued, file, Client { source, ..Client::asking(&asker) }))
    }

    fn answer(&self, queued: &QueuedRequest, file: &FileRequest, client: Client<'_>) -> Vec<u8> {
        let (session, (gateway, _)) = (&queued.session_link.session, self.workspace_of(queued));
        let answer = match file {
            FileRequest::Read(read) => gateway
                .handle(session, read, client)
                .map(|reply| render::content(&queued.id, reply)),
            FileRequest::Write(write) => gateway
                .handle(session, write, client)
                .map(|reply| render::changed(&queued.id, &reply.receipt)),
        };
        answer.unwrap_or_else(|error| {
            self.pause(Peer::Agent);
            render::refusal(&queued.id, &error, queued.path.as_deref())
        })
    }

    /// True if serving a job waits for no more than the file.
    fn is_quick(&self, queued: &QueuedRequest, file: &FileRequest) -> bool {
        let from_disk = match self.source {
            SourceMode::Disk | SourceMode::Mount => true,
            SourceMode::Auto => !lock(&self.offers).read,
            SourceMode::Editor => false,
        };
        self.prompt
            && from_disk
            && matches!(file, FileRequest::Read(_))
            // The reader thread must not block on an agent that does not read its replies.
            && self.to_agent.is_idle()
            && !self.workspace_of(queued).0.policy().asks()
    }
}

/// The approver of a policy that never asks. If a policy that asks is loaded just now, the question
/// is withdrawn.
struct WithdrawingApprover;

impl Approver for WithdrawingApprover {
    fn ask(&self, ticket: &Arc<Ticket>) {
        ticket.withdraw();
    }

    fn over(&self, _ticket: &Ticket) {}
}

fn refusal_of(not: OutsideWorkspace) -> Refusal {
    match not {
        OutsideWorkspace::Relative => Refusal::Parameters("`path` must be absolute".to_owned()),
        OutsideWorkspace::Outside => Refusal::Outside,
        OutsideWorkspace::Path(error) => Refusal::Path(error),
    }
}

fn rebuilt(line: &[u8], key: &str, value: Box<RawValue>) -> Option<Vec<u8>> {
    let mut message = Object::parse(std::str::from_utf8(line).ok()?)?;
    message.set(key, value);
    serde_json::to_vec(&message).ok()
}
