//! A pager for long output on a terminal, where git has one.
//!
//! The first output starts it, so that messages before that, and a failure without output, stand on the
//! terminal itself. Standard output becomes a pipe to the pager. So colours and width of the terminal are
//! looked up before that.

use std::{
    env,
    ffi::OsStr,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

use nix::sys::signal::{SigSet, Signal};
use rustix::stdio::dup2_stdout;

use super::{failure::Failure, output, trusted_paths::operators_program};

/// The pager where no variable names one.
const DEFAULT: &str = "less";
/// The options of `less`, unless `LESS` has others: leave if the text fits, show colours, leave the text
/// on the screen.
const LESS: &str = "FRX";

/// The pager that the first output starts.
static WANTED: OnceLock<Pager> = OnceLock::new();
/// The pager of this process, until it has ended; `None` if it could not be started.
static RUNNING: OnceLock<Option<Mutex<Option<Child>>>> = OnceLock::new();

/// A pager's command line.
#[derive(Debug)]
struct Pager {
    program: PathBuf,
    arguments: Vec<String>,
}

/// The option of commands that may start a pager.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct PagerOptions {
    /// Print to the terminal itself, not to $PORTCULLIS_PAGER, $PAGER or `less`
    #[arg(long)]
    no_pager: bool,
}

impl PagerOptions {
    /// Has the first output start the pager, if standard output is a terminal. It is a program that no
    /// agent of the workspace can choose. Without one the terminal shows the output as it is.
    pub(crate) fn enable(self, workspace: &Path) {
        if self.no_pager || !io::stdout().is_terminal() {
            return;
        }
        match Pager::find(workspace) {
            Ok(Some(pager)) => {
                let _first = WANTED.set(pager);
                output::call_first(start);
            }
            Ok(None) => {}
            Err(failure) => warn(failure.message()),
        }
    }
}

impl Pager {
    /// Finds the operator's pager; `None` if there is to be none.
    fn find(workspace: &Path) -> Result<Option<Self>, Failure> {
        let Some(words) = words() else { return Ok(None) };
        let Some((name, arguments)) = words.split_first() else { return Ok(None) };
        match operators_program(OsStr::new(name), workspace)? {
            Some(program) => Ok(Some(Self { program, arguments: arguments.to_vec() })),
            None if words == [DEFAULT] => Ok(None),
            None => Err(Failure::new(format_args!("there is no program `{name}`"))),
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        output::remember_terminal();
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped());
        if env::var_os("LESS").is_none() {
            command.env("LESS", LESS);
        }
        let mut child = command.spawn()?;
        if let Some(input) = child.stdin.take() {
            dup2_stdout(&input)?;
        }
        // Ctrl-C is for the pager: it would stay at the terminal without this process.
        let mut interrupt = SigSet::empty();
        interrupt.add(Signal::SIGINT);
        interrupt.thread_block()?;
        Ok(child)
    }
}

/// Returns the pager's command line; `None` if there is to be none.
fn words() -> Option<Vec<String>> {
    let own = env::var_os("PORTCULLIS_PAGER").filter(|own| !own.is_empty());
    let named = own.or_else(|| env::var_os("PAGER"));
    let text = named.map_or_else(|| Some(DEFAULT.to_owned()), |named| named.into_string().ok())?;
    let words = shlex::split(&text)?;
    (!words.is_empty() && words != ["cat"]).then_some(words)
}

fn warn(problem: impl std::fmt::Display) {
    errln!("portcullis: warning: cannot start the pager: {problem}");
}

/// Starts the pager, at the first output.
fn start() {
    let Some(pager) = WANTED.get() else { return };
    RUNNING.get_or_init(|| match pager.spawn() {
        Ok(child) => Some(Mutex::new(Some(child))),
        Err(error) => {
            warn(error);
            None
        }
    });
}

/// True if output goes to a pager, beside which nothing is to be drawn.
pub(crate) fn is_wanted() -> bool {
    WANTED.get().is_some()
}

/// Ends the output to the pager, and waits until its user leaves it.
pub(crate) fn finish() {
    let Some(Some(pager)) = RUNNING.get() else { return };
    let child = pager.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut child) = child else { return };
    // A closed pager has shown what its user wanted to see.
    let _ = io::stdout().flush();
    // Closes the pipe.
    let _ = dup2_stdout(io::stderr());
    match child.wait() {
        Ok(status) if status.code().is_some_and(|code| code != 0) => errln!(
            "portcullis: warning: the pager ended with {status}; --no-pager prints to the terminal itself"
        ),
        _ => {}
    }
}
