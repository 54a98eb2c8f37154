//! What waits for the client to come back with an answer: from revision
//! 2026-07-28 on a request that must ask says that it needs input, and comes
//! again with the answer and the state that it was given.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rmcp::model::{
    ElicitRequest, ElicitRequestParams, InputRequest, InputRequiredResult, InputResponses,
};

use crate::{
    gateway::{Ticket, random_hex},
    lock,
};

use super::asking;

/// Most requests of one kind that wait for a client to come back.
const MOST: usize = 64;
/// The question's name where a request says that it needs input.
const QUESTION: &str = "approval";
/// How long after its time a question is remembered.
const AFTER: Duration = Duration::from_secs(60);

/// Requests of one kind that wait, by the state that their clients were given.
pub(super) struct Kept<R>(Mutex<HashMap<String, Open<R>>>);

struct Open<R> {
    request: R,
    ticket: Arc<Ticket>,
    until: Instant,
}

impl<R> Default for Kept<R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R> Kept<R> {
    /// Keeps a request until the client comes back with the state that this gives.
    ///
    /// # Errors
    /// The request, when too many wait already.
    pub(super) fn keep(
        &self,
        request: R,
        ticket: Arc<Ticket>,
        form: ElicitRequestParams,
    ) -> Result<InputRequiredResult, Box<R>> {
        let mut all = lock(&self.0);
        let now = Instant::now();
        // Those to which nobody came back have had their answer from the clock.
        all.retain(|_, open| open.until > now);
        let Some(state) = random_hex::<16>().ok().filter(|_| all.len() < MOST) else {
            return Err(Box::new(request));
        };
        let until = ticket.question().since + ticket.question().timeout + AFTER;
        all.insert(state.clone(), Open { request, ticket, until });
        let asked = InputRequest::Elicitation(ElicitRequest::new(form));
        let asked = BTreeMap::from([(QUESTION.to_owned(), asked)]);
        Ok(InputRequiredResult::new(Some(asked), Some(state)))
    }

    /// The request that has this state, if it is the one that `is_it` knows, with
    /// the client's answer handed on. Any other goes on waiting.
    pub(super) fn take(
        &self,
        state: &str,
        given: Option<&InputResponses>,
        is_it: impl FnOnce(&R) -> bool,
    ) -> Option<R> {
        let open = {
            let mut all = lock(&self.0);
            all.get(state).filter(|open| is_it(&open.request))?;
            all.remove(state)?
        };
        asking::take_value(&open.ticket, given.and_then(|given| given.get(QUESTION)));
        Some(open.request)
    }
}
