//! `/readyz`: whether the broker answers, and whether it can serve everything.
//!
//! Anybody may ask. So the broker is asked once a second at most, and whoever
//! asks learns no name and no path.

use std::time::{Duration, Instant};

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde_json::json;

use super::{
    Answer, Front, Want,
    reply::{self, Body},
};

/// How long the broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long its answer counts.
const FRESH: Duration = Duration::from_secs(1);

/// What the broker said last; locked while it is asked.
#[derive(Debug, Default)]
pub(super) struct Readiness(tokio::sync::Mutex<Option<(Instant, Verdict)>>);

/// Ready, or why not.
type Verdict = Result<(), String>;

impl Front {
    /// The reply to a request for `/readyz`.
    pub(super) async fn ready(&self) -> Response<Body> {
        match self.verdict().await {
            Ok(()) => render(StatusCode::OK, &json!({ "ready": true })),
            Err(why) => {
                let why = json!({ "ready": false, "reason": why });
                render(StatusCode::SERVICE_UNAVAILABLE, &why)
            }
        }
    }

    async fn verdict(&self) -> Verdict {
        if self.is_stopping() {
            return Err("the service is stopping".to_owned());
        }
        let mut known = self.readiness.0.lock().await;
        if let Some((at, verdict)) = &*known
            && at.elapsed() < FRESH
        {
            return verdict.clone();
        }
        let verdict = match self.put(None, Want::Ready, PATIENCE).await {
            Ok(Answer::Ready(verdict)) => verdict,
            _ => Err("the broker does not answer".to_owned()),
        };
        *known = Some((Instant::now(), verdict.clone()));
        verdict
    }
}

fn render(status: StatusCode, what: &serde_json::Value) -> Response<Body> {
    let mut reply = reply::text(status, &what.to_string());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
