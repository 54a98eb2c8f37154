//! `portcullis fs`: one operation from a shell, through the same gateway.

mod batch;
mod search;
mod watch;

use std::{
    io::{self, IsTerminal as _, Read as _},
    process::ExitCode,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::{
    fs::{FileType, OFlags, fcntl_getfl, fstat, makedev},
    stdio::stdin as stdin_fd,
};

use super::{
    local_gateway::LocalGateway,
    render::{self, Rendered},
};
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        options::Common,
        output::raw,
    },
    gateway::{Changed, Entries, Error, ErrorKind, Request},
    model::{
        Access, Encoding, LineRange, OperationKind, Transport, WorkspacePath,
        request::{Append, Edit, Glob, Grep, List, Mkdir, Read, Remove, Rename, Stat, Write},
    },
};

/// Carry out one operation on the workspace: decided, backed up and recorded
#[derive(Debug, clap::Args)]
#[command(after_help = "Paths are relative to the workspace.\n\nExamples:\n  \
    portcullis fs read src/main.rs --line 10 --limit 5\n  \
    echo 'hello' | portcullis fs write notes/today.md\n  \
    portcullis fs edit Cargo.toml --old 'version = \"1\"' --new 'version = \"2\"'\n  \
    portcullis fs rm -r build --json")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Print the reply, or the error, as one JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: FsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum FsCommand {
    /// Print a file, or several one after the other
    #[command(after_help = "Of several files, those that may be read are printed; the exit code \
        is that of the first that may not.\n\nExamples:\n  \
        portcullis fs read src/main.rs --line 10 --limit 5\n  \
        portcullis fs read Cargo.toml src/lib.rs --json\n  \
        portcullis fs read logo.png --base64")]
    #[command(visible_alias = "cat")]
    Read {
        /// The files
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<String>,
        /// First line to print, counted from 1 [default: 1]
        #[arg(long, value_name = "N")]
        line: Option<u64>,
        /// Maximum number of lines to print [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Print base64, as the policy may demand for binary files
        #[arg(long)]
        base64: bool,
    },
    /// Replace a file's content by standard input
    #[command(after_help = "Examples:\n  \
        echo 'hello' | portcullis fs write notes/today.md")]
    Write {
        /// The file; it and its directories are made if they are missing
        path: String,
    },
    /// Append standard input to a file
    #[command(after_help = "Examples:\n  \
        date | portcullis fs append notes/log.md")]
    Append {
        /// The file; it and its directories are made if they are missing
        path: String,
    },
    /// Replace a text that occurs exactly once
    #[command(after_help = "Examples:\n  \
        portcullis fs edit Cargo.toml --old 'version = \"1\"' --new 'version = \"2\"'")]
    Edit {
        /// The file
        path: String,
        /// The text to replace
        #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
        old: String,
        /// The text that replaces it
        #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
        new: String,
    },
    /// List a directory
    #[command(after_help = "Examples:\n  \
        portcullis fs ls\n  \
        portcullis fs ls src --json")]
    #[command(visible_alias = "list")]
    Ls {
        /// The directory
        #[arg(default_value = ".")]
        path: String,
    },
    /// Print type, size and time of an entry
    #[command(after_help = "Examples:\n  \
        portcullis fs stat src/main.rs")]
    Stat {
        /// The file, link or directory
        path: String,
    },
    Batch(batch::BatchArgs),
    Glob(search::GlobArgs),
    Grep(search::GrepArgs),
    Watch(watch::WatchArgs),
    /// Make a directory
    #[command(after_help = "Examples:\n  \
        portcullis fs mkdir -p docs/guide")]
    Mkdir {
        /// The directory
        path: String,
        /// Make missing parents too; an existing directory is no error
        #[arg(short, long, visible_short_alias = 'p', visible_alias = "parents")]
        recursive: bool,
    },
    /// Remove a file, a link or an empty directory
    #[command(after_help = "Examples:\n  \
        portcullis fs rm notes/today.md\n  \
        portcullis fs rm -r build")]
    #[command(visible_aliases = ["remove", "delete"])]
    Rm {
        /// The entry to remove; of a link the link itself
        path: String,
        /// Remove a directory and everything in it
        #[arg(short, long)]
        recursive: bool,
    },
    /// Rename an entry
    #[command(after_help = "Examples:\n  \
        portcullis fs mv notes/today.md notes/old.md\n  \
        portcullis fs mv --no-clobber draft.md final.md    # never takes another's name")]
    #[command(visible_aliases = ["rename", "move"])]
    Mv {
        /// The entry as it is named now
        from: String,
        /// Its new name; a file that has it is backed up and replaced
        to: String,
        /// Fail if the new name is taken
        #[arg(short, long)]
        no_clobber: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// When the gateway cannot be opened, or the operation is denied or fails.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if matches!(args.command, FsCommand::Write { .. } | FsCommand::Append { .. }) {
        check_stdin()?;
    }
    let range = args.command.range()?;
    let open = || {
        let local = LocalGateway::open(&args.common)?;
        Ok(Invocation { local, command: &args.command, json: args.json })
    };
    match &args.command {
        FsCommand::Read { paths, base64, .. } => match &paths[..] {
            [path] => open()?.answer(
                |call| Ok(Read { path: call.path(path)?, range, encoding: encoding(*base64) }),
                |content| match base64 {
                    true => outln!("{}", STANDARD.encode(&content.bytes)),
                    false => raw(&content.bytes),
                },
            ),
            paths => batch::read(open()?.local, paths, range, encoding(*base64), args.json),
        },
        FsCommand::Batch(_) => batch::batch(open()?.local, args.json),
        FsCommand::Watch(watch) => watch::run(&args.common, watch, args.json),
        FsCommand::Write { path } => open()?.change(|call| {
            Ok(Write { path: call.path(path)?, content: stdin(&call.local)?, mode: None })
        }),
        FsCommand::Append { path } => open()?
            .change(|call| Ok(Append { path: call.path(path)?, content: stdin(&call.local)? })),
        FsCommand::Edit { path, old, new } => open()?
            .change(|call| Ok(Edit { path: call.path(path)?, old: old.clone(), new: new.clone() })),
        FsCommand::Ls { path } => {
            open()?.answer(|call| Ok(List { path: call.path(path)? }), print_entries)
        }
        FsCommand::Stat { path } => open()?.answer(
            |call| Ok(Stat { path: call.path(path)? }),
            |entry| outln!("{}", render::stat_text(entry)),
        ),
        FsCommand::Glob(glob) => open()?.answer(
            |call| Ok(Glob { path: call.path(&glob.path)?, query: glob.query() }),
            |found| {
                search::print_found(found);
                glob.print_summary(&found.summary);
            },
        ),
        FsCommand::Grep(grep) => open()?.answer(
            |call| Ok(Grep { path: call.path(&grep.path)?, query: grep.query() }),
            |matches| {
                grep.print(matches);
                grep.print_summary(&matches.summary);
            },
        ),
        FsCommand::Mkdir { path, recursive } => open()?
            .change(|call| Ok(Mkdir { path: call.path(path)?, recursive: *recursive, mode: None })),
        FsCommand::Rm { path, recursive } => {
            open()?.change(|call| Ok(Remove { path: call.path(path)?, recursive: *recursive }))
        }
        FsCommand::Mv { from, to, no_clobber } => open()?.change(|call| {
            Ok(Rename { from: call.path(from)?, to: call.path(to)?, replace: !no_clobber })
        }),
    }
}

/// A command with its gateway.
struct Invocation<'a> {
    local: LocalGateway,
    command: &'a FsCommand,
    json: bool,
}

/// The reason why a command has no reply to print.
enum CommandError {
    /// The gateway refused the request.
    Refused(Error),
    /// The request could not be built.
    Failed(Failure),
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Invocation<'_> {
    fn path(&self, text: &str) -> Result<WorkspacePath, Error> {
        self.local.path(self.command.kind().as_str(), text)
    }

    /// Builds a request, passes it to the gateway and prints the reply, for people with
    /// `print`.
    fn answer<R: Request<Output: Rendered>>(
        self,
        request: impl FnOnce(&Self) -> Result<R, CommandError>,
        print: impl FnOnce(&R::Output),
    ) -> Result<ExitCode, Failure> {
        let answer = request(&self).and_then(|request| Ok(self.local.handle(&request)?));
        let Self { local, command, json } = self;
        local.close()?;
        match answer {
            Ok(reply) => {
                match json {
                    true => outjson!(render::reply_json(&reply)),
                    false => {
                        print(&reply.output);
                        // Not on stdout, where it would be taken for content.
                        let record = render::receipt_text(&reply.receipt);
                        match reply.output.backup() {
                            Some(backup) => errln!("record {record}, backup {backup}"),
                            None => errln!("record {record}"),
                        }
                    }
                }
                let nothing = reply.output.found_nothing();
                // The same as grep.
                Ok(if nothing { Exit::Failure.into() } else { ExitCode::SUCCESS })
            }
            Err(CommandError::Failed(failure)) => Err(failure),
            Err(CommandError::Refused(error)) => {
                let asked = format!("{} {}", command.kind(), command.paths().join(" to "));
                let code = render::report_error(&asked, &error, json);
                let help = match (&command, error.kind()) {
                    (FsCommand::Mkdir { recursive: false, .. }, ErrorKind::NotFound) => {
                        Some("a directory above it is missing; `--parents` makes those, too")
                    }
                    (FsCommand::Rm { recursive: false, .. }, ErrorKind::NotEmpty) => {
                        Some("`-r` removes it with everything in it")
                    }
                    _ => None,
                };
                if let Some(help) = help.filter(|_| !json) {
                    errln!("  help: {help}");
                }
                // Exit code 1 means that a search found nothing.
                let search = matches!(command, FsCommand::Glob(_) | FsCommand::Grep(_));
                let senseless = search && error.kind() == ErrorKind::InvalidInput;
                Ok(if senseless { Exit::Usage.into() } else { code })
            }
        }
    }

    /// Carries out a change, whose reply is the receipt only.
    fn change<R: Request<Output = Changed>>(
        self,
        request: impl FnOnce(&Self) -> Result<R, CommandError>,
    ) -> Result<ExitCode, Failure> {
        self.answer(request, |_| ())
    }
}

fn encoding(base64: bool) -> Encoding {
    if base64 { Encoding::Base64 } else { Encoding::Text }
}

impl FsCommand {
    fn kind(&self) -> OperationKind {
        match self {
            Self::Read { .. } => OperationKind::Read,
            Self::Write { .. } | Self::Batch(_) => OperationKind::Write,
            Self::Append { .. } => OperationKind::Append,
            Self::Edit { .. } => OperationKind::Edit,
            Self::Ls { .. } => OperationKind::List,
            Self::Stat { .. } => OperationKind::Stat,
            Self::Glob(_) => OperationKind::Glob,
            Self::Grep(_) => OperationKind::Grep,
            Self::Watch(_) => OperationKind::Watch,
            Self::Mkdir { .. } => OperationKind::Mkdir,
            Self::Rm { .. } => OperationKind::Remove,
            Self::Mv { .. } => OperationKind::Rename,
        }
    }

    /// Returns the lines of a `read`; for other commands all.
    fn range(&self) -> Result<LineRange, Failure> {
        let Self::Read { line, limit, .. } = self else { return Ok(LineRange::default()) };
        LineRange::new(*line, *limit).map_err(|error| Failure::new(error).exit(Exit::Usage))
    }

    fn paths(&self) -> Vec<&str> {
        match self {
            Self::Read { paths, .. } => paths.iter().map(String::as_str).collect(),
            Self::Batch(_) => Vec::new(),
            Self::Write { path }
            | Self::Append { path }
            | Self::Edit { path, .. }
            | Self::Ls { path }
            | Self::Stat { path }
            | Self::Mkdir { path, .. }
            | Self::Rm { path, .. } => vec![path],
            Self::Glob(args) => vec![&args.path],
            Self::Grep(args) => vec![&args.path],
            Self::Watch(args) => vec![&args.path],
            Self::Mv { from, to, .. } => vec![from, to],
        }
    }
}

/// Refuses a closed standard input, which is different from empty content. The standard
/// library opens `/dev/null` in its place at startup, but for reading and writing, as no
/// shell does.
fn check_stdin() -> Result<(), Failure> {
    let looked = fstat(stdin_fd()).and_then(|stat| Ok((stat, fcntl_getfl(stdin_fd())?)));
    let (stat, flags) = looked.or_fail("cannot look at stdin")?;
    let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && stat.st_rdev == makedev(1, 3);
    if is_null && flags & OFlags::ACCMODE == OFlags::RDWR {
        let reason = "there is no content: stdin is closed, or `/dev/null` opened for writing, too";
        return Err(Failure::new(reason)
            .help("give an empty content with `< /dev/null`")
            .exit(Exit::Usage));
    }
    Ok(())
}

/// Reads the content: one byte more than the policy allows, so that the gateway can refuse
/// it.
fn stdin(local: &LocalGateway) -> Result<Vec<u8>, Failure> {
    if io::stdin().is_terminal() {
        errln!("portcullis: reading the content from the terminal; end it with Ctrl-D");
    }
    let limit = local.gateway().policy().max_size(Access::Write, Transport::Cli);
    let mut content = Vec::new();
    io::stdin()
        .lock()
        .take(limit.saturating_add(1))
        .read_to_end(&mut content)
        .or_fail("cannot read the content from stdin")?;
    Ok(content)
}

fn print_entries(entries: &Entries) {
    for entry in &entries.entries {
        outln!("{}", render::entry_line(entry));
    }
    if entries.not_utf8 > 0 {
        let count = render::counted(entries.not_utf8, "name");
        errln!("portcullis: not shown because not UTF-8: {count}");
    }
}
