//! The gateway process's refusals of connections, with the texts that programs get.

use portcullis_core::{Error, ErrorKind};
use portcullis_policy::model::Connect;

use crate::dialer::DialError;

/// A refusal of a connection: status, reason phrase and body of the reply.
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) phrase: String,
    pub(crate) text: String,
}

impl Refused {
    fn new(status: u16, phrase: impl Into<String>, text: impl std::fmt::Display) -> Self {
        Self { status, phrase: phrase.into(), text: format!("portcullis: {text}\n") }
    }

    /// Returns the refusal for an error of the gateway, such as a denial.
    pub(crate) fn because(error: &Error, to: &Connect) -> Self {
        if error.kind() != ErrorKind::Denied {
            let text = format_args!("no connection to `{to}` is opened: {error}");
            return Self::new(503, "Gateway cannot decide", text);
        }
        let rule = error.rule().unwrap_or("default");
        let why = error.reason().map(|why| format!(": {why}")).unwrap_or_default();
        let text = format_args!(
            "the policy denies a connection to `{to}`, by rule `{rule}`{why}\nhelp: the operator can \
             allow it in `[[network.rules]]`; `portcullis policy explain connect {to}` says more"
        );
        Self::new(403, format!("Denied by rule {rule}"), text)
    }

    pub(crate) fn no_host(why: &str) -> Self {
        Self::new(400, "No host", format_args!("the request names no host: {why}"))
    }

    pub(crate) fn unreachable(error: &DialError, to: &Connect) -> Self {
        match error {
            DialError::Gone => {
                let text = "the connector ended: no connection is opened until it is started again";
                Self::new(502, "Connector is gone", text)
            }
            DialError::Failed(why) => {
                Self::new(502, "Cannot connect", format_args!("cannot connect to `{to}`: {why}"))
            }
        }
    }

    pub(crate) fn busy() -> Self {
        let text = "too many connections are being opened at once";
        Self::new(503, "Too many connections", text)
    }
}
