//! `portcullis audit query --path` over ten million records, once an index is
//! there.
#![expect(clippy::disallowed_methods, reason = "writes a log behind the gate's back")]

use std::{process::Stdio, time::Instant};

use portcullis_audit::{Chain, Draft, Hash, Kind, Prepared, Segment};

use crate::{
    Outcome,
    measure::{Bound, Series, nanoseconds, report},
    world::World,
};

const RECORDS: u64 = 10_000_000;
/// Distinct paths, spread over the whole log.
const PATHS: u64 = 200_000;
const ROUNDS: usize = 11;

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
        door: Some("acp".to_owned()),
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
