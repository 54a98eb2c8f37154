//! Commits.

use super::{Error, Format, Object, ObjectId, ObjectKind, Source};

/// Maximum size of a commit, in bytes.
const MAX_COMMIT: u64 = 1 << 20;
/// Maximum number of parents of a commit.
const MAX_PARENTS: usize = 64;
/// The prefix of trailers that only an import writes, in lower case.
const RESERVED: &str = "portcullis-";

/// A commit, with the parts that are imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The tree of the root directory.
    pub tree: ObjectId,
    /// The parent commits.
    pub parents: Vec<ObjectId>,
    /// The author with the time: `NAME <EMAIL> SECONDS ZONE`.
    pub author: String,
    /// The committer with the time.
    pub committer: String,
    /// The message.
    pub message: String,
}

impl Commit {
    /// Reads and parses a commit.
    ///
    /// # Errors
    /// If it cannot be read, or does not have the form that git writes.
    pub fn read(source: &mut dyn Source, id: &ObjectId) -> Result<Self, Error> {
        Self::parse(&source.read(id, ObjectKind::Commit, MAX_COMMIT)?)
    }

    /// Parses a commit's content. Signatures and other headers are dropped: they apply to the
    /// original commit only.
    ///
    /// # Errors
    /// If it does not have the form that git writes.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let text = str::from_utf8(bytes);
        let text = text.map_err(|_| Error::Malformed("the commit is not UTF-8"))?;
        let (headers, message) =
            text.split_once("\n\n").ok_or(Error::Malformed("the commit has no message"))?;
        let mut lines = headers.split('\n').peekable();
        let mut header = |name: &str| {
            let line = lines.next_if(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '))
            })?;
            line.get(name.len() + 1..)
        };
        let object = |text: &str| {
            ObjectId::parse(text).ok_or(Error::Malformed("a header of the commit names no object"))
        };
        let missing = Error::Malformed("the commit has not the headers that every commit has");
        let Some(tree) = header("tree") else { return Err(missing) };
        let tree = object(tree)?;
        let mut parents = Vec::new();
        while let Some(parent) = header("parent") {
            parents.push(object(parent)?);
        }
        if parents.len() > MAX_PARENTS {
            return Err(Error::Malformed("the commit has too many parents"));
        }
        let (Some(author), Some(committer)) = (header("author"), header("committer")) else {
            return Err(missing);
        };
        if let Some(encoding) = header("encoding")
            && !encoding.eq_ignore_ascii_case("utf-8")
        {
            return Err(Error::Malformed("the message of the commit is not UTF-8"));
        }
        let identity = |text: &str| {
            let is_good = is_identity(text);
            is_good.then(|| text.to_owned()).ok_or(Error::Malformed(
                "the author or committer is not `NAME <EMAIL> SECONDS ZONE`",
            ))
        };
        Ok(Self {
            tree,
            parents,
            author: identity(author)?,
            committer: identity(committer)?,
            message: message.to_owned(),
        })
    }

    /// Returns the texts that are imported verbatim.
    pub(super) fn texts(&self) -> [&str; 3] {
        [&self.author, &self.committer, &self.message]
    }

    /// True if the message has a line that is, or looks like, a trailer of an import, where characters
    /// that `is_invisible` are not displayed.
    pub(super) fn has_reserved_trailers(&self, is_invisible: impl Fn(char) -> bool) -> bool {
        let is_dash = |c: char| {
            matches!(c, '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}')
        };
        let is_reserved = |line: &str| {
            let shown = line.chars().filter(|c| !is_invisible(*c));
            let shown: String = shown.map(|c| if is_dash(c) { '-' } else { c }).collect();
            shown.trim_start().to_lowercase().starts_with(RESERVED)
        };
        // Programs differ in whether they display a soft hyphen.
        let as_dashes = self.message.replace('\u{ad}', "-");
        let messages = [&self.message, &as_dashes];
        let mut lines = messages.iter().flat_map(|text| text.split(['\n', '\u{2028}', '\u{2029}']));
        lines.any(is_reserved)
    }

    /// Makes the object with this content.
    pub fn object(&self, format: Format) -> Object {
        let mut text = format!("tree {}\n", self.tree);
        for parent in &self.parents {
            text.push_str(&format!("parent {parent}\n"));
        }
        let Self { author, committer, message, .. } = self;
        text.push_str(&format!("author {author}\ncommitter {committer}\n\n{message}"));
        Object::new(format, ObjectKind::Commit, text.into_bytes())
    }
}

/// Returns the parents of a commit, also of one of another form than [`Commit::parse`] takes.
///
/// # Errors
/// If it cannot be read.
pub(super) fn parents(source: &mut dyn Source, id: &ObjectId) -> Result<Vec<ObjectId>, Error> {
    let bytes = source.read(id, ObjectKind::Commit, MAX_COMMIT)?;
    let headers = bytes.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    let parent =
        |line: &[u8]| ObjectId::parse(str::from_utf8(line.strip_prefix(b"parent ")?).ok()?);
    Ok(headers.filter_map(parent).collect())
}

/// Appends trailers to a message.
pub(super) fn with_trailers(message: &str, trailers: &[String]) -> String {
    let message = message.trim_end();
    let is_trailer = |line: &str| {
        line.split_once(": ").is_some_and(|(key, _)| {
            !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        })
    };
    let last = message.rsplit_once("\n\n").map(|(_, last)| last);
    let has_trailers = last.is_some_and(|last| last.lines().all(is_trailer));
    let between = if has_trailers { "\n" } else { "\n\n" };
    format!("{message}{between}{}\n", trailers.join("\n"))
}

fn is_identity(text: &str) -> bool {
    let parts = || {
        let (name, rest) = text.split_once(" <")?;
        let (email, rest) = rest.split_once("> ")?;
        let (seconds, zone) = rest.split_once(' ')?;
        let is_plain = |text: &str| !text.contains(['<', '>', '\n']);
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let zone = zone.strip_prefix(['+', '-'])?;
        let is_time = digits(seconds) && seconds.len() <= 12 && digits(zone) && zone.len() == 4;
        // Git takes a number with a leading zero for damage.
        let is_canonical = seconds == "0" || !seconds.starts_with('0');
        Some(!name.is_empty() && is_plain(name) && is_plain(email) && is_time && is_canonical)
    };
    parts().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

    fn commit(headers: &str, message: &str) -> Result<Commit, Error> {
        let who = "a b <a@example.org> 1700000000 +0100";
        let text = format!("tree {TREE}\n{headers}author {who}\ncommitter {who}\n\n{message}");
        Commit::parse(text.as_bytes())
    }

    #[test]
    fn a_commit_is_read_and_written_alike() {
        let parent = format!("parent {TREE}\n");
        let read = commit(&parent, "one\n").unwrap();
        assert_eq!((read.parents.len(), read.message.as_str()), (1, "one\n"));
        assert_eq!(Commit::parse(&read.object(Format::Sha1).bytes).unwrap(), read);
        assert!(commit("parent x\n", "").is_err());
        assert!(commit("unknown x\n", "").is_err());
        assert!(Commit::parse(b"tree 0\n\n").is_err());
    }

    #[test]
    fn trailers_of_an_import_and_identities_that_git_does_not_write_are_found() {
        let reserved = commit("", "x\n\n portcullis-Session: y").unwrap();
        let is_invisible = |c: char| matches!(c, '\u{200b}' | '\u{ad}');
        assert!(reserved.has_reserved_trailers(is_invisible));
        for line in [
            "\u{200b}Portcullis-Session: y",
            "a\u{2028}Port\u{200b}cullis\u{2011}Record: 1",
            "Portcullis\u{ad}Session: y",
            "Port\u{ad}cullis\u{ff0d}Session: y",
        ] {
            assert!(commit("", line).unwrap().has_reserved_trailers(is_invisible), "{line}");
        }
        for line in ["a\n\n\tb Portcullis-x\n", "portcullis: a subject\n"] {
            assert!(!commit("", line).unwrap().has_reserved_trailers(is_invisible), "{line}");
        }
        for who in
            ["<a> 1 +0000", "a <b> x +0000", "a <b> 1 0000", "a <<b> 1 +0000", "a <b> 01 +0000"]
        {
            assert!(!is_identity(who), "{who}");
        }
    }

    #[test]
    fn trailers_come_to_the_others() {
        let with = |message| with_trailers(message, &["K: v".to_owned()]);
        assert_eq!(with("one\n"), "one\n\nK: v\n");
        assert_eq!(with("one: two"), "one: two\n\nK: v\n");
        assert_eq!(with("one\n\nSigned-off-by: x\n\n"), "one\n\nSigned-off-by: x\nK: v\n");
    }
}
