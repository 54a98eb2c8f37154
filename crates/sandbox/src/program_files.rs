//! The files that an agent's program needs to start, and advice for an operator whose agent cannot
//! reach its own installation. Grants nothing.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt as _, fs::FileExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{Access, FileType, Mode, OFlags, access, fstat, open};

use super::{
    process::of_descriptor,
    resolve::{Resolved, resolve, resolve_seen},
};

/// Names of directories of programs in an installation.
const PROGRAM_DIRECTORIES: [&str; 5] = ["bin", "sbin", "libexec", "shims", "Scripts"];

/// Number of bytes of a first line that the kernel reads.
const MAX_LINE: u64 = 255;

/// Directories too general to be given to an agent.
const TOO_GENERAL: [&str; 6] = ["/", "/home", "/root", "/opt", "/var", "/srv"];

/// Files that a program needs before its first instruction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProgramFiles {
    /// The program as an absolute path, links not followed.
    pub(super) path: PathBuf,
    /// The paths that were looked up: of the program and its interpreters, unless the agent may
    /// have chosen them.
    pub(super) looked_up: Vec<PathBuf>,
    /// Links on the way to the program and its interpreters, unless the agent may have chosen them:
    /// it has these, or may not see them.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// The files themselves, and directories that must be there with them.
    pub(super) needs: Vec<PathBuf>,
    /// The files and directories needed for paths that the agent may have chosen.
    pub(super) doubtful: Vec<PathBuf>,
}

/// A program cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No such program in any directory of `PATH`.
    #[error("there is no program `{}` in any directory of `PATH`", .0.display())]
    NotInPath(PathBuf),
    /// No such file, or not executable.
    #[error("`{path}` cannot be executed: {1}", path = .0.display())]
    NotExecutable(PathBuf, io::Error),
    /// A file that the agent may change names a file as needed that the agent may not see.
    #[error("cannot start the agent: its program needs `{}`, which the sandbox does not show; the agent can change the file that says so, so check that first", .0.display())]
    Doubtful(PathBuf),
}

/// Paths that an agent may change, and paths that it sees.
#[derive(Debug, Default)]
pub(super) struct AgentAccess {
    /// Paths that it may change.
    pub(super) writes: Vec<PathBuf>,
    /// Paths that it was given, these included.
    pub(super) sees: Vec<PathBuf>,
    /// Links by which these were named.
    pub(super) links: Vec<PathBuf>,
}

impl AgentAccess {
    /// True if the agent was given `path`.
    pub(super) fn sees(&self, path: &Path) -> bool {
        self.sees.iter().any(|place| path.starts_with(place))
    }

    /// True if the agent finds that name in a root directory of its own.
    fn knows(&self, name: &Path) -> bool {
        self.sees(name) || self.sees.iter().chain(&self.links).any(|place| place.starts_with(name))
    }

    /// Resolves a path. From the first name on that the agent may have chosen, only names are
    /// looked up that it sees: the result would disclose which files exist.
    fn resolve(&self, path: &Path, is_doubtful: &mut bool) -> Result<Resolved, ProgramError> {
        let mut hidden = None;
        let found = resolve_seen(path, |name| {
            *is_doubtful |= self.writes.iter().any(|place| name.starts_with(place));
            if *is_doubtful && !self.knows(name) {
                hidden = Some(name.to_owned());
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            Ok(())
        });
        match hidden {
            Some(name) => Err(ProgramError::Doubtful(name)),
            None => found.map_err(|e| ProgramError::NotExecutable(path.to_owned(), e)),
        }
    }
}

/// Finds a program as a shell would, and the files that it needs. Separates those that the agent
/// may have chosen.
pub(super) fn find(
    name: &OsStr,
    path: Option<&OsStr>,
    directory: &Path,
    reach: &AgentAccess,
) -> Result<ProgramFiles, ProgramError> {
    let search = Search { path, directory, reach };
    let whole = search.locate(name, false)?;
    let mut program = ProgramFiles { path: whole.clone(), ..ProgramFiles::default() };
    // An interpreter may be a script itself; the kernel stops at five.
    let mut next = Some(whole);
    let mut is_doubtful = false;
    for _ in 0..6 {
        let Some(current) = next.take() else { break };
        let found = reach.resolve(&current, &mut is_doubtful)?;
        let needs = if is_doubtful { &mut program.doubtful } else { &mut program.needs };
        let hops = found.links.iter().map(|(link, _)| link.clone());
        for place in hops.chain([current.clone(), found.target.clone()]) {
            let root = place.ancestors().nth(2).filter(|root| !is_doubtful || reach.sees(root));
            needs.extend(root.and_then(virtual_environment));
        }
        needs.push(found.target.clone());
        if !is_doubtful {
            program.links.extend(found.links);
            program.looked_up.push(current);
        }
        next = search.interpreter(&found.target, is_doubtful);
    }
    Ok(program)
}

/// Finds the programs of this name in each directory of the path, in order.
pub(super) fn find_all(
    name: &OsStr,
    path: Option<&OsStr>,
    directory: &Path,
    reach: &AgentAccess,
) -> impl Iterator<Item = ProgramFiles> {
    in_path(name, path)
        .filter_map(move |named| find(named.as_os_str(), path, directory, reach).ok())
}

fn in_path(name: &OsStr, path: Option<&OsStr>) -> impl Iterator<Item = PathBuf> {
    std::env::split_paths(path.unwrap_or(OsStr::new("/usr/bin:/bin")))
        .filter(|directory| directory.is_absolute())
        .map(move |directory| directory.join(name))
}

/// Settings of a lookup of programs.
struct Search<'a> {
    path: Option<&'a OsStr>,
    directory: &'a Path,
    reach: &'a AgentAccess,
}

impl Search<'_> {
    /// Looks `name` up in the path, or from the directory if it contains a slash.
    fn locate(&self, name: &OsStr, is_doubtful: bool) -> Result<PathBuf, ProgramError> {
        let there = |whole: &Path| {
            let found = self.reach.resolve(whole, &mut { is_doubtful })?;
            executable(&found.target).map_err(|e| ProgramError::NotExecutable(whole.to_owned(), e))
        };
        if name.as_bytes().contains(&b'/') {
            let whole = self.directory.join(name);
            return there(&whole).map(|()| whole);
        }
        in_path(name, self.path)
            .find(|candidate| there(candidate).is_ok())
            .ok_or_else(|| ProgramError::NotInPath(name.into()))
    }

    /// Returns the program that runs `program`: the one in the first line of a script, or the
    /// dynamic linker of an ELF file.
    fn interpreter(&self, program: &Path, is_doubtful: bool) -> Option<PathBuf> {
        let mut words = interpreter_line(program).ok()?.into_iter();
        let first = PathBuf::from(words.next()?);
        if first.file_name() != Some(OsStr::new("env")) {
            return Some(first);
        }
        let is_name = |word: &OsString| {
            !matches!(word.as_bytes(), [b'-', ..]) && !word.as_bytes().contains(&b'=')
        };
        self.locate(&words.find(is_name)?, is_doubtful).ok()
    }
}

/// Returns the words of a script's first line after `#!`: its interpreter and arguments. Of another
/// program that is linked dynamically, returns the dynamic linker.
///
/// # Errors
/// If the program is no file, or cannot be read, or is an ELF file that is not understood.
pub fn interpreter_line(program: &Path) -> io::Result<Vec<OsString>> {
    let file = open_file(program)?;
    let mut head = Vec::new();
    (&file).take(MAX_LINE).read_to_end(&mut head)?;
    if head.starts_with(b"\x7fELF") {
        let linker = dynamic_linker(&file).map_err(|error| {
            // No kind says that there is no such program.
            io::Error::other(format!("its ELF headers cannot be understood: {error}"))
        })?;
        return Ok(linker.into_iter().collect());
    }
    let line = head.strip_prefix(b"#!").unwrap_or_default();
    let line = line.split(|b| matches!(b, b'\n' | b'\0')).next().unwrap_or_default();
    let words = line.split(|b| matches!(b, b' ' | b'\t')).filter(|word| !word.is_empty());
    Ok(words.map(|word| OsStr::from_bytes(word).to_owned()).collect())
}

fn executable(path: &Path) -> io::Result<()> {
    if !FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode).is_file() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(access(path, Access::EXEC_OK)?)
}

/// Returns `root` if it is that of a Python virtual environment: without it the program starts, and
/// finds none of its modules.
fn virtual_environment(root: &Path) -> Option<PathBuf> {
    let marker = root.join("pyvenv.cfg");
    rustix::fs::stat(marker).is_ok().then(|| resolve(root).map(|r| r.target).ok()).flatten()
}

fn open_file(program: &Path) -> io::Result<File> {
    // Opening a pipe or a device can have effects, even without a read.
    let place = open(program, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if !FileType::from_raw_mode(fstat(&place)?.st_mode).is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(open(of_descriptor(&place), flags, Mode::empty())?.into())
}

/// Returns the dynamic linker that an ELF file names (`PT_INTERP`, elf(5)), if it names one.
fn dynamic_linker(file: &File) -> io::Result<Option<OsString>> {
    const INTERPRETER: u64 = 3;
    let not_understood = || io::Error::from(io::ErrorKind::InvalidData);
    let bytes = |at: u64, size: u16| -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; size.into()];
        file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    };
    let (word, is_little) = match *bytes(4, 2)? {
        [class @ (1 | 2), order @ (1 | 2)] => (u16::from(class) * 4, order == 1),
        _ => return Err(not_understood()),
    };
    let number = |at: u64, size: u16| -> io::Result<u64> {
        let mut bytes = bytes(at, size)?;
        if is_little {
            bytes.reverse();
        }
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    // Three words follow the first 24 bytes: the second is the place of the program headers.
    let wide = u64::from(word);
    let (table, size) = (number(24 + wide, word)?, 8 + 6 * wide);
    let (named_size, count) = (number(30 + 3 * wide, 2)?, number(32 + 3 * wide, 2)?);
    if count > 0 && named_size != size {
        return Err(not_understood());
    }
    for n in 0..count {
        let header = table.saturating_add(n * size);
        if number(header, 4)? != INTERPRETER {
            continue;
        }
        let start = number(header.saturating_add(wide), word)?;
        let length = number(header.saturating_add(4 * wide), word)?;
        let text = bytes(start, u16::try_from(length).map_err(|_| not_understood())?)?;
        let text = text.split(|byte| *byte == b'\0').next().unwrap_or_default();
        return Ok(Some(OsStr::from_bytes(text).to_owned()));
    }
    Ok(None)
}

/// Returns the files among the arguments that lie outside what the agent `sees`.
pub(super) fn named_in(arguments: &[OsString], sees: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    arguments
        .iter()
        .map(Path::new)
        .filter(|argument| argument.is_absolute())
        .filter_map(|argument| resolve(argument).ok())
        .map(|resolved| resolved.target)
        .filter(|target| !sees(target))
        .collect()
}

/// Returns the paths that lie in none of the others.
fn outermost(paths: BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let lies_in = |path: &Path| paths.iter().any(|other| other != path && path.starts_with(other));
    paths.iter().filter(|path| !lies_in(path)).cloned().collect()
}

/// Returns what a program that needs `missing` can start with: each file, with the packages among
/// which it lies or the libraries beside it, but none of `withheld`. The rest of the prefix may be
/// anything: a project, the token of a package registry.
pub(super) fn libraries(missing: &[PathBuf], withheld: &[PathBuf]) -> Vec<PathBuf> {
    let beside = |path: &PathBuf| beside(path, withheld);
    outermost(missing.iter().cloned().chain(missing.iter().filter_map(beside)).collect())
}

fn beside(path: &Path, withheld: &[PathBuf]) -> Option<PathBuf> {
    // A directory has all that it needs.
    if is_directory(path) {
        return None;
    }
    let may_be_given = |place: &&Path| !too_general(place, withheld);
    if let Some(packages) = packages(path).filter(may_be_given) {
        return Some(packages.to_owned());
    }
    let prefix = programs(path)?.parent().filter(may_be_given)?;
    // A link may lead to anything.
    Some(prefix.join("lib")).filter(|libraries| is_real_directory(libraries))
}

fn is_directory(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
}

fn is_real_directory(path: &Path) -> bool {
    rustix::fs::lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
}

fn is(path: &Path, name: &str) -> bool {
    path.file_name() == Some(OsStr::new(name))
}

/// Returns the outermost directory of packages: a package needs those beside it.
fn packages(path: &Path) -> Option<&Path> {
    path.ancestors().filter(|above| is(above, "node_modules")).last()
}

/// Returns the directory of programs in which `path` lies.
fn programs(path: &Path) -> Option<&Path> {
    let mut above = path.ancestors().skip(1);
    above.find(|above| PROGRAM_DIRECTORIES.iter().any(|name| is(above, name)))
}

fn too_general(path: &Path, withheld: &[PathBuf]) -> bool {
    withheld.iter().any(|withheld| withheld.starts_with(path))
        || TOO_GENERAL.iter().any(|general| path == Path::new(general))
        || path.parent() == Some(Path::new("/home"))
        || std::env::home_dir().is_some_and(|home| home.starts_with(path))
        || path.file_name() == Some(OsStr::new(".local"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_brings_its_links_and_interpreters() {
        let tmp = tempfile::tempdir().unwrap();
        let base = crate::mounts::existing(tmp.path()).unwrap();
        let venv = base.join("venv");
        for directory in [&venv, &venv.join("bin"), &base.join("links")] {
            rustix::fs::mkdir(directory, Mode::RWXU).unwrap();
        }
        let write = |path: &Path, text: &str| {
            let flags = OFlags::WRONLY | OFlags::CREATE;
            let fd = open(path, flags, Mode::RWXU).unwrap();
            io::Write::write_all(&mut std::fs::File::from(fd), text.as_bytes()).unwrap();
        };
        write(&venv.join("pyvenv.cfg"), "home = /usr/bin\n");
        std::os::unix::fs::symlink("/bin/sh", venv.join("bin/python")).unwrap();
        write(&venv.join("bin/agent"), &format!("#!{}/bin/python\n", venv.display()));
        std::os::unix::fs::symlink("../venv/bin/agent", base.join("links/agent")).unwrap();
        let path = base.join("links");
        let program =
            find(OsStr::new("agent"), Some(path.as_os_str()), &base, &AgentAccess::default())
                .unwrap();
        assert_eq!(program.path, base.join("links/agent"));
        assert!(program.needs.contains(&venv), "{program:?}");
        assert!(program.needs.contains(&venv.join("bin/agent")));
        assert!(program.links.iter().any(|(link, _)| *link == venv.join("bin/python")));
        // The dynamic linker of the shell that `python` links to.
        assert!(program.needs.iter().any(|p| p.to_string_lossy().contains("ld-")), "{program:?}");
    }

    #[test]
    fn libraries_are_no_whole_prefix() {
        let tmp = tempfile::tempdir().unwrap();
        let base = crate::mounts::existing(tmp.path()).unwrap();
        for directory in ["python", "python/bin", "python/lib", "cargo", "cargo/bin"] {
            rustix::fs::mkdir(base.join(directory), Mode::RWXU).unwrap();
        }
        let of = |path: &str| libraries(&[base.join(path)], &[]);
        assert_eq!(of("cargo/bin/codex"), [base.join("cargo/bin/codex")]);
        let python = [base.join("python/bin/python3"), base.join("python/lib")];
        assert_eq!(of("python/bin/python3"), python);
        assert_eq!(of("python/bin"), [base.join("python/bin")]);
        assert_eq!(of("venv/agent"), [base.join("venv/agent")]);
    }

    #[test]
    fn packages_are_needed_with_those_beside_them() {
        let withheld = [PathBuf::from("/w/node_modules/repo")];
        let of = |path: &str| libraries(&[PathBuf::from(path)], &withheld);
        let scoped = "node_modules/@scope/agent/bin/agent.js";
        for prefix in ["/home/u/.nvm/v20/lib", "/home/u/project", "/home/u"] {
            let packages = [Path::new(prefix).join("node_modules")];
            assert_eq!(of(&format!("{prefix}/{scoped}")), packages);
            assert_eq!(of(&format!("{prefix}/node_modules/a/{scoped}")), packages);
        }
        assert_eq!(of(&format!("/w/{scoped}")), [Path::new("/w").join(scoped)]);
    }

    #[test]
    fn what_does_not_exist_is_said() {
        let find = |name: &str| {
            let path = Some(OsStr::new("/usr/bin"));
            find(OsStr::new(name), path, Path::new("/"), &AgentAccess::default())
        };
        assert!(matches!(find("no-such-agent"), Err(ProgramError::NotInPath(_))));
        assert!(matches!(find("/etc/passwd"), Err(ProgramError::NotExecutable(..))));
        assert!(matches!(find("/usr"), Err(ProgramError::NotExecutable(..))));
    }
}
