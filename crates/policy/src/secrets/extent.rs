//! Checks that an expression determines the secret in a match, and its end.
//!
//! Otherwise a rule finds its samples and still discloses secrets.

use regex_automata::util::syntax;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// True if a match can have two groups in a row, of which the first would be the secret, or one
/// group several times, of which the last would be: in `(KEY|TOKEN)=(\w+)` the label, in
/// `A(-[0-9]{4}){3}` the last digits.
pub(super) fn has_groups_in_a_row(hir: &Hir) -> bool {
    groups_in_a_row(hir) > 1
}

fn groups_in_a_row(hir: &Hir) -> usize {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => 0,
        HirKind::Repetition(repetition) => {
            let is_repeated = repetition.max.is_none_or(|most| most > 1);
            groups_in_a_row(&repetition.sub) * if is_repeated { 2 } else { 1 }
        }
        // Nested groups belong to the outer one.
        HirKind::Capture(_) => 1,
        HirKind::Concat(parts) => parts.iter().map(groups_in_a_row).sum(),
        HirKind::Alternation(parts) => parts.iter().map(groups_in_a_row).max().unwrap_or(0),
    }
}

/// True if nothing mandatory follows a lazy repetition of the secret, so that the secret ends as
/// early as possible: `key=(\w+?)` finds one character.
pub(super) fn ends_lazily(hir: &Hir, group: Option<usize>) -> bool {
    let whole = group == Some(0) || hir.properties().explicit_captures_len() == 0;
    end(hir, group, whole) == End::Lazy
}

#[derive(PartialEq, Eq)]
enum End {
    Lazy,
    /// The part may match nothing, so the part before it may be the end.
    Open,
    Fixed,
}

fn end(hir: &Hir, group: Option<usize>, secret: bool) -> End {
    match hir.kind() {
        HirKind::Empty => End::Open,
        HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => End::Fixed,
        HirKind::Repetition(repetition) => {
            let lazy = !repetition.greedy && repetition.max != Some(repetition.min);
            match end(&repetition.sub, group, secret) {
                End::Lazy => End::Lazy,
                _ if lazy && secret => End::Lazy,
                _ if repetition.min == 0 => End::Open,
                end => end,
            }
        }
        HirKind::Capture(capture) => {
            let asked = group.is_none_or(|group| group == capture.index as usize);
            end(&capture.sub, group, secret || asked)
        }
        HirKind::Concat(parts) => {
            let mut ends = parts.iter().rev().map(|part| end(part, group, secret));
            ends.find(|end| *end != End::Open).unwrap_or(End::Open)
        }
        HirKind::Alternation(parts) => {
            let ends: Vec<_> = parts.iter().map(|part| end(part, group, secret)).collect();
            [End::Lazy, End::Open].into_iter().find(|end| ends.contains(end)).unwrap_or(End::Fixed)
        }
    }
}

/// True if every match of `pattern` begins at a `\b` or an equivalent, and so never after a letter,
/// a digit or `_`. False if the expression is invalid.
pub fn begins_at_word_boundary(pattern: &str) -> bool {
    parse(pattern).is_some_and(|hir| is_bounded(&hir, Side::Begin))
}

/// True if every match of `pattern` ends at a `\b` or an equivalent, and so never before a letter,
/// a digit or `_` outside of it. False if the expression is invalid.
pub fn ends_at_word_boundary(pattern: &str) -> bool {
    parse(pattern).is_some_and(|hir| is_bounded(&hir, Side::End))
}

/// True if a secret, which is the `group` of a match as in a rule, is one of a few words, or shorter
/// than what follows it in the match and varies: of `(token|key)=\S+` and `(A3T[A-Z0-9])[A-Z0-9]{16}`
/// the beginning is redacted, and the value is not. False if the expression is invalid.
pub fn leaves_value(pattern: &str, group: Option<usize>) -> bool {
    parse(pattern).is_some_and(|hir| value_follows_group(&hir, group))
}

/// Does the same for a parsed expression.
pub(super) fn value_follows_group(hir: &Hir, group: Option<usize>) -> bool {
    value_follows(hir, group, &mut Before::Other)
}

/// The content of a match before a part of it.
#[derive(Clone, Copy)]
enum Before {
    Other,
    /// A group of a few words.
    Words,
    /// A group of at most so many bytes.
    Text(usize),
}

/// True if a value follows a group that is less than it.
fn value_follows(hir: &Hir, group: Option<usize>, before: &mut Before) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => false,
        HirKind::Repetition(repetition) => {
            let is_more = match before {
                Before::Other => false,
                Before::Words => repetition.max.is_none_or(|most| most > MAX_CHOICES),
                Before::Text(most) => hir.properties().minimum_len() > Some(*most),
            };
            (is_more && is_value(&repetition.sub)) || value_follows(&repetition.sub, group, before)
        }
        HirKind::Capture(capture) if group.is_none_or(|asked| asked == capture.index as usize) => {
            let most = capture.sub.properties().maximum_len();
            *before = if is_of_words(&capture.sub) {
                Before::Words
            } else {
                most.map_or(Before::Other, Before::Text)
            };
            false
        }
        HirKind::Capture(capture) => value_follows(&capture.sub, group, before),
        HirKind::Concat(parts) => parts.iter().any(|part| value_follows(part, group, before)),
        HirKind::Alternation(parts) => {
            let outside = *before;
            parts.iter().any(|part| {
                let mut own = outside;
                let found = value_follows(part, group, &mut own);
                if !matches!(own, Before::Other) {
                    *before = own;
                }
                found
            })
        }
    }
}

/// Maximum of choices for a character of a word, such as its cases, and of its repetitions.
const MAX_CHOICES: u32 = 4;

/// True if it matches a few words alone.
fn is_of_words(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) => true,
        HirKind::Class(class) => choices(class, |_| true) <= MAX_CHOICES,
        HirKind::Repetition(repetition) => {
            repetition.max == Some(1) && is_of_words(&repetition.sub)
        }
        HirKind::Capture(capture) => is_of_words(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(is_of_words),
    }
}

/// True if it matches letters or digits of many kinds.
fn is_value(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Class(class) => choices(class, |byte| byte.is_ascii_alphanumeric()) > MAX_CHOICES,
        HirKind::Repetition(repetition) => is_value(&repetition.sub),
        HirKind::Capture(capture) => is_value(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(is_value),
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) => false,
    }
}

/// Counts the bytes of a class that are `wanted`.
fn choices(class: &Class, wanted: impl Fn(u8) -> bool) -> u32 {
    (0..=u8::MAX).map(|byte| u32::from(wanted(byte) && has(class, byte))).sum()
}

/// True if a class has the byte, or the character of its number.
fn has(class: &Class, wanted: u8) -> bool {
    match class {
        Class::Bytes(class) => {
            class.iter().any(|range| (range.start()..=range.end()).contains(&wanted))
        }
        Class::Unicode(class) => {
            let wanted = char::from(wanted);
            class.iter().any(|range| (range.start()..=range.end()).contains(&wanted))
        }
    }
}

fn parse(pattern: &str) -> Option<Hir> {
    let syntax = syntax::Config::new().unicode(false).utf8(false);
    syntax::parse_with(pattern, &syntax).ok()
}

/// The sides of a match.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Begin,
    End,
}

fn is_bounded(hir: &Hir, side: Side) -> bool {
    match hir.kind() {
        HirKind::Look(look) => match side {
            Side::Begin => {
                matches!(look, Look::WordAscii | Look::WordStartAscii | Look::WordStartHalfAscii)
            }
            Side::End => {
                matches!(look, Look::WordAscii | Look::WordEndAscii | Look::WordEndHalfAscii)
            }
        },
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => false,
        HirKind::Repetition(repetition) => repetition.min > 0 && is_bounded(&repetition.sub, side),
        HirKind::Capture(capture) => is_bounded(&capture.sub, side),
        HirKind::Concat(parts) => {
            let mut parts: Vec<_> = parts.iter().collect();
            if side == Side::End {
                parts.reverse();
            }
            let is_point = |part: &&&Hir| part.properties().maximum_len() == Some(0);
            let points = parts.iter().take_while(is_point).count();
            let takes_words = parts.get(points).is_some_and(|part| takes_words(part));
            !takes_words && parts.iter().take(points + 1).any(|part| is_bounded(part, side))
        }
        HirKind::Alternation(parts) => parts.iter().all(|part| is_bounded(part, side)),
    }
}

/// True if it takes all consecutive letters, digits and `_`, so that a boundary beside it is always
/// met.
fn takes_words(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Capture(capture) => takes_words(&capture.sub),
        HirKind::Repetition(repetition) => {
            let HirKind::Class(class) = repetition.sub.kind() else { return false };
            let mut words =
                (0..=127_u8).filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
            repetition.max.is_none() && words.all(|byte| has(class, byte))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hir(pattern: &str) -> Hir {
        regex_syntax::parse(pattern).unwrap()
    }

    #[test]
    fn groups_beside_each_other_are_told_from_alternatives() {
        for pattern in ["(a)(b)", "(KEY|TOKEN)=([a-z]+)", "(?:(a)|b)(c)", "(a)?(b)"] {
            assert!(has_groups_in_a_row(&hir(pattern)), "{pattern}");
        }
        for pattern in ["(a)+", "(a){3}", "a(-b){0,2}", "(?:(a)|b)*"] {
            assert!(has_groups_in_a_row(&hir(pattern)), "{pattern}");
        }
        for pattern in ["a", "(a)", "(a)|b(c)", "((a)(b))", "(?:(a)|(b))c", "(a)?", "(?:a)+(b)"] {
            assert!(!has_groups_in_a_row(&hir(pattern)), "{pattern}");
        }
    }

    #[test]
    fn a_beginning_at_a_word_boundary_is_told_from_one_elsewhere() {
        for pattern in
            [r"\bAKIA", r"(?i)(\bkey|\btoken)=", r"^*\b(x)", r"\b{start-half}x", r"(?:\bx)+"]
        {
            assert!(begins_at_word_boundary(pattern), "{pattern}");
        }
        for pattern in [r"AKIA\b", r"(?:\b|_)AKIA", r"\BAKIA", r"(?:\b)?x", r"^AKIA", r"=\bx", "("]
        {
            assert!(!begins_at_word_boundary(pattern), "{pattern}");
        }
    }

    #[test]
    fn an_end_at_a_word_boundary_is_told_from_one_elsewhere() {
        for pattern in [
            r"AKIA[A-Z]{16}\b",
            r"(?i)(key\b|token\b)",
            r"(x)\b$*",
            r"x\b{end-half}",
            r"(?:x\b)+",
            r"tok_[0-9A-Za-z]{20,}\b",
            r"tok_\w{20,40}\b",
        ] {
            assert!(ends_at_word_boundary(pattern), "{pattern}");
        }
        for pattern in
            [r"\bAKIA", r"AKIA(?:\b|_)", r"AKIA\B", r"x(?:\b)?", r"x\b=", r"tok_\w{20,}\b", "("]
        {
            assert!(!ends_at_word_boundary(pattern), "{pattern}");
        }
    }

    #[test]
    fn a_group_of_words_before_a_value_is_told_from_one_of_the_value() {
        for pattern in [
            r"(token|key)=\S+",
            "(?i)(api[_-]?key)=[0-9a-z]{16}",
            r"(sk_live_)\w+",
            "(token)=.+",
            r"(?:(key): \S+|x)",
            "(A3T[A-Z0-9]|AKIA|ASIA)[A-Z0-9]{16}",
        ] {
            assert!(leaves_value(pattern, None), "{pattern}");
        }
        for pattern in [
            r"(?:token|key)=(\S+)",
            r"((?:token|key)=\S+)",
            r"token=\S+",
            r"\w+:(hunter2)\s*",
            "[^a-z](hunter2|letmein)[^a-z]",
            "(token|key)=x",
            "([0-9a-z]{32})[0-9a-z]{0,9}",
            "(",
        ] {
            assert!(!leaves_value(pattern, None), "{pattern}");
        }
        assert!(!leaves_value(r"(token)=(\S+)", Some(2)));
        assert!(leaves_value(r"(token)=(\S+)", Some(1)));
        assert!(!leaves_value(r"(token)=\S+", Some(0)));
    }

    #[test]
    fn a_lazy_end_is_told_from_one_that_something_bounds() {
        for pattern in
            ["[a-z]+?", "k=([a-z]+?)", "k=([a-z]*?)", "k=([a-z]{3,9}?);?", "(?:x|k=([a-z]+?))"]
        {
            assert!(ends_lazily(&hir(pattern), None), "{pattern}");
        }
        for pattern in [
            "[a-z]+",
            "k=([a-z]+?);",
            r"k=([a-z]+?)\b",
            "k=([a-z]+?)$",
            "k.*?=([a-z]+)",
            "k=([a-z]+)x*?",
            "k=([a-z]{3}?)",
        ] {
            assert!(!ends_lazily(&hir(pattern), None), "{pattern}");
        }
        assert!(ends_lazily(&hir("(a)(b+?)"), Some(2)));
        assert!(!ends_lazily(&hir("(a)(b+?)"), Some(1)));
        assert!(ends_lazily(&hir("(a)b+?"), Some(0)));
    }
}
