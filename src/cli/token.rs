//! `portcullis token`: creates tokens for agents of `serve`.

use std::process::ExitCode;

use serde_json::json;

use crate::{
    app::{failure::Failure, token},
    config::serve::{is_workspace_name, show_hash},
    model::AgentName,
};

/// Generate tokens for `serve`
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis token new --agent ci --workspace shop")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    New(NewArgs),
}

/// Generate a token, and print it once with its lines for portcullis.toml
///
/// The configuration has a hash, from which nobody can compute the token.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis token new --agent ci --workspace shop --workspace docs\n  \
    portcullis token new --agent prometheus --metrics\n  \
    portcullis token new --agent ci --json")]
struct NewArgs {
    /// The agent's name in policies and logs
    #[arg(long, value_name = "NAME", required = true)]
    agent: AgentName,
    /// A workspace that the agent may use, or `*`
    #[arg(long, value_name = "NAME", value_parser = parse_workspace)]
    workspace: Vec<String>,
    /// Allow it to read the service's metrics
    #[arg(long)]
    metrics: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let TokenCommand::New(args) = &args.command;
    let token = token::make()?;
    let hash = show_hash(&token::hash(&token));
    if args.workspace.is_empty() && !args.metrics {
        errln!(
            "portcullis: warning: neither --workspace nor --metrics is given: the token opens nothing \
             until the configuration says what"
        );
    }
    if args.json {
        let object = json!({
            "agent": args.agent.as_str(),
            "token": token,
            "tokenHash": hash,
            "workspaces": args.workspace,
            "metrics": args.metrics,
        });
        outjson!(object);
        return Ok(ExitCode::SUCCESS);
    }
    outln!("{token}");
    errln!("\nThis token is not shown again. In portcullis.toml:\n");
    errln!("[[agents]]\nname = \"{}\"\ntokenHash = \"{hash}\"", args.agent);
    errln!("workspaces = {}", toml_list(&args.workspace));
    if args.metrics {
        errln!("metrics = true");
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses a workspace name as in the configuration.
fn parse_workspace(text: &str) -> Result<String, String> {
    match text == "*" || is_workspace_name(text) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits, `_` or `-`, or `*` for all".to_owned()),
    }
}

fn toml_list(names: &[String]) -> String {
    // The debug format of a name is a valid TOML string.
    format!("{names:?}")
}
