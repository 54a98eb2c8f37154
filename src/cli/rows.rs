//! Wrapping of untrusted text into rows of a terminal, so that it never begins at the left
//! edge.

use rustix::termios::tcgetwinsize;

/// The characters before each row of untrusted text.
const INDENT: &str = "  ";
/// The character in place of the part that is cut off.
const CUT: char = '\u{2026}';

/// Returns the number of columns of the terminal on standard output, if it is one.
pub(super) fn width() -> Option<usize> {
    let size = tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_col > 0)?;
    Some(size.ws_col.into())
}

/// Wraps `text` for a terminal of `width` columns, each row with an indent.
pub(super) fn indented(text: &str, width: usize) -> Vec<String> {
    let rows = rows(text, width.saturating_sub(INDENT.len()).max(INDENT.len()));
    rows.into_iter().map(|row| format!("{INDENT}{row}")).collect()
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

/// Returns an upper bound: the width of other characters depends on the terminal.
fn columns_of(character: char) -> usize {
    if character.is_ascii() { 1 } else { 2 }
}

fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

fn rows(text: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut used = 0_usize;
    for character in text.chars() {
        let columns = columns_of(character);
        if used + columns > width {
            rows.push(String::new());
            used = 0;
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
        assert_eq!(rows("", 4), [""]);
        assert_eq!(rows("abcdef", 4), ["abcd", "ef"]);
        assert_eq!(rows("\u{6f22}\u{5b57}a", 4), ["\u{6f22}\u{5b57}", "a"]);
        assert_eq!(rows("abcdef", usize::MAX), ["abcdef"]);
        assert_eq!(indented("abcdef", 6), ["  abcd", "  ef"]);
    }

    #[test]
    fn what_is_cut_off_is_marked() {
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(cut("abcde", 4), "ab\u{2026}");
        assert_eq!(cut("\u{6f22}\u{5b57}", 3), "\u{2026}");
    }
}
