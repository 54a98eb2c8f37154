//! The files that are executed when a program of the operator's starts: the program, and the
//! interpreters that first lines (`#!`) name.

use std::{
    ffi::{OsStr, OsString},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, access, stat};

use super::failure::{Context as _, Failure};
use crate::sandbox::interpreter_line;

/// Maximum of the files of one program.
const MAX_FILES: usize = 64;

/// Returns the files that are executed for a command line, and the paths that first lines name as
/// arguments. Files need not exist. Relative paths are looked up in `directory`.
///
/// # Errors
/// When one of them cannot be read.
pub(super) fn executed<'a>(
    line: impl IntoIterator<Item = &'a OsStr>,
    directory: &Path,
) -> Result<Vec<PathBuf>, Failure> {
    let (mut found, mut next) = (Vec::new(), executables(line, directory));
    while let Some(path) = next.pop() {
        let path = std::path::absolute(directory.join(path)).or_fail("cannot look up a program")?;
        if found.contains(&path) {
            continue;
        }
        let shown = path.display();
        if found.len() == MAX_FILES {
            return Err(Failure::new(format_args!("`{shown}` has too many interpreters")));
        }
        let words = match interpreter_line(&path) {
            Ok(words) => words,
            // What does not exist or is no file cannot be executed.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput
                ) =>
            {
                Vec::new()
            }
            Err(error) => {
                return Err(Failure::new(format_args!(
                    "cannot read the program `{shown}` to find its interpreter: {error}"
                ))
                .help("make it readable, or start it by a script that `#!/bin/sh` begins"));
            }
        };
        next.extend(executables(words.iter().map(OsString::as_os_str), directory));
        let arguments = words.iter().skip(1).map(|word| word.to_string_lossy());
        next.extend(arguments.flat_map(|word| named_in(&word).collect::<Vec<_>>()));
        found.push(path);
    }
    Ok(found)
}

/// Returns the program of a command line. If that is `env`, also the files of `PATH` that it may
/// execute, up to the one that it does: an agent could make one that does not exist.
fn executables<'a>(line: impl IntoIterator<Item = &'a OsStr>, directory: &Path) -> Vec<PathBuf> {
    let mut words = line.into_iter();
    let mut found: Vec<_> = words.next().map(PathBuf::from).into_iter().collect();
    if !found.iter().any(|program| program.ends_with("env")) {
        return found;
    }
    for word in words {
        let word = word.as_encoded_bytes();
        let name = split_string(word).unwrap_or(word);
        if name.is_empty() || name.starts_with(b"-") || name.iter().any(|b| b"/=".contains(b)) {
            continue;
        }
        let name = String::from_utf8_lossy(name);
        for path in on_path(OsStr::new(&*name)) {
            let is_executed = is_program(&directory.join(&path));
            found.push(path);
            if is_executed {
                return found;
            }
        }
    }
    found
}

/// Returns the text that an option of env(1) has it split: `-S…`, with other letters before the `S`
/// or not, or `--split-string=…`.
fn split_string(word: &[u8]) -> Option<&[u8]> {
    if word.starts_with(b"--") {
        return word.strip_prefix(b"--split-string=");
    }
    let letters = word.strip_prefix(b"-")?;
    letters.splitn(2, |letter| *letter == b'S').nth(1)
}

/// Returns the programs that a shell could find by this name, in its order.
pub(super) fn all_on_path(name: &OsStr) -> Vec<PathBuf> {
    match name.as_encoded_bytes().contains(&b'/') {
        true => vec![name.into()],
        false => on_path(name).filter(|path| is_program(path)).collect(),
    }
}

fn on_path(name: &OsStr) -> impl Iterator<Item = PathBuf> {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&directories).collect();
    directories.into_iter().map(move |directory| directory.join(name))
}

fn is_program(path: &Path) -> bool {
    stat(path).is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode).is_file())
        && access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Returns the files that an argument may name: the path from its first `/` on, as in `-k/PATH`,
/// `--key=x=/PATH` and `file:///PATH`, and a relative one, as in `PATH` and `--key=PATH`, because a
/// signer starts in `/`.
pub(super) fn named_in(argument: &str) -> impl Iterator<Item = PathBuf> {
    let absolute = argument.split_once('/').map(|(_, path)| path.trim_start_matches('/'));
    let value = argument.rsplit('=').next();
    let relative = value.filter(|path| path.contains('/') && !path.starts_with('/'));
    let found = [absolute, relative].into_iter().flatten();
    found.filter(|path| !path.is_empty()).map(|path| Path::new("/").join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only `-S` was known.
    #[test]
    fn options_of_env_that_name_a_program_are_known() {
        for word in ["-Spython3", "-vSpython3", "--split-string=python3"] {
            assert_eq!(split_string(word.as_bytes()), Some(&b"python3"[..]), "{word}");
        }
        for word in ["python3", "-i", "--debug", "-"] {
            assert_eq!(split_string(word.as_bytes()), None, "{word}");
        }
    }

    /// Regression: only `/x/key` of `home/x/key` was checked.
    #[test]
    fn a_relative_argument_of_a_signer_is_looked_up_where_the_signer_begins() {
        let names = |argument: &str, path: &str| named_in(argument).any(|p| p == Path::new(path));
        assert!(names("home/x/key", "/home/x/key"));
        assert!(names("--key=home/x/key", "/home/x/key"));
        assert!(names("../home/x/key", "/../home/x/key"));
        for argument in ["/x/key", "-k/x/key", "--key=a=/x/key", "file:///x/key"] {
            assert!(names(argument, "/x/key"), "{argument}");
        }
        assert_eq!(named_in("sign").chain(named_in("/")).next(), None);
    }
}
