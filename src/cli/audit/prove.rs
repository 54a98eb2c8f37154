//! `portcullis audit prove`: proofs that can be verified with the public key alone.

use std::{
    io::{self, Read as _},
    path::Path,
    process::ExitCode,
};

use portcullis_audit::{
    Checkpoint, Claim, Directory, Hash, Note, Proof, ROOTS, Reader, SEGMENT_RECORDS, Segment,
    Source as _,
    tree::{Frontier, Prover, SEGMENT_LEVEL},
};

use super::{heads, location::LogSource};
use crate::app::{
    audit_log::{log_files, unreadable},
    failure::{Context as _, Exit, Failure},
};

/// The maximum of bytes of the segments' roots: those of a million segments.
const MAX_ROOTS: u64 = 64 << 20;

/// Prove that a record is in the log, or that the log only ever grew
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit prove 4711 > record.tlog-proof\n  \
    portcullis audit prove --from 4096 > growth.tlog-proof\n\n\
    A proof has the newest checkpoint and, of a record, its line. `portcullis audit check-proof` \
    and `audit/verify.py proof` check it with the public key alone.")]
pub(super) struct Args {
    #[command(flatten)]
    log: LogSource,
    /// The record
    #[arg(value_name = "SEQ", required_unless_present = "from", conflicts_with = "from")]
    seq: Option<u64>,
    /// Prove that this log continues the one that had SIZE records
    #[arg(long, value_name = "SIZE")]
    from: Option<u64>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let directory = args.log.directory()?;
    let source = log_files(&directory)?;
    let note = heads::newest(&directory)?.ok_or_else(|| {
        Failure::new("there is no checkpoint that a proof could lead to")
            .help("`portcullis audit checkpoint` makes one")
    })?;
    let checkpoint = heads::checkpoint(&note, &[], &directory)?;
    attainable(args, &source, &directory, checkpoint.size)?;
    let proof = prove(args.seq, args.from, &source, &checkpoint, &note)?;
    outln!("{}", proof.to_string().trim_end_matches('\n'));
    Ok(ExitCode::SUCCESS)
}

/// Refuses records that are not in the log, or not any more.
fn attainable(args: &Args, source: &Directory, directory: &Path, size: u64) -> Result<(), Failure> {
    let wrong = |error: io::Error| unreadable(directory, &error);
    let entries = source.list().map_err(wrong)?;
    let segments = || entries.iter().filter_map(|entry| Segment::from_name(&entry.name));
    let first = segments().min().unwrap_or(Segment(0));
    // Segments without roots were not pruned but deleted, which is damage.
    let pruned = roots(source)?.len() as u64 >= first.0;
    let is_gone = |record: u64| pruned && record < first.first();
    match (args.seq, args.from) {
        (Some(seq), _) if is_gone(seq) => Err(Failure::new(format_args!(
            "record {seq} was pruned: only the root of its segment is left"
        ))),
        (_, Some(old)) if is_gone(old) && !old.is_multiple_of(SEGMENT_RECORDS) => {
            Err(Failure::new(format_args!(
                "the log of {old} records ended within what was pruned: only the roots of whole \
                 segments are left"
            ))
            .help(format_args!("sizes that are multiples of {SEGMENT_RECORDS} are provable")))
        }
        (seq, from) => {
            let wanted = seq.map(|seq| seq.saturating_add(1)).or(from).unwrap_or(0);
            if wanted <= size {
                return Ok(());
            }
            let records = records(source).map_err(wrong)?;
            if wanted <= records {
                return Ok(());
            }
            Err(Failure::new(match seq {
                Some(seq) => format!("there is no record {seq}: the log has {records} records"),
                None => format!("the log has {records} records, fewer than {wanted}"),
            }))
        }
    }
}

/// Counts the records up to the end of the log.
fn records(source: &Directory) -> io::Result<u64> {
    let entries = source.list()?;
    let last = entries.iter().filter_map(|entry| Segment::from_name(&entry.name)).max();
    let Some(last) = last else { return Ok(0) };
    let (mut reader, mut count) = (Reader::new(source, last.first()), 0);
    while reader.next()?.is_some() {
        count += 1;
    }
    Ok(last.first().saturating_add(count))
}

/// Returns the verified proof of record `seq` or, with `from`, of consistency.
pub(super) fn prove(
    seq: Option<u64>,
    from: Option<u64>,
    source: &Directory,
    checkpoint: &Checkpoint,
    note: &[u8],
) -> Result<Proof, Failure> {
    let size = checkpoint.size;
    let mut leaves = Leaves { source, roots: roots(source)?, cached: None };
    let read = |error: io::Error| {
        let damaged = error.kind() == io::ErrorKind::InvalidData;
        Failure::new(format_args!("cannot make the proof: {error}"))
            .help("`portcullis audit verify` says what is wrong")
            .exit(if damaged { Exit::Audit } else { Exit::Failure })
    };
    // A key of another party may have signed any size, of which the tree could not be computed.
    let records = records(source).map_err(read)?;
    if size > records {
        return Err(Failure::new(format_args!(
            "the newest checkpoint is of {size} records, and the log has {records}"
        ))
        .help("`portcullis audit verify` says what is wrong")
        .exit(Exit::Audit));
    }
    let mut prover = Prover::new(|level, index| leaves.subtree(level, index));
    let (claim, hashes) = match (seq, from) {
        (_, Some(old)) => {
            if old == 0 || old > size {
                return Err(out_of_range(format_args!("--from {old}"), size));
            }
            (Claim::Consistency { old }, prover.consistency(old, size).map_err(read)?)
        }
        (seq, None) => {
            let index = seq.unwrap_or_default();
            if index >= size {
                return Err(out_of_range(format_args!("record {index}"), size));
            }
            let hashes = prover.inclusion(index, size).map_err(read)?;
            let line = Reader::new(source, index).next().map_err(read)?.map(|entry| entry.bytes);
            (Claim::Inclusion { index, line }, hashes)
        }
    };
    let proof = Proof { claim, hashes, note: Note::parse(note).or_fail("the checkpoint")? };
    // A modified log gives invalid proofs.
    let mut check = || match &proof.claim {
        Claim::Inclusion { line: Some(line), .. } => proof.check_inclusion(Hash::leaf(line)),
        Claim::Inclusion { line: None, .. } => Err(portcullis_audit::ProofError::Form),
        Claim::Consistency { old } => {
            let root = Prover::new(|level, index| leaves.subtree(level, index)).root_at(*old);
            let root = root.map_err(|_read| portcullis_audit::ProofError::Form)?;
            proof.check_consistency(&Checkpoint { size: *old, root, ..checkpoint.clone() })
        }
    };
    check().map_err(|error| {
        Failure::new(format_args!("the log is not what its checkpoint signed: {error}"))
            .exit(Exit::Audit)
            .help("`portcullis audit verify` says what is wrong")
    })?;
    Ok(proof)
}

fn out_of_range(what: std::fmt::Arguments<'_>, size: u64) -> Failure {
    Failure::new(format_args!("{what} is not in the newest checkpoint, which is of {size} records"))
        .help("`portcullis audit checkpoint` makes one of all records")
        .exit(Exit::Usage)
}

fn roots(source: &Directory) -> Result<Vec<Hash>, Failure> {
    let text = match source.open(ROOTS) {
        Ok(file) => {
            io::read_to_string(file.take(MAX_ROOTS)).or_fail("cannot read the segments' roots")?
        }
        Err(_missing) => String::new(),
    };
    Ok(text.lines().map_while(|line| line.parse().ok()).collect())
}

/// The hashes of the tree: those of full segments are stored, others are computed
/// from the log.
struct Leaves<'a> {
    source: &'a Directory,
    roots: Vec<Hash>,
    /// The leaf hashes of a segment.
    cached: Option<(Segment, Vec<Hash>)>,
}

impl Leaves<'_> {
    fn subtree(&mut self, level: u32, index: u64) -> io::Result<Hash> {
        if level >= SEGMENT_LEVEL {
            let below = level - SEGMENT_LEVEL;
            let mut tree = Frontier::new();
            for segment in index << below..(index + 1) << below {
                tree.push(self.segment(Segment(segment))?);
            }
            return Ok(tree.root());
        }
        let first = index << level;
        let segment = Segment::of(first);
        self.read(segment)?;
        let leaves = self.cached.as_ref().map(|(_, leaves)| leaves.as_slice()).unwrap_or_default();
        let from = usize::try_from(first % SEGMENT_RECORDS).map_err(io::Error::other)?;
        let leaves = leaves.get(from..from + (1 << level)).ok_or_else(|| too_few(segment))?;
        Ok(portcullis_audit::tree::root_of(leaves))
    }

    /// Returns the root of a full segment.
    fn segment(&mut self, segment: Segment) -> io::Result<Hash> {
        if let Some(root) = usize::try_from(segment.0).ok().and_then(|at| self.roots.get(at)) {
            return Ok(*root);
        }
        self.read(segment)?;
        let leaves = self.cached.as_ref().map(|(_, leaves)| leaves.as_slice()).unwrap_or_default();
        if leaves.len() as u64 != SEGMENT_RECORDS {
            return Err(too_few(segment));
        }
        Ok(portcullis_audit::tree::root_of(leaves))
    }

    fn read(&mut self, segment: Segment) -> io::Result<()> {
        if self.cached.as_ref().is_some_and(|(cached, _)| *cached == segment) {
            return Ok(());
        }
        let mut reader = Reader::new(self.source, segment.first());
        let mut leaves = Vec::new();
        while (leaves.len() as u64) < SEGMENT_RECORDS
            && let Some(entry) = reader.next()?
            // Where the segment is missing, a reader begins with a later one.
            && entry.segment == segment
        {
            leaves.push(Hash::leaf(&entry.bytes));
        }
        self.cached = Some((segment, leaves));
        Ok(())
    }
}

/// Returns the error for a segment that lacks records which a checkpoint covers.
fn too_few(segment: Segment) -> io::Error {
    let words = format!("{segment} is missing, or has too few records");
    io::Error::new(io::ErrorKind::InvalidData, words)
}
