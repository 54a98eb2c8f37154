//! Execution of a request, from its start to its reply or its error.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use portcullis_audit::{Draft, Receipt};
use serde_json::Value;

use super::{
    Gateway,
    approval_requests::with_approval,
    approvals::Approver,
    client::Client,
    error::{self, Error, ErrorKind, Failure, HIDDEN, Stopped},
    import::Import,
    limits::{self, Meter},
    locks::changed_paths,
    pending_approval::Approved,
    record,
    reply::Reply,
    request::Request,
    span,
    transaction::Transaction,
};
use crate::{
    model::{Operation, OperationKind, Session, Transport},
    ops::{Base, Findings},
    policy::{Decision, Policy},
};

/// Attempts at a request whose path moves meanwhile.
pub(super) const MAX_ATTEMPTS: usize = 16;

/// Options with which a request is carried out.
#[derive(Clone, Copy)]
struct ExecutionOptions<'a> {
    session: &'a Session,
    client: Client<'a>,
    meter: Option<&'a Arc<Meter>>,
    /// Facts for the record.
    facts: &'a BTreeMap<String, Value>,
    /// The state of the path on which an undo is based; `None` for another request.
    undo: Option<Base>,
}

impl ExecutionOptions<'_> {
    /// Returns the draft of a request before any decision.
    fn draft(&self, policy: &Policy, operation: Operation<'_>) -> Draft {
        let mut draft = record::operation(self.session, policy, operation);
        record::add_facts(&mut draft, self.facts.clone());
        draft
    }
}

impl Gateway {
    /// Decides on a request, carries it out if it is allowed, and records both. Waits where a rule
    /// asks for an approval. By default no approver is asked: the transport must have another way
    /// ([`Gateway::approvals`]).
    ///
    /// # Errors
    /// When it was denied or failed; the error has the receipt of the record. An error without a
    /// receipt means that no record could be written: the gateway serves nothing any more. A
    /// request that is withdrawn is [`ErrorKind::Cancelled`].
    pub fn handle<R: Request + ?Sized>(
        &self,
        session: &Session,
        request: &R,
        client: Client<'_>,
    ) -> Result<Reply<R::Output>, Error> {
        let operation = request.as_operation();
        let span = span::of(session, operation.kind().as_str());
        let _inside = span.enter();
        let begun = Instant::now();
        let answer = self.meter(session, operation, client.facts).and_then(|meter| {
            let (meter, facts) = (meter.as_ref(), client.facts);
            self.carry_out(request, ExecutionOptions { session, client, meter, facts, undo: None })
        });
        let receipt = answer.as_ref().map(|reply| &reply.receipt);
        self.answered(&span, operation.kind().as_str(), begun, receipt.map(Some));
        answer
    }

    /// Handles a request of the operator's undo as [`Gateway::handle`] does: decided, backed up and
    /// recorded alike, but not counted against the limits of a session, or a session that changed
    /// much could not be undone. `base` is the state of the path that was looked at before; `facts`
    /// name in the record what is undone.
    ///
    /// # Errors
    /// As [`Gateway::handle`]; [`ErrorKind::Conflict`] or [`ErrorKind::AlreadyExists`] if the path
    /// has another state.
    pub fn undo<R: Request + ?Sized>(
        &self,
        session: &Session,
        (request, base): (&R, Base),
        facts: &BTreeMap<String, Value>,
        approver: &dyn Approver,
    ) -> Result<Reply<R::Output>, Error> {
        let client = Client::asking(approver);
        self.carry_out(
            request,
            ExecutionOptions { session, client, meter: None, facts, undo: Some(base) },
        )
    }

    /// Handles a change of a commit that the operator imports as [`Gateway::handle`] does, but does
    /// not count it against the limits of a session, or a session that changed much could not be
    /// imported.
    ///
    /// # Errors
    /// As [`Gateway::handle`].
    pub fn import<R>(
        &self,
        session: &Session,
        request: &Import<R>,
        facts: &BTreeMap<String, Value>,
        approver: &dyn Approver,
    ) -> Result<Reply<<Import<R> as Request>::Output>, Error>
    where
        Import<R>: Request,
    {
        let client = Client::asking(approver);
        self.carry_out(
            request,
            ExecutionOptions { session, client, meter: None, facts, undo: None },
        )
    }

    /// Counts a request against the session's limits.
    fn meter(
        &self,
        session: &Session,
        operation: Operation<'_>,
        facts: &BTreeMap<String, Value>,
    ) -> Result<Option<Arc<Meter>>, Error> {
        let policy = self.policy();
        self.begin_request(session, &policy).map_err(|decision| {
            let mut draft = record::operation(session, &policy, operation);
            record::add_facts(&mut draft, facts.clone());
            self.fail(draft, decision.into(), None)
        })
    }

    /// Counts a request or connection of a session against its limits.
    ///
    /// # Errors
    /// A denial when it may not begin.
    pub(super) fn begin_request(
        &self,
        session: &Session,
        policy: &Policy,
    ) -> Result<Option<Arc<Meter>>, Decision> {
        let meter = self.meter_of(session, policy)?;
        meter.as_ref().map_or(Ok(()), |meter| meter.begin(Instant::now()))?;
        Ok(meter)
    }

    /// Returns the meter of a session that no limit has closed.
    ///
    /// # Errors
    /// As [`Self::meter_of`], and the denial by the limit.
    pub(super) fn open_meter(
        &self,
        session: &Session,
        policy: &Policy,
    ) -> Result<Option<Arc<Meter>>, Decision> {
        let meter = self.meter_of(session, policy)?;
        meter.as_ref().map_or(Ok(()), |meter| meter.open())?;
        Ok(meter)
    }

    /// Returns the meter of a session: an agent's mount has one of its own.
    ///
    /// # Errors
    /// As [`Meters::of`].
    pub(super) fn meter_of(
        &self,
        session: &Session,
        policy: &Policy,
    ) -> Result<Option<Arc<Meter>>, Decision> {
        let meters = match session.transport {
            Transport::Mount | Transport::Proxy => &self.mount_meters,
            Transport::Cli
            | Transport::Acp
            | Transport::Mcp
            | Transport::Files
            | Transport::Serve => &self.meters,
        };
        meters.of(&session.id, policy.limits(session.transport))
    }

    /// Counts the reply to an operation, and adds it to its span.
    pub(super) fn answered(
        &self,
        span: &tracing::Span,
        kind: &'static str,
        begun: Instant,
        answer: Result<Option<&Receipt>, &Error>,
    ) {
        let time = begun.elapsed();
        if let Some(counter) = &self.counter {
            counter.answered(kind, time);
        }
        let (receipt, result) = match answer {
            Ok(receipt) => (receipt, "ok"),
            Err(error) => (error.receipt(), error.kind().as_str()),
        };
        span::answered(span, receipt, result);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(record = receipt.map(|receipt| receipt.seq), micros, "answered");
    }

    /// Carries a request out, with an approval where a rule asks.
    fn carry_out<R: Request + ?Sized>(
        &self,
        request: &R,
        options: ExecutionOptions<'_>,
    ) -> Result<Reply<R::Output>, Error> {
        let meter = options.meter.map(|meter| &**meter);
        let fail = |stopped: Box<Stopped>| self.fail(stopped.draft, stopped.failure, meter);
        let (session, approver) = (options.session, options.client.approver);
        // No lock is held during a wait for an approval.
        let ask = |draft, asking| match session.transport {
            // A program that opens a file cannot wait for a person.
            Transport::Mount => self.ask_without_waiting(session, draft, asking, approver),
            Transport::Cli
            | Transport::Acp
            | Transport::Mcp
            | Transport::Files
            | Transport::Proxy
            | Transport::Serve => self.ask(session, draft, asking, approver),
        };
        let done = with_approval(ask, |approved| self.attempt(request, options, approved));
        done.map(|(reply, _)| reply).map_err(fail)
    }

    /// Repeats a request until nothing moves meanwhile, each time with the policy in force.
    fn attempt<R: Request + ?Sized>(
        &self,
        request: &R,
        options: ExecutionOptions<'_>,
        approved: Option<&Approved>,
    ) -> Result<Reply<R::Output>, Box<Stopped>> {
        let ExecutionOptions { session, client, meter, undo, .. } = options;
        let operation = request.as_operation();
        let denied = |decision: Decision| {
            let draft = options.draft(&self.policy(), operation);
            Box::new(Stopped { draft, failure: decision.into() })
        };
        // The session may have been closed during the wait.
        let approved_meter = meter.filter(|_| approved.is_some());
        approved_meter.map_or(Ok(()), |meter| meter.open()).map_err(denied)?;
        let slot = self.slots.as_ref().map(|slots| slots.enter(session)).transpose();
        let slot = slot.map_err(denied)?;
        let _held = self.locks.hold(changed_paths(operation));
        let mut attempt = 1;
        loop {
            let (policy, findings) = (self.policy(), Findings::default());
            let mut draft = options.draft(&policy, operation);
            let transaction = Transaction {
                meter,
                slot: slot.as_ref(),
                undo,
                approved,
                ..Transaction::new(self, &policy, session, operation, client, &findings)
            };
            match request.run(&transaction, &mut draft) {
                Err(Failure::Moved) if attempt < MAX_ATTEMPTS => attempt += 1,
                Ok(reply) => return Ok(reply),
                Err(failure) => {
                    let failure = transaction.mask_failure(&mut draft, failure);
                    record::findings(&mut draft, findings.take());
                    // A denial has its own rule in the record, whatever observe mode allowed before
                    // it.
                    if !matches!(failure, Failure::Denied(_) | Failure::Hidden(..)) {
                        transaction.obligations.observe(&mut draft);
                    }
                    return Err(Box::new(Stopped { draft, failure }));
                }
            }
        }
    }

    /// Records a request that was not carried out and renders the failure.
    pub(super) fn fail(&self, mut draft: Draft, failure: Failure, meter: Option<&Meter>) -> Error {
        let error = match failure {
            Failure::Moved => Error::new(
                ErrorKind::Conflict,
                "the path keeps changing, or another process holds a lease on the file; try again",
            ),
            Failure::Denied(decision) => {
                record::decide(&mut draft, &decision);
                Error::denied(&decision)
            }
            Failure::Hidden(decision, reason) => {
                record::decide(&mut draft, &decision);
                record::fail(&mut draft, &Error::denied(&decision));
                Error::denied(&Decision::built_in_denial(HIDDEN, &reason))
            }
            // [`with_approval`] asks first; a question without an approver is a defect.
            Failure::Ask(_) => {
                Error::denied(&Decision::built_in_denial("default", "nobody was asked"))
            }
            Failure::Rendered(error) => error,
            Failure::Operation(error) => error::render(&error),
            Failure::Log(error) => return error.into(),
            Failure::Answered(error) => {
                self.end_subscriptions(closed_by(&error, meter));
                return error;
            }
        };
        self.record_error(draft, error, meter)
    }

    /// Records and counts an error; the denial that closes the session is marked.
    pub(super) fn record_error(
        &self,
        mut draft: Draft,
        error: Error,
        meter: Option<&Meter>,
    ) -> Error {
        record::fail(&mut draft, &error);
        // A connection that is denied or withdrawn is asked for again at once.
        let is_connection = draft.op.as_deref() == Some(OperationKind::Connect.as_str())
            && matches!(error.kind(), ErrorKind::Denied | ErrorKind::Cancelled);
        if let Some(agent) = &draft.agent
            && (is_connection || error.rule().is_some_and(limits::is_limit))
        {
            self.refusals.charge(agent, &draft);
        }
        let closed = closed_by(&error, meter);
        if closed.is_some() {
            draft.facts.get_or_insert_default().insert("sessionClosed".to_owned(), true.into());
        }
        let error = match self.audit_log.record(draft) {
            Ok(receipt) => error.with_receipt(receipt),
            Err(error) => error.into(),
        };
        self.end_subscriptions(closed);
        error
    }

    /// Counts a denial of something that had been allowed, and says in its record whether that
    /// closes the session.
    pub(super) fn count_denial(&self, session: &Session, draft: &mut Draft) {
        let meter = self.meter_of(session, &self.policy()).ok().flatten();
        if meter.is_some_and(|meter| meter.denied(draft.rule.as_deref())) {
            draft.facts.get_or_insert_default().insert("sessionClosed".to_owned(), true.into());
            self.end_subscriptions(Some(&session.id));
        }
    }

    /// Ends the subscriptions of a session that was closed.
    fn end_subscriptions(&self, session: Option<&str>) {
        if let Some(session) = session {
            self.watcher.end_session(session);
            self.record_ended(self.watcher.ended());
        }
    }
}

/// Counts a denial, and returns the session if that closes it.
fn closed_by<'m>(error: &Error, meter: Option<&'m Meter>) -> Option<&'m str> {
    let meter = meter.filter(|_| error.kind() == ErrorKind::Denied)?;
    meter.denied(error.rule()).then(|| meter.session())
}
