//! The test files beside a policy.

use std::path::Path;

use super::{
    Error,
    file::{read, reason},
    piped::is_pipe,
};
use crate::{
    model::Escaped,
    operator_files,
    policy::{MAX_FILE, is_name},
};

/// The suffix of a test file's name.
const TESTS: &str = ".test.toml";

/// A test file.
#[derive(Debug, Clone)]
pub struct TestFile {
    /// Its name, in the form in which the policy was named.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Returns the files `*.test.toml` beside the policy `reference`, by name. A file
/// named after another policy beside it (`shop.more.test.toml` after
/// `shop.toml`) belongs to that one only. There are none beside a pipe.
///
/// # Errors
/// When the directory or one of the files cannot be read.
pub fn tests_beside(reference: &str) -> Result<Vec<TestFile>, Error> {
    if is_name(reference) || is_pipe(Path::new(reference)) {
        return Ok(Vec::new());
    }
    let unreadable = |path: &Path, reason: String| Error::Unreadable {
        path: Escaped(&path.to_string_lossy()).to_string(),
        reason,
    };
    let policy = Path::new(reference);
    let directory = policy.parent().filter(|parent| !parent.as_os_str().is_empty());
    let listed = directory.unwrap_or(Path::new("."));
    let entries =
        operator_files::read_dir(listed).map_err(|error| unreadable(listed, reason(&error)))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(listed, reason(&error)))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    let stems: Vec<&str> = names
        .iter()
        .filter(|name| !name.ends_with(TESTS))
        .filter_map(|name| name.strip_suffix(".toml"))
        .collect();
    let ours = policy.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let mut files = Vec::new();
    for name in names.iter().filter(|name| name.ends_with(TESTS)) {
        let named_after =
            |stem: &&&str| name.strip_prefix(**stem).is_some_and(|rest| rest.starts_with('.'));
        let owner = stems.iter().filter(named_after).max_by_key(|stem| stem.len());
        if owner.is_some_and(|owner| *owner != ours) {
            continue;
        }
        let path = directory.map_or_else(|| name.into(), |directory| directory.join(name));
        let bytes = read(&path).map_err(|error| unreadable(&path, reason(&error)))?;
        if bytes.len() > MAX_FILE {
            return Err(unreadable(&path, format!("larger than {} MiB", MAX_FILE >> 20)));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| unreadable(&path, "the file is not UTF-8".to_owned()))?;
        files.push(TestFile { name: path.to_string_lossy().into_owned(), text });
    }
    Ok(files)
}
