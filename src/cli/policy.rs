//! `portcullis policy`: the tools of a policy's author.

mod check;
mod diff;
mod explain;
mod history;
mod init;
mod learn;
mod lint;
mod progress;
mod replay;
mod schema;
mod sign;
mod test;

use std::process::ExitCode;

use serde_json::json;

use crate::{
    app::{
        failure::{Exit, Failure},
        output::{colours_on_stderr, lines},
    },
    config::{self, LoadedPolicy, Operator},
    policy::{EMBEDDED, Mode, OutlineFile, Policy, compile, embedded, unknown_name},
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
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
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
    /// Print an embedded policy, to read it or to start from it
    #[command(after_help = "Examples:\n  \
        portcullis policy show baseline\n  \
        portcullis policy show coding-agent > ../mine.toml")]
    Show {
        /// Its name
        name: String,
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
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Keygen(args) => sign::keygen(&args),
        Command::Sign(args) => sign::sign(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Learn(args) => learn::run(&args),
        Command::Lint(args) => lint::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Show { name } => {
            let text = embedded(&name).ok_or_else(|| {
                Failure::new(format_args!("cannot show `{name}`: {}", unknown_name(&name)))
            })?;
            out!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        Command::List { json: false } => {
            for (name, text) in EMBEDDED {
                outln!("{name:14} {}", summary(text));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::List { json: true } => {
            let policy = |(name, text)| json!({ "name": name, "summary": summary(text) });
            outjson!(json!({ "policies": EMBEDDED.map(policy) }));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Loads the policy that the command line names, for its author; a failure has
/// what is wrong with it, with its source lines.
pub(crate) fn load(reference: &str) -> Result<LoadedPolicy, Failure> {
    config::load_policy(reference).map_err(|error| unusable(reference, &error))
}

/// The same for a policy that is to be enforced.
pub(crate) fn load_trusted(reference: &str, operator: &Operator) -> Result<LoadedPolicy, Failure> {
    config::load_trusted(reference, operator).map_err(|error| unusable(reference, &error))
}

/// Loads the policy that the command line names, with what its files say.
fn load_with_outline(reference: &str) -> Result<(Policy, Vec<OutlineFile>), Failure> {
    let loaded = config::load_source(reference).and_then(|source| {
        let policy = compile(&source).map_err(|diagnostics| config::Error::Invalid {
            name: reference.to_owned(),
            diagnostics,
        })?;
        Ok((policy, source.outline()))
    });
    loaded.map_err(|error| unusable(reference, &error))
}

/// The failure when a policy does not load; for a program, its object says what
/// that of `policy check` does.
pub(crate) fn unusable(reference: &str, error: &config::Error) -> Failure {
    Failure::new(format_args!("the policy `{reference}` cannot be used"))
        .exit(Exit::Policy)
        .details(rendered(error), "policies", json!([check::error_json(reference, error)]))
}

/// The policies among the files named: a shell's `*.toml` names files of tests,
/// too, which go with the policy that they are beside.
fn policies(files: &[String]) -> Result<Vec<&String>, Failure> {
    let policies: Vec<_> = files.iter().filter(|file| !file.ends_with(".test.toml")).collect();
    if policies.is_empty() {
        return Err(Failure::new("only files of tests are named, and no policy")
            .help("name the policy; the tests beside it go with it")
            .exit(Exit::Usage));
    }
    Ok(policies)
}

/// Says so when the policy only observes.
pub(crate) fn warn_of_observing(policy: &Policy) {
    if policy.mode() == Mode::Observe {
        errln!(
            "portcullis: warning: the policy `{}` observes: what nothing allows passes and is \
             recorded as `wouldDeny`; denials, questions, types and content are enforced",
            policy.name()
        );
    }
}

/// What is said after the number of a policy's own tests.
pub(crate) fn extended_tests(policy: &Policy) -> String {
    match policy.tests().saturating_sub(policy.own_tests()) {
        0 => String::new(),
        more => format!(", and {more} of what it extends"),
    }
}

/// An error as a person reads it, in colours when stderr is a terminal.
fn rendered(error: &config::Error) -> String {
    match error {
        config::Error::Invalid { diagnostics, .. } => diagnostics.render(colours_on_stderr()),
        config::Error::Unreadable { .. } => format!(
            "error: {}\n  = help: `portcullis policy init -o FILE` drafts a policy, \
             `portcullis policy list` names those that come with the program\n",
            lines(&error.to_string())
        ),
        other => format!("error: {}\n", lines(&other.to_string())),
    }
}

/// The first sentence of a policy's first comment.
fn summary(text: &str) -> String {
    let comment: Vec<_> =
        text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
    let comment = comment.join(" ");
    let end = comment.find(['.', ':']).unwrap_or(comment.len());
    comment.get(..end).unwrap_or(&comment).to_owned()
}
