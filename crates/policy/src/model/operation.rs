//! Operations and accesses, and parts of requests.

use std::{fmt, num::NonZeroU64, ops::Range, str::FromStr};

/// An operation without its payload, with the name that policies, records and the command line use.
/// Operations that have a path come first; others have no place in a set of actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are those of `Operation`")]
pub enum OperationKind {
    Read,
    Write,
    Append,
    Edit,
    List,
    Stat,
    Glob,
    Grep,
    Watch,
    Mkdir,
    Remove,
    Rename,
    SetAttributes,
    Symlink,
    /// Writes a backup back, requested by the operator.
    Restore,
    /// Connects to a host; not an operation on the workspace.
    Connect,
    /// Starts a command in the agent's sandbox; not an operation on the workspace.
    Command,
}

impl OperationKind {
    /// All kinds that are about a path, in the order of the documents.
    pub const ALL: [Self; 15] = [
        Self::Read,
        Self::Write,
        Self::Append,
        Self::Edit,
        Self::List,
        Self::Stat,
        Self::Glob,
        Self::Grep,
        Self::Watch,
        Self::Mkdir,
        Self::Remove,
        Self::Rename,
        Self::SetAttributes,
        Self::Symlink,
        Self::Restore,
    ];

    /// Returns the name in policies, records and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Append => "append",
            Self::Edit => "edit",
            Self::List => "list",
            Self::Stat => "stat",
            Self::Glob => "glob",
            Self::Grep => "grep",
            Self::Watch => "watch",
            Self::Mkdir => "mkdir",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::SetAttributes => "setattr",
            Self::Symlink => "symlink",
            Self::Restore => "restore",
            Self::Connect => "connect",
            Self::Command => "command",
        }
    }

    /// True if the operation changes the workspace.
    pub fn is_mutation(self) -> bool {
        !matches!(
            self,
            Self::Read
                | Self::List
                | Self::Stat
                | Self::Glob
                | Self::Grep
                | Self::Watch
                | Self::Connect
                | Self::Command
        )
    }

    /// True if the operation is about a file's content, so never about a directory.
    pub fn is_of_files(self) -> bool {
        match self {
            Self::Read | Self::Write | Self::Append | Self::Edit => true,
            Self::List
            | Self::Stat
            | Self::Glob
            | Self::Grep
            | Self::Watch
            | Self::Mkdir
            | Self::Remove
            | Self::Rename
            | Self::SetAttributes
            | Self::Symlink
            | Self::Restore
            | Self::Connect
            | Self::Command => false,
        }
    }

    /// Returns the accesses that an operation of this kind needs on its path. A rename needs
    /// [`Access::Remove`] on the old path, which is returned here, and [`Access::Write`] on the new
    /// one.
    ///
    /// An edit discloses the presence of the old text, so it needs to read. A search needs its
    /// accesses on each entry that it discloses, and so does a subscription to changes.
    pub fn accesses(self) -> &'static [Access] {
        match self {
            Self::Read => &[Access::Read],
            Self::Write
            | Self::Append
            | Self::Mkdir
            | Self::SetAttributes
            | Self::Symlink
            | Self::Restore => &[Access::Write],
            Self::Edit => &[Access::Read, Access::Write],
            Self::List | Self::Stat | Self::Glob | Self::Watch => &[Access::List],
            Self::Grep => &[Access::List, Access::Read],
            Self::Remove | Self::Rename => &[Access::Remove],
            // They have no path: rules about hosts, or `agent.terminal`, decide.
            Self::Connect | Self::Command => &[],
        }
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for OperationKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(())
    }
}

/// The accesses that a policy allows on a path: the keys of `[allowedPaths]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Discloses content.
    Read,
    /// Discloses name, type, size and time.
    List,
    /// Creates or changes the entry.
    Write,
    /// Removes the entry or renames it to another path.
    Remove,
}

impl Access {
    /// All accesses, in the order of the policy file.
    pub const ALL: [Self; 4] = [Self::Read, Self::List, Self::Write, Self::Remove];

    /// Returns the key in the policy file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::List => "list",
            Self::Write => "write",
            Self::Remove => "remove",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Encodings of content that a client can receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// Text: other content is refused.
    #[default]
    Text,
    /// Base64, for any content that the policy allows.
    Base64,
}

/// The lines of a text to disclose. The default is the complete file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineRange {
    line: Option<NonZeroU64>,
    column: Option<NonZeroU64>,
    limit: Option<u64>,
    last: Option<u64>,
    bound: Option<Bound>,
}

/// The bound on a file's part in one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Maximum number of lines of a text.
    pub lines: u64,
    /// Maximum number of bytes of a text; a longer line is split.
    pub bytes: usize,
    /// Maximum size in bytes of a file that is not text, which is returned completely or not at
    /// all.
    pub binary: usize,
}

/// The part of a text in one reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The byte range in the text.
    pub bytes: Range<usize>,
    /// The number of its first line, from 1.
    pub line: u64,
    /// The offset in that line at which it begins, in bytes from 1.
    pub column: u64,
    /// The number of its lines. A piece of a line counts as one.
    pub lines: u64,
    /// Line and column at which the rest of the text begins, if there is any.
    pub next: Option<(u64, u64)>,
}

/// Reasons why two numbers are not a [`LineRange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineRangeError {
    /// The line is 0; lines are counted from 1.
    #[error("`line` counts from 1")]
    LineZero,
    /// The column is 0; columns are counted from 1.
    #[error("`column` counts from 1")]
    ColumnZero,
}

impl LineRange {
    /// Selects at most `limit` lines (default all) from `line` on (counted from 1, default the
    /// first).
    ///
    /// # Errors
    /// If the line is 0.
    pub fn new(line: Option<u64>, limit: Option<u64>) -> Result<Self, LineRangeError> {
        let line =
            line.map(|line| NonZeroU64::new(line).ok_or(LineRangeError::LineZero)).transpose()?;
        Ok(Self { line, limit, ..Self::default() })
    }

    /// Begins at this byte of the first line (counted from 1, default the first).
    ///
    /// # Errors
    /// If the column is 0.
    pub fn from_column(self, column: Option<u64>) -> Result<Self, LineRangeError> {
        let column = column
            .map(|column| NonZeroU64::new(column).ok_or(LineRangeError::ColumnZero))
            .transpose()?;
        Ok(Self { column, ..self })
    }

    /// Bounds the part by `bound`.
    pub fn within(self, bound: Bound) -> Self {
        Self { bound: Some(bound), ..self }
    }

    /// Selects the last lines, at most `lines`. The end of the last line does not begin another
    /// one.
    pub fn last(lines: u64) -> Self {
        Self { last: Some(lines), ..Self::default() }
    }

    /// True if the complete file is selected.
    pub fn is_whole(self) -> bool {
        Self { bound: None, ..self } == Self::default()
    }

    /// Returns the bound.
    pub fn bound(self) -> Option<Bound> {
        self.bound
    }

    /// Returns its numbers, by their names in records.
    pub fn numbers(self) -> impl Iterator<Item = (&'static str, u64)> {
        let line = self.line.map(NonZeroU64::get);
        let all = [("line", line), ("limit", self.limit), ("last", self.last)];
        all.into_iter().filter_map(|(name, number)| Some((name, number?)))
    }

    /// Returns the selected part of `content`, line ends (`\n`) included; empty past the end.
    pub fn slice(self, content: &[u8]) -> &[u8] {
        if self.is_whole() {
            return content;
        }
        if let Some(last) = self.last {
            return last_lines(content, last);
        }
        content.get(self.part(content).bytes).unwrap_or_default()
    }

    /// Returns the selected part with its position in `content`, a text.
    pub fn part(self, content: &[u8]) -> Part {
        if let Some(last) = self.last {
            return self.last_part(content, last);
        }
        let line = self.line.map_or(1, NonZeroU64::get);
        let most = |most: Option<u64>| most.map_or(usize::MAX, saturated);
        let limit = most(self.limit).min(most(self.bound.map(|bound| bound.lines)));
        let room = self.bound.map_or(usize::MAX, |bound| bound.bytes);
        let mut lines = content.split_inclusive(|byte| *byte == b'\n');
        let first: usize = lines.by_ref().take(saturated(line - 1)).map(<[u8]>::len).sum();
        let mut lines = lines.take(limit).peekable();
        let skipped = saturated(self.column.map_or(0, |column| column.get() - 1));
        let skipped = lines.peek().map_or(0, |line| character(line, skipped));
        let (start, mut end, mut count, mut next) = (first + skipped, first + skipped, 0, None);
        for text in lines {
            let text = if count == 0 { text.get(skipped..).unwrap_or_default() } else { text };
            if text.len() <= room - (end - start) {
                (end, count) = (end + text.len(), count + 1);
                continue;
            }
            if count == 0 {
                (end, count) = (start + character(text, room), 1);
                next = Some((line, number(end - first).saturating_add(1)));
            }
            break;
        }
        let after = || (line.saturating_add(count), 1);
        let next = next.or_else(|| (end < content.len()).then(after));
        let column = number(skipped).saturating_add(1);
        Part { bytes: start..end, line, column, lines: count, next }
    }

    /// Returns the last lines, as many as the bound permits, or a piece of the last one.
    fn last_part(self, content: &[u8], last: u64) -> Part {
        let bound = self.bound;
        let tail = last_lines(content, last.min(bound.map_or(u64::MAX, |bound| bound.lines)));
        let room = bound.map_or(usize::MAX, |bound| bound.bytes);
        let mut start = content.len() - tail.len();
        if tail.len() > room {
            let cut = content.len() - room;
            let end_of_line =
                |at: &usize| at.checked_sub(1).and_then(|end| content.get(end)) == Some(&b'\n');
            let inside = |at: &usize| content.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
            start = (cut..content.len())
                .find(end_of_line)
                .or_else(|| (cut..content.len()).find(|at| !inside(at)))
                .unwrap_or(content.len());
        }
        let before = content.get(..start).unwrap_or_default();
        let ends = before.iter().filter(|byte| **byte == b'\n').count();
        let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let shown = content.get(start..).unwrap_or_default();
        Part {
            bytes: start..content.len(),
            line: number(ends).saturating_add(1),
            column: number(start - begin).saturating_add(1),
            lines: number(shown.split_inclusive(|byte| *byte == b'\n').count()),
            next: None,
        }
    }
}

fn saturated(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns the last character boundary of `text` at or before `at`, or the end.
fn character(text: &[u8], at: usize) -> usize {
    let at = at.min(text.len());
    let inside = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|at| !inside(at)).unwrap_or(at)
}

fn last_lines(content: &[u8], lines: u64) -> &[u8] {
    let Some(before) = lines.checked_sub(1) else { return &[] };
    let body = content.strip_suffix(b"\n").unwrap_or(content);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let end = ends.map(|(at, _)| at).nth(usize::try_from(before).unwrap_or(usize::MAX));
    content.get(end.map_or(0, |at| at + 1)..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_lines_with_their_ends() {
        let text = b"one\ntwo\r\nthree";
        let slice = |line, limit| LineRange::new(line, limit).unwrap().slice(text);
        assert_eq!(slice(None, None), text);
        assert_eq!(slice(Some(2), Some(1)), b"two\r\n");
        assert_eq!(slice(Some(3), None), b"three");
        assert_eq!(slice(None, Some(1)), b"one\n");
        assert_eq!(slice(Some(1), Some(0)), b"");
        assert_eq!(slice(Some(u64::MAX), Some(u64::MAX)), b"");
        assert_eq!(LineRange::new(Some(0), None), Err(LineRangeError::LineZero));
    }

    #[test]
    fn the_last_lines_are_bounded_from_their_end() {
        let text = "a\nbb\nccc\nżółć\n";
        let part = |last, lines, bytes| {
            let bound = Bound { lines, bytes, binary: 0 };
            let Part { bytes, line, column, lines, next } =
                LineRange::last(last).within(bound).part(text.as_bytes());
            assert_eq!(next, None);
            (text.get(bytes).unwrap(), line, column, lines)
        };
        assert_eq!(part(9, 9, 99), (text, 1, 1, 4));
        assert_eq!(part(2, 9, 99), ("ccc\nżółć\n", 3, 1, 2));
        assert_eq!(part(9, 2, 99), ("ccc\nżółć\n", 3, 1, 2));
        assert_eq!(part(9, 9, 14), ("ccc\nżółć\n", 3, 1, 2));
        assert_eq!(part(9, 9, 9), ("żółć\n", 4, 1, 1));
        assert_eq!(part(9, 9, 8), ("ółć\n", 4, 3, 1));
        assert_eq!(part(9, 9, 4), ("ć\n", 4, 7, 1));
        assert_eq!(part(0, 9, 9), ("", 5, 1, 0));
    }

    #[test]
    fn slices_the_last_lines() {
        let slice = |text: &'static str, lines| LineRange::last(lines).slice(text.as_bytes());
        assert_eq!(slice("a\nb\nc\n", 2), b"b\nc\n");
        assert_eq!(slice("a\nb\nc", 1), b"c");
        assert_eq!(slice("a\nb", 9), b"a\nb");
        assert_eq!(slice("a\nb", u64::MAX), b"a\nb");
        assert_eq!(slice("a\nb", 0), b"");
        assert_eq!(slice("", 3), b"");
        assert_eq!(slice("a\n\n", 1), b"\n");
    }

    #[test]
    fn a_bounded_part_says_where_the_rest_begins() {
        let bound = Bound { lines: 2, bytes: 9, binary: 0 };
        let part = |text: &str, line, column| {
            let range = LineRange::new(line, None).unwrap().from_column(column).unwrap();
            let part = range.within(bound).part(text.as_bytes());
            (
                text.get(part.bytes).unwrap().to_owned(),
                part.line,
                part.column,
                part.lines,
                part.next,
            )
        };
        let expected =
            |text: &str, line, column, lines, next| (text.to_owned(), line, column, lines, next);
        let text = "a\nb\nżżżżżż\nd";
        assert_eq!(part(text, None, None), expected("a\nb\n", 1, 1, 2, Some((3, 1))));
        // A line that is too long is split into pieces of complete characters.
        assert_eq!(part(text, Some(3), None), expected("żżżż", 3, 1, 1, Some((3, 9))));
        assert_eq!(part(text, Some(3), Some(9)), expected("żż\nd", 3, 9, 2, None));
        assert_eq!(part(text, Some(3), Some(10)), expected("żż\nd", 3, 9, 2, None));
        assert_eq!(part(text, Some(2), None), expected("b\n", 2, 1, 1, Some((3, 1))));
        // Past the end of a line or a text there is no further piece.
        assert_eq!(part(text, Some(4), Some(99)), expected("", 4, 2, 1, None));
        assert_eq!(part(text, Some(u64::MAX), None), expected("", u64::MAX, 1, 0, None));
        assert_eq!(part("", None, None), expected("", 1, 1, 0, None));
        assert_eq!(LineRange::default().from_column(Some(0)), Err(LineRangeError::ColumnZero));
        assert!(LineRange::default().within(bound).is_whole());
    }

    #[test]
    fn every_kind_parses_from_its_own_word() {
        for kind in OperationKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert_eq!("chmod".parse::<OperationKind>(), Err(()));
    }
}
