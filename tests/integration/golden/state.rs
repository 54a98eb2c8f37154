//! Names and modes of what is in the state directory.

use std::{collections::BTreeSet, os::unix::fs::PermissionsExt as _, path::Path};

use super::golden;
use crate::common::World;

fn walk(directory: &Path, above: &str, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let facts = entry.metadata().unwrap();
        let name = general(entry.file_name().to_str().unwrap());
        let mode = facts.permissions().mode() & 0o7777;
        let end = if facts.is_dir() { "/" } else { "" };
        found.insert(format!("{mode:04o} {above}{name}{end}"));
        if facts.is_dir() {
            walk(&entry.path(), &format!("{above}{name}/"), found);
        }
    }
}

/// A name with what differs from run to run made equal: digits and hashes.
fn general(name: &str) -> String {
    let part = |part: &str| {
        let hex = part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let time = part.len() >= 15 && part.ends_with('Z');
        // One of a few hundred random numbers of eight digits has letters alone.
        let is_number = part.len() >= 8 || part.bytes().any(|byte| byte.is_ascii_digit());
        let differs = time || (hex && is_number);
        if differs { "*".to_owned() } else { part.to_owned() }
    };
    let parts: Vec<_> = name.split('.').map(|dotted| dotted.split('-').map(part)).collect();
    let parts: Vec<_> =
        parts.into_iter().map(|parts| parts.collect::<Vec<_>>().join("-")).collect();
    parts.join(".")
}

#[test]
fn the_state_directory() {
    let world = World::with_rules("");
    world.write("a.txt", "one\n").ok();
    world.write("a.txt", "two\n").ok();
    std::fs::create_dir(world.path("d")).unwrap();
    world.file("d/x", "x");
    world.fs(&["rm", "--recursive", "d"]).ok();
    world.run(&["audit", "query"]).ok();
    world.run(&["run", "--", "/bin/true"]);
    let mut found = BTreeSet::new();
    walk(&world.state(), "", &mut found);
    let lines: Vec<_> = found.into_iter().collect();
    golden("state.txt", &(lines.join("\n") + "\n"));
}
