//! A path pattern for whoever searches: the same language as in policies,
//! matched letter by letter.

use super::pattern::{Comparison, Pattern, parse};

/// A compiled path pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobPattern {
    alternatives: Vec<Pattern>,
}

/// Why a text is no pattern; the message is for the person who wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GlobError(String);

impl GlobPattern {
    /// The pattern that `text` spells, as in `allowedPaths`; it may begin with `./`, as paths
    /// that are asked for may.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        let text = text.strip_prefix("./").filter(|rest| !rest.is_empty()).unwrap_or(text);
        let alternatives =
            parse(text, Comparison::Exact).map_err(|error| GlobError(error.explained()))?;
        Ok(Self { alternatives })
    }

    /// Whether it is the path `path`, whose components `/` separates; `.` is
    /// the root.
    pub fn matches(&self, path: &str) -> bool {
        let components = path.split('/').filter(|part| !matches!(*part, "" | "."));
        self.alternatives.iter().any(|pattern| pattern.matches(components.clone()))
    }

    /// Whether something beneath the directory `path` could match; `false` is
    /// certain.
    pub fn reaches_beneath(&self, path: &str) -> bool {
        let components = path.split('/').filter(|part| !matches!(*part, "" | "."));
        self.alternatives.iter().any(|pattern| pattern.reaches_beneath(components.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_policies_do() {
        let glob = GlobPattern::parse("src/**/*.{rs,toml}").unwrap();
        assert!(glob.matches("src/a.rs") && glob.matches("src/x/y/Cargo.toml"));
        assert!(!glob.matches("a.rs") && !glob.matches("src/A.RS"));
        assert_eq!(GlobPattern::parse("./src/**/*.{rs,toml}"), Ok(glob.clone()));
        assert!(GlobPattern::parse("./").is_err() && GlobPattern::parse("././a").is_err());
        assert!(GlobPattern::parse("**").unwrap().matches("."));
        assert!(glob.reaches_beneath(".") && glob.reaches_beneath("src/x"));
        assert!(!glob.reaches_beneath("docs"));
        assert_eq!(
            GlobPattern::parse("/x").unwrap_err().to_string().split(';').next(),
            Some("the pattern starts with `/`")
        );
    }
}
