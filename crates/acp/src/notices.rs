//! Messages of a connection for the operator.
//!
//! The agent's standard output carries only ACP, so text that an agent prints there is lost. It
//! often explains why an agent does not work.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::logins::RemovedLogin;

/// Receives messages for the operator.
pub trait OperatorOutput: fmt::Debug + Send + Sync {
    /// Receives a line of the agent that is not a JSON-RPC message. The line is not escaped.
    fn printed(&self, line: &[u8]);

    /// Receives the login methods that were removed from a reply of the agent.
    fn login_removed(&self, methods: &[RemovedLogin]);

    /// Reports that the agent's output ended with text alone, without ACP.
    fn no_acp(&self);
}

/// The parts of the agent's output that are for the operator.
#[derive(Debug)]
pub(super) struct AgentOutput {
    notices: Option<Arc<dyn OperatorOutput>>,
    spoke_acp: AtomicBool,
    printed: AtomicBool,
    /// The login methods that were removed first, from the reply to `initialize`.
    removed: OnceLock<Vec<RemovedLogin>>,
}

impl AgentOutput {
    pub(super) fn new(notices: Option<Arc<dyn OperatorOutput>>) -> Self {
        Self {
            notices,
            spoke_acp: AtomicBool::new(false),
            printed: AtomicBool::new(false),
            removed: OnceLock::new(),
        }
    }

    /// Records that a JSON-RPC message came.
    pub(super) fn message(&self) {
        self.spoke_acp.store(true, Ordering::Relaxed);
    }

    /// Reports a line that is not a JSON-RPC message.
    pub(super) fn text(&self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        self.printed.store(true, Ordering::Relaxed);
        if let Some(notices) = &self.notices {
            notices.printed(line);
        }
    }

    /// Reports login methods that were removed from a reply.
    pub(super) fn login_removed(&self, methods: Vec<RemovedLogin>) {
        if methods.is_empty() || self.removed.get() == Some(&methods) {
            return;
        }
        if let Some(notices) = &self.notices {
            notices.login_removed(&methods);
        }
        // The reply to `initialize` comes first; later ones do not replace it.
        let _ = self.removed.set(methods);
    }

    /// Returns the login methods that were removed, for the editor's user.
    pub(super) fn removed(&self) -> &[RemovedLogin] {
        self.removed.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// Reports the end of the agent's output.
    pub(super) fn ended(&self) {
        let text_only =
            self.printed.load(Ordering::Relaxed) && !self.spoke_acp.load(Ordering::Relaxed);
        if let (true, Some(notices)) = (text_only, &self.notices) {
            notices.no_acp();
        }
    }
}
