//! Records on stable storage: one client, and sixty-four at once, against one
//! bare append and fdatasync.
#![expect(clippy::disallowed_methods, reason = "a state directory of its own")]

use std::{fs::File, io::Write as _, thread, time::Instant};

use cap_std::fs::Dir;
use portcullis::gateway::AuditLog;
use portcullis_audit::{Draft, Hash, Kind};

use crate::{
    Outcome,
    measure::{Bound, interleave, nanoseconds, report},
    world::World,
};

const ROUNDS: usize = 15;
const CLIENTS: usize = 64;
/// Records of each client in a round, and of the one.
const EACH: usize = 400;
const ALONE: usize = 400;
/// 200,000 a second where a bare one takes 35 µs.
const MANY: f64 = 7.0;

pub(crate) fn run() -> Outcome<()> {
    let world = World::new()?;
    let state = Dir::from_std_file(File::open(world.state())?);
    let audit_log = AuditLog::open(&state)?;
    audit_log.note(Kind::Decision, draft(), true)?;
    let line = std::fs::metadata(world.state().join("audit/seg-000000.jsonl"))?.len();
    let mut bare = File::options().create(true).append(true).open(world.state().join("bare"))?;
    let bytes = vec![b'x'; usize::try_from(line)?];
    let mut append = || -> Outcome<f64> {
        let start = Instant::now();
        for _ in 0..ALONE {
            bare.write_all(&bytes)?;
            bare.sync_data()?;
        }
        Ok(nanoseconds(start.elapsed()) / ALONE as f64)
    };
    let alone = || -> Outcome<f64> {
        let start = Instant::now();
        for _ in 0..ALONE {
            audit_log.note(Kind::Decision, draft(), true)?;
        }
        Ok(nanoseconds(start.elapsed()) / ALONE as f64)
    };
    let pair = interleave(ROUNDS, alone, &mut append)?;
    let details = format!(
        "quartiles {}; bare append and fdatasync of {line} bytes {:.1} µs",
        pair.ratio.quartiles(1.0),
        pair.bare.median() / 1e3,
    );
    report("durable", pair.ratio.median(), "by a bare append", Bound::AtMost(1.3), &details);

    let many = || -> Outcome<f64> {
        let start = Instant::now();
        thread::scope(|scope| {
            let client = || {
                (0..EACH).try_for_each(|_| audit_log.note(Kind::Decision, draft(), true).map(drop))
            };
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            clients.into_iter().try_for_each(|client| match client.join() {
                Ok(done) => done.map_err(Into::into),
                Err(_panic) => Err("a client panicked".into()),
            })
        })
        .map_err(|error: Box<dyn std::error::Error + Send + Sync>| error)?;
        Ok(nanoseconds(start.elapsed()) / (CLIENTS * EACH) as f64)
    };
    let pair = interleave(ROUNDS, many, &mut append)?;
    // Records in the time of one bare append: the inverse of the ratio.
    let rate = 1.0 / pair.ratio.median();
    let details = format!(
        "quartiles {:.1}–{:.1}; {:.0} records a second; bare {:.1} µs",
        1.0 / pair.ratio.at(3, 4),
        1.0 / pair.ratio.at(1, 4),
        1e9 / pair.ours.median(),
        pair.bare.median() / 1e3,
    );
    report("durable-64", rate, "records by bare append", Bound::AtLeast(MANY), &details);
    Ok(())
}

/// Returns the record of a read.
fn draft() -> Draft {
    let text = |text: &str| Some(text.to_owned());
    Draft {
        session: text("33a804a17e9dcdcf68da8b24c5e91c46"),
        agent: text("coder"),
        user: text("somebody"),
        transport: text("acp"),
        op: text("read"),
        path: text("src/gateway/file-17.rs"),
        decision: text("allow"),
        rule: text("allowedPaths.read"),
        policy: text("default"),
        policy_sha256: Some(Hash::ZERO.to_string()),
        line: Some(12),
        bytes: Some(4096),
        before: Some(Hash::ZERO),
        result: text("ok"),
        ..Draft::default()
    }
}
