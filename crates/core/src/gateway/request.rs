//! One request from its beginning to its reply or its error.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use portcullis_audit::Draft;
use serde_json::Value;

use super::{
    Caller, Gateway, Reply,
    asking::Approved,
    error::{self, Error, ErrorKind, Failure, HIDDEN, Stopped},
    limits::{self, Meter},
    locks::changed_paths,
    record,
    reservations::Reservations,
    transaction::Transaction,
};
use crate::{
    model::{Operation, Session},
    ops::{Findings, Follower, Source},
    policy::Decision,
};

/// How often a request is begun again because something moved under it.
pub(super) const ATTEMPTS: usize = 16;

/// On what terms a request is carried out.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) meter: Option<&'a Arc<Meter>>,
    /// Go into the record.
    pub(super) facts: &'a BTreeMap<String, Value>,
    /// True if the operator puts something right.
    pub(super) redress: bool,
}

impl Gateway {
    pub(super) fn answer(
        &self,
        session: &Session,
        operation: &Operation,
        source: Source<'_>,
        caller: Caller<'_>,
    ) -> Result<Reply, Error> {
        let policy = self.policy();
        let begun = self.meters.of(&session.id, policy.limits()).and_then(|meter| {
            meter.as_ref().map_or(Ok(()), |meter| meter.begin(Instant::now()))?;
            Ok(meter)
        });
        let meter = match begun {
            Ok(meter) => meter,
            Err(decision) => {
                let draft = record::operation(session, &policy, operation);
                return Err(self.fail(draft, Failure::Denied(Box::new(decision)), None));
            }
        };
        let terms = Terms { meter: meter.as_ref(), facts: &BTreeMap::new(), redress: false };
        self.carry_out(session, operation, source, terms, caller)
    }

    /// Does what may be done, asking a person where a rule says so.
    pub(super) fn carry_out(
        &self,
        session: &Session,
        operation: &Operation,
        source: Source<'_>,
        terms: Terms<'_>,
        caller: Caller<'_>,
    ) -> Result<Reply, Error> {
        let meter = terms.meter.map(|meter| &**meter);
        let fail = |stopped: Box<Stopped>| self.fail(stopped.draft, stopped.why, meter);
        let attempt = |approved: Option<&Approved>| {
            self.attempt(session, operation, source, terms, caller.follower, approved)
        };
        let (draft, asking) = match attempt(None) {
            Ok(reply) => return Ok(reply),
            Err(stopped) => match *stopped {
                Stopped { draft, why: Failure::Ask(asking) } => (draft, *asking),
                stopped => return Err(fail(Box::new(stopped))),
            },
        };
        // Nothing is held while a person thinks.
        let timeout = self.policy().approval_timeout();
        self.ask(session, draft, asking, timeout, caller.approver)
            .and_then(|yes| attempt(Some(&yes)))
            .map_err(fail)
    }

    /// Tries until nothing moves under it, each time under the policy of then.
    pub(super) fn attempt(
        &self,
        session: &Session,
        operation: &Operation,
        source: Source<'_>,
        Terms { meter, facts, redress }: Terms<'_>,
        follower: &dyn Follower,
        approved: Option<&Approved>,
    ) -> Result<Reply, Box<Stopped>> {
        let denied = |decision| {
            let mut draft = record::operation(session, &self.policy(), operation);
            draft.facts = (!facts.is_empty()).then(|| facts.clone());
            Box::new(Stopped { draft, why: Failure::Denied(Box::new(decision)) })
        };
        // The session may have been closed while a person thought.
        let meter_of_yes = meter.filter(|_| approved.is_some());
        meter_of_yes.map_or(Ok(()), |meter| meter.open()).map_err(denied)?;
        let turn = self.turns.as_ref().map(|turns| turns.enter(session)).transpose();
        let pass = turn.map_err(denied)?;
        let _held = self.locks.hold(changed_paths(operation));
        let mut attempt = 1;
        loop {
            let policy = self.policy();
            let mut draft = record::operation(session, &policy, operation);
            draft.facts = (!facts.is_empty()).then(|| facts.clone());
            let (reservations, findings) = (Reservations::default(), Findings::default());
            let transaction = Transaction {
                gate: self,
                policy: &policy,
                session,
                operation,
                source,
                meter,
                reservations,
                findings: &findings,
                follower,
                redress,
                approved,
            };
            match transaction.run(&mut draft) {
                Err(Failure::Moved) if attempt < ATTEMPTS => attempt += 1,
                Ok(reply) => {
                    if let Some(pass) = &pass {
                        pass.charge(reply.output.weight());
                    }
                    return Ok(reply);
                }
                Err(why) => {
                    let why = transaction.heed_failing(&mut draft, why);
                    record::findings(&mut draft, findings.take());
                    // A denial is one, whatever was let pass before it.
                    if !matches!(why, Failure::Denied(_) | Failure::Hidden(..)) {
                        transaction.reservations.observe(&mut draft);
                    }
                    return Err(Box::new(Stopped { draft, why }));
                }
            }
        }
    }

    /// Records a request that was not done and renders why.
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
                Error::denied(&Decision::built_in_denial(HIDDEN, reason))
            }
            // A person is asked once; whoever still asks has gone astray.
            Failure::Ask(_) => Error::denied(&Decision::built_in_denial("default", "asked twice")),
            Failure::Rendered(error) => error,
            Failure::Operation(error) => error::render(&error),
            Failure::Log(error) => return error.into(),
            Failure::Answered(error) => {
                if closes(&error, meter) {
                    self.end_subscriptions(draft.session.as_deref());
                }
                return error;
            }
        };
        self.record_error(draft, error, meter)
    }

    /// Records and counts; the denial that closes the session says so.
    pub(super) fn record_error(
        &self,
        mut draft: Draft,
        error: Error,
        meter: Option<&Meter>,
    ) -> Error {
        record::fail(&mut draft, &error);
        if let Some(agent) = &draft.agent
            && error.rule().is_some_and(limits::is_limit)
        {
            self.refusals.charge(agent);
        }
        let closed = closes(&error, meter);
        if closed {
            draft.facts.get_or_insert_default().insert("sessionClosed".to_owned(), true.into());
        }
        let session = draft.session.clone().filter(|_| closed);
        let error = match self.ledger.record(draft) {
            Ok(receipt) => error.with_receipt(receipt),
            Err(error) => error.into(),
        };
        self.end_subscriptions(session.as_deref());
        error
    }

    /// Tells a session that was closed of no more changes.
    pub(super) fn end_subscriptions(&self, session: Option<&str>) {
        if let Some(session) = session {
            self.watcher.end_session(session);
            self.record_ended(self.watcher.ended());
        }
    }
}

/// Counts a denial, if it is one; whether that closes the session.
fn closes(error: &Error, meter: Option<&Meter>) -> bool {
    error.kind() == ErrorKind::Denied && meter.is_some_and(|meter| meter.denied(error.rule()))
}
