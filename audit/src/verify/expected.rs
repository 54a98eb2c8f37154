//! The expected root hashes of the tree at certain sizes: checkpoints in the log's directory and
//! from outside, and the stored roots of segments.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufReader, Read},
};

use super::report::{Report, SignedPart};
use crate::{
    Checkpoint, Damage, DamageKind, HISTORY, Hash, KEYS, MAX_NOTE, NEWEST, Note, NoteError,
    PublicKey, ROOT_LINE, ROOTS, Segment, Signed, Source, distinct, parse_keys, read_root_line,
    tree::{Frontier, SEGMENT_LEVEL},
};

/// Maximum number of stored roots: those of 2^36 records.
const MAX_ROOTS: usize = 1 << 20;

/// The expectations. They are read before the log's directory is listed, so that no checkpoint
/// covers more records than are read.
pub(super) struct Expectations {
    keys: Vec<PublicKey>,
    witnesses: Vec<PublicKey>,
    pub(super) signed: SignedPart,
    /// Sizes of the stored checkpoints; each is loaded only when it is reached.
    history: Vec<u64>,
    newest: Option<(Checkpoint, Signed)>,
    outside: BTreeMap<u64, Vec<Checkpoint>>,
    roots: Vec<Option<Hash>>,
    /// The correct roots of segments whose stored root is wrong.
    pub(super) wrong_roots: BTreeMap<u64, Hash>,
    tree: Frontier,
    /// The largest size at which a checkpoint, of the log or from outside, was correct.
    right: u64,
    /// True if no key was given, and none is in the log's directory.
    keyless: bool,
    pub(super) unexpected: Vec<String>,
    faults: Vec<Damage>,
    /// Witnesses with invalid signatures, each with the size of the checkpoint.
    pub(super) wrong_witnesses: BTreeSet<(String, u64)>,
}

fn fault(kind: DamageKind, file: &str, seq: Option<u64>, detail: String) -> Damage {
    Damage { kind, segment: file.to_owned(), seq, line: None, detail }
}

/// Opens a file that may be missing. An irregular file is a fault of this kind, at record `seq`.
fn opened<S: Source>(
    source: &S,
    name: &str,
    kind: DamageKind,
    seq: Option<u64>,
    faults: &mut Vec<Damage>,
) -> io::Result<Option<S::File>> {
    match source.open(name) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            faults.push(fault(kind, name, seq, error.to_string()));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn small<S: Source>(
    source: &S,
    name: &str,
    seq: Option<u64>,
    faults: &mut Vec<Damage>,
) -> io::Result<Option<Vec<u8>>> {
    let file = opened(source, name, DamageKind::BadCheckpoint, seq, faults)?;
    let read = |file: S::File| {
        let mut bytes = Vec::new();
        file.take(MAX_NOTE as u64 + 1).read_to_end(&mut bytes).map(|_length| bytes)
    };
    file.map(read).transpose()
}

impl Expectations {
    pub(super) fn read<S: Source>(
        source: &S,
        given: Vec<PublicKey>,
        witnesses: Vec<PublicKey>,
        outside: Vec<Checkpoint>,
    ) -> io::Result<Self> {
        // Keys are read after the list of checkpoints, so that none is by a key that is not read
        // yet. Faults are reported in the order of FORMAT.md.
        let (mut of_newest, mut of_history, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        let newest = small(source, NEWEST, None, &mut of_newest)?;
        let (history, unexpected) = kept(source, &mut of_history)?;
        let mut own = Vec::new();
        let published = small(source, KEYS, None, &mut faults)?;
        let is_missing = published.is_none() && faults.is_empty() && given.is_empty();
        if let Some(bytes) = published {
            let whole = if bytes.len() > MAX_NOTE { &[] } else { bytes.as_slice() };
            match parse_keys(&String::from_utf8_lossy(whole)) {
                Ok(keys) => own = keys,
                Err(error) => {
                    let kind = DamageKind::BadCheckpoint;
                    faults.push(fault(kind, KEYS, None, error.to_string()));
                }
            }
        }
        let mut signed = SignedPart { given: !given.is_empty(), ..SignedPart::default() };
        if signed.given
            && let Some(own) = own.first()
            && !given.contains(own)
        {
            let detail = format!("the log names the key {own}, which is not the one given");
            faults.push(fault(DamageKind::WrongKey, KEYS, None, detail));
        }
        let keys = if signed.given { given } else { own };
        signed.key = keys.first().map(ToString::to_string);
        let known: Vec<PublicKey> = witnesses.into_iter().chain(keys.iter().cloned()).collect();
        if let Err(error) = distinct(&known) {
            let detail = format!("of the log's keys and those of witnesses: {error}");
            faults.push(fault(DamageKind::BadCheckpoint, KEYS, None, detail));
        }
        let mut sizes = BTreeMap::<u64, Vec<Checkpoint>>::new();
        for checkpoint in outside {
            sizes.entry(checkpoint.size).or_default().push(checkpoint);
        }
        let mut expectations = Self {
            keyless: is_missing,
            keys,
            witnesses: known,
            signed,
            newest: None,
            outside: sizes,
            roots: Vec::new(),
            wrong_roots: BTreeMap::new(),
            tree: Frontier::new(),
            right: 0,
            unexpected,
            faults,
            wrong_witnesses: BTreeSet::new(),
            history,
        };
        if newest.is_some() || !of_newest.is_empty() || !expectations.history.is_empty() {
            expectations.need_key(None, "there are checkpoints");
        }
        expectations.faults.append(&mut of_history);
        expectations.faults.append(&mut of_newest);
        expectations.newest = newest.and_then(|bytes| expectations.open(NEWEST, None, &bytes));
        expectations.roots = roots(source, &mut expectations.faults)?;
        Ok(expectations)
    }

    /// Reports once that the public key is missing, if it is.
    fn need_key(&mut self, seq: Option<u64>, reason: &str) {
        if std::mem::take(&mut self.keyless) {
            let detail =
                format!("{reason}, but the log's public key is missing, so they cannot be checked");
            self.faults.push(fault(DamageKind::MissingKey, KEYS, seq, detail));
        }
    }

    /// Takes the faults found since the last call.
    pub(super) fn faults(&mut self) -> Vec<Damage> {
        std::mem::take(&mut self.faults)
    }

    /// Checks a key that a record names.
    pub(super) fn key(&mut self, seq: u64, name: &str) {
        self.need_key(Some(seq), "records name a key for checkpoints");
        if !self.keys.iter().any(|key| key.to_string() == name) && !self.keys.is_empty() {
            let detail = format!("record {seq} names the key {name}, which is not a key known");
            self.faults.push(fault(DamageKind::WrongKey, KEYS, Some(seq), detail));
        }
    }

    /// Skips segments of which only the roots are stored; false if they are not.
    pub(super) fn pruned<S: Source>(&mut self, source: &S, until: Segment) -> io::Result<bool> {
        let Some(roots) = usize::try_from(until.0).ok().and_then(|count| self.roots.get(..count))
        else {
            return Ok(false);
        };
        let mut tree = Frontier::new();
        let whole = roots
            .iter()
            .all(|root| root.is_some_and(|root| tree.push_subtree(SEGMENT_LEVEL, root)));
        if whole {
            self.tree = tree;
            // Checkpoints in the middle of a pruned segment cannot be checked.
            let size = self.tree.size();
            self.history.retain(|at| *at >= size);
            self.check(source)?;
        }
        Ok(whole)
    }

    /// Adds the leaf hash of the next record.
    pub(super) fn push<S: Source>(&mut self, source: &S, leaf: Hash) -> io::Result<()> {
        let before = self.tree.size();
        let full = before % (1 << SEGMENT_LEVEL) == (1 << SEGMENT_LEVEL) - 1;
        if full {
            let below = self.tree.hashes().iter().rev().take(SEGMENT_LEVEL as usize);
            let root = below.fold(leaf, |right, left| Hash::node(left, &right));
            let segment = before >> SEGMENT_LEVEL;
            let kept = usize::try_from(segment).ok().and_then(|at| self.roots.get(at));
            if kept.is_some_and(|kept| *kept != Some(root)) {
                let detail =
                    format!("the root of {} is {root}, not the stored one", Segment(segment));
                self.faults.push(fault(DamageKind::WrongRoot, ROOTS, Some(before), detail));
                self.wrong_roots.insert(segment, root);
            }
        }
        self.tree.push(leaf);
        let size = self.tree.size();
        let newest = self.newest.as_ref().is_some_and(|(newest, _)| newest.size == size);
        let kept = self.history.last().is_some_and(|at| *at <= size);
        if newest || kept || self.outside.contains_key(&size) {
            self.check(source)?;
        }
        Ok(())
    }

    /// Checks the expectations for the tree's current size.
    pub(super) fn check<S: Source>(&mut self, source: &S) -> io::Result<()> {
        let (size, root) = (self.tree.size(), self.tree.root());
        let before = self.signed.checkpoints;
        // A smaller size left in the list would hide all larger ones.
        while let Some(at) = self.history.pop_if(|at| *at <= size) {
            let name = format!("{HISTORY}/{at}");
            if let Some(bytes) = small(source, &name, at.checked_sub(1), &mut self.faults)?
                && let Some((checkpoint, signed)) = self.open(&name, Some(at), &bytes)
            {
                self.compare(&name, &checkpoint, &signed, root);
            }
        }
        if let Some((newest, signed)) = self.newest.take_if(|(newest, _)| newest.size == size) {
            self.compare(NEWEST, &newest, &signed, root);
            self.signed.checkpoints = self.signed.checkpoints.min(before + 1);
        }
        for checkpoint in self.outside.remove(&size).unwrap_or_default() {
            if checkpoint.root != root {
                let detail = format!(
                    "the first {size} records have the root {root}, the checkpoint from outside \
                     says {}",
                    checkpoint.root
                );
                let file = Segment::of(size.saturating_sub(1)).to_string();
                let seq = size.checked_sub(1);
                self.faults.push(fault(DamageKind::WrongHead, &file, seq, detail));
            } else {
                self.right = size;
            }
        }
        Ok(())
    }

    /// True if a correct checkpoint covers exactly the first `records` records.
    pub(super) fn bears_out(&self, records: u64) -> bool {
        records > 0 && self.right == records
    }

    fn compare(&mut self, name: &str, checkpoint: &Checkpoint, signed: &Signed, root: Hash) {
        let size = self.tree.size();
        let seq = size.checked_sub(1);
        if checkpoint.size != size {
            let detail = format!("the checkpoint is of {} records", checkpoint.size);
            self.faults.push(fault(DamageKind::BadCheckpoint, name, seq, detail));
        } else if checkpoint.root != root {
            let detail = format!(
                "the first {size} records have the root {root}, the checkpoint says {}",
                checkpoint.root
            );
            self.faults.push(fault(DamageKind::WrongRoot, name, seq, detail));
        } else if size > 0 {
            self.right = size;
            self.signed.checkpoints += 1;
            self.signed.records = size;
            let key = signed.by.to_string();
            self.signed.keys.retain(|known| *known != key);
            self.signed.keys.push(key.clone());
            self.signed.key = Some(key);
            let names = signed.witnesses.iter().map(|(key, _)| key.name().to_owned());
            self.signed.witnesses = names.collect();
            let keys = signed.witnesses.iter().map(|(key, _)| key.to_string());
            self.signed.cosigned.extend(keys.map(|key| (key, size)));
        }
    }

    /// Parses the checkpoint in a file, if one of the keys signed it; `size` is that in the file's
    /// name.
    fn open(
        &mut self,
        name: &str,
        size: Option<u64>,
        bytes: &[u8],
    ) -> Option<(Checkpoint, Signed)> {
        if self.keys.is_empty() {
            return None;
        }
        let opened = Note::parse(bytes).and_then(|note| {
            let signed = note.verify(&self.witnesses)?;
            let checkpoint = Checkpoint::of(&note)?;
            let own = checkpoint.origin == signed.by.name()
                && self.keys.contains(&signed.by)
                && !signed.wrong.iter().any(|key| self.keys.contains(key));
            if own { Ok((checkpoint, signed)) } else { Err(NoteError::Checkpoint) }
        });
        if let Ok((checkpoint, signed)) = &opened {
            let of = |key: &PublicKey| (key.name().to_owned(), checkpoint.size);
            self.wrong_witnesses.extend(signed.wrong.iter().map(of));
        }
        opened
            .inspect_err(|error| {
                let seq = size.and_then(|size| size.checked_sub(1));
                let detail = error.to_string();
                self.faults.push(fault(DamageKind::BadCheckpoint, name, seq, detail));
            })
            .ok()
    }

    /// Reports the expectations that are left after the log has ended with `records`, of which the
    /// first `pruned` are gone. Returns the sizes of checkpoints from outside that cannot be
    /// checked for that reason.
    pub(super) fn finish(&mut self, records: u64, pruned: u64) -> Vec<u64> {
        let file = Segment::of(records).to_string();
        let mut missing: Vec<_> =
            self.history.drain(..).rev().map(|size| (size, "a checkpoint")).collect();
        missing
            .extend(self.newest.take().map(|(newest, _)| (newest.size, "the newest checkpoint")));
        let mut outside = std::mem::take(&mut self.outside);
        let kept = outside.split_off(&pruned);
        missing.extend(kept.into_keys().map(|size| (size, "a checkpoint from outside")));
        // Sizes that were not reached because of damage are not missing. One more damage than a
        // report lists shows that there are more.
        let missing = missing.into_iter().filter(|(size, _)| *size > records);
        for (size, what) in missing.take(Report::MAX_DAMAGES + 1) {
            let detail = format!("the log ends after {records} records, but {what} is of {size}");
            self.faults.push(fault(DamageKind::MissingHead, &file, size.checked_sub(1), detail));
        }
        for (size, checkpoints) in &outside {
            let mut roots = checkpoints.iter().map(|checkpoint| checkpoint.root);
            let first = roots.next();
            if roots.any(|root| Some(root) != first) {
                let detail = format!("two checkpoints from outside of {size} records differ");
                let seq = size.checked_sub(1);
                self.faults.push(fault(DamageKind::WrongHead, &file, seq, detail));
            }
        }
        outside.into_keys().collect()
    }
}

/// Returns the sizes of stored checkpoints, largest first, and the other names among them.
fn kept<S: Source>(source: &S, faults: &mut Vec<Damage>) -> io::Result<(Vec<u64>, Vec<String>)> {
    let names = source.history().or_else(|error| {
        if error.kind() != io::ErrorKind::InvalidInput {
            return Err(error);
        }
        faults.push(fault(DamageKind::BadCheckpoint, HISTORY, None, error.to_string()));
        Ok(Vec::new())
    })?;
    let (mut sizes, mut unexpected) = (Vec::new(), Vec::new());
    for name in names.into_iter().filter(|name| !name.starts_with('.')) {
        match name.parse::<u64>() {
            Ok(size) if size.to_string() == name => sizes.push(size),
            _ => unexpected.push(format!("{HISTORY}/{name}")),
        }
    }
    sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
    Ok((sizes, unexpected))
}

/// Reads the file of segments' roots; a line that is not a root counts as unknown. Memory is
/// bounded by the maximum number, whatever the file contains.
fn roots<S: Source>(source: &S, faults: &mut Vec<Damage>) -> io::Result<Vec<Option<Hash>>> {
    let Some(file) = opened(source, ROOTS, DamageKind::WrongRoot, None, faults)? else {
        return Ok(Vec::new());
    };
    let mut file = BufReader::new(file.take(MAX_ROOTS as u64 * ROOT_LINE));
    let (mut roots, mut line) = (Vec::new(), Vec::new());
    while roots.len() < MAX_ROOTS {
        line.clear();
        if read_root_line(&mut file, &mut line)? == 0 {
            break;
        }
        let text = str::from_utf8(line.strip_suffix(b"\n").unwrap_or(&line));
        roots.push(text.ok().and_then(|text| text.parse().ok()));
    }
    // A last line may be incomplete.
    while roots.pop_if(|root| root.is_none()).is_some() {}
    Ok(roots)
}
