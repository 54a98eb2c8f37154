//! Messages of a connection for the person who started the gateway.
//!
//! The agent's standard output carries ACP alone, so text that an agent prints
//! there reaches no one. It often is the reason why an agent does not work.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::logins::RemovedLogin;

/// Receives what the person who started the gateway should read.
pub trait Notices: fmt::Debug + Send + Sync {
    /// The agent printed a line that is no JSON-RPC message. The line is the
    /// agent's, and not escaped.
    fn printed(&self, line: &[u8]);

    /// Login methods were removed from a reply of the agent.
    fn login_removed(&self, methods: &[RemovedLogin]);

    /// The agent's output ended; all of it was text, and none of it ACP.
    fn no_acp(&self);
}

/// What of the agent's output concerns that person.
#[derive(Debug)]
pub(super) struct AgentOutput {
    notices: Option<Arc<dyn Notices>>,
    spoke_acp: AtomicBool,
    printed: AtomicBool,
    /// Login methods that were removed from the reply to `initialize`.
    removed: OnceLock<Vec<RemovedLogin>>,
}

impl AgentOutput {
    pub(super) fn new(notices: Option<Arc<dyn Notices>>) -> Self {
        Self {
            notices,
            spoke_acp: AtomicBool::new(false),
            printed: AtomicBool::new(false),
            removed: OnceLock::new(),
        }
    }

    /// A JSON-RPC message came.
    pub(super) fn message(&self) {
        self.spoke_acp.store(true, Ordering::Relaxed);
    }

    /// A line came that is no JSON-RPC message.
    pub(super) fn text(&self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        self.printed.store(true, Ordering::Relaxed);
        if let Some(notices) = &self.notices {
            notices.printed(line);
        }
    }

    /// Login methods were removed from a reply.
    pub(super) fn login_removed(&self, methods: Vec<RemovedLogin>) {
        if methods.is_empty() || self.removed.get() == Some(&methods) {
            return;
        }
        if let Some(notices) = &self.notices {
            notices.login_removed(&methods);
        }
        // Those of `initialize` come first, and are the ones that count.
        let _ = self.removed.set(methods);
    }

    /// The login methods that were removed, for the editor's user.
    pub(super) fn removed(&self) -> &[RemovedLogin] {
        self.removed.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// The agent's output ended.
    pub(super) fn ended(&self) {
        let text_only =
            self.printed.load(Ordering::Relaxed) && !self.spoke_acp.load(Ordering::Relaxed);
        if let (true, Some(notices)) = (text_only, &self.notices) {
            notices.no_acp();
        }
    }
}
