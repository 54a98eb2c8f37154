//! The requests in flight of one client. A reply names its request by the id alone,
//! so no two requests in flight have the same id.
//!
//! Cancellation is handled here as well, not by `rmcp`: that forgets a cancelled
//! request before its end, and takes its late reply for that of the next request
//! with the same id.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Mutex,
};

use portcullis_rpc::Reservation;
use rmcp::model::RequestId;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::memory::CallSlot;
use crate::lock;

/// Maximum of requests in flight, of all kinds.
const MAX_IN_FLIGHT: usize = 4096;

/// The error of a request whose id is in use.
pub const IN_USE: &str = "the id is that of a request that is not answered yet";
/// The notification by which a front reports that it refused such a request.
pub const REPEATED: &str = "notifications/portcullis/repeated";

/// The method by which a front reports a request that it refused otherwise, with [`FrontRefusal`].
pub const REFUSED: &str = "portcullis/refused";

/// The parameters of a request [`REFUSED`].
#[derive(Debug, Deserialize, Serialize)]
pub struct FrontRefusal {
    /// The method of the refused request.
    pub method: String,
    /// The reason.
    pub reason: String,
}

/// The requests in flight.
#[derive(Default)]
pub(super) struct InFlight(Mutex<HashMap<RequestId, Request>>);

/// A request in flight.
struct Request {
    /// Cancelled with the request.
    token: CancellationToken,
    /// Its memory, if bounded.
    _reserved: Option<Reservation>,
    /// Held while it is carried out, if memory is bounded.
    slot: Option<CallSlot>,
}

/// A request that has ended. Its memory and slot are freed when this is dropped.
pub(super) struct EndedRequest(Option<Request>);

impl EndedRequest {
    /// Returns true if the client waits for the reply.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.as_ref().is_none_or(|request| !request.token.is_cancelled())
    }
}

impl InFlight {
    /// Registers a request.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub(super) fn begin(
        &self,
        id: &RequestId,
        reserved: Option<Reservation>,
    ) -> Result<(), &'static str> {
        let mut all = lock(&self.0);
        let many = all.len() >= MAX_IN_FLIGHT;
        match all.entry(id.clone()) {
            Entry::Occupied(_) => Err(IN_USE),
            Entry::Vacant(_) if many => Err("too many requests are not answered yet"),
            Entry::Vacant(free) => {
                free.insert(Request {
                    token: CancellationToken::new(),
                    _reserved: reserved,
                    slot: None,
                });
                Ok(())
            }
        }
    }

    /// Returns the cancellation token of a request.
    pub(super) fn token(&self, id: &RequestId) -> Option<CancellationToken> {
        lock(&self.0).get(id).map(|request| request.token.clone())
    }

    /// Returns true if there is exactly one.
    pub(super) fn is_one(&self) -> bool {
        lock(&self.0).len() == 1
    }

    /// Cancels a request at the client's demand. Its id stays in use until it has
    /// ended.
    pub(super) fn cancel(&self, id: &RequestId) {
        // A request that has its reply is gone.
        if let Some(token) = self.token(id) {
            token.cancel();
        }
    }

    /// Stores the slot of a request that begins.
    pub(super) fn take_slot(&self, id: &RequestId, slot: CallSlot) {
        if let Some(request) = lock(&self.0).get_mut(id) {
            request.slot = Some(slot);
        }
    }

    /// Frees the slot of a request that waits for an approval.
    pub(super) fn leave_slot(&self, id: &RequestId) {
        let left = lock(&self.0).get_mut(id).and_then(|request| request.slot.take());
        drop(left);
    }

    /// Removes a request that has ended.
    pub(super) fn end(&self, id: &RequestId) -> EndedRequest {
        EndedRequest(lock(&self.0).remove(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_free_when_its_request_has_come_to_its_end() {
        let (all, id) = (InFlight::default(), RequestId::Number(7));
        assert!(!all.is_one());
        all.begin(&id, None).unwrap();
        assert!(all.is_one());
        assert_eq!(all.begin(&id, None), Err(IN_USE));
        all.begin(&RequestId::String("7".into()), None).unwrap();
        assert!(!all.is_one());
        assert!(all.end(&id).is_wanted());
        assert!(all.is_one());
        all.begin(&id, None).unwrap();
        let token = all.token(&id).unwrap();
        all.cancel(&id);
        assert!(token.is_cancelled());
        // The request continues until it notices the cancellation.
        assert_eq!(all.begin(&id, None), Err(IN_USE));
        assert!(!all.end(&id).is_wanted());
        all.begin(&id, None).unwrap();
    }

    #[test]
    fn there_is_an_end_to_what_a_client_may_have_under_way() {
        let all = InFlight::default();
        let count =
            (0_i64..).take_while(|n| all.begin(&RequestId::Number(*n), None).is_ok()).count();
        assert_eq!(count, MAX_IN_FLIGHT);
        assert!(
            all.end(&RequestId::Number(0)).is_wanted()
                && all.begin(&RequestId::Number(0), None).is_ok()
        );
    }
}
