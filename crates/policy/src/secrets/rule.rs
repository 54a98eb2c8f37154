//! One rule: the form of one kind of secret.

use std::ops::Range;

use super::{
    allowlist::{Allowlist, Candidate},
    consequence::{OnRead, OnWrite},
    expression::{Expression, Match},
    invisible::{self, Invisible, may_have, runs},
    search::TimeExceeded,
};
use crate::SourceLocation;

/// A rule, compiled.
#[derive(Debug)]
pub(crate) struct SecretRule {
    pub(super) id: String,
    pub(super) description: Option<String>,
    pub(super) location: SourceLocation,
    /// True if its findings are recorded and never denied or redacted.
    pub(super) warn_only: bool,
    /// The settings of a rule that finds invisible text and has no expression.
    pub(super) invisible: Option<Invisible>,
    /// `None` if a file of a [`path`](Self::path) is a secret as a whole.
    pub(super) expression: Option<Expression>,
    /// The expression for paths of files to which it applies.
    pub(super) path: Option<Expression>,
    /// Keywords in lower case. Content without any of them has no match.
    pub(super) keywords: Vec<String>,
    /// Minimum entropy in bits per byte, exclusive, of a secret.
    pub(super) entropy: Option<f64>,
    pub(super) group: Option<usize>,
    /// True if the complete match is denied or redacted, although entropy and allowlists are about
    /// the group.
    pub(super) hides_match: bool,
    pub(super) allowlists: Vec<Allowlist>,
    /// True if a comment `gitleaks:allow` in the line of a match hides it.
    pub(super) allow_comments: bool,
}

/// The comment by which gitleaks ignores a line.
const ALLOW_COMMENT: &[u8] = b"gitleaks:allow";

impl SecretRule {
    /// Makes the rule for `[files.invisible]` of one file of a policy.
    pub(crate) fn invisible(invisible: Invisible, location: SourceLocation) -> Self {
        Self {
            id: invisible::ID.to_owned(),
            description: None,
            location,
            warn_only: false,
            invisible: Some(invisible),
            expression: None,
            path: None,
            keywords: Vec::new(),
            entropy: None,
            group: None,
            hides_match: false,
            allowlists: Vec::new(),
            allow_comments: false,
        }
    }

    /// Returns the consequences of its findings, where `stated` is those of secrets.
    pub(super) fn consequences(&self, stated: (OnRead, OnWrite)) -> (OnRead, OnWrite) {
        match &self.invisible {
            Some(invisible) => (invisible.on_read, invisible.on_write()),
            None if self.warn_only => (OnRead::Warn, OnWrite::Warn),
            None => stated,
        }
    }

    /// Describes its findings.
    pub(super) fn noun(&self) -> &'static str {
        if self.invisible.is_some() { "text that a person does not see" } else { "a secret" }
    }

    /// Returns the estimated number of states of its expressions, which determines the memory and
    /// the time of compilation.
    pub(crate) fn weight(&self) -> usize {
        let expressions = self.expression.iter().chain(&self.path);
        expressions.map(Expression::weight).fold(1, usize::saturating_add)
    }

    /// Returns the ID in decisions.
    pub(super) fn decision_id(&self) -> String {
        match self.invisible {
            Some(_) => self.id.clone(),
            None => format!("secrets.rules.{}", self.id),
        }
    }

    /// Returns everything that affects its findings, for comparisons: two rules with equal values
    /// find the same, and may differ in whether they only warn.
    pub(super) fn meaning(&self) -> String {
        // Every field is named, so that none is forgotten when one is added.
        let Self {
            id: _,
            description: _,
            location: _,
            warn_only: _,
            invisible,
            expression,
            path,
            keywords,
            entropy,
            group,
            hides_match,
            allowlists,
            allow_comments,
        } = self;
        let text = |expression: &Option<Expression>| expression.as_ref().map(Expression::to_string);
        let allowlists: Vec<_> = allowlists.iter().map(Allowlist::meaning).collect();
        let (expression, path) = (text(expression), text(path));
        let found = (expression, path, keywords, entropy, group, hides_match);
        format!("{:?}", (invisible, found, allowlists, allow_comments))
    }

    /// True if it applies to a file of this path.
    pub(super) fn applies(&self, path: &str) -> bool {
        self.path.as_ref().is_none_or(|expression| expression.is_match(path.as_bytes()))
            && self.invisible.as_ref().is_none_or(|invisible| invisible.applies(path))
    }

    /// True if its findings depend on the path.
    pub(super) fn depends_on_path(&self) -> bool {
        self.invisible.is_some()
            || self.path.is_some()
            || self.allowlists.iter().any(|list| !list.paths.is_empty())
    }

    /// True if it certainly finds the same in a file of either path.
    pub(super) fn is_same_for(&self, one: &str, other: &str) -> bool {
        match &self.invisible {
            Some(invisible) => invisible.applies(one) == invisible.applies(other),
            None => !self.depends_on_path(),
        }
    }

    /// Returns the runs of invisible text in `text`, if the rule is about that.
    pub(super) fn unseen(
        &self,
        path: &str,
        text: &[u8],
        overdue: &dyn Fn() -> bool,
    ) -> Result<Vec<Range<usize>>, TimeExceeded> {
        // Most texts have none, which is checked faster than the path.
        let is_about = self.invisible.is_some() && may_have(text) && self.applies(path);
        if is_about { runs(text, overdue) } else { Ok(Vec::new()) }
    }

    /// Returns the secrets in `range` of `text`; after an error there are no more.
    pub(super) fn secrets<'r>(
        &'r self,
        path: &'r str,
        text: &'r [u8],
        range: Range<usize>,
        overdue: &'r dyn Fn() -> bool,
    ) -> impl Iterator<Item = Result<Range<usize>, TimeExceeded>> + 'r {
        let whole = (self.expression.is_none() && !text.is_empty()).then_some(Ok(0..text.len()));
        let is_secret = move |found: &Match| self.is_secret(path, text, found);
        let matches = self
            .expression
            .iter()
            .flat_map(move |expression| {
                expression.matches(text, range.clone(), self.group, is_secret, overdue)
            })
            .map(|found| {
                let extent = |it: Match| if self.hides_match { it.whole } else { it.secret };
                found.map(|found| extent(found).range())
            });
        matches.chain(whole)
    }

    /// True if the rule, by itself, finds anything in `text`.
    pub(crate) fn finds(&self, text: &[u8]) -> bool {
        let folded = text.to_ascii_lowercase();
        let has = |keyword: &String| {
            folded.windows(keyword.len().max(1)).any(|part| part == keyword.as_bytes())
        };
        (self.keywords.is_empty() || self.keywords.iter().any(has))
            && matches!(self.secrets("", text, 0..text.len(), &|| false).next(), Some(Ok(_)))
    }

    /// Returns the maximum entropy in bits per byte of the rule's secrets, if that does not exceed
    /// `entropy`, so that the rule finds nothing.
    pub(crate) fn unreached_entropy(&self) -> Option<f64> {
        let most = self.expression.as_ref()?.max_entropy(self.group);
        (most <= self.entropy?).then_some(most)
    }

    /// True if every match of the expression is empty.
    pub(crate) fn matches_only_nothing(&self) -> bool {
        self.expression.as_ref().is_some_and(Expression::is_empty)
    }

    /// True if the first of several groups is the secret, and the rule does not say so.
    pub(crate) fn is_unsure_of_group(&self) -> bool {
        let several = self.expression.as_ref().is_some_and(Expression::has_groups_in_a_row);
        self.group.is_none() && several
    }

    /// True if the secret is less than what follows it, and the rule does not say which group it is.
    pub(crate) fn leaves_value(&self) -> bool {
        self.group.is_none() && self.expression.as_ref().is_some_and(Expression::leaves_value)
    }

    /// True if its findings are the minimum that may be a secret, and the rest is shown.
    pub(crate) fn ends_lazily(&self) -> bool {
        self.expression.as_ref().is_some_and(|expression| expression.ends_lazily(self.group))
    }

    /// Returns a hint for an author whose sample is not found.
    pub(crate) fn why_not(&self) -> &'static str {
        match (self.keywords.is_empty(), self.entropy) {
            (true, None) => "change the expression or the sample",
            (true, Some(_)) => "look at the expression and at `entropy`",
            (false, None) => "look at the expression and at `keywords`",
            (false, Some(_)) => "look at the expression, at `keywords` and at `entropy`",
        }
    }

    fn is_secret(&self, path: &str, text: &[u8], found: &Match) -> bool {
        let secret = text.get(found.secret.range()).unwrap_or_default();
        if secret.is_empty() || self.entropy.is_some_and(|least| entropy(secret) <= least) {
            return false;
        }
        if self.allowlists.is_empty() && !self.allow_comments {
            return true;
        }
        let line = line_around(text, found.whole.range());
        let matched = text.get(found.whole.range()).unwrap_or_default();
        if self.allow_comments
            && line.windows(ALLOW_COMMENT.len()).any(|part| part == ALLOW_COMMENT)
        {
            return false;
        }
        let found = Candidate { path, secret, matched, line };
        !self.allowlists.iter().any(|list| list.allows(&found))
    }
}

/// Returns the lines that contain `range`.
fn line_around(text: &[u8], range: Range<usize>) -> &[u8] {
    let before = text.get(..range.start).unwrap_or_default();
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let after = text.get(range.end..).unwrap_or_default();
    let end = range.end + after.iter().position(|byte| *byte == b'\n').unwrap_or(after.len());
    text.get(start..end).unwrap_or_default()
}

/// Computes Shannon's entropy in bits per byte.
fn entropy(text: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in text {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count = count.saturating_add(1);
        }
    }
    let length = f64::from(u32::try_from(text.len()).unwrap_or(u32::MAX));
    let bits = |count: &u32| {
        let share = f64::from(*count) / length;
        -share * share.log2()
    };
    counts.iter().filter(|count| **count > 0).map(bits).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_in_bits_per_byte() {
        assert!(entropy(b"aaaa").abs() < 1e-9);
        assert!((entropy(b"abababab") - 1.0).abs() < 1e-9);
        assert!((entropy(b"abcdefgh") - 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_line_of_a_match_may_be_several() {
        let text = b"one\ntwo\nthree\n";
        assert_eq!(line_around(text, 5..6), b"two");
        assert_eq!(line_around(text, 5..9), b"two\nthree");
        assert_eq!(line_around(text, 0..1), b"one");
    }
}
