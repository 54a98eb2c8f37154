//! Checks that an expression determines the secret in a match, and its end.
//!
//! Otherwise a rule finds its samples and still discloses secrets.

use regex_automata::util::syntax;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// True if a match can have two groups in a row, of which the first would be the secret: in
/// `(KEY|TOKEN)=(\w+)` the label.
pub(super) fn has_groups_in_a_row(hir: &Hir) -> bool {
    groups_in_a_row(hir) > 1
}

fn groups_in_a_row(hir: &Hir) -> usize {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => 0,
        HirKind::Repetition(repetition) => groups_in_a_row(&repetition.sub),
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
            let has = |wanted: u8| match class {
                Class::Bytes(class) => {
                    class.iter().any(|range| (range.start()..=range.end()).contains(&wanted))
                }
                Class::Unicode(class) => {
                    let wanted = char::from(wanted);
                    class.iter().any(|range| (range.start()..=range.end()).contains(&wanted))
                }
            };
            let mut words =
                (0..=127_u8).filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
            repetition.max.is_none() && words.all(has)
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
        for pattern in ["a", "(a)", "(a)|b(c)", "((a)(b))", "(?:(a)|(b))c"] {
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
