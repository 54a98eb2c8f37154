//! Wraps untrusted text into rows of a terminal, so that it never begins at the left
//! edge.

use std::io;

use rustix::termios::tcgetwinsize;
use unicode_width::UnicodeWidthStr as _;

use crate::{
    app::output,
    model::{Escaped, QuotedName},
};

/// The character in place of the part that is cut off.
const CUT: char = '\u{2026}';
/// The blanks before a row that continues a line of a table.
const CONTINUED: usize = 8;
/// The blanks between two columns of a table.
const GAP: usize = 2;
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
    let indent = |(number, row): (usize, &str)| {
        let indent = if number == 0 { first } else { other };
        format!("{:indent$}{row}", "")
    };
    let rows = rows(&text, room(first), room(other)).into_iter().enumerate();
    rows.map(indent).collect::<Vec<_>>().join("\n")
}

/// Formats a line of a table for standard output: wrapped for a terminal, and in red if the request
/// was denied and there are colours.
pub(super) fn fitted(line: &str, is_denied: bool) -> String {
    coloured(wrapped(line, 0, CONTINUED, stdout_width()), is_denied)
}

/// Makes a text for standard output red if the request was denied and there are colours.
pub(super) fn coloured(text: String, is_denied: bool) -> String {
    if is_denied && output::colours() { format!("\u{1b}[31m{text}\u{1b}[0m") } else { text }
}

/// Formats a table for standard output without lines between its cells. A terminal that is too
/// narrow for all columns shows the others below: each row of the table is broken before the same
/// columns, and in a cell only if that is wider than the terminal. Columns for which `is_number`
/// returns true are aligned to the right. Returns one text for the heads and one for each row.
pub(super) fn table(
    heads: impl IntoIterator<Item = impl Into<String>>,
    rows: impl IntoIterator<Item = Vec<String>>,
    is_number: impl Fn(usize) -> bool,
) -> Vec<String> {
    let heads: Vec<String> = heads.into_iter().map(Into::into).collect();
    let lines: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
    let width = stdout_width();
    let mut texts = vec![String::new(); lines.len()];
    for (number, columns) in groups(&lines, &is_number, width).into_iter().enumerate() {
        let first = if number == 0 { 0 } else { CONTINUED };
        for (text, line) in texts.iter_mut().zip(&lines) {
            let row = aligned(line, &columns);
            if number > 0 && !row.trim_end().is_empty() {
                text.push('\n');
            }
            if number == 0 || !row.trim_end().is_empty() {
                text.push_str(&wrapped(row.trim_end(), first, CONTINUED, width));
            }
        }
    }
    texts
}

/// A column of a table: its index, its width, and true if it is aligned to the right.
type Column = (usize, usize, bool);

/// Divides the columns of a table into groups that fit into the terminal.
fn groups(
    lines: &[Vec<String>],
    is_number: impl Fn(usize) -> bool,
    width: Option<usize>,
) -> Vec<Vec<Column>> {
    let count = lines.first().map_or(0, Vec::len);
    let widest = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| columns(cell)).max()
    };
    let mut groups: Vec<Vec<Column>> = vec![Vec::new()];
    let (mut used, mut room) = (0, width.unwrap_or(usize::MAX));
    for index in 0..count {
        let widest = widest(index).unwrap_or(0);
        // A last cell that does not fit into the row has one of its own.
        let head = lines.first().and_then(|heads| heads.get(index)).map_or(0, |head| columns(head));
        let needed = if index + 1 == count && !is_number(index) { head } else { widest };
        if used > 0 && used + needed > room {
            groups.push(Vec::new());
            (used, room) = (0, width.unwrap_or(usize::MAX).saturating_sub(CONTINUED));
        }
        used += needed + GAP;
        if let Some(group) = groups.last_mut() {
            group.push((index, widest, is_number(index)));
        }
    }
    groups
}

/// Formats the cells of a row in some of its columns.
fn aligned(line: &[String], shown: &[Column]) -> String {
    let mut row = String::new();
    for &(index, width, is_number) in shown {
        let cell = line.get(index).map_or("", String::as_str);
        let blanks = " ".repeat(width.saturating_sub(cell.width()));
        let (before, after) = if is_number { (&*blanks, "") } else { ("", &*blanks) };
        row += &format!("{before}{cell}{after}{:GAP$}", "");
    }
    row
}

/// Wraps a line of this program's own text for standard output, its other rows after `indent`
/// blanks. A word that is wider than the terminal stays one, so that it can be copied.
pub(super) fn prose(line: &str, indent: usize) -> String {
    prose_in(line, indent, stdout_width())
}

/// Wraps a line as [`prose`] does, for rows of `width` columns.
pub(super) fn prose_in(line: &str, indent: usize, width: Option<usize>) -> String {
    let Some(width) = width else { return line.to_owned() };
    let (mut text, mut used) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        let word_columns = columns(word.trim_end_matches(' '));
        let fits_below = indent + word_columns <= width;
        if used + word_columns > width && fits_below && !text.trim().is_empty() {
            text.truncate(text.trim_end_matches(' ').len());
            text += &format!("\n{:indent$}", "");
            used = indent;
            if word_columns == 0 {
                continue;
            }
        }
        text.push_str(word);
        used += columns(word);
    }
    text
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

/// Divides `text` into a row of at most `width` columns, and others of at most `further`, at blanks
/// where there are any. The blanks at the end of a row are left out.
fn rows(text: &str, mut width: usize, further: usize) -> Vec<&str> {
    let (mut rows, mut rest) = (Vec::new(), text);
    loop {
        let fits = fitting(rest, width);
        let Some((head, tail)) = rest.split_at_checked(fits).filter(|(_, tail)| !tail.is_empty())
        else {
            rows.push(rest);
            return rows;
        };
        let word = match tail.starts_with(' ') {
            true => None,
            false => head.rfind(' ').filter(|at| !head.get(..*at).unwrap_or("").trim().is_empty()),
        };
        let (row, next) = rest.split_at_checked(word.unwrap_or(fits)).unwrap_or((rest, ""));
        rows.push(row.trim_end_matches(' '));
        rest = next.trim_start_matches(' ');
        if rest.is_empty() {
            return rows;
        }
        width = further;
    }
}

/// Returns the bytes of the characters of `text` that fit into `width` columns, of one at least.
fn fitting(text: &str, width: usize) -> usize {
    let mut used = 0_usize;
    let fits = text.char_indices().find(|(at, character)| {
        used += columns_of(*character);
        used > width && *at > 0
    });
    fits.map_or(text.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_is_wider_than_the_terminal() {
        assert_eq!(rows("", 4, 2), [""]);
        assert_eq!(rows("ab cd  efg", 5, 3), ["ab cd", "efg"]);
        assert_eq!(rows("  ab cd", 5, 4), ["  ab", "cd"]);
        assert_eq!(rows("  abcdef", 5, 4), ["  abc", "def"]);
        assert_eq!(rows("abcdefg", 4, 2), ["abcd", "ef", "g"]);
        assert_eq!(rows("\u{6f22}\u{5b57}a", 4, 4), ["\u{6f22}\u{5b57}", "a"]);
        assert_eq!(rows("abcdef", usize::MAX, 4), ["abcdef"]);
        assert_eq!(wrapped("abc\ndef", 1, 2, Some(5)), " abc\\\n  nde\n  f");
        assert_eq!(wrapped("abcdef", 2, 4, None), "  abcdef");
    }

    /// Rows were broken at any column, in heads, too.
    #[test]
    fn a_table_breaks_before_the_same_columns() {
        let line = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let lines = [line(["A", "LONGER", "C"]), line(["value", "b", "a longer cell"])];
        let none = |_: usize| false;
        let shown = |width: usize| -> Vec<Vec<usize>> {
            let groups = groups(&lines, none, Some(width));
            groups.iter().map(|group| group.iter().map(|column| column.0).collect()).collect()
        };
        assert_eq!(shown(40), [vec![0, 1, 2]]);
        assert_eq!(shown(15), [vec![0, 1], vec![2]]);
        assert_eq!(shown(12), [vec![0], vec![1], vec![2]]);
        assert_eq!(aligned(&lines[1], &[(0, 6, true), (1, 6, false)]), " value  b       ");
    }

    #[test]
    fn prose_breaks_between_words() {
        assert_eq!(prose_in("ab cd ef", 2, Some(5)), "ab cd\n  ef");
        assert_eq!(prose_in("  ab abcdefgh cd", 4, Some(6)), "  ab abcdefgh\n    cd");
        assert_eq!(prose_in("ab cd", 2, None), "ab cd");
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
