//! The power fails under a mixed load. The disk then has the data that the
//! kernel had handed over by that moment, and nothing that only the page cache
//! had: the file beneath the disk is cloned, atomically, while gateways go on
//! working on it, and each clone is mounted as after a restart.
//!
//! This does not simulate a drive that loses a part of the data that it has not
//! flushed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use portcullis_audit::Hash;
use rustix::fs::ioctl_ficlone;
use tempfile::TempDir;

use super::*;
use crate::{
    load::{self, LoadGenerator, Pretended},
    scripted_agent,
    seeded_random::Random,
};

/// The directory of the files beneath the disks, where they can be cloned.
struct Rack {
    // Undone in this order.
    _store: Disk,
    _memory: Disk,
    dir: TempDir,
}

impl Rack {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let memory = Disk::memory(&dir.path().join("memory"), 1 << 20);
        let image = dir.path().join("memory/image");
        let store = Disk::cloning(&dir.path().join("store"), &image, 960);
        Self { _store: store, _memory: memory, dir }
    }

    fn image(&self, name: &str) -> PathBuf {
        self.dir.path().join("store").join(name)
    }
}

/// The disks of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disks {
    /// A disk with everything.
    One,
    /// A disk for the workspace and one for the state: a sync of one implies
    /// nothing for the other.
    Two,
}

/// Files of a gateway, on disks whose state can be copied at any moment.
struct Machine {
    // Undone before the directory that they are mounted in.
    mounted: Vec<Disk>,
    world: World,
    disks: Disks,
    images: Vec<PathBuf>,
}

impl Machine {
    fn new(rack: &Rack, name: &str, disks: Disks) -> Self {
        let world = World::new();
        let count = if disks == Disks::One { 1 } else { 2 };
        let images = (0..count).map(|number| rack.image(&format!("{name}-{number}"))).collect();
        let mut machine = Self { mounted: Vec::new(), world, disks, images };
        for (place, image) in machine.places().iter().zip(&machine.images) {
            let disk = Disk::ext4(place, image, 96);
            // Nothing gets to the disk out of kindness, or because it is time.
            disk.remount("noauto_da_alloc,commit=300");
            machine.mounted.push(disk);
        }
        fs::create_dir_all(machine.world.root()).unwrap();
        fs::create_dir_all(machine.world.state()).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(machine.world.state(), private).unwrap();
        machine.world.set_policy(POLICY);
        machine.mounted.iter().for_each(Disk::sync);
        machine
    }

    fn places(&self) -> Vec<PathBuf> {
        match self.disks {
            Disks::One => vec![self.world.base().to_owned()],
            Disks::Two => vec![self.world.root(), self.world.state()],
        }
    }

    /// The disks as they would be found if the power failed now.
    fn cut(&self, number: usize) -> Vec<PathBuf> {
        let clone = |image: &PathBuf| {
            let copy = image.with_extension(number.to_string());
            let (from, to) = (fs::File::open(image).unwrap(), fs::File::create(&copy).unwrap());
            // Takes the file's lock, writes out what was written to it, and
            // shares its blocks, all before the next write.
            ioctl_ficlone(&to, &from).unwrap();
            copy
        };
        self.images.iter().map(clone).collect()
    }

    /// Puts these disks in place of the ones before.
    fn restart(&mut self, images: &[PathBuf]) {
        self.mounted.clear();
        let places = self.places();
        self.mounted =
            places.iter().zip(images).map(|(at, image)| Disk::found(at, image)).collect();
    }
}

/// Returns the changes and records that were promised and are missing. A single
/// gateway makes the workspace agree with its log; of several, each may be
/// overtaken by another.
fn lost(world: &World, said: &[Value], alone: bool) -> Vec<String> {
    let segments = consistency::walk(&world.state().join("audit"));
    let segments = segments.iter().filter(|path| path.extension().is_some_and(|it| it == "jsonl"));
    let text: Vec<u8> = segments.flat_map(|path| fs::read(path).unwrap()).collect();
    let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let is_there = |receipt: &Value| {
        let seq = usize::try_from(receipt["seq"].as_u64().unwrap()).unwrap();
        let line = lines.get(seq).and_then(|line| line.strip_suffix(b"\n"));
        line.is_some_and(|line| receipt["leaf"] == Hash::leaf(line).to_string())
    };
    let mut lost: Vec<_> = load::receipts(said)
        .iter()
        .filter(|receipt| receipt["durable"] == true && !is_there(receipt))
        .map(|receipt| format!("the record of {receipt}"))
        .collect();
    if !lost.is_empty() {
        return lost;
    }
    let records = world.records();
    let settled: BTreeMap<_, _> = records
        .iter()
        .filter_map(|record| Some((record["of"].as_u64()?, record["result"].as_str()?)))
        .collect();
    for line in said.iter().filter(|line| line["ok"].is_string()) {
        let seq = line["receipt"]["seq"].as_u64().unwrap();
        let record = &records.get(usize::try_from(seq).unwrap()).unwrap_or(&Value::Null);
        // The record of a read may be lost; its sequence number is another's.
        if record["kind"] == "intent" && line["receipt"]["durable"] == true {
            let how = settled.get(&seq).copied();
            if !matches!(how, Some("ok" | "unchanged" | "committed" | "superseded")) {
                lost.push(format!("the change {record}, which was {how:?}"));
            }
        }
    }
    if alone {
        let (told, there) = (told(&records, &settled), there(world));
        let names: BTreeSet<_> = told.keys().chain(there.keys()).collect();
        lost.extend(
            names
                .into_iter()
                .filter(|name| told.get(*name) != there.get(*name))
                .map(|name| format!("`{name}` is {:?}, not {:?}", there.get(name), told.get(name))),
        );
    }
    lost
}

/// Returns the files that the log reports as made and not removed, with their
/// hashes.
fn told(records: &[Value], settled: &BTreeMap<u64, &str>) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for intent in records.iter().filter(|record| record["kind"] == "intent") {
        let how = settled.get(&intent["seq"].as_u64().unwrap());
        if !matches!(how, Some(&("ok" | "committed"))) {
            continue;
        }
        let path = intent["path"].as_str().unwrap();
        let within = |name: &str, top: &str| {
            name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match intent["op"].as_str().unwrap() {
            "write" | "append" | "edit" => {
                files.insert(path.to_owned(), intent["after"].as_str().unwrap().to_owned());
            }
            "remove" => files.retain(|name, _| !within(name, path)),
            "rename" => {
                let to = intent["to"].as_str().unwrap();
                assert_ne!(path, to, "{intent}");
                files.retain(|name, _| !within(name, to));
                let moves = |name: &String, _: &mut String| within(name, path);
                let moved: Vec<_> = files.extract_if(.., moves).collect();
                files.extend(
                    moved
                        .into_iter()
                        .map(|(name, hash)| (format!("{to}{}", &name[path.len()..]), hash)),
                );
            }
            "mkdir" => {}
            other => panic!("the load generator makes no `{other}`"),
        }
    }
    files
}

fn there(world: &World) -> BTreeMap<String, String> {
    let root = world.root();
    consistency::walk(&root)
        .into_iter()
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            (name, Hash::of(&fs::read(&path).unwrap()).to_string())
        })
        .collect()
}

/// Waits until gateways have reported that many more changes.
#[track_caller]
fn wait_for(load_generators: &[LoadGenerator], changes: usize) {
    let made = || -> usize {
        let changes = |line: &&Value| line["ok"].is_string() && line["receipt"]["durable"] == true;
        load_generators
            .iter()
            .map(|load_generator| load_generator.said().iter().filter(changes).count())
            .sum()
    };
    let (before, end) = (made(), Instant::now() + scripted_agent::TIMEOUT);
    while made() < before + changes {
        assert!(Instant::now() < end, "the gateways do nothing");
        thread::sleep(Duration::from_millis(5));
    }
}

fn end(load_generators: Vec<LoadGenerator>) {
    for mut load_generator in load_generators {
        load_generator.child.kill().unwrap();
        load_generator.end();
    }
}

#[test]
fn what_was_promised_is_there_after_the_power_failed() {
    const CUTS: usize = 5;
    let rack = Rack::new();
    let mut random = Random::new(0x706f_7765);
    let (mut promised, mut kept, mut recovered) = (0, 0, 0);
    for (disks, gateways) in [(Disks::One, 1), (Disks::Two, 1), (Disks::One, 3), (Disks::Two, 3)] {
        let mut machine = Machine::new(&rack, &format!("{disks:?}-{gateways}"), disks);
        let load_generators: Vec<_> =
            (1..=gateways).map(|seed| LoadGenerator::start(&machine.world, seed, 600)).collect();
        let mut found = Vec::new();
        for cut in 0..CUTS {
            wait_for(&load_generators, 20);
            thread::sleep(Duration::from_micros(random.below(100_000)));
            // Two disks are not cloned at the same moment, so nothing may
            // happen in between; with one it is any moment of any call.
            if disks == Disks::Two {
                load_generators.iter().for_each(LoadGenerator::pause);
            }
            let said: Vec<_> = load_generators.iter().flat_map(LoadGenerator::said).collect();
            found.push((said, machine.cut(cut)));
            if disks == Disks::Two {
                load_generators.iter().for_each(LoadGenerator::resume);
            }
        }
        end(load_generators);
        for (said, images) in found {
            machine.restart(&images);
            let world = &machine.world;
            kept += consistency::check(world);
            assert_eq!(
                lost(world, &said, gateways == 1),
                Vec::<String>::new(),
                "{disks:?} {gateways}"
            );
            assert!(load::files_are_whole(&world.root()) > 0);
            promised += said.iter().filter(|line| line["receipt"]["durable"] == true).count();
            recovered += world.records().iter().filter(|it| it["kind"] == "recovered").count();
            // It continues to work.
            world.write("after.txt", "after").ok();
        }
    }
    println!("{promised} durable records, {kept} backups, {recovered} changes to settle");
    assert!(promised > 500 && kept > 100 && recovered > 0, "{promised} {kept} {recovered}");
}

/// Proves that the test above detects it: gateways whose syncs do nothing break
/// their promises. Not at every moment: data that one call has not synced may
/// get to the disk with the next one's.
#[test]
fn without_its_syncs_a_gateway_loses_what_it_promised_when_the_power_fails() {
    const CUTS: usize = 30;
    let rack = Rack::new();
    for what in [Pretended::Fsync, Pretended::Fdatasync] {
        let mut machine = Machine::new(&rack, &format!("{what:?}"), Disks::One);
        let load_generators = vec![LoadGenerator::pretending(what, &machine.world, 1, 600)];
        let mut found = Vec::new();
        for cut in 0..CUTS {
            wait_for(&load_generators, 5);
            load_generators.iter().for_each(LoadGenerator::pause);
            found.push((load_generators[0].said(), machine.cut(cut)));
            load_generators.iter().for_each(LoadGenerator::resume);
        }
        end(load_generators);
        let loses = found.iter().filter(|(said, images)| {
            machine.restart(images);
            // It may find nothing to start from.
            machine.world.fs(&["ls"]);
            !lost(&machine.world, said, true).is_empty()
        });
        assert_ne!(loses.count(), 0, "{what:?}");
    }
}
