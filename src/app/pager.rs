//! A pager for long output on a terminal, where git has one.
//!
//! Standard output becomes a pipe to the pager. So colours and width of the terminal are looked up
//! before that.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    process::{Child, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

use nix::sys::signal::{SigSet, Signal};
use rustix::stdio::dup2_stdout;

use super::output;

/// The pager where no variable names one.
const DEFAULT: &str = "less";
/// The options of `less`, unless `LESS` has others: leave if the text fits, show colours, leave the text
/// on the screen.
const LESS: &str = "FRX";

/// The pager of this process, until it has ended.
static RUNNING: OnceLock<Mutex<Option<Child>>> = OnceLock::new();

/// The option of commands that may start a pager.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct PagerOptions {
    /// Print to the terminal itself, not to $PORTCULLIS_PAGER, $PAGER or `less`
    #[arg(long)]
    no_pager: bool,
}

impl PagerOptions {
    /// Starts the pager if standard output is a terminal, and prints to it from now on. Without one the
    /// terminal shows the output as it is.
    pub(crate) fn start(self) {
        if self.no_pager || !io::stdout().is_terminal() || RUNNING.get().is_some() {
            return;
        }
        let Some(words) = words() else { return };
        output::remember_terminal();
        match spawn(&words) {
            Ok(child) => {
                let _first = RUNNING.set(Mutex::new(Some(child)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && words == [DEFAULT] => {}
            Err(error) => errln!("portcullis: warning: cannot start the pager: {error}"),
        }
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

fn spawn(words: &[String]) -> io::Result<Child> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
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

/// True if there is a pager, beside which nothing is to be drawn.
pub(crate) fn is_running() -> bool {
    RUNNING.get().is_some()
}

/// Ends the output to the pager, and waits until its user leaves it.
pub(crate) fn finish() {
    let Some(pager) = RUNNING.get() else { return };
    let child = pager.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut child) = child else { return };
    // A closed pager has shown what its user wanted to see.
    let _ = io::stdout().flush();
    // Closes the pipe.
    let _ = dup2_stdout(io::stderr());
    let _ = child.wait();
}
