//! Parser of a pattern into its alternatives.

use unicode_normalization::char::is_combining_mark;

use super::{
    Comparison, Pattern, Segment, look_alike, misleading,
    name::{Class, Name, Token},
};
use crate::{
    model::{AgentName, has_hidden_characters},
    normalized::{fold, single},
};

/// Maximum length of a pattern in bytes.
const MAX_BYTES: usize = 1024;
/// Maximum number of alternatives to which the braces of one pattern expand.
const MAX_ALTERNATIVES: usize = 256;
/// Maximum nesting of braces.
const MAX_BRACES: usize = 8;

/// Reasons why a text is not a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("the pattern is empty")]
    Empty,
    #[error("the pattern starts with `/`; patterns are relative to the workspace root")]
    Absolute,
    #[error(
        "the pattern has an empty component; for all that is in a directory write `directory/**`"
    )]
    EmptyComponent,
    #[error("the pattern has a component `.` or `..`")]
    Dots,
    #[error("`**` must be a whole component, as in `a/**/b`")]
    PartialDoubleStar,
    #[error("`[` has no matching `]`")]
    UnclosedClass,
    #[error("a range in a class `[…]` runs backwards")]
    BadClass,
    #[error("a class `[…]` cannot hold `/`")]
    SlashInClass,
    #[error("`{{` has no matching `}}`")]
    UnclosedBrace,
    #[error("`}}` has no matching `{{`")]
    UnopenedBrace,
    #[error("braces are nested more than 8 deep")]
    DeepBraces,
    #[error("the braces expand to more than 256 alternatives")]
    ManyAlternatives,
    #[error("a `\\` does not separate directories")]
    Backslash,
    #[error("a `\\` in a class `[…]` escapes nothing")]
    BackslashInClass,
    #[error("a class `[…]` cannot hold a combining character")]
    CombiningInClass,
    #[error("`..` makes no range in braces")]
    Range,
    #[error("a `!` at the start of a name negates nothing")]
    Negation,
    #[error("a `~` is not a home directory here")]
    Home,
    #[error("there are no drives")]
    Drive,
    #[error("`?(…)`, `*(…)`, `+(…)`, `@(…)` and `!(…)` are not known")]
    ExtendedGlob,
    #[error("a name begins or ends with a blank")]
    Blank,
    #[error("an alternative begins or ends with a blank")]
    BlankInBraces,
    #[error("a blank beside `*`, or behind an extension, does not separate patterns")]
    BlankBesideStar,
    #[error("parentheses round a name mean nothing")]
    Group,
    #[error("braces with a single alternative")]
    OneAlternative,
    #[error("this looks like a regular expression")]
    Regex,
    #[error("`|` does not separate alternatives")]
    Bar,
    #[error("variables are not expanded")]
    Variable,
    #[error("percent-encoding is not decoded")]
    Encoded,
    #[error("this looks like an address with a scheme")]
    Address,
    #[error("this looks like several patterns in one string")]
    List,
    #[error("the pattern has quotes of its own")]
    Quotes,
    #[error(
        "a pattern stands alone: an owner, an attribute, a mode, an option or the mark of a list beside it is no part of it"
    )]
    Annotation,
    #[error("`#` begins no comment within a string")]
    Comment,
    #[error("a placeholder stands for itself")]
    Placeholder,
    #[error("`...`, `…`, `+`, `-` and `#` stand for no directories")]
    NoWildcard,
    #[error("`{found}` (U+{:04X}) only looks like `{meant}`", u32::from(*found))]
    LookAlike { found: char, meant: char },
    #[error("`[:…:]` is not known")]
    PosixClass,
    #[error("`]` has no matching `[`")]
    UnopenedClass,
    #[error("the pattern contains control, bidirectional or zero-width characters")]
    Hidden,
    #[error("the pattern is longer than 1024 bytes")]
    TooLong,
    #[error("the pattern must be a single name, without `/` or `**`")]
    NotAName,
    #[error("no agent has such a name")]
    NotAnAgent,
}

#[derive(Debug, Clone)]
pub(super) enum Lexeme {
    Char(char),
    /// A character that was escaped, or in a class of its own.
    Literal(char),
    Star,
    DoubleStar,
    Question,
    Class(Class),
    Slash,
    Open,
    Comma,
    Close,
}

impl Lexeme {
    /// Returns the character, if it is not escaped.
    pub(super) fn bare(&self) -> Option<char> {
        match self {
            Self::Char(c) => Some(*c),
            _ => None,
        }
    }
}

/// Parses a path pattern into its alternatives, at least one.
///
/// # Errors
/// The problem; the caller knows the place.
pub(crate) fn parse(text: &str, comparison: Comparison) -> Result<Vec<Pattern>, PatternError> {
    if text.is_empty() {
        return Err(PatternError::Empty);
    }
    if text.len() > MAX_BYTES {
        return Err(PatternError::TooLong);
    }
    if has_hidden_characters(text) {
        return Err(PatternError::Hidden);
    }
    if text.contains("://") {
        return Err(PatternError::Address);
    }
    let lexemes = lex(text, comparison)?;
    misleading::braces(&lexemes)?;
    expand(&lexemes)?.into_iter().map(|flat| alternative(&flat, comparison)).collect()
}

/// Parses a pattern for names of agents.
///
/// # Errors
/// The problem; the caller knows the place.
pub(crate) fn parse_name(text: &str, comparison: Comparison) -> Result<Vec<Name>, PatternError> {
    let names: Vec<Name> = parse(text, comparison)?
        .into_iter()
        .map(|pattern| match pattern.segments.into_vec().pop() {
            Some(Segment::Name(name)) if !text.contains('/') => Ok(name),
            _ => Err(PatternError::NotAName),
        })
        .collect::<Result<_, _>>()?;
    // Agents seldom have a dot at the beginning or behind another sign.
    let is_sign = |before: &str| !before.ends_with(|c: char| c.is_ascii_alphanumeric());
    if text.match_indices(".*").any(|(at, _)| text.get(..at).is_some_and(is_sign)) {
        return Err(PatternError::Regex);
    }
    if !names.iter().flat_map(Name::texts).all(AgentName::is_part) {
        return Err(PatternError::NotAnAgent);
    }
    Ok(names)
}

impl Pattern {
    /// Parses the alternatives of `text`.
    ///
    /// # Errors
    /// The message says what is wrong with the pattern.
    pub fn alternatives(text: &str, comparison: Comparison) -> Result<Vec<Self>, String> {
        parse(text, comparison).map_err(PatternError::explained)
    }
}

fn lex(text: &str, comparison: Comparison) -> Result<Vec<Lexeme>, PatternError> {
    let mut lexemes = Vec::with_capacity(text.len());
    let mut depth = 0_usize;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        lexemes.push(match c {
            '*' if chars.next_if_eq(&'*').is_some() => Lexeme::DoubleStar,
            '*' => Lexeme::Star,
            '?' => Lexeme::Question,
            '/' => Lexeme::Slash,
            '[' => class(&mut chars, comparison)?,
            ']' => return Err(PatternError::UnopenedClass),
            '\\' => match chars.next() {
                Some(escaped @ ('[' | ']' | '{' | '}' | ',')) => Lexeme::Literal(escaped),
                // After a name it could be the separator of another system.
                Some(escaped @ ('*' | '?')) if !matches!(lexemes.last(), Some(Lexeme::Char(_))) => {
                    Lexeme::Literal(escaped)
                }
                _ => return Err(PatternError::Backslash),
            },
            '{' => {
                depth += 1;
                if depth > MAX_BRACES {
                    return Err(PatternError::DeepBraces);
                }
                Lexeme::Open
            }
            '}' => {
                depth = depth.checked_sub(1).ok_or(PatternError::UnopenedBrace)?;
                Lexeme::Close
            }
            ',' if depth > 0 => Lexeme::Comma,
            other => Lexeme::Char(other),
        });
    }
    if depth == 0 { Ok(lexemes) } else { Err(PatternError::UnclosedBrace) }
}

fn class(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    comparison: Comparison,
) -> Result<Lexeme, PatternError> {
    let mut ahead = chars.clone();
    // Letters have other cases and forms.
    if let (Some(alone), Some(']')) = (ahead.next(), ahead.next())
        && alone.is_ascii()
        && !(alone.is_ascii_alphabetic() || alone == '/')
    {
        *chars = ahead;
        return Ok(Lexeme::Literal(alone));
    }
    let negated = chars.next_if(|c| matches!(c, '!' | '^')).is_some();
    let mut ranges = Vec::new();
    loop {
        let first = match chars.next().ok_or(PatternError::UnclosedClass)? {
            ']' if !ranges.is_empty() => break,
            '/' => return Err(PatternError::SlashInClass),
            '[' if chars.peek() == Some(&':') => return Err(PatternError::PosixClass),
            c => c,
        };
        let mut ahead = chars.clone();
        let last = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(last)) if last != ']' => {
                *chars = ahead;
                last
            }
            (Some(found), Some(last)) if last != ']' && look_alike::is_dash(found) => {
                return Err(PatternError::LookAlike { found, meant: '-' });
            }
            _ => first,
        };
        if last == '/' {
            return Err(PatternError::SlashInClass);
        }
        if [first, last].contains(&'\\') {
            return Err(PatternError::BackslashInClass);
        }
        // The mark would be a character of its own, and the letter before it a different one.
        if is_combining_mark(first) || is_combining_mark(last) {
            return Err(PatternError::CombiningInClass);
        }
        if last < first {
            return Err(PatternError::BadClass);
        }
        ranges.push((first, last));
        // Names are folded: `µ` (U+B5) becomes `μ` (U+3BC).
        if comparison == Comparison::Folded
            && first == last
            && let Some(c) = single(fold(first.encode_utf8(&mut [0; 4])).chars())
            && c != first
        {
            ranges.push((c, c));
        }
    }
    Ok(Lexeme::Class(Class { negated, ranges, folded: comparison == Comparison::Folded }))
}

/// Expands the braces. The lexer bounds their nesting, and so this recursion.
fn expand(lexemes: &[Lexeme]) -> Result<Vec<Vec<Lexeme>>, PatternError> {
    let mut readings: Vec<Vec<Lexeme>> = vec![Vec::new()];
    let mut rest = lexemes.iter();
    while let Some(lexeme) = rest.next() {
        if !matches!(lexeme, Lexeme::Open) {
            readings.iter_mut().for_each(|reading| reading.push(lexeme.clone()));
            continue;
        }
        let mut branches = vec![Vec::new()];
        let mut depth = 0_usize;
        for inner in rest.by_ref() {
            match inner {
                Lexeme::Close if depth == 0 => break,
                Lexeme::Comma if depth == 0 => {
                    branches.push(Vec::new());
                    continue;
                }
                Lexeme::Open => depth += 1,
                Lexeme::Close => depth = depth.saturating_sub(1),
                _ => {}
            }
            if let Some(branch) = branches.last_mut() {
                branch.push(inner.clone());
            }
        }
        let mut choices = Vec::new();
        for branch in branches {
            choices.extend(expand(&branch)?);
        }
        if readings.len().saturating_mul(choices.len()) > MAX_ALTERNATIVES {
            return Err(PatternError::ManyAlternatives);
        }
        readings = readings
            .iter()
            .flat_map(|start| choices.iter().map(|end| [start.as_slice(), end].concat()))
            .collect();
    }
    Ok(readings)
}

fn alternative(lexemes: &[Lexeme], comparison: Comparison) -> Result<Pattern, PatternError> {
    if lexemes.is_empty() {
        return Err(PatternError::Empty);
    }
    if matches!(lexemes.first(), Some(Lexeme::Slash)) {
        return Err(PatternError::Absolute);
    }
    let mut segments = Vec::new();
    if matches!(lexemes, [Lexeme::Char('.')]) {
        return Ok(Pattern::new(segments));
    }
    misleading::reading(lexemes)?;
    for component in lexemes.split(|lexeme| matches!(lexeme, Lexeme::Slash)) {
        match component {
            [] => return Err(PatternError::EmptyComponent),
            [Lexeme::DoubleStar] => {
                if segments.last() != Some(&Segment::AnyDepth) {
                    segments.push(Segment::AnyDepth);
                }
            }
            [Lexeme::Char('.') | Lexeme::Literal('.')]
            | [
                Lexeme::Char('.') | Lexeme::Literal('.'),
                Lexeme::Char('.') | Lexeme::Literal('.'),
            ] => {
                return Err(PatternError::Dots);
            }
            _ => segments.push(Segment::Name(Name::of(tokens(component)?, comparison))),
        }
    }
    // An allowance for everything in a directory does not include the directory.
    if comparison == Comparison::Exact
        && segments.len() > 1
        && segments.last() == Some(&Segment::AnyDepth)
    {
        segments.insert(segments.len() - 1, Segment::Name(Name::Any));
    }
    Ok(Pattern::new(segments))
}

fn tokens(component: &[Lexeme]) -> Result<Vec<Token>, PatternError> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut text = String::new();
    for lexeme in component {
        let token = match lexeme {
            Lexeme::Char(c) | Lexeme::Literal(c) => {
                text.push(*c);
                continue;
            }
            Lexeme::Star => Token::Many,
            Lexeme::Question => Token::One,
            Lexeme::Class(class) => Token::Class(class.clone()),
            _ => return Err(PatternError::PartialDoubleStar),
        };
        if !text.is_empty() {
            tokens.push(Token::Text(std::mem::take(&mut text).into()));
        }
        if !(token == Token::Many && tokens.last() == Some(&Token::Many)) {
            tokens.push(token);
        }
    }
    if !text.is_empty() {
        tokens.push(Token::Text(text.into()));
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_could_be_read_two_ways() {
        for (text, error) in [
            ("", PatternError::Empty),
            ("{,a}", PatternError::Empty),
            ("/etc", PatternError::Absolute),
            ("src/", PatternError::EmptyComponent),
            ("a//b", PatternError::EmptyComponent),
            ("./a", PatternError::Dots),
            ("a/../b", PatternError::Dots),
            ("src**", PatternError::PartialDoubleStar),
            ("***", PatternError::PartialDoubleStar),
            ("[a", PatternError::UnclosedClass),
            ("[z-a]", PatternError::BadClass),
            ("[+/]", PatternError::SlashInClass),
            (r"id[\d].key", PatternError::BackslashInClass),
            (r"f[a\-z].txt", PatternError::BackslashInClass),
            (r"[!\]", PatternError::BackslashInClass),
            ("caf[e\u{301}]", PatternError::CombiningInClass),
            ("{a", PatternError::UnclosedBrace),
            ("a}", PatternError::UnopenedBrace),
            (&"{".repeat(9), PatternError::DeepBraces),
            (&"{a,b}".repeat(9), PatternError::ManyAlternatives),
            ("a\u{200b}", PatternError::Hidden),
            ("a]", PatternError::UnopenedClass),
            ("[[:alpha:]]", PatternError::PosixClass),
            (&"a".repeat(5000), PatternError::TooLong),
        ] {
            assert_eq!(parse(text, Comparison::Exact), Err(error), "{text}");
        }
        assert_eq!(parse_name("a/b", Comparison::Exact), Err(PatternError::NotAName));
        assert_eq!(parse_name("**", Comparison::Exact), Err(PatternError::NotAName));
        assert_eq!(parse_name("Claude Code", Comparison::Folded), Err(PatternError::NotAnAgent));
        assert_eq!(parse_name("a+b*", Comparison::Folded), Err(PatternError::NotAnAgent));
    }
}
