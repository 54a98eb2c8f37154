//! `portcullis fs watch`: prints changes line by line as they happen.

use std::{
    io,
    os::fd::AsFd as _,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use super::super::{local_gateway::LocalGateway, render};
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        options::Common,
        output::is_closed,
    },
    gateway::{EntryKind, Event, EventKind, Reply, Subscription, WatchEnd},
    model::{IGNORED_DIRECTORIES, WatchQuery},
    sandbox::stop_signals,
};

/// Print changes until it is stopped
#[derive(Debug, clap::Args)]
#[command(after_help = "Each line is an event and a path: create, modify, delete, rename (old -> \
    new), or rescan: more changed beneath that path than could be reported; look again. A directory \
    is removed or renamed with all in it. Only what may be listed is shown. Changes through mapped \
    memory are not seen.\n\nExit code 1: --timeout passed before --count events \
    came.\n\nExamples:\n  \
    portcullis fs watch\n  \
    portcullis fs watch src --no-recursive --json\n  \
    portcullis fs watch --ignore target --count 1 --timeout 60")]
pub(super) struct WatchArgs {
    /// The directory or the file to watch
    #[arg(default_value = ".")]
    pub(super) path: String,
    /// Watch only what lies directly in the directory
    #[arg(long)]
    no_recursive: bool,
    /// Leave out directories of this name, as well
    #[arg(long, value_name = "NAME")]
    ignore: Vec<String>,
    /// Leave out only the directories of --ignore, not node_modules, .git, .next, dist, build and
    /// __pycache__
    #[arg(long)]
    no_ignore: bool,
    /// End after N events [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this number of seconds [default: never]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

/// Runs the command.
pub(super) fn run(common: &Common, args: &WatchArgs, json: bool) -> Result<ExitCode, Failure> {
    // Blocked before there are other threads.
    let signals = stop_signals().or_fail("cannot watch for signals")?;
    let local = LocalGateway::open(common)?;
    let asked = format!("watch {}", args.path);
    let path = local.path("watch", &args.path);
    let watched = path.and_then(|path| local.gateway().watch(local.session(), &args.query(path)));
    let watching = match watched {
        Ok(watching) => watching,
        Err(error) => {
            local.close()?;
            return Ok(render::report_error(&asked, &error, json));
        }
    };
    let subscription = watching.output.clone();
    begin(&watching, json);
    let told = end_on_signal(signals, subscription.clone())
        .or_fail("cannot start a thread")
        .and_then(|()| args.tell(&subscription, json));
    local.gateway().unwatch(&subscription);
    local.close()?;
    told
}

/// Announces the beginning of the watch.
fn begin(watching: &Reply<Subscription>, json: bool) {
    let (path, receipt) = (watching.output.path(), &watching.receipt);
    if json {
        let path = path.relative();
        let object = json!({ "ok": true, "watching": path, "receipt": receipt });
        outjson!(object);
    } else {
        errln!("portcullis: watching {path}, record {}", render::receipt_text(receipt));
    }
}

impl WatchArgs {
    fn query(&self, path: crate::model::WorkspacePath) -> WatchQuery {
        let usual = IGNORED_DIRECTORIES.iter().filter(|_| !self.no_ignore);
        let ignore = usual.map(|name| (*name).to_owned()).chain(self.ignore.clone()).collect();
        WatchQuery { path, recursive: !self.no_recursive, ignore }
    }

    fn tell(&self, subscription: &Subscription, json: bool) -> Result<ExitCode, Failure> {
        let limit = |seconds| Instant::now().checked_add(Duration::from_secs(seconds));
        let end = self.timeout.and_then(limit);
        let mut left = self.count;
        while left != Some(0) {
            let wait = match end {
                Some(end) => end.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            match subscription.next(wait) {
                Ok(Some(event)) => {
                    match json {
                        true => outjson!(object(&event)),
                        false => outln!("{}", line(&event)),
                    }
                    if is_closed() {
                        break;
                    }
                    left = left.map(|left| left - 1);
                }
                Ok(None) if end.is_some() => {
                    let short = self.count.is_some();
                    return Ok(if short { Exit::Failure.into() } else { ExitCode::SUCCESS });
                }
                Ok(None) => {}
                Err(WatchEnd::Closed) => break,
                Err(reason) => return Err(Failure::new(format_args!("the watch ended: {reason}"))),
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn line(event: &Event) -> String {
    let slash = if event.kind == EntryKind::Directory { "/" } else { "" };
    match &event.what {
        EventKind::Renamed { from } => {
            let (from, to) = (from.quoted(), event.path.quoted());
            format!("{:7} {from}{slash} -> {to}{slash}", event.what.as_str())
        }
        what => format!("{:7} {}{slash}", what.as_str(), event.path.quoted()),
    }
}

fn object(event: &Event) -> Value {
    let mut object = json!({
        "event": event.what.as_str(),
        "path": event.path.relative(),
        "type": event.kind.as_str(),
    });
    if let (EventKind::Renamed { from }, Value::Object(object)) = (&event.what, &mut object) {
        object.insert("from".to_owned(), from.as_str().into());
    }
    object
}

/// Ends the subscription at a signal.
fn end_on_signal(signals: SignalFd, subscription: Subscription) -> io::Result<()> {
    let wait = move || {
        let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        while matches!(poll(&mut fds, None), Err(rustix::io::Errno::INTR)) {}
        subscription.close();
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}
