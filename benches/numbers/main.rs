//! The numbers that Portcullis promises, each measured against a baseline in
//! the same run and printed with its bound.
//!
//! ```text
//! cargo bench --bench numbers                  all but `backup_store` and `build`
//! cargo bench --bench numbers -- read acp      only these
//! ```
//!
//! The subjects: `decision`, `read`, `acp`, `mcp` (beside other servers: `peers`
//! says how to get them), `overwrite` (needs root, for a loop mount; so do the
//! overwrites of `mcp`), `durable`, `start`, `memory`, `serve`; only when named `egress`
//! (beside tinyproxy, if it is there), `credential` (needs `curl` and `openssl`), `mount` (needs `/dev/fuse`), `programs` (builds and installs in a mount), `names` (needs root, to mount), `search`
//! (needs `fd` and `rg`), `query` (it writes 6 GB; start and verification of such
//! a log too), `backup_store`, `build` (they take minutes) and `watch` (it makes 100,000
//! directories).
//! docs/performance.md says how to read what they print. Measures nothing
//! unless cargo runs it as a benchmark, so that running all tests stays quick.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "prints what was measured")]

mod acp;
mod agent;
mod backup_store;
mod bare;
mod build;
mod client;
mod credential;
mod decision;
mod durable;
mod egress;
mod mcp;
mod measure;
mod memory;
mod mount;
mod mount_workload;
mod names;
mod overwrite;
mod peers;
mod programs;
mod query;
mod read;
mod search;
mod serve;
mod start;
mod watch;
mod workload;
mod world;

use std::{error::Error, process::ExitCode};

/// Result of a benchmark, or the reason why there is none.
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A subject's name, what measures it, and whether it runs unless named.
type Subject = (&'static str, fn() -> Outcome<()>, bool);

const SUBJECTS: [Subject; 19] = [
    ("decision", decision::run, true),
    ("read", read::run, true),
    ("acp", acp::run, true),
    ("mcp", mcp::run, true),
    ("overwrite", overwrite::run, true),
    ("durable", durable::run, true),
    ("start", start::run, true),
    ("memory", memory::run, true),
    ("serve", serve::run, true),
    ("egress", egress::run, false),
    ("credential", credential::run, false),
    ("mount", mount::run, false),
    ("programs", programs::run, false),
    ("names", names::run, false),
    ("search", search::run, false),
    ("query", query::run, false),
    ("backup-store", backup_store::run, false),
    ("watch", watch::run, false),
    ("build", build::run, false),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(part) = agent::part(&arguments) {
        return finish(part);
    }
    if let [part, directory] = arguments.as_slice() {
        match part.as_str() {
            "overwrite-once" => return finish(overwrite::once(directory.as_ref())),
            "files" => return finish(mount_workload::run(directory)),
            "shell" => return finish(programs::shell(directory)),
            _ => {}
        }
    }
    if let [part, first, second] = arguments.as_slice() {
        match part.as_str() {
            "requests" => return finish(egress::requests(first, second)),
            "curl" => return finish(credential::requests(first, second)),
            _ => {}
        }
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("run this with `cargo bench --bench numbers`");
        return ExitCode::SUCCESS;
    }
    let named: Vec<_> = arguments.iter().filter(|name| !name.starts_with('-')).collect();
    let mut code = ExitCode::SUCCESS;
    for name in &named {
        if !SUBJECTS.iter().any(|(subject, ..)| subject == name) {
            eprintln!("there is no subject `{name}`");
            code = ExitCode::FAILURE;
        }
    }
    for (subject, run, usual) in SUBJECTS {
        let wanted =
            if named.is_empty() { usual } else { named.iter().any(|name| *name == subject) };
        if wanted && let Err(error) = run() {
            eprintln!("{subject}: not measured: {error}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn finish(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
