//! `portcullis fs read` from start to exit with a long log behind it.
#![expect(clippy::disallowed_methods, reason = "writes a log behind the gateway's back")]

use std::{
    fs::File,
    io::Write as _,
    process::{Command, Stdio},
    time::Instant,
};

use portcullis_audit::{Chain, Draft, Hash, Kind, Prepared, Segment};

use crate::{
    Outcome,
    measure::{Bound, interleave, nanoseconds, report},
    world::{self, World},
};

const RECORDS: u64 = 1_000_000;
const ROUNDS: usize = 150;

pub(crate) fn run() -> Outcome<()> {
    let (long, short) = (World::new()?, World::new()?);
    write_log(&long)?;
    let read = |world: &World| -> Outcome<f64> {
        let mut command = world.command(&["fs", "read", &world::file(0)]);
        time(command.stdout(Stdio::null()).stderr(Stdio::null()))
    };
    let pair = interleave(ROUNDS, || read(&long), || read(&short))?;
    let nothing = interleave(ROUNDS, || time(&mut Command::new("true")), || sync(&long))?;
    let details = format!(
        "quartiles {}; with an empty log {:.2} ms; `true` {:.2} ms, one synced append {:.2} ms",
        pair.ours.quartiles(1e6),
        pair.bare.median() / 1e6,
        nothing.ours.median() / 1e6,
        nothing.bare.median() / 1e6,
    );
    report("start", pair.ours.median() / 1e6, "ms start to exit", Bound::AtMost(15.0), &details);
    Ok(())
}

fn time(command: &mut Command) -> Outcome<f64> {
    let start = Instant::now();
    let status = command.status()?;
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    Ok(nanoseconds(start.elapsed()))
}

/// Measures the disk's time for one durable record: the command needs two.
fn sync(world: &World) -> Outcome<f64> {
    let mut file = File::options().create(true).append(true).open(world.base().join("synced"))?;
    let start = Instant::now();
    file.write_all(&[b'x'; 700])?;
    file.sync_data()?;
    Ok(nanoseconds(start.elapsed()))
}

/// A log as a million reads leave it.
fn write_log(world: &World) -> Outcome<()> {
    let audit = world.state().join("audit");
    std::fs::create_dir_all(&audit)?;
    let mut chain = Chain::new();
    let mut segment = Segment(0);
    let draft = Draft {
        boot: Some("b0".repeat(16)),
        session: Some("5e".repeat(16)),
        agent: Some("benchmark".to_owned()),
        user: Some("somebody".to_owned()),
        transport: Some("acp".to_owned()),
        op: Some("read".to_owned()),
        path: Some(world::file(0)),
        decision: Some("allow".to_owned()),
        rule: Some("allowedPaths.read".to_owned()),
        policy: Some("default".to_owned()),
        policy_sha256: Some(Hash::ZERO.to_string()),
        line: Some(12),
        bytes: Some(4096),
        before: Some(Hash::ZERO),
        result: Some("ok".to_owned()),
        ..Draft::default()
    };
    let record = Prepared::new(Kind::Decision, &draft, [7; 16])?;
    let mut lines = Vec::new();
    while chain.next() < RECORDS {
        lines.clear();
        let end = segment.next().first().min(RECORDS);
        while chain.next() < end {
            chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut lines);
        }
        std::fs::write(audit.join(segment.to_string()), &lines)?;
        segment = segment.next();
    }
    Ok(())
}
