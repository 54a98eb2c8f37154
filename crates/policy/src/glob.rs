//! Path patterns for searches: the language of policies, matched character by character.

use super::pattern::{Comparison, Pattern, parse};

/// A compiled path pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobPattern {
    alternatives: Vec<Pattern>,
}

/// The reason why a text is not a pattern; the message is for its author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GlobError(String);

impl GlobPattern {
    /// Parses a pattern as in `allowedPaths`; it may begin with `./`, as requested paths may.
    ///
    /// # Errors
    /// If it is not a valid pattern.
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        let text = text.strip_prefix("./").filter(|rest| !rest.is_empty()).unwrap_or(text);
        let alternatives =
            parse(text, Comparison::Exact).map_err(|error| GlobError(error.explained()))?;
        Ok(Self { alternatives })
    }

    /// True if it matches `path`, whose components `/` separates; `.` is the root.
    pub fn matches(&self, path: &str) -> bool {
        let components = path.split('/').filter(|part| !matches!(*part, "" | "."));
        self.alternatives.iter().any(|pattern| pattern.matches(components.clone()))
    }

    /// True if an entry beneath the directory `path` may match; `false` is certain.
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
