//! Path patterns: the language of `paths`, `allowedPaths` and `secrets.names`, parsed once and
//! matched without exponential backtracking.
//!
//! The language is that of common globs: `*` and `?` within a component, `**` as an entire
//! component for any number of them, `[a-z]`, `[!a-z]`, `{a,b}`, a class of one character to take
//! it literally, and `.` alone for the workspace root. Patterns are relative to the workspace root;
//! unanchored forms do not exist. The time to match is at most proportional to pattern length times
//! path length.

mod advice;
pub(super) mod look_alike;
mod misleading;
mod name;
mod parse;

pub(super) use name::ByteSet;
pub use name::{Class, Comparison, Name, Token};
pub(super) use parse::{PatternError, parse, parse_name};

/// One alternative of a pattern (braces are expanded while parsing).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    segments: Box<[Segment]>,
    /// The letters of its name, if it has only one.
    letters: ByteSet,
}

/// One component of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// `**`: any number of components, including none.
    AnyDepth,
    /// Exactly one component.
    Name(Name),
}

/// A component of a path that is matched against patterns.
pub trait Component: Copy {
    /// True if it has the form `name`.
    fn is(self, name: &Name) -> bool;
}

impl Component for &str {
    fn is(self, name: &Name) -> bool {
        name.matches(self)
    }
}

/// The dependence of a match on the path's last component, if those before it are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dependence<'p> {
    /// No dependence.
    None,
    /// The match differs only for components of this form.
    Name(&'p Name),
    /// Unknown.
    Unknown,
}

impl Pattern {
    /// Returns how a match of `directory/name` depends on `name`, where the directory has `depth`
    /// components.
    pub(super) fn dependence_on_name(&self, depth: usize) -> Dependence<'_> {
        use Segment as S;
        match &*self.segments {
            [S::AnyDepth]
            | [S::AnyDepth, S::Name(Name::Any)]
            | [S::AnyDepth, S::Name(_), S::Name(Name::Any), S::AnyDepth] => {
                return Dependence::None;
            }
            [S::AnyDepth, S::Name(name)] | [S::AnyDepth, S::Name(name), S::AnyDepth] => {
                return Dependence::Name(name);
            }
            _ => {}
        }
        let names = match &*self.segments {
            [names @ .., S::AnyDepth] => names,
            names => names,
        };
        if names.contains(&S::AnyDepth) {
            return Dependence::Unknown;
        }
        match names.get(depth) {
            // One segment stands for `name`, and none follows. Longer patterns match no such path,
            // and shorter ones are handled above.
            Some(S::Name(name)) if names.len() == depth + 1 && *name != Name::Any => {
                Dependence::Name(name)
            }
            _ => Dependence::None,
        }
    }

    fn new(segments: Vec<Segment>) -> Self {
        let pattern = Self { segments: segments.into(), letters: ByteSet::NONE };
        let mut names = pattern.names();
        let letters = match (names.next(), names.next()) {
            (Some(name), None) => name.letters(),
            _ => ByteSet::NONE,
        };
        drop(names);
        Self { letters, ..pattern }
    }

    /// Returns the letters that every name has on which the pattern depends.
    pub(super) fn letters(&self) -> ByteSet {
        self.letters
    }

    /// Extends the pattern to any depth; the root, which has no depth, stays the same.
    pub fn at_any_depth(self) -> Self {
        if matches!(self.segments.first(), None | Some(Segment::AnyDepth)) {
            return self;
        }
        let mut segments = vec![Segment::AnyDepth];
        segments.extend(self.segments);
        Self::new(segments)
    }

    /// Extends the pattern to everything beneath its matches. For folded patterns only: in one that
    /// allows, a last `**` stands for at least one component.
    pub fn and_beneath(self) -> Self {
        if self.segments.last() == Some(&Segment::AnyDepth) {
            return self;
        }
        let mut segments = self.segments.into_vec();
        segments.push(Segment::AnyDepth);
        Self::new(segments)
    }

    /// Returns the segments.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the components that are not `**`.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::AnyDepth => None,
            Segment::Name(name) => Some(name),
        })
    }

    /// Returns the name of a pattern `**/NAME`, which the last component alone decides.
    pub(super) fn last_name_only(&self) -> Option<&Name> {
        match &*self.segments {
            [Segment::AnyDepth, Segment::Name(name)] => Some(name),
            _ => None,
        }
    }

    /// True if the pattern may match something beneath the directory made of `components`; `false`
    /// is certain.
    pub(super) fn reaches_beneath<'c>(&self, components: impl Iterator<Item = &'c str>) -> bool {
        let mut segments = self.segments.iter();
        for component in components {
            match segments.next() {
                // After a `**` anything may follow.
                Some(Segment::AnyDepth) => return true,
                Some(Segment::Name(name)) if name.matches(component) => {}
                Some(Segment::Name(_)) | None => return false,
            }
        }
        segments.next().is_some()
    }

    /// True if the pattern names something beneath the directory made of `components`, and would
    /// not name the same beneath any other directory, as one does that begins with `**`.
    pub(super) fn names_beneath<'c>(
        &self,
        components: impl Iterator<Item = &'c str> + Clone,
    ) -> bool {
        let is_name = |segment: &Segment| matches!(segment, Segment::Name(_));
        (1..self.segments.len()).any(|length| {
            let (above, beneath) = self.segments.split_at(length);
            above.iter().any(is_name)
                && beneath.iter().any(is_name)
                && matches(above, components.clone())
        })
    }

    /// True if the pattern matches the path made of `components`.
    pub fn matches<C: Component>(&self, components: impl Iterator<Item = C> + Clone) -> bool {
        matches(&self.segments, components)
    }
}

/// True if the path made of `components` has the form of `segments`.
fn matches<C: Component>(
    segments: &[Segment],
    components: impl Iterator<Item = C> + Clone,
) -> bool {
    // This is the classic wildcard algorithm: after a mismatch it returns to the last `**`,
    // which takes one more component. Earlier `**` need no second try.
    let mut segments = segments.iter();
    let mut rest = components;
    let mut retry = None;
    loop {
        match segments.next() {
            Some(Segment::AnyDepth) => {
                if segments.len() == 0 {
                    return true;
                }
                retry = Some((segments.clone(), rest.clone()));
                continue;
            }
            Some(Segment::Name(name)) => match rest.next() {
                Some(component) if component.is(name) => continue,
                Some(_) => {}
                // A path that is too short stays too short after any retry.
                None => return false,
            },
            None if rest.next().is_none() => return true,
            None => {}
        }
        let Some((after, from)) = &mut retry else { return false };
        if from.next().is_none() {
            return false;
        }
        segments = after.clone();
        rest = from.clone();
    }
}

#[cfg(test)]
mod tests {
    use globset::GlobBuilder;
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, comparison: Comparison, path: &str) -> bool {
        parse(pattern, comparison)
            .unwrap()
            .iter()
            .any(|p| p.matches(path.split('/').filter(|c| !c.is_empty())))
    }

    #[test]
    fn matches_what_the_reference_says() {
        for (pattern, yes, no) in [
            ("**", vec!["", "a", "a/b"], vec![]),
            ("*", vec!["a", ".a"], vec!["", "a/b"]),
            ("src/**", vec!["src/a", "src/a/b"], vec!["src", "srcs/a", "a/src/b"]),
            ("src{,/**}", vec!["src", "src/a"], vec!["srcs"]),
            ("**/a", vec!["a", "x/a", "x/y/a"], vec!["a/b", "xa"]),
            ("a/**/b", vec!["a/b", "a/x/b", "a/x/y/b"], vec!["a", "ab", "b"]),
            ("docs/**/*.md", vec!["docs/a.md", "docs/x/.md"], vec!["docs/a.mdx", "a.md"]),
            ("a?c", vec!["abc", "aéc"], vec!["ac", "a/c", "abbc"]),
            ("a[!b]c", vec!["axc", "aéc"], vec!["abc", "a/c"]),
            ("[a-cé]", vec!["a", "c", "é"], vec!["d", "A"]),
            ("{a,b{c,d}}/e", vec!["a/e", "bc/e", "bd/e"], vec!["b/e"]),
            (".", vec![""], vec!["a", "."]),
            ("\\*\\{", vec!["*{"], vec!["a{"]),
            ("a*b*c", vec!["abc", "aXbXc", "abbbcc"], vec!["ab", "acb"]),
        ] {
            for path in yes {
                assert!(matches(pattern, Comparison::Exact, path), "{pattern} {path}");
            }
            for path in no {
                assert!(!matches(pattern, Comparison::Exact, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn a_denial_of_everything_in_a_directory_is_one_of_the_directory() {
        assert!(matches("src/**", Comparison::Folded, "src"));
        assert!(matches("**/.git/**", Comparison::Folded, "a/.git"));
        assert!(matches("[A-Z].PEM", Comparison::Folded, "q.pem"));
        assert!(!matches("[!A].pem", Comparison::Folded, "a.pem"));
    }

    proptest! {
        /// Every directory above a match is reached.
        #[test]
        fn reaches_every_directory_above_what_it_matches(
            pattern in "(a|b|\\*\\*|\\*|a\\*)(/(a|b|\\*\\*|\\*|a\\*)){0,3}",
            path in prop::collection::vec("[ab]{1,2}", 1..5),
        ) {
            for parsed in parse(&pattern, Comparison::Exact).unwrap() {
                if parsed.matches(path.iter().map(String::as_str)) {
                    for depth in 0..path.len() {
                        let above = path.iter().take(depth).map(String::as_str);
                        prop_assert!(parsed.reaches_beneath(above), "{} {:?}", pattern, path);
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// `globset` is an independent implementation of the same language.
        #[test]
        fn agrees_with_globset(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "a", "b", ".", "*", "?", "[ab]", "[!a]", "{a,b}", "{,a}", "{a,*b}", "/", "/**/", "/**", "**/",
            ]), 1..8),
            path in "[ab.][ab./]{0,9}",
        ) {
            let pattern = pieces.concat();
            let path: Vec<_> = path.split('/').filter(|c| !matches!(*c, "" | "." | "..")).collect();
            let path = path.join("/");
            // To globset the root is a component without characters.
            prop_assume!(!path.is_empty());
            if let Ok(parsed) = parse(&pattern, Comparison::Exact) {
                let glob = GlobBuilder::new(&pattern)
                    .literal_separator(true).empty_alternates(true).build().unwrap();
                // globset lets `[!a]` match a separator.
                let ours = parsed.iter().any(|p| p.matches(path.split('/').filter(|c| !c.is_empty())));
                let theirs = glob.compile_matcher().is_match(&path);
                if pattern.contains("[!") {
                    prop_assert!(!ours || theirs, "{} {}", pattern, path);
                } else {
                    prop_assert_eq!(ours, theirs, "{} {}", pattern, path);
                }
            }
        }
    }
}
