//! Confirmation by the person at the terminal before a change.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::{QueueSelector, tcflush};

use crate::app::{
    failure::{Context as _, Failure},
    output,
};

/// The answer to a confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Yes,
    No,
    /// No person can be asked.
    NoneToGive,
}

/// Asks on the terminal, unless the command line said `yes`.
///
/// # Errors
/// When the preview could not be shown, whatever the answer, or the question fails.
pub(super) fn ask(yes: bool, question: &str) -> Result<Word, Failure> {
    if output::is_closed() {
        return Err(Failure::new("nothing was changed: what would be done could not be shown"));
    }
    if yes {
        return Ok(Word::Yes);
    }
    // The preview is shown on standard output.
    let is_shown = io::stdout().is_terminal() && io::stderr().is_terminal();
    if !io::stdin().is_terminal() || !is_shown {
        return Ok(Word::NoneToGive);
    }
    err!("{question} [y/N] ");
    io::stderr().flush().or_fail("cannot ask")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).or_fail("cannot read the answer")?;
    let yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    Ok(if yes { Word::Yes } else { Word::No })
}

/// Asks for a letter: yes, yes for the session, no, or later; `None` at the end of input.
///
/// # Errors
/// When the question fails.
pub(super) fn choose(question: &str) -> Result<Option<char>, Failure> {
    // Keys that were typed before the question was shown are no answer to it.
    let _ = tcflush(io::stdin(), QueueSelector::IFlush);
    loop {
        errln!("  y: yes, s: for the session, n: no, l: later");
        err!("{question} [y/s/n/l] ");
        io::stderr().flush().or_fail("cannot ask")?;
        let mut answer = String::new();
        if io::stdin().read_line(&mut answer).or_fail("cannot read the answer")? == 0 {
            return Ok(None);
        }
        let letter = answer.trim().to_lowercase().chars().next();
        if let Some(letter @ ('y' | 's' | 'n' | 'l')) = letter {
            return Ok(Some(letter));
        }
    }
}

/// Asks, and fails without a yes.
///
/// # Errors
/// Also when there is no yes.
pub(super) fn require(yes: bool, question: &str) -> Result<(), Failure> {
    match ask(yes, question)? {
        Word::Yes => Ok(()),
        Word::No => Err(Failure::new("nothing was changed")),
        Word::NoneToGive => Err(Failure::new("nothing was changed: nobody is there to agree")
            .help("give --yes to do it without asking")),
    }
}
