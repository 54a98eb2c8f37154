//! `portcullis serve`: many workspaces for many agents over the network.
//!
//! This process is the *broker*. It starts the *front*, which alone reads the
//! network and can open no file, and a *worker* for each workspace in use, which can
//! reach that one only; each runs this binary again, confined before it has a second
//! thread. A self-test proves that before any client is served.

mod args;
mod broker;
mod files;
mod front;
mod front_requests;
mod listeners;
mod messages;
mod plan;
mod policies;
mod readiness;
mod ready;
mod reload;
mod service_log;
mod unconfigured;
mod worker_pool;

mod telemetry;
mod worker;
mod workers;

use std::process::ExitCode;

use clap::ArgMatches;
use serde_json::json;

use crate::{
    app::{
        failure::{Context as _, Failure},
        process,
        ship::{self, Shipping},
    },
    config::serve::Listen,
    model::Escaped,
    sandbox::{close_inherited, not_dumpable, raise_file_limit, stop_signals},
};
use broker::{Broker, facts};
use listeners::FrontListeners;
use plan::Plan;
use service_log::ServiceLog;

pub(crate) use args::Args;
pub(crate) use front::run_if_front;
pub(crate) use worker::run_if_worker;

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
    // With a lower limit there are fewer sessions.
    let _ = raise_file_limit();
    let (plan, fresh) = Plan::make(args, given)?;
    let mut service_log = ServiceLog::open(&plan.state)?;
    let targets = ship::beneath(&plan.audit.ship, service_log::COPY);
    ship::check(&plan.state, &targets)?;
    for place in plan.places.values() {
        ship::check(&place.state, &ship::beneath(&plan.audit.ship, &place.name))?;
    }
    let shipping = Shipping::start(&plan.state, &targets)?;
    let control = listeners::control(&plan.state)?;
    let Some(first) = plan.places.values().next() else {
        return Err(Failure::new("there is no workspace"));
    };
    let worker = workers::trial(&plan, first, plan.unreachable(Some(first), &control))?;
    let (front_listeners, front) = FrontListeners::open(&plan, control)?;
    let far = |at: &&Listen| matches!(at, Listen::Tcp(address) if !address.ip().is_loopback());
    let open = plan.service.tls.is_none() && front_listeners.addresses().any(|at| far(&at));
    if open {
        errln!(
            "portcullis: warning: other machines may connect without TLS; a machine on the way \
             can read tokens and files"
        );
    }
    let listen: Vec<_> = front_listeners.addresses().map(ToString::to_string).collect();
    service_log.start(facts([
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("listen", json!(listen)),
        ("plaintext", json!(open)),
        ("workspaces", json!(plan.places.keys().collect::<Vec<_>>())),
        ("agents", json!(plan.service.agents.len())),
        ("selfTest", json!({ "front": front, "worker": worker })),
    ]))?;
    front_listeners.serve()?;
    announce(&plan, &listen, fresh.as_deref());
    listeners::notify("READY=1");
    Broker::new(plan, service_log, shipping, front_listeners, signals)?.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the addresses; also the new token, once, if one was made.
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
        let served = plan.places.keys().filter(|_| !at.starts_with("unix:"));
        for name in served {
            let url = format!("{at}/workspaces/{name}/mcp");
            let headers = json!({ "Authorization": "Bearer TOKEN" });
            let client = json!({ "type": "http", "url": url, "headers": headers });
            outln!("portcullis: MCP client of `{name}`: {}", Escaped(&client.to_string()));
        }
    }
    if let Some(token) = fresh {
        outln!("portcullis: token, shown this once: {token}");
    }
    outln!("portcullis: ready");
}
