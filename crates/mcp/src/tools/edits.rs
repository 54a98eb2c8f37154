//! Edits of a text, applied one after the other as the reference server documents it:
//! a match of the old text as it is, else line by line regardless of indentation,
//! which then is preserved.
//!
//! Line ends are ignored in matches, and those of the file are preserved.

use std::ops::Range;

use super::super::tool_result::ToolError;

/// Maximum of bytes by which indentation may lengthen the replaced lines: a long one
/// before each of many lines would exceed file and edit together by far.
const MAX_ADDED_INDENTATION: usize = 1 << 20;
/// Maximum of bytes of an edit that an error shows.
const MAX_SHOWN: usize = 1 << 10;

/// Applies edits of old and new text in their order; each changes the first match.
/// `check_cancelled` is called before each.
///
/// # Errors
/// When an old text is not found, or `check_cancelled` fails.
pub(super) fn apply(
    text: &str,
    edits: &[(&str, &str)],
    go_on: &dyn Fn() -> Result<(), ToolError>,
) -> Result<String, ToolError> {
    let mut lines = Lines::of(text);
    for (old, new) in edits {
        go_on()?;
        let (old, new) = (plain(old), plain(new));
        if old.is_empty() {
            return Err(ToolError::Said("`oldText` is empty".to_owned()));
        }
        match lines.text.find(&old) {
            Some(at) => lines.replace(at..at + old.len(), &new),
            None => {
                let (range, new) = by_line(&lines.text, &old, &new)?;
                lines.replace(range, &new);
            }
        }
    }
    Ok(lines.join())
}

/// A text with `\n` line ends, and which of its lines end with `\r\n` in the file.
struct Lines {
    text: String,
    dos: Vec<bool>,
}

impl Lines {
    fn of(text: &str) -> Self {
        let ends = text.match_indices('\n');
        let dos = ends.map(|(at, _)| text.get(..at).is_some_and(|line| line.ends_with('\r')));
        Self { dos: dos.collect(), text: plain(text) }
    }

    /// Replaces a range. New lines get the line ends of those that they replace;
    /// additional ones get that of the last of these, or of the line in whose place
    /// they are.
    fn replace(&mut self, range: Range<usize>, new: &str) {
        let ends = |text: Option<&str>| text.map_or(0, |text| text.matches('\n').count());
        let first = ends(self.text.get(..range.start));
        let last = first + ends(self.text.get(range.clone()));
        let there = self.dos.get(first..last).unwrap_or_default();
        let around = self.dos.get(first).or_else(|| self.dos.last());
        let more = there.last().or(around).copied().unwrap_or_default();
        let ends = there.iter().copied().chain(std::iter::repeat(more));
        let ends: Vec<bool> = ends.take(new.matches('\n').count()).collect();
        self.dos.splice(first..last, ends);
        self.text.replace_range(range, new);
    }

    fn join(self) -> String {
        let mut joined = String::with_capacity(self.text.len() + self.dos.len());
        let mut dos = self.dos.into_iter();
        for line in self.text.split_inclusive('\n') {
            match line.strip_suffix('\n').filter(|_| dos.next() == Some(true)) {
                Some(line) => joined.extend([line, "\r\n"]),
                None => joined.push_str(line),
            }
        }
        joined
    }
}

fn plain(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// Returns the range of the first lines that match `old` except for white space around
/// them, and the replacement.
fn by_line(text: &str, old: &str, new: &str) -> Result<(Range<usize>, String), ToolError> {
    let missing = || {
        let text = shortened(old);
        ToolError::Said(format!("could not find a match for the edit:\n{text}"))
    };
    let at = line_of(text, old).ok_or_else(missing)?;
    let lines: Vec<&str> = text.split('\n').collect();
    let old: Vec<&str> = old.split('\n').collect();
    let (head, rest) = lines.split_at_checked(at).ok_or_else(missing)?;
    let replaced = rest.get(..old.len()).ok_or_else(missing)?;
    let base = replaced.first().map_or("", |line| indentation(line));
    let known: usize = replaced.iter().map(|line| line.len()).sum();
    if base.len().saturating_mul(old.len()) > known.saturating_add(MAX_ADDED_INDENTATION) {
        let reason = "the lines to replace are indented so far that the result would be too long";
        return Err(ToolError::Said(reason.to_owned()));
    }
    let new: Vec<String> = new
        .split('\n')
        .enumerate()
        .map(|(number, line)| {
            let theirs = old.get(number).map_or("", |line| indentation(line));
            let ours = indentation(line);
            if number > 0 && (theirs.is_empty() || ours.is_empty()) {
                return line.to_owned();
            }
            let deeper = if number == 0 { 0 } else { ours.len().saturating_sub(theirs.len()) };
            format!("{base}{}{}", " ".repeat(deeper), line.trim_start())
        })
        .collect();
    let start: usize = head.iter().map(|line| line.len() + 1).sum();
    Ok((start..start + known + replaced.len().saturating_sub(1), new.join("\n")))
}

/// Returns the beginning of a text for an error.
fn shortened(text: &str) -> String {
    match text.split_at_checked(text.floor_char_boundary(MAX_SHOWN)) {
        Some((shown, rest)) if !rest.is_empty() => format!("{shown}\n[The text goes on.]"),
        _ => text.to_owned(),
    }
}

/// Returns the number of the first line of `text` from which on the lines match those
/// of `old` except for white space around them. A text search takes linear time;
/// comparing each line of one with each of the other takes the product.
fn line_of(text: &str, old: &str) -> Option<usize> {
    let bare = trimmed(text);
    let at = bare.find(&trimmed(old))?;
    bare.get(..at).map(|before| before.matches('\n').count())
}

/// Returns the text with its lines trimmed, each between two line ends.
fn trimmed(text: &str) -> String {
    let mut bare = String::with_capacity(text.len() + 2);
    bare.push('\n');
    for line in text.split('\n') {
        bare.push_str(line.trim());
        bare.push('\n');
    }
    bare
}

fn indentation(line: &str) -> &str {
    let rest = line.trim_start().len();
    line.get(..line.len() - rest).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{apply as apply_while, *};

    fn apply(text: &str, edits: &[(&str, &str)]) -> Result<String, String> {
        apply_while(text, edits, &|| Ok(())).map_err(|trouble| match trouble {
            ToolError::Said(reason) => reason,
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn edits_build_on_each_other_and_change_the_first_place() {
        assert_eq!(apply("a b a", &[("a", "b"), ("b b", "c")]).unwrap(), "c a");
        assert!(apply("a", &[("x", "y")]).unwrap_err().contains('x'));
        assert!(apply("a", &[("", "y")]).is_err());
        assert_eq!(apply("a", &[]).unwrap(), "a");
    }

    #[test]
    fn indentation_that_differs_is_kept() {
        let text = "fn f() {\n    if x {\n        y();\n    }\n}\n";
        let edited = apply(text, &[("if x {\n    y();\n}", "if z {\n    w();\n}")]).unwrap();
        assert!(edited.contains("    if z {\n"), "{edited}");
        assert!(edited.contains("    w();\n"), "{edited}");
        assert!(apply("a\nb", &[("b\nc\nd", "x")]).is_err());
    }

    #[test]
    fn dos_lines_stay() {
        assert_eq!(apply("a\r\nb\r\n", &[("a\nb", "c\nd")]).unwrap(), "c\r\nd\r\n");
        assert_eq!(apply("a\r\nb\n", &[("b", "c")]).unwrap(), "a\r\nc\n");
        assert_eq!(apply("a\r\nb", &[("b", "c\nd\n")]).unwrap(), "a\r\nc\r\nd\r\n");
    }

    /// The line ends of the edit got into the file.
    #[test]
    fn an_edit_brings_no_other_line_ends() {
        let edited = |text, old, new| apply(text, &[(old, new)]).unwrap();
        assert_eq!(edited("a\nb\nc\n", "a\r\nb", "A\r\nB"), "A\nB\nc\n");
        assert_eq!(edited("a\n", "a", "A\r\nB"), "A\nB\n");
        assert_eq!(edited("a", "a", "A\r\nB"), "A\nB");
        // The same in a match line by line.
        assert_eq!(edited(" a\n b\nc", "a\r\nb", "A\r\n B\r\n"), " A\n B\n\nc");
        let mixed = "a\r\nb\nc\r\nd\n";
        assert_eq!(edited(mixed, "a\nb", "A\nB"), "A\r\nB\nc\r\nd\n");
        assert_eq!(edited(mixed, "b\nc", "B\r\nC"), "a\r\nB\nC\r\nd\n");
        assert_eq!(edited(mixed, "b\nc\n", ""), "a\r\nd\n");
        assert_eq!(edited(mixed, "c", "c\nc"), "a\r\nb\nc\r\nc\r\nd\n");
        assert_eq!(edited(mixed, " a\n b", "A\nB"), "A\r\nB\nc\r\nd\n");
        // A `\r` that ends no line is preserved.
        assert_eq!(edited("a\r\r\nb\rc\n", "c", "d"), "a\r\r\nb\rd\n");
        let twice = apply(mixed, &[("a\nb", "x"), ("x\nc\nd\n", "y\nz\n")]);
        assert_eq!(twice.unwrap(), "y\nz\r\n");
    }

    #[test]
    fn the_first_lines_that_fit_are_the_ones() {
        assert_eq!(apply("a \n a\nb\na\nb", &[("a\nb ", "x")]), Ok("a \n x\na\nb".to_owned()));
    }

    #[test]
    fn lines_that_nearly_fit_everywhere_are_looked_through_once() {
        let line = " x\n";
        let text = line.repeat(400_000);
        let old = format!("{}y", "x\n".repeat(200_000));
        assert!(apply(&text, &[(&old, "z")]).unwrap_err().contains("could not find"));
        let text = format!("{text} y");
        let edited = apply(&text, &[(&old, "z")]).unwrap();
        assert_eq!(edited, format!("{} z", line.repeat(200_000)));
    }

    #[test]
    fn an_indentation_is_not_multiplied_without_end() {
        let text = format!("{}x\n{}", " ".repeat(1 << 20), "x\n".repeat(9_999));
        let old = " x\n".repeat(10_000);
        let refused =
            apply(&text, &[(&old, &old)]).is_err_and(|reason| reason.contains("too long"));
        assert!(refused);
    }

    #[test]
    fn edits_end_where_the_client_takes_the_call_back() {
        let left = std::cell::Cell::new(2);
        let go_on = || match left.replace(left.get() - 1) {
            0 => Err(ToolError::Said("taken back".to_owned())),
            _ => Ok(()),
        };
        let edits = [("a", "b"), ("b", "a"), ("missing", "")];
        let Err(ToolError::Said(reason)) = apply_while("a", &edits, &go_on) else { panic!() };
        assert_eq!(reason, "taken back");
    }
}
