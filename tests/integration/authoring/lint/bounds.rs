//! Bounds that do not apply at the mount.

use serde_json::Value;

use super::policy_file;
use crate::common::World;

/// The findings of `policy check`.
fn warnings(world: &World, text: &str) -> Vec<Value> {
    policy_file(world, "p.toml", text);
    let checked = world.run(&["policy", "check", "p.toml", "--json"]).ok().json();
    checked["policies"][0]["warnings"].as_array().unwrap().clone()
}

/// They applied to requests of a model, and to no program of `exec`, without a finding.
#[test]
fn bounds_that_do_not_hold_at_the_mount_are_told() {
    let world = World::new();
    let bounded = "schema = 1\nname = \"p\"\nversion = 1\n[files]\nmaxReadSize = \"1KiB\"\n\
        [limits]\nfilesRemoved = 0\n";
    let found = warnings(&world, bounded);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["id"], &found[0]["line"]), (&"mount-unbounded".into(), &5.into()));
    for key in ["`files.maxReadSize`", "`limits.filesRemoved`"] {
        assert!(found[0]["message"].as_str().unwrap().contains(key), "{found:?}");
    }
    let found = warnings(&world, &format!("{bounded}[mount]\nfilesRemoved = 5\n"));
    assert!(!found[0]["message"].as_str().unwrap().contains("filesRemoved"), "{found:?}");
    // Rules that apply there are explained.
    world.file("big", "x");
    let explain = ["policy", "explain", "read", "big", "--policy", "p.toml", "--json"];
    let explained = world.run(&explain).ok().json().to_string();
    assert!(
        explained.contains("applies at the mount") && explained.contains("268435456"),
        "{explained}"
    );
}

/// One key in `[mount]`, and nothing was found of the others.
#[test]
fn one_key_of_the_mount_silenced_the_lint_of_the_others() {
    let world = World::new();
    let bounds = "schema = 1\n[files]\nbinary = { read = \"deny\", write = \"base64\" }\n\
        [limits]\noperationsPerSecond = 5\nfilesRemoved = 0\ndenials = 9\n";
    let unbounded = |mount: &str| {
        let found = warnings(&world, &format!("{bounds}[mount]\n{mount}\n"));
        let words = ["files.binary.read", "files.binary.write", "limits.filesRemoved"];
        let words = words.into_iter().chain(["limits.denials", "limits.operationsPerSecond"]);
        assert!(found.len() < 2, "{found:?}");
        let message = found.first().map_or("", |found| found["message"].as_str().unwrap());
        words.filter(|word| message.contains(word)).collect::<Vec<_>>()
    };
    let all = ["files.binary.read", "limits.filesRemoved", "limits.denials"];
    assert_eq!(unbounded(""), all);
    assert_eq!(unbounded("maxReadSize = \"1MiB\""), all);
    assert_eq!(unbounded("binary = { write = \"deny\" }"), all);
    assert_eq!(unbounded("filesRemoved = 5\ndenials = 5"), ["files.binary.read"]);
    let stated = "filesRemoved = 5\ndenials = 5\nbinary = { read = \"allow\" }";
    assert_eq!(unbounded(stated), <[&str; 0]>::default());
    // It may be in a file that is extended.
    policy_file(&world, "base.toml", &format!("schema = 1\n[mount]\n{stated}\n"));
    let extending = bounds.replace("schema = 1\n", "schema = 1\nextends = [\"base.toml\"]\n");
    assert_eq!(warnings(&world, &extending), Vec::<Value>::new());
}
