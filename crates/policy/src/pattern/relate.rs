//! How two patterns relate, and what a pattern matches: for tools that reason
//! about policies. Decisions never depend on anything here.
//!
//! [`Pattern::covers`] and [`Pattern::may_meet`] err on the safe side: the
//! first says yes only when it is certain, the second no only when it is.

use super::{
    Name, Pattern, Segment,
    name::{Class, Token},
};

/// The name that stands in an example where any would do.
const ANY: &str = "x";

impl Pattern {
    /// Whether it certainly matches whatever `other` matches.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        covers(&self.segments, &other.segments)
    }

    /// Whether some path may match both; `false` is certain.
    pub(crate) fn may_meet(&self, other: &Self) -> bool {
        may_meet(&self.segments, &other.segments)
    }

    /// Whether it begins with `**`.
    pub(crate) fn begins_at_any_depth(&self) -> bool {
        self.segments.first() == Some(&Segment::AnyDepth)
    }

    /// A path that it matches, `None` when none was found. `any` stands where
    /// any name would do.
    pub(crate) fn example(&self, any: &str) -> Option<String> {
        let path = self.usual(any)?.concat();
        // In `X/*/**` the last `**` needs nothing more.
        let shorter = path.split_last().map(|(_, rest)| rest.to_vec()).unwrap_or_default();
        let fits = |path: &[String]| self.matches(path.iter().map(String::as_str));
        let ends_open = self.segments.last() == Some(&Segment::AnyDepth);
        match (&*self.segments, ends_open) {
            ([.., Segment::Name(Name::Any), Segment::AnyDepth], true) if fits(&shorter) => {
                Some(shorter.join("/"))
            }
            _ if fits(&path) => Some(path.join("/")),
            _ => None,
        }
    }

    /// How deep a `**` goes at least: something must lie beneath what ends in it.
    fn least_depth(&self, index: usize) -> usize {
        usize::from(index + 1 == self.segments.len())
    }

    /// The names that stand for each segment in an example.
    fn usual(&self, any: &str) -> Option<Vec<Vec<String>>> {
        let names = |(index, segment): (usize, &Segment)| match segment {
            Segment::AnyDepth => Some(vec![any.to_owned(); self.least_depth(index)]),
            Segment::Name(name) => name.example(any).map(|name| vec![name]),
        };
        self.segments.iter().enumerate().map(names).collect()
    }

    /// Paths that it matches besides its [`example`](Self::example): for each of its
    /// wildcards some in which that one stands for less, for more, or for one of
    /// `letters`. They tell it from most patterns with the same example.
    pub(crate) fn variants(&self, any: &str, letters: &[char]) -> Vec<String> {
        let usual = self.usual(any).unwrap_or_default();
        let mut variants = Vec::new();
        for (index, segment) in self.segments.iter().enumerate() {
            let others: Vec<_> = match segment {
                Segment::AnyDepth => (0..=3)
                    .filter(|depth| *depth != self.least_depth(index))
                    .map(|depth| vec![any.to_owned(); depth])
                    .collect(),
                Segment::Name(name) => {
                    name.variants(any, letters).into_iter().map(|name| vec![name]).collect()
                }
            };
            for other in &others {
                let here = |(at, names)| if at == index { other } else { names };
                let path: Vec<_> =
                    usual.iter().enumerate().flat_map(here).map(String::as_str).collect();
                if self.matches(path.iter().copied()) {
                    variants.push(path.join("/"));
                }
            }
        }
        variants
    }

    /// Characters at which its classes begin and end.
    pub(crate) fn class_letters(&self) -> impl Iterator<Item = char> {
        let classes = self.names().flat_map(|name| match name {
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
}

fn covers(ours: &[Segment], theirs: &[Segment]) -> bool {
    // `*` and all that is beneath it is everything but the root.
    if let [Segment::Name(Name::Any), Segment::AnyDepth] = ours {
        return theirs.iter().any(|segment| matches!(segment, Segment::Name(_)));
    }
    match (ours.split_first(), theirs.split_first()) {
        (None, None) => true,
        (Some((Segment::AnyDepth, rest)), None) => covers(rest, theirs),
        (Some((Segment::AnyDepth, rest)), Some((_, beneath))) => {
            rest.is_empty() || covers(rest, theirs) || covers(ours, beneath)
        }
        (Some((Segment::Name(our), rest)), Some((Segment::Name(their), beneath))) => {
            our.covers(their) && covers(rest, beneath)
        }
        (Some((Segment::Name(_), _)), Some((Segment::AnyDepth, _)) | None) | (None, Some(_)) => {
            false
        }
    }
}

fn may_meet(ours: &[Segment], theirs: &[Segment]) -> bool {
    match (ours.split_first(), theirs.split_first()) {
        (None, None) => true,
        (Some((Segment::AnyDepth, rest)), _) => {
            rest.is_empty()
                || may_meet(rest, theirs)
                || theirs.split_first().is_some_and(|(_, beneath)| may_meet(ours, beneath))
        }
        (_, Some((Segment::AnyDepth, _))) => may_meet(theirs, ours),
        (Some((Segment::Name(our), rest)), Some((Segment::Name(their), beneath))) => {
            our.may_meet(their) && may_meet(rest, beneath)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

impl Name {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Literal(text)) => self.matches(text),
            (Self::Prefix(start), _) => other.literal_start().starts_with(&**start),
            (Self::Suffix(end), _) => other.literal_end().ends_with(&**end),
            (Self::Infix(text), Self::Prefix(other) | Self::Suffix(other) | Self::Infix(other)) => {
                other.contains(&**text)
            }
            (Self::Tokens(ours), Self::Tokens(theirs)) => {
                ours.len() == theirs.len()
                    && ours.iter().zip(theirs).all(|(our, their)| our.covers(their))
            }
            _ => self == other,
        }
    }

    fn may_meet(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Literal(text), other) | (other, Self::Literal(text)) => other.matches(text),
            _ => {
                let (ours, theirs) = (self.literal_start(), other.literal_start());
                let (our_end, their_end) = (self.literal_end(), other.literal_end());
                (ours.starts_with(theirs) || theirs.starts_with(ours))
                    && (our_end.ends_with(their_end) || their_end.ends_with(our_end))
            }
        }
    }

    fn example(&self, any: &str) -> Option<String> {
        Some(match self {
            Self::Any => any.to_owned(),
            Self::Literal(text) => text.to_string(),
            Self::Prefix(text) => format!("{text}{ANY}"),
            Self::Suffix(text) => format!("{ANY}{text}"),
            Self::Infix(text) => format!("{ANY}{text}{ANY}"),
            Self::Tokens(tokens) => usual(tokens)?,
        })
    }
}

impl Name {
    /// Names that it matches besides its example, and perhaps some that it does not.
    fn variants(&self, any: &str, letters: &[char]) -> Vec<String> {
        let letters = || letters.iter().map(char::to_string);
        match self {
            Self::Literal(_) => Vec::new(),
            Self::Any => letters().chain([format!("{any}{any}")]).collect(),
            Self::Prefix(text) => {
                let rest = letters().chain([String::new(), format!("{ANY}{ANY}")]);
                rest.map(|rest| format!("{text}{rest}")).collect()
            }
            Self::Suffix(text) => {
                let start = letters().chain([String::new(), format!("{ANY}{ANY}")]);
                start.map(|start| format!("{start}{text}")).collect()
            }
            Self::Infix(text) => [("", ""), (ANY, ""), ("", ANY)]
                .map(|(start, end)| format!("{start}{text}{end}"))
                .into(),
            Self::Tokens(tokens) => {
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
}

/// What tokens stand for in an example.
fn usual(tokens: &[Token]) -> Option<String> {
    let one = |token: &Token| match token {
        Token::Text(text) => Some(text.to_string()),
        Token::One | Token::Many => Some(ANY.to_owned()),
        Token::Class(class) => class.example().map(String::from),
    };
    tokens.iter().map(one).collect()
}

impl Token {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Many, _) | (Self::One, Self::Class(_)) => true,
            (Self::Class(our), Self::Class(their)) => our.covers(their),
            _ => self == other,
        }
    }
}

impl Class {
    fn covers(&self, other: &Self) -> bool {
        let (inner, outer) = if self.negated { (self, other) } else { (other, self) };
        let within = |(first, last): &(char, char)| {
            outer.ranges.iter().any(|(low, high)| low <= first && last <= high)
        };
        self.negated == other.negated
            && self.folded == other.folded
            && inner.ranges.iter().all(within)
    }

    fn example(&self) -> Option<char> {
        let listed = self.ranges.iter().map(|(first, _)| *first);
        let common = ('a'..='z').chain('0'..='9').chain(['_', '-', '+']);
        listed.chain(common).find(|c| self.holds(*c))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Mode, parse};

    fn one(text: &str) -> super::Pattern {
        parse(text, Mode::Exact).unwrap().remove(0)
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
            assert!(one(ours).covers(&one(theirs)), "{ours} covers {theirs}");
            assert!(!one(theirs).covers(&one(ours)), "{theirs} does not cover {ours}");
            assert!(one(ours).may_meet(&one(theirs)));
        }
        for (ours, theirs) in [("a/**", "b/**"), ("*.rs", "*.md"), ("a", "a/b"), ("a*", "b*c")] {
            assert!(!one(ours).may_meet(&one(theirs)), "{ours} {theirs}");
        }
        assert_eq!(one("src/**").example("x").unwrap(), "src/x");
        assert_eq!(one("a/**/[!a]*.rs").example("x").unwrap(), "a/bx.rs");
        assert_eq!(one(".").example("x").unwrap(), "");
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
            let hits = |pattern: &super::Pattern| pattern.matches(path.split('/'));
            prop_assert!(!(ours.covers(&theirs) && hits(&theirs)) || hits(&ours));
            prop_assert!(ours.may_meet(&theirs) || !(hits(&ours) && hits(&theirs)));
            if let Some(example) = theirs.example("x") {
                prop_assert!(theirs.matches(example.split('/').filter(|c| !c.is_empty())));
            }
        }
    }
}
