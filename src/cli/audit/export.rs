//! `portcullis audit export`: exports records for other programs.

use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
};

use super::select::{Select, UnindexedLog, warn_of_pruned};
use crate::{
    app::{
        audit_log::{damaged, note_unverified},
        failure::{Context as _, Exit, Failure},
        new_file::NewFile,
    },
    review::{
        Filter, Log,
        export::{self, Exported},
    },
};

/// Write records for other programs: OCSF events, CSV or Parquet
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit export --format ocsf --since 1d -o yesterday.ocsf.jsonl\n  \
    portcullis audit export --format csv --decision deny -o denied.csv\n  \
    portcullis audit export --format parquet -o log.parquet\n\n\
    `ocsf` writes a line for each request that named a path (class 1001, File System Activity) or a\n\
    host (4001, Network Activity), and for each other denial (6003, API Activity), such as that of a\n\
    command. `csv` and `parquet` have a row for each record. docs/audit.md says what the columns are.\n\n\
    Exit codes: 0 written, 5 written but something in the log could not be read.")]
pub(super) struct Args {
    #[command(flatten)]
    log: UnindexedLog,
    /// The format to write
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Format,
    /// The file to write, instead of the standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The machine on which the gateway ran, for OCSF [default: this one]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    #[command(flatten)]
    select: Select,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Ocsf,
    Csv,
    Parquet,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.format == Format::Parquet {
        if cfg!(not(feature = "parquet")) {
            return Err(Failure::new("this build cannot write Parquet")
                .help("build it with `cargo build --release --features parquet`, or `full`"));
        }
        if args.output.is_none() {
            return Err(Failure::new("Parquet is not for the standard output")
                .help("name a file with -o FILE")
                .exit(Exit::Usage));
        }
    }
    let (log, bar) = args.log.open()?;
    note_unverified(&args.log.at.directory()?);
    let filter = args.select.filter(&args.log.at)?;
    warn_of_pruned(&log, filter.since.as_deref());
    let done = match &args.output {
        Some(path) => {
            let fresh = NewFile::create(path)?;
            let mut out = BufWriter::new(fresh.file());
            let done =
                write(args, &log, &filter, &mut out).and_then(|done| out.flush().map(|()| done));
            drop(out);
            done.and_then(|done| fresh.keep().map(|()| done))
        }
        None => match write(args, &log, &filter, io::stdout()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(ExitCode::SUCCESS);
            }
            done => done,
        },
    };
    drop(bar);
    let done = done.or_fail("cannot export")?;
    if let Some(path) = &args.output {
        let what = if args.format == Format::Ocsf { "events" } else { "records" };
        errln!("{} {what}: `{}`", done.rows, path.display());
    }
    damaged(&done.scanned)?;
    Ok(ExitCode::SUCCESS)
}

fn write(
    args: &Args,
    log: &Log,
    filter: &Filter,
    mut out: impl Write + Send,
) -> io::Result<Exported> {
    match args.format {
        Format::Csv => export::csv(log, filter, &mut out),
        Format::Ocsf => {
            let here = || {
                let name = rustix::system::uname();
                name.nodename().to_string_lossy().into_owned()
            };
            let device = args.device.clone().unwrap_or_else(here);
            export::events(log, filter, &device, &mut out)
        }
        #[cfg(feature = "parquet")]
        Format::Parquet => export::parquet(log, filter, &mut out),
        #[cfg(not(feature = "parquet"))]
        Format::Parquet => Err(io::ErrorKind::Unsupported.into()),
    }
}
