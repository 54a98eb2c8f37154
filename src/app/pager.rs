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
use rustix::{stdio::dup2_stdout, termios::tcgetwinsize};

use super::output;

/// The pager where no variable names one.
const DEFAULT: &str = "less";
/// The options of `less`, unless `LESS` has others: leave if the text fits, show colours, leave the text
/// on the screen.
const LESS: &str = "FRX";

/// The pager of this process.
static RUNNING: OnceLock<Pager> = OnceLock::new();

#[derive(Debug)]
struct Pager {
    child: Mutex<Option<Child>>,
    has_colours: bool,
    width: Option<usize>,
}

/// Whether a command may start a pager.
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
        let (has_colours, width) = (output::colours(), output::width());
        let child = match spawn(&words) {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound && words == [DEFAULT] => return,
            Err(error) => {
                errln!("portcullis: warning: cannot start the pager: {error}");
                return;
            }
        };
        let child = Mutex::new(Some(child));
        let _first = RUNNING.set(Pager { child, has_colours, width });
    }
}

/// Returns the pager's command line; `None` if there is to be none.
fn words() -> Option<Vec<String>> {
    let named = ["PORTCULLIS_PAGER", "PAGER"].into_iter().find_map(env::var_os);
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

/// Returns true if the output to a pager has colours; `None` without a pager.
pub(super) fn has_colours() -> Option<bool> {
    RUNNING.get().map(|pager| pager.has_colours)
}

/// Returns the width of the terminal on standard output, or behind the pager.
pub(super) fn width() -> Option<usize> {
    match RUNNING.get() {
        Some(pager) => pager.width,
        None => {
            let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0)?;
            Some(size.ws_col.into())
        }
    }
}

/// True if there is a pager, beside which nothing is to be drawn.
pub(crate) fn is_running() -> bool {
    RUNNING.get().is_some()
}

/// Ends the output to the pager, and waits until its user leaves it.
pub(crate) fn finish() {
    let Some(pager) = RUNNING.get() else { return };
    let child = pager.child.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut child) = child else { return };
    // A closed pager has shown what its user wanted to see.
    let _ = io::stdout().flush();
    // Closes the pipe.
    let _ = dup2_stdout(io::stderr());
    let _ = child.wait();
}
