//! The agent's `terminal/*` requests: commands that the gateway has started in the agent's sandbox
//! (ACP v1). The editor does not take part.
//!
//! `terminal/create` may have to wait for an approval, as `fs/*` may, and is queued with those. A
//! separate thread answers it and `terminal/wait_for_exit` when the command runs
//! or has ended; the others are answered at once.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use portcullis_commands::{CommandLine, Error, MAX_OUTPUT, State, View};
use portcullis_rpc::{Id, response};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Number, Value, json, value::RawValue};

use super::{
    paths::OutsideWorkspace,
    proxy::{AcpProxy, Peer},
    render,
    request_queue::{AgentRequest, CREATE_TERMINAL, QueuedRequest},
    sessions::SessionLink,
    terminal_content::{id_of, number_of},
    terminals::{AwaitedEvent, Terminals, WaitingRequest},
};
use crate::{
    count::count,
    gateway::{Approver, Refusal},
    lock,
    model::Session,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<EnvironmentVariable>>,
    cwd: Option<String>,
    output_byte_limit: Option<Number>,
}

#[derive(Deserialize)]
struct EnvironmentVariable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionParams {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TerminalParams {
    terminal_id: String,
}

impl Create {
    /// Returns the command line. One that cannot be started is refused before it is queued.
    fn command_line(self) -> Result<CommandLine, Refusal> {
        let environment = self.env.unwrap_or_default().into_iter();
        let command = CommandLine {
            environment: environment
                .map(|EnvironmentVariable { name, value }| (name, value))
                .collect(),
            directory: self.cwd.map(PathBuf::from),
            ..CommandLine::new(self.command, self.args.unwrap_or_default())
        };
        command.check().map_err(|reason| Refusal::Parameters(reason.to_owned()))?;
        Ok(command)
    }
}

impl AcpProxy<'_> {
    /// Serves a request of the agent about terminals.
    pub(super) fn terminal_request(
        &self,
        terminals: &Terminals,
        (id, method): (&Id, &str),
        params: Option<&RawValue>,
    ) {
        let named = parse::<SessionParams>(params).and_then(|SessionParams { session_id }| {
            let session_link = self.sessions.get(&session_id);
            session_link.ok_or(Refusal::Parameters("`sessionId` names no session".to_owned()))
        });
        let session_link = match named {
            Ok(session_link) => session_link,
            Err(refusal) => return self.refuse_terminal(&self.connection, (id, method), &refusal),
        };
        let answer = match method {
            CREATE_TERMINAL => self.parse_create(terminals, params).map(|request| {
                let (id, session_link) = (id.clone(), Arc::clone(&session_link));
                self.push(QueuedRequest { id, session_link, request, further: None, path: None });
                None
            }),
            _ => parse::<TerminalParams>(params).and_then(|terminal| {
                let number = number_of(&terminal.terminal_id);
                let view = number.and_then(|number| {
                    Some((
                        number,
                        terminals.registry.view(&session_link.session.id, number, MAX_OUTPUT)?,
                    ))
                });
                let reason = "`terminalId` names no terminal of the session";
                let (number, view) = view.ok_or(Refusal::Parameters(reason.to_owned()))?;
                self.answer_terminal_request(
                    terminals,
                    &session_link,
                    (id, method),
                    (number, &view),
                )
            }),
        };
        match answer {
            // The request waits for its command.
            Ok(None) => {}
            Ok(Some(result)) => {
                self.send(Peer::Agent, response::result(id, result));
            }
            Err(refusal) => self.refuse_terminal(&session_link.session, (id, method), &refusal),
        }
    }

    fn refuse_terminal(&self, session: &Session, (id, method): (&Id, &str), refusal: &Refusal) {
        let error = self.gateway.refuse(session, method, None, refusal);
        self.pause(Peer::Agent);
        let line = match refusal {
            Refusal::Method => render::coded(id, render::METHOD, &error, None),
            _ => render::refusal(id, &error, None),
        };
        self.send(Peer::Agent, line);
    }

    /// Parses the parameters of a `terminal/create`.
    fn parse_create(
        &self,
        terminals: &Terminals,
        params: Option<&RawValue>,
    ) -> Result<AgentRequest, Refusal> {
        let mut create = parse::<Create>(params)?;
        create.cwd = create.cwd.filter(|cwd| !cwd.is_empty());
        create.cwd.as_ref().map_or(Ok(()), |cwd| self.check_directory(cwd))?;
        let limit = create.output_byte_limit.take().map(|limit| count(&limit).ok_or(()));
        let limit = limit.transpose().map_err(|()| {
            let reason = "`outputByteLimit` must be a whole number, not negative";
            Refusal::Parameters(reason.to_owned())
        })?;
        let limit = limit.map_or(MAX_OUTPUT, |limit| usize::try_from(limit).unwrap_or(MAX_OUTPUT));
        if terminals.is_full() {
            return Err(Refusal::Parameters("too many requests wait for commands".to_owned()));
        }
        Ok(AgentRequest::Command(create.command_line()?, limit))
    }

    /// Starts a command; returns the reply if it cannot be started.
    pub(super) fn start_command(
        &self,
        queued: &QueuedRequest,
        (command, limit): (&CommandLine, usize),
        approver: &dyn Approver,
    ) -> Option<Vec<u8>> {
        let terminals = self.terminals.as_ref()?;
        let QueuedRequest { id, session_link, .. } = queued;
        let session = &session_link.session;
        let error = match terminals.registry.start(session, command.clone(), limit, approver) {
            Ok(number) => {
                // The session may have ended meanwhile, and released its commands.
                if !self.sessions.has(session_link) {
                    terminals.registry.release(&session.id, number);
                }
                self.wait_for(terminals, session_link, id, (number, AwaitedEvent::Start));
                return None;
            }
            Err(Error::Refused(error)) => error,
            Err(other) => {
                let refusal = Refusal::Parameters(other.to_string());
                self.gateway.refuse(session, CREATE_TERMINAL, None, &refusal)
            }
        };
        self.pause(Peer::Agent);
        Some(render::refusal(id, &error, None))
    }

    /// Checks that a directory for a command is in a workspace, or in an agent path.
    fn check_directory(&self, directory: &str) -> Result<(), Refusal> {
        let further = self.further.iter().map(|further| &further.roots);
        let mut others = further.chain(&self.granted);
        match self.roots.relative(directory) {
            Ok(_) => Ok(()),
            Err(OutsideWorkspace::Relative) => {
                Err(Refusal::Parameters("`cwd` must be an absolute path".to_owned()))
            }
            Err(OutsideWorkspace::Path(error)) => Err(Refusal::Path(error)),
            Err(OutsideWorkspace::Outside)
                if others.any(|roots| roots.relative(directory).is_ok()) =>
            {
                Ok(())
            }
            Err(OutsideWorkspace::Outside) => Err(Refusal::Outside),
        }
    }

    /// Returns the result of a request about an existing terminal; `None` if the reply follows
    /// later.
    fn answer_terminal_request(
        &self,
        terminals: &Terminals,
        session_link: &Arc<SessionLink>,
        (id, method): (&Id, &str),
        (number, view): (u64, &View),
    ) -> Result<Option<Value>, Refusal> {
        let session = &session_link.session.id;
        match method {
            "terminal/output" => Ok(Some(output(view))),
            "terminal/wait_for_exit" => match &view.state {
                State::Ended(exit) => Ok(Some(exit.members().into())),
                _ if terminals.is_full() => {
                    let reason = "too many requests wait for commands";
                    Err(Refusal::Parameters(reason.to_owned()))
                }
                _ => {
                    self.wait_for(terminals, session_link, id, (number, AwaitedEvent::End));
                    Ok(None)
                }
            },
            "terminal/kill" => {
                terminals.registry.kill(session, number);
                Ok(Some(json!({})))
            }
            "terminal/release" => {
                terminals.content.keep(number, view);
                terminals.registry.release(session, number);
                Ok(Some(json!({})))
            }
            _ => Err(Refusal::Method),
        }
    }

    fn wait_for(
        &self,
        terminals: &Terminals,
        session_link: &Arc<SessionLink>,
        id: &Id,
        (number, for_what): (u64, AwaitedEvent),
    ) {
        let waiting = WaitingRequest { session: session_link.session.id.clone(), number, for_what };
        terminals.wait(id, waiting);
    }

    /// Cancels a request that waits for a command's end; false if none has this ID.
    pub(super) fn cancel_terminal(&self, id: &Id) -> bool {
        let Some(terminals) = &self.terminals else { return false };
        let awaited = terminals.cancel(id);
        if awaited == Some(AwaitedEvent::End) {
            self.send(Peer::Agent, render::error(id, render::CANCELLED, "cancelled", None));
        }
        awaited.is_some()
    }

    /// Answers waiting requests and shows the output of commands to the editor, as one thread.
    pub(super) fn follow_terminals(&self) {
        let Some(terminals) = &self.terminals else { return };
        let (mut seen, mut next) = (0, None::<Duration>);
        while !terminals.is_over() {
            let deadline = next.and_then(|wait| Instant::now().checked_add(wait));
            seen = terminals.registry.wait_for_change(seen, deadline);
            self.answer_waiting(terminals);
            next = self.show_terminals(terminals);
        }
    }

    fn answer_waiting(&self, terminals: &Terminals) {
        let mut answers = Vec::new();
        lock(&terminals.waiting).retain(|id, waiting| {
            let view = terminals.registry.view(&waiting.session, waiting.number, 0);
            let answer = answer(id, waiting, view.map(|view| view.state));
            let is_answered = answer.is_some();
            let failed = matches!(answer, Some((_, true)));
            answers.extend(answer.map(|(line, _)| line));
            if failed {
                terminals.registry.release(&waiting.session, waiting.number);
            }
            !is_answered
        });
        for line in answers {
            self.send(Peer::Agent, line);
        }
    }
}

/// Returns the reply to a waiting request, and true if the command did not start and can be
/// released.
fn answer(id: &Id, waiting: &WaitingRequest, state: Option<State>) -> Option<(Vec<u8>, bool)> {
    let failed = |reason: &str| render::error(id, response::INTERNAL, reason, None);
    match (waiting.for_what, state) {
        (_, None) => Some((failed("the terminal was released"), false)),
        (AwaitedEvent::Start, Some(State::Running | State::Ended(_))) => {
            let terminal = json!({ "terminalId": id_of(waiting.number) });
            Some((response::result(id, terminal), false))
        }
        (_, Some(State::NotStarted(reason))) => {
            Some((failed(&format!("the command cannot be started: {reason}")), true))
        }
        (AwaitedEvent::End, Some(State::Ended(exit))) => {
            Some((response::result(id, Value::from(exit.members())), false))
        }
        (_, Some(State::Starting | State::Running)) => None,
    }
}

fn output(view: &View) -> Value {
    let mut result = Map::new();
    result.insert("output".to_owned(), view.output.text.as_str().into());
    result.insert("truncated".to_owned(), (view.output.from > 0).into());
    if let State::Ended(exit) = &view.state {
        result.insert("exitStatus".to_owned(), exit.members().into());
    }
    result.into()
}

fn parse<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, Refusal> {
    let params = params.ok_or_else(|| Refusal::Parameters("`params` is missing".to_owned()))?;
    // The parser's error repeats what was sent.
    serde_json::from_str(params.get())
        .map_err(|_| Refusal::Parameters("the parameters do not fit the method".to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    /// The error of the parser has it.
    #[test]
    fn a_refusal_of_parameters_repeated_what_was_sent() {
        let params = r#"{"command":"ls","args":"sent"}"#.to_owned();
        let refused = parse::<Create>(Some(&RawValue::from_string(params).unwrap())).err();
        let Some(Refusal::Parameters(reason)) = refused else { panic!("it passed") };
        assert!(!reason.contains("sent"), "{reason}");
    }

    /// Its arguments took what they liked while it waited in the queue.
    #[test]
    fn a_command_that_cannot_be_started_was_queued() {
        let of = |count: usize| {
            let params = json!({ "command": "true", "args": vec![""; count] });
            parse::<Create>(Some(&to_raw_value(&params).unwrap())).and_then(Create::command_line)
        };
        assert_eq!(of(1000).unwrap().arguments.len(), 1000);
        assert!(matches!(of(1_000_000), Err(Refusal::Parameters(_))));
    }
}
