//! `portcullis shell`: an interactive program in the sandbox of `exec`, on a terminal of its own.

use std::{ffi::OsString, process::ExitCode};

use super::agent::{
    command::{ReportOptions, SandboxCommand},
    operator_terminal::operator_terminal,
    options::{Purpose, SandboxOptions},
};
use crate::app::failure::Failure;

/// The shell that exists everywhere.
const SHELL: &str = "/bin/sh";

/// Run an interactive program, such as a shell, an editor or an agent, behind the gateway
///
/// The program runs in the sandbox of `exec`, on a terminal of its own. What it writes there
/// passes a filter: text, colours, cursor movement and what full-screen programs need appear
/// on yours; the clipboard, titles and whatever a terminal answers do not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ctrl-C and Ctrl-Z are the program's. Ctrl-] three times within a second ends it, \
    as SIGTERM and\nSIGHUP do. Nobody is asked for approval on this terminal; messages of the gateway \
    appear at the end.\nThe exit code is the program's, 128 and the number of the signal that \
    ended it, 127 when there is\nno such program, or 126 when it cannot be executed.\n\nExamples:\n  \
    portcullis shell\n  \
    portcullis shell -- vim src/main.rs\n  \
    portcullis shell --preset claude-code\n  \
    portcullis shell --preset claude-code -- bash"
)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: SandboxOptions,
    #[command(flatten)]
    report: ReportOptions,
    /// The program and its arguments [default: the preset's, or $SHELL, if it exists in the
    /// sandbox, else /bin/sh]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let (streams, environment) = operator_terminal()?;
    SandboxCommand {
        purpose: Purpose::Work,
        callback: None,
        sandbox: args.sandbox,
        command: args.command,
        shells: shells(std::env::var_os("SHELL")),
        environment,
        streams,
        timeout: None,
        report: args.report,
    }
    .run()
}

/// Returns the shells to try, in order. One without an absolute path would be searched for.
fn shells(own: Option<OsString>) -> Vec<Vec<OsString>> {
    let own = own.filter(|shell| shell.as_encoded_bytes().starts_with(b"/"));
    own.into_iter().chain([SHELL.into()]).map(|shell| vec![shell]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_shell_is_tried_first() {
        let words = |own: Option<&str>| shells(own.map(OsString::from)).concat();
        assert_eq!(words(Some("/usr/bin/zsh")), ["/usr/bin/zsh", "/bin/sh"]);
        assert_eq!(words(Some("zsh")), ["/bin/sh"]);
        assert_eq!(words(None), ["/bin/sh"]);
    }
}
