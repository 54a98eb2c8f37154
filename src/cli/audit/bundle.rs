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
    select::{UnindexedLog, warn_of_pruned},
};
use crate::{
    app::{
        audit_log::damaged,
        failure::{Context as _, Exit, Failure},
        new_file::NewFile,
        record_time::{self, RecordTime},
    },
    cli::render,
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

/// Write the records of a period, and the proof of them, into one ZIP archive
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
    /// Start of the period: `2026-11-21`, `2026-11-21T08:00:00Z`, `2d`, `1 hour ago`, `yesterday`
    /// [default: the first record]
    #[arg(long, value_name = "TIME")]
    since: Option<RecordTime>,
    /// End of the period, in the same forms, which does not include this time [default: the last
    /// record]
    #[arg(long, value_name = "TIME")]
    until: Option<RecordTime>,
    /// The ZIP archive to write
    #[arg(short, long, value_name = "FILE.zip", value_parser = zip_name)]
    output: PathBuf,
}

/// The suffixes of other archives.
const OTHER_ARCHIVES: [&str; 12] =
    ["7z", "bz2", "cpio", "gz", "jar", "lz4", "rar", "tar", "tbz2", "tgz", "xz", "zst"];

/// Parses the name of a bundle, which is not that of another kind of archive.
fn zip_name(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(text);
    let suffix = path.extension().map(|suffix| suffix.to_ascii_lowercase());
    match suffix.is_some_and(|suffix| OTHER_ARCHIVES.iter().any(|other| suffix == *other)) {
        true => Err("a bundle is a ZIP archive: name it FILE.zip"),
        false => Ok(path),
    }
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
    sound(args, &source, &directory)?;
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
        let left_out = archive.policies(&kept, &policies).or_fail(&doing)?;
        archive.finish(first, last).or_fail(&doing)?;
        Ok(left_out)
    })();
    drop(bar);
    let LeftOut { missing, changed } = written?;
    fresh.keep().or_fail(&doing)?;
    errln!("{}: `{}`", render::records(first, last), args.output.display());
    for hash in missing {
        errln!("portcullis: warning: the text of policy {hash} is no longer stored");
    }
    if after > 0 {
        errln!(
            "portcullis: left out: {} of the period after the newest checkpoint; `portcullis audit \
             checkpoint` makes one of all records",
            render::counted(after, "record")
        );
    }
    let Some(hash) = changed.first() else { return Ok(ExitCode::SUCCESS) };
    let file = kept.join(format!("{hash}.toml"));
    let more = match changed.len() {
        1 => String::new(),
        count => format!(", like {}", render::counted(count as u64 - 1, "other policy text")),
    };
    Err(Failure::new(format_args!(
        "the bundle lacks the text of policy {hash}{more}: `{}` was changed",
        file.display()
    ))
    .help("put the file back from a copy; `portcullis audit verify --policies` names all of them")
    .exit(Exit::Audit)
    .beside_result())
}

/// The policies whose texts a bundle lacks.
#[derive(Default)]
struct LeftOut {
    /// Policies without a stored text.
    missing: Vec<Hash>,
    /// Policies with another stored text, or with a file that is not regular.
    changed: Vec<Hash>,
}

/// Refuses to make evidence of a damaged log.
fn sound(args: &Args, source: &Directory, directory: &Path) -> Result<(), Failure> {
    let report = heads::verified(&args.log.at, source, std::iter::empty(), directory)?;
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

    /// Adds the policies' texts; returns those that it cannot add.
    fn policies(&mut self, kept: &Path, policies: &BTreeSet<Hash>) -> io::Result<LeftOut> {
        let mut left_out = LeftOut::default();
        for hash in policies {
            let name = format!("{hash}.toml");
            match read_regular(&kept.join(&name), MAX_POLICY) {
                Ok(bytes) if Hash::of(&bytes) == *hash => {
                    self.add(&format!("policies/{name}"), &bytes)?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    left_out.missing.push(*hash);
                }
                Err(error) if !is_foreign(&error) => return Err(error),
                _ => left_out.changed.push(*hash),
            }
        }
        Ok(left_out)
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
