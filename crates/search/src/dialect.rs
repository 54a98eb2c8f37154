//! Translation of `.gitignore` lines from git's syntax into that of the matching crate.
//!
//! In the crate's syntax braces are alternatives, a backslash in a class is one of its members, a
//! class may match a slash, and blanks at the end of a line that git keeps are removed. Lines that
//! match nothing for git are left out.

use std::str::Chars;

/// The members of `[:NAME:]`, as ranges of first and last.
const NAMED: [(&str, &[(char, char)]); 12] = [
    ("alnum", &[('0', '9'), ('A', 'Z'), ('a', 'z')]),
    ("alpha", &[('A', 'Z'), ('a', 'z')]),
    ("blank", &[(' ', ' '), ('\t', '\t')]),
    ("cntrl", &[('\0', '\x1f'), ('\x7f', '\x7f')]),
    ("digit", &[('0', '9')]),
    ("graph", &[('!', '~')]),
    ("lower", &[('a', 'z')]),
    ("print", &[(' ', '~')]),
    ("punct", &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')]),
    ("space", &[('\t', '\r'), (' ', ' ')]),
    ("upper", &[('A', 'Z')]),
    ("xdigit", &[('0', '9'), ('A', 'F'), ('a', 'f')]),
];

/// Translates the patterns of a file.
pub(super) fn patterns(text: &str) -> impl Iterator<Item = String> {
    text.strip_prefix('\u{feff}').unwrap_or(text).lines().filter_map(translated)
}

fn translated(line: &str) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let line = trimmed(line);
    let (not, rest) = line.strip_prefix('!').map_or(("", line), |rest| ("!", rest));
    let (rest, directory) = rest.strip_suffix('/').map_or((rest, ""), |rest| (rest, "/"));
    let body = body(rest.strip_prefix('/').unwrap_or(rest))?;
    // A pattern with a slash is about the path, any other about a name at any depth.
    let start = if rest.contains('/') { "/" } else { "**/" };
    Some([not, start, &body, directory].concat())
}

/// Removes the blanks at the end that are not escaped.
fn trimmed(line: &str) -> &str {
    let body = line.trim_end_matches(' ');
    let escapes = body.len() - body.trim_end_matches('\\').len();
    let kept = if escapes % 2 == 1 && body.len() < line.len() { 1 } else { 0 };
    line.get(..body.len() + kept).unwrap_or(line)
}

/// Translates a pattern; `None` if it matches nothing.
fn body(text: &str) -> Option<String> {
    let mut body = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '[' => body.push_str(&class(&mut chars)?),
            '*' | '?' | '/' => body.push(c),
            '\\' => literal(&mut body, chars.next()?),
            c => literal(&mut body, c),
        }
    }
    // A path neither begins nor ends with a slash.
    (!body.is_empty() && !body.starts_with('/') && !body.ends_with('/')).then_some(body)
}

fn literal(body: &mut String, c: char) {
    match c {
        '/' => body.push(c),
        // At the end of a line they would be removed otherwise.
        '\\' => body.push_str("{\\\\}"),
        c if c.is_whitespace() => body.extend(['{', c, '}']),
        c if c.is_ascii_punctuation() => body.extend(['\\', c]),
        c => body.push(c),
    }
}

/// The characters that a class matches.
#[derive(Default)]
struct Set {
    ascii: u128,
    others: String,
}

impl Set {
    fn add(&mut self, first: char, last: char) {
        for c in first..=last.min('\x7f') {
            self.ascii |= 1 << u32::from(c);
        }
        if !last.is_ascii() {
            self.others.push(last);
        }
    }

    fn has(&self, c: char) -> bool {
        self.ascii & 1 << u32::from(c) != 0
    }
}

/// Translates a class whose opening bracket was consumed.
fn class(chars: &mut Chars<'_>) -> Option<String> {
    let negated = chars.as_str().starts_with(['!', '^']);
    if negated {
        chars.next();
    }
    let (mut set, mut before, mut first) = (Set::default(), None, true);
    loop {
        let c = chars.next()?;
        let rest = chars.as_str();
        let member = match (c, before) {
            (']', _) if !first => break,
            ('-', Some(before)) if !rest.is_empty() && !rest.starts_with(']') => {
                let last = chars.next().filter(|c| *c != '\\').or_else(|| chars.next())?;
                set.add(before, last);
                None
            }
            ('[', _) if rest.starts_with(':') => {
                let (name, after) = rest.get(1..)?.split_once(']')?;
                match name.strip_suffix(':') {
                    Some(name) => {
                        let (_, ranges) = NAMED.iter().find(|(known, _)| *known == name)?;
                        ranges.iter().for_each(|(first, last)| set.add(*first, *last));
                        *chars = after.chars();
                        None
                    }
                    None => Some(c),
                }
            }
            ('\\', _) => Some(chars.next()?),
            _ => Some(c),
        };
        member.iter().for_each(|c| set.add(*c, *c));
        (before, first) = (member, false);
    }
    written(&set, negated)
}

/// Writes the class in the crate's syntax, where the position of a member replaces escaping.
fn written(set: &Set, negated: bool) -> Option<String> {
    let is_plain = |c: &char| !matches!(c, '/' | ']' | '^' | '!' | '-') && set.has(*c);
    let plain = ('\x01'..='\x7f').filter(is_plain).chain(set.others.chars());
    let placed = |c: char| set.has(c).then_some(c);
    let members = placed(']').into_iter().chain(plain).chain(placed('^')).chain(placed('!'));
    if negated {
        let members: String = members.chain(['/']).chain(placed('-')).collect();
        return Some(format!("[!{members}]"));
    }
    let members: String = members.chain(placed('-')).collect();
    // In the first position these two would negate the class.
    if members.starts_with(['^', '!']) {
        let all: Vec<_> = members.chars().map(|c| format!("\\{c}")).collect();
        return Some(format!("{{{}}}", all.join(",")));
    }
    (!members.is_empty()).then(|| format!("[{members}]"))
}

#[cfg(test)]
mod tests {
    use ::ignore::gitignore::GitignoreBuilder;

    use super::*;

    fn ignores(text: &str, path: &str, directory: bool) -> bool {
        let mut builder = GitignoreBuilder::new(".");
        patterns(text).for_each(|line| {
            builder.add_line(None, &line).unwrap();
        });
        builder.build().unwrap().matched(path, directory).is_ignore()
    }

    /// The results are those of `git check-ignore`.
    #[test]
    fn ignores_what_git_does() {
        let cases: [(&str, &[&str], &[&str]); 22] = [
            ("\u{feff}a", &["a", "d/a"], &["\u{feff}a"]),
            ("\u{feff}#a", &[], &["#a", "a"]),
            ("{a,b}", &["{a,b}", "d/{a,b}"], &["a", "b"]),
            ("*.{o,a}", &["x.{o,a}"], &["x.o"]),
            ("}", &["}"], &[]),
            ("a  ", &["a"], &["a  "]),
            ("a\\ ", &["a "], &["a", "a\\ "]),
            ("a\\  ", &["a "], &["a", "a  "]),
            ("a\\\\ ", &["a\\"], &["a\\ ", "a "]),
            ("a\t", &["a\t"], &["a"]),
            ("a\r\nb", &["a", "b"], &["a\r"]),
            ("\\#a\n\\!b", &["#a", "!b"], &["a", "b"]),
            ("a\\", &[], &["a", "a\\"]),
            ("[ab", &[], &["[ab", "a"]),
            ("[\\]a]x", &["]x", "ax"], &["\\]x", "\\x"]),
            ("d[!x]a", &["dya"], &["d/a", "dxa"]),
            ("a[x/]b", &["axb"], &["d/axb", "a/b"]),
            ("[[:digit:]_]", &["1", "_"], &["d", ":", "[1]"]),
            ("[!!]\n[^^-]", &["a", "!", "^"], &[]),
            ("[!^]", &["!"], &["^"]),
            ("*\n!a\n!d/", &["b", "d/b"], &["a", "d/a"]),
            ("/d/\n!d/a", &[], &["a", "x/d/a"]),
        ];
        for (text, ignored, kept) in cases {
            for path in ignored {
                assert!(ignores(text, path, false), "{text:?} {path:?}");
            }
            for path in kept {
                assert!(!ignores(text, path, false), "{text:?} {path:?}");
            }
        }
        // Entries of an ignored directory are never visited.
        assert!(ignores("/d/\n!d/a", "d", true) && !ignores("*\n!d/", "d", true));
    }
}
