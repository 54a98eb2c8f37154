//! `portcullis shell`: an interactive program in the sandbox of `exec`, on a terminal of its own.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    process::ExitCode,
};

use super::agent::{
    command::{Command, ReportOptions},
    options::SandboxOptions,
};
use crate::{
    app::failure::{Exit, Failure},
    sandbox::{StandardStreams, is_on_terminal},
};

/// The shell that is there everywhere.
const SHELL: &str = "/bin/sh";

/// What says what the terminal can do; it says nothing about the operator.
const TERMINAL_VARIABLES: [&str; 2] = ["TERM", "COLORTERM"];

/// What says in which encoding the operator's programs write, the first that is set.
const LOCALE_VARIABLES: [&str; 3] = ["LC_ALL", "LC_CTYPE", "LANG"];

/// Run an interactive program, such as a shell, an editor or an agent, behind the gate
///
/// The program runs in the sandbox of `exec`, on a terminal of its own. What it writes there
/// passes a filter: text, colours, cursor movement and what full-screen programs need appear
/// on yours; the clipboard, titles and whatever a terminal answers do not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ctrl-C and Ctrl-Z are the program's. Ctrl-] three times within a second ends it, \
    as SIGTERM and\nSIGHUP do. Nobody is asked for approval on this terminal; messages of the gate \
    appear at the end.\nThe exit code is the program's, or 128 and the number of the signal that \
    ended it.\n\nExamples:\n  \
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
    /// The program and its arguments [default: the preset's, or $SHELL, if it is there in the
    /// sandbox, else /bin/sh]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if !is_on_terminal() {
        return Err(Failure::new("standard input and output are not one terminal")
            .exit(Exit::Usage)
            .help("use `portcullis exec -- COMMAND` for a command that has none")
            .beside_result());
    }
    let given = |name: &str| Some((name.into(), std::env::var_os(name)?));
    let environment: BTreeMap<_, _> = TERMINAL_VARIABLES.into_iter().filter_map(given).collect();
    let locale = LOCALE_VARIABLES.into_iter().filter_map(std::env::var_os);
    Command {
        sandbox: args.sandbox,
        command: args.command,
        shells: shells(std::env::var_os("SHELL")),
        environment,
        streams: StandardStreams::Terminal { is_utf8: is_utf8(locale) },
        timeout: None,
        report: args.report,
    }
    .run()
}

/// The shells to try, in order. One that is no absolute path would be looked for.
fn shells(own: Option<OsString>) -> Vec<Vec<OsString>> {
    let own = own.filter(|shell| shell.as_encoded_bytes().starts_with(b"/"));
    own.into_iter().chain([SHELL.into()]).map(|shell| vec![shell]).collect()
}

/// Whether the first of these variables that is not empty names UTF-8.
fn is_utf8(mut locale: impl Iterator<Item = OsString>) -> bool {
    let named = locale.find(|value| !value.is_empty());
    named.as_deref().and_then(OsStr::to_str).is_some_and(|name| {
        let name = name.to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8")
    })
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

    #[test]
    fn the_first_variable_that_is_set_names_the_encoding() {
        let found = |values: &[&str]| is_utf8(values.iter().map(OsString::from));
        assert!(found(&["", "de_DE.utf8"]) && found(&["C.UTF-8", "C"]));
        assert!(!found(&["C", "C.UTF-8"]) && !found(&[]) && !found(&["de_DE.ISO-8859-1"]));
    }
}
