//! Costs of a policy: compiling a huge one, deciding under it, deciding a
//! recorded history again.
//!
//! `cargo bench --bench policy`. Expected, per core: 10,000 rules compile in
//! less than a second, and 200,000 records and more are replayed in one.
#![expect(clippy::disallowed_methods, reason = "writes a log for itself")]

use std::{hint::black_box, io::Write as _, path::Path};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use portcullis::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{PolicySource, Query, compile},
    policy_tools::{NoObserver, outline, replay},
    review::Log,
};
use portcullis_audit::{Chain, Draft, Hash, Kind, Prepared, SEGMENT_RECORDS, Segment};

/// Records of the log that is replayed.
const RECORDS: u64 = 200_000;

/// A policy with as many rules as one file may have.
fn huge() -> PolicySource {
    let mut text = "schema = 1\nextends = [\"baseline\"]\n[allowedPaths]\nread = [\"**\"]\n\
        write = [\"**\"]\n"
        .to_owned();
    for number in 0..10_000 {
        text += &format!(
            "[[rules]]\nid = \"r{number}\"\neffect = \"deny\"\npaths = [\"d{}/s{number}/**\"]\n",
            number % 100
        );
    }
    PolicySource::from_text("huge", &text)
}

fn policies(criterion: &mut Criterion) {
    let source = huge();
    let mut group = criterion.benchmark_group("10,000 rules");
    group.sample_size(10);
    group.bench_function("compile", |bencher| bencher.iter(|| compile(black_box(&source))));
    if let (Ok(policy), Ok(agent)) = (compile(&source), "agent".parse::<AgentName>()) {
        for (name, path) in [("decide, denied", "d42/s4242/a.rs"), ("decide, allowed", "src/a.rs")]
        {
            let Ok(path) = WorkspacePath::parse(path) else { continue };
            let (operation, access) = (OperationKind::Read, Access::Read);
            let query = Query { agent: &agent, operation, access, path: &path };
            group.bench_function(name, |bencher| {
                bencher.iter(|| policy.evaluate(black_box(&query)));
            });
        }
    }
    group.finish();
}

fn history(criterion: &mut Criterion) {
    let Ok(directory) = tempfile::tempdir() else { return };
    if write_log(directory.path()).is_err() {
        return;
    }
    let Ok(log) = Log::open(directory.path()) else { return };
    let mut group = criterion.benchmark_group("replay");
    group.sample_size(10).throughput(Throughput::Elements(RECORDS));
    for name in ["default", "coding-agent"] {
        let Some(source) = PolicySource::embedded(name) else { continue };
        let (Ok(policy), outline) = (compile(&source), outline(&source)) else { continue };
        group.bench_function(name, |bencher| {
            bencher.iter(|| replay(&policy, &outline, &log, None, &NoObserver))
        });
    }
    group.finish();
}

/// A log such as a busy week leaves: reads, writes and denials in 20,000 files.
fn write_log(directory: &Path) -> std::io::Result<()> {
    let mut chain = Chain::new();
    let mut file = None;
    let mut line = Vec::new();
    for seq in 0..RECORDS {
        if seq % SEGMENT_RECORDS == 0 {
            let path = directory.join(Segment::of(seq).to_string());
            file = Some(std::io::BufWriter::new(std::fs::File::create(path)?));
        }
        let (op, decision, kind) = match seq % 10 {
            0 => ("write", "allow", Kind::Intent),
            1 => ("write", "deny", Kind::Decision),
            2 => ("list", "allow", Kind::Decision),
            _ => ("read", "allow", Kind::Decision),
        };
        let number = seq.wrapping_mul(7919) % 20_000;
        let draft = Draft {
            boot: Some("b0".repeat(16)),
            session: Some("5e".repeat(16)),
            agent: Some("benchmark".to_owned()),
            user: Some("operator".to_owned()),
            transport: Some("acp".to_owned()),
            op: Some(op.to_owned()),
            path: Some(format!("crates/part{}/src/module{number}/file.rs", number % 50)),
            decision: Some(decision.to_owned()),
            rule: Some(format!("allowedPaths.{op}")),
            policy: Some("coding-agent".to_owned()),
            policy_sha256: Some(Hash::ZERO.to_string()),
            line: Some(16),
            bytes: Some(4096),
            before: Some(Hash::ZERO),
            result: Some("ok".to_owned()),
            ..Draft::default()
        };
        let Ok(record) = Prepared::new(kind, &draft, [7; 16]) else { continue };
        line.clear();
        let _ = chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut line);
        if let Some(file) = &mut file {
            file.write_all(&line)?;
        }
    }
    Ok(())
}

criterion_group!(benches, policies, history);
criterion_main!(benches);
