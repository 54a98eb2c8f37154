//! The backup store under an operator's care: verified, pruned, packed, and
//! without unused objects.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use portcullis::{
    gateway::Client,
    model::{Session, Transport, WorkspacePath, request::Write},
};
use serde_json::json;

use crate::{acp_rig, common::World};

fn session() -> Session {
    Session {
        id: "ab".repeat(16),
        agent: "agent".parse().unwrap(),
        user: "user".to_owned(),
        transport: Transport::Acp,
        acp: None,
    }
}

/// A policy under which many versions are kept.
fn policy(versions: u32) -> String {
    format!(
        "{}\n[backups]\nkeep = {{ versions = {versions}, days = 30, size = \"1GiB\" }}\n",
        acp_rig::POLICY
    )
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let (mut found, mut pending) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => pending.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found
}

/// Text that is not one repeated line.
fn text(seed: usize) -> String {
    (0..3000).map(|line| format!("{} {}\n", line * 7919 % 10_007, seed * 31 % 97)).collect()
}

fn ids(world: &World) -> Vec<String> {
    let listed = world.run(&["backup", "list", "--json"]).ok().json();
    let ids = listed["backups"].as_array().unwrap().iter();
    ids.map(|backup| backup["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn where_a_part_of_the_log_was_set_aside_nothing_is_taken_for_needless() {
    let world = World::with_policy(acp_rig::POLICY);
    world.file("a", "one");
    let dead = acp_rig::gateway(&world.root(), world.base());
    dead.start(&session(), BTreeMap::new()).unwrap();
    let path = WorkspacePath::parse("a").unwrap();
    let write = Write { path, content: b"two".to_vec(), mode: None };
    dead.handle(&session(), &write, Client::default()).unwrap();
    drop(dead);
    // The intent is lost with the damage, its backup must not be.
    let segment = world.state().join("audit/seg-000000.jsonl");
    let lines = std::fs::read_to_string(&segment).unwrap();
    let damaged = lines.replacen("\"kind\":\"intent\"", "\"kind\":\"intenT\"", 1);
    assert_ne!(lines, damaged);
    std::fs::write(&segment, damaged).unwrap();
    world.run(&["audit", "recover", "--yes"]).ok();
    world.fs(&["ls"]).ok();
    assert_eq!(ids(&world).len(), 1);
}

#[test]
fn what_is_packed_is_listed_shown_restored_and_verified_as_before() {
    let world = World::with_policy(&policy(100));
    let gateway = acp_rig::gateway_under(&policy(100), &world.root(), world.base());
    let path = WorkspacePath::parse("src/a.txt").unwrap();
    for version in 0..12 {
        let content = text(version).into_bytes();
        let write = Write { path: path.clone(), content, mode: None };
        gateway.handle(&session(), &write, Client::default()).unwrap();
    }
    drop(gateway);
    world.file("t/b.txt", text(3));
    world.fs(&["rm", "-r", "t"]).ok();
    let before = world.run(&["backup", "list", "--json"]).ok().json();

    let pruned = world.run(&["backup", "prune", "--json"]).ok().json();
    assert_eq!(pruned["removed"]["backups"], 0);
    assert_eq!(pruned["packed"]["backups"], 12);
    assert_eq!(world.last()["op"], "prune");
    let after = world.run(&["backup", "list", "--json"]).ok().json();
    assert!(after["stored"].as_u64() < before["stored"].as_u64().map(|bytes| bytes / 5), "{after}");
    assert_eq!(before["bytes"], after["bytes"]);
    let listed = world.run(&["backup", "list"]).ok();
    assert!(listed.text().starts_with("TIME") && listed.text().contains("STORED"));
    assert!(listed.stderr.contains("backup store takes"), "{listed:?}");

    let second = after["backups"].as_array().unwrap().iter().rev().nth(1).unwrap();
    let id = second["id"].as_str().unwrap();
    assert_eq!(world.run(&["backup", "show", id]).ok().text(), text(1));
    world.run(&["backup", "diff", id]).ok();
    world.run(&["backup", "restore", id]).ok();
    assert_eq!(world.read("src/a.txt"), text(1));
    world.run(&["backup", "restore", "t"]).ok();
    assert_eq!(world.read("t/b.txt"), text(3));
    let verified = world.run(&["backup", "verify", "--json"]).ok().json();
    assert_eq!((&verified["ok"], &verified["backups"]), (&json!(true), &json!(13)));
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn damage_in_the_backup_store_is_named_with_exit_code_5() {
    let world = World::with_policy(&policy(100));
    for (name, version) in [("a.txt", 1), ("b.txt", 2), ("b.txt", 3)] {
        world.file(name, text(version));
        world.write(name, text(version + 10)).ok();
    }
    world.run(&["backup", "prune"]).ok();
    world.run(&["backup", "verify"]).ok();
    let objects = files(&world.state().join("backups/objects"));
    let victim = objects.iter().find(|path| !path.to_string_lossy().contains("delta")).unwrap();
    let whole = std::fs::read(victim).unwrap();
    let mut bytes = whole.clone();
    bytes[200] ^= 1;
    std::fs::write(victim, &bytes).unwrap();
    let found = world.run(&["backup", "verify", "--json"]);
    assert_eq!(found.code, 5, "{found:?}");
    assert!(!found.json()["damaged"].as_array().unwrap().is_empty());
    let said = world.run(&["backup", "verify"]);
    assert!(said.code == 5 && said.stderr.contains("is damaged"), "{said:?}");
    // Nothing is returned, and pruning leaves it for an operator who can repair
    // it.
    let id = found.json()["damaged"][0].as_str().unwrap().to_owned();
    let refused = world.run(&["backup", "restore", &id]);
    assert!(refused.code == 1 && refused.stderr.contains("is damaged"), "{refused:?}");
    world.run(&["backup", "prune"]).ok();
    std::fs::write(victim, &whole).unwrap();
    world.run(&["backup", "verify"]).ok();
}

#[test]
fn prune_lets_go_what_the_policy_lets_go() {
    let mut world = World::with_policy(&policy(100));
    for version in 0..8 {
        world.write("a.txt", text(version)).ok();
    }
    world.run(&["backup", "prune"]).ok();
    world.set_policy(&policy(3));
    let would = world.run(&["backup", "prune", "--dry-run", "--json"]).ok().json();
    assert_eq!((&would["removed"]["backups"], &would["packed"]), (&json!(3), &json!(null)));
    assert_eq!(ids(&world).len(), 7);
    let done = world.run(&["backup", "prune"]).ok();
    assert!(
        done.stderr.contains("removed 3 backups") && done.stderr.contains("4 stay"),
        "{done:?}"
    );
    assert_eq!(ids(&world).len(), 4);
    world.run(&["backup", "verify"]).ok();
}

#[test]
fn killed_while_it_prunes_a_backup_store_is_whole() {
    let world = World::with_policy(&policy(6));
    let gateway = acp_rig::gateway_under(&policy(100), &world.root(), world.base());
    let (mut killed, mut version) = (0, 0);
    for round in 0..12_u64 {
        for _ in 0..8 {
            version += 1;
            for name in ["a.txt", "b.txt"] {
                let path = WorkspacePath::parse(name).unwrap();
                let write = Write { path, content: text(version).into_bytes(), mode: None };
                gateway.handle(&session(), &write, Client::default()).unwrap();
            }
        }
        let mut child = world
            .command(&["backup", "prune"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_micros(4000 + round * 9973 % 60_000));
        child.kill().unwrap();
        killed += u32::from(child.wait().unwrap().code().is_none());
        let verified = world.run(&["backup", "verify", "--json"]).ok().json();
        assert!(verified["backups"].as_u64().unwrap() >= 13, "{verified}");
        // The newest version but one, as it was.
        let newest = world.run(&["backup", "show", "a.txt"]).ok();
        assert_eq!(newest.text(), text(version - 1), "round {round}");
    }
    assert!(killed > 0);
    drop(gateway);
    world.run(&["backup", "prune"]).ok();
    assert_eq!(ids(&world).len(), 14, "six of each and the first");
    let gateway = acp_rig::gateway_under(&policy(6), &world.root(), world.base());
    let (_, packed) = gateway.maintenance().run(&mut |_, _| ()).unwrap();
    assert_eq!((packed.entries, packed.collected, packed.damaged), (0, 0, 0));
}
