//! Escapes for untrusted text for logs, terminals and pages, and for the shell of an operator.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

/// True if `content` is text: UTF-8 without a NUL byte.
pub fn is_text(content: &[u8]) -> bool {
    // Pieces without an early exit are compared many bytes at a time.
    let has_nul = |piece: &[u8]| piece.iter().fold(false, |found, byte| found | (*byte == 0));
    !content.chunks(256).any(has_nul) && str::from_utf8(content).is_ok()
}

/// Displays untrusted text with control, bidirectional-override and zero-width characters written
/// as `\u{…}`, so that it can neither forge a line nor control a terminal.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| write_escaped(f, c))
    }
}

/// Escapes untrusted text for a person who decides on it, so that no two texts look alike: as
/// [`Escaped`], with a backslash doubled where it could pass for the beginning of an escape. The
/// characters of `unescaped` stay as they are.
pub fn distinct(untrusted: &str, unescaped: &[char]) -> String {
    let is_escaped = |c: &char| !unescaped.contains(c);
    let mut text = String::with_capacity(untrusted.len());
    let mut rest = untrusted.chars();
    while let Some(c) = rest.next() {
        let begins_escape = |next: char| match next {
            '\\' | 'u' => true,
            'n' => is_escaped(&'\n'),
            'r' => is_escaped(&'\r'),
            't' => is_escaped(&'\t'),
            next => is_hidden_character(next) && is_escaped(&next),
        };
        if c == '\\' && rest.clone().next().is_some_and(begins_escape) {
            text.push('\\');
        }
        match is_escaped(&c) {
            true => _ = write!(text, "{}", Escaped(c.encode_utf8(&mut [0; 4]))),
            false => text.push(c),
        }
    }
    text
}

/// Escapes a change as [`distinct`] does. The names in the header of a diff are escaped already, so
/// they are not escaped again.
pub fn distinct_diff(change: &str, unescaped: &[char]) -> String {
    let lines: Vec<&str> = change.split_inclusive('\n').collect();
    let is_header = |lines: &[&str]| {
        let starts = ["--- ", "+++ ", "@@ "];
        lines.iter().zip(starts).all(|(line, start)| line.starts_with(start))
    };
    // Only sentences may precede it: lines of a content may look the same.
    let is_sentence = |line: &&&str| !line.starts_with(['+', '-', ' ', '@']);
    let sentences = lines.iter().take_while(is_sentence).count();
    let has_header = lines.get(sentences..sentences + 3).is_some_and(is_header);
    let mut text = String::with_capacity(change.len());
    for (at, line) in lines.into_iter().enumerate() {
        match line.strip_suffix('\n') {
            Some(names) if has_header && (sentences..sentences + 2).contains(&at) => {
                let _ = writeln!(text, "{}", Escaped(names));
            }
            _ => text += &distinct(line, unescaped),
        }
    }
    text
}

fn write_escaped(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    match c {
        '\n' => f.write_str("\\n"),
        '\r' => f.write_str("\\r"),
        '\t' => f.write_str("\\t"),
        c if is_hidden_character(c) => write!(f, "{}", c.escape_unicode()),
        c => f.write_char(c),
    }
}

/// Displays untrusted text among other text of a line: as [`Escaped`], and in quotes where it could
/// pass for what stands between the parts of the line. With `{:#}` it is always in quotes.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl Quoted<'_> {
    /// True if the text could pass for more than itself: white space, separators, quotes, escapes,
    /// nothing, or the sign for nothing.
    fn is_ambiguous(&self) -> bool {
        // Characters that are escaped separate nothing.
        let is_blank = |c: char| c.is_whitespace() && !is_hidden_character(c);
        let separates = |c: char| is_blank(c) || matches!(c, '"' | '`' | '=' | ',');
        let has_escape = ["\\n", "\\r", "\\t", "\\u"].iter().any(|escape| self.0.contains(escape));
        matches!(self.0, "" | "-") || self.0.contains(separates) || has_escape
    }
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() && !self.is_ambiguous() {
            return Escaped(self.0).fmt(f);
        }
        f.write_char('"')?;
        for c in self.0.chars() {
            if matches!(c, '"' | '\\') {
                f.write_char('\\')?;
            }
            write_escaped(f, c)?;
        }
        f.write_char('"')
    }
}

/// Displays an untrusted name in a sentence: as [`Quoted`], and between backticks where it is not
/// in quotes.
#[derive(Debug, Clone, Copy)]
pub struct QuotedName<'a>(pub &'a str);

impl fmt::Display for QuotedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = Quoted(self.0);
        if quoted.is_ambiguous() { quoted.fmt(f) } else { write!(f, "`{quoted}`") }
    }
}

/// True if `c` changes the direction of the text around it (Unicode UAX #9, explicit formatting
/// characters).
pub fn changes_direction(c: char) -> bool {
    matches!(
        c,
        '\u{61c}'
            | '\u{200e}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// True if `c` is invisible or misleading on a terminal: control characters, bidirectional
/// formatting (Unicode UAX #9), zero-width and other default-ignorable characters, the format
/// controls, joiners, fillers and modifiers of scripts that have no glyph of their own, line and
/// paragraph separators, the braille blank, the null notehead, noncharacters.
pub fn is_hidden_character(c: char) -> bool {
    c.is_control()
        || changes_direction(c)
        || u32::from(c) & 0xfffe == 0xfffe
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200d}'
                | '\u{2028}'..='\u{2029}'
                | '\u{2060}'..='\u{2065}'
                | '\u{206a}'..='\u{206f}'
                | '\u{2800}'
                | '\u{2d7f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{fdd0}'..='\u{fdef}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffc}'
                | '\u{1107f}'
                | '\u{13430}'..='\u{1345f}'
                | '\u{16fe4}'
                | '\u{1bc9d}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d159}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{1da9b}'..='\u{1daaf}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Returns the beginning of a text that is to be searched for secrets: at most `most` bytes, without
/// the word or the part of a path that would be cut. No rule finds half a secret.
pub fn complete_words(text: &str, most: usize) -> &str {
    let separates = |c: char| c == '/' || c.is_whitespace();
    let (beginning, rest) = text.split_at(text.floor_char_boundary(most));
    match rest.is_empty() || rest.starts_with(separates) {
        true => beginning,
        false => beginning.trim_end_matches(|c| !separates(c)),
    }
}

/// True if any character of `text` [is hidden](is_hidden_character).
pub fn has_hidden_characters(text: &str) -> bool {
    text.chars().any(is_hidden_character)
}

/// Quotes a path for a POSIX shell that reads it from a file.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    // Only a NUL cannot be quoted, and no path has one.
    shlex::try_quote(&text).map(Cow::into_owned).unwrap_or(text)
}

/// Quotes a path for a POSIX shell into which it is pasted from a terminal. Control
/// characters are encoded, because the terminal would drop them, and the command would name
/// another path.
pub fn for_shell(path: &Path) -> String {
    if path.to_str().is_some_and(|text| !has_hidden_characters(text)) {
        return quoted(path);
    }
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'\n').map_or(0, |last| last + 1);
    // Newlines at the end of what a command prints are dropped.
    let newlines = "\n".repeat(bytes.len() - end);
    let mut text = "\"$(printf '".to_owned();
    for byte in bytes.iter().take(end) {
        match byte {
            b'/' | b'.' | b'_' | b' ' => text.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(*byte)),
            byte => _ = write!(text, "\\{byte:03o}"),
        }
    }
    format!("{text}'){newlines}\"")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    /// The printed `rm -r` of a directory with a space in its name used to name two others.
    #[test]
    fn a_path_to_be_pasted_is_one_word() {
        assert_eq!(for_shell(Path::new("/tmp/d1")), "/tmp/d1");
        assert_eq!(for_shell(Path::new("sp ace/d")), "'sp ace/d'");
        assert_eq!(for_shell(Path::new("it's")), "\"it's\"");
        assert_eq!(for_shell(Path::new("")), "''");
    }

    /// Such characters used to be removed although the output was no terminal.
    #[test]
    fn a_path_to_be_pasted_keeps_what_a_terminal_would_swallow() {
        let control = for_shell(Path::new("e\u{1b}[31mc'\\"));
        assert_eq!(control, r#""$(printf 'e\033\13331mc\047\134')""#);
        let bidi = for_shell(Path::new("a\u{202e}b"));
        assert_eq!(bidi, r#""$(printf 'a\342\200\256b')""#);
        assert_eq!(for_shell(Path::new(OsStr::from_bytes(b"\xff"))), r#""$(printf '\377')""#);
    }

    #[test]
    fn a_word_that_would_be_cut_is_left_out() {
        for (text, most, beginning) in [
            ("one two", 7, "one two"),
            ("one two", 6, "one "),
            ("one two", 3, "one"),
            ("one two", 2, ""),
            ("/v1/files/secret", 14, "/v1/files/"),
            ("/v1/files/secret", 9, "/v1/files"),
            ("a éé", 3, "a "),
            ("", 0, ""),
        ] {
            assert_eq!(complete_words(text, most), beginning, "{text} {most}");
        }
    }

    #[test]
    fn quotes_what_could_pass_for_more_than_itself() {
        for plain in ["a/b.rs", "日本", "x[1]", "a\\b"] {
            assert_eq!(Quoted(plain).to_string(), plain);
        }
        for (text, shown) in [
            ("a, b", r#""a, b""#),
            (r#"a" b="c\"#, r#""a\" b=\"c\\""#),
            ("a\u{3000}b", "\"a\u{3000}b\""),
            ("a\nb\u{202e}", r"a\nb\u{202e}"),
            ("a\nb c", r#""a\nb c""#),
            (r"a\nb", r#""a\\nb""#),
            (r"a\u{202e}", r#""a\\u{202e}""#),
            ("", r#""""#),
            ("-", r#""-""#),
        ] {
            assert_eq!(Quoted(text).to_string(), shown);
        }
        assert_eq!(format!("{:#}", Quoted("make")), r#""make""#);
        assert_eq!(QuotedName("a/b.rs").to_string(), "`a/b.rs`");
        assert_eq!(QuotedName("a` to `b").to_string(), r#""a` to `b""#);
        assert_eq!(QuotedName("a` to \"b").to_string(), r#""a` to \"b""#);
    }

    /// A literal `\n` looked like a line end.
    #[test]
    fn no_two_texts_look_alike() {
        let texts =
            ["a\n", r"a\n", r"a\\n", "a\\\n", "a\t", r"a\t", "\u{200b}", r"\u{200b}", r"a\b"];
        for unescaped in [&[][..], &['\n'], &['\n', '\t']] {
            let shown: std::collections::BTreeSet<_> =
                texts.iter().map(|text| distinct(text, unescaped)).collect();
            assert_eq!(shown.len(), texts.len(), "{unescaped:?} {shown:?}");
        }
        assert_eq!(distinct("\tprintf(\"a\\n\");\n", &['\n', '\t']), "\tprintf(\"a\\n\");\n");
        let quoted: std::collections::BTreeSet<_> =
            texts.iter().map(|text| QuotedName(text).to_string()).collect();
        assert_eq!(quoted.len(), texts.len(), "{quoted:?}");
    }

    /// It was escaped twice, and named the file whose name has a backslash.
    #[test]
    fn the_header_of_a_diff_is_escaped_once() {
        let name = distinct("f\u{200b}z", &[]);
        let header = format!("--- a/{name}\n+++ /dev/null\n@@ -1 +0,0 @@\n");
        for before in ["", "removes it\n"] {
            let shown = distinct_diff(&format!("{before}{header}-\\u\u{200b}\n"), &['\n']);
            assert_eq!(shown, format!("{before}{header}-\\\\u\\u{{200b}}\n"));
        }
        // Lines of a content are none.
        for content in [
            format!("+x\n{header}"),
            format!("@@ -1 +1 @@\n{header}"),
            header.replacen("--- ", "", 1),
        ] {
            assert_eq!(distinct_diff(&content, &['\n']), distinct(&content, &['\n']));
        }
    }

    #[test]
    fn escapes_what_could_steer_a_terminal() {
        let hostile = "a\u{1b}[31m\u{202e}b\nc\u{200b}";
        assert_eq!(Escaped(hostile).to_string(), "a\\u{1b}[31m\\u{202e}b\\nc\\u{200b}");
        assert_eq!(Escaped("żółć 日本").to_string(), "żółć 日本");
        for hidden in ["\u{61c}", "\u{200f}", "\u{202e}", "\u{2066}", "\u{2069}"] {
            assert!(hidden.chars().all(changes_direction), "{hidden:?}");
            assert!(has_hidden_characters(hidden), "{hidden:?}");
        }
        // The controls of shorthand and of hieroglyphs.
        for hidden in ["\u{2800}", "\u{1bca0}", "\u{1bca3}", "\u{13430}", "\u{1345f}"] {
            assert!(has_hidden_characters(hidden), "{hidden:?}");
        }
        // A filler, a notehead, joiners and modifiers without a glyph, noncharacters.
        for hidden in
            "\u{16fe4}\u{1d159}\u{1107f}\u{2d7f}\u{1bc9d}\u{1da9b}\u{1daaf}\u{fffc}".chars()
        {
            assert!(is_hidden_character(hidden), "{hidden:?}");
        }
        for hidden in "\u{fdd0}\u{fdef}\u{fffe}\u{ffff}\u{1fffe}\u{10ffff}".chars() {
            assert!(is_hidden_character(hidden), "{hidden:?}");
        }
        assert!(!has_hidden_characters("\u{1342f}\u{13460}\u{1bc9f}\u{1bca4}\u{fffd}\u{1fffd}"));
    }
}
