//! Commands that need records which were pruned.

use portcullis_audit::Kind;
use serde_json::json;

use super::*;
use crate::review::{decision, write_log};

/// Makes a workspace whose log begins with record 65,536.
fn pruned() -> World {
    let world = World::new();
    write_log(&world, 140_000, |_seq| {
        (Kind::Decision, decision("coder", "read", "a", "allow", "allowedPaths.read"))
    });
    world.run(&["audit", "checkpoint"]).ok();
    world.run(&["audit", "prune", "--before", "2027-01-01", "--yes"]).ok();
    world.file("a", "x");
    world
}

/// Regression: nothing said that the records which these commands did not find may have been pruned.
#[test]
fn what_was_pruned_passed_for_what_never_was() {
    let world = pruned();
    let none = world.run(&["undo", "--yes"]);
    assert_eq!(none.code, 1, "{none:?}");
    assert!(none.stderr.contains("before record 65536"), "{none:?}");
    let blamed = world.run(&["audit", "blame", "a"]).ok();
    assert!(blamed.stderr.contains("before record 65536"), "{blamed:?}");
    let blamed = world.run(&["audit", "blame", "a", "--json"]).ok();
    assert_eq!(blamed.json()["logBegins"], json!(65_536));
    // The last change is known.
    world.fs(&["rm", "a"]).ok();
    let blamed = world.run(&["audit", "blame", "a"]).ok();
    assert!(!blamed.stderr.contains("pruned"), "{blamed:?}");
}

/// Regression: another record was explained.
#[test]
fn a_pruned_record_is_not_explained_by_another_one() {
    let world = pruned();
    let explain = ["policy", "explain", "--record", "5"];
    let refused = world.run(&explain);
    assert_eq!((refused.code, refused.text()), (1, ""), "{refused:?}");
    let told = "the log begins with record 65536: record 5 and others before it were pruned";
    assert!(refused.stderr.contains(told), "{refused:?}");
    let refused = world.run(&[&explain[..], &["--json"]].concat());
    assert_eq!((refused.code, &refused.json()["error"]["message"]), (1, &json!(told)));
    world.run(&["policy", "explain", "--record", "65536"]).ok();
}
