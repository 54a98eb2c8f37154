//! Compiled expressions, and the range of a match around a keyword.

use std::{cell::RefCell, collections::BTreeSet, fmt, ops::Range, sync::OnceLock};

use regex_automata::{
    Input, Span,
    meta::{self, Regex},
    util::{captures::Captures, syntax},
};
use regex_syntax::hir::{Capture, Class, Hir, HirKind};

use super::{
    extent::{ends_lazily, has_groups_in_a_row, value_follows_group},
    search::{LazyAutomata, Search, TimeExceeded, weight},
};

/// Maximum size of a compiled expression in bytes: `(a{1000}){1000}` is refused.
const MAX_COMPILED: usize = 10 << 20;
/// Maximum number of consecutive matches that begin within each other and are refused, or find
/// nothing more. It bounds the time: each may be as long as the text.
const MAX_ENCLOSED: usize = 64;
/// Maximum number of texts that are distinguished in the search for keywords.
const MAX_FORMS: usize = 512;

/// An expression over bytes.
#[derive(Debug, Clone)]
pub(super) struct Expression {
    hir: Hir,
    /// Compiled at its first use if it is known to be valid: compiling takes much longer than
    /// parsing, and most rules are never used.
    regex: OnceLock<Option<Regex>>,
    slow: OnceLock<Option<LazyAutomata>>,
    /// Its estimated number of states.
    weight: usize,
    /// The maximum distance in bytes from the end of a keyword to the end of a match with it;
    /// `None` if a match needs no keyword or has no maximum length.
    pub(super) reach: Option<usize>,
}

/// One match.
#[derive(Debug, Clone, Copy)]
pub(super) struct Match {
    /// The range of the complete match.
    pub(super) whole: Span,
    /// The range of the requested group, else of the first group that took part, else of the match.
    pub(super) secret: Span,
}

impl Expression {
    /// Parses `pattern`, and compiles it at its first use. With `multi_line`, `^` and `$` match at
    /// line ends (LF and CRLF). `keywords` are in lower case.
    ///
    /// # Errors
    /// A short description of the problem.
    pub(super) fn parse(
        pattern: &str,
        multi_line: bool,
        keywords: &[String],
    ) -> Result<Self, String> {
        let syntax = syntax::Config::new().unicode(false).utf8(false);
        let syntax = syntax.multi_line(multi_line).crlf(multi_line);
        let hir = syntax::parse_with(pattern, &syntax).map_err(|error| reason(&error))?;
        let needs_keyword = !keywords.is_empty() && PartLiterals::of(&hir, keywords).found;
        let reach = hir.properties().maximum_len().filter(|_| needs_keyword);
        let weight = weight(&hir);
        Ok(Self { hir, regex: OnceLock::new(), slow: OnceLock::new(), weight, reach })
    }

    /// Parses and compiles a pattern that is not built into the program.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and if it would be too large.
    pub(super) fn compile(
        pattern: &str,
        multi_line: bool,
        keywords: &[String],
    ) -> Result<Self, String> {
        let mut expression = Self::parse(pattern, multi_line, keywords)?;
        expression.regex = OnceLock::from(Some(build(&expression.hir)?));
        Ok(expression)
    }

    /// Returns its estimated number of states.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// True if it matches only the empty text.
    pub(super) fn is_empty(&self) -> bool {
        self.hir.properties().maximum_len() == Some(0)
    }

    /// True if the secret of a match, which is its `group` as in [`matches`](Self::matches), ends
    /// as early as possible.
    pub(super) fn ends_lazily(&self, group: Option<usize>) -> bool {
        ends_lazily(&self.hir, group)
    }

    /// True if a match can have several groups in a row.
    pub(super) fn has_groups_in_a_row(&self) -> bool {
        has_groups_in_a_row(&self.hir)
    }

    /// True if the first group of a match is less than what follows it.
    pub(super) fn leaves_value(&self) -> bool {
        value_follows_group(&self.hir, None)
    }

    /// Returns the number of groups, including the complete match.
    pub(super) fn groups(&self) -> usize {
        self.hir.properties().explicit_captures_len() + 1
    }

    /// Returns the maximum entropy in bits per byte of a secret, which is the `group` of a match as
    /// in [`matches`](Self::matches). It depends on the number of bytes, and of different bytes,
    /// that the expression permits there.
    pub(super) fn max_entropy(&self, group: Option<usize>) -> f64 {
        let properties = self.hir.properties();
        let mut groups = Vec::new();
        collect_groups(&self.hir, &mut groups);
        groups.retain(|capture| group.is_none_or(|group| capture.index as usize == group));
        let always = properties.static_explicit_captures_len()
            == Some(properties.explicit_captures_len())
            && groups.iter().any(|group| group.sub.properties().minimum_len() > Some(0));
        let mut parts: Vec<&Hir> = groups.iter().map(|group| &*group.sub).collect();
        if !always {
            // In this case the complete match is the secret.
            parts.push(&self.hir);
        }
        parts.into_iter().map(max_entropy).fold(0.0, f64::max)
    }

    /// True if `text` contains a match.
    pub(super) fn is_match(&self, text: &[u8]) -> bool {
        self.regex().is_none_or(|regex| regex.is_match(text))
    }

    /// Returns `None` if it cannot be compiled, and then everything matches. The built-in rules are
    /// compiled by the program's tests.
    fn regex(&self) -> Option<&Regex> {
        self.regex.get_or_init(|| build(&self.hir).ok()).as_ref()
    }

    /// Returns the matches in `range` of `text` that `is_secret` accepts; after an error there are
    /// no more. `overdue` is called before each match but the first, and during searches that take
    /// long.
    ///
    /// Matches may overlap: one delimiter can end a match and begin the next, and what a match takes
    /// for its secret can be the beginning of another one, such as the next line's key after an
    /// empty assignment.
    pub(super) fn matches<'r>(
        &'r self,
        text: &'r [u8],
        range: Range<usize>,
        group: Option<usize>,
        is_secret: impl Fn(&Match) -> bool + 'r,
        overdue: &'r dyn Fn() -> bool,
    ) -> impl Iterator<Item = Result<Match, TimeExceeded>> + 'r {
        let regex = self.regex();
        let mut walk = regex.map(|regex| {
            let (hir, weight, slow) = (&self.hir, self.weight, &self.slow);
            let search = Search { regex, hir, weight, slow, caches: RefCell::default(), overdue };
            let captures = (self.groups() > 1 && group != Some(0)).then(|| regex.create_captures());
            Walk { search, text, range: range.clone(), group, captures, begun: false }
        });
        // Without an expression everything is a secret.
        let all = Span::from(range);
        let mut everything = regex.is_none().then_some(Match { whole: all, secret: all });
        // The secret of the match before, if accepted or not.
        let (mut last, mut in_a_row) = (Span { start: 0, end: 0 }, 0);
        std::iter::from_fn(move || {
            if let Some(all) = everything.take() {
                return is_secret(&all).then_some(Ok(all));
            }
            loop {
                let found = match walk.as_mut()?.next()? {
                    Ok(found) => found,
                    Err(TimeExceeded) => {
                        walk = None;
                        return Some(Err(TimeExceeded));
                    }
                };
                let Match { whole, secret } = found;
                let within = whole.start < last.end;
                // The end of a match is not a secret of its own.
                let part = within && last.start <= secret.start && secret.end <= last.end;
                let accepted = !part && is_secret(&found);
                in_a_row = if within && !accepted { in_a_row + 1 } else { 0 };
                if !part {
                    last = secret;
                }
                // A match that begins with its secret could be found again one byte later.
                let skips = in_a_row >= MAX_ENCLOSED || accepted && secret.start == whole.start;
                let next = if skips { secret.end } else { secret.start };
                walk.as_mut()?.range.start = next.max(whole.start + 1);
                if accepted {
                    return Some(Ok(found));
                }
            }
        })
    }
}

/// An iteration over matches.
struct Walk<'r> {
    search: Search<'r>,
    text: &'r [u8],
    /// The range in which the next match is searched.
    range: Range<usize>,
    group: Option<usize>,
    /// The groups; `None` if the complete match is the secret.
    captures: Option<Captures>,
    begun: bool,
}

impl Walk<'_> {
    fn next(&mut self) -> Option<Result<Match, TimeExceeded>> {
        if self.range.start > self.range.end {
            return None;
        }
        if self.begun && (self.search.overdue)() {
            return Some(Err(TimeExceeded));
        }
        self.begun = true;
        self.find().transpose()
    }

    fn find(&mut self) -> Result<Option<Match>, TimeExceeded> {
        let input = Input::new(self.text).range(self.range.clone());
        let Some(found) = self.search.find(&input)? else { return Ok(None) };
        let whole = found.span();
        let Some(captures) = &mut self.captures else {
            return Ok(Some(Match { whole, secret: whole }));
        };
        self.search.groups(self.text, whole, captures)?;
        let secret = match self.group {
            Some(group) => captures.get_group(group),
            None => (1..captures.group_len())
                .filter_map(|group| captures.get_group(group))
                .find(|span| !span.is_empty()),
        };
        Ok(Some(Match { whole, secret: secret.unwrap_or(whole) }))
    }
}

/// Formats an equivalent expression, which is equal for all expressions that are parsed alike.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hir.fmt(f)
    }
}

fn collect_groups<'h>(hir: &'h Hir, groups: &mut Vec<&'h Capture>) {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => {}
        HirKind::Repetition(repetition) => collect_groups(&repetition.sub, groups),
        HirKind::Capture(capture) => {
            groups.push(capture);
            collect_groups(&capture.sub, groups);
        }
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().for_each(|part| collect_groups(part, groups));
        }
    }
}

/// Returns the maximum entropy in bits per byte of a text that matches `hir`.
fn max_entropy(hir: &Hir) -> f64 {
    let mut bytes = BTreeSet::new();
    collect_bytes(hir, &mut bytes);
    let length = hir.properties().maximum_len().unwrap_or(usize::MAX);
    let different = u32::try_from(bytes.len().min(length)).unwrap_or(u32::MAX);
    f64::from(different.max(1)).log2()
}

fn collect_bytes(hir: &Hir, bytes: &mut BTreeSet<u8>) {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(literal) => bytes.extend(&literal.0),
        HirKind::Class(Class::Bytes(class)) => {
            bytes.extend(class.ranges().iter().flat_map(|range| range.start()..=range.end()));
        }
        HirKind::Class(Class::Unicode(_)) => bytes.extend(0..=u8::MAX),
        HirKind::Repetition(repetition) => collect_bytes(&repetition.sub, bytes),
        HirKind::Capture(capture) => collect_bytes(&capture.sub, bytes),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().for_each(|part| collect_bytes(part, bytes));
        }
    }
}

fn build(hir: &Hir) -> Result<Regex, String> {
    let config = meta::Config::new().utf8_empty(false).nfa_size_limit(Some(MAX_COMPILED));
    let built = Regex::builder().configure(config).build_from_hir(hir);
    built.map_err(|error| match error.size_limit() {
        Some(limit) => {
            format!("compiled, it would be larger than {} MiB; repeat less", limit >> 20)
        }
        None => error.to_string(),
    })
}

fn reason(error: &regex_syntax::Error) -> String {
    match error {
        regex_syntax::Error::Parse(error) => {
            format!("{}, at character {}", error.kind(), error.span().start.column)
        }
        regex_syntax::Error::Translate(error) => {
            format!("{}, at character {}", error.kind(), error.span().start.column)
        }
        error => error.to_string(),
    }
}

/// True if every match of `pattern` contains one of `keywords`, in any ASCII case. False if that
/// cannot be determined, or if the expression is invalid.
pub fn every_match_has_keyword(pattern: &str, keywords: &[&str]) -> bool {
    let keywords: Vec<_> = keywords.iter().map(|keyword| keyword.to_ascii_lowercase()).collect();
    let syntax = syntax::Config::new().unicode(false).utf8(false);
    syntax::parse_with(pattern, &syntax).is_ok_and(|hir| PartLiterals::of(&hir, &keywords).found)
}

/// The texts of a part of an expression that are relevant for keywords.
struct PartLiterals {
    /// All texts that it matches, in lower case; `None` if there are too many.
    all: Option<Vec<Vec<u8>>>,
    /// True if every match contains a keyword.
    found: bool,
}

impl PartLiterals {
    fn of(hir: &Hir, keywords: &[String]) -> Self {
        let exactly = |all: Vec<Vec<u8>>| {
            let found = !all.is_empty() && all.iter().all(|text| holds(text, keywords));
            Self { all: Some(all), found }
        };
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => exactly(vec![Vec::new()]),
            HirKind::Literal(literal) => exactly(vec![literal.0.to_ascii_lowercase()]),
            HirKind::Class(Class::Bytes(class)) => {
                let mut bytes: Vec<u8> = class
                    .ranges()
                    .iter()
                    .flat_map(|range| range.start()..=range.end())
                    .map(|byte| byte.to_ascii_lowercase())
                    .collect();
                bytes.sort_unstable();
                bytes.dedup();
                // Larger classes contribute nothing to a keyword.
                if bytes.len() > 4 {
                    return Self { all: None, found: false };
                }
                exactly(bytes.into_iter().map(|byte| vec![byte]).collect())
            }
            HirKind::Class(Class::Unicode(_)) => Self { all: None, found: false },
            HirKind::Repetition(repetition) => {
                let one = Self::of(&repetition.sub, keywords);
                match (repetition.min, repetition.max, one.all) {
                    (0, Some(1), Some(mut all)) => {
                        all.push(Vec::new());
                        exactly(all)
                    }
                    (1, Some(1), Some(all)) => exactly(all),
                    (least, _, _) => Self { all: None, found: one.found && least > 0 },
                }
            }
            HirKind::Capture(capture) => Self::of(&capture.sub, keywords),
            HirKind::Alternation(branches) => {
                let branches: Vec<_> =
                    branches.iter().map(|branch| Self::of(branch, keywords)).collect();
                let found = branches.iter().all(|branch| branch.found);
                let all: Option<Vec<_>> = branches.into_iter().map(|branch| branch.all).collect();
                let all = all.map(|all| all.concat()).filter(|all| all.len() <= MAX_FORMS);
                Self { all, found }
            }
            HirKind::Concat(parts) => Self::in_a_row(parts, keywords),
        }
    }

    fn in_a_row(parts: &[Hir], keywords: &[String]) -> Self {
        let mut found = false;
        let mut all = Some(());
        // The texts that the parts since the last unclear one match together.
        let mut run = vec![Vec::new()];
        for part in parts {
            let part = Self::of(part, keywords);
            found |= part.found;
            let longer = part.all.filter(|texts| run.len() * texts.len() <= MAX_FORMS);
            match longer {
                Some(texts) => {
                    run = run
                        .iter()
                        .flat_map(|start| texts.iter().map(|end| [&**start, &**end].concat()))
                        .collect();
                }
                None => {
                    all = None;
                    run = vec![Vec::new()];
                }
            }
            found |= !run.is_empty() && run.iter().all(|text| holds(text, keywords));
        }
        Self { all: all.map(|()| run), found }
    }
}

fn holds(text: &[u8], keywords: &[String]) -> bool {
    keywords.iter().any(|keyword| {
        !keyword.is_empty() && text.windows(keyword.len()).any(|part| part == keyword.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(pattern: &str, keywords: &[&str]) -> Option<usize> {
        let keywords: Vec<_> = keywords.iter().map(ToString::to_string).collect();
        Expression::compile(pattern, false, &keywords).unwrap().reach
    }

    #[test]
    fn a_match_with_a_keyword_and_an_end_is_within_reach() {
        assert_eq!(reach(r"\bAKIA[A-Z]{4}\b", &["akia"]), Some(8));
        assert_eq!(reach(r"(?i)key.{0,5}=([a-z]{3})", &["key"]), Some(12));
        assert_eq!(
            reach(r"(?:sk|rk)_(?:test|live)_\w{3}", &["sk_test", "sk_live", "rk_"]),
            Some(11)
        );
        // A way to match has no keyword, no keyword is part of it, or matches have no maximum
        // length.
        assert_eq!(reach(r"(?:sk|rk)_(?:test|live)_", &["sk_test", "rk_"]), None);
        assert_eq!(reach(r"[a-z]{8}", &["abc"]), None);
        assert_eq!(reach(r"(?:abc)?x", &["abc"]), None);
        assert_eq!(reach(r"AKIA[A-Z]+", &["akia"]), None);
        assert_eq!(reach(r"AKIA", &[]), None);
    }

    #[test]
    fn says_what_is_wrong() {
        let wrong = |pattern| Expression::compile(pattern, false, &[]).unwrap_err();
        insta::assert_snapshot!(wrong("a(b"), @"unclosed group, at character 2");
        insta::assert_snapshot!(wrong("(?:a{1000}){1000}{100}"), @"compiled, it would be larger than 10 MiB; repeat less");
        insta::assert_snapshot!(wrong(r"\p{Greek}"), @"Unicode not allowed here, at character 1");
    }

    #[test]
    fn entropy_is_bounded_by_length_and_alphabet_of_the_secret() {
        let most =
            |pattern, group| Expression::compile(pattern, false, &[]).unwrap().max_entropy(group);
        for (pattern, group, bits) in [
            ("[0-9a-f]{32}", None, 4.0),
            ("key_[0-9a-f]{32}", None, 19_f64.log2()),
            ("key_([0-9a-f]{32})", None, 4.0),
            ("key_([0-9a-f]{32})", Some(0), 19_f64.log2()),
            ("[a-z]{8}", None, 3.0),
            (".*", None, 255_f64.log2()),
            // If the group takes no part, the complete match is the secret.
            ("abcdefgh(?:(ij))?", None, 10_f64.log2()),
            ("(?i)k(a)|(b)", Some(1), 2_f64.log2()),
        ] {
            assert!(
                (most(pattern, group) - bits).abs() < 1e-9,
                "{pattern}: {}",
                most(pattern, group)
            );
        }
    }

    #[test]
    fn a_group_is_what_is_secret() {
        let expression = Expression::compile("k=(a)?(b+)", false, &[]).unwrap();
        let text = b"k=bb k=abbb";
        let secrets = |group| -> Vec<_> {
            let found = expression.matches(text, 0..text.len(), group, |_| true, &|| false);
            found.map(|found| found.unwrap().secret.range()).collect()
        };
        assert_eq!(secrets(None), [2..4, 7..8]);
        assert_eq!(secrets(Some(2)), [2..4, 8..11]);
        assert_eq!(secrets(Some(0)), [0..4, 5..11]);
    }

    #[test]
    fn what_a_match_takes_for_its_secret_can_begin_another_one() {
        let expression = Expression::compile(r"k\s*=\s*(\S+)", false, &[]).unwrap();
        for (text, secrets) in [
            ("k =\nk = bb", &["k", "bb"][..]),
            ("k = k = k =bb", &["k", "k", "bb"]),
            ("k=k=bb k=c", &["k=bb", "c"]),
        ] {
            let bytes = text.as_bytes();
            let found = expression.matches(bytes, 0..text.len(), None, |_| true, &|| false);
            let found: Vec<_> = found.map(|found| &bytes[found.unwrap().secret.range()]).collect();
            let secrets: Vec<_> = secrets.iter().map(|secret| secret.as_bytes()).collect();
            assert_eq!(found, secrets, "{text}");
        }
    }
}
