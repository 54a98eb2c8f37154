//! Gateways start on a state that a repair reports as good; any other report gives advice.

use super::seed;
use crate::{
    common::{World, budget},
    seeded_random::Random,
};

/// State directories in every run.
const STATES: u64 = 24;

/// Files of the state directory that the test changes.
const FILES: [&str; 9] = [
    "audit/seg-000000.jsonl",
    "audit/seg-000000.jsonl",
    "audit/checkpoint",
    "audit/checkpoints/5",
    "audit/frontier",
    "audit/key.vkey",
    "audit/roots",
    "keys/signed",
    "audit/quarantine",
];

/// Changes the state; returns a description.
fn change(world: &World, random: &mut Random) -> String {
    let name = FILES[usize::try_from(random.below(FILES.len() as u64)).unwrap()];
    let path = world.state().join(name);
    let old = std::fs::read(&path).unwrap_or_default();
    let at = usize::try_from(random.below(old.len() as u64 + 1)).unwrap();
    let operation = random.below(9);
    let gone = || match std::fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(&path).unwrap(),
        Ok(_file) => std::fs::remove_file(&path).unwrap(),
        Err(_none) => {}
    };
    if operation != 0 {
        gone();
    }
    match operation {
        0 => return format!("nothing with {name}"),
        1 => {}
        2 => std::fs::write(&path, &old[..at]).unwrap(),
        3 => {
            let mut new = old;
            if let Some(byte) = new.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
            std::fs::write(&path, new).unwrap();
        }
        4 => {
            let new = super::lines::change(&old, random);
            std::fs::write(&path, new).unwrap();
        }
        5 => std::os::unix::fs::symlink("seg-000000.jsonl", &path).unwrap(),
        6 => rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap(),
        7 => std::fs::create_dir(&path).unwrap(),
        _ => std::fs::write(&path, b"").unwrap(),
    }
    format!("{name}: {operation} at {at}")
}

#[test]
fn gateways_start_on_whatever_a_repair_calls_good() {
    let mut random = Random::new(seed());
    let (mut good, mut repaired, mut refused) = (0, 0, 0);
    for round in 0..STATES * budget() {
        let world = World::in_memory(crate::common::ALL);
        world.file("a", "x");
        for _ in 0..2 {
            world.fs(&["read", "a"]).ok();
        }
        let done: Vec<_> = (0..=random.below(3)).map(|_| change(&world, &mut random)).collect();
        let context = format!("PORTCULLIS_TEST_SEED={}, round {round}: {done:?}", seed());
        let verified = world.run(&["audit", "verify"]);
        assert!([0, 1, 5].contains(&verified.code), "{context}: {verified:?}");
        let recovered = world.run(&["audit", "recover", "--yes"]);
        if recovered.code != 0 {
            // The way out is in the message.
            let says = recovered.stderr.contains("move it away")
                || recovered.stderr.contains("put it back")
                || recovered.stderr.contains("help:")
                || recovered.stderr.contains("`portcullis ");
            assert!(says, "{context}: {recovered:?}");
            refused += 1;
            continue;
        }
        let started = world.fs(&["read", "a"]);
        assert_eq!(started.code, 0, "{context}: {recovered:?} {started:?}");
        let verified_now = world.run(&["audit", "verify"]);
        assert_eq!(verified_now.code, 0, "{context}: {recovered:?} {verified_now:?}");
        match verified.code {
            0 => good += 1,
            _ => repaired += 1,
        }
    }
    assert!(good > 0 && repaired > refused, "{good} {repaired} {refused}");
}
