//! A log of ten million records: `portcullis audit query --path` once an index
//! is there, a start, a verification.
#![expect(clippy::disallowed_methods, reason = "writes a log behind the gateway's back")]

use std::{process::Stdio, time::Instant};

use portcullis_audit::{Chain, Draft, Hash, Kind, Prepared, Segment};

use crate::{
    Outcome,
    measure::{Bound, Series, interleave, nanoseconds, report},
    world::{self, World},
};

const RECORDS: u64 = 10_000_000;
/// Distinct paths, spread over the whole log.
const PATHS: u64 = 200_000;
const ROUNDS: usize = 11;
const STARTS: usize = 30;

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    let bytes = write_log(&world)?;
    let query = |path: &str, more: &[&str]| -> Outcome<(f64, usize)> {
        let args =
            [&["audit", "query", "--csv", "--columns", "seq", "--path", path], more].concat();
        let start = Instant::now();
        let output = world.command(&args).stderr(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(format!("the query ended with {}", output.status).into());
        }
        let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        Ok((nanoseconds(start.elapsed()), lines - 1))
    };
    let one = "src/module17/file00017.rs";
    let (plain, found) = query(one, &["--no-index"])?;
    let (first, same) = query(one, &[])?;
    if found as u64 != RECORDS / PATHS || found != same {
        return Err(format!("found {found} records, then {same}").into());
    }
    let many = |path: &str| -> Outcome<Series> {
        let times: Outcome<Vec<f64>> =
            (0..ROUNDS).map(|_| query(path, &[]).map(|(time, _)| time)).collect();
        Ok(Series::new(times?))
    };
    let exact = many(one)?;
    let glob = many("src/**/file0001?.rs")?;
    let size: u64 = std::fs::read_dir(world.state().join("index"))?
        .map(|entry| Ok(entry?.metadata()?.len()))
        .sum::<Outcome<u64>>()?;
    let details = format!(
        "quartiles {}; a pattern {:.2} s; the first time, which makes the index, {:.1} s; without \
         one {:.1} s; log {} MiB, index {} MiB",
        exact.quartiles(1e9),
        glob.median() / 1e9,
        first / 1e9,
        plain / 1e9,
        bytes >> 20,
        size >> 20,
    );
    report("query", exact.median() / 1e9, "s by path", Bound::AtMost(2.0), &details);
    start(&world)?;
    verify(&world, bytes)
}

/// Measures `fs read` from start to exit: with no checkpoint at all, as a
/// killed gateway leaves it, and from the last checkpoint.
fn start(world: &World) -> Outcome<()> {
    let empty = World::new()?;
    let read = |world: &World| -> Outcome<f64> {
        let mut command = world.command(&["fs", "read", &world::file(0)]);
        let start = Instant::now();
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        if !status.success() {
            return Err(format!("`fs read`: {status}").into());
        }
        Ok(nanoseconds(start.elapsed()))
    };
    let without = interleave(STARTS, || read(world), || read(&empty))?;
    let begin = Instant::now();
    if !world.command(&["audit", "checkpoint"]).stdout(Stdio::null()).status()?.success() {
        return Err("no checkpoint was made".into());
    }
    let checkpoint = begin.elapsed();
    let pair = interleave(STARTS, || read(world), || read(&empty))?;
    let details = format!(
        "quartiles {}; with an empty log {:.1} ms; before there was a checkpoint {:.1} ms; the \
         first checkpoint {:.1} s",
        pair.ours.quartiles(1e6),
        pair.bare.median() / 1e6,
        without.ours.median() / 1e6,
        checkpoint.as_secs_f64(),
    );
    report(
        "start-10M",
        pair.ours.median() / 1e6,
        "ms start to exit",
        Bound::AtMost(50.0),
        &details,
    );
    Ok(())
}

/// `audit verify`, and the most memory that it has.
fn verify(world: &World, bytes: u64) -> Outcome<()> {
    let start = Instant::now();
    let mut child = world.command(&["audit", "verify"]).stdout(Stdio::null()).spawn()?;
    let mut peak = 0.0_f64;
    let status = loop {
        let text = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        peak = peak.max(kib.unwrap_or(0.0) / 1024.0);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    if !status.success() {
        return Err(format!("`audit verify`: {status}").into());
    }
    let seconds = start.elapsed().as_secs_f64();
    let details = format!("{seconds:.0} s, {:.0} MB/s", bytes as f64 / 1e6 / seconds);
    report("verify-10M", peak, "MiB of memory", Bound::AtMost(64.0), &details);
    Ok(())
}

/// A log as ten million reads of many agents and files leave it.
fn write_log(world: &World) -> Outcome<u64> {
    let audit = world.state().join("audit");
    std::fs::create_dir_all(&audit)?;
    let draft = |number: u64| Draft {
        boot: Some("b0".repeat(16)),
        session: Some(format!("{:032x}", number / 5000)),
        agent: Some(format!("agent-{}", number % 5)),
        user: Some("somebody".to_owned()),
        transport: Some("acp".to_owned()),
        op: Some("read".to_owned()),
        path: Some(format!("src/module{}/file{:05}.rs", number % 1000, number % PATHS)),
        decision: Some("allow".to_owned()),
        rule: Some("allowedPaths.read".to_owned()),
        policy: Some("default".to_owned()),
        policy_sha256: Some(Hash::ZERO.to_string()),
        line: Some(12),
        bytes: Some(4096),
        before: Some(Hash::of(&(number % PATHS).to_le_bytes())),
        result: Some("ok".to_owned()),
        ..Draft::default()
    };
    let (mut chain, mut segment, mut lines, mut bytes) = (Chain::new(), Segment(0), Vec::new(), 0);
    while chain.next() < RECORDS {
        lines.clear();
        let end = segment.next().first().min(RECORDS);
        while chain.next() < end {
            let record = Prepared::new(Kind::Decision, &draft(chain.next()), [7; 16])?;
            chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut lines);
        }
        std::fs::write(audit.join(segment.to_string()), &lines)?;
        bytes += lines.len() as u64;
        segment = segment.next();
    }
    Ok(bytes)
}
