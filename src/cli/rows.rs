//! Wrapping of untrusted text into rows of a terminal, so that it never begins at the left
//! edge.

use std::io;

use rustix::termios::tcgetwinsize;

use crate::{
    app::output,
    model::{Escaped, QuotedName},
};

/// The character in place of the part that is cut off.
const CUT: char = '\u{2026}';
/// The blanks before a row that continues a line of a table.
const CONTINUED: usize = 8;
/// The least width of a row, in columns.
const MIN_WIDTH: usize = 2;

/// Returns the number of columns of the terminal that shows standard output, if one does.
pub(super) fn stdout_width() -> Option<usize> {
    output::width()
}

/// Returns the number of columns of the terminal on standard error, if it is one.
pub(super) fn stderr_width() -> Option<usize> {
    let size = tcgetwinsize(io::stderr()).ok().filter(|size| size.ws_col > 0)?;
    Some(size.ws_col.into())
}

/// Escapes a line, and wraps it for a terminal of `width` columns. Its first row begins after
/// `first` blanks, and each other one after `other` blanks: more than before any line of
/// Portcullis that stands beside it, so that no text in it looks like another line.
pub(super) fn wrapped(line: &str, first: usize, other: usize, width: Option<usize>) -> String {
    let text = Escaped(line).to_string();
    let room = |indent: usize| {
        width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(MIN_WIDTH))
    };
    let indent = |(number, row): (usize, String)| {
        let indent = if number == 0 { first } else { other };
        format!("{:indent$}{row}", "")
    };
    let rows = rows(&text, room(first), room(other)).into_iter().enumerate();
    rows.map(indent).collect::<Vec<_>>().join("\n")
}

/// Formats a line of a table for standard output: wrapped for a terminal, and in red if the request
/// was denied and there are colours.
pub(super) fn fitted(line: &str, is_denied: bool) -> String {
    let text = wrapped(line, 0, CONTINUED, stdout_width());
    if is_denied && output::colours() { format!("\u{1b}[31m{text}\u{1b}[0m") } else { text }
}

/// Cuts `text` to at most `width` columns.
pub(super) fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut used = columns(&CUT.to_string());
    let fits = text.chars().take_while(|character| {
        used += columns_of(*character);
        used <= width
    });
    fits.chain([CUT]).collect()
}

/// Displays a name in a sentence ([`QuotedName`]), in at most `width` columns: its middle is cut
/// out, so that its end remains.
pub(super) fn named(name: &str, width: usize) -> String {
    let whole = QuotedName(name).to_string();
    if columns(&whole) <= width {
        return whole;
    }
    let all: Vec<char> = name.chars().collect();
    let cut = |kept: usize| {
        let (head, tail) = (kept / 2, all.len() - kept.div_ceil(2));
        let cut: String =
            all.iter().take(head).chain([&CUT]).chain(all.iter().skip(tail)).collect();
        QuotedName(&cut).to_string()
    };
    let fits = |shown: &String| columns(shown) <= width;
    (0..all.len().min(width)).rev().map(cut).find(fits).unwrap_or_else(|| CUT.to_string())
}

/// Returns an upper bound: the width of other characters depends on the terminal.
fn columns_of(character: char) -> usize {
    if character.is_ascii() { 1 } else { 2 }
}

fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// Divides `text` into a row of at most `width` columns, and others of at most `further`.
fn rows(text: &str, mut width: usize, further: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut used = 0_usize;
    for character in text.chars() {
        let columns = columns_of(character);
        if used + columns > width {
            rows.push(String::new());
            (used, width) = (0, further);
        }
        if let Some(row) = rows.last_mut() {
            row.push(character);
        }
        used += columns;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_is_wider_than_the_terminal() {
        assert_eq!(rows("", 4, 2), [""]);
        assert_eq!(rows("abcdefg", 4, 2), ["abcd", "ef", "g"]);
        assert_eq!(rows("\u{6f22}\u{5b57}a", 4, 4), ["\u{6f22}\u{5b57}", "a"]);
        assert_eq!(rows("abcdef", usize::MAX, 4), ["abcdef"]);
        assert_eq!(wrapped("abc\ndef", 1, 2, Some(5)), " abc\\\n  nde\n  f");
        assert_eq!(wrapped("abcdef", 2, 4, None), "  abcdef");
    }

    #[test]
    fn what_is_cut_off_is_marked() {
        assert_eq!(named("a/b.sh", 8), "`a/b.sh`");
        assert_eq!(named("a/readme.sh", 10), "`a/r….sh`");
        assert_eq!(named("a` to `b.sh", 10), r#""a` ….sh""#);
        assert_eq!(named(&"\"".repeat(9), 10), "\"\\\"…\\\"\\\"\"");
        assert_eq!(named("abcd", 0), "…");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(cut("abcde", 4), "ab\u{2026}");
        assert_eq!(cut("\u{6f22}\u{5b57}", 3), "\u{2026}");
    }
}
