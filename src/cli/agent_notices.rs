//! Messages about the agent's own output, for the operator.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    acp::{self, OperatorOutput, RemovedLogin},
    cli::rows::named,
    model::Escaped,
};

/// Longest line that is shown, in bytes with its line end: a pipe takes so much in
/// one write (`PIPE_BUF`, pipe(7)), so no other process can write in between.
const MAX_LINE: usize = 4096;
/// Longest name of a login method, in columns with its quotation marks: with what stands before it, it
/// fits into a row of 80.
const MAX_NAME: usize = 26;

/// Writes them to standard error.
#[derive(Debug, Default)]
pub(in crate::cli) struct AgentNotices {
    no_acp: AtomicBool,
}

impl AgentNotices {
    /// Returns true if the agent ended without any ACP.
    pub(in crate::cli) fn is_no_acp(&self) -> bool {
        self.no_acp.load(Ordering::Relaxed)
    }
}

impl OperatorOutput for AgentNotices {
    fn printed(&self, line: &[u8]) {
        errln!("{}", quoted(line));
    }

    fn login_removed(&self, methods: &[RemovedLogin]) {
        for RemovedLogin { name, missing } in methods {
            let name = named(name, MAX_NAME);
            let Some(missing) = missing else {
                errln!(
                    "portcullis: warning: the agent's login method {name} is not offered to the \
                     editor, which would run a command for the agent outside the sandbox"
                );
                errln!(
                    "  help: give the agent an API key or token with `--agent-env NAME`; or let \
                     the editor run the login with `--forward terminal/create`, which counts as \
                     not confined"
                );
                continue;
            };
            errln!(
                "portcullis: note: the agent's login method {name} is not offered to the \
                 editor: it needs {}",
                acp::login_variables(missing)
            );
        }
    }

    fn no_acp(&self) {
        self.no_acp.store(true, Ordering::Relaxed);
        errln!("portcullis: the agent printed text and no ACP message, so it was not served");
        errln!(
            "  help: start it in its ACP mode (often `--acp` or `acp`; docs/agents.md); one \
             without it runs under `portcullis shell` or `portcullis exec`"
        );
    }
}

/// Returns a line of the agent as it is shown: escaped, so that it cannot control a
/// terminal, and marked, so that it cannot imitate a message of ours.
pub(in crate::cli) fn quoted(line: &[u8]) -> String {
    const MORE: &str = " …";
    let room = MAX_LINE - "agent: ".len() - MORE.len() - "\n".len();
    let start = line.get(..MAX_LINE).unwrap_or(line);
    let text = Escaped(&String::from_utf8_lossy(start)).to_string();
    if start.len() == line.len() && text.len() <= room {
        return format!("agent: {text}");
    }
    let (shown, _) = text.split_at(text.floor_char_boundary(room));
    format!("agent: {shown}{MORE}")
}
