//! A pattern for one component of a path.

use std::str::Chars;

use unicode_normalization::UnicodeNormalization as _;

use crate::normalized::{fold, single};

/// Comparisons of a pattern with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Character by character, for allowances. `X/**` matches everything beneath the directory X.
    Exact,
    /// The folded form, for denials. `X/**` matches the directory X, too.
    Folded,
}

/// The form of one component. Frequent forms have variants of their own because one comparison
/// decides them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// `*`
    Any,
    /// No wildcard at all.
    Literal(Box<str>),
    /// `TEXT*`
    Prefix(Box<str>),
    /// `*TEXT`
    Suffix(Box<str>),
    /// `*TEXT*`
    Infix(Box<str>),
    /// Any other form.
    Tokens(Box<[Token]>),
}

/// A piece of a [`Name::Tokens`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// Literal characters.
    Text(Box<str>),
    /// `?`
    One,
    /// `*`
    Many,
    /// `[…]`
    Class(Class),
}

/// A set of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// True if it contains all characters except the ranges.
    pub negated: bool,
    /// First and last character of each range.
    pub ranges: Vec<(char, char)>,
    /// True if case is ignored.
    pub folded: bool,
}

/// The set of a text's bytes, by their lowest six bits, which quickly excludes nearly all texts
/// that do not contain another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ByteSet(u64);

impl ByteSet {
    pub(crate) const ALL: Self = Self(u64::MAX);
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn of(text: &str) -> Self {
        Self(text.bytes().fold(0, |set, byte| set | 1 << (byte & 63)))
    }

    /// True if all of the others are among these.
    pub(crate) fn hold(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Returns those that both have.
    pub(crate) fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Class {
    /// True if `c` is one of them.
    pub fn holds(&self, c: char) -> bool {
        let holds = |c: char| {
            self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != self.negated
        };
        let other_case = || {
            let cases = [single(c.to_uppercase()), single(c.to_lowercase())];
            cases.into_iter().flatten().any(holds)
        };
        // This applies to a negated class, too: a denial covers every name that the same pattern
        // allows.
        holds(c) || (self.folded && other_case())
    }
}

impl Name {
    /// Makes the most specific form of `tokens`, of which no two neighbours are both text or both
    /// `*`.
    pub(super) fn of(tokens: Vec<Token>, comparison: Comparison) -> Self {
        let spell = |text: &str| match comparison {
            Comparison::Exact => Box::from(text),
            Comparison::Folded => Box::from(&*fold(text)),
        };
        match tokens.as_slice() {
            [Token::Many] => Self::Any,
            [Token::Text(text)] => Self::Literal(spell(text)),
            [Token::Text(text), Token::Many] => Self::Prefix(spell(text)),
            [Token::Many, Token::Text(text)] => Self::Suffix(spell(text)),
            [Token::Many, Token::Text(text), Token::Many] => Self::Infix(spell(text)),
            _ => Self::Tokens(
                tokens
                    .into_iter()
                    .map(|token| match token {
                        Token::Text(text) => Token::Text(spell(&text)),
                        other => other,
                    })
                    .collect(),
            ),
        }
    }

    /// True if the name `text` has this form.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Literal(literal) => **literal == *text,
            Self::Prefix(prefix) => text.starts_with(&**prefix),
            Self::Suffix(suffix) => text.ends_with(&**suffix),
            Self::Infix(infix) => text.contains(&**infix),
            Self::Tokens(tokens) => matches_tokens(tokens, text, strip),
        }
    }

    /// True if a folded form matches the name `text`, which is not folded: its texts are compared
    /// folded, and a token for one character takes one of `text`.
    pub(crate) fn matches_unfolded(&self, text: &str) -> bool {
        let after = |rest: Chars<'_>, wanted: &str| {
            strip_folded(&rest, wanted).map(|rest| rest.as_str().len())
        };
        match self {
            // A mark after a text changes its last character when folded.
            Self::Prefix(prefix) => after(text.chars(), prefix).is_some(),
            Self::Suffix(suffix) => ends(text).any(|end| after(end, suffix) == Some(0)),
            Self::Infix(infix) => ends(text).any(|end| after(end, infix).is_some()),
            Self::Tokens(tokens) => matches_tokens(tokens, text, strip_folded),
            // The folded name decides.
            Self::Any | Self::Literal(_) => false,
        }
    }

    /// Returns the letters that every matching name has.
    pub(crate) fn letters(&self) -> ByteSet {
        match self {
            Self::Any => ByteSet::NONE,
            Self::Literal(text) | Self::Prefix(text) | Self::Suffix(text) | Self::Infix(text) => {
                ByteSet::of(text)
            }
            Self::Tokens(tokens) => tokens.iter().fold(ByteSet::NONE, |all, token| match token {
                Token::Text(text) => all.and(ByteSet::of(text)),
                _ => all,
            }),
        }
    }

    /// Returns the texts that every matching name has.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let (text, tokens): (Option<&str>, &[Token]) = match self {
            Self::Any => (None, &[]),
            Self::Literal(text) | Self::Prefix(text) | Self::Suffix(text) | Self::Infix(text) => {
                (Some(text), &[])
            }
            Self::Tokens(tokens) => (None, tokens),
        };
        text.into_iter().chain(tokens.iter().filter_map(|token| match token {
            Token::Text(text) => Some(&**text),
            _ => None,
        }))
    }

    /// Returns the one name that matches, if there is only one.
    pub fn literal(&self) -> Option<&str> {
        match self {
            Self::Literal(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the text that every matching name starts with, empty if there is none.
    pub fn literal_start(&self) -> &str {
        match self {
            Self::Prefix(text) | Self::Literal(text) => text,
            Self::Tokens(tokens) => match tokens.first() {
                Some(Token::Text(text)) => text,
                _ => "",
            },
            Self::Any | Self::Suffix(_) | Self::Infix(_) => "",
        }
    }

    /// Returns the text that every matching name ends with, empty if there is none.
    pub fn literal_end(&self) -> &str {
        match self {
            Self::Suffix(text) | Self::Literal(text) => text,
            Self::Tokens(tokens) => match tokens.last() {
                Some(Token::Text(text)) => text,
                _ => "",
            },
            Self::Any | Self::Prefix(_) | Self::Infix(_) => "",
        }
    }
}

/// Returns the suffixes of a text, from each of its characters on.
fn ends(text: &str) -> impl Iterator<Item = Chars<'_>> {
    std::iter::successors(Some(text.chars()), |end| {
        let mut next = end.clone();
        next.next().map(|_| next)
    })
}

/// Returns the characters after `start`, if the text begins with it.
fn strip<'t>(text: &Chars<'t>, start: &str) -> Option<Chars<'t>> {
    text.as_str().strip_prefix(start).map(str::chars)
}

/// Returns the characters after `start`, which is folded while the characters are not. A character
/// that is only partly in `start` is not divided.
fn strip_folded<'t>(text: &Chars<'t>, start: &str) -> Option<Chars<'t>> {
    let mut rest = text.clone();
    // A mark may be a character of its own in one of them and not in the other.
    let mut wanted = start.nfd().peekable();
    while wanted.peek().is_some() {
        let c = rest.next()?;
        let mut same = true;
        for part in fold(c.encode_utf8(&mut [0; 4])).nfd() {
            same &= wanted.next() == Some(part);
        }
        if !same {
            return None;
        }
    }
    Some(rest)
}

fn matches_tokens(
    tokens: &[Token],
    text: &str,
    strip: impl for<'t> Fn(&Chars<'t>, &str) -> Option<Chars<'t>>,
) -> bool {
    let mut pieces = tokens.iter();
    let mut rest = text.chars();
    let mut retry = None;
    loop {
        let matched = match pieces.next() {
            Some(Token::Many) => {
                if pieces.len() == 0 {
                    return true;
                }
                retry = Some((pieces.clone(), rest.clone()));
                true
            }
            Some(Token::Text(text)) => match strip(&rest, text) {
                Some(after) => {
                    rest = after;
                    true
                }
                None => false,
            },
            Some(Token::One) => rest.next().is_some(),
            Some(Token::Class(class)) => rest.next().is_some_and(|c| class.holds(c)),
            None if rest.as_str().is_empty() => return true,
            None => false,
        };
        if !matched {
            let Some((after, from)) = &mut retry else { return false };
            if from.next().is_none() {
                return false;
            }
            pieces = after.clone();
            rest = from.clone();
        }
    }
}
