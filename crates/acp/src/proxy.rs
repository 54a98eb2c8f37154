//! The state that both directions share: pending requests, sessions, and the replies and records
//! for messages that do not pass.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Display,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use portcullis_audit::Receipt;
use portcullis_rpc::{Addressee, BoundedQueue, Id, InvalidMessage, Object, Outcome, response};
use serde_json::{Value, value::RawValue};

use crate::{
    FurtherWorkspace,
    gateway::{self, Gateway, Refusal, random_hex},
    lock,
    mcp_attach::AttachTokens,
    model::{AcpSession, AsOperation as _, Session},
};

use super::{
    Error, MAX_WORKERS, Queues,
    allowed::Allowed,
    config::{Config, SourceMode},
    editor_requests::{Answer, EditorRequests},
    editor_user::EditorUser,
    initialize::EditorCapabilities,
    inject,
    notices::AgentOutput,
    paths::Roots,
    peer_reader::{PeerReader, PeerReaders},
    permission_request::SessionAsker,
    render,
    request_queue::{AgentRequest, CREATE_TERMINAL, QueuedRequest, RequestQueue},
    sessions::{Effect, SessionLink, Sessions},
    terminals::Terminals,
    tool_calls::ToolCalls,
};

/// Maximum number of waiting `fs/*` and `terminal/create` requests: an agent may send many before
/// it reads.
const MAX_QUEUED: usize = 4096;
/// Maximum number of bytes of content in them.
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of unanswered requests of one peer.
const MAX_UNANSWERED: usize = 4096;
/// Maximum length of a peer's text in a record, in characters.
const MAX_FACT: usize = 128;

/// One connection between an editor and an agent.
pub(super) struct AcpProxy<'g> {
    pub(super) gateway: &'g Gateway,
    pub(super) allowed: Allowed,
    pub(super) source: SourceMode,
    pub(super) prompt: bool,
    pub(super) roots: Roots,
    /// Further workspaces.
    pub(super) further: Vec<Arc<FurtherWorkspace>>,
    /// The agent paths.
    pub(super) granted: Vec<Roots>,
    /// Tokens for the gateway's own MCP server.
    pub(super) attach: Option<Arc<AttachTokens>>,
    /// The editor's user for questions that come from no session.
    pub(super) user: Arc<EditorUser>,
    pub(super) output: AgentOutput,
    /// The session of records that belong to no ACP session.
    pub(super) connection: Session,
    pub(super) sessions: Sessions,
    pub(super) tool_calls: ToolCalls,
    pub(super) agent_requests: RequestQueue,
    /// The terminals, if the policy allows them.
    pub(super) terminals: Option<Terminals>,
    pub(super) editor_requests: Arc<EditorRequests>,
    pub(super) to_editor: Arc<BoundedQueue<Vec<u8>>>,
    pub(super) to_agent: Arc<BoundedQueue<Vec<u8>>>,
    readers: &'g PeerReaders,
    /// Time for which a peer may read nothing after the other one is gone.
    grace: Duration,
    /// Requests of the editor that the agent has not answered.
    pub(super) editor_asked: Mutex<HashMap<Id, Effect>>,
    /// Requests of the agent that passed and that the editor has not answered.
    pub(super) agent_asked: Mutex<HashSet<Id>>,
    pub(super) offers: Mutex<EditorCapabilities>,
}

/// The two peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Agent,
    Editor,
}

/// The treatment of a line.
#[derive(Debug)]
pub(super) enum LineTreatment {
    /// Forwards it unchanged.
    Forward,
    /// Forwards this line in its place.
    Rebuilt(Vec<u8>),
    /// Does not forward it.
    Stop,
}

impl<'g> AcpProxy<'g> {
    pub(super) fn new(
        gateway: &'g Gateway,
        config: &Config,
        queues: &Queues,
        readers: &'g PeerReaders,
    ) -> Result<Self, Error> {
        let secret = random_hex::<16>().map_err(|errno| Error::Start(errno.into()))?;
        let roots =
            Roots::new(&config.workspace_root, config.workspace_alias.as_deref().map(Path::new));
        let (to_editor, to_agent) = (Arc::clone(&queues.to_editor), Arc::clone(&queues.to_agent));
        let editor_requests =
            Arc::new(EditorRequests::new(Arc::clone(&to_editor), &secret, config.editor_timeout));
        let messenger = Arc::new(SessionAsker {
            editor_requests: Arc::clone(&editor_requests),
            roots: roots.clone(),
        });
        config.user.set_messenger(Arc::clone(&messenger) as _);
        if let Some(tokens) = &config.attach {
            tokens.set_ask_user(messenger);
        }
        let allowed = Allowed::new(&config.forward, config.commands.is_some())?
            .with_variables(config.variables.iter().cloned());
        let commands = config.commands.clone().filter(|_| allowed.serves_terminals());
        let terminals = commands.map(Terminals::new);
        Ok(Self {
            gateway,
            allowed,
            terminals,
            source: config.source,
            prompt: config.prompt,
            roots,
            further: config.further.iter().cloned().map(Arc::new).collect(),
            granted: config.granted.iter().map(|grant| Roots::new(grant, None)).collect(),
            attach: config.attach.clone(),
            user: Arc::clone(&config.user),
            output: AgentOutput::new(config.notices.clone()),
            connection: config.session.clone(),
            sessions: Sessions::default(),
            tool_calls: ToolCalls::new(Arc::clone(&config.tool_call)),
            agent_requests: RequestQueue::new(MAX_QUEUED, MAX_QUEUED_BYTES, MAX_WORKERS),
            editor_requests,
            to_editor,
            to_agent,
            readers,
            grace: config.grace,
            editor_asked: Mutex::default(),
            agent_asked: Mutex::default(),
            offers: Mutex::default(),
        })
    }

    /// Returns the queue of lines to a peer.
    pub(super) fn queue(&self, to: Peer) -> &BoundedQueue<Vec<u8>> {
        match to {
            Peer::Agent => &self.to_agent,
            Peer::Editor => &self.to_editor,
        }
    }

    pub(super) fn reader(&self, from: Peer) -> &PeerReader {
        match from {
            Peer::Agent => &self.readers.agent,
            Peer::Editor => &self.readers.editor,
        }
    }

    /// Sends a line, waiting while the peer does not read; false if the peer is gone. After the
    /// other peer is gone, one that does not read is given up.
    pub(super) fn send(&self, to: Peer, line: Vec<u8>) -> bool {
        let mut alone = None;
        let hopeless = || {
            if !self.reader(to.other()).is_over() {
                return false;
            }
            let given_up = alone.get_or_insert_with(Instant::now).elapsed() >= self.grace;
            if given_up {
                self.queue(to).discard();
                self.editor_requests.close();
            }
            given_up
        };
        self.queue(to).push_line(line, hopeless).is_ok()
    }

    /// Records that a message of a peer was dropped, and delays a peer that sends many such
    /// messages. Returns the receipt for the error reply.
    pub(super) fn dropped(
        &self,
        from: Peer,
        reason: &dyn Display,
        method: Option<&str>,
    ) -> Option<Receipt> {
        let mut facts = BTreeMap::from([
            ("from".to_owned(), Value::from(from.word())),
            ("reason".to_owned(), Value::from(reason.to_string())),
        ]);
        if let Some(method) = method {
            facts.insert("method".to_owned(), method.into());
        }
        let receipt = recorded(self.gateway.report(&self.connection, "acp.dropped", facts));
        self.pause(from);
        receipt
    }

    /// Delays a peer of which too many messages are refused.
    pub(super) fn pause(&self, from: Peer) {
        let pauses = self.gateways().map(|gateway| gateway.pause(&self.connection));
        self.reader(from).pause(pauses.max().unwrap_or_default());
    }

    /// Handles a line that is not strict: records it, and replies to the party that waits because
    /// of it.
    pub(super) fn malformed(&self, from: Peer, line: &InvalidMessage) {
        let receipt = self.dropped(from, &line.error, None);
        match &line.addressee {
            // An error with an ID in use would end the wait for another reply.
            Some(Addressee::Sender(id)) if !id.as_ref().is_some_and(|id| self.in_use(from, id)) => {
                let (code, text) = (line.error.code(), line.error.to_string());
                self.send(from, render::error(id.as_ref(), code, &text, receipt.as_ref()));
            }
            Some(Addressee::Asker(id)) => {
                let text = format!("the reply cannot be read: {}", line.error);
                self.fail(from.other(), id, &text, receipt.as_ref());
            }
            Some(Addressee::Sender(_)) | None => {}
        }
    }

    /// Replies to the sender of `id` that there will be no reply.
    fn fail(&self, asker: Peer, id: &Id, message: &str, of: Option<&Receipt>) {
        let known = match asker {
            Peer::Agent if self.editor_requests.owns(id) => {
                self.editor_requests.answer(id, Answer::Unreadable);
                return;
            }
            Peer::Agent => lock(&self.agent_asked).remove(id),
            Peer::Editor => {
                let effect = lock(&self.editor_asked).remove(id);
                effect.map(|effect| self.settle(effect, None)).is_some()
            }
        };
        if known {
            self.send(asker, render::error(id, response::INTERNAL, message, of));
        }
    }

    /// True if a request of `from` with this ID is pending.
    pub(super) fn in_use(&self, from: Peer, id: &Id) -> bool {
        match from {
            Peer::Agent => {
                let waits = self.terminals.as_ref().is_some_and(|all| all.has_waiting(id));
                waits || lock(&self.agent_asked).contains(id) || self.agent_requests.contains(id)
            }
            Peer::Editor => lock(&self.editor_asked).contains_key(id),
        }
    }

    /// Stores a request that is about to pass; false if there are too many.
    pub(super) fn note_agent_asked(&self, id: &Id) -> bool {
        let mut asked = lock(&self.agent_asked);
        asked.len() < MAX_UNANSWERED && asked.insert(id.clone())
    }

    /// Stores a request that is about to pass; false if there are too many.
    pub(super) fn note_editor_asked(&self, id: &Id, effect: Effect) -> bool {
        let mut asked = lock(&self.editor_asked);
        asked.len() < MAX_UNANSWERED && asked.insert(id.clone(), effect).is_none()
    }

    /// Applies the effect of a reply on sessions. `None` stands for a request without a usable
    /// reply.
    pub(super) fn settle(&self, effect: Effect, outcome: Option<Outcome<'_>>) {
        match (effect, outcome) {
            (Effect::Opens(coming), Some(Outcome::Result(result))) => self.opened(result, coming),
            (Effect::Opens(Some(coming)), None | Some(Outcome::Error(_))) => {
                self.end_session(&coming)
            }
            (Effect::Ends(id), Some(Outcome::Result(_))) => {
                let ended = self.sessions.close(&id);
                self.cancel_session(&id);
                self.forget(ended);
            }
            (Effect::Continues { id, fresh: true }, None | Some(Outcome::Error(_))) => {
                self.forget(self.sessions.close(&id));
            }
            (Effect::Prompts(id), outcome) => self.turn_ended(&id, outcome),
            _ => {}
        }
    }

    fn forget(&self, ended: Option<Arc<SessionLink>>) {
        if let Some(session_link) = ended {
            self.user.forget(&session_link.acp_id);
            self.tool_calls.forget(&session_link);
            self.end_session(&session_link.session);
        }
    }

    /// Ends a session, and disconnects its attached clients.
    fn end_session(&self, session: &Session) {
        if let Some(tokens) = &self.attach {
            tokens.end_session(&session.id);
        }
        if let Some(terminals) = &self.terminals {
            terminals.registry.end_session(&session.id);
        }
        self.gateways().for_each(|gateway| gateway.end_session(session));
    }

    /// Ends the thread that answers requests about terminals.
    pub(super) fn stop_terminals(&self) {
        if let Some(terminals) = &self.terminals {
            terminals.stop();
        }
    }

    /// Makes the session of a `session/new` that is about to pass, so that its clients may attach
    /// before its ACP ID is known.
    pub(super) fn expect_session(&self) -> Option<Session> {
        self.attach.as_ref()?;
        self.make_session()
    }

    /// Makes the session of an ACP session, which has limits and approvals of its own, and records
    /// in the session of the connection.
    fn make_session(&self) -> Option<Session> {
        let (id, acp) = (random_hex::<16>().ok()?, Some(AcpSession::new(&self.connection.id)));
        Some(Session { id, acp, ..self.connection.clone() })
    }

    /// Adds the gateway's own MCP server to the line, which stays unchanged if that is not
    /// possible.
    pub(super) fn inject(&self, line: &[u8], effect: &Effect) -> LineTreatment {
        let Some(tokens) = &self.attach else { return LineTreatment::Forward };
        let token = match effect {
            Effect::Opens(Some(coming)) => tokens.issue(coming, None),
            Effect::Continues { id, .. } => {
                let session_link = self.sessions.get(id);
                session_link.and_then(|session_link| tokens.issue(&session_link.session, Some(id)))
            }
            _ => None,
        };
        let line = std::str::from_utf8(line).ok();
        let added = line.zip(token).and_then(|(line, token)| inject::add(line, tokens, &token));
        added.map_or(LineTreatment::Forward, |line| LineTreatment::Rebuilt(line.into_bytes()))
    }

    fn opened(&self, result: &RawValue, coming: Option<Session>) {
        let id = Object::parse(result.get())
            .and_then(|result| serde_json::from_str::<String>(result.get("sessionId")?.get()).ok());
        match id {
            Some(id) => {
                if !self.open_session_as(&id, coming.clone()) {
                    // The ID is in use, so the session is not a new one.
                    coming.iter().for_each(|coming| self.end_session(coming));
                } else if let (Some(tokens), Some(coming)) = (&self.attach, &coming) {
                    tokens.set_acp_id(&coming.id, &id);
                }
            }
            None => {
                coming.iter().for_each(|coming| self.end_session(coming));
                self.dropped(Peer::Agent, &"the reply names no session", None);
            }
        }
    }

    /// Adds a session; false if it exists already.
    pub(super) fn open_session(&self, id: &str) -> bool {
        self.open_session_as(id, None)
    }

    /// Adds a session as `coming`, if that was made before.
    fn open_session_as(&self, id: &str, coming: Option<Session>) -> bool {
        let make = || {
            let session = coming.or_else(|| self.make_session())?;
            if let (Some(acp), Some(id)) = (&session.acp, self.gateway.redact_text(id)) {
                acp.set_id(short(&id));
            }
            Some(session)
        };
        let Some(session_link) = self.sessions.open(id, make) else { return false };
        self.user.set_session(id);
        for gateway in self.gateways() {
            recorded(gateway.note(&session_link.session, "acp.session", BTreeMap::new()));
        }
        true
    }

    /// Cancels the requests of a session that no worker has taken, or that wait for an approval,
    /// including those of attached clients.
    pub(super) fn cancel_session(&self, id: &str) {
        if let (Some(tokens), Some(session_link)) = (&self.attach, self.sessions.get(id)) {
            tokens.withdraw(&session_link.session.id);
        }
        self.agent_requests.withdraw(|_, waiting| waiting.acp_id == id);
        for queued in self.agent_requests.cancel(|queued| queued.session_link.acp_id == id) {
            self.cancelled(&queued);
        }
    }

    /// Records and answers a request that was cancelled before it began.
    pub(super) fn cancelled(&self, queued: &QueuedRequest) {
        let line = self.cancel_record(queued);
        self.send(Peer::Agent, line);
    }

    fn cancel_record(&self, queued: &QueuedRequest) -> Vec<u8> {
        let (kind, path) = match &queued.request {
            AgentRequest::File(file) => {
                let operation = file.as_operation();
                (operation.kind().as_str(), Some(operation.path().as_str()))
            }
            AgentRequest::Command(..) => (CREATE_TERMINAL, None),
        };
        let (gateway, _) = self.workspace_of(queued);
        let error = gateway.refuse(&queued.session_link.session, kind, path, &Refusal::Cancelled);
        render::coded(&queued.id, render::CANCELLED, &error, queued.path.as_deref())
    }

    /// Refuses further requests, of attached clients, too, and cancels waiting ones.
    pub(super) fn stop_jobs(&self) {
        if let Some(tokens) = &self.attach {
            tokens.close();
        }
        for queued in self.agent_requests.close() {
            let line = self.cancel_record(&queued);
            // The agent may be gone or not reading; the record suffices.
            let _ = self.to_agent.push_line_within(line, Duration::ZERO);
        }
    }

    /// Records the number of requests of the editor that remain unanswered.
    pub(super) fn unanswered(&self, requests: usize) -> Option<Receipt> {
        let facts = BTreeMap::from([("requests".to_owned(), Value::from(requests))]);
        recorded(self.gateway.note(&self.connection, "acp.unanswered", facts))
    }

    /// Replies to the editor that its requests to the agent remain unanswered.
    pub(super) fn fail_editor_requests(&self, timeout: Duration) {
        let asked = std::mem::take(&mut *lock(&self.editor_asked));
        if asked.is_empty() {
            return;
        }
        let receipt = self.unanswered(asked.len());
        for id in asked.into_keys() {
            let line =
                render::error(&id, response::INTERNAL, "the agent has ended", receipt.as_ref());
            if self.to_editor.push_line_within(line, timeout).is_err() {
                return;
            }
        }
    }
}

impl Peer {
    fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Editor => "editor",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Agent => Self::Editor,
            Self::Editor => Self::Agent,
        }
    }
}

/// Logs a failure to record. Without its log, the gateway itself refuses every file.
pub(super) fn recorded(written: Result<Receipt, gateway::Error>) -> Option<Receipt> {
    written.inspect_err(|error| tracing::error!(%error, "cannot record")).ok()
}

pub(super) fn short(text: &str) -> String {
    text.chars().take(MAX_FACT).collect()
}
