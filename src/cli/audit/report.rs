//! `portcullis audit report`: a report as HTML or JSON.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use jiff::Timestamp;

use super::{heads, location::existing, select::UnindexedLog};
use crate::{
    app::{
        audit_log::{NEWER, damaged},
        failure::{Context as _, Exit, Failure},
        new_file::NewFile,
        record_time::{RecordTime, period},
    },
    cli::render::counted,
    review::{
        report::{Report, Scope, page},
        visible_json,
    },
};

/// Write a report about a period: one page that can be printed, or JSON
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit report -o report.html\n  \
    portcullis audit report --with-policies -o report.html\n  \
    portcullis audit report --since 2026-11-01 --until 2026-12-01 -o november.html\n  \
    portcullis audit report --since 7d -o week.json\n\n\
    The page needs no script and loads nothing. It has names and hashes, but no content\n\
    of files. The whole log is verified, whatever the period.\n\n\
    Exit codes: 0 written, 5 written and the log is damaged.")]
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
    /// A public key that checkpoints must be signed with, from outside the log: a file, or its text
    #[arg(long, value_name = "FILE|KEY")]
    key: Vec<String>,
    /// Add the texts of the policies that decided
    #[arg(long)]
    with_policies: bool,
    /// The file to write: `.html` or `.json`
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let shown = args.output.display();
    let json = match args.output.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => false,
        Some("json") => true,
        _ => {
            return Err(Failure::new(format_args!("`{shown}` ends neither with .html nor .json"))
                .help("the name of the file says what to write")
                .exit(Exit::Usage));
        }
    };
    let (since, until) = period(args.since.as_ref(), args.until.as_ref())?;
    let directory = args.log.at.directory()?;
    let policies = args.log.at.state()?.join("policies");
    let (log, bar) = args.log.open()?;
    let options = args.log.at.options();
    let scope = Scope {
        log: &directory,
        options: &options,
        policies: Some(&policies),
        since,
        until,
        now: format!("{:.0}", Timestamp::now()),
        with_policies: args.with_policies,
    };
    let source = existing(&directory)?;
    let (verifier, warning) =
        heads::verifier(&args.log.at, &source, heads::keys(&args.key)?, Vec::new())?;
    let report = verifier.run().and_then(|mut chain| {
        chain.warnings.extend(warning);
        Report::gather(&log, chain, &scope)
    });
    drop(bar);
    let report = report.map_err(|error| args.log.unreadable(&error))?;
    let text = if json {
        let text = serde_json::to_string_pretty(&report).or_fail("cannot write JSON")?;
        visible_json(&text).into_owned() + "\n"
    } else {
        page(&report)
    };
    let fresh = NewFile::create(&args.output)?;
    fresh
        .file()
        .write_all(text.as_bytes())
        .and_then(|()| fresh.keep())
        .or_fail(format_args!("cannot write `{shown}`"))?;
    errln!("{}, {} denied: `{shown}`", counted(report.records, "record"), report.denied.total);
    if !report.valid {
        let verify = format!("`portcullis audit verify {options}` says what to do");
        let (text, help) = match report.chain.newer() {
            Some(_) => ("a newer portcullis wrote a part of the audit log", NEWER),
            None => ("the audit log is damaged; the report says where", &*verify),
        };
        return Err(Failure::new(text).help(help).exit(Exit::Audit));
    }
    let scanned = crate::review::Scanned {
        damages: report.unreadable,
        damaged: report.unreadable_count,
        ..Default::default()
    };
    damaged(&scanned)?;
    Ok(ExitCode::SUCCESS)
}
