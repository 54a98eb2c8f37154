//! The files that are executed when a program of the operator's starts: the program, and the
//! interpreters that first lines (`#!`) name.

use std::{
    ffi::OsStr,
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
/// When one of them cannot be read, or it is not known which program `env` executes.
pub(super) fn executed(
    line: &[impl AsRef<OsStr>],
    directory: &Path,
) -> Result<Vec<PathBuf>, Failure> {
    let not_known = |program: &Path| {
        let shown = program.display();
        Failure::new(format_args!("cannot tell which program `env` executes for `{shown}`"))
            .help("name that program by its path in place of `env`, as in `#!/usr/bin/python3`")
    };
    let begin = || not_known(line.first().map_or(Path::new(""), Path::new));
    let (mut found, mut next) = (Vec::new(), executables(line, directory).ok_or_else(begin)?);
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
        next.extend(executables(&words, directory).ok_or_else(|| not_known(&path))?);
        let arguments = words.iter().skip(1).map(|word| word.to_string_lossy());
        next.extend(arguments.flat_map(|word| named_in(&word).collect::<Vec<_>>()));
        found.push(path);
    }
    Ok(found)
}

/// Returns the program of a command line. If that is `env`, also the program that it executes, or the
/// files of `PATH` up to that one: an agent could make one that does not exist. `None` if `env` is
/// used in another way than `env NAME` and `env -S NAME ARGUMENTS`.
fn executables(line: &[impl AsRef<OsStr>], directory: &Path) -> Option<Vec<PathBuf>> {
    let line: Vec<&OsStr> = line.iter().map(AsRef::as_ref).collect();
    let mut found: Vec<_> = line.first().map(PathBuf::from).into_iter().collect();
    if !found.iter().any(|program| program.ends_with("env")) {
        return Some(found);
    }
    let name = match *line {
        [_, name] => name,
        [_, option, name, ..] if option == "-S" => name,
        _ => return None,
    };
    let bytes = name.as_encoded_bytes();
    let is_name = !bytes.starts_with(b"-") && !bytes.contains(&b'=');
    if !is_name || Path::new(name).ends_with("env") || !line.iter().all(|word| is_literal(word)) {
        return None;
    }
    if bytes.contains(&b'/') {
        found.push(name.into());
        return Some(found);
    }
    for path in on_path(name) {
        let is_executed = is_program(&directory.join(&path));
        found.push(path);
        if is_executed {
            break;
        }
    }
    Some(found)
}

/// Returns true if env(1) takes the word as it is: it has no quotes, escapes, variables or spaces.
fn is_literal(word: &OsStr) -> bool {
    let is_special = |byte: &u8| byte.is_ascii_control() || b"'\"\\$ ".contains(byte);
    !word.as_encoded_bytes().iter().any(is_special)
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
