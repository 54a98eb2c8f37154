//! The allowlists of gitleaks files: findings of a rule that are not secrets.
//!
//! An agent that knows them can hide a secret behind them, so they count only where the policy says
//! so.

use super::expression::Expression;

/// One allowlist.
#[derive(Debug, Clone, Default)]
pub(super) struct Allowlist {
    /// True if all conditions must be met, instead of any.
    pub(super) all: bool,
    /// True if it names commits, which no content meets.
    pub(super) commits: bool,
    pub(super) paths: Vec<Expression>,
    pub(super) regexes: Vec<Expression>,
    pub(super) target: Target,
    /// Stop words in lower case.
    pub(super) stopwords: Vec<String>,
}

/// The text that [`Allowlist::regexes`] match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Target {
    #[default]
    Secret,
    Match,
    Line,
}

/// A possible finding, with the texts that an allowlist examines.
pub(super) struct Candidate<'a> {
    pub(super) path: &'a str,
    pub(super) secret: &'a [u8],
    pub(super) matched: &'a [u8],
    pub(super) line: &'a [u8],
}

impl Allowlist {
    /// Returns everything that affects the result, for comparisons.
    pub(super) fn meaning(&self) -> String {
        // Every field is named, so that none is forgotten when one is added.
        let Self { all, commits, paths, regexes, target, stopwords } = self;
        let texts = |expressions: &[Expression]| -> Vec<String> {
            expressions.iter().map(Expression::to_string).collect()
        };
        let (paths, regexes) = (texts(paths), texts(regexes));
        format!("{:?}", (all, commits, paths, regexes, target, stopwords))
    }

    /// True if the finding is not a secret.
    pub(super) fn allows(&self, found: &Candidate<'_>) -> bool {
        let target = match self.target {
            Target::Secret => found.secret,
            Target::Match => found.matched,
            Target::Line => found.line,
        };
        let secret = found.secret.to_ascii_lowercase();
        let holds = |word: &String| {
            !word.is_empty() && secret.windows(word.len()).any(|part| part == word.as_bytes())
        };
        let checks = [
            (self.commits, false),
            (!self.paths.is_empty(), any(&self.paths, found.path.as_bytes())),
            (!self.regexes.is_empty(), any(&self.regexes, target)),
            (!self.stopwords.is_empty(), self.stopwords.iter().any(holds)),
        ];
        let mut named =
            checks.iter().filter(|(named, _)| *named).map(|(_, matches)| *matches).peekable();
        if self.all {
            named.peek().is_some() && named.all(|matches| matches)
        } else {
            named.any(|matches| matches)
        }
    }
}

fn any(expressions: &[Expression], text: &[u8]) -> bool {
    expressions.iter().any(|expression| expression.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_or_all_of_what_is_named_must_be_met() {
        let regex = |text| vec![Expression::compile(text, false, &[]).unwrap()];
        let found = Candidate {
            path: "a/b.md",
            secret: b"FooExample",
            matched: b"k=FooExample",
            line: b"",
        };
        let mut list =
            Allowlist { paths: regex("md$"), regexes: regex("^k="), ..Allowlist::default() };
        assert!(list.allows(&found));
        list.all = true;
        assert!(!list.allows(&found));
        list.target = Target::Match;
        assert!(list.allows(&found));
        list.commits = true;
        assert!(!list.allows(&found));
        let words = Allowlist { stopwords: vec!["example".into()], ..Allowlist::default() };
        assert!(words.allows(&found));
        assert!(!Allowlist::default().allows(&found));
        assert!(!Allowlist { all: true, ..Allowlist::default() }.allows(&found));
    }
}
