//! `portcullis serve`: many workspaces for many agents over the network.
//!
//! This process is the *broker*. It starts the *front*, which alone reads the
//! network and reaches no file, and a *worker* for each workspace that is in
//! use, which reaches that one alone; each is this binary again, confined
//! before it has a thread. A self-test proves that before anybody is let in.

mod broker;
mod door;
mod files;
mod fleet;
mod front;
mod given;
mod journal;
mod orders;
mod plan;
mod policies;
mod questions;
mod readiness;
mod ready;
mod reload;

mod telemetry;
mod worker;
mod workers;

use std::process::ExitCode;

use clap::ArgMatches;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::{
    app::{
        failure::{Context as _, Failure},
        logging,
        options::Common,
        process,
        ship::{self, Shipping},
    },
    config::serve::Listen,
    frontend::mcp::Name,
    model::Escaped,
    sandbox::{close_inherited, not_dumpable, stop_signals},
};
use broker::{Broker, facts};
use door::Doorway;
use journal::Journal;
use plan::Plan;

pub(crate) use front::run_if_front;
pub(crate) use worker::run_if_worker;

/// Open files that a service wants at most: each session needs two in the front, and
/// up to six in its worker.
const FILES: u64 = 65_536;

/// Serve workspaces to agents over HTTP
///
/// Without a configuration that names workspaces it serves the current
/// directory on this machine, and prints a token for one agent. Each workspace
/// has a process of its own that reaches nothing else.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis serve\n  \
    portcullis serve --workspace ~/project --policy mine.toml --listen 127.0.0.1:9000\n  \
    portcullis serve --config /etc/portcullis/portcullis.toml\n\n\
    SIGHUP reads the configuration and the policies again. SIGTERM stops within 10 seconds.\n\
    docs/serve.md tells the rest.")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    logging: logging::Options,
    /// Where to listen, instead of what the configuration says [default:
    /// 127.0.0.1:8750]
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH")]
    listen: Vec<Listen>,
    /// Let other machines connect without TLS: something else must encrypt
    #[arg(long)]
    plaintext: bool,
    /// The workspace's name in addresses and names of tools [default: that of
    /// its directory]
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
    /// Which tools MCP clients get: `workspace__NAME__read_file` and so on, or
    /// those of the reference filesystem server
    #[arg(long, value_name = "SET", default_value = "workspace",
        value_parser = ["workspace", "reference"])]
    tools: String,
    /// Whom a rule's question reaches: the client's user and a shell, or a
    /// shell alone
    #[arg(long, value_name = "WHO", default_value = "client", value_parser = ["client", "shell"])]
    ask: String,
    /// Start nothing: ask the service that listens there whether it is ready, and
    /// fail unless it is
    #[arg(long)]
    ready: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, given: &ArgMatches) -> Result<ExitCode, Failure> {
    if args.ready {
        return ready::ask(args);
    }
    process::check_children()?;
    close_inherited().or_fail("cannot close inherited files")?;
    let signals = stop_signals().or_fail("cannot watch for signals")?;
    not_dumpable().or_fail("cannot hide this process's memory")?;
    let _ = args.logging.filter()?;
    raise_files();
    let (plan, fresh) = Plan::make(args, given)?;
    let mut journal = Journal::open(&plan.state)?;
    let targets = ship::beneath(&plan.audit.ship, journal::COPY);
    let shipping = Shipping::start(&plan.state, &targets)?;
    let control = door::control(&plan.state)?;
    let Some(first) = plan.places.values().next() else {
        return Err(Failure::new("there is no workspace"));
    };
    let worker = workers::trial(&plan, first, plan.outside(Some(first), &control))?;
    let (doorway, front) = Doorway::open(&plan, control)?;
    let far = |at: &&Listen| matches!(at, Listen::Tcp(address) if !address.ip().is_loopback());
    let open = plan.service.tls.is_none() && doorway.addresses().any(|at| far(&at));
    if open {
        errln!(
            "portcullis: warning: other machines may connect without TLS; whoever is on the way \
             can read tokens and files"
        );
    }
    let listen: Vec<_> = doorway.addresses().map(ToString::to_string).collect();
    journal.start(facts([
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("listen", json!(listen)),
        ("plaintext", json!(open)),
        ("workspaces", json!(plan.places.keys().collect::<Vec<_>>())),
        ("agents", json!(plan.service.agents.len())),
        ("selfTest", json!({ "front": front, "worker": worker })),
    ]))?;
    doorway.serve()?;
    announce(&plan, &listen, fresh.as_deref());
    door::notify("READY=1");
    Broker::new(plan, journal, shipping, doorway, signals)?.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Says where it serves; the token, if one was made, this once.
fn announce(plan: &Plan, listen: &[String], fresh: Option<&str>) {
    let scheme = if plan.service.tls.is_some() { "https" } else { "http" };
    let mut names: Vec<_> = plan.places.keys().map(|name| format!("`{name}`")).collect();
    if names.len() > 5 {
        names.truncate(5);
        names.push("…".to_owned());
    }
    for at in listen {
        let at = if at.starts_with("unix:") { at.clone() } else { format!("{scheme}://{at}") };
        outln!("portcullis: serving {} at {at}", names.join(", "), at = Escaped(&at));
    }
    if let Some(token) = fresh {
        outln!("portcullis: token, shown this once: {token}");
    }
    outln!("portcullis: ready");
}

/// As many open files as the system lets us have.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(FILES).min(FILES);
    if limit.current.is_some_and(|current| current < most) {
        // With fewer it serves fewer.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
}
