//! Tests with content, files or several steps. A real gateway carries them out on a workspace that
//! exists for one test, so that limits and content checks apply.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use cap_std::fs::Dir;
use portcullis_audit::{Directory, Reader, Receipt};
use rustix::fs::{Mode, OFlags, openat};

use super::{
    ExpectedDecision,
    file::{Step, Test},
};
use crate::{
    gateway::{
        Answer, Approver, AuditLog, Changed, Client, ErrorKind, Gateway, Request, Ticket, Workspace,
    },
    model::{
        AgentName, Encoding, LineRange, OperationKind, Session, Transport,
        request::{Append, Edit, List, Mkdir, Read, Remove, Rename, Stat, Write},
    },
    policy::{Decision, Policy, SecretKey, SourceLocation},
};

/// The rule of the limit that depends on time, which tests do not measure.
const RATE: &str = "limits.operationsPerSecond";

/// The result of a step.
pub(super) struct Done {
    pub(super) actual: ExpectedDecision,
    /// The disclosed text, if any.
    pub(super) disclosed: Option<Vec<u8>>,
    /// The reason why it was allowed and yet not done.
    pub(super) failed: Option<String>,
}

/// Rejects every question at once, and stores the rule that asked.
#[derive(Default)]
struct RejectingApprover(Mutex<Option<Decision>>);

impl Approver for RejectingApprover {
    fn ask(&self, ticket: &Arc<Ticket>) {
        let rule = ticket.question().rules.first().cloned();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = rule;
        // The ticket is new, so nobody else has answered it.
        let _ = ticket.answer(Answer::Reject, "test");
    }

    fn over(&self, _ticket: &Ticket) {}
}

impl RejectingApprover {
    fn asked(self) -> Option<ExpectedDecision> {
        let rule = self.0.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        let effect = rule.effect().as_str().to_owned();
        Some(ExpectedDecision {
            effect,
            rule: rule.rule().to_owned(),
            location: rule.location().cloned(),
        })
    }
}

/// A workspace behind a gateway.
pub(super) struct Scratch {
    gateway: Arc<Gateway>,
    log: PathBuf,
    sessions: HashMap<AgentName, Session>,
}

impl Scratch {
    /// Makes the workspace of `test` in the new directory `name` of `location`, whose path is
    /// `path`.
    pub(super) fn new(
        location: &Dir,
        path: &Path,
        name: &str,
        policy: &Arc<Policy>,
        test: &Test,
    ) -> Result<Self, String> {
        let words = |error: &dyn std::fmt::Display| format!("cannot prepare the test: {error}");
        let prepare = || {
            location.create_dir(name)?;
            let here = location.open_dir(name)?;
            here.create_dir("ws")?;
            here.create_dir("state")?;
            let root = here.open_dir("ws")?;
            for (path, content) in &test.files {
                if let Some(parent) = path.parent().filter(|parent| !parent.is_root()) {
                    root.create_dir_all(parent.as_str())?;
                }
                root.write(path.as_str(), content)?;
            }
            let open = |name| {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                openat(&here, name, flags, Mode::empty())
            };
            Ok((open("ws")?, open("state")?))
        };
        let (root, state) = prepare().map_err(|error: std::io::Error| words(&error))?;
        let path = path.join(name);
        let state = Dir::from_std_file(File::from(state));
        let workspace = Workspace::from_fd(root, path.join("ws"));
        let audit_log = AuditLog::open(&state).map_err(|error| words(&error))?;
        // The key protects nothing: the workspace is deleted after the test.
        let key = SecretKey::new(&[0; SecretKey::LENGTH]);
        let gateway = Gateway::open(workspace, Arc::clone(policy), audit_log, &state, key)
            .map_err(|error| words(&error))?;
        Ok(Self {
            gateway: Arc::new(gateway),
            log: path.join("state/audit"),
            sessions: HashMap::new(),
        })
    }

    /// Carries out one step once.
    pub(super) fn run(&mut self, step: &Step) -> Result<Done, String> {
        let mut done = self.perform(step)?;
        if done.actual.rule == RATE && step.rule.as_deref() != Some(RATE) {
            thread::sleep(Duration::from_secs(1));
            done = self.perform(step)?;
        }
        Ok(done)
    }

    fn perform(&mut self, step: &Step) -> Result<Done, String> {
        let path = step.path.clone();
        match step.operation {
            OperationKind::Read => {
                let (range, encoding) = (LineRange::default(), Encoding::Base64);
                let read = Read { path, range, encoding };
                self.ask(step, &read, |content| Some(content.bytes))
            }
            OperationKind::Write => {
                self.change(step, &Write { path, content: step.content.clone(), mode: None })
            }
            OperationKind::Append => {
                self.change(step, &Append { path, content: step.content.clone() })
            }
            OperationKind::Edit => {
                let new = String::from_utf8(step.content.clone());
                let new = new.map_err(|_| "an edit needs text".to_owned())?;
                self.change(step, &Edit { path, old: step.old.clone(), new })
            }
            OperationKind::List => self.ask(step, &List { path }, |_| None),
            OperationKind::Stat => self.ask(step, &Stat { path }, |_| None),
            OperationKind::Mkdir => self.change(step, &Mkdir { path, recursive: true, mode: None }),
            OperationKind::Remove => self.change(step, &Remove { path, recursive: true }),
            OperationKind::Rename => {
                let to = step.to.clone().ok_or("a rename needs `to`")?;
                self.change(step, &Rename { from: path, to, replace: true })
            }
            OperationKind::Glob | OperationKind::Grep => {
                Err("a search has no steps; `list` and `read` say what it finds".to_owned())
            }
            OperationKind::Watch => {
                Err("a subscription has no steps; `list` says what it shows".to_owned())
            }
            OperationKind::SetAttributes | OperationKind::Symlink => {
                Err("`setattr` and `symlink` are a mount's and have no steps".to_owned())
            }
            OperationKind::Restore => {
                Err("`restore` is the operator's and has no steps".to_owned())
            }
            OperationKind::Connect => self.connect(step),
            OperationKind::Command => Err("`command` has no path and no steps".to_owned()),
        }
    }

    fn change(
        &mut self,
        step: &Step,
        request: &dyn Request<Output = Changed>,
    ) -> Result<Done, String> {
        self.ask(step, request, |_| None)
    }

    /// Sends a request to the gateway; `disclosed` returns the part of the output that tests
    /// compare.
    fn ask<R: Request + ?Sized>(
        &mut self,
        step: &Step,
        request: &R,
        disclosed: impl FnOnce(R::Output) -> Option<Vec<u8>>,
    ) -> Result<Done, String> {
        let session = self.session(step);
        let refuser = RejectingApprover::default();
        let client = Client::asking(&refuser);
        let answer = self.gateway.handle(&session, request, client);
        let (receipt, disclosed, failed) = match answer {
            Ok(reply) => (Some(reply.receipt), disclosed(reply.output), None),
            Err(error) => {
                let failed = (error.kind() != ErrorKind::Denied).then(|| error.to_string());
                (error.receipt().cloned(), None, failed)
            }
        };
        self.done(receipt, refuser, disclosed, failed)
    }

    /// Asks the gateway about a connection, by the name alone; none is made.
    fn connect(&mut self, step: &Step) -> Result<Done, String> {
        let connect = step.connect.as_ref().ok_or("a connection needs `host` and `port`")?;
        let session = self.session(step);
        let refuser = RejectingApprover::default();
        let attempt = self.gateway.connect(&session, connect, Client::asking(&refuser));
        let (receipt, failed) = match attempt {
            Ok(attempt) => (Some(attempt.receipt().clone()), None),
            Err(error) => {
                let failed = (error.kind() != ErrorKind::Denied).then(|| error.to_string());
                (error.receipt().cloned(), failed)
            }
        };
        self.done(receipt, refuser, None, failed)
    }

    /// Returns the session of the step's agent.
    fn session(&mut self, step: &Step) -> Session {
        let number = self.sessions.len();
        let session = self.sessions.entry(step.agent.clone()).or_insert_with(|| Session {
            id: format!("{number:032x}"),
            agent: step.agent.clone(),
            user: "test".to_owned(),
            transport: Transport::Cli,
            acp: None,
        });
        session.clone()
    }

    fn done(
        &self,
        receipt: Option<Receipt>,
        refuser: RejectingApprover,
        disclosed: Option<Vec<u8>>,
        failed: Option<String>,
    ) -> Result<Done, String> {
        let receipt = receipt.ok_or("the gateway has stopped serving")?;
        // The question is the decision; the denial comes from its rejection.
        let actual = match refuser.asked() {
            Some(asked) => asked,
            None => self.actual(&receipt)?,
        };
        Ok(Done { actual, disclosed, failed })
    }

    /// Reads the decision from the record: a reply names no rule.
    fn actual(&self, receipt: &Receipt) -> Result<ExpectedDecision, String> {
        let source = Directory::new(&self.log);
        let entry = Reader::new(&source, receipt.seq).next().map_err(|error| error.to_string())?;
        let record = entry.and_then(|entry| entry.record().ok()).ok_or("the record is gone")?;
        let draft = record.draft;
        Ok(ExpectedDecision {
            effect: draft.decision.unwrap_or_default(),
            rule: draft.rule.unwrap_or_default(),
            location: draft
                .policy
                .zip(draft.line)
                .map(|(file, line)| SourceLocation { file, line }),
        })
    }
}
