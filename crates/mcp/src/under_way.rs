//! The requests of one client that are not answered. An answer says by its id
//! alone which one it is for, so no two of them have the same.
//!
//! Requests are taken back here, too, and not by `rmcp`: that forgets them before
//! they come to their end, and takes the answer that comes then for that of the
//! next request with the same id.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Mutex,
};

use portcullis_rpc::Reservation;
use rmcp::model::RequestId;
use tokio_util::sync::CancellationToken;

use super::memory::CallSlot;
use crate::lock;

/// Most requests that are not answered, of whatever kind.
const MOST: usize = 4096;

/// Why a request is not begun whose id another one has.
pub const IN_USE: &str = "the id is that of a request that is not answered yet";
/// The notification by which a front says that it refused a request for that.
pub const REPEATED: &str = "notifications/portcullis/repeated";

/// Those that are not answered.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<HashMap<RequestId, Request>>);

/// One that is not answered.
struct Request {
    /// Cancelled when it is taken back.
    token: CancellationToken,
    /// Its memory, where that is bounded.
    _reserved: Option<Reservation>,
    /// While it is carried out, where memory is bounded.
    slot: Option<CallSlot>,
}

/// One that has come to its end. What it held is given back when this is dropped.
pub(super) struct Ended(Option<Request>);

impl Ended {
    /// Whether the client waits for the answer.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.as_ref().is_none_or(|request| !request.token.is_cancelled())
    }
}

impl UnderWay {
    /// Takes note of a request.
    ///
    /// # Errors
    /// Why it must not be begun.
    pub(super) fn begin(
        &self,
        id: &RequestId,
        reserved: Option<Reservation>,
    ) -> Result<(), &'static str> {
        let mut all = lock(&self.0);
        let many = all.len() >= MOST;
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

    /// What is cancelled when a request is taken back.
    pub(super) fn token(&self, id: &RequestId) -> Option<CancellationToken> {
        lock(&self.0).get(id).map(|request| request.token.clone())
    }

    /// Whether there is but one.
    pub(super) fn is_one(&self) -> bool {
        lock(&self.0).len() == 1
    }

    /// The client takes a request back. Its id is in use until it has come to its
    /// end.
    pub(super) fn cancel(&self, id: &RequestId) {
        // What was answered meanwhile cannot be.
        if let Some(token) = self.token(id) {
            token.cancel();
        }
    }

    /// A request is carried out now.
    pub(super) fn take_slot(&self, id: &RequestId, slot: CallSlot) {
        if let Some(request) = lock(&self.0).get_mut(id) {
            request.slot = Some(slot);
        }
    }

    /// A request waits for a person: others have its slot.
    pub(super) fn leave_slot(&self, id: &RequestId) {
        let left = lock(&self.0).get_mut(id).and_then(|request| request.slot.take());
        drop(left);
    }

    /// A request has come to its end.
    pub(super) fn end(&self, id: &RequestId) -> Ended {
        Ended(lock(&self.0).remove(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_free_when_its_request_has_come_to_its_end() {
        let (all, id) = (UnderWay::default(), RequestId::Number(7));
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
        // It goes on until it notices.
        assert_eq!(all.begin(&id, None), Err(IN_USE));
        assert!(!all.end(&id).is_wanted());
        all.begin(&id, None).unwrap();
    }

    #[test]
    fn there_is_an_end_to_what_a_client_may_have_under_way() {
        let all = UnderWay::default();
        let count =
            (0_i64..).take_while(|n| all.begin(&RequestId::Number(*n), None).is_ok()).count();
        assert_eq!(count, MOST);
        assert!(
            all.end(&RequestId::Number(0)).is_wanted()
                && all.begin(&RequestId::Number(0), None).is_ok()
        );
    }
}
