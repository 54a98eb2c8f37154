//! Rules of a policy file, and the common source form of all rules.

use super::{allowlist::Allowlist, expression::Expression, rule::SecretRule};
use crate::SourceLocation;

/// A rule as written.
#[derive(Debug, Default)]
pub(crate) struct RuleText {
    pub(crate) id: String,
    pub(crate) description: Option<String>,
    pub(crate) regex: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) keywords: Vec<String>,
    pub(crate) entropy: Option<f64>,
    pub(crate) group: Option<u64>,
    pub(crate) warn_only: bool,
    /// True if it is built in, and compiled by the program's tests.
    pub(crate) own: bool,
    /// True if `^` and `$` match at the beginning and the end of each line, not of the content.
    pub(crate) multi_line: bool,
}

/// The part of a rule that cannot be used, with the problem.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    Regex(String),
    Path(String),
    Group(usize),
}

/// Compiles a rule without allowlists.
pub(crate) fn compile(text: RuleText, location: SourceLocation) -> Result<SecretRule, Unusable> {
    let mut keywords: Vec<String> =
        text.keywords.iter().map(|keyword| keyword.to_ascii_lowercase()).collect();
    keywords.retain(|keyword| !keyword.is_empty());
    let expression = text.regex.map(|regex| match text.own {
        true => Expression::parse(&regex, text.multi_line, &keywords),
        false => Expression::compile(&regex, text.multi_line, &keywords),
    });
    let expression = expression.transpose().map_err(Unusable::Regex)?;
    let path = text.path.map(|path| Expression::compile(&path, false, &[]));
    let path = path.transpose().map_err(Unusable::Path)?;
    let groups = expression.as_ref().map_or(1, Expression::groups);
    let group = text.group.map(|group| usize::try_from(group).unwrap_or(usize::MAX));
    if group.is_some_and(|group| group >= groups) {
        return Err(Unusable::Group(groups - 1));
    }
    Ok(SecretRule {
        id: text.id,
        description: text.description,
        location,
        warn_only: text.warn_only,
        invisible: None,
        expression,
        path,
        keywords,
        entropy: text.entropy,
        group,
        allowlists: Vec::<Allowlist>::new(),
        hides_match: false,
        allow_comments: false,
    })
}
