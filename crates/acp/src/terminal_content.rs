//! The output of terminals in the tool calls that the editor shows.
//!
//! An agent puts terminals into the content of a tool call by their IDs, which the editor does not
//! know. So each is replaced by a text with the last part of the output. The text is sent again as
//! the command progresses, until it has ended or the agent changes the content.

use std::{collections::VecDeque, sync::Mutex, time::Instant};

use portcullis_commands::{Registry, State, View};
use portcullis_rpc::Object;
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};

use crate::lock;

/// Maximum number of bytes of a terminal's output that an editor is shown.
const MAX_SHOWN: usize = 16 * 1024;
/// The most terminals of a tool call whose output an editor is shown.
const MAX_TERMINALS: usize = 8;
/// The text in place of a terminal that is there already, or is one too many.
const NOT_REPEATED: &str = "(the output of this terminal is not shown here)";
/// Maximum number of stored tool calls, and of released terminals whose texts are stored.
const MAX_STORED: usize = 64;
/// The prefix of a terminal's ID, before the number of its command.
const PREFIX: &str = "command-";

/// Tool calls and terminals, as shown to the editor.
#[derive(Default)]
pub(super) struct TerminalContent(pub(super) Mutex<Stored>);

/// The stored tool calls and texts of terminals.
#[derive(Default)]
pub(super) struct Stored {
    pub(super) editor_requests: VecDeque<ToolCall>,
    /// The last texts of released terminals.
    released: VecDeque<(u64, String)>,
}

/// A tool call whose content has terminals.
pub(super) struct ToolCall {
    /// The session in the log, and the one in ACP.
    pub(super) session: String,
    pub(super) acp_session: String,
    pub(super) id: String,
    /// Its content as the agent wrote it.
    pub(super) content: Vec<Box<RawValue>>,
    /// The state that was shown last: for each terminal its bytes, and true if it was over.
    pub(super) shown: Vec<(u64, bool)>,
    pub(super) since: Instant,
}

impl ToolCall {
    /// Returns the numbers of the commands of its first [`MAX_TERMINALS`] terminals, each once.
    pub(super) fn terminals(&self) -> Vec<u64> {
        let mut terminals = Vec::new();
        for number in self.content.iter().filter_map(|item| terminal(item)) {
            if terminals.len() < MAX_TERMINALS && !terminals.contains(&number) {
                terminals.push(number);
            }
        }
        terminals
    }
}

impl TerminalContent {
    /// Stores the last text of a terminal that is about to be released.
    pub(super) fn keep(&self, number: u64, view: &View) {
        push(&mut lock(&self.0).released, (number, text(view)));
    }
}

/// Stores an item, replacing the oldest if there are too many.
pub(super) fn push<T>(stored: &mut VecDeque<T>, item: T) {
    if stored.len() >= MAX_STORED {
        stored.pop_front();
    }
    stored.push_back(item);
}

/// Returns the state of the terminals of a tool call: for each its bytes, and true if it is over.
pub(super) fn progress(registry: &Registry, call: &ToolCall) -> Vec<(u64, bool)> {
    let of = |number| match registry.view(&call.session, number, 0) {
        Some(view) => (view.total, view.state.is_over()),
        None => (0, true),
    };
    call.terminals().into_iter().map(of).collect()
}

/// Returns the content of a tool call with texts in place of its terminals; `None` if it has none.
pub(super) fn rendered(
    registry: &Registry,
    stored: &Stored,
    call: &ToolCall,
) -> Option<Box<RawValue>> {
    let mut left = call.terminals();
    if left.is_empty() {
        return None;
    }
    let text = |number| match registry.view(&call.session, number, MAX_SHOWN) {
        Some(view) => text(&view),
        None => {
            let mut released = stored.released.iter();
            let released = released.find(|(released, _)| *released == number);
            released.map(|(_, text)| text.clone()).unwrap_or_default()
        }
    };
    let items = call.content.iter().map(|item| {
        let Some(number) = terminal(item) else { return Some(item.clone()) };
        let shown = left.iter().position(|shown| *shown == number).map(|at| left.remove(at));
        let text = shown.map_or_else(|| NOT_REPEATED.to_owned(), text);
        let text = json!({ "type": "text", "text": text });
        to_raw_value(&json!({ "type": "content", "content": text })).ok()
    });
    to_raw_value(&items.collect::<Option<Vec<_>>>()?).ok()
}

/// Returns the ID of the terminal of a command.
pub(super) fn id_of(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// Returns the number of the command of a terminal.
pub(super) fn number_of(id: &str) -> Option<u64> {
    let number = id.strip_prefix(PREFIX)?.parse().ok()?;
    (id_of(number) == id).then_some(number)
}

/// Returns the number of the command, if an item of the content is one of the gateway's terminals.
fn terminal(item: &RawValue) -> Option<u64> {
    let item = Object::parse(item.get())?;
    let is_terminal = serde_json::from_str(item.get("type")?.get()).ok() == Some("terminal");
    let id: String = serde_json::from_str(item.get("terminalId")?.get()).ok()?;
    number_of(&id).filter(|_| is_terminal)
}

/// Describes a terminal in Markdown, with the output as a code block.
fn text(view: &View) -> String {
    let plain = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    let mut output: String = view.output.text.chars().filter(plain).collect();
    let over = output.len().saturating_sub(MAX_SHOWN);
    output.drain(..output.ceil_char_boundary(over));
    let is_cut = over > 0 || view.output.from > 0;
    // The fence is longer than any run of backticks in the output.
    let longest = output.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(3.max(longest + 1));
    let before = if is_cut { "…\n" } else { "" };
    let end = if output.is_empty() || output.ends_with('\n') { "" } else { "\n" };
    let state = match &view.state {
        State::Starting | State::Running => "running".to_owned(),
        State::NotStarted(reason) => format!("not started: {reason}"),
        State::Ended(exit) => exit.to_string(),
    };
    format!("{before}{fence}\n{output}{end}{fence}\n{state}")
}

#[cfg(test)]
mod tests {
    use portcullis_commands::{Exit, Part};

    use super::*;

    #[test]
    fn a_terminal_is_named_in_one_way() {
        assert_eq!(number_of(&id_of(7)), Some(7));
        for other in ["7", "command-", "command-+7", "command-07", "command-7 ", "Command-7"] {
            assert_eq!(number_of(other), None, "{other}");
        }
    }
    #[test]
    fn output_stays_in_its_block_and_steers_nothing() {
        let written = "a\u{1b}[31m```\n# no title".to_owned();
        let output = Part { from: 0, to: 0, text: written };
        let view = View { state: State::Ended(Exit::Code(2)), output, total: 0 };
        assert_eq!(text(&view), "````\na[31m```\n# no title\n````\nexit code 2");
    }

    #[test]
    fn only_terminals_of_the_gateway_are_taken_for_such() {
        let of = |text: &str| terminal(&RawValue::from_string(text.to_owned()).unwrap());
        assert_eq!(of(r#"{"type":"terminal","terminalId":"command-3"}"#), Some(3));
        for other in [
            r#"{"type":"terminal","terminalId":"call_1"}"#,
            r#"{"type":"content","terminalId":"command-3"}"#,
            r#"{"type":"terminal"}"#,
            "7",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
