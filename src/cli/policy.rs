//! `portcullis policy`: the tools for policy authors.

mod check;
mod diff;
mod explain;
mod files;
mod history;
mod init;
mod learn;
mod lint;
mod progress;
mod replay;
mod schema;
mod sign;
mod test;

use std::{path::Path, process::ExitCode};

use serde_json::json;

use crate::{
    app::{failure::Failure, pager::PagerOptions},
    cli::rows::prose,
    policy::{EMBEDDED, embedded, unknown_name},
};

/// Write, check, test, explain, compare and show policies
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy init -o ../mine.toml\n  \
    portcullis policy check ../mine.toml\n  \
    portcullis policy lint ../mine.toml\n  \
    portcullis policy diff ../mine.toml ../new.toml --log\n  \
    portcullis policy explain write src/main.rs --policy ../mine.toml")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyCommand {
    Check(check::Args),
    Explain(Box<explain::Args>),
    Diff(diff::Args),
    Init(init::Args),
    Keygen(sign::KeygenArgs),
    Learn(learn::Args),
    Lint(lint::Args),
    Replay(replay::Args),
    Schema(schema::Args),
    Sign(sign::SignArgs),
    Test(test::Args),
    Verify(sign::VerifyArgs),
    /// Print an embedded policy, to read it or to start from it
    #[command(after_help = "Examples:\n  \
        portcullis policy show baseline\n  \
        portcullis policy show coding-agent > ../mine.toml")]
    Show {
        /// The name of the policy
        name: String,
        #[command(flatten)]
        pager: PagerOptions,
    },
    /// List the embedded policies
    #[command(after_help = "Examples:\n  \
        portcullis policy list")]
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        PolicyCommand::Check(args) => check::run(&args),
        PolicyCommand::Explain(args) => explain::run(&args),
        PolicyCommand::Keygen(args) => sign::keygen(&args),
        PolicyCommand::Sign(args) => sign::sign(&args),
        PolicyCommand::Diff(args) => diff::run(&args),
        PolicyCommand::Init(args) => init::run(&args),
        PolicyCommand::Learn(args) => learn::run(&args),
        PolicyCommand::Lint(args) => lint::run(&args),
        PolicyCommand::Replay(args) => replay::run(&args),
        PolicyCommand::Schema(args) => schema::run(&args),
        PolicyCommand::Test(args) => test::run(&args),
        PolicyCommand::Verify(args) => sign::verify(&args),
        PolicyCommand::Show { name, pager } => {
            let text = embedded(&name).ok_or_else(|| {
                Failure::new(format_args!("cannot show `{name}`: {}", unknown_name(&name)))
            })?;
            pager.enable(Path::new("."));
            out!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        PolicyCommand::List { json: false } => {
            for (name, text) in EMBEDDED {
                outln!("{}", prose(&format!("{name:14} {}", summary(text)), 15));
            }
            Ok(ExitCode::SUCCESS)
        }
        PolicyCommand::List { json: true } => {
            let policy = |(name, text)| json!({ "name": name, "summary": summary(text) });
            outjson!(json!({ "policies": EMBEDDED.map(policy) }));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the first sentence of a policy's first comment.
fn summary(text: &str) -> String {
    let comment: Vec<_> =
        text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
    let comment = comment.join(" ");
    let end = comment.find(['.', ':']).unwrap_or(comment.len());
    comment.get(..end).unwrap_or(&comment).to_owned()
}
