//! Messages to the terminal about requests of this command that wait for approval.

use std::sync::Arc;

use super::{
    gateway_options,
    rows::{stderr_width, wrapped},
};
use crate::{
    acp::EditorUser,
    app::{approval_socket::Item, bootstrap::Started, stderr},
    gateway::{Approver, Question, Ticket},
    model::{Escaped, QuotedName},
};

/// The blanks before a row that continues a line.
const CONTINUED: usize = 10;

/// Prints on stderr that a request of this command waits for approval, and how to answer it from
/// another shell.
pub(crate) struct Announcer {
    /// The options that lead to the gateway.
    pub(crate) options: String,
}

impl Announcer {
    /// Announces requests at a gateway.
    pub(crate) fn of(started: &Started) -> Self {
        Self { options: gateway_options::log_options_of(started) }
    }
}

impl Approver for Announcer {
    fn ask(&self, ticket: &Arc<Ticket>) {
        // A message that is held back appears when the session is over, and its questions are then.
        if !stderr::is_held() {
            announce(ticket.question(), &self.options);
        }
    }

    fn over(&self, _ticket: &Ticket) {}
}

/// Asks the editor's user; without one, announces the request on stderr.
pub(crate) struct EditorOrTerminal {
    pub(crate) editor: Arc<EditorUser>,
    pub(crate) terminal: Announcer,
}

impl Approver for EditorOrTerminal {
    fn ask(&self, ticket: &Arc<Ticket>) {
        if !self.editor.ask(ticket) {
            self.terminal.ask(ticket);
        }
    }

    fn over(&self, ticket: &Ticket) {
        self.editor.over(ticket);
    }
}

/// Prints on stderr that a request waits for approval at the gateway to which these options lead,
/// and how to answer it from another shell.
pub(crate) fn announce(question: &Question, options: &str) {
    let item = Item::from(question);
    let width = stderr_width();
    let limit = item.seconds_left.map(|seconds| format!("up to {seconds} s "));
    let limit = limit.unwrap_or_default();
    let line = format!("portcullis: waiting {limit}for approval of {}", headline(&item));
    errln!("{}", wrapped(&line, 0, CONTINUED, width));
    for rule in &item.rules {
        let reason = rule.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        errln!("{}", wrapped(&format!("rule `{}`{reason}", rule.id), 2, CONTINUED, width));
    }
    errln!("  help: in another shell, `portcullis approve {} {options}`", item.id);
    errln!("        or `portcullis approve --reject {} {options}`", item.id);
}

pub(crate) fn headline(item: &Item) -> String {
    let to = item.to.as_ref().map(|to| format!(" to {}", QuotedName(to))).unwrap_or_default();
    let asked = match item.asked_path == item.path {
        true => String::new(),
        false => format!(" (asked for as {})", QuotedName(&item.asked_path)),
    };
    format!(
        "{} {}{to}{asked} by agent {}",
        Escaped(&item.operation),
        QuotedName(&item.path),
        QuotedName(&item.agent)
    )
}
