//! Logs made in memory, always with the same bytes.

use std::{collections::BTreeMap, io};

use portcullis_audit::{
    Chain, Checkpoint, Draft, FileEntry, Hash, KEY_FACT, Kind, Note, Prepared, PrivateKey, Receipt,
    Segment, Source,
    tree::{self},
};

/// The files of a log in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Memory(pub(crate) BTreeMap<String, Vec<u8>>);

impl Source for Memory {
    type File = io::Cursor<Vec<u8>>;

    fn list(&self) -> io::Result<Vec<FileEntry>> {
        let entry = |(name, bytes): (&String, &Vec<u8>)| FileEntry {
            name: name.clone(),
            length: bytes.len() as u64,
            regular: true,
            directory: false,
        };
        Ok(self.0.iter().filter(|(name, _)| !name.contains('/')).map(entry).collect())
    }

    fn history(&self) -> io::Result<Vec<String>> {
        let names = self.0.keys().filter_map(|name| name.strip_prefix("checkpoints/"));
        Ok(names.map(str::to_owned).collect())
    }

    fn open(&self, name: &str) -> io::Result<Self::File> {
        let bytes = self.0.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(io::Cursor::new(bytes.clone()))
    }
}

/// A log under construction; times and nonces count up.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) chain: Chain,
    pub(crate) files: Memory,
    pub(crate) receipts: Vec<Receipt>,
    /// Distinguishes the nonces from those of other logs.
    pub(crate) salt: u64,
}

impl Log {
    pub(crate) fn push(&mut self, kind: Kind, draft: Draft) -> Receipt {
        let seq = self.chain.next();
        let time = format!(
            "2026-11-21T{:02}:{:02}:{:02}.000000Z",
            8 + seq / 3600 % 12,
            seq / 60 % 60,
            seq % 60
        );
        self.push_at(kind, draft, &time)
    }

    pub(crate) fn push_at(&mut self, kind: Kind, draft: Draft, time: &str) -> Receipt {
        let seq = self.chain.next();
        let nonce = (u128::from(self.salt) << 64 | u128::from(seq)).to_be_bytes();
        let record = Prepared::new(kind, &draft, nonce).unwrap();
        let file = self.files.0.entry(Segment::of(seq).to_string()).or_default();
        let receipt = self.chain.append(&record, time, file);
        self.receipts.push(receipt.clone());
        receipt
    }

    /// Appends an allowed read.
    pub(crate) fn read(&mut self, path: &str) -> Receipt {
        self.push(
            Kind::Decision,
            Draft {
                op: Some("read".to_owned()),
                path: Some(path.to_owned()),
                decision: Some("allow".to_owned()),
                ..Draft::default()
            },
        )
    }

    /// Appends an intent and its outcome.
    pub(crate) fn write(&mut self, path: &str) {
        let intent = self.push(
            Kind::Intent,
            Draft {
                op: Some("write".to_owned()),
                path: Some(path.to_owned()),
                decision: Some("allow".to_owned()),
                ..Draft::default()
            },
        );
        self.outcome(Kind::Outcome, intent.seq);
    }

    pub(crate) fn outcome(&mut self, kind: Kind, of: u64) -> Receipt {
        self.push(kind, Draft { of: Some(of), result: Some("ok".to_owned()), ..Draft::default() })
    }

    /// Returns the lines of the first segment, without newlines.
    pub(crate) fn lines(&self) -> Vec<Vec<u8>> {
        let bytes = &self.files.0["seg-000000.jsonl"];
        let lines = bytes.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n');
        lines.map(<[u8]>::to_vec).collect()
    }

    /// Makes a log of six records: start, a read, a write, a denied read, stop.
    pub(crate) fn six() -> Self {
        let mut log = Self::default();
        log.push(Kind::Start, Draft::default());
        log.read("README.md");
        log.write("src/main.rs");
        log.push(
            Kind::Decision,
            Draft {
                op: Some("read".to_owned()),
                path: Some(".env".to_owned()),
                decision: Some("deny".to_owned()),
                rule: Some("secrets.names[0]".to_owned()),
                ..Draft::default()
            },
        );
        log.push(Kind::Stop, Draft::default());
        log
    }
}

/// Makes a log of one segment with these lines.
pub(crate) fn of_lines<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Memory {
    let mut bytes = Vec::new();
    for line in lines {
        bytes.extend_from_slice(line.as_ref());
        bytes.push(b'\n');
    }
    Memory([("seg-000000.jsonl".to_owned(), bytes)].into())
}

/// Returns a key, always the same for one number.
pub(crate) fn key(number: u8) -> PrivateKey {
    PrivateKey::from_seed(&format!("example.com/log-{number}"), [number; 32]).unwrap()
}

impl Log {
    /// Makes the checkpoint of the first `size` records.
    pub(crate) fn head(&self, size: usize, key: &PrivateKey) -> Note {
        let leaves: Vec<Hash> = self.receipts[..size].iter().map(|receipt| receipt.leaf).collect();
        let origin = key.public().name().to_owned();
        let checkpoint = Checkpoint { origin, size: size as u64, root: tree::root_of(&leaves) };
        let text = checkpoint.to_string();
        Note::assemble(&text, &key.sign(&text)).unwrap()
    }

    /// Signs all records, as a gateway does.
    pub(crate) fn sign(&mut self, key: &PrivateKey) {
        let note = self.head(self.receipts.len(), key).to_string().into_bytes();
        self.files.0.insert(format!("checkpoints/{}", self.receipts.len()), note.clone());
        self.files.0.insert("checkpoint".to_owned(), note);
        self.files.0.insert("key.vkey".to_owned(), format!("{}\n", key.public()).into_bytes());
    }

    /// Appends a `start` that names the key.
    pub(crate) fn start(&mut self, key: &PrivateKey) {
        let facts = [(KEY_FACT.to_owned(), key.public().to_string().into())];
        self.push(Kind::Start, Draft { facts: Some(facts.into()), ..Draft::default() });
    }

    /// Makes a log of eight records, signed after four and after seven; the last one is `last`.
    pub(crate) fn signed(number: u8, last: &str) -> Self {
        let key = key(number);
        let mut log = Self::default();
        log.start(&key);
        log.read("README.md");
        log.write("src/main.rs");
        log.sign(&key);
        log.read("a");
        log.read("b");
        log.read("c");
        log.sign(&key);
        log.read(last);
        log
    }
}
