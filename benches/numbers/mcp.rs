//! MCP over stdio, beside other servers in the same rounds: reads of 4 KiB one
//! by one and 16 in flight, a list of a thousand entries, start to first reply,
//! and memory after ten thousand requests. Then overwrites of 4 KiB on an ext4
//! with a journal (needs root, for a loop mount): ours durable, with a backup
//! and records, the others' without any of that.
//!
//! The others: see `peers`. Without them only our own times are printed. Content
//! rules are off where the others have none, and on in a second contender.
#![expect(clippy::disallowed_methods, reason = "sets files up behind the gateway's back")]

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use serde_json::json;

use crate::{
    Outcome,
    client::{Server, check},
    measure::{Bound, Series, nanoseconds, report},
    overwrite::Mount,
    peers::{self, Peer, REFERENCE, Tools},
    world::{CONTENT, FILES, World, file, text},
};

/// Rounds in which all take turns, and reads in each.
const ROUNDS: usize = 25;
const READS: usize = 200;
const LISTS: usize = 20;
/// Requests in flight.
const WINDOW: usize = 16;
/// Starts that are timed.
const STARTS: usize = 10;
/// Rounds of overwrites, and overwrites in each.
const TIMES: usize = 20;
const WRITES: usize = 25;

/// No rules about content, as the others have none.
pub(crate) const PLAIN: &str = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n\
    write = [\"**\"]\nremove = [\"**\"]\n";

/// Ours without rules about content, ours with them, and one of the others.
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Ruled,
    Peer(Peer),
}

impl Kind {
    /// Returns all contenders.
    fn all(peers: &[Peer]) -> impl Iterator<Item = Self> {
        [Self::Plain, Self::Ruled].into_iter().chain(peers.iter().copied().map(Self::Peer))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "portcullis",
            Self::Ruled => "with 49 rules",
            Self::Peer(peer) => peer.name,
        }
    }

    fn tools(self) -> Tools {
        match self {
            Self::Plain | Self::Ruled => REFERENCE,
            Self::Peer(peer) => peer.tools,
        }
    }

    /// The server on a world; `plain` is the file of [`PLAIN`], `peers` the
    /// others' directory.
    fn command(self, world: &World, plain: &Path, peers: &Path) -> Command {
        let policy = match self {
            Self::Plain => plain.as_os_str(),
            Self::Ruled => "default".as_ref(),
            Self::Peer(peer) => return peer.command(peers, &world.root()),
        };
        let mut command = world.command(&["mcp", "--tools", "reference", "--policy"]);
        command.arg(policy);
        command
    }
}

pub(crate) fn run() -> Outcome<()> {
    let (dir, peers) = peers::installed();
    let world = World::new()?;
    let many = world.root().join("many");
    std::fs::create_dir_all(&many)?;
    for number in 0..1000 {
        std::fs::write(many.join(format!("entry-{number:04}.txt")), "x")?;
    }
    let plain = plain(&world)?;
    let mut all = Vec::new();
    for kind in Kind::all(&peers) {
        let mut contender = Contender::new(kind);
        for _ in 0..STARTS {
            let begun = Instant::now();
            let server = Server::start(kind.command(&world, &plain, &dir))?;
            contender.starts.push(nanoseconds(begun.elapsed()));
            server.end()?;
        }
        all.push((Server::start(kind.command(&world, &plain, &dir))?, contender));
    }
    let root = world.root().to_string_lossy().into_owned();
    take_turns(ROUNDS, &mut all, |(server, contender)| contender.reads(server, &root))?;
    for (server, contender) in &mut all {
        contender.resident = server.resident()?;
    }
    let mut done = Vec::new();
    for (server, contender) in all {
        server.end()?;
        done.push(Shown::of(contender));
    }
    print(&done);
    for (place, medium) in [(std::env::temp_dir(), "disk"), (PathBuf::from("/dev/shm"), "memory")] {
        if let Err(error) = overwrites(&place, medium, &dir, &peers) {
            println!("mcp        overwrites on an ext4 on {medium} not measured: {error}");
        }
    }
    Ok(())
}

fn plain(world: &World) -> Outcome<PathBuf> {
    let plain = world.base().join("plain.toml");
    std::fs::write(&plain, PLAIN)?;
    Ok(plain)
}

/// Lets all take turns; the first one goes last in the next round.
fn take_turns<T>(
    rounds: usize,
    all: &mut [T],
    mut turn: impl FnMut(&mut T) -> Outcome<()>,
) -> Outcome<()> {
    for round in 0..rounds {
        if round % 2 == 0 {
            all.iter_mut().try_for_each(&mut turn)?;
        } else {
            all.iter_mut().rev().try_for_each(&mut turn)?;
        }
    }
    Ok(())
}

/// A server's times in nanoseconds.
struct Contender {
    kind: Kind,
    starts: Vec<f64>,
    reads: Vec<f64>,
    /// A read of 16 in flight, each round one value.
    windows: Vec<f64>,
    lists: Vec<f64>,
    /// Processor time of a read and of a list, each round one value.
    read_busy: Vec<f64>,
    list_busy: Vec<f64>,
    resident: f64,
}

impl Contender {
    fn new(kind: Kind) -> Self {
        let none = Vec::new;
        Self {
            kind,
            starts: none(),
            reads: none(),
            windows: none(),
            lists: none(),
            read_busy: none(),
            list_busy: none(),
            resident: f64::NAN,
        }
    }

    fn reads(&mut self, server: &mut Server, root: &str) -> Outcome<()> {
        let tools = self.kind.tools();
        let read = |number: usize| json!({ "path": format!("{root}/{}", file(number % FILES)) });
        let busy = server.busy()?;
        for number in 0..READS {
            let request = server.request(tools.read, &read(number));
            let begun = Instant::now();
            server.send(&request)?;
            let reply = server.receive()?;
            self.reads.push(nanoseconds(begun.elapsed()));
            check(reply, CONTENT)?;
        }
        self.read_busy.push((server.busy()? - busy) / READS as f64);
        let requests: Vec<_> =
            (0..READS).map(|number| server.request(tools.read, &read(number))).collect();
        let begun = Instant::now();
        let mut sent = requests.iter();
        for request in sent.by_ref().take(WINDOW) {
            server.send(request)?;
        }
        for _ in 0..READS {
            check(server.receive()?, CONTENT)?;
            if let Some(request) = sent.next() {
                server.send(request)?;
            }
        }
        self.windows.push(nanoseconds(begun.elapsed()) / READS as f64);
        let busy = server.busy()?;
        for _ in 0..LISTS {
            let list = json!({ "path": format!("{root}/many") });
            let request = server.request(tools.list, &list);
            let begun = Instant::now();
            server.send(&request)?;
            let reply = server.receive()?;
            self.lists.push(nanoseconds(begun.elapsed()));
            check(reply, 1000 * "entry-0000.txt".len())?;
        }
        self.list_busy.push((server.busy()? - busy) / LISTS as f64);
        Ok(())
    }
}

/// The same, sorted.
struct Shown {
    kind: Kind,
    starts: Series,
    reads: Series,
    windows: Series,
    lists: Series,
    read_busy: Series,
    list_busy: Series,
    resident: f64,
}

impl Shown {
    fn of(contender: Contender) -> Self {
        Self {
            kind: contender.kind,
            starts: Series::new(contender.starts),
            reads: Series::new(contender.reads),
            windows: Series::new(contender.windows),
            lists: Series::new(contender.lists),
            read_busy: Series::new(contender.read_busy),
            list_busy: Series::new(contender.list_busy),
            resident: contender.resident,
        }
    }
}

fn print(all: &[Shown]) {
    println!(
        "mcp        {:<14} {:>9} {:>9} {:>9} {:>12} {:>11} {:>11} {:>9} {:>10}",
        "",
        "read p50",
        "read p99",
        "its CPU",
        "16 in flight",
        "list 1,000",
        "its CPU",
        "start",
        "resident"
    );
    for shown in all {
        println!(
            "mcp        {:<14} {:>6.0} µs {:>6.0} µs {:>6.0} µs {:>9.0} µs {:>8.0} µs {:>8.0} µs \
             {:>6.1} ms {:>6.1} MiB",
            shown.kind.name(),
            shown.reads.median() / 1e3,
            shown.reads.at(99, 100) / 1e3,
            shown.read_busy.median() / 1e3,
            shown.windows.median() / 1e3,
            shown.lists.median() / 1e3,
            shown.list_busy.median() / 1e3,
            shown.starts.median() / 1e6,
            shown.resident,
        );
    }
    let node = all.iter().find(|shown| matches!(shown.kind, Kind::Peer(Peer { name: "node", .. })));
    for ours in all.iter().filter(|shown| !matches!(shown.kind, Kind::Peer(_))) {
        let peers = || all.iter().filter(|shown| matches!(shown.kind, Kind::Peer(_)));
        let beside = |what: &str, value: fn(&Shown) -> f64| {
            let fastest = peers().min_by(|one, other| value(one).total_cmp(&value(other)));
            if let Some(fastest) = fastest {
                let ratio = value(ours) / value(fastest);
                let unit = format!("× {}, {what}", fastest.kind.name());
                report("mcp", ratio, &unit, Bound::AtMost(1.0), ours.kind.name());
            }
        };
        beside("read p50", |shown| shown.reads.median());
        beside("read p99", |shown| shown.reads.at(99, 100));
        beside("16 in flight", |shown| shown.windows.median());
        if let Some(node) = node {
            let ratio = ours.lists.median() / node.lists.median();
            report("mcp", ratio, "× node, list", Bound::AtMost(0.5), ours.kind.name());
        }
        let start = ours.starts.median() / 1e6;
        report("mcp", start, "ms, start", Bound::AtMost(20.0), ours.kind.name());
        report("mcp", ours.resident, "MiB, resident", Bound::AtMost(20.0), ours.kind.name());
    }
}

/// Measures overwrites of 4 KiB on an ext4 whose image lies in `place`, each
/// server in a world of its own.
fn overwrites(place: &Path, medium: &str, dir: &Path, peers: &[Peer]) -> Outcome<()> {
    let mount = Mount::new(place)?;
    let mut all = Vec::new();
    for (number, kind) in Kind::all(peers).enumerate() {
        let world = mount.world(&format!("world{number}"))?;
        let server = Server::start(kind.command(&world, &plain(&world)?, dir))?;
        all.push((server, kind, world, Vec::new(), 0));
    }
    let turn =
        |(server, kind, world, times, number): &mut (Server, Kind, World, Vec<f64>, usize)| {
            for _ in 0..WRITES {
                *number += 1;
                let path = world.root().join(file(*number % FILES));
                let content = String::from_utf8(text(*number))?;
                let arguments = json!({ "path": path, "content": content });
                let request = server.request(kind.tools().write, &arguments);
                let begun = Instant::now();
                server.send(&request)?;
                let reply = server.receive()?;
                times.push(nanoseconds(begun.elapsed()));
                check(reply, 0)?;
                if std::fs::read(&path)? != content.as_bytes() {
                    return Err("a server wrote something else".into());
                }
            }
            Ok(())
        };
    take_turns(TIMES, &mut all, turn)?;
    let mut shown = Vec::new();
    for (server, kind, _world, times, _) in all {
        server.end()?;
        let times = Series::new(times);
        println!(
            "mcp        {:<14} overwrites 4 KiB in {:>6.0} µs ({} µs), ext4 on {medium}",
            kind.name(),
            times.median() / 1e3,
            times.quartiles(1e3)
        );
        shown.push((kind, times.median()));
    }
    let node = shown.iter().find(|(kind, _)| kind.name() == "node").map(|(_, time)| *time);
    for (kind, time) in &shown {
        if let (Kind::Plain | Kind::Ruled, Some(node)) = (kind, node) {
            let details = format!("{}, ext4 on {medium}", kind.name());
            report("mcp", time / node, "× node, overwrite", Bound::AtMost(1.0), &details);
        }
    }
    Ok(())
}
