//! `/readyz`: reports if the broker replies, and if it can serve every workspace.
//!
//! No token is needed. So the broker is asked once a second at most, and the reply
//! contains no name and no path.

use std::time::{Duration, Instant};

use hyper::{Response, StatusCode};
use serde_json::json;

use super::{
    BrokerReply, OpenError,
    reply::{self, Body},
};

/// Timeout for the broker's reply.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which its reply is cached.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The last reply of the broker; locked while it is asked.
#[derive(Debug, Default)]
pub(super) struct Readiness(tokio::sync::Mutex<Option<(Instant, Verdict)>>);

/// Ready, or the reason why not.
pub(super) type Verdict = Result<(), String>;

impl Readiness {
    /// Returns the reply to a request for `/readyz`; `asked` asks the broker.
    pub(super) async fn reply(
        &self,
        asked: impl Future<Output = Result<BrokerReply, OpenError>>,
    ) -> Response<Body> {
        render(self.verdict(asked).await)
    }

    async fn verdict(
        &self,
        asked: impl Future<Output = Result<BrokerReply, OpenError>>,
    ) -> Verdict {
        let mut known = self.0.lock().await;
        if let Some((at, verdict)) = &*known
            && at.elapsed() < MAX_AGE
        {
            return verdict.clone();
        }
        let verdict = match asked.await {
            Ok(BrokerReply::Ready(verdict)) => verdict,
            _ => Err("the broker does not answer".to_owned()),
        };
        *known = Some((Instant::now(), verdict.clone()));
        verdict
    }
}

/// Renders the HTTP reply.
pub(super) fn render(verdict: Verdict) -> Response<Body> {
    let (status, what) = match verdict {
        Ok(()) => (StatusCode::OK, json!({ "ready": true })),
        Err(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, json!({ "ready": false, "reason": reason }))
        }
    };
    reply::json(status, what.to_string())
}
