//! The gateway's own files: out of reach by path, link, hard link and trick.

use std::os::unix::fs::symlink;

use super::{Siege, is_unharmed, world};

#[test]
fn log_backup_store_and_policy_are_out_of_reach_by_path_and_link() {
    let mut siege = Siege::begin();
    let path = siege.inside("a.txt");
    let request = siege.relay.write_at(&path, "old");
    siege.relay.ask_one(request);
    let base = siege.world().base().canonicalize().unwrap();
    let before = std::fs::read_to_string(base.join("policy/policy.toml")).unwrap();
    for own in [
        "state/audit/seg-000000.jsonl",
        "state/audit/lock",
        "state/backups",
        "state/gateways",
        "state/planted",
        "policy/policy.toml",
    ] {
        let absolute = base.join(own).to_str().unwrap().to_owned();
        siege.denied(&absolute, "workspace.outside");
        let up = siege.inside(&format!("../{own}"));
        siege.denied(&up, "workspace.outside");
        let name = format!("link-{}", own.replace('/', "-"));
        symlink(format!("../{own}"), siege.world().path(&name)).unwrap();
        let path = siege.inside(&name);
        siege.denied(&path, "workspace.outside");
    }
    let world = siege.end();
    assert_eq!(std::fs::read_to_string(base.join("policy/policy.toml")).unwrap(), before);
    assert!(!world.state().join("planted").exists());
}

#[test]
fn hard_links_to_log_backup_store_and_policy_are_neither_read_nor_written() {
    let world = world();
    world.file("a.txt", "old");
    world.write("a.txt", "new").ok();
    let mut kept = Vec::new();
    let mut pending = vec![world.state().join("backups"), world.base().join("policy")];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            kept.push(path);
        }
    }
    assert!(kept.len() >= 2, "{kept:?}");
    for (number, file) in kept.iter().enumerate() {
        let name = format!("hard{number}");
        let before = std::fs::read(file).unwrap();
        std::fs::hard_link(file, world.path(&name)).unwrap();
        // Under a policy that has another name nothing starts.
        let code = if file.starts_with(world.base().join("policy")) { 1 } else { 3 };
        assert_eq!(world.fs(&["read", &name]).code, code, "{}", file.display());
        assert_eq!(world.write(&name, "PWNED").code, code, "{}", file.display());
        std::fs::remove_file(world.path(&name)).unwrap();
        assert_eq!(std::fs::read(file).unwrap(), before);
    }
    // A second name of the log: it is not read, whatever its contents.
    std::fs::hard_link(world.state().join("audit/seg-000000.jsonl"), world.path("log")).unwrap();
    for done in [world.fs(&["read", "log"]), world.write("log", "PWNED")] {
        assert_ne!(done.code, 0, "{done:?}");
        assert!(!done.text().contains("\"seq\""), "{done:?}");
    }
    std::fs::remove_file(world.path("log")).unwrap();
    world.fs(&["read", "proof.txt"]).ok();
    is_unharmed(&world);
}

#[test]
fn a_state_directory_that_was_planted_is_refused() {
    let world = world();
    let elsewhere = world.base().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, world.state()).unwrap();
    let done = world.fs(&["read", "proof.txt"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("is a link"), "{}", done.stderr);
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    // A link into the workspace, by which the agent would hold the log.
    std::fs::remove_file(world.state()).unwrap();
    symlink(world.root(), world.state()).unwrap();
    assert_eq!(world.fs(&["read", "proof.txt"]).code, 1);
    std::fs::remove_file(world.state()).unwrap();
    // Others may look in, or it lies in the workspace itself.
    std::fs::create_dir(world.state()).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(world.state(), open).unwrap();
    let done = world.fs(&["read", "proof.txt"]);
    assert!(done.code == 1 && done.stderr.contains("lets others in"), "{done:?}");
    std::fs::remove_dir(world.state()).unwrap();
    let inside = world.path("state").to_str().unwrap().to_owned();
    let done = world.run(&["fs", "read", "proof.txt", "--state", &inside]);
    assert_eq!(done.code, 1, "{done:?}");
    // A planted file in a genuine directory is not followed.
    world.fs(&["read", "proof.txt"]).ok();
    for part in ["audit", "backups", "gateways", "policies"] {
        let whole = world.state().join(part);
        if whole.exists() {
            std::fs::rename(&whole, world.state().join("aside")).unwrap();
        }
        symlink(&elsewhere, &whole).unwrap();
        world.write("a.txt", "x");
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0, "through `{part}`");
        std::fs::remove_file(&whole).unwrap();
        if world.state().join("aside").exists() {
            std::fs::rename(world.state().join("aside"), &whole).unwrap();
        }
    }
    world.fs(&["read", "proof.txt"]).ok();
    is_unharmed(&world);
}

#[test]
fn neither_errors_nor_differences_show_what_is_denied() {
    let mut world = world();
    world.file("notes.txt", "TOP-SECRET one");
    world.write("notes.txt", "TOP-SECRET two").ok();
    world.set_policy(&super::POLICY.replace("żółć/**", "notes.txt"));
    for args in [
        ["backup", "show", "notes.txt"].as_slice(),
        &["backup", "diff", "notes.txt"],
        &["backup", "restore", "notes.txt"],
        &["fs", "read", "notes.txt"],
        &["fs", "edit", "notes.txt", "--old", "TOP-SECRET", "--new", "x"],
    ] {
        let done = world.run(args);
        assert_ne!(done.code, 0, "{args:?}");
        let said = format!("{}{}", done.text(), done.stderr);
        assert!(!said.contains("TOP-SECRET"), "{args:?}: {said}");
    }
    let root = world.root().canonicalize().unwrap();
    let listed = world.run(&["backup", "list"]).ok();
    assert!(!listed.text().contains("TOP-SECRET"));
    assert_eq!(world.read("notes.txt"), "TOP-SECRET two");
    let log = std::fs::read_to_string(world.state().join("audit/seg-000000.jsonl")).unwrap();
    assert!(!log.contains("TOP-SECRET"), "the log holds content");
    assert!(log.contains(root.to_str().unwrap()), "the start record names the workspace");
    is_unharmed(&world);
}
