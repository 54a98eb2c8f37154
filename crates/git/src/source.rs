//! Sources of objects.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write},
};

use super::{Error, Object, ObjectId, ObjectKind};

/// Maximum length of the line before an object.
const MAX_LINE: u64 = 256;
/// Maximum number of bytes that are read from one repository.
const MAX_BYTES: u64 = 512 << 20;
/// Maximum number of objects that are read from one repository.
const MAX_OBJECTS: u64 = 500_000;

/// The objects of a repository.
pub trait Source {
    /// Returns the content of the object of this kind and name.
    ///
    /// # Errors
    /// If it is missing, of another kind, or larger than `max`, or if its content has another name.
    fn read(&mut self, id: &ObjectId, kind: ObjectKind, max: u64) -> Result<Vec<u8>, Error>;
}

/// A process that reads objects, by its standard input and output.
#[derive(Debug)]
struct Process<W, R: Read> {
    requests: W,
    replies: BufReader<R>,
}

/// Objects that processes of `git cat-file --batch-command` read, one process at a time. An object
/// at which one fails is not requested again, and the next process takes over.
#[derive(Debug)]
pub struct Objects<W, R: Read> {
    process: Option<Process<W, R>>,
    others: std::vec::IntoIter<(W, R)>,
    unreadable: HashSet<ObjectId>,
    bytes: u64,
    objects: u64,
}

impl<W: Write, R: Read> Objects<W, R> {
    /// Reads from the processes with these standard inputs and outputs.
    pub fn new(processes: Vec<(W, R)>) -> Self {
        let (others, unreadable) = (processes.into_iter(), HashSet::new());
        let (bytes, objects) = (MAX_BYTES, MAX_OBJECTS);
        let mut all = Self { process: None, others, unreadable, bytes, objects };
        all.begin();
        all
    }

    /// Switches to the next process, since the next reply of a failed one is undefined.
    fn begin(&mut self) {
        let process = |(requests, replies)| Process { requests, replies: BufReader::new(replies) };
        self.process = self.others.next().map(process);
    }
}

impl<W: Write, R: Read> Process<W, R> {
    /// Requests an object and reads the line with its kind and size.
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

impl<W: Write, R: Read> Process<W, R> {
    /// Reads an object unless `begin` refuses its size.
    fn read(
        &mut self,
        id: &ObjectId,
        kind: ObjectKind,
        begin: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        // The size is checked before git unpacks the object.
        let size = self.ask("info", id, kind)?;
        begin(size)?;
        match self.ask("contents", id, kind) {
            Ok(same) if same == size => {}
            Err(Error::Io(error)) => return Err(error.into()),
            // The object has been replaced meanwhile.
            _ => return Err(Error::Reply),
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

impl<W: Write, R: Read> Source for Objects<W, R> {
    fn read(&mut self, id: &ObjectId, kind: ObjectKind, max: u64) -> Result<Vec<u8>, Error> {
        if self.unreadable.contains(id) {
            return Err(Error::Unreadable(id.clone()));
        }
        let process = self.process.as_mut().ok_or(Error::Exhausted)?;
        self.objects = self.objects.checked_sub(1).ok_or(Error::Budget)?;
        let left = &mut self.bytes;
        let read = process.read(id, kind, |size| {
            if size > max {
                return Err(Error::TooLarge { id: id.clone(), size, max });
            }
            *left = left.checked_sub(size).ok_or(Error::Budget)?;
            Ok(())
        });
        if matches!(read, Err(Error::Io(_) | Error::Reply)) {
            self.unreadable.insert(id.clone());
            self.begin();
            return Err(Error::Unreadable(id.clone()));
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ObjectId {
        Object::new(crate::Format::Sha1, ObjectKind::Blob, b"x\n".to_vec()).id
    }

    fn objects(replies: &[String]) -> Objects<Vec<u8>, &[u8]> {
        Objects::new(replies.iter().map(|replies| (Vec::new(), replies.as_bytes())).collect())
    }

    fn read(replies: &str, max: u64) -> Result<Vec<u8>, Error> {
        let replies = [replies.replace("ID", &id().to_string())];
        objects(&replies).read(&id(), ObjectKind::Blob, max)
    }

    #[test]
    fn an_object_is_read_if_its_content_has_its_name() {
        assert_eq!(read("ID blob 2\nID blob 2\nx\n\n", 2).ok(), Some(b"x\n".to_vec()));
        let squatted = read("ID blob 2\nID blob 2\ny\n\n", 2);
        assert!(matches!(squatted, Err(Error::Corrupt(_))), "{squatted:?}");
        assert!(matches!(read("ID missing\n", 2), Err(Error::Missing(_))));
        assert!(matches!(read("ID blob 3\n", 2), Err(Error::TooLarge { size: 3, .. })));
        assert!(matches!(read("ID tree 2\n", 2), Err(Error::Kind(..))));
        for failed in ["ID blob 2\nID blob 1\nx\n", "ID blob 2\nID tree 2\nx\n\n", ""] {
            assert!(matches!(read(failed, 2), Err(Error::Unreadable(_))), "{failed:?}");
        }
        assert!(matches!(read(&"x".repeat(1000), 2), Err(Error::Unreadable(_))));
    }

    #[test]
    fn a_process_that_fails_is_replaced_and_not_asked_for_the_object_again() {
        let other = Object::new(crate::Format::Sha1, ObjectKind::Blob, b"y".to_vec()).id;
        let replies =
            [format!("{} blob 2\n", id()), format!("{other} blob 1\n{other} blob 1\ny\n")];
        let mut objects = objects(&replies);
        let mut read = |id: &ObjectId| objects.read(id, ObjectKind::Blob, 2);
        for _ in 0..2 {
            assert!(matches!(read(&id()), Err(Error::Unreadable(_))));
        }
        assert_eq!(read(&other).ok(), Some(b"y".to_vec()));
        assert!(matches!(read(&other), Err(Error::Unreadable(_))));
        let third = Object::new(crate::Format::Sha1, ObjectKind::Blob, b"z".to_vec()).id;
        assert!(matches!(read(&third), Err(Error::Exhausted)));
    }
}
