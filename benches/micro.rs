//! Time of a decision and of a read, part by part.
//!
//! `cargo bench --bench micro`; the promised numbers, as ratios, come from
//! `cargo bench --bench numbers`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use portcullis::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{Policy, PolicySource, Query, compile},
};
use portcullis_audit::{Chain, Draft, Hash, Kind, Prepared};

fn policies(criterion: &mut Criterion) {
    let (Ok(agent), Ok(path)) =
        ("agent".parse::<AgentName>(), WorkspacePath::parse("src/policy/stages/names.rs"))
    else {
        return;
    };
    let mut group = criterion.benchmark_group("decision");
    for name in ["default", "coding-agent", "strict"] {
        let Some(Ok(policy)) = PolicySource::embedded(name).map(|source| compile(&source)) else {
            continue;
        };
        let policy: Policy = policy;
        let (operation, access) = (OperationKind::Read, Access::Read);
        let query = Query { agent: &agent, operation, access, path: &path };
        group.bench_function(name, |bencher| bencher.iter(|| policy.evaluate(black_box(&query))));
    }
    group.finish();
}

fn records(criterion: &mut Criterion) {
    let draft = Draft {
        boot: Some("b0".repeat(16)),
        session: Some("5e".repeat(16)),
        agent: Some("benchmark".to_owned()),
        op: Some("read".to_owned()),
        path: Some("src/policy/stages/names.rs".to_owned()),
        decision: Some("allow".to_owned()),
        rule: Some("allowedPaths.read".to_owned()),
        policy_sha256: Some(Hash::ZERO.to_string()),
        bytes: Some(4096),
        before: Some(Hash::ZERO),
        result: Some("ok".to_owned()),
        ..Draft::default()
    };
    let mut group = criterion.benchmark_group("record");
    group.bench_function("prepare", |bencher| {
        bencher.iter(|| Prepared::new(Kind::Decision, black_box(&draft), [7; 16]));
    });
    if let Ok(record) = Prepared::new(Kind::Decision, &draft, [7; 16]) {
        group.bench_function("chain", |bencher| {
            let mut chain = Chain::new();
            let mut line = Vec::with_capacity(1024);
            bencher.iter(|| {
                line.clear();
                chain.append(&record, "2026-11-21T08:00:00.000000Z", &mut line)
            });
        });
    }
    let content = vec![b'x'; 4096];
    group.bench_function("hash of 4 KiB", |bencher| bencher.iter(|| Hash::of(black_box(&content))));
    group.finish();
}

criterion_group!(benches, policies, records);
criterion_main!(benches);
