//! Requests suspended until the client repeats them with an answer: from revision
//! 2026-07-28 on the reply to a request that needs an approval says that it needs
//! input, and the client repeats the request with the answer and the state from that
//! reply.

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

use super::approver;

/// Maximum of suspended requests of one kind.
const MAX_SUSPENDED: usize = 64;
/// The name of the question in the reply.
const QUESTION: &str = "approval";
/// Time for which a request is retained after its approval has timed out.
const EXPIRY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a request is retained after its question, if the approval has no timeout.
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Suspended requests of one kind, by the state in their replies.
pub(super) struct SuspendedRequests<R>(Mutex<HashMap<String, OpenRequest<R>>>);

struct OpenRequest<R> {
    request: R,
    ticket: Arc<Ticket>,
    until: Instant,
}

impl<R> Default for SuspendedRequests<R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R> SuspendedRequests<R> {
    /// Suspends a request; the result contains the state under which it is resumed.
    ///
    /// # Errors
    /// The request, when too many are suspended.
    pub(super) fn keep(
        &self,
        request: R,
        ticket: Arc<Ticket>,
        form: ElicitRequestParams,
    ) -> Result<InputRequiredResult, Box<R>> {
        let mut all = lock(&self.0);
        let now = Instant::now();
        // Approvals of expired requests have timed out.
        all.retain(|_, open| open.until > now);
        if all.len() >= MAX_SUSPENDED {
            // The clients of these did not come back.
            all.retain(|_, open| !open.ticket.has_ended());
        }
        let Some(state) = random_hex::<16>().ok().filter(|_| all.len() < MAX_SUSPENDED) else {
            return Err(Box::new(request));
        };
        let question = ticket.question();
        let until =
            question.since + question.timeout.map_or(MAX_WAIT, |timeout| timeout + EXPIRY_TIMEOUT);
        all.insert(state.clone(), OpenRequest { request, ticket, until });
        let asked = InputRequest::Elicitation(ElicitRequest::new(form));
        let asked = BTreeMap::from([(QUESTION.to_owned(), asked)]);
        Ok(InputRequiredResult::new(Some(asked), Some(state)))
    }

    /// Resumes the request with this state, if `is_it` accepts it, and passes the
    /// client's answer on. Any other request stays suspended.
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
        approver::take_value(&open.ticket, given.and_then(|given| given.get(QUESTION)));
        Some(open.request)
    }
}
