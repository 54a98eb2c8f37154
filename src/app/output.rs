//! What commands say to a terminal, a file or another command.
//!
//! The standard library's macros panic when it cannot be written, and here a
//! panic ends the process. A reader that went away, as `head` does, is no error,
//! and what is said to nobody is not said again; that a disk is full is told at
//! the end.

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
    sync::OnceLock,
};

use anstream::{AutoStream, ColorChoice, adapter::strip_str};

use super::failure::Failure;
use crate::model::Escaped;

/// Why standard output takes nothing any more.
static CLOSED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line to standard output; nothing once that takes nothing any more.
macro_rules! outln {
    ($($text:tt)*) => {
        $crate::app::output::out(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// The same without an end of line.
macro_rules! out {
    ($($text:tt)*) => { $crate::app::output::out(format_args!($($text)*)) };
}

/// Prints a JSON value on a line of standard output, with characters that hide or
/// steer a terminal written as `\uXXXX`.
macro_rules! outjson {
    ($value:expr) => {
        outln!("{}", $crate::review::visible_json(&$value.to_string()))
    };
}

/// Prints a line or more to standard error, if anybody takes it, with what could
/// steer a terminal escaped.
macro_rules! errln {
    ($($text:tt)*) => {
        $crate::app::stderr::say(format_args!("{}\n", $crate::app::output::lines(&format!($($text)*))))
    };
}

/// The same as it is, and without an end of line.
macro_rules! err {
    ($($text:tt)*) => { $crate::app::stderr::say(format_args!($($text)*)) };
}

/// Writes content to standard output, as it is.
pub(crate) fn raw(content: &[u8]) {
    write(|out| out.write_all(content).and_then(|()| out.flush()));
}

pub(crate) fn out(text: fmt::Arguments<'_>) {
    write(|out| out.write_fmt(text));
}

/// A text of some lines, with names in it that may be anybody's.
pub(crate) fn lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(|line| Escaped(line).to_string()).collect();
    lines.join("\n")
}

fn write(what: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) {
    if CLOSED.get().is_none()
        && let Err(error) = what(&mut io::stdout().lock())
    {
        let _first = CLOSED.set(error);
    }
}

/// Whether nobody takes what is printed any more.
pub(crate) fn is_closed() -> bool {
    CLOSED.get().is_some()
}

/// What became of printing something at once: that nobody reads it is no error.
///
/// # Errors
/// What else went wrong.
pub(crate) fn printed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format_args!("cannot print: {error}")))
        }
        _ => Ok(()),
    }
}

/// The exit code of a command that had `code`, if all that it said was taken.
pub(crate) fn conclude(code: ExitCode) -> ExitCode {
    if let Err(error) = io::stdout().lock().flush() {
        let _first = CLOSED.set(error);
    }
    match CLOSED.get() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Failure::new(format_args!("cannot print: {error}")).report(false)
        }
        _ => code,
    }
}

/// Whether colours go to stdout: to a terminal that has them, or where the
/// environment says so.
pub(crate) fn colours() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// The same of stderr.
pub(crate) fn colours_on_stderr() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

/// Prints a line with its colours, or without where they are not wanted.
pub(crate) fn styled(line: std::fmt::Arguments<'_>) {
    let text = line.to_string();
    if colours() {
        outln!("{text}");
    } else {
        outln!("{}", strip_str(&text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_message_steer_no_terminal() {
        assert_eq!(lines("a\u{1b}[31m\nb\u{202e}"), "a\\u{1b}[31m\nb\\u{202e}");
    }
}
