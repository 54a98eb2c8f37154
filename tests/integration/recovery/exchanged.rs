//! Entries that other ones replaced while a gateway changed them.

use std::{
    collections::BTreeMap,
    os::unix::fs::{MetadataExt as _, PermissionsExt},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use portcullis::{
    gateway::{Client, ErrorKind, Follower},
    model::{
        WorkspacePath,
        request::{SetAttributes, Write},
    },
};
use rustix::fs::{RenameFlags, renameat_with};
use serde_json::{Value, json};

use super::*;
use crate::{acp_rig, requests::AnyRequest};

/// Changes the workspace just before the change that it follows has its record.
struct Meanwhile<'a>(&'a (dyn Fn() + Sync));

impl Follower for Meanwhile<'_> {
    fn begins(&self) -> bool {
        (self.0)();
        true
    }
}

/// Regression: the intent had no outcome until the next start, which looked at another entry then.
#[test]
fn a_change_of_an_entry_that_was_exchanged_has_an_outcome() {
    let path = || WorkspacePath::parse("d/a").unwrap();
    let save = |world: &World| {
        fs::set_permissions(world.file("b", "new"), PermissionsExt::from_mode(0o640)).unwrap();
        fs::rename(world.path("b"), world.path("d/a")).unwrap();
    };
    let exchange = |world: &World| {
        let (one, other) = (world.path("d"), world.path("e"));
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
    };
    let set = SetAttributes { path: path(), mode: Some(0o600), modified: None };
    let write = Write { path: path(), content: b"new".to_vec(), mode: None };
    type Case<'a> = (&'a dyn AnyRequest, &'a (dyn Fn(&World) + Sync));
    let cases: [Case<'_>; 3] = [(&set, &save), (&set, &exchange), (&write, &exchange)];
    for (request, other) in cases {
        let world = World::with_policy(POLICY);
        world.file("d/a", "old");
        world.file("e/b", "another directory");
        let gateway = acp_rig::gateway_under(POLICY, &world.root(), world.base());
        let other = || other(&world);
        let meanwhile = Meanwhile(&other);
        let client = Client { follower: &meanwhile, ..Client::default() };
        let refused = request.put(&gateway, &acp_rig::connection(), client).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{request:?}");
        drop(gateway);
        world.fs(&["ls"]).ok();
        let records = world.records();
        let intent = records.iter().find(|record| record["kind"] == "intent").unwrap();
        let ends: Vec<_> = records.iter().filter(|end| end["of"] == intent["seq"]).collect();
        let [end] = ends.as_slice() else { panic!("{request:?}: {ends:?}") };
        assert_eq!((&end["kind"], &end["result"]), (&json!("outcome"), &json!("conflict")));
        consistency::check(&world);
    }
}

/// A time as records have it.
fn time(time: SystemTime) -> String {
    let time = time.duration_since(UNIX_EPOCH).unwrap();
    format!("{}.{:09}", time.as_secs(), time.subsec_nanos())
}

/// An intent to set attributes of the file at `path` as it is, and to set its mode or its time.
fn died_before_setting(world: &World, path: &str, (mode, is_born): (bool, bool)) {
    let meta = fs::metadata(world.path(path)).unwrap();
    let seconds = meta.mtime();
    let (before, after) = match mode {
        true => (json!({ "mode": "0644" }), json!({ "mode": "0600" })),
        false => (
            json!({ "modified": seconds, "modifiedNanoseconds": meta.mtime_nsec() }),
            json!({ "modified": 1, "modifiedNanoseconds": 0 }),
        ),
    };
    let modified =
        if mode { meta.modified().unwrap() } else { UNIX_EPOCH + Duration::from_secs(1) };
    let mut entry = json!({
        "inode": meta.ino().to_string(), "modified": time(modified), "bytes": meta.len(),
    });
    if is_born {
        entry["born"] = time(meta.created().unwrap()).into();
    }
    let facts: BTreeMap<String, Value> =
        [("attributes", after), ("attributesBefore", before), ("entry", entry)]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
    let (op, path) = (Some("setattr".to_owned()), Some(path.to_owned()));
    admitted(world, Draft { op, path, facts: Some(facts), ..Draft::default() });
}

/// Regression: a file that got the name, and had the mode anyway, counted as the one whose mode was
/// set.
#[test]
fn attributes_are_those_of_the_entry_that_the_intent_names() {
    for (is_born, other, mode, result) in [
        (true, false, 0o600, "committed"),
        (true, false, 0o644, "rolledBack"),
        (true, false, 0o640, "superseded"),
        (true, true, 0o600, "superseded"),
        (true, true, 0o644, "superseded"),
        (false, false, 0o600, "committed"),
        (false, true, 0o600, "superseded"),
    ] {
        let world = world();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        set(&world.file("a.txt", "text"), 0o644);
        died_before_setting(&world, "a.txt", (true, is_born));
        if other {
            fs::rename(world.file("b.txt", "text"), world.path("a.txt")).unwrap();
        }
        set(&world.path("a.txt"), mode);
        assert_eq!(settled(&world), result, "{is_born} {other} {mode:o}");
    }
}

/// The time is a part of the entry's identity where files have no time of birth.
#[test]
fn a_time_that_was_not_set_is_that_of_the_entry() {
    for is_born in [true, false] {
        for (is_set, result) in [(true, "committed"), (false, "rolledBack")] {
            let world = world();
            world.file("a.txt", "text");
            died_before_setting(&world, "a.txt", (false, is_born));
            if is_set {
                let file = fs::File::options().write(true).open(world.path("a.txt")).unwrap();
                file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
            }
            assert_eq!(settled(&world), result, "{is_born} {is_set}");
        }
    }
}
