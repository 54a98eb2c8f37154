//! Output of commands to a terminal, a file or another command.
//!
//! The standard library's macros panic on a failed write, and here a panic ends the
//! process. A closed pipe, as after `head`, is no error, and further output is
//! dropped; other errors, such as a full disk, are reported at the end.

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
    sync::OnceLock,
};

use anstream::{AutoStream, ColorChoice, adapter::strip_str};
use rustix::termios::tcgetwinsize;

use super::failure::Failure;
use crate::model::Escaped;

/// The first error of standard output.
static CLOSED: OnceLock<io::Error> = OnceLock::new();
/// The function that each output calls first.
static BEFORE_OUTPUT: OnceLock<fn()> = OnceLock::new();
/// True if the terminal behind a pager has colours; and its width.
static TERMINAL: OnceLock<(bool, Option<usize>)> = OnceLock::new();

/// Prints a line to standard output, unless that has failed before.
macro_rules! outln {
    ($($text:tt)*) => {
        $crate::app::output::out(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Prints to standard output without a line end.
macro_rules! out {
    ($($text:tt)*) => { $crate::app::output::out(format_args!($($text)*)) };
}

/// Prints a JSON value on a line of standard output; characters that are invisible
/// or control a terminal become `\uXXXX`.
macro_rules! outjson {
    ($value:expr) => {
        outln!("{}", $crate::review::visible_json(&$value.to_string()))
    };
}

/// Prints lines to standard error; characters that control a terminal are escaped.
macro_rules! errln {
    ($($text:tt)*) => {
        $crate::app::stderr::say(format_args!("{}\n", $crate::app::output::lines(&format!($($text)*))))
    };
}

/// Prints to standard error unescaped, and without a line end.
macro_rules! err {
    ($($text:tt)*) => { $crate::app::stderr::say(format_args!($($text)*)) };
}

/// Writes content to standard output unchanged.
pub(crate) fn raw(content: &[u8]) {
    write(|out| out.write_all(content).and_then(|()| out.flush()));
}

pub(crate) fn out(text: fmt::Arguments<'_>) {
    write(|out| out.write_fmt(text));
}

/// Escapes the lines of a text that may contain untrusted names.
pub(crate) fn lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(|line| Escaped(line).to_string()).collect();
    lines.join("\n")
}

fn write(what: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) {
    if CLOSED.get().is_some() {
        return;
    }
    if let Some(prepare) = BEFORE_OUTPUT.get() {
        prepare();
    }
    if let Err(error) = what(&mut io::stdout().lock()) {
        let _first = CLOSED.set(error);
    }
}

/// Returns true if standard output has failed.
pub(crate) fn is_closed() -> bool {
    CLOSED.get().is_some()
}

/// Converts the result of a print: a closed pipe is no error.
///
/// # Errors
/// Any other error.
pub(crate) fn printed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format_args!("cannot print: {error}")))
        }
        _ => Ok(()),
    }
}

/// Returns the exit code `code`, unless standard output has failed.
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

/// Has each output call `prepare` first, such as to start a pager.
pub(super) fn call_first(prepare: fn()) {
    let _first = BEFORE_OUTPUT.set(prepare);
}

/// Remembers colours and width of the terminal, before standard output becomes a pipe to a pager.
pub(crate) fn remember_terminal() {
    let _first = TERMINAL.set((colours(), width()));
}

/// Returns true if stdout gets colours: a terminal that supports them, or as the
/// environment says.
pub(crate) fn colours() -> bool {
    match TERMINAL.get() {
        Some((has_colours, _)) => *has_colours,
        None => AutoStream::choice(&io::stdout()) != ColorChoice::Never,
    }
}

/// Returns the number of columns of the terminal that shows standard output, if one does.
pub(crate) fn width() -> Option<usize> {
    if let Some((_, width)) = TERMINAL.get() {
        return *width;
    }
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0)?;
    Some(size.ws_col.into())
}

/// Returns true if stderr gets colours.
pub(crate) fn colours_on_stderr() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

/// Prints a line with its colours, or without them if stdout gets none.
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
