//! Where objects come from.

use std::io::{BufRead, BufReader, Read, Write};

use super::{Error, Object, ObjectId, ObjectKind};

/// The longest line before an object.
const MAX_LINE: u64 = 256;
/// The most bytes that are read of one repository.
const MAX_BYTES: u64 = 512 << 20;
/// The most objects that are read of one repository.
const MAX_OBJECTS: u64 = 500_000;

/// A repository's objects.
pub trait Source {
    /// The content of an object of this kind, which has this name.
    ///
    /// # Errors
    /// When it is missing, of another kind, larger than `max`, or its content has another name.
    fn read(&mut self, id: &ObjectId, kind: ObjectKind, max: u64) -> Result<Vec<u8>, Error>;
}

/// The objects that a process of `git cat-file --batch-command` reads for us.
#[derive(Debug)]
pub struct Objects<W, R: Read> {
    requests: W,
    replies: BufReader<R>,
    bytes: u64,
    objects: u64,
}

impl<W: Write, R: Read> Objects<W, R> {
    /// Those of the process whose standard input and output these are.
    pub fn new(requests: W, replies: R) -> Self {
        let replies = BufReader::new(replies);
        Self { requests, replies, bytes: MAX_BYTES, objects: MAX_OBJECTS }
    }

    /// Asks for an object and reads the line with its kind and size.
    fn ask(&mut self, command: &str, id: &ObjectId, kind: ObjectKind) -> Result<u64, Error> {
        self.requests.write_all(format!("{command} {id}\n").as_bytes())?;
        self.requests.flush()?;
        let mut line = Vec::new();
        self.replies.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        let line = str::from_utf8(&line).map_err(|_| Error::Reply)?;
        let line = line.strip_suffix('\n').ok_or(Error::Reply)?;
        let rest = line.strip_prefix(&format!("{id} ")).ok_or(Error::Reply)?;
        match rest.split_once(' ') {
            None if rest == "missing" => Err(Error::Missing(id.clone())),
            None => Err(Error::Reply),
            Some((word, size)) if word == kind.as_str() => size.parse().map_err(|_| Error::Reply),
            Some(_) => Err(Error::Kind(id.clone(), kind)),
        }
    }
}

impl<W: Write, R: Read> Source for Objects<W, R> {
    fn read(&mut self, id: &ObjectId, kind: ObjectKind, max: u64) -> Result<Vec<u8>, Error> {
        self.objects = self.objects.checked_sub(1).ok_or(Error::Budget)?;
        // Before git unpacks it: the size stands at the beginning.
        let size = self.ask("info", id, kind)?;
        if size > max {
            return Err(Error::TooLarge { id: id.clone(), size, max });
        }
        self.bytes = self.bytes.checked_sub(size).ok_or(Error::Budget)?;
        if self.ask("contents", id, kind)? != size {
            return Err(Error::Reply);
        }
        let mut bytes = Vec::new();
        let read = self.replies.by_ref().take(size).read_to_end(&mut bytes)?;
        let mut end = [0];
        self.replies.read_exact(&mut end)?;
        if u64::try_from(read) != Ok(size) || end != *b"\n" {
            return Err(Error::Reply);
        }
        let object = Object::new(id.format(), kind, bytes);
        if object.id == *id { Ok(object.bytes) } else { Err(Error::Corrupt(id.clone())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(replies: &str, max: u64) -> Result<Vec<u8>, Error> {
        let id = Object::new(crate::Format::Sha1, ObjectKind::Blob, b"x\n".to_vec()).id;
        let replies = replies.replace("ID", &id.to_string());
        Objects::new(Vec::new(), replies.as_bytes()).read(&id, ObjectKind::Blob, max)
    }

    #[test]
    fn an_object_is_read_if_its_content_has_its_name() {
        assert_eq!(read("ID blob 2\nID blob 2\nx\n\n", 2).ok(), Some(b"x\n".to_vec()));
        let squatted = read("ID blob 2\nID blob 2\ny\n\n", 2);
        assert!(matches!(squatted, Err(Error::Corrupt(_))), "{squatted:?}");
        assert!(matches!(read("ID missing\n", 2), Err(Error::Missing(_))));
        assert!(matches!(read("ID blob 3\n", 2), Err(Error::TooLarge { size: 3, .. })));
        assert!(matches!(read("ID tree 2\n", 2), Err(Error::Kind(..))));
        assert!(matches!(read("ID blob 2\nID blob 1\nx\n", 2), Err(Error::Reply)));
        assert!(matches!(read("", 2), Err(Error::Io(_))));
        assert!(matches!(read(&"x".repeat(1000), 2), Err(Error::Reply)));
    }
}
