//! Names that git, or a file system of a checkout, treats as other names.

use super::Error;

/// Characters that HFS+ ignores when it compares names.
const IGNORED: [char; 16] = [
    '\u{200c}', '\u{200d}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}',
    '\u{202e}', '\u{206a}', '\u{206b}', '\u{206c}', '\u{206d}', '\u{206e}', '\u{206f}', '\u{feff}',
];

/// Maximum length of a path, or of a link's target, in bytes, as Linux has it.
pub(crate) const MAX_PATH: usize = 4095;
/// Maximum length of a line of attributes that git reads, in bytes.
const MAX_ATTRIBUTES: usize = 2047;

/// True if a file system may treat this name as one that is `found`. HFS+ ignores case and some
/// characters; NTFS ignores case, dots and blanks at the end, and everything after a colon.
fn may_be(name: &str, found: impl Fn(&str) -> bool) -> bool {
    let name: String = name.chars().filter(|c| !IGNORED.contains(c)).collect();
    let name = name.to_lowercase();
    name.split('\\').any(|part| {
        let part = part.split(':').next().unwrap_or_default();
        found(part.trim_end_matches([' ', '.']))
    })
}

/// True if git on any file system treats this name as `.gitmodules`; NTFS has short names.
fn is_modules(name: &str) -> bool {
    name == ".gitmodules" || name.starts_with("gitmod~") || name.starts_with("gi7eba~")
}

/// Checks that a path of a commit stays beneath the root and outside of repositories, on every file
/// system.
///
/// # Errors
/// The reason why it does not.
pub(crate) fn check_path(path: &[u8]) -> Result<&str, Error> {
    let refuse = |reason| Error::path(path, reason);
    let text = str::from_utf8(path).map_err(|_| refuse("the path is not UTF-8"))?;
    for name in text.split('/') {
        if matches!(name, "" | "." | "..") {
            return Err(refuse("the path has an empty name, `.` or `..`"));
        }
        if name.contains(char::is_control) {
            return Err(refuse("the path has a control character"));
        }
        if may_be(name, |name| matches!(name, ".git" | "git~1")) {
            return Err(refuse("the path lies in a git repository, `.git` or a name like it"));
        }
        if may_be(name, is_modules) {
            return Err(refuse("submodules are not imported"));
        }
    }
    Ok(text)
}

/// Checks that git accepts the content of a file that it reads itself.
///
/// # Errors
/// The reason why it does not.
pub(super) fn check_content(path: &str, content: &[u8]) -> Result<(), &'static str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_attributes =
        may_be(name, |name| name == ".gitattributes" || name.starts_with("gitatt~"));
    let is_long = |line: &[u8]| line.len() > MAX_ATTRIBUTES;
    if is_attributes && content.split(|byte| *byte == b'\n').any(is_long) {
        return Err("git does not read lines of attributes that are so long");
    }
    Ok(())
}

/// Checks that a link may have this name, which git must not read.
///
/// # Errors
/// The reason why it may not.
pub(super) fn check_link(path: &str) -> Result<(), &'static str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_read = |name: &str| name.starts_with(".git") || name == ".mailmap";
    if may_be(name, is_read) { Err("a file that git reads is no link") } else { Ok(()) }
}

/// Checks that a link's target is read alike by all programs: git takes what comes before a zero byte,
/// and on some systems `\` for `/`.
///
/// # Errors
/// The reason why it is not.
pub(super) fn check_target(target: &[u8]) -> Result<&str, &'static str> {
    let text = str::from_utf8(target).map_err(|_| "the target of the link is not UTF-8")?;
    if text.is_empty() {
        return Err("the link has no target");
    }
    if text.contains(|c: char| c.is_control() || c == '\\') {
        return Err("the target of the link has a control character or `\\`");
    }
    Ok(text)
}

/// Checks that a branch's name is valid beneath `refs/portcullis/SESSION/`, as
/// `git check-ref-format` defines it, and that it is displayed unambiguously.
///
/// # Errors
/// The reason why it is not.
pub fn check_branch(name: &str) -> Result<(), &'static str> {
    const WHY: &str = "the name of the branch has characters or parts that an import does not take";
    let is_good = |c: char| c.is_alphanumeric() || "-_./+@=,#%".contains(c);
    if name.len() > 200 || !name.chars().all(is_good) || name.contains("..") {
        return Err(WHY);
    }
    for part in name.split('/') {
        let is_lock = part.to_lowercase().ends_with(".lock");
        if part.is_empty() || part.starts_with(['.', '-']) || part.ends_with('.') || is_lock {
            return Err(WHY);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_into_a_repository_in_any_form() {
        for path in [
            ".git",
            ".GIT/hooks/post-checkout",
            "a/.git",
            "a/.Git/config",
            "git~1/config",
            "GIT~1",
            ".git /x",
            ".git./x",
            ".git...",
            ".git::$INDEX_ALLOCATION/x",
            ".git:x",
            ".g\u{200c}it",
            "\u{feff}.git/x",
            ".gi\u{206f}t",
            "a\\.git\\x",
            "..",
            "a/../b",
            "./a",
            "a//b",
            "/a",
            "a/",
            "",
            "a\nb",
            "a\u{1b}[2Jb",
            "a/.gıt/../x",
            ".gitmodules",
            "a/.GITMODULES ",
            ".gitm\u{200d}odules",
            "GITMOD~1",
            "gi7eba~2",
        ] {
            assert!(check_path(path.as_bytes()).is_err(), "{path:?}");
        }
        assert!(check_path(b"a\xff").is_err());
        for path in [".gitignore", ".github/x", "git", "a/git~2", "x.git", "über/ñ", "a b"] {
            assert!(check_path(path.as_bytes()).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn what_git_reads_itself_is_what_git_takes() {
        assert!(check_content("a/.gitattributes", &[b'x'; 2047]).is_ok());
        assert!(check_content("a/.GITattributes", &[b'x'; 2048]).is_err());
        assert!(check_content("attributes", &[b'x'; 2048]).is_ok());
        assert!(check_link("a/.gitignore").is_err() && check_link(".MailMap").is_err());
        assert!(check_link("a/git").is_ok());
        for target in
            [&b""[..], b"..\0/x", b"a\n", b"a\r", b"..\\x", b"a\x7f", b"\xff", "\u{85}".as_bytes()]
        {
            assert!(check_target(target).is_err(), "{target:?}");
        }
        assert_eq!(check_target("../ü x".as_bytes()), Ok("../ü x"));
    }

    #[test]
    fn a_branch_is_a_plain_name() {
        for name in ["main", "feature/über-1", "a.b", "fix#12"] {
            assert!(check_branch(name).is_ok(), "{name}");
        }
        for name in [
            "",
            "a..b",
            "/a",
            "a/",
            "a//b",
            ".a",
            "a/.b",
            "a.",
            "a.lock",
            "a.LOCK/b",
            "a b",
            "a~1",
            "a^",
            "a:b",
            "a?",
            "a*",
            "a[",
            "a\\b",
            "-a",
            "a/-b",
            "@{u}",
            "a\u{1b}",
            "a\u{202e}b",
        ] {
            assert!(check_branch(name).is_err(), "{name:?}");
        }
    }
}
