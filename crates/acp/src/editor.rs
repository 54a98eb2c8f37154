//! Messages from the editor to the agent.
//!
//! The editor is the user's, so all strict messages pass, except for sessions with directories that
//! are not served. Its `initialize` is edited, and the gateway's own MCP server is added to those
//! of a session. Its replies to the gateway's own requests are consumed, and replies to no pending
//! request are dropped. Files, selections and images in a prompt reach the agent by the user's will
//! and are not decided here.

use std::collections::BTreeMap;

use portcullis_rpc::{Frame, Id, InvalidMessage, Message, MessageError, Object, Outcome, response};
use serde_json::value::RawValue;

use super::{
    directories,
    editor_requests::Answer,
    initialize,
    proxy::{AcpProxy, LineTreatment, Peer},
    render,
    sessions::Effect,
};
use crate::lock;

impl AcpProxy<'_> {
    /// Handles a frame from the editor.
    pub(super) fn handle_editor_frame(&self, frame: Frame) {
        let line = match frame {
            Frame::Line(line) => line,
            Frame::TooLong { head } | Frame::GivenUp { head } => {
                return self
                    .malformed(Peer::Editor, &InvalidMessage::new(MessageError::TooLong, &head));
            }
            Frame::Incomplete { .. } => {
                self.dropped(Peer::Editor, &MessageError::Incomplete, None);
                return;
            }
        };
        let mut asked = None;
        let pass = match Message::parse_line(&line) {
            Ok(Message::Request { id, method, params }) => {
                let pass = self.editor_asks(&line, &id, &method, params);
                asked = Some(id);
                pass
            }
            Ok(Message::Notification { method, params }) => {
                if method == "session/cancel"
                    && let Some(session) = session_id(params)
                {
                    self.cancel_session(&session);
                }
                LineTreatment::Forward
            }
            Ok(Message::Reply { id, outcome }) => self.editor_replies(&id, outcome),
            Err(malformed) => {
                self.malformed(Peer::Editor, &malformed);
                LineTreatment::Stop
            }
        };
        let sent = match pass {
            LineTreatment::Forward => self.send(Peer::Agent, line),
            LineTreatment::Rebuilt(line) => self.send(Peer::Agent, line),
            LineTreatment::Stop => true,
        };
        if let Some(id) = asked.filter(|_| !sent)
            && let Some(effect) = lock(&self.editor_asked).remove(&id)
        {
            self.settle(effect, None);
            let (text, receipt) = ("the agent has ended", self.unanswered(1));
            self.send(Peer::Editor, render::error(&id, response::INTERNAL, text, receipt.as_ref()));
        }
    }

    fn editor_asks(
        &self,
        line: &[u8],
        id: &Id,
        method: &str,
        params: Option<&RawValue>,
    ) -> LineTreatment {
        if self.in_use(Peer::Editor, id) {
            self.dropped(Peer::Editor, &"the id of the request is in use", Some(method));
            return LineTreatment::Stop;
        }
        let further = self.further.iter().map(|further| &further.roots);
        let others: Vec<_> = further.chain(&self.granted).collect();
        if let Err(refused) = directories::check(method, params, &self.roots, &others) {
            let receipt = self.dropped(Peer::Editor, &refused, Some(method));
            let text = refused.to_string();
            self.send(
                Peer::Editor,
                render::error(id, response::INVALID_PARAMS, &text, receipt.as_ref()),
            );
            return LineTreatment::Stop;
        }
        let effect = self.effect(method, params);
        if !self.note_editor_asked(id, effect.clone()) {
            self.settle(effect, None);
            let text = "too many unanswered requests";
            let receipt = self.dropped(Peer::Editor, &text, Some(method));
            self.send(Peer::Editor, render::error(id, response::INTERNAL, text, receipt.as_ref()));
            return LineTreatment::Stop;
        }
        if effect != Effect::Initialize {
            return self.inject(line, &effect);
        }
        let edited = std::str::from_utf8(line)
            .ok()
            .and_then(|line| initialize::request(line, &self.allowed, self.source));
        if let Some((line, offers)) = edited {
            *lock(&self.offers) = offers;
            return LineTreatment::Rebuilt(line);
        }
        lock(&self.editor_asked).remove(id);
        let receipt = self.dropped(Peer::Editor, &"`initialize` without parameters", Some(method));
        let text = "`params` must be an object";
        self.send(
            Peer::Editor,
            render::error(id, response::INVALID_PARAMS, text, receipt.as_ref()),
        );
        LineTreatment::Stop
    }

    /// Returns the effect that a request of the editor will have on sessions.
    fn effect(&self, method: &str, params: Option<&RawValue>) -> Effect {
        match (method, session_id(params)) {
            ("initialize", _) => Effect::Initialize,
            ("session/new" | "session/fork", _) => Effect::Opens(self.expect_session()),
            ("session/load" | "session/resume", Some(id)) => {
                let fresh = self.open_session(&id);
                Effect::Continues { id, fresh }
            }
            ("session/close" | "session/delete", Some(id)) => Effect::Ends(id),
            ("session/prompt", Some(id)) => {
                self.note_turn(&id, BTreeMap::from([("event".to_owned(), "begin".into())]));
                self.user.set_session(&id);
                Effect::Prompts(id)
            }
            _ => Effect::Nothing,
        }
    }

    fn editor_replies(&self, id: &Id, outcome: Outcome<'_>) -> LineTreatment {
        if self.editor_requests.owns(id) {
            let answer = match outcome {
                Outcome::Result(result) => Answer::Result(result.to_owned()),
                Outcome::Error(error) => Answer::Error(error.to_owned()),
            };
            if !self.editor_requests.answer(id, answer) {
                self.dropped(Peer::Editor, &"an answer that nobody waits for any more", None);
            }
            return LineTreatment::Stop;
        }
        if lock(&self.agent_asked).remove(id) {
            return LineTreatment::Forward;
        }
        self.dropped(Peer::Editor, &"a reply to nothing that was asked", None);
        LineTreatment::Stop
    }
}

fn session_id(params: Option<&RawValue>) -> Option<String> {
    let params = Object::parse(params?.get())?;
    serde_json::from_str(params.get("sessionId")?.get()).ok()
}
