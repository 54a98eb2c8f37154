//! `portcullis audit bundle`: the records of a period with their proofs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufWriter, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
};

use jiff::Timestamp;
use portcullis_audit::{Directory, Hash, RecordView};
use sha2::{Digest as _, Sha256};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

use super::{
    heads,
    prove::prove,
    select::{UnindexedLog, damaged, warn_of_pruned},
};
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        new_file::NewFile,
        record_time::{self, RecordTime},
    },
    model::Escaped,
    review::{
        Filter, Log, MAX_POLICY, ScanOrder,
        bundle::{
            BUNDLED_CHECKPOINT, BUNDLED_KEYS, COMPANIONS, Links, MANIFEST, Manifest, PROOF, RECORDS,
        },
        is_foreign, read_regular,
    },
};

/// The content of the [`COMPANIONS`], the same in every bundle.
const TEXTS: [&str; 4] = [
    include_str!("bundle/README.txt"),
    include_str!("bundle/check.py"),
    include_str!("../../../audit/verify.py"),
    include_str!("../../../audit/FORMAT.md"),
];

/// Put the records of a period, with what proves them, into one archive
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit bundle -o evidence.zip\n  \
    portcullis audit bundle --since 2026-11-01 --until 2026-12-01 -o november.zip\n\n\
    For a reviewer with only Python: records, checkpoint, proof, policies in force, public keys,\n\
    verify.py and a README. Records after the newest checkpoint are left out; `portcullis audit\n\
    checkpoint` makes a new one. `portcullis audit check-bundle` checks the archive.")]
pub(super) struct Args {
    #[command(flatten)]
    log: UnindexedLog,
    /// From this time on: `2026-11-21`, `2026-11-21T08:00:00Z`, `2d`, `1 hour ago`, `yesterday`
    #[arg(long, value_name = "TIME")]
    since: Option<RecordTime>,
    /// Before this time
    #[arg(long, value_name = "TIME")]
    until: Option<RecordTime>,
    /// The archive to write
    #[arg(short, long, value_name = "FILE.zip")]
    output: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let directory = args.log.at.directory()?;
    let kept = args.log.at.state()?.join("policies");
    let (log, bar) = args.log.open()?;
    let note = heads::newest(&directory)?.ok_or_else(|| {
        Failure::new("there is no checkpoint that could prove a record")
            .help("`portcullis audit checkpoint` makes one")
    })?;
    let checkpoint = heads::checkpoint(&note, &[], &directory)?;
    let source = Directory::new(&directory);
    sound(args, &source)?;
    let (first, last, after) = period(args, &log, checkpoint.size)?;
    let proof = prove(Some(last), None, &source, &checkpoint, &note)?.to_string();
    let keys = heads::published(&directory)?;

    // The bundle is complete or missing.
    let fresh = NewFile::create(&args.output)?;
    let doing = format!("cannot write `{}`", args.output.display());
    let zip = ZipWriter::new(BufWriter::new(FailsOnce { file: fresh.file(), has_failed: false }));
    let mut archive = Archive { zip, files: BTreeMap::new() };
    let written = (|| {
        let policies = archive.records(&log, first, last)?;
        archive.add(PROOF, proof.as_bytes()).or_fail(&doing)?;
        archive.add(BUNDLED_CHECKPOINT, &note).or_fail(&doing)?;
        archive.add(BUNDLED_KEYS, &keys).or_fail(&doing)?;
        for (name, text) in COMPANIONS.into_iter().zip(TEXTS) {
            archive.add(name, text.as_bytes()).or_fail(&doing)?;
        }
        let missing = archive.policies(&kept, &policies).or_fail(&doing)?;
        archive.finish(first, last).or_fail(&doing)?;
        Ok(missing)
    })();
    drop(bar);
    let missing = written?;
    fresh.keep().or_fail(&doing)?;
    errln!("records {first} to {last}: `{}`", args.output.display());
    for hash in missing {
        errln!("portcullis: warning: the text of policy {hash} is not kept any more");
    }
    if after > 0 {
        errln!(
            "portcullis: {after} records of the period come after the newest checkpoint and are left \
             out; `portcullis audit checkpoint` makes one of all records"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses to make evidence of a damaged log.
fn sound(args: &Args, source: &Directory) -> Result<(), Failure> {
    let verifier = heads::verifier(&args.log.at, source, Vec::new(), Vec::new())?;
    let report = verifier.run().map_err(|error| args.log.unreadable(&error))?;
    let Some(first) = report.damages.first() else { return Ok(()) };
    Err(Failure::new(format_args!("the audit log is damaged: {}", Escaped(&first.to_string())))
        .help("`portcullis audit verify` says what is wrong and what to do")
        .exit(Exit::Audit))
}

/// Returns the first and the last record of the period that the checkpoint covers, and the
/// number of records that it does not cover.
fn period(args: &Args, log: &Log, size: u64) -> Result<(u64, u64, u64), Failure> {
    let (since, until) = record_time::period(args.since.as_ref(), args.until.as_ref())?;
    warn_of_pruned(log, since.as_deref());
    let filter = Filter { since, until, ..Filter::default() };
    let add = |sum: &mut (Option<(u64, u64)>, u64), record: &RecordView<'_>, _line: &[u8]| {
        if record.seq >= size {
            sum.1 += 1;
            return;
        }
        let (first, last) = sum.0.unwrap_or((record.seq, record.seq));
        sum.0 = Some((first.min(record.seq), last.max(record.seq)));
    };
    let (mut span, mut after): (Option<(u64, u64)>, u64) = (None, 0);
    let scanned = log
        .fold(&filter, add, |part: (Option<(u64, u64)>, u64)| {
            after += part.1;
            span = match (span, part.0) {
                (Some((first, _)), Some((_, last))) => Some((first, last)),
                (one, other) => one.or(other),
            };
        })
        .map_err(|error| args.log.unreadable(&error))?;
    damaged(&scanned)?;
    let (first, last) = span.ok_or_else(|| match after {
        0 => Failure::new("the log has no record of the period"),
        _ => Failure::new("no record of the period is covered by the newest checkpoint")
            .help("`portcullis audit checkpoint` makes one of all records"),
    })?;
    Ok((first, last, after))
}

/// A file that reports its first error and then accepts anything: a [`ZipWriter`] tries
/// again when it is dropped, and prints the error.
struct FailsOnce<'a> {
    file: &'a File,
    has_failed: bool,
}

impl io::Write for FailsOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.has_failed {
            return Ok(bytes.len());
        }
        let mut file = self.file;
        let written = file.write(bytes);
        self.has_failed =
            written.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for FailsOnce<'_> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let mut file = self.file;
        io::Seek::seek(&mut file, to)
    }
}

struct Archive<'a> {
    zip: ZipWriter<BufWriter<FailsOnce<'a>>>,
    files: BTreeMap<String, Hash>,
}

impl Archive<'_> {
    fn begin(&mut self, name: &str) -> io::Result<()> {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .large_file(true);
        self.zip.start_file(name, options).map_err(io::Error::other)
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.begin(name)?;
        self.zip.write_all(bytes)?;
        self.files.insert(name.to_owned(), Hash::of(bytes));
        Ok(())
    }

    /// Adds the records, which must form a chain; returns the policies that they name.
    fn records(&mut self, log: &Log, first: u64, last: u64) -> Result<BTreeSet<Hash>, Failure> {
        let doing = "cannot write the records";
        self.begin(RECORDS).or_fail(doing)?;
        let filter = Filter { records: Some(first..=last), ..Filter::default() };
        let (mut links, mut hasher, mut policies) =
            (Links::default(), Sha256::new(), BTreeSet::new());
        let mut wrong = None;
        let pick = |record: &RecordView<'_>, line: &[u8]| {
            let policy = record.policy_sha256().and_then(|hash| hash.parse::<Hash>().ok());
            Some((line.to_vec(), policy))
        };
        let zip = &mut self.zip;
        log.scan(&filter, ScanOrder::Oldest, pick, |(mut line, policy)| {
            if let Err(words) = links.follow(&line) {
                wrong = Some(Failure::new(format_args!("the audit log {words}")).exit(Exit::Audit));
                return ControlFlow::Break(());
            }
            policies.extend(policy);
            line.push(b'\n');
            hasher.update(&line);
            match zip.write_all(&line) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    wrong = Some(Failure::new(format_args!("{doing}: {error}")));
                    ControlFlow::Break(())
                }
            }
        })
        .or_fail("cannot read the audit log")?;
        if let Some(failure) = wrong {
            return Err(failure);
        }
        if links.last.is_none_or(|(seq, _)| seq != last) {
            return Err(Failure::new("the audit log changed while it was read").exit(Exit::Audit));
        }
        self.files.insert(RECORDS.to_owned(), Hash::from_bytes(hasher.finalize().into()));
        Ok(policies)
    }

    /// Adds the policies' texts; returns those that are not stored any more.
    fn policies(&mut self, kept: &Path, policies: &BTreeSet<Hash>) -> io::Result<Vec<Hash>> {
        let mut missing = Vec::new();
        for hash in policies {
            let name = format!("{hash}.toml");
            match read_regular(&kept.join(&name), MAX_POLICY) {
                Ok(bytes) if Hash::of(&bytes) == *hash => {
                    self.add(&format!("policies/{name}"), &bytes)?;
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound && !is_foreign(&error) => {
                    return Err(error);
                }
                _ => missing.push(*hash),
            }
        }
        Ok(missing)
    }

    fn finish(mut self, first: u64, last: u64) -> io::Result<()> {
        let created = format!("{:.0}", Timestamp::now());
        let files = std::mem::take(&mut self.files);
        let manifest = Manifest { version: 1, created, first, last, files };
        let text = serde_json::to_string_pretty(&manifest)? + "\n";
        self.begin(MANIFEST)?;
        self.zip.write_all(text.as_bytes())?;
        let mut out = self.zip.finish().map_err(io::Error::other)?;
        out.flush()?;
        let FailsOnce { file, has_failed } = out.get_ref();
        if *has_failed {
            return Err(io::Error::other("a part of it could not be written"));
        }
        file.sync_all()
    }
}
