//! Patterns that other languages interpret differently.
//!
//! An author who writes `!private` or `~/.ssh` means something by it. Here these would be literal
//! names that nothing has, and a denial of them would protect nothing. So they are errors, and a
//! literal character is written in a class of its own: `[!]private`.

use super::{
    look_alike,
    parse::{Lexeme, PatternError},
};

/// Refuses braces of other languages.
pub(super) fn braces(lexemes: &[Lexeme]) -> Result<(), PatternError> {
    // An element for each open brace, which is true after a comma.
    let mut open: Vec<bool> = Vec::new();
    let mut before: Option<&Lexeme> = None;
    // True if `before` is the first character of a name.
    let mut begins_name = false;
    let mut rest = lexemes.iter();
    while let Some(lexeme) = rest.next() {
        match (before, lexeme) {
            (Some(Lexeme::Char('$')), Lexeme::Open) => return Err(PatternError::Variable),
            (Some(Lexeme::Class(_) | Lexeme::Char(')')), Lexeme::Open)
                if is_count(rest.as_slice()) =>
            {
                return Err(PatternError::Regex);
            }
            // `man.{1,5}` are extensions.
            (Some(Lexeme::Char('.')), Lexeme::Open) if begins_name && is_count(rest.as_slice()) => {
                return Err(PatternError::Regex);
            }
            (_, Lexeme::Open | Lexeme::Comma) if is_range(rest.as_slice()) => {
                return Err(PatternError::Range);
            }
            (Some(Lexeme::Open | Lexeme::Comma), Lexeme::Char(c))
            | (Some(Lexeme::Char(c)), Lexeme::Comma | Lexeme::Close)
                if c.is_whitespace() && !open.is_empty() =>
            {
                return Err(PatternError::BlankInBraces);
            }
            _ => {}
        }
        match lexeme {
            Lexeme::Open => open.push(false),
            Lexeme::Comma => open.iter_mut().rev().take(1).for_each(|comma| *comma = true),
            Lexeme::Close if open.pop() == Some(false) => return Err(PatternError::OneAlternative),
            _ => {}
        }
        begins_name = matches!(before, None | Some(Lexeme::Slash));
        before = Some(lexeme);
    }
    Ok(())
}

/// True if braces with this content are a count of a regular expression: `{1,3}`.
fn is_count(lexemes: &[Lexeme]) -> bool {
    let inside = lexemes.iter().take_while(|lexeme| !matches!(lexeme, Lexeme::Close));
    inside.into_iter().all(|lexeme| match lexeme {
        Lexeme::Char(c) => c.is_ascii_digit(),
        lexeme => matches!(lexeme, Lexeme::Comma),
    })
}

/// True if an alternative is a range of a shell: `1..3`, `a..z`, `1..9..2`.
fn is_range(lexemes: &[Lexeme]) -> bool {
    let ends = |lexeme: &Lexeme| matches!(lexeme, Lexeme::Comma | Lexeme::Close);
    let inside: Option<String> =
        lexemes.iter().take_while(|lexeme| !ends(lexeme)).map(Lexeme::bare).collect();
    let inside = inside.unwrap_or_default();
    let is_end = |end: &str| {
        let digits = end.strip_prefix('-').unwrap_or(end);
        !end.is_empty()
            && (digits.bytes().all(|c| c.is_ascii_digit())
                || (end.len() == 1 && end.bytes().all(|c| c.is_ascii_alphabetic())))
    };
    inside.contains("..") && inside.split("..").all(is_end)
}

/// Prefixes by which other languages name the kind of a pattern.
const KINDS: [&str; 18] = [
    "ant:",
    "dir:",
    "exact:",
    "file:",
    "folder:",
    "glob:",
    "literal:",
    "name:",
    "path:",
    "prefix:",
    "re:",
    "regex:",
    "regexp:",
    "relglob:",
    "relpath:",
    "relre:",
    "suffix:",
    "wildcard:",
];

/// Refuses forms of other languages in one reading of a pattern.
pub(super) fn reading(lexemes: &[Lexeme]) -> Result<(), PatternError> {
    let text: String = lexemes
        .iter()
        .map(|lexeme| match lexeme {
            Lexeme::Char(c) => *c,
            Lexeme::Slash => '/',
            _ => '\0',
        })
        .collect();
    if has_quotes(&text) {
        return Err(PatternError::Quotes);
    }
    if is_annotated(&text) {
        return Err(PatternError::Annotation);
    }
    // `app/(auth)/x` is a path.
    let last = lexemes.rsplit(|lexeme| matches!(lexeme, Lexeme::Slash)).next();
    if let Some(component @ [Lexeme::Char('('), .., Lexeme::Char(')')]) = last {
        let is_regex = is_expression(component);
        return Err(if is_regex { PatternError::Regex } else { PatternError::Group });
    }
    if matches!(lexemes.last(), Some(Lexeme::Char('$'))) {
        return Err(PatternError::Regex);
    }
    let start: String = lexemes.iter().map_while(Lexeme::bare).collect();
    if KINDS.iter().any(|kind| start.starts_with(kind)) {
        return Err(PatternError::Address);
    }
    lexemes.windows(2).try_for_each(pair)?;
    let components: Vec<_> = lexemes.split(|lexeme| matches!(lexeme, Lexeme::Slash)).collect();
    for (index, component) in components.iter().enumerate() {
        let more = index + 1 < components.len();
        one(component, index == 0, more)?;
    }
    // The suffix of RCS, `,v`, is an exception.
    let rcs = matches!(lexemes, [.., Lexeme::Char(','), Lexeme::Char('v')]);
    let lexemes = if rcs { lexemes.get(..lexemes.len() - 2) } else { Some(lexemes) };
    lexemes.unwrap_or_default().iter().try_for_each(|lexeme| match lexeme {
        Lexeme::Char('|') => Err(PatternError::Bar),
        Lexeme::Char(',' | ';') => Err(PatternError::List),
        Lexeme::Char('<' | '>') => Err(PatternError::Placeholder),
        Lexeme::Char('\u{2026}') => Err(PatternError::NoWildcard),
        Lexeme::Char(found) => match look_alike::meant(*found) {
            Some(meant) => Err(PatternError::LookAlike { found: *found, meant }),
            None => Ok(()),
        },
        _ => Ok(()),
    })
}

fn pair(pair: &[Lexeme]) -> Result<(), PatternError> {
    use Lexeme::{Char, DoubleStar, Question, Star};
    match pair {
        [Star | DoubleStar | Question | Char('+' | '@' | '!'), Char('(')] => {
            Err(PatternError::ExtendedGlob)
        }
        [Char('$'), Char('(')] => Err(PatternError::Variable),
        [Char('('), Question] | [Char(')'), Question] | [Char('.'), Char('+')] => {
            Err(PatternError::Regex)
        }
        [Lexeme::Class(_), Char('+')] => Err(PatternError::Regex),
        [Char('.'), Char('(')] => Err(PatternError::Group),
        [Char(blank), Char('#')] if blank.is_whitespace() => Err(PatternError::Comment),
        [Char(blank), Star | DoubleStar] | [Star | DoubleStar, Char(blank)]
            if blank.is_whitespace() =>
        {
            Err(PatternError::BlankBesideStar)
        }
        [Char(','), Char(blank)] if blank.is_whitespace() => Err(PatternError::List),
        _ => Ok(()),
    }
}

/// Checks one component; `first` and `more` are true if it is the first one, and if another one
/// follows.
fn one(component: &[Lexeme], first: bool, more: bool) -> Result<(), PatternError> {
    let blank =
        |lexeme: Option<&Lexeme>| matches!(lexeme, Some(Lexeme::Char(c)) if c.is_whitespace());
    if blank(component.first()) || blank(component.last()) {
        return Err(PatternError::Blank);
    }
    // `*.js src/*.ts`: an extension, and then further text.
    let mut behind = component.iter().skip_while(|lexeme| !matches!(lexeme, Lexeme::Star));
    if matches!((behind.next(), behind.next()), (Some(_), Some(Lexeme::Char('.'))))
        && behind.any(|lexeme| blank(Some(lexeme)))
    {
        return Err(PatternError::BlankBesideStar);
    }
    if is_list(component) {
        return Err(PatternError::BlankBesideStar);
    }
    if is_expression(component) {
        return Err(PatternError::Regex);
    }
    let text: String = component.iter().map_while(Lexeme::bare).collect();
    let is_text = text.chars().count() == component.len();
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some('!'), _) => return Err(PatternError::Negation),
        (Some('#'), _) if first && is_text => return Err(PatternError::Comment),
        (Some('.'), Some('.')) if is_text && text == "..." => return Err(PatternError::NoWildcard),
        // Any directory of an MQTT topic, and all beneath one in MQTT and Java.
        (Some('+'), None) if is_text => return Err(PatternError::NoWildcard),
        (Some('#' | '-'), None) if is_text && !first && !more => {
            return Err(PatternError::NoWildcard);
        }
        (Some('^'), _) if first => return Err(PatternError::Regex),
        (Some('~'), _) if first || (is_text && text.len() == 1) => return Err(PatternError::Home),
        // Magic words of git: `:!x`, `:(icase)x`.
        (Some(':'), Some(_)) if first => return Err(PatternError::Address),
        (Some(letter), Some(':')) if first && letter.is_ascii_alphabetic() => {
            return Err(PatternError::Drive);
        }
        (Some('$'), Some(next)) if first && (next.is_ascii_alphabetic() || next == '_') => {
            return Err(PatternError::Variable);
        }
        (Some('$'), Some(_)) if is_text && text.chars().skip(1).all(in_variable) => {
            return Err(PatternError::Variable);
        }
        _ => {}
    }
    if (more || text.chars().count() > 1) && is_text && text.ends_with(':') {
        return Err(PatternError::Address);
    }
    let text: String = component.iter().map(|lexeme| lexeme.bare().unwrap_or('/')).collect();
    percent(&text)
}

/// True if a part of the pattern is quoted, by itself or in an expression of a program: `r'src/x'`,
/// `File::"a/*"`, `src/“x”`. `rock'n'roll` is a name.
fn has_quotes(text: &str) -> bool {
    if ['"', '`'].into_iter().any(|quote| text.matches(quote).count() > 1) {
        return true;
    }
    let Some((last, end)) = text.trim_end_matches(')').char_indices().last() else {
        return false;
    };
    let ends = |quote: &char| match end {
        '\'' => *quote == '\'',
        end => is_typographic_quote(end) && is_typographic_quote(*quote),
    };
    let opens = |(at, quote): (usize, char)| {
        let before = text.get(..at).unwrap_or_default();
        let prefix = before.trim_start_matches(['b', 'f', 'r', 'u', 'B', 'F', 'R', 'U']);
        ends(&quote) && (prefix.is_empty() || before.ends_with(['/', '(', ':', '=', ' ']))
    };
    text.get(..last).unwrap_or_default().char_indices().any(opens)
}

/// True if something beside the pattern says more about it: an item of a list, an owner as in
/// CODEOWNERS, an attribute of git, the mode of a mount, or the option of a program.
fn is_annotated(text: &str) -> bool {
    const ATTRIBUTES: [&str; 5] = ["-diff", "-merge", "-text", "export-ignore", "export-subst"];
    const BEGINNINGS: [&str; 10] = [
        "diff=",
        "eol=",
        "filter=",
        "linguist-detectable",
        "linguist-documentation",
        "linguist-generated",
        "linguist-language=",
        "linguist-vendored",
        "merge=",
        "text=",
    ];
    const OPTIONS: [&str; 6] = ["exclude=", "glob=", "include=", "path=", "paths=", "pattern="];
    let is_owner = |word: &str| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/');
        // `@2x` is a size.
        let is_address = word.split_once('@').is_some_and(|(person, host)| {
            !person.is_empty() && host.contains('.') && !host.contains('@')
        });
        is_address
            || word.strip_prefix('@').is_some_and(|name| {
                name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_name)
            })
    };
    let last = text.rsplit_once(char::is_whitespace).map(|(_, last)| last);
    let is_remark = |word: &str| {
        is_owner(word)
            || ATTRIBUTES.contains(&word)
            || BEGINNINGS.iter().any(|beginning| word.starts_with(beginning))
    };
    let first = text.split('/').next().unwrap_or_default();
    ["- ", "+ "].iter().chain(&OPTIONS).any(|beginning| text.starts_with(beginning))
        || (first.starts_with("--") && first.contains('='))
        || ((text.ends_with(":ro") || text.ends_with(":rw")) && text.contains(['/', '*']))
        || last.is_some_and(is_remark)
}

/// True if a blank follows an extension, as in `prod.yml config/dev.yml`.
fn is_list(component: &[Lexeme]) -> bool {
    let mut letters = None;
    component.iter().any(|lexeme| {
        let Lexeme::Char(c) = lexeme else {
            letters = None;
            return false;
        };
        let is_end = c.is_whitespace() && letters.is_some_and(|letters| letters > 0);
        letters = match letters {
            _ if *c == '.' => Some(0),
            Some(0) if c.is_alphabetic() => Some(1),
            Some(letters) if letters > 0 && c.is_alphanumeric() => Some(letters + 1),
            _ => None,
        };
        is_end
    })
}

/// True if `.*` stands for any text in it, as in `.*secret.*`, `.*?`, `(.*)` and `.*[.]pem`.
fn is_expression(component: &[Lexeme]) -> bool {
    use Lexeme::{Char, Literal, Question, Star};
    match component {
        [Char('.'), Star, .., Char('.'), Star] | [Char('.'), Star, Question, ..] => true,
        [Char('.'), Star, rest @ ..] => rest.iter().any(|lexeme| matches!(lexeme, Literal('.'))),
        _ => component.windows(3).any(|part| matches!(part, [Char('('), Char('.'), Star])),
    }
}

fn in_variable(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'
}

/// Refuses `%2e` and `%USERPROFILE%`.
fn percent(text: &str) -> Result<(), PatternError> {
    let mut parts = text.split('%').skip(1).peekable();
    while let Some(part) = parts.next() {
        let encoded = part.get(..2).is_some_and(|two| two.chars().all(|c| c.is_ascii_hexdigit()));
        if encoded {
            return Err(PatternError::Encoded);
        }
        if parts.peek().is_some() && !part.is_empty() && part.chars().all(in_variable) {
            return Err(PatternError::Variable);
        }
    }
    Ok(())
}

fn is_typographic_quote(c: char) -> bool {
    matches!(c, '\u{2018}'..='\u{201f}' | '\u{ab}' | '\u{bb}' | '\u{2039}' | '\u{203a}')
}

#[cfg(test)]
mod tests {
    use super::super::{Comparison, parse};
    use super::*;

    #[test]
    fn what_another_language_reads_otherwise_is_refused() {
        use PatternError as E;
        for (texts, error) in [
            (&["!x", "!x/**", "src/!x", "{a,!b}", "**/!x"][..], E::Negation),
            (&["~", "~/x", "~root/x", "a/~", "~x"], E::Home),
            (&["C:/x", "c:x", "C:", "{C:/x,a}"], E::Drive),
            (
                &[
                    "src\\**",
                    "src\\a",
                    "a\\",
                    "a\\/b",
                    "\\!x",
                    "\\\\host\\x",
                    "a\\*.rs",
                    ".*\\.env",
                ],
                E::Backslash,
            ),
            (
                &["@(a|b)", "+(a)", "?(a)", "*(a|b)", "!(a)", "a/@(b)", "x*(y)", "**(a)"],
                E::ExtendedGlob,
            ),
            (&[" a", "a ", "a /b", "a/ b", "\u{a0}a", "{a,b} "], E::Blank),
            (&["{a, b}", "{a ,b}", "{ a,b}", "*.{js, ts}", "{a,b }"], E::BlankInBraces),
            (&["{a}", "src/{name}/x", "{}", "{a{b},c}"], E::OneAlternative),
            (&["part{1..3}.csv", "{a..z}", "part{1..3,9}.csv", "{9,01..10..2}"], E::Range),
            (&["^src/.*$", "^src", "src/.*$", "src/.+", "(?i)a", "a[0-9]{1,3}"], E::Regex),
            (&["**/key-[0-9a-f]+.txt", "[a-z]+", "[a-z0-9_]+.key"], E::Regex),
            (&[".*secret.*", "**/.*secret.*", "private/(.*)", "(.*)/x", "**/.*[.]pem"], E::Regex),
            (&["secret/.*?", ".*?/x", "a/.*?x/b"], E::Regex),
            (&["regex:a", "glob:a/**", "re:x", "dir:a/b", "prefix:a"], E::Address),
            (&["a,b", "*.a,*.b", "a;b"], E::List),
            (&["#a", "#a/b", "private # keep out", "a/b #c"], E::Comment),
            (&["*.js *.ts", "src/*.js src/*.ts", "a* b", "** a", "x/* b/*"], E::BlankBesideStar),
            (&["c/a.yml c/b.yml", "c/.env c/.env.local", "a.tar.gz b"], E::BlankBesideStar),
            (&["c/{a.yml b.yml,x}", ".env *"], E::BlankBesideStar),
            (&["(secret)", "*.(js)", "a/*.(js)", "**/(secret)", "a/(b c)"], E::Group),
            (
                &["\u{201c}a\u{201d}", "\u{2018}a/b\u{2019}", "\u{201e}a\u{201c}", "\u{ab}a\u{bb}"],
                E::Quotes,
            ),
            (&["a\u{2026}", "\u{2026}/a"], E::NoWildcard),
            (&["<a>", "a/<b>"], E::Placeholder),
            (&["a/...", "...", "a/-", "**/#", "a/+/b", "+/b", "{a/+,b}"], E::NoWildcard),
            (&["`a`"], E::Quotes),
            (&["a|b", "(a|b)/c"], E::Bar),
            (
                &[
                    "$HOME/x",
                    "${HOME}/x",
                    "$x",
                    "a/$VAR/b",
                    "$(pwd)/a",
                    "%USERPROFILE%/x",
                    "a/%APPDATA%",
                ],
                E::Variable,
            ),
            (&["a%20b", "%2e%2e/a", "*%2F*"], E::Encoded),
            (&["file:///x", "https://a/b", "file:/x", "a/private:", "private:"], E::Address),
            (&[":!secret", ":^secret", ":/x", "relglob:x", "relre:x"], E::Address),
            (&["src/**/a, docs/b", "a, b"], E::List),
            (&["'a'", "\"src/**\"", "r'src/x'", "src/'x'", "Path('src/x')"], E::Quotes),
            (&["File::\"a/*\"", "Path(\"src/x\")", "src/\u{201c}x\u{201d}", "a/`b`"], E::Quotes),
            (&["src/docs a@example.com", "docs @org/team a@b.org"], E::Annotation),
            (&["src/docs @team", "docs @org/team", "src/x export-ignore"], E::Annotation),
            (&["src/x -text", "a filter=lfs", "a linguist-generated=true"], E::Annotation),
            (&["path=src/**", "exclude=x", "--exclude=x/**", "--x=*"], E::Annotation),
            (&["- src/private", "+ src", "src/x:ro", "src/*:rw"], E::Annotation),
            (&["src/id_rsa(.pub)?", "src/.{1,3}", ".{1,3}", "(a){1,3}"], E::Regex),
        ] {
            for text in texts {
                for mode in [Comparison::Exact, Comparison::Folded] {
                    assert_eq!(parse(text, mode), Err(error), "{text}");
                }
                assert_ne!(error.help(), "", "{text}");
            }
        }
    }

    #[test]
    fn a_character_in_a_class_of_its_own_is_itself() {
        for (text, path) in [
            ("[!]x", "!x"),
            ("[^]a", "^a"),
            ("[~]/x", "~/x"),
            ("C[:]/x", "C:/x"),
            ("src[\\]a", "src\\a"),
            ("[*]", "*"),
            ("[]]", "]"),
            ("[[]id[]]", "[id]"),
            ("\\[id\\]/\\{x\\}", "[id]/{x}"),
            ("\\*\\?", "*?"),
            ("@[(]a[)]", "@(a)"),
            ("[ ]a[ ]", " a "),
            ("[$]HOME/a[$]", "$HOME/a$"),
            ("100[%]20", "100%20"),
            ("a[|]b", "a|b"),
            ("Smith[,] John", "Smith, John"),
            ("['']'", "''"),
            ("a[ ]*", "a b"),
            ("[\u{2026}]", "\u{2026}"),
            ("[(]a)", "(a)"),
            ("a [#]1", "a #1"),
        ] {
            let matched = parse(text, Comparison::Exact)
                .map(|all| all.iter().any(|p| p.matches(path.split('/'))));
            assert_eq!(matched, Ok(true), "{text}");
        }
        for text in [
            "Login Data",
            "*,v",
            "**/~$*",
            "a/~b",
            "ab:c",
            "x (copy).txt",
            "Screen?Shot a.*",
            "app/(auth)/x",
            "Dr. No.txt",
            "v1.0 notes.md",
            "a/x (1)",
            "a.yml[ ]b.yml",
            "don\u{2019}t",
            "don't",
            "rock'n'roll",
            "the dogs' cats'",
            "5\" disk",
            "the \u{201c}best\u{201d}.mp3",
            "man/*.{1,5,8}",
            "x (copy)*",
            "mail @home.txt",
            "node_modules/@scope/x",
            "a-b - c",
            "-x",
            "export-ignore",
            "ab:row",
            "a+b",
            "*.c++",
            "-",
            "-/a",
            "a/#/b",
            "a/-b",
            "a/[+]/b",
            "**/[-]",
            "year=2024/path=a/**",
            "--x/a=b",
            ".?*",
            "a.*?",
            "#*#",
            "[a-z]:x",
            "src{,/**}",
            "routes/$id.tsx",
            "A$B.class",
            ".*",
            ".*_history",
            ".*.swp",
            "*[.]pem",
            "*.*",
            "{1.0..x,2}",
            "{a,..b}",
            "routes/[id]/+page.svelte",
            "100%",
            "(app)/x",
            "@scope/x",
        ] {
            assert!(parse(text, Comparison::Exact).is_ok(), "{text}");
        }
    }
}
