//! Searches in one content, line by line.

use std::{
    io::{self, Read},
    ops::Range,
};

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use regex_syntax::ast::parse::ParserBuilder;

use crate::{
    Error,
    model::GrepQuery,
    tally::Tally,
    view::{Line, Piece},
};

/// Maximum number of bytes of a line that are disclosed.
pub(super) const MAX_LINE: usize = 2_000;
/// Number of bytes shown before the match in a line that is cut.
const MAX_BYTES_BEFORE_MATCH: usize = 200;
/// The byte order mark that some editors put before a text; not part of its first line.
const MARK: &[u8] = "\u{feff}".as_bytes();
/// Maximum length of an expression in bytes. It is parsed before the compiled expression is
/// measured, and a class of three bytes such as `\pL` then takes 16 KB.
const MAX_PATTERN_LENGTH: usize = 4 << 10;
/// Maximum size of a compiled expression in bytes. The time for one content is at most proportional
/// to the product of both sizes.
const MAX_EXPRESSION_BYTES: usize = 1 << 20;
/// Maximum size in bytes of one thread's cache for the expression.
const MAX_CACHE_BYTES: usize = 4 << 20;
/// Maximum nesting of groups.
const MAX_NESTING: u32 = 100;
/// Number of bytes between two checks of the time.
const PIECE_SIZE: usize = 32 << 10;

/// The tools of one thread for searching.
pub(super) struct Tools {
    matcher: RegexMatcher,
    searcher: Searcher,
    /// Number of lines shown after a match.
    after: u64,
    /// True if the first match suffices and no line is shown.
    files_only: bool,
}

/// Compiles the query's expression.
pub(super) fn compile(query: &GrepQuery) -> Result<RegexMatcher, Error> {
    let wrong = |error: String| Error::Pattern(problem_line(&error));
    if query.pattern.len() > MAX_PATTERN_LENGTH {
        return Err(wrong(format!("it is longer than {} KiB", MAX_PATTERN_LENGTH >> 10)));
    }
    // The matcher puts the expression in a group, which `a)|(b` would turn into two.
    let parsed = ParserBuilder::new()
        .nest_limit(MAX_NESTING)
        .build()
        .parse_with_comments(&query.pattern)
        .map_err(|error| wrong(error.to_string()))?;
    let end = query.pattern.len();
    // A comment at its end would extend to the end of the group.
    let commented = parsed.comments.last().is_some_and(|last| last.span.end.offset == end);
    let pattern = format!("{}{}", query.pattern, if commented { "\n" } else { "" });
    RegexMatcherBuilder::new()
        .case_insensitive(query.ignore_case)
        // `^` and `$` also apply to lines that end with CR LF. LF alone terminates a line, so that
        // a CR can be searched for, and `.` matches every other character.
        .multi_line(true)
        .crlf(true)
        .line_terminator(Some(b'\n'))
        .dot_matches_new_line(true)
        .size_limit(MAX_EXPRESSION_BYTES)
        .dfa_size_limit(MAX_CACHE_BYTES)
        .nest_limit(MAX_NESTING)
        .build(&pattern)
        .map_err(|error| wrong(error.to_string()))
}

/// Returns the line of the message that states the problem; the others draw a diagram.
fn problem_line(message: &str) -> String {
    let last = message.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

impl Tools {
    pub(super) fn new(matcher: &RegexMatcher, query: &GrepQuery) -> Self {
        let files_only = query.files_only;
        let shown = |count: u64| if files_only { 0 } else { count.min(Line::MAX_CONTEXT) };
        let lines = |count: u64| usize::try_from(shown(count)).unwrap_or_default();
        let searcher = SearcherBuilder::new()
            .line_number(true)
            .before_context(lines(query.before))
            .after_context(lines(query.after))
            .binary_detection(BinaryDetection::none())
            .bom_sniffing(false)
            .build();
        // A clone has its own caches, which threads then do not share.
        let (matcher, after) = (matcher.clone(), shown(query.after));
        Self { matcher, searcher, after, files_only }
    }

    /// Finds the lines of `content` after the line `begin` that match, with the lines around them,
    /// as far as the tally's limits permit. Returns them and the number of matches.
    pub(super) fn search(
        &mut self,
        tally: &Tally<'_>,
        content: &[u8],
        begin: u64,
    ) -> (Vec<Piece>, u64) {
        let text = content.strip_prefix(MARK).unwrap_or(content);
        let (mark, content) = (content.len() - text.len(), text);
        let matcher = &self.matcher;
        let Self { after, files_only, .. } = *self;
        let (found, matches) = (Vec::new(), 0);
        let mut lines = Lines { tally, matcher, mark, begin, after, files_only, found, matches };
        // An error means that the time is over; the results so far count.
        let _ = match content.len() > PIECE_SIZE {
            true => {
                self.searcher.search_reader(matcher, Pieces { rest: content, tally }, &mut lines)
            }
            false if !tally.may_continue() => Ok(()),
            // A single piece needs no copy.
            false => self.searcher.search_slice(matcher, content, &mut lines),
        };
        lines.drop_excess_context();
        (lines.found, lines.matches)
    }
}

/// A content in pieces; the time is checked between them.
struct Pieces<'a> {
    rest: &'a [u8],
    tally: &'a Tally<'a>,
}

impl Read for Pieces<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if !self.tally.may_continue() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let most = room.len().min(PIECE_SIZE);
        self.rest.read(room.get_mut(..most).unwrap_or_default())
    }
}

struct Lines<'a> {
    tally: &'a Tally<'a>,
    matcher: &'a RegexMatcher,
    /// The length of the byte order mark before the text.
    mark: usize,
    /// The last line that does not count.
    begin: u64,
    after: u64,
    files_only: bool,
    found: Vec<Piece>,
    matches: u64,
}

impl Lines<'_> {
    fn take(&mut self, number: Option<u64>, at: u64, bytes: &[u8], matches: bool) -> bool {
        if number.is_some_and(|number| number <= self.begin) {
            return true;
        }
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let shown = match bytes.len() > MAX_LINE {
            true => self.piece(bytes, matches),
            false => 0..bytes.len(),
        };
        let cut = shown.len() < bytes.len();
        let room = match matches {
            true => self.tally.result(shown.len()),
            false => self.tally.room(shown.len()),
        };
        if room {
            let at = usize::try_from(at).unwrap_or(usize::MAX).saturating_add(self.mark);
            let bytes = at.saturating_add(shown.start)..at.saturating_add(shown.end);
            self.found.push(Piece { number: number.unwrap_or_default(), bytes, matches, cut });
            self.matches += u64::from(matches);
        }
        room
    }

    /// Removes lines before a match that exceeded the limits: they are near no match that is shown.
    fn drop_excess_context(&mut self) {
        let last = self.found.iter().rfind(|line| line.matches);
        let near = last.map_or(0, |last| last.number.saturating_add(self.after));
        let kept = self.found.partition_point(|line| line.number <= near);
        self.found.truncate(kept);
    }

    /// Returns the piece of a long line that is shown, which contains the match.
    fn piece(&self, bytes: &[u8], matches: bool) -> Range<usize> {
        let at = match matches {
            true => self.matcher.find(bytes).ok().flatten().map_or(0, |found| found.start()),
            false => 0,
        };
        let start = at.saturating_sub(MAX_BYTES_BEFORE_MATCH).min(bytes.len() - MAX_LINE);
        boundary(bytes, start)..boundary(bytes, start + MAX_LINE)
    }
}

/// Returns the last character boundary at or before `at`.
fn boundary(bytes: &[u8], at: usize) -> usize {
    let inside = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|at| !inside(at)).unwrap_or(at)
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, line: &SinkMatch<'_>) -> Result<bool, io::Error> {
        if self.files_only {
            self.matches = u64::from(self.tally.result(0));
            return Ok(false);
        }
        Ok(self.take(line.line_number(), line.absolute_byte_offset(), line.bytes(), true))
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> Result<bool, io::Error> {
        Ok(self.take(line.line_number(), line.absolute_byte_offset(), line.bytes(), false))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{NoFollower, tally::Limits};

    const WIDE: Limits =
        Limits { time: Duration::from_secs(600), depth: 9, results: 100, bytes: 1 << 20 };

    fn search(
        query: &GrepQuery,
        limits: Limits,
        content: &[u8],
    ) -> (Vec<Line>, u64, Tally<'static>) {
        let tally = Tally::new(limits, &NoFollower);
        let (pieces, matches) =
            Tools::new(&compile(query).unwrap(), query).search(&tally, content, 0);
        let lines = pieces.into_iter().map(|Piece { number, bytes, matches, cut }| {
            let text = String::from_utf8(content[bytes].to_vec()).unwrap();
            Line { number, text, matches, cut }
        });
        (lines.collect(), matches, tally)
    }

    fn query(pattern: &str) -> GrepQuery {
        GrepQuery { pattern: pattern.to_owned(), ..GrepQuery::default() }
    }

    #[test]
    fn finds_lines_with_their_numbers_and_surroundings() {
        let query = GrepQuery { before: 1, after: 1, ignore_case: true, ..query("^b$") };
        let (lines, matches, _) = search(&query, WIDE, b"a\r\nB\nc\nd\nb");
        let seen: Vec<_> =
            lines.iter().map(|line| (line.number, line.text.as_str(), line.matches)).collect();
        let expected =
            [(1, "a", false), (2, "B", true), (3, "c", false), (4, "d", false), (5, "b", true)];
        assert_eq!((seen.as_slice(), matches), (expected.as_slice(), 2));
    }

    /// `$` matched nowhere in such files, and `^` not in their first line.
    #[test]
    fn lines_of_dos_begin_and_end_where_others_do() {
        let content = b"\xef\xbb\xbf# head\r\nbeta\r\n\r\nlast";
        for (pattern, expected) in [
            ("^beta$", &[2][..]),
            ("a$", &[2]),
            ("^# head", &[1]),
            ("^.{6}$", &[1]),
            ("^$", &[3]),
            ("^last$", &[4]),
            (r"\r", &[1, 2, 3]),
            (r"[^\r]\r", &[1, 2]),
            (r"\x{feff}", &[]),
        ] {
            for content in [content.to_vec(), [&content[..], &b"\n".repeat(PIECE_SIZE)].concat()] {
                let (lines, _, _) = search(&query(pattern), WIDE, &content);
                let found: Vec<_> =
                    lines.iter().map(|line| line.number).filter(|line| *line < 5).collect();
                assert_eq!(found, expected, "{pattern}");
            }
        }
        let (lines, _, _) = search(&query("head"), WIDE, content);
        assert_eq!(lines[0].text, "# head");
        // A CR within a line remains an ordinary character.
        assert_eq!(search(&query("a.b"), WIDE, b"a\rb\n").1, 1);
    }

    #[test]
    fn a_long_line_is_cut_around_its_match() {
        let content = format!("{}needle{}", "ż".repeat(500_000), "ó".repeat(500_000));
        let (lines, _, _) = search(&query("needle"), WIDE, content.as_bytes());
        assert!(lines[0].cut && lines[0].text.len() <= MAX_LINE, "{}", lines[0].text.len());
        assert!(lines[0].text.contains("żneedleó") && !lines[0].text.contains('\u{fffd}'));
    }

    #[test]
    fn stops_at_its_limits() {
        let (lines, _, tally) = search(&query("x"), Limits { results: 2, ..WIDE }, b"x\nx\nx\n");
        assert_eq!((lines.len(), tally.summary().stopped.unwrap().as_str()), (2, "results"));
        let (_, _, tally) = search(&query("x"), Limits { results: 3, ..WIDE }, b"x\nx\nx\n");
        assert_eq!(tally.summary().stopped, None);
        let (lines, _, tally) =
            search(&query("x"), Limits { time: Duration::ZERO, ..WIDE }, b"x\n");
        assert_eq!((lines.len(), tally.summary().stopped.unwrap().as_str()), (0, "time"));
        let long = "x".repeat(1_500) + "\n";
        let (lines, _, tally) =
            search(&query("x"), Limits { bytes: 10_000, ..WIDE }, long.repeat(50).as_bytes());
        assert_eq!((lines.len() < 10, tally.summary().stopped.unwrap().as_str()), (true, "size"));
    }

    #[test]
    fn expressions_that_cannot_be_used_are_refused_in_one_line() {
        for (pattern, word) in [
            ("(", "unclosed group"),
            ("a\\nb", "\\n"),
            (&format!("{}a{}", "(".repeat(200), ")".repeat(200)), "nest"),
            ("(\\w{1000}){1000}", "size"),
            (&"\\pL".repeat(400_000), "longer than 4 KiB"),
        ] {
            let error = compile(&query(pattern)).err().map(|error| error.to_string());
            let (error, pattern) = (error.unwrap(), pattern.get(..40).unwrap_or(pattern));
            assert!(error.contains(word) && !error.contains('\n'), "{pattern}: {error}");
        }
    }
}
