//! Confirmation by the person at the terminal before a change.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::{QueueSelector, tcflush};

use crate::app::{
    failure::{Context as _, Failure},
    output,
};

/// The answer to a confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirmation {
    Yes,
    No,
    /// No person can be asked.
    NoneToGive,
}

/// Asks on the terminal, unless the command line has `--yes`.
///
/// # Errors
/// When the preview could not be shown, whatever the answer, or the question fails.
pub(super) fn ask(yes: bool, question: &str) -> Result<Confirmation, Failure> {
    if output::is_closed() {
        return Err(Failure::new("nothing was changed: what would be done could not be shown"));
    }
    if yes {
        return Ok(Confirmation::Yes);
    }
    // The preview is shown on standard output.
    let is_shown = io::stdout().is_terminal() && io::stderr().is_terminal();
    if !io::stdin().is_terminal() || !is_shown {
        return Ok(Confirmation::NoneToGive);
    }
    discard_typed();
    let answer = line(&format!("{question} [y/N] "))?.unwrap_or_default();
    Ok(if matches!(answer.as_str(), "y" | "yes") { Confirmation::Yes } else { Confirmation::No })
}

/// The answer to a request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PersonAnswer {
    Yes,
    Session,
    No,
    Later,
}

impl PersonAnswer {
    /// Parses an answer: a letter or the complete word, so that `never` is not taken for `n`.
    fn parse(text: &str) -> Option<Self> {
        match text {
            "y" | "yes" => Some(Self::Yes),
            "s" | "session" => Some(Self::Session),
            "n" | "no" => Some(Self::No),
            "l" | "later" => Some(Self::Later),
            _ => None,
        }
    }
}

/// Asks about a request until there is an answer; `None` at the end of input.
///
/// # Errors
/// When the question fails.
pub(super) fn choose(question: &str) -> Result<Option<PersonAnswer>, Failure> {
    discard_typed();
    loop {
        errln!("  y: yes, s: for the session, n: no, l: later");
        let Some(text) = line(&format!("{question} [y/s/n/l] "))? else { return Ok(None) };
        if let Some(answer) = PersonAnswer::parse(&text) {
            return Ok(Some(answer));
        }
    }
}

/// Discards keys that were typed before the question was shown: they are no answer to it.
fn discard_typed() {
    let _ = tcflush(io::stdin(), QueueSelector::IFlush);
}

/// Asks, and returns the line that is typed, in lower case; `None` at the end of input.
fn line(question: &str) -> Result<Option<String>, Failure> {
    err!("{question}");
    io::stderr().flush().or_fail("cannot ask")?;
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer).or_fail("cannot read the answer")?;
    Ok((read > 0).then(|| answer.trim().to_lowercase()))
}

/// Asks, and fails without a yes.
///
/// # Errors
/// Also when there is no yes.
pub(super) fn require(yes: bool, question: &str) -> Result<(), Failure> {
    match ask(yes, question)? {
        Confirmation::Yes => Ok(()),
        Confirmation::No => Err(Failure::new("nothing was changed")),
        Confirmation::NoneToGive => {
            Err(Failure::new("nothing was changed: there is no terminal to ask on")
                .help("give --yes to do it without asking"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first letter was enough.
    #[test]
    fn a_word_that_only_begins_like_an_answer_is_none() {
        for (text, answer) in [
            ("y", Some(PersonAnswer::Yes)),
            ("yes", Some(PersonAnswer::Yes)),
            ("session", Some(PersonAnswer::Session)),
            ("no", Some(PersonAnswer::No)),
            ("later", Some(PersonAnswer::Later)),
            ("never", None),
            ("yesterday", None),
            ("stop", None),
            ("", None),
        ] {
            assert_eq!(PersonAnswer::parse(text), answer, "{text}");
        }
    }
}
