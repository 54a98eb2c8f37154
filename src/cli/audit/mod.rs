//! `portcullis audit`: verify, show, search and repair the log.

mod attachments;
mod blame;
mod bundle;
mod check_bundle;
mod check_proof;
mod check_receipts;
pub(crate) mod checkpoint;
mod compress;
mod export;
mod files;
pub(super) mod filter;
mod heads;
mod key;
mod path;
mod prove;
mod prune;
mod query;
mod recover;
mod report;
mod select;
mod session;
mod ship;
mod show;
mod verify;

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use cap_std::fs::Dir;
use portcullis_audit::{Directory, FRONTIER, FileEntry, HISTORY, KEYS, NEWEST, ROOTS, Source as _};

use crate::{
    app::{audit_log::unreadable, failure::Failure, logging, state_directory, trusted_paths},
    config::audit::Audit,
    gateway::Workspace,
};

/// Verify, show, search and repair the audit log
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit verify\n  \
    portcullis audit show --last 20\n  \
    portcullis audit show --follow --decision deny\n  \
    portcullis audit query --path 'src/**' --stats agent,op")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Verify(Box<verify::Args>),
    Key(key::Args),
    Checkpoint(checkpoint::Args),
    Prove(prove::Args),
    CheckProof(check_proof::Args),
    CheckReceipts(check_receipts::Args),
    Prune(prune::Args),
    Compress(compress::Args),
    Ship(ship::Args),
    Show(Box<show::Args>),
    Query(Box<query::Args>),
    Blame(blame::Args),
    Session(session::Args),
    Report(report::Args),
    Export(Box<export::Args>),
    Bundle(bundle::Args),
    CheckBundle(check_bundle::Args),
    Recover(recover::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // That it waits for a gate, say, the person at the terminal should see.
    logging::start_on_stderr("warn")?;
    match args.command {
        Command::Verify(args) => verify::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Prove(args) => prove::run(&args),
        Command::CheckProof(args) => check_proof::run(&args),
        Command::CheckReceipts(args) => check_receipts::run(&args),
        Command::Prune(args) => prune::run(&args),
        Command::Compress(args) => compress::run(&args),
        Command::Ship(args) => ship::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Query(args) => query::run(&args),
        Command::Blame(args) => blame::run(&args),
        Command::Session(args) => session::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Bundle(args) => bundle::run(&args),
        Command::CheckBundle(args) => check_bundle::run(&args),
        Command::Recover(args) => recover::run(args),
    }
}

/// Which log: the common options, of which a log needs only where it is.
/// `--agent` is a filter of `show` instead.
#[derive(Debug, Clone, clap::Args)]
struct Place {
    /// The directory that the agent works in [default: the current one, or where --state
    /// is given the one to which that belongs]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_WORKSPACE")]
    workspace: Option<PathBuf>,
    /// Where log and backups are kept [default: a directory of the workspace's
    /// own under $XDG_STATE_HOME/portcullis]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_STATE")]
    state: Option<PathBuf>,
    /// The operator's configuration file [default:
    /// $XDG_CONFIG_HOME/portcullis/portcullis.toml, if it is there]
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_CONFIG")]
    config: Option<PathBuf>,
    /// Accepted like everywhere, but without meaning here
    #[arg(long, value_name = "FILE|NAME", hide = true)]
    policy: Option<String>,
}

impl Place {
    fn workspace(&self) -> &Path {
        self.workspace.as_deref().unwrap_or(Path::new("."))
    }

    /// The directory that is named as the workspace.
    fn opened(&self) -> io::Result<Workspace> {
        Workspace::open(self.workspace())
    }

    /// The state directory.
    fn state(&self) -> Result<PathBuf, Failure> {
        state_directory::directory(self.state.as_ref(), self.workspace())
    }

    /// What the operator configured for the log.
    fn audit(&self) -> Result<Audit, Failure> {
        Audit::load(self.config.as_deref()).map_err(Failure::new)
    }

    /// Opens the state directory, whose log must be there: a command that has
    /// the wrong place says so, and makes nothing.
    fn open(&self) -> Result<(PathBuf, Dir), Failure> {
        state_directory::open(&self.with_log()?)
    }

    /// The same to look at it, which a directory of another user allows, too.
    fn look(&self) -> Result<Dir, Failure> {
        let path = self.with_log()?;
        state_directory::look(&path)?
            .ok_or_else(|| unreadable(&path, &io::ErrorKind::NotFound.into()))
    }

    /// The state directory, in which there is a log, where no agent could have chosen it.
    fn with_log(&self) -> Result<PathBuf, Failure> {
        let path = self.state()?;
        let log = path.join("audit");
        Directory::new(&log).list().map_err(|error| unreadable(&log, &error))?;
        // One that is named belongs to another workspace than the current directory.
        let owner = match (&self.workspace, &self.state) {
            (None, Some(_named)) => self.noted_owner()?,
            _ => Some(self.workspace().to_owned()),
        };
        if let Some(workspace) = owner {
            trusted_paths::check(&workspace, &path, self.config.as_deref())?;
        }
        Ok(path)
    }
}

/// Which log to read: a workspace's, or one anywhere.
#[derive(Debug, Clone, clap::Args)]
struct Where {
    #[command(flatten)]
    place: Place,
    /// The log in this directory instead, such as a copy
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Where {
    /// The log's directory.
    fn directory(&self) -> Result<PathBuf, Failure> {
        match &self.dir {
            Some(directory) => Ok(directory.clone()),
            None => Ok(self.place.state()?.join("audit")),
        }
    }

    /// Where the policies and the backups are kept that the log names.
    #[expect(clippy::disallowed_methods, reason = "the directory that the operator names")]
    fn state(&self) -> Result<PathBuf, Failure> {
        let Some(log) = &self.dir else { return self.place.state() };
        // Of `.` and of a name alone the path says not what they lie in.
        let log = log.canonicalize().map_err(|error| unreadable(log, &error))?;
        Ok(log.parent().unwrap_or(&log).to_owned())
    }
}

/// The log in `directory`, which must be one: another directory, such as the
/// state directory, is not taken for a log without records.
fn existing(directory: &Path) -> Result<Directory, Failure> {
    let source = Directory::new(directory);
    let entries = source.list().map_err(|error| unreadable(directory, &error))?;
    // The lock is there before the first record.
    let of_a_log = |entry: &FileEntry| match entry.name.as_str() {
        "lock" => entry.regular,
        NEWEST | HISTORY | KEYS | ROOTS | FRONTIER | "quarantine" => true,
        name => name.starts_with("seg-"),
    };
    if entries.iter().any(of_a_log) {
        return Ok(source);
    }
    let below = directory.join("audit");
    let shown = directory.display();
    let failure = Failure::new(format_args!("there is no audit log at `{shown}`"));
    Err(failure.help(match Directory::new(&below).list() {
        Ok(_entries) => format!("did you mean `{}`?", below.display()),
        Err(_none) => "the log is the directory `audit` in a state directory".to_owned(),
    }))
}
