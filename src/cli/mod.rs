//! The command line: one file per command, rendering and exit codes.

mod agent;
mod agent_notices;
mod agents;
mod announcer;
mod approve;
mod audit;
mod backup;
mod command_summary;
mod config;
mod confirmation;
mod connect;
mod demo;
mod doctor;
mod exec;
mod fs;
mod gateway_options;
mod generate;
mod generated;
mod git;
mod import_report;
mod launch_failure;
mod local_gateway;
mod login;
mod mcp;
mod policy;
mod render;
mod rows;
mod run;
mod sandbox_stages;
mod serve;
mod session_name;
mod setup;
mod shell;
mod status;
mod token;
mod uninstall;

use std::{ffi::OsStr, process::ExitCode, sync::LazyLock};

use rustix::fs::Mode;

use crate::{
    app::{failure::Failure, notifier, output, pager},
    sandbox::outlive_size_limit,
};

use clap::{
    ArgMatches, CommandFactory as _, FromArgMatches as _,
    builder::Resettable,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

/// A filesystem gateway for untrusted AI agents: every operation is decided,
/// backed up and audited
#[derive(Debug, clap::Parser)]
#[command(name = "portcullis", version = version(), max_term_width = 100, propagate_version = true)]
#[command(after_help = "Examples:\n  \
    portcullis demo                          see in a second what it does\n  \
    portcullis doctor                        what this machine can enforce\n  \
    portcullis status                        policy, enforcement, approvals, last session\n  \
    portcullis run --preset claude-code      an agent behind the gateway\n  \
    portcullis exec -- cargo test            one command, and what it changed\n  \
    portcullis shell -- vim src/main.rs      an interactive program, on a terminal\n  \
    portcullis login --preset codex          an agent's own login, in its sandbox\n  \
    portcullis mcp                           the workspace for an MCP client\n  \
    portcullis serve                         over the network, many workspaces\n  \
    portcullis fs read src/main.rs           one operation through the gateway\n  \
    portcullis git import                    the commits of an agent's session\n  \
    portcullis log --last 20                 what was decided\n  \
    portcullis undo                          take the last session back, shown first\n  \
    portcullis audit verify                  is the log intact?")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Agents(agents::Args),
    Approve(approve::Args),
    Audit(audit::Args),
    Backup(backup::Args),
    Completions(generate::CompletionsArgs),
    Config(config::Args),
    Demo(demo::Args),
    Doctor(doctor::Args),
    Exec(exec::Args),
    Fs(fs::Args),
    Git(git::Args),
    /// Print the records of the log, oldest first; the same as `audit show`
    Log(Box<audit::show::Args>),
    Login(login::Args),
    Man(generate::ManArgs),
    Mcp(mcp::Args),
    Policy(policy::Args),
    Run(run::Args),
    Serve(serve::Args),
    Setup(setup::Args),
    Shell(shell::Args),
    Status(status::Args),
    Token(token::Args),
    Undo(backup::undo::Args),
    Uninstall(uninstall::Args),
}

/// Returns the version, with the commit that the build named.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let version = env!("CARGO_PKG_VERSION");
        match option_env!("PORTCULLIS_COMMIT").filter(|commit| !commit.is_empty()) {
            Some(commit) => format!("{version} ({commit})"),
            None => version.to_owned(),
        }
    });
    &VERSION
}

/// Returns the command line's definition.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    keep_own_rights();
    if let Err(error) = outlive_size_limit() {
        return Failure::new(format_args!("cannot block a signal: {error}")).report(false);
    }
    let hidden = sandbox_stages::run_if_stage()
        .or_else(sandbox_stages::run_if_program)
        .or_else(agent::run_if_gateway)
        .or_else(agent::run_if_egress)
        .or_else(serve::run_if_front)
        .or_else(serve::run_if_worker)
        .or_else(demo::run_if_agent)
        .or_else(doctor::run_if_probe)
        .or_else(notifier::run_if_notifier);
    if let Some(code) = hidden {
        return code;
    }
    let matches = match without_empty(Cli::command()).try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return say(error),
    };
    if let Some((one, other)) = conflict(&matches) {
        let text = format!("the argument '--{one}' cannot be used with '--{other}'");
        Cli::command().error(ErrorKind::ArgumentConflict, text).exit();
    }
    let json = wants_json(&matches);
    let cli = Cli::from_arg_matches(&matches)
        .unwrap_or_else(|error| error.format(&mut Cli::command()).exit());
    let result = match cli.command {
        Command::Agents(args) => agents::run(&args),
        Command::Approve(args) => approve::run(&args),
        Command::Audit(args) => audit::run(args),
        Command::Backup(args) => backup::run(args),
        Command::Completions(args) => generate::completions(&args, Cli::command()),
        Command::Config(args) => config::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Exec(args) => exec::run(args),
        Command::Fs(args) => fs::run(args),
        Command::Git(args) => git::run(args),
        Command::Log(args) => audit::show::run(&args),
        Command::Login(args) => login::run(args),
        Command::Man(args) => generate::man(&args, Cli::command()),
        Command::Mcp(args) => mcp::run(&args),
        Command::Policy(args) => policy::run(args),
        Command::Run(args) => run::run(args),
        Command::Serve(args) => serve::run(&args, &matches),
        Command::Setup(args) => setup::run(&args, Cli::command()),
        Command::Shell(args) => shell::run(args),
        Command::Status(args) => status::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Undo(args) => backup::undo::run(&args),
        Command::Uninstall(args) => uninstall::run(&args),
    };
    // A failure stands below the output.
    pager::finish();
    output::conclude(result.unwrap_or_else(|failure| failure.report(json)))
}

/// Makes environment variables that are empty count as not set.
fn without_empty(command: clap::Command) -> clap::Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    command
        .mut_args(|arg| match arg.get_env().is_some_and(is_empty) {
            true => arg.env(Resettable::Reset),
            false => arg,
        })
        .mut_subcommands(without_empty)
}

/// Prints help, the version, or a usage error.
fn say(mut error: clap::Error) -> ExitCode {
    let commands = elsewhere(&error);
    if commands.is_some() {
        // What looks similar was not meant.
        let _ = error.remove(ContextKind::SuggestedSubcommand);
    }
    let printed = error.print();
    if let Some(commands) = commands {
        errln!("  help: there is {commands}");
    }
    let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
    if error.use_stderr() {
        return code;
    }
    output::printed(printed).map_or_else(|failure| failure.report(false), |()| code)
}

/// Returns the commands of groups that have the name of an unknown command.
fn elsewhere(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let command = Cli::command();
    let groups = command.get_subcommands().filter(|group| group.find_subcommand(name).is_some());
    let found: Vec<_> =
        groups.map(|group| format!("`portcullis {} {name}`", group.get_name())).collect();
    (!found.is_empty()).then(|| found.join(", "))
}

/// Keeps the umask from denying rights to the owner: later gateways could not open
/// the state directory's files.
fn keep_own_rights() {
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask & (Mode::RWXG | Mode::RWXO));
}

/// Options that exclude each other. The second may come from the environment, as a
/// default: then the first has precedence.
const EXCLUSIVE: [(&str, &str); 3] = [("dir", "workspace"), ("dir", "state"), ("who", "agent")];

/// Returns two exclusive options that were both given.
fn conflict(matches: &ArgMatches) -> Option<(&'static str, &'static str)> {
    if let Some((_, command)) = matches.subcommand() {
        return conflict(command);
    }
    let given = |name: &str| {
        matches.try_contains_id(name).is_ok_and(|there| there)
            && matches.value_source(name) == Some(ValueSource::CommandLine)
    };
    EXCLUSIVE.into_iter().find(|(one, other)| given(one) && given(other))
}

/// Returns true if the command prints JSON.
fn wants_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, command)) => wants_json(command),
        None => matches!(matches.try_get_one::<bool>("json"), Ok(Some(true))),
    }
}
