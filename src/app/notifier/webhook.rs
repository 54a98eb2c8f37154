//! Notifications by HTTP POST. Redirections are not followed: they would send the headers to
//! another host. Of the reply only the status is read.

use std::time::Duration;

use reqwest::{
    blocking,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
    redirect::Policy,
};
use serde_json::json;

use super::delivery::{TITLE, text};
use crate::config::approvals::{Webhook, WebhookFormat};

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A webhook with its client.
pub(super) struct WebhookClient {
    client: blocking::Client,
    headers: HeaderMap,
    url: String,
    format: WebhookFormat,
}

impl WebhookClient {
    /// Prepares a client; connects to nothing.
    ///
    /// # Errors
    /// When the webhook cannot be used.
    pub(super) fn new(webhook: Webhook) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &webhook.headers {
            let wrong = || format!("the header `{name}` cannot be sent");
            let value = HeaderValue::try_from(value.as_str()).map_err(|_value| wrong())?;
            headers.insert(HeaderName::try_from(name.as_str()).map_err(|_name| wrong())?, value);
        }
        let client = blocking::Client::builder()
            .redirect(Policy::none())
            .timeout(REQUEST_TIMEOUT)
            .user_agent(concat!("portcullis/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { client, headers, url: webhook.url, format: webhook.format })
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// Unless the server accepts it. The message does not contain the URL, which may be a secret.
    pub(super) fn post(&self, reference: &str, count: usize) -> Result<(), String> {
        let (kind, body) = match self.format {
            WebhookFormat::Json => ("application/json", json_body(reference, count)),
            WebhookFormat::Ntfy => ("text/plain; charset=utf-8", text(reference)),
        };
        let mut request = self.client.post(&self.url).header(CONTENT_TYPE, kind).body(body);
        if self.format == WebhookFormat::Ntfy {
            request = request.header("title", TITLE);
        }
        let reply = request.headers(self.headers.clone()).send();
        let reply = reply.map_err(|error| format!("webhook: {}", cause(error.without_url())))?;
        match reply.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("webhook: the server replied {status}")),
        }
    }
}

fn json_body(reference: &str, count: usize) -> String {
    let event = "approvalWaiting";
    json!({ "schema": 1, "event": event, "reference": reference, "waiting": count }).to_string()
}

/// Returns an error with its innermost cause, which says what happened.
fn cause(error: reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    format!("{error}: {cause}")
}
