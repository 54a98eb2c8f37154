//! `--path` of the commands that read the log.

use std::{path::Path, str::FromStr};

use super::location::LogSource;
use crate::{
    app::failure::{Exit, Failure},
    model::Escaped,
    policy::GlobError,
    review::PathFilter,
};

/// A path or a pattern as given: an absolute one is converted once the workspace is
/// known.
#[derive(Debug, Clone)]
pub(super) struct PathArgument(String);

impl FromStr for PathArgument {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        if !text.starts_with('/') {
            text.parse::<PathFilter>()?;
        }
        Ok(Self(text.to_owned()))
    }
}

impl PathArgument {
    /// Returns the filters of records' paths, in a workspace at `root`.
    fn filters(&self, root: Option<&Path>) -> Result<Vec<PathFilter>, GlobError> {
        let text = self.0.as_str();
        let rest = root.and_then(|root| Path::new(text).strip_prefix(root).ok()?.to_str());
        let Some(rest) = rest else { return Ok(vec![text.parse()?]) };
        // Requested paths are recorded as the client wrote them.
        let spelled = PathFilter::Below(text.trim_end_matches('/').to_owned());
        let inside = if rest.is_empty() { "." } else { rest };
        Ok(vec![spelled, inside.parse()?])
    }
}

/// Returns the filters of `--path`, for the log `at`. A copy may belong to any
/// workspace.
pub(super) fn filters(named: &[PathArgument], at: &LogSource) -> Result<Vec<PathFilter>, Failure> {
    let absolute = named.iter().any(|named| named.0.starts_with('/'));
    let root = match absolute && at.dir.is_none() {
        true => match at.location.owner()? {
            Some(owner) => Some(owner),
            None => at.location.opened().ok().map(|workspace| workspace.root().to_owned()),
        },
        false => None,
    };
    let root = root.as_deref();
    let mut filters = Vec::new();
    for one in named {
        filters.extend(one.filters(root).map_err(|error| {
            Failure::new(format_args!("bad path `{}`: {error}", Escaped(&one.0))).exit(Exit::Usage)
        })?);
    }
    Ok(filters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(named: &str, path: &str) -> bool {
        let filters =
            named.parse::<PathArgument>().unwrap().filters(Some(Path::new("/w/[x]"))).unwrap();
        filters.iter().any(|filter| filter.matches(path))
    }

    #[test]
    fn an_absolute_path_in_the_workspace_is_one_of_its_own() {
        for (named, path) in [
            ("/w/[x]/a/b", "a/b"),
            ("/w/[x]/a/", "a/b"),
            ("/w/[x]", "a"),
            ("/w/[x]/src/**/*.rs", "src/a/b.rs"),
            ("/w/[x]/a/b", "/w/[x]/a/b"),
            ("/etc", "/etc/passwd"),
        ] {
            assert!(matches(named, path), "{named} {path}");
        }
        for (named, path) in [("/w/[x]/a/b", "a/c"), ("/w/x/a", "a"), ("/etc", "etc/passwd")] {
            assert!(!matches(named, path), "{named} {path}");
        }
    }

    #[test]
    fn a_pattern_elsewhere_is_refused() {
        let named: PathArgument = "/etc/*".parse().unwrap();
        assert!(named.filters(Some(Path::new("/w"))).is_err());
        assert!(named.filters(None).is_err());
        assert!("[".parse::<PathArgument>().is_err());
    }
}
