//! Relations of two patterns, and examples of patterns. Decisions never depend on this module.
//!
//! [`covers`] and [`may_meet`] err on the safe side: the first is true only if that is certain, the
//! second false only if that is certain.

use crate::policy::parts::{Class, Name, Pattern, Segment, Token};

mod normalized;

/// The default name in place of a wildcard in an example.
const ANY: &str = "x";

/// True if `ours` certainly matches every path that `theirs` matches.
pub fn covers(ours: &Pattern, theirs: &Pattern) -> bool {
    segments_cover(ours.segments(), theirs.segments())
}

/// True if some path may match both, compared character by character; `false` is certain.
pub(super) fn may_meet(ours: &Pattern, theirs: &Pattern) -> bool {
    segments_may_meet(ours.segments(), theirs.segments(), names_may_meet)
}

/// True if some path may match `exact` character by character, and `denying`, which is folded, in
/// any of its forms; `false` is certain.
pub(super) fn may_be_denied(exact: &Pattern, denying: &Pattern) -> bool {
    segments_may_meet(exact.segments(), denying.segments(), normalized::may_be_denied)
}

/// True if some path may match both, each in any of its forms; `false` is certain.
pub(super) fn may_both_deny(ours: &Pattern, theirs: &Pattern) -> bool {
    segments_may_meet(ours.segments(), theirs.segments(), normalized::may_both_deny)
}

/// True if it begins with `**`.
pub(super) fn begins_at_any_depth(pattern: &Pattern) -> bool {
    pattern.segments().first() == Some(&Segment::AnyDepth)
}

/// Returns a path that it matches, or `None` if none was found. `any` stands in place of each
/// wildcard name.
pub(super) fn example(pattern: &Pattern, any: &str) -> Option<String> {
    let path = usual_path(pattern, any)?.concat();
    // The last `**` of `X/*/**` needs no name of its own.
    let shorter = path.split_last().map(|(_, rest)| rest.to_vec()).unwrap_or_default();
    let fits = |path: &[String]| pattern.matches(path.iter().map(String::as_str));
    let ends_open = pattern.segments().last() == Some(&Segment::AnyDepth);
    match (pattern.segments(), ends_open) {
        ([.., Segment::Name(Name::Any), Segment::AnyDepth], true) if fits(&shorter) => {
            Some(shorter.join("/"))
        }
        _ if fits(&path) => Some(path.join("/")),
        _ => None,
    }
}

/// Returns the minimum depth of a `**`: at the end it needs at least one name.
fn least_depth(pattern: &Pattern, index: usize) -> usize {
    usize::from(index + 1 == pattern.segments().len())
}

/// Returns the names for each segment in an example.
fn usual_path(pattern: &Pattern, any: &str) -> Option<Vec<Vec<String>>> {
    let names = |(index, segment): (usize, &Segment)| match segment {
        Segment::AnyDepth => Some(vec![any.to_owned(); least_depth(pattern, index)]),
        Segment::Name(name) => example_of_name(name, any).map(|name| vec![name]),
    };
    pattern.segments().iter().enumerate().map(names).collect()
}

/// Returns paths that it matches besides its [`example`]: for each of its wildcards some in which
/// that one stands for less, for more, or for one of `letters`. They distinguish it from most
/// patterns with the same example.
pub(super) fn variants(pattern: &Pattern, any: &str, letters: &[char]) -> Vec<String> {
    let usual = usual_path(pattern, any).unwrap_or_default();
    let mut variants = Vec::new();
    for (index, segment) in pattern.segments().iter().enumerate() {
        let others: Vec<_> = match segment {
            Segment::AnyDepth => (0..=3)
                .filter(|depth| *depth != least_depth(pattern, index))
                .map(|depth| vec![any.to_owned(); depth])
                .collect(),
            Segment::Name(name) => {
                variants_of_name(name, any, letters).into_iter().map(|name| vec![name]).collect()
            }
        };
        for other in &others {
            let here = |(at, names)| if at == index { other } else { names };
            let path: Vec<_> =
                usual.iter().enumerate().flat_map(here).map(String::as_str).collect();
            if pattern.matches(path.iter().copied()) {
                variants.push(path.join("/"));
            }
        }
    }
    variants
}

/// Returns the bounds of the ranges in its character classes.
pub(super) fn class_letters(pattern: &Pattern) -> impl Iterator<Item = char> {
    let classes = pattern.names().flat_map(|name| match name {
        Name::Tokens(tokens) => &**tokens,
        _ => &[],
    });
    classes
        .flat_map(|token| match token {
            Token::Class(class) => &*class.ranges,
            _ => &[],
        })
        .flat_map(|(first, last)| [*first, *last])
}

fn segments_cover(ours: &[Segment], theirs: &[Segment]) -> bool {
    // `*` with everything beneath it matches every path but the root.
    if let [Segment::Name(Name::Any), Segment::AnyDepth] = ours {
        return theirs.iter().any(|segment| matches!(segment, Segment::Name(_)));
    }
    match (ours.split_first(), theirs.split_first()) {
        (None, None) => true,
        (Some((Segment::AnyDepth, rest)), None) => segments_cover(rest, theirs),
        (Some((Segment::AnyDepth, rest)), Some((_, beneath))) => {
            rest.is_empty() || segments_cover(rest, theirs) || segments_cover(ours, beneath)
        }
        (Some((Segment::Name(our), rest)), Some((Segment::Name(their), beneath))) => {
            name_covers(our, their) && segments_cover(rest, beneath)
        }
        (Some((Segment::Name(_), _)), Some((Segment::AnyDepth, _)) | None) | (None, Some(_)) => {
            false
        }
    }
}

fn segments_may_meet(
    ours: &[Segment],
    theirs: &[Segment],
    names: fn(&Name, &Name) -> bool,
) -> bool {
    match (ours.split_first(), theirs.split_first()) {
        (None, None) => true,
        (Some((Segment::AnyDepth, rest)), _) => {
            rest.is_empty()
                || segments_may_meet(rest, theirs, names)
                || theirs
                    .split_first()
                    .is_some_and(|(_, beneath)| segments_may_meet(ours, beneath, names))
        }
        (_, Some((Segment::AnyDepth, rest))) => {
            rest.is_empty()
                || segments_may_meet(ours, rest, names)
                || ours
                    .split_first()
                    .is_some_and(|(_, beneath)| segments_may_meet(beneath, theirs, names))
        }
        (Some((Segment::Name(our), rest)), Some((Segment::Name(their), beneath))) => {
            names(our, their) && segments_may_meet(rest, beneath, names)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

fn name_covers(name: &Name, other: &Name) -> bool {
    match (name, other) {
        (Name::Any, _) => true,
        (_, Name::Literal(text)) => name.matches(text),
        (Name::Prefix(start), _) => other.literal_start().starts_with(&**start),
        (Name::Suffix(end), _) => other.literal_end().ends_with(&**end),
        // The text may begin with the second letter of a ligature, which is not divided.
        (Name::Infix(text), Name::Prefix(other) | Name::Suffix(other) | Name::Infix(other)) => {
            other.match_indices(&**text).any(|(at, _)| {
                let before = other.get(..at).and_then(|before| before.chars().next_back());
                !before.is_some_and(|c| matches!(c, 's' | 'f') || !c.is_ascii())
            })
        }
        (Name::Tokens(ours), Name::Tokens(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(our, their)| token_covers(our, their))
        }
        _ => name == other,
    }
}

fn names_may_meet(name: &Name, other: &Name) -> bool {
    match (name, other) {
        (Name::Literal(text), other) | (other, Name::Literal(text)) => other.matches(text),
        _ => {
            let (ours, theirs) = (name.literal_start(), other.literal_start());
            let (our_end, their_end) = (name.literal_end(), other.literal_end());
            (ours.starts_with(theirs) || theirs.starts_with(ours))
                && (our_end.ends_with(their_end) || their_end.ends_with(our_end))
        }
    }
}

fn example_of_name(name: &Name, any: &str) -> Option<String> {
    Some(match name {
        Name::Any => any.to_owned(),
        Name::Literal(text) => text.to_string(),
        Name::Prefix(text) => format!("{text}{ANY}"),
        Name::Suffix(text) => format!("{ANY}{text}"),
        Name::Infix(text) => format!("{ANY}{text}{ANY}"),
        Name::Tokens(tokens) => usual(tokens)?,
    })
}

/// Returns names that it matches besides its example, and perhaps some that it does not.
fn variants_of_name(name: &Name, any: &str, letters: &[char]) -> Vec<String> {
    let letters = || letters.iter().map(char::to_string);
    match name {
        Name::Literal(_) => Vec::new(),
        Name::Any => letters().chain([format!("{any}{any}")]).collect(),
        Name::Prefix(text) => {
            let rest = letters().chain([String::new(), format!("{ANY}{ANY}")]);
            rest.map(|rest| format!("{text}{rest}")).collect()
        }
        Name::Suffix(text) => {
            let start = letters().chain([String::new(), format!("{ANY}{ANY}")]);
            start.map(|start| format!("{start}{text}")).collect()
        }
        Name::Infix(text) => [("", ""), (ANY, ""), ("", ANY)]
            .map(|(start, end)| format!("{start}{text}{end}"))
            .into(),
        Name::Tokens(tokens) => {
            let mut variants = Vec::new();
            for (index, token) in tokens.iter().enumerate() {
                let others: Vec<_> = match token {
                    Token::Text(_) => continue,
                    Token::Many => vec![String::new(), format!("{ANY}{ANY}")],
                    Token::One | Token::Class(_) => letters().collect(),
                };
                let before = tokens.get(..index).unwrap_or_default();
                let after = tokens.get(index + 1..).unwrap_or_default();
                let Some((before, after)) = usual(before).zip(usual(after)) else { continue };
                variants.extend(others.iter().map(|other| format!("{before}{other}{after}")));
            }
            variants
        }
    }
}

/// Returns the text of the tokens in an example.
fn usual(tokens: &[Token]) -> Option<String> {
    let one = |token: &Token| match token {
        Token::Text(text) => Some(text.to_string()),
        Token::One | Token::Many => Some(ANY.to_owned()),
        Token::Class(class) => example_of_class(class).map(String::from),
    };
    tokens.iter().map(one).collect()
}

fn token_covers(token: &Token, other: &Token) -> bool {
    match (token, other) {
        (Token::Many, _) | (Token::One, Token::Class(_)) => true,
        (Token::Class(our), Token::Class(their)) => class_covers(our, their),
        _ => token == other,
    }
}

fn class_covers(class: &Class, other: &Class) -> bool {
    let (inner, outer) = if class.negated { (class, other) } else { (other, class) };
    let within = |(first, last): &(char, char)| {
        outer.ranges.iter().any(|(low, high)| low <= first && last <= high)
    };
    class.negated == other.negated
        && class.folded == other.folded
        && inner.ranges.iter().all(within)
}

fn example_of_class(class: &Class) -> Option<char> {
    let listed = class.ranges.iter().map(|(first, _)| *first);
    let common = ('a'..='z').chain('0'..='9').chain(['_', '-', '+']);
    listed.chain(common).find(|c| class.holds(*c))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{covers, example, may_meet};
    use crate::policy::parts::{Comparison, Pattern};

    fn one(text: &str) -> Pattern {
        Pattern::alternatives(text, Comparison::Exact).unwrap().remove(0)
    }

    #[test]
    fn certain_answers() {
        for (ours, theirs) in [
            ("**", "a/b"),
            ("src/**", "src/a/*.rs"),
            ("**/*.rs", "src/**/*.rs"),
            ("a*", "ab?"),
            ("?[a-z]*x", "?[b-cx]?x"),
            ("[!b]*", "[!a-c]*"),
            ("*a*", "ba*"),
            ("**/.git/**", "x/.git/hooks/*"),
        ] {
            assert!(covers(&one(ours), &one(theirs)), "{ours} covers {theirs}");
            assert!(!covers(&one(theirs), &one(ours)), "{theirs} does not cover {ours}");
            assert!(may_meet(&one(ours), &one(theirs)));
        }
        for (ours, theirs) in [("a/**", "b/**"), ("*.rs", "*.md"), ("a", "a/b"), ("a*", "b*c")] {
            assert!(!may_meet(&one(ours), &one(theirs)), "{ours} {theirs}");
        }
        assert_eq!(example(&one("src/**"), "x").unwrap(), "src/x");
        assert_eq!(example(&one("a/**/[!a]*.rs"), "x").unwrap(), "a/bx.rs");
        assert_eq!(example(&one("."), "x").unwrap(), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn what_is_certain_is_true(
            ours in "(a|b|\\*\\*|\\*|a\\*|\\*b|\\*a\\*|a\\?|\\?\\[ab\\]|\\[!b\\]\\*|\\[!a-b\\]a)(/(a|b|\\*\\*|\\*|ab\\*)){0,2}",
            theirs in "(a|b|\\*\\*|\\*|a\\*|\\*b|\\*a\\*|a\\?|\\?\\[a\\]|\\[!ab\\]\\*|\\[b\\]a)(/(a|b|\\*\\*|\\*|ab\\*)){0,2}",
            path in "[ab]{1,3}(/[ab]{1,3}){0,2}",
        ) {
            let (ours, theirs) = (one(&ours), one(&theirs));
            let hits = |pattern: &Pattern| pattern.matches(path.split('/'));
            prop_assert!(!(covers(&ours, &theirs) && hits(&theirs)) || hits(&ours));
            prop_assert!(may_meet(&ours, &theirs) || !(hits(&ours) && hits(&theirs)));
            if let Some(example) = example(&theirs, "x") {
                prop_assert!(theirs.matches(example.split('/').filter(|c| !c.is_empty())));
            }
        }
    }
}
