//! Sends a notification to the desktop and to the webhook.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{config::approvals::Webhook, model::Escaped};

#[cfg(feature = "webhooks")]
use super::webhook::WebhookClient;

/// Timeout of the program that shows a notification.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);

/// The places to which notifications go.
pub(super) struct Delivery {
    program: Option<PathBuf>,
    #[cfg(feature = "webhooks")]
    webhook: Option<WebhookClient>,
    /// True if the last notification failed: the next failure is no news.
    is_failing: bool,
}

impl Delivery {
    /// Prepares it.
    ///
    /// # Errors
    /// When the webhook cannot be used.
    pub(super) fn new(program: Option<PathBuf>, webhook: Option<Webhook>) -> Result<Self, String> {
        #[cfg(feature = "webhooks")]
        let webhook = webhook.map(WebhookClient::new).transpose()?;
        // The configuration is refused then.
        #[cfg(not(feature = "webhooks"))]
        let _ = webhook;
        Ok(Self {
            program,
            #[cfg(feature = "webhooks")]
            webhook,
            is_failing: false,
        })
    }

    /// Sends a notification of `count` waiting requests, and warns where that fails and did not
    /// before.
    pub(super) fn deliver(&mut self, reference: &str, count: usize) {
        let sent = self.send(reference, count);
        if let Err(reason) = &sent
            && !self.is_failing
        {
            errln!("portcullis: warning: a notification was not sent: {}", Escaped(reason));
        }
        self.is_failing = sent.is_err();
    }

    /// Sends it to each destination.
    ///
    /// # Errors
    /// The first failure, after all were tried.
    pub(super) fn send(&self, reference: &str, count: usize) -> Result<(), String> {
        let shown = self.program.as_deref().map_or(Ok(()), |program| show(program, reference));
        #[cfg(feature = "webhooks")]
        let posted = self.webhook.as_ref().map_or(Ok(()), |client| client.post(reference, count));
        #[cfg(not(feature = "webhooks"))]
        let (posted, _) = (Ok(()), count);
        shown.and(posted)
    }
}

/// The headline of a notification.
pub(super) const TITLE: &str = "Portcullis: a request waits for approval";

/// Returns the text of a notification: what the operator types.
pub(super) fn text(reference: &str) -> String {
    format!("portcullis approve {reference}")
}

/// Shows a notification on the desktop.
fn show(program: &Path, reference: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("`{}`: {error}", program.display());
    let mut child = Command::new(program)
        .args(["--app-name=Portcullis", TITLE, &text(reference)])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let end = Instant::now() + PROGRAM_TIMEOUT;
    loop {
        match child.try_wait().map_err(failed)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("`{}` failed: {status}", program.display())),
            None if Instant::now() >= end => {
                // It may have ended by now.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("`{}` did not end in time", program.display()));
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
}
