//! Refusals of requests and connections, as programs get them.

use portcullis_core::Error;
use portcullis_policy::model::Connect;
use serde::{Deserialize, Serialize};

use crate::messages::{MAX_DETAIL, beginning};

/// The longest reason phrase, in bytes.
const MAX_PHRASE: usize = 200;

/// A refusal of a request or a connection: status, reason phrase and body of the reply.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) phrase: String,
    pub(crate) text: String,
}

impl Refused {
    pub(crate) fn new(status: u16, phrase: impl AsRef<str>, text: impl std::fmt::Display) -> Self {
        let phrase = beginning(phrase.as_ref(), MAX_PHRASE).to_owned();
        let text = format!("portcullis: {text}");
        Self { status, phrase, text: format!("{}\n", beginning(&text, MAX_DETAIL)) }
    }

    /// Returns the refusal of a request that did not come in time.
    pub(crate) fn slow() -> Self {
        Self::new(408, "Request Timeout", "the request did not come in time")
    }

    /// Returns the refusal of a connection above the maximum.
    pub(crate) fn full() -> Self {
        Self::new(503, "Too many connections", "there are too many connections at once")
    }

    /// Returns the refusal of a request when the gateway process is gone.
    pub(crate) fn gone() -> Self {
        Self::new(503, "Gateway is gone", "the gateway is gone")
    }

    /// Returns the refusal of a request whose server cannot be used.
    #[cfg(feature = "tls")]
    pub(crate) fn unusable(why: &str) -> Self {
        Self::new(502, "Bad Gateway", why)
    }

    /// Returns the refusal of a connection on which the gateway cannot decide.
    pub(crate) fn undecided(error: &Error, to: &Connect) -> Self {
        let text = format_args!("no connection to `{to}` is opened: {error}");
        Self::new(503, "Gateway cannot decide", text)
    }

    /// Returns the refusal of a connection that is denied by `rule`, with its reason and help.
    pub(crate) fn denied(to: &Connect, rule: &str, why: &str, help: &str) -> Self {
        let text = format_args!(
            "the policy denies a connection to `{to}`, by rule `{rule}`{why}\nhelp: {help}"
        );
        Self::new(403, format!("Denied by rule {rule}"), text)
    }

    /// Returns the refusal of a request that is not passed on.
    pub(crate) fn not_passed_on(status: u16, why: &str) -> Self {
        // A credential's process sends no phrase.
        Self::new(status, "Bad Request", why)
    }

    pub(crate) fn no_host(why: &str) -> Self {
        Self::new(400, "No host", format_args!("the request names no host: {why}"))
    }

    /// Returns the refusal of a connection once the connector has ended for good.
    pub(crate) fn no_connector() -> Self {
        let text = "the connector ended and is not started again: no connection is opened in this \
            session; the operator can start a new one";
        Self::new(502, "Connector is gone", text)
    }

    /// Returns the refusal of a connection above the maximum that is opened at once.
    pub(crate) fn busy() -> Self {
        let text = "too many connections are being opened at once";
        Self::new(503, "Too many connections", text)
    }

    /// Returns the reply in HTTP/1.1.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self { status, phrase, text } = self;
        let phrase: String = phrase.chars().filter(|c| matches!(c, ' '..='~')).collect();
        let length = text.len();
        format!(
            "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
        )
        .into_bytes()
    }
}
