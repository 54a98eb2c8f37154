//! Permission bits, times and links.

use std::os::unix::fs::MetadataExt as _;

use portcullis::model::request::{SetAttributes, Symlink};

use super::*;

#[test]
fn attributes_and_links_are_undone() {
    let world = World::with_policy(POLICY);
    for name in ["a", "b", "c"] {
        world.file(name, "x");
        std::fs::set_permissions(world.path(name), PermissionsExt::from_mode(0o644)).unwrap();
    }
    let before = snapshot(&world.root());
    let time = |name: &str| std::fs::metadata(world.path(name)).unwrap().mtime();
    let was = time("a");
    let agent = Agent::new(&world, 1);
    let set =
        |name, mode, modified| agent.does(&SetAttributes { path: path(name), mode, modified });
    set("a", Some(0o600), Some((1, 0)));
    set("a", Some(0o700), None);
    // A file that is written, and gets another time later.
    set("b", Some(0o755), Some((1, 0)));
    agent.write("b", "y");
    set("b", Some(0o700), None);
    // A file that is made and removed.
    agent.does(&Write { mode: Some(0o755), path: path("new"), content: b"x".to_vec() });
    set("new", Some(0o700), Some((1, 0)));
    agent.does(&Symlink { path: path("dir/link"), target: "../a".to_owned() });
    set("c", Some(0o700), None);
    std::fs::set_permissions(world.path("c"), PermissionsExt::from_mode(0o711)).unwrap();
    drop(agent);

    // Attributes that another process set are not overwritten without a
    // confirmation.
    let shown = backup(&world, &["undo", "--session", "0101", "--yes"]);
    assert_eq!(shown.code, 1, "{shown:?}");
    assert!(shown.text().contains("its mode was changed since"), "{shown:?}");
    std::fs::set_permissions(world.path("c"), PermissionsExt::from_mode(0o700)).unwrap();
    let done = backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert!(done.text().contains("setattr  a"), "{done:?}");
    assert_eq!(snapshot(&world.root()), before);
    assert_eq!(time("a"), was);
    let again = backup(&world, &["undo", "--session", "0101", "--yes"]).ok();
    assert!(again.text().starts_with("0 to do"), "{again:?}");
    world.run(&["audit", "verify"]).ok();
}
