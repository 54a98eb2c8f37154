//! Gateways that are killed while another process, which destroys nothing
//! itself, exchanges its files with those that they change: each of its files
//! is in the workspace, with it, or in the backup store. The half-undone
//! exchange of a dead gateway lost some of them, and so did the removal of a
//! renamed file by its own name.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use cap_std::fs::Dir;
use portcullis::{
    gateway::{BackupKind, BackupNodeKind, BackupStore, Client},
    model::{WorkspacePath, request::Rename},
};
use portcullis_audit::Hash;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::{
    acp_rig,
    common::{Stop, World},
    consistency,
    crash::POLICY,
    load::LoadGenerator,
    seeded_random::Random,
};

const ROUNDS: u64 = 40;
const RENAMES: usize = 300;

/// The other process.
struct Exchanger<'a> {
    root: PathBuf,
    /// Directory of its own files, and of those that it took out of the
    /// workspace.
    own: PathBuf,
    made: &'a mut u64,
    random: &'a mut Random,
}

impl Exchanger<'_> {
    /// Puts a new file at one of the names, and keeps what was there.
    fn put(&mut self) {
        *self.made += 1;
        let file = self.own.join(self.made.to_string());
        fs::write(&file, content(*self.made)).unwrap();
        let name = self.root.join(format!("f{}", self.random.below(2)));
        for how in [RenameFlags::EXCHANGE, RenameFlags::NOREPLACE] {
            if renameat_with(CWD, &file, CWD, &name, how).is_ok() {
                return;
            }
        }
    }
}

/// A block as the load generator knows them.
fn content(number: u64) -> String {
    format!("block other {number} 10\n----------\nend\n")
}

#[test]
fn nothing_of_another_process_is_lost_when_gateways_die() {
    let world = World::with_policy(POLICY);
    world.fs(&["ls"]).ok();
    let own = world.base().join("own");
    fs::create_dir(&own).unwrap();
    let (mut made, mut random) = (0, Random::new(7));
    for round in 1..=ROUNDS {
        let alive = 20 + random.below(150);
        let mut load_generator = LoadGenerator::start(&world, round, 60);
        load_generator.wait_for_request();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut other = Exchanger {
                root: world.root(),
                own: own.clone(),
                made: &mut made,
                random: &mut random,
            };
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    other.put();
                    thread::yield_now();
                }
            });
            let _stop = Stop(stop);
            thread::sleep(Duration::from_millis(alive));
            load_generator.child.kill().unwrap();
        });
        load_generator.end();
    }
    consistency::check(&world);
    let recovered = world.records().iter().filter(|record| record["kind"] == "recovered").count();
    assert!(recovered > 10, "only {recovered} changes were cut short");
    nothing_is_lost(&world, made);
}

/// All that the other process made is still somewhere.
fn nothing_is_lost(world: &World, made: u64) {
    let mut kept = HashSet::new();
    hash_files(&world.root(), &mut kept);
    hash_files(&world.base().join("own"), &mut kept);
    hash_backup_store(&world.state(), &mut kept);
    let lost: Vec<_> = (1..=made)
        .filter(|number| !kept.contains(&Hash::of(content(*number).as_bytes())))
        .collect();
    assert!(lost.is_empty(), "{} of {made} are lost: {lost:?}", lost.len());
}

/// The hash of each file in `directory` and beneath it.
pub(crate) fn hash_files(directory: &Path, hashes: &mut HashSet<Hash>) {
    let files = consistency::walk(directory).into_iter().filter(|path| path.is_file());
    hashes.extend(files.map(|path| Hash::of(&fs::read(path).unwrap())));
}

/// Adds the hash of each content in the backup store of a state directory.
pub(crate) fn hash_backup_store(state: &Path, hashes: &mut HashSet<Hash>) {
    let state = Dir::from_std_file(fs::File::open(state).unwrap());
    let backup_store = BackupStore::look(&state).unwrap().unwrap();
    for entry in backup_store.entries().unwrap().entries {
        hashes.insert(entry.sha256);
        if entry.kind != BackupKind::Tree {
            continue;
        }
        let mut tree = backup_store.tree(&entry).unwrap();
        while let Some(node) = tree.next_node().unwrap() {
            if node.kind != BackupNodeKind::File {
                continue;
            }
            let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 16]);
            let mut file = tree.content(&node).unwrap();
            loop {
                match file.piece(&mut piece).unwrap() {
                    0 => break,
                    count => bytes.extend_from_slice(&piece[..count]),
                }
            }
            hashes.insert(Hash::of(&bytes));
        }
    }
}

/// The file that a rename replaces had the old name for a moment, and was
/// removed by it, together with any file that another process had put there
/// meanwhile.
#[test]
fn a_rename_over_a_file_removes_nothing_of_another_process() {
    let world = World::with_policy(POLICY);
    world.fs(&["ls"]).ok();
    let own = world.base().join("own");
    fs::create_dir(&own).unwrap();
    let (mut made, mut random) = (0, Random::new(7));
    let policy = fs::read_to_string(world.base().join("policy/policy.toml")).unwrap();
    let gateway = acp_rig::gateway_under(&policy, &world.root(), world.base());
    let (stop, taken) = (AtomicBool::new(false), AtomicU64::new(500));
    let mut renamed = 0;
    thread::scope(|scope| {
        let mut other = Exchanger {
            root: world.root(),
            own: own.clone(),
            made: &mut made,
            random: &mut random,
        };
        let (stop, taken) = (&stop, &taken);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                other.put();
                // Many renames find what they decided on, however slow the disk.
                let pause = other.random.below(4 * taken.load(Ordering::Relaxed));
                thread::sleep(Duration::from_micros(pause));
            }
        });
        let _stop = Stop(stop);
        let path = |name| WorkspacePath::parse(name).unwrap();
        let ways = [("f0", "f1"), ("f1", "f0")].map(|(from, to)| Rename {
            from: path(from),
            to: path(to),
            replace: true,
        });
        for rename in ways.iter().cycle().take(100 * RENAMES) {
            let begun = Instant::now();
            if gateway.handle(&acp_rig::connection(), rename, Client::default()).is_ok() {
                renamed += 1;
                let micros = u64::try_from(begun.elapsed().as_micros()).unwrap();
                taken.store(micros.max(1), Ordering::Relaxed);
            }
            if renamed == RENAMES {
                break;
            }
        }
    });
    drop(gateway);
    assert_eq!(renamed, RENAMES);
    nothing_is_lost(&world, made);
}
