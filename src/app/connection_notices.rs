//! Messages to the operator about connections that were denied, cut off or failed: one of each kind.

use std::{collections::BTreeSet, sync::Mutex};

use portcullis_rpc::lock;

use super::connection_help::{Help, help};
use crate::egress::{DeniedConnection, OperatorOutput};

/// The maximum of messages of a session.
const MAX_NOTICES: usize = 32;

/// The options with which `portcullis policy explain` explains decisions of the session.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExplainOptions {
    /// The options for the operator.
    pub(crate) operator: String,
    /// The options for programs, which name no file of the host.
    pub(crate) program: String,
}

/// Writes the messages of a session to standard error.
#[derive(Debug)]
pub(crate) struct ConnectionNotices {
    explain: ExplainOptions,
    /// The kinds of the messages so far.
    reported: Mutex<BTreeSet<String>>,
}

impl ConnectionNotices {
    /// Returns notices that explain denials with these options.
    pub(crate) fn new(explain: ExplainOptions) -> Self {
        Self { explain, reported: Mutex::default() }
    }

    /// Reports a text to the operator, unless one of this `kind` was reported.
    fn report(&self, kind: String, text: &str) {
        let mut reported = lock(&self.reported);
        if reported.len() > MAX_NOTICES || !reported.insert(kind) {
            return;
        }
        match reported.len() <= MAX_NOTICES {
            true => errln!("{text}"),
            false => errln!(
                "portcullis: warning: more connections were denied, cut off or failed: the log has them \
                 all"
            ),
        }
    }
}

impl OperatorOutput for ConnectionNotices {
    fn warn(&self, what: &str, reason: &str) {
        self.report(what.to_owned(), &format!("portcullis: warning: {what}: {reason}"));
    }

    fn denied(&self, denied: &DeniedConnection<'_>, reason: &str) -> String {
        let DeniedConnection { to, rule, .. } = denied;
        let Help { advice, explain } = help(denied);
        let help = |options: &str| match &explain {
            Some(explain) => format!("{advice}; `portcullis {explain}{options}` says more"),
            None => advice.clone(),
        };
        let told = format!(
            "portcullis: denied: a connection to `{to}`, by rule `{rule}`{reason}\n  help: {}",
            help(&self.explain.operator)
        );
        self.report(format!("{to} {rule}"), &told);
        help(&self.explain.program)
    }

    fn has_reported(&self) -> bool {
        !lock(&self.reported).is_empty()
    }
}
