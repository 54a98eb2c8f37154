//! A gateway killed with SIGKILL at any moment of any operation: the workspace
//! is as it was before or after, no temporary file stays, the log verifies, the
//! backup store has each pre-image, and the next start needs no help.

use std::{
    collections::BTreeMap,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::{
    common::{World, budget},
    consistency,
    seeded_random::Random,
};

/// Kills, times the budget up to ten; more until enough of them hit an intent.
const ROUNDS: u64 = 80;
/// The maximum of kills, times the same.
const MAX_ROUNDS: u64 = 400;
/// The least number of crashes between an intent and its outcome.
const RECOVERIES: usize = 3;

/// Nothing is let go of, so that every backup can be looked for.
pub(crate) const POLICY: &str = r#"
schema = 1
name = "crash"
version = 1

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]

[backups]
keep = { versions = 1000000, days = 30, size = "8GiB" }
"#;

type Snapshot = BTreeMap<String, String>;

/// A command, and the contents of the workspace after it.
struct Step {
    args: Vec<String>,
    input: String,
    after: Snapshot,
}

/// Sets the workspace up for a round, past the gateway.
fn prepare(world: &World, round: u64, big: &str) {
    std::fs::remove_dir_all(world.root()).unwrap();
    std::fs::create_dir(world.root()).unwrap();
    world.file("target.txt", format!("target of {round}\nmarker\n{big}"));
    world.file("tree/a/1.txt", "1");
    world.file("tree/b/c/2.txt", big);
    world.file("tree/b/c/3.txt", format!("{round}"));
    std::os::unix::fs::symlink("b/c/2.txt", world.path("tree/link")).unwrap();
    world.file("from.txt", format!("from of {round}"));
    world.file("to.txt", format!("to of {round}"));
    world.file("kept.txt", format!("kept of {round}"));
    // The tree that a restore puts back finds nothing, another one, or a file.
    match round % 3 {
        0 => {}
        1 => drop(world.file("kept/other/x.txt", format!("other of {round}"))),
        _ => drop(world.file("kept", "a file where the tree was")),
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    std::fs::set_permissions(world.path("target.txt"), mode).unwrap();
}

/// Backups for the restores: the ids of a file and a tree, and the contents of
/// the tree.
struct StoredBackups {
    file: String,
    tree: String,
    nodes: Snapshot,
}

impl StoredBackups {
    fn new(world: &World, big: &str) -> Self {
        world.file("kept.txt", format!("first\n{big}"));
        world.file("kept/a/1.txt", "one");
        world.file("kept/a/b/2.txt", big);
        world.file("kept/3.txt", "three");
        let nodes = consistency::snapshot(&world.root())
            .into_iter()
            .filter(|(name, _)| name == "kept" || name.starts_with("kept/"))
            .collect();
        let backup = |args: &[&str]| {
            let done = world.run_with_input(args, "second").ok().json();
            done["backup"].as_str().unwrap().to_owned()
        };
        let file = backup(&["fs", "write", "kept.txt", "--json"]);
        let tree = backup(&["fs", "rm", "-r", "kept", "--json"]);
        Self { file, tree, nodes }
    }
}

fn beneath(name: &str, top: &str) -> bool {
    name == top || name.starts_with(&format!("{top}/"))
}

fn step(
    random: &mut Random,
    before: &Snapshot,
    kept: &StoredBackups,
    round: u64,
    big: &str,
) -> Step {
    let mut after = before.clone();
    let mut input = String::new();
    let mode = |name: &str| before[name].split_once(' ').unwrap().0.to_owned();
    let text = |name: &str| before[name].split_once(' ').unwrap().1.to_owned();
    let args: Vec<&str> = match random.below(12) {
        0 | 1 => {
            input =
                format!("written in {round}\n{}", if round.is_multiple_of(2) { big } else { "" });
            after.insert("target.txt".into(), format!("640 {input}"));
            vec!["fs", "write", "target.txt"]
        }
        2 => {
            input = format!("new in {round}");
            for directory in ["new", "new/deep"] {
                after.insert(directory.into(), "directory".into());
            }
            after.insert("new/deep/file.txt".into(), format!("644 {input}"));
            vec!["fs", "write", "new/deep/file.txt"]
        }
        3 => {
            input = format!("appended in {round}");
            after.insert("target.txt".into(), format!("640 {}{input}", text("target.txt")));
            vec!["fs", "append", "target.txt"]
        }
        4 => {
            let edited = text("target.txt").replace("marker", "edited");
            after.insert("target.txt".into(), format!("640 {edited}"));
            vec!["fs", "edit", "target.txt", "--old", "marker", "--new", "edited"]
        }
        5 => {
            for directory in ["made", "made/by", "made/by/mkdir"] {
                after.insert(directory.into(), "directory".into());
            }
            vec!["fs", "mkdir", "-r", "made/by/mkdir"]
        }
        6 => {
            after.retain(|name, _| !beneath(name, "tree"));
            vec!["fs", "rm", "-r", "tree"]
        }
        7 => {
            after.remove("target.txt");
            vec!["fs", "rm", "target.txt"]
        }
        8 => {
            after.remove("from.txt");
            after.insert("to.txt".into(), before["from.txt"].clone());
            vec!["fs", "mv", "from.txt", "to.txt"]
        }
        9 => {
            after.retain(|name, _| !beneath(name, "tree"));
            for (name, what) in before.iter().filter(|(name, _)| beneath(name, "tree")) {
                after.insert(format!("moved{}", &name[4..]), what.clone());
            }
            vec!["fs", "mv", "tree", "moved"]
        }
        10 => {
            after.insert("kept.txt".into(), format!("{} first\n{big}", mode("kept.txt")));
            vec!["backup", "restore", &kept.file]
        }
        _ => {
            after.retain(|name, _| !beneath(name, "kept"));
            after.extend(kept.nodes.clone());
            vec!["backup", "restore", &kept.tree]
        }
    };
    Step { args: args.into_iter().map(str::to_owned).collect(), input, after }
}

/// The difference of two snapshots, short enough to be read.
fn difference(found: &Snapshot, expected: &Snapshot) -> Vec<String> {
    let short = |what: Option<&String>| what.map(|what| what.chars().take(60).collect::<String>());
    let names: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    names
        .into_iter()
        .filter(|name| found.get(*name) != expected.get(*name))
        .map(|name| {
            let (found, expected) = (short(found.get(name)), short(expected.get(name)));
            format!("{name}: {found:?}, not {expected:?}")
        })
        .collect()
}

#[test]
fn killed_at_any_moment_the_gateway_leaves_old_or_new() {
    let seed = std::env::var("PORTCULLIS_TEST_SEED").map_or(0x9e37_79b9, |s| s.parse().unwrap());
    let mut random = Random::new(seed);
    let world = World::with_policy(POLICY);
    let big = "x".repeat(200_000);
    let kept = StoredBackups::new(&world, &big);
    let (mut killed, mut changed) = (0, 0);
    let (rounds, most) = (ROUNDS * budget().min(10), MAX_ROUNDS * budget().min(10));
    let mut round = 0;
    while round < rounds || (round < most && recoveries(&world) < RECOVERIES) {
        round += 1;
        prepare(&world, round, &big);
        let before = consistency::snapshot(&world.root());
        let step = step(&mut random, &before, &kept, round, &big);
        let input = world.base().join("input");
        std::fs::write(&input, &step.input).unwrap();
        let args: Vec<_> = step.args.iter().map(String::as_str).collect();
        let command = |world: &World| {
            let mut command = world.command(&args);
            command.stdin(std::fs::File::open(&input).unwrap());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        // Kills spread over the time that this operation takes at this moment;
        // most of it comes before the intent.
        let started = Instant::now();
        assert!(command(&world).status().unwrap().success(), "{args:?}");
        let whole = u64::try_from(started.elapsed().as_micros()).unwrap();
        let done = consistency::snapshot(&world.root());
        assert_eq!(difference(&done, &step.after), Vec::<String>::new(), "{args:?}");

        prepare(&world, round, &big);
        let mut child = command(&world).spawn().unwrap();
        thread::sleep(Duration::from_micros(whole / 4 + random.below(whole)));
        child.kill().unwrap();
        if child.wait().unwrap().code().is_none() {
            killed += 1;
        }

        // The next start, of any command, repairs the state.
        let next = world.fs(&["ls"]);
        let context = format!("PORTCULLIS_TEST_SEED={seed}, round {round}, {args:?}");
        assert_eq!(next.code, 0, "{context}: {next:?}");
        assert_eq!(consistency::leftovers(&world), Vec::<std::path::PathBuf>::new(), "{context}");
        let mut found = consistency::snapshot(&world.root());
        if found == step.after {
            changed += 1;
            continue;
        }
        // Directories on the way to what was to be made may be there already.
        found.retain(|name, what| {
            let on_the_way = what == "directory" && step.after.get(name) == Some(what);
            before.contains_key(name) || !on_the_way
        });
        let difference = difference(&found, &before);
        assert!(difference.is_empty(), "{context}: neither old nor new: {difference:#?}");
    }
    println!("{killed} of {round} killed, {changed} changes were made");
    assert!(killed > round / 3, "only {killed} of {round} were killed in time");

    consistency::check(&world);
    let recoveries = recoveries(&world);
    assert!(recoveries >= RECOVERIES, "only {recoveries} of {round} crashes hit an intent");
}

fn recoveries(world: &World) -> usize {
    world.records().iter().filter(|record| record["kind"] == "recovered").count()
}
