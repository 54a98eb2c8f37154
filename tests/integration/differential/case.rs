//! A log for both verifiers: a seed, changed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use portcullis_audit::{
    Checkpoint, Draft, Hash, Kind, Note, PrivateKey, PublicKey, SEGMENT_RECORDS, tree,
};

use super::lines;
use crate::{common::World, review::write_log, seeded_random::Random};

/// The log's only segment in most seeds.
pub(super) const SEGMENT: &str = "seg-000000.jsonl";

/// An entry of a log's directory.
#[derive(Debug, Clone)]
enum Node {
    File(Vec<u8>),
    Directory,
    Link,
    Pipe,
}

/// The files of a log by their path in its directory.
#[derive(Debug, Clone, Default)]
pub(super) struct Log(BTreeMap<String, Node>);

/// Further arguments of a verifier.
#[derive(Debug, Clone, Default)]
pub(super) struct VerifierArguments {
    pub(super) heads: BTreeMap<u64, Hash>,
    pub(super) key: Option<PublicKey>,
}

/// The key of the party that changes logs.
pub(super) fn key() -> PrivateKey {
    PrivateKey::from_seed("example.com/other", [7; 32]).unwrap()
}

/// The seeds: every vector, and what was found before.
pub(super) fn seeds() -> Vec<(String, Log)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = Vec::new();
    for (directory, within) in [("audit/vectors", "log"), ("tests/corpus/audit", "")] {
        for entry in std::fs::read_dir(root.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let mut log = Log::default();
            log.read(&path.join(within), "");
            seeds.push((path.file_name().unwrap().to_str().unwrap().to_owned(), log));
        }
    }
    // Of a directory no order is promised.
    seeds.sort_by(|(one, _), (other, _)| one.cmp(other));
    assert!(seeds.len() > 60, "{}", seeds.len());
    seeds
}

/// A log of two segments, of which the first is full, signed at its end.
pub(super) fn long() -> Log {
    let world = World::new();
    write_log(&world, SEGMENT_RECORDS + 3, |_seq| (Kind::Decision, Draft::default()));
    world.run(&["audit", "checkpoint"]).ok();
    let mut log = Log::default();
    log.read(&world.state().join("audit"), "");
    log
}

/// Names that something may get, of the log or nearly so.
const NAMES: [&str; 16] = [
    "seg-000001.jsonl",
    "seg-000002.jsonl",
    "seg-0000000.jsonl",
    "seg-1.jsonl",
    "seg-",
    "seg-281474976710655.jsonl",
    "seg-281474976710656.jsonl",
    "lock",
    "roots",
    "frontier",
    "key.vkey",
    "checkpoint",
    "checkpoints",
    "quarantine",
    ".hidden",
    "notes.txt",
];

/// Fragments of notes, keys and roots.
const BITS: [&[u8]; 18] = [
    b"\n",
    b"\n\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
    b"\xff",
    b"\xc2\xa0",
    b"\xe2\x80\x94",
    b"+",
    b"=",
    b"\xe2\x80\x94 x AAAAAAA=\n",
    b"#",
    b"# c\n",
    b"\xc2\x85",
    b"0",
    b"A",
    b"-",
];

impl Log {
    fn read(&mut self, directory: &Path, prefix: &str) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                self.read(&entry.path(), &format!("{name}/"));
            } else {
                self.0.insert(name, Node::File(std::fs::read(entry.path()).unwrap()));
            }
        }
    }

    /// Writes it to an empty directory.
    pub(super) fn write(&self, directory: &Path) {
        for (name, node) in &self.0 {
            let path = directory.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match node {
                Node::File(bytes) => std::fs::write(path, bytes).unwrap(),
                Node::Directory => std::fs::create_dir(path).unwrap(),
                Node::Link => std::os::unix::fs::symlink(SEGMENT, path).unwrap(),
                Node::Pipe => rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap(),
            }
        }
    }

    /// Changes the log, and returns further arguments for the verifiers.
    pub(super) fn change(
        &mut self,
        random: &mut Random,
        seeds: &[(String, Self)],
    ) -> VerifierArguments {
        let mut asked = VerifierArguments::default();
        for _ in 0..=random.below(2) {
            match random.below(20) {
                0..=11 => self.change_lines(random),
                12..=15 => self.change_bytes(random),
                16..=17 => self.exchange(random, seeds),
                _ => self.place(random),
            }
        }
        if random.below(5) == 0 {
            self.sign(random);
        }
        if random.below(8) == 0 {
            asked.key = Some(key().public());
        }
        if random.below(8) == 0 {
            let leaves = self.leaves();
            let seq = random.below(leaves.len() as u64 + 2);
            let leaf = usize::try_from(seq).ok().and_then(|seq| leaves.get(seq));
            let leaf = leaf.filter(|_| random.below(2) == 0).copied().unwrap_or(Hash::of(b"x"));
            asked.heads.insert(seq, leaf);
        }
        asked
    }

    /// The first segment, or nothing.
    pub(super) fn segment(&self) -> &[u8] {
        match self.0.get(SEGMENT) {
            Some(Node::File(bytes)) => bytes,
            _ => b"",
        }
    }

    fn leaves(&self) -> Vec<Hash> {
        let mut leaves = Vec::new();
        for name in self.segments() {
            let Some(Node::File(bytes)) = self.0.get(&name) else { continue };
            let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            leaves.extend(whole.split(|byte| *byte == b'\n').map(Hash::leaf));
        }
        leaves
    }

    /// The names of segments, or nearly so, in the order of the log.
    fn segments(&self) -> Vec<String> {
        self.0.keys().filter(|name| name.starts_with("seg-")).cloned().collect()
    }

    /// Compresses the first segment as gateways do, if another one follows it.
    pub(super) fn pack(&mut self) -> bool {
        let (Some(Node::File(bytes)), Some(Node::File(_))) =
            (self.0.get(SEGMENT), self.0.get("seg-000001.jsonl"))
        else {
            return false;
        };
        let (file, length) = (tempfile::NamedTempFile::new().unwrap(), bytes.len() as u64);
        let packed = file.reopen().unwrap();
        portcullis::gateway::AuditLog::compress_segment(&**bytes, packed, length).unwrap();
        let packed = Node::File(std::fs::read(file.path()).unwrap());
        self.0.remove(SEGMENT);
        self.0.insert(format!("{SEGMENT}.zst"), packed);
        true
    }

    /// Changes lines, mostly so that they are a chain again.
    fn change_lines(&mut self, random: &mut Random) {
        let names = self.segments();
        let at = if names.len() > 1 { random.below(names.len() as u64) } else { 0 };
        let name = names.get(usize::try_from(at).unwrap()).map_or(SEGMENT, String::as_str);
        let Some(Node::File(bytes)) = self.0.get_mut(name) else { return };
        *bytes = lines::change(bytes, random);
        // Else what is signed hides what else is wrong.
        if random.below(3) > 0 {
            self.0.retain(|name, _| !name.starts_with("checkpoint"));
        }
    }

    fn pick(&self, random: &mut Random) -> Option<String> {
        let names: Vec<_> = self.0.keys().collect();
        names
            .get(usize::try_from(random.below(names.len().max(1) as u64)).unwrap())
            .map(|name| (*name).clone())
    }

    /// Changes some bytes of any file.
    fn change_bytes(&mut self, random: &mut Random) {
        let Some(name) = self.pick(random) else { return };
        let Some(Node::File(bytes)) = self.0.get_mut(&name) else { return };
        for _ in 0..=random.below(3) {
            let at = usize::try_from(random.below(bytes.len() as u64 + 1)).unwrap();
            let length = [1, 2, 8, 64][usize::try_from(random.below(4)).unwrap()];
            let end = (at + length).min(bytes.len());
            match random.below(5) {
                0 if at < bytes.len() => bytes[at] = u8::try_from(random.below(256)).unwrap(),
                1 => drop(bytes.drain(at..end)),
                2 => {
                    let twice = bytes[at..end].to_vec();
                    bytes.splice(at..at, twice);
                }
                3 => bytes.truncate(at),
                _ => {
                    let bit = BITS[usize::try_from(random.below(BITS.len() as u64)).unwrap()];
                    bytes.splice(at..at, bit.iter().copied());
                }
            }
        }
    }

    /// Removes, exchanges or takes over files, also another log's.
    fn exchange(&mut self, random: &mut Random, seeds: &[(String, Self)]) {
        let (Some(one), Some(other)) = (self.pick(random), self.pick(random)) else { return };
        match random.below(4) {
            0 => drop(self.0.remove(&one)),
            1 => {
                let (first, second) = (self.0[&one].clone(), self.0[&other].clone());
                self.0.insert(one, second);
                self.0.insert(other, first);
            }
            2 => {
                let (_, log) = &seeds[usize::try_from(random.below(seeds.len() as u64)).unwrap()];
                if let Some(name) = log.pick(random) {
                    let node = log.0[&name].clone();
                    self.put(name, node);
                }
            }
            _ => {
                let node = self.0[&one].clone();
                self.put(NAMES[usize::try_from(random.below(3)).unwrap()].to_owned(), node);
            }
        }
    }

    /// Puts something where a file of the log is, or might be.
    fn place(&mut self, random: &mut Random) {
        let name = match random.below(2) {
            0 => self.pick(random).unwrap_or_default(),
            _ => NAMES[usize::try_from(random.below(NAMES.len() as u64)).unwrap()].to_owned(),
        };
        let node = match random.below(5) {
            0 => Node::Directory,
            1 => Node::Link,
            2 => Node::Pipe,
            3 => Node::File(Vec::new()),
            _ => Node::File(format!("{}\n", Hash::of(b"x")).into_bytes()),
        };
        self.put(name, node);
    }

    fn put(&mut self, name: String, node: Node) {
        if name.is_empty() {
            return;
        }
        // A replaced directory loses its contents; a file has none.
        let within = format!("{name}/");
        self.0.retain(|other, _| !other.starts_with(&within));
        if let Some((directory, _)) = name.split_once('/') {
            self.0.remove(directory);
        }
        self.0.insert(name, node);
    }

    /// Signs what is there with another key, rightly or nearly so.
    fn sign(&mut self, random: &mut Random) {
        let leaves = self.leaves();
        let note = |random: &mut Random, size: usize| {
            let root = tree::root_of(&leaves[..size.min(leaves.len())]);
            let root = if random.below(6) == 0 { Hash::of(b"x") } else { root };
            let more =
                ["", "", "", "more\n", "\n", "a\nb\n"][usize::try_from(random.below(6)).unwrap()];
            let checkpoint =
                Checkpoint { origin: key().public().name().to_owned(), size: size as u64, root };
            let text = format!("{checkpoint}{more}");
            Note::assemble(&text, &key().sign(&text))
                .map_or_else(|_| text.clone().into_bytes(), |note| note.to_string().into_bytes())
        };
        let size =
            |random: &mut Random| usize::try_from(random.below(leaves.len() as u64 + 2)).unwrap();
        if random.below(8) > 0 {
            self.put(
                "key.vkey".to_owned(),
                Node::File(format!("{}\n", key().public()).into_bytes()),
            );
        }
        if random.below(4) > 0 {
            let size = size(random);
            let note = note(random, size);
            self.put("checkpoint".to_owned(), Node::File(note));
        }
        for _ in 0..random.below(3) {
            let size = size(random);
            let name = ["", "", "", "0", "+"][usize::try_from(random.below(5)).unwrap()];
            let note = note(random, size);
            self.put(format!("checkpoints/{name}{size}"), Node::File(note));
        }
    }
}

/// A directory for logs, where files cost little.
pub(super) fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The name of a case's directory.
pub(super) fn path(place: &Path, number: u64) -> PathBuf {
    place.join(number.to_string())
}
