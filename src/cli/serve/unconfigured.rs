//! Command line options without effect where the configuration names workspaces.
//! Their user believes that another workspace, or another policy, is served.

use clap::{ArgMatches, parser::ValueSource};

use crate::app::failure::{Exit, Failure};

/// Options of the workspace that is served without a configuration.
const OPTIONS: [&str; 8] =
    ["workspace", "policy", "state", "adopt", "agent", "name", "tools", "ask"];

/// Refuses them on the command line, and warns of them in the environment, where
/// they may be meant for other commands.
pub(super) fn check(matches: &ArgMatches) -> Result<(), Failure> {
    if let Some((_, command)) = matches.subcommand() {
        return check(command);
    }
    let from = |source| {
        OPTIONS.into_iter().filter(move |option| matches.value_source(option) == Some(source))
    };
    if let Some(option) = from(ValueSource::CommandLine).next() {
        return Err(Failure::new(format_args!(
            "the configuration names workspaces: `--{option}` would have no effect"
        ))
        .help("say it in the configuration; docs/serve.md shows how")
        .exit(Exit::Usage));
    }
    for option in from(ValueSource::EnvVariable) {
        let name = option.to_uppercase();
        errln!(
            "portcullis: warning: the configuration names workspaces: `PORTCULLIS_{name}` has no effect"
        );
    }
    Ok(())
}
