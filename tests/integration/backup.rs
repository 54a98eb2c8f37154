//! Backups through the front door: made by every change, listed, shown,
//! compared and put back, and never a way around the policy.

use std::{
    os::{
        fd::AsFd as _,
        unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    },
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{XattrFlags, fsetxattr};
use serde_json::Value;

use crate::{
    common::{Done, World},
    random::Random,
};

const SECRETIVE: &str = r#"
schema = 1
name = "secretive"
version = 1

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]

[files]
binary = { read = "base64", write = "base64" }
"#;

fn backup(world: &World, args: &[&str]) -> Done {
    world.run(&[&["backup"], args].concat())
}

fn list(world: &World, args: &[&str]) -> Vec<Value> {
    let listed = backup(world, &[&["list", "--json"], args].concat()).ok().json();
    assert_eq!(listed["damaged"], serde_json::json!([]));
    listed["backups"].as_array().unwrap().clone()
}

fn newest(world: &World, path: &str) -> String {
    list(world, &[path])[0]["id"].as_str().unwrap().to_owned()
}

/// The same policy with more in it.
fn policy(more: &str) -> String {
    format!("{SECRETIVE}\n{more}")
}

#[test]
fn a_restore_is_gated_audited_and_itself_backed_up() {
    let world = World::new();
    world.file("a.txt", "one");
    world.write("a.txt", "two").ok();
    let first = newest(&world, "a.txt");

    let done = backup(&world, &["restore", &first, "--json"]).ok().json();
    assert_eq!(world.read("a.txt"), "one");
    let kept = done["backup"].as_str().unwrap();
    assert_eq!(backup(&world, &["show", kept]).ok().text(), "two");
    assert_eq!(done["from"]["id"], first.as_str());

    let records = world.requests();
    let intent = records.iter().find(|r| r["kind"] == "intent" && r["op"] == "restore").unwrap();
    assert_eq!(intent["seq"], done["receipt"]["seq"]);
    assert_eq!(intent["path"], "a.txt");
    assert_eq!(intent["backup"], kept);
    assert_eq!(intent["facts"]["fromBackup"], first.as_str());
    assert_eq!(intent["rule"], "allowedPaths.write");
    let outcome = records.iter().find(|r| r["of"] == intent["seq"]).unwrap();
    assert_eq!((&outcome["kind"], &outcome["result"]), (&"outcome".into(), &"ok".into()));

    // The path stands for its newest backup: a restore undoes a restore.
    backup(&world, &["restore", "a.txt"]).ok();
    assert_eq!(world.read("a.txt"), "two");
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn what_was_removed_comes_back_with_mode_and_access_list() {
    let world = World::new();
    let acl: &[u8] = &[
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 0xe8, 3, 0, 0, 4, 0, 4, 0, 255,
        255, 255, 255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    let path = world.file("sub/tool", [0, 159, 146, 150]);
    let file = std::fs::File::open(&path).unwrap();
    fsetxattr(&file, "system.posix_acl_access", acl, XattrFlags::empty()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o6740)).unwrap();
    let read_acl = |path: &Path| {
        let mut list = [0; 256];
        let file = std::fs::File::open(path).unwrap();
        let length = rustix::fs::fgetxattr(file, "system.posix_acl_access", &mut list[..]).unwrap();
        list[..length].to_vec()
    };
    let before = read_acl(&path);

    world.fs(&["rm", "-r", "sub"]).ok();
    backup(&world, &["restore", "sub"]).ok();
    assert_eq!(std::fs::read(&path).unwrap(), [0, 159, 146, 150]);
    assert_eq!(read_acl(&path), before);
    world.fs(&["rm", "sub/tool"]).ok();
    assert!(!path.exists());
    // A file of its own: set-id bits do not come back.
    std::fs::set_permissions(world.path("sub"), std::fs::Permissions::from_mode(0o750)).unwrap();
    backup(&world, &["restore", "sub/tool"]).ok();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o740);
    assert_eq!(read_acl(&path), before);
    assert_eq!(list(&world, &["sub/tool"])[0]["mode"], "0740");
}

#[test]
fn a_set_id_bit_is_kept_in_the_backup_and_not_given_back() {
    let world = World::new();
    let path = world.file("tool", "#!/bin/sh\n");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o6755)).unwrap();
    world.fs(&["rm", "tool"]).ok();
    assert_eq!(list(&world, &["tool"])[0]["mode"], "6755");
    backup(&world, &["restore", "tool"]).ok();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn a_tree_comes_back_whole() {
    let world = World::new();
    world.file("d/a.txt", "alpha");
    world.file("d/sub/b.txt", "beta");
    std::fs::create_dir(world.path("d/empty")).unwrap();
    symlink("sub/b.txt", world.path("d/link")).unwrap();
    symlink("/etc/passwd", world.path("d/outside")).unwrap();
    std::fs::set_permissions(world.path("d/empty"), std::fs::Permissions::from_mode(0o500))
        .unwrap();
    world.fs(&["rm", "-r", "d"]).ok();
    assert!(!world.path("d").exists());
    // A tree that holds the path is found by it.
    assert_eq!(list(&world, &["d/sub/b.txt"])[0]["path"], "d");
    let shown = backup(&world, &["show", "d"]).ok();
    assert_eq!(shown.text().lines().count(), 7, "{}", shown.text());

    backup(&world, &["restore", "d", "--dry-run"]).ok();
    assert!(!world.path("d").exists());
    backup(&world, &["restore", "d"]).ok();
    assert_eq!(world.read("d/a.txt"), "alpha");
    assert_eq!(world.read("d/sub/b.txt"), "beta");
    assert_eq!(std::fs::read_link(world.path("d/link")).unwrap(), Path::new("sub/b.txt"));
    assert_eq!(std::fs::read_link(world.path("d/outside")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(std::fs::metadata(world.path("d/empty")).unwrap().mode() & 0o7777, 0o500);
}

#[test]
fn a_directory_in_the_way_is_kept_and_replaced() {
    let world = World::new();
    world.file("d/a.txt", "old");
    world.fs(&["rm", "-r", "d"]).ok();
    let tree = newest(&world, "d");
    world.file("d/b.txt", "new");
    let done = backup(&world, &["restore", &tree, "--json"]).ok().json();
    assert_eq!(world.read("d/a.txt"), "old");
    assert!(!world.path("d/b.txt").exists());
    assert_eq!(std::fs::read_dir(world.root()).unwrap().count(), 1, "nothing temporary");
    // And back again, also over what is no directory.
    std::fs::remove_dir_all(world.path("d")).unwrap();
    world.file("d", "a file");
    backup(&world, &["restore", done["backup"].as_str().unwrap()]).ok();
    assert_eq!(world.read("d/b.txt"), "new");
    backup(&world, &["restore", "d"]).ok();
    assert_eq!(world.read("d"), "a file");
}

#[test]
fn what_is_in_the_way_must_be_removable() {
    let mut world = World::with_policy(SECRETIVE);
    world.file("d/a.txt", "old");
    world.fs(&["rm", "-r", "d"]).ok();
    world.file("d/keep/this.txt", "new");
    world.set_policy(&policy(
        "[[rules]]\nid = \"keep\"\neffect = \"deny\"\noperations = [\"remove\"]\npaths = [\"d/keep/**\"]\n",
    ));
    let refused = backup(&world, &["restore", "d"]);
    refused.denied("keep");
    assert_eq!(world.read("d/keep/this.txt"), "new");
}

#[test]
fn a_denied_path_is_neither_shown_nor_restored_nor_compared() {
    let mut world = World::with_policy(SECRETIVE);
    world.file("keys/id.txt", "TOP SECRET");
    world.file("tree/public.txt", "public");
    world.file("tree/hidden.txt", "TOP SECRET");
    world.write("keys/id.txt", "changed").ok();
    world.fs(&["rm", "-r", "tree"]).ok();
    let (id, tree) = (newest(&world, "keys/id.txt"), newest(&world, "tree"));
    world.set_policy(&policy(
        "[[rules]]\nid = \"unreadable\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"keys/**\", \"tree/hidden.txt\"]\n\
         [[rules]]\nid = \"frozen\"\neffect = \"deny\"\noperations = [\"write\", \"restore\"]\npaths = [\"keys/**\"]\n",
    ));
    let file = world.base().join("out");
    for args in [
        vec!["show", &id],
        vec!["show", &id, "--json"],
        vec!["show", &id, "-o", file.to_str().unwrap()],
        vec!["diff", &id],
        vec!["diff", &id, "--json"],
    ] {
        let refused = backup(&world, &args);
        assert_eq!(refused.code, 3, "{args:?}: {refused:?}");
        let said = format!("{}{}", refused.text(), refused.stderr);
        assert!(said.contains("unreadable") && !said.contains("SECRET"), "{said}");
        assert_eq!(world.last()["decision"], "deny");
    }
    assert_eq!(std::fs::read(&file).unwrap_or_default(), b"");
    backup(&world, &["restore", &id]).denied("frozen");
    // Nor under another name, where it could be read.
    backup(&world, &["restore", &id, "--to", "public.txt"]).denied("unreadable");
    backup(&world, &["restore", &tree, "--to", "elsewhere"]).denied("unreadable");
    assert!(!world.path("public.txt").exists() && !world.path("elsewhere").exists());
    assert_eq!(world.read("keys/id.txt"), "changed");
    let shown = backup(&world, &["show", &tree]).ok();
    assert!(shown.text().contains("public.txt") && !shown.text().contains("hidden.txt"));
}

#[test]
fn nothing_is_restored_through_a_planted_link() {
    let world = World::new();
    world.file("d/a.txt", "old");
    world.write("d/a.txt", "new").ok();
    let outside = world.base().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("a.txt"), "OUTSIDE").unwrap();
    let id = newest(&world, "d/a.txt");

    std::fs::remove_dir_all(world.path("d")).unwrap();
    symlink(&outside, world.path("d")).unwrap();
    backup(&world, &["restore", &id]).denied("workspace.outside");
    std::fs::remove_file(world.path("d")).unwrap();
    std::fs::create_dir(world.path("elsewhere")).unwrap();
    symlink("elsewhere", world.path("d")).unwrap();
    backup(&world, &["restore", &id]).denied("restore.links");
    assert_eq!(std::fs::read_dir(world.path("elsewhere")).unwrap().count(), 0);

    // A link at the very place is replaced itself, and kept.
    std::fs::remove_file(world.path("d")).unwrap();
    std::fs::create_dir(world.path("d")).unwrap();
    symlink(outside.join("a.txt"), world.path("d/a.txt")).unwrap();
    backup(&world, &["restore", &id]).ok();
    assert!(!world.path("d/a.txt").is_symlink());
    assert_eq!(world.read("d/a.txt"), "old");
    assert_eq!(std::fs::read_to_string(outside.join("a.txt")).unwrap(), "OUTSIDE");
    assert_eq!(list(&world, &["d/a.txt"])[0]["type"], "link");
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let world = World::new();
    world.file("a.txt", "the good old content");
    world.write("a.txt", "new").ok();
    let id = newest(&world, "a.txt");
    let entry = walk(&world.state().join("backups"))
        .into_iter()
        .find(|path| path.to_string_lossy().contains(&id))
        .unwrap();
    let mut bytes = std::fs::read(&entry).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&entry, bytes).unwrap();
    for command in ["restore", "show", "diff"] {
        let refused = backup(&world, &[command, &id]);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("is damaged"), "{refused:?}");
    }
    assert_eq!(world.read("a.txt"), "new");
    assert_eq!(list(&world, &[]).len(), 1, "nothing was kept for what was not done");
}

#[test]
fn ids_paths_and_their_mistakes() {
    let world = World::new();
    world.file("a.txt", "1");
    world.file("2026", "a file with an odd name");
    world.write("a.txt", "2").ok();
    world.write("2026", "3").ok();
    let id = newest(&world, "a.txt");
    assert_eq!(backup(&world, &["show", &id]).ok().text(), "1");
    assert_eq!(backup(&world, &["show", "a.txt"]).ok().text(), "1");
    assert_eq!(backup(&world, &["show", "2026"]).ok().text(), "a file with an odd name");
    let ambiguous = backup(&world, &["show", id.get(..8).unwrap()]);
    assert!(ambiguous.stderr.contains("more than one backup"), "{ambiguous:?}");
    let unknown = backup(&world, &["restore", "nowhere.txt"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("no backup has the id `nowhere.txt`"), "{unknown:?}");
    assert_eq!(world.last()["op"], "restore");
    backup(&world, &["restore", &id, "--to", "../x"]).denied("workspace.outside");
    assert_eq!(list(&world, &["--agent", "nobody"]).len(), 0);
    assert_eq!(list(&world, &["--agent", "cli"]).len(), 2);
    let session = list(&world, &[])[0]["session"].as_str().unwrap().to_owned();
    assert_eq!(list(&world, &["--session", &session]).len(), 1);
    // What a shell makes of `evil*` in a hostile directory.
    for command in ["restore", "diff", "show"] {
        let hostile = world.run(&["backup", command, "evil\u{1b}]0;x\u{7}"]);
        assert!(hostile.code != 0 && !hostile.stderr.contains(['\u{1b}', '\u{7}']), "{hostile:?}");
    }
}

#[test]
fn listings_and_diffs_as_a_person_reads_them() {
    let world = World::new();
    world.file("src/a.txt", "one\ntwo\nthree\n");
    let name = "src/\u{1b}[31mred\u{202e}";
    world.file(name, "x");
    world.write("src/a.txt", "one\n2\nthree\n").ok();
    world.fs(&["rm", name]).ok();
    let listed = backup(&world, &["list", "src"]).ok();
    let lines: Vec<&str> = listed.text().lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("TIME") && lines[2].contains("src/a.txt"), "{lines:?}");
    assert!(lines[1].contains("src/\\u{1b}[31mred\\u{202e}"), "{lines:?}");

    let id = newest(&world, "src/a.txt");
    let diff = backup(&world, &["diff", "src/a.txt"]).ok();
    assert_eq!(
        diff.text(),
        format!(
            "--- a/src/a.txt (backup {id})\n+++ b/src/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
        )
    );
    let reads = world.requests();
    assert_eq!(reads[reads.len() - 2]["facts"]["fromBackup"], id.as_str());
    assert_eq!((&reads[reads.len() - 1]["op"], reads.len()), (&"read".into(), 6));
    std::fs::remove_file(world.path("src/a.txt")).unwrap();
    let gone = backup(&world, &["diff", "src/a.txt", "--json"]).ok().json();
    assert_eq!((&gone["missing"], &gone["same"]), (&true.into(), &false.into()));
    backup(&world, &["restore", "src/a.txt"]).ok();
    let same = backup(&world, &["diff", &id, "--json"]).ok().json();
    assert_eq!((&same["same"], &same["diff"]), (&true.into(), &"".into()));
}

#[test]
fn the_differences_of_a_tree_are_listed() {
    let world = World::new();
    for (name, content) in [("same", "s"), ("changed", "1"), ("gone", "g"), ("sub/deep", "d")] {
        world.file(&format!("d/{name}"), content);
    }
    world.fs(&["rm", "-r", "d"]).ok();
    let everything = backup(&world, &["diff", "d"]).ok();
    assert_eq!(everything.text(), "D d\n");
    backup(&world, &["restore", "d"]).ok();
    let id = newest(&world, "d");
    assert_eq!(backup(&world, &["diff", &id]).ok().text(), "");
    world.file("d/changed", "2");
    std::fs::remove_file(world.path("d/gone")).unwrap();
    world.file("d/sub/new", "n");
    assert_eq!(backup(&world, &["diff", &id]).ok().text(), "M d/changed\nD d/gone\nA d/sub/new\n");
}

#[test]
fn a_backup_is_written_to_a_file_byte_for_byte() {
    let world = World::with_policy(SECRETIVE);
    let bytes: Vec<u8> = (0..=255).collect();
    world.file("image", &bytes);
    world.fs(&["rm", "image"]).ok();
    let out = world.base().join("out");
    std::fs::write(&out, "something longer than the image ".repeat(20)).unwrap();
    backup(&world, &["show", "image", "-o", out.to_str().unwrap()]).ok();
    assert_eq!(std::fs::read(&out).unwrap(), bytes);
    assert_eq!(backup(&world, &["show", "image"]).ok().stdout, bytes);
    let facts = backup(&world, &["show", "image", "--json"]).ok().json();
    assert_eq!(facts["backup"]["bytes"], 256);
    assert_eq!(
        facts["backup"]["sha256"],
        "40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880"
    );
}

#[test]
fn many_writes_do_not_push_the_original_out() {
    let world = World::with_policy(&policy(
        "[backups]\nkeep = { versions = 3, days = 30, size = \"1MiB\" }\n",
    ));
    world.file("a.txt", "the original");
    for round in 0..30 {
        world.write("a.txt", format!("version {round}")).ok();
    }
    let kept = list(&world, &["a.txt"]);
    assert_eq!(kept.len(), 4);
    let oldest = kept.last().unwrap()["id"].as_str().unwrap();
    assert_eq!(backup(&world, &["show", oldest]).ok().text(), "the original");
}

/// What the vault still holds of a path, oldest first.
fn kept(world: &World, path: &str) -> Vec<String> {
    let ids = list(world, &[path]).into_iter().rev();
    let ids = ids.filter(|entry| entry["kind"] != "tree").map(|entry| entry["id"].clone());
    ids.map(|id| backup(world, &["show", id.as_str().unwrap()]).ok().text().to_owned()).collect()
}

const THREE: &str = "[backups]\nkeep = { versions = 3, days = 30, size = \"1MiB\" }\n";

#[test]
fn many_writes_do_not_push_out_what_was_moved_in_between() {
    let world = World::with_policy(&policy(THREE));
    world.file("precious.txt", "precious");
    for round in 0..3 {
        world.write("x", format!("junk {round}")).ok();
    }
    world.fs(&["mv", "precious.txt", "x"]).ok();
    for round in 3..10 {
        world.write("x", format!("junk {round}")).ok();
    }
    let kept = kept(&world, "x");
    assert!(kept.contains(&"precious".to_owned()), "{kept:?}");
    assert!(kept.len() <= 7, "what the agent wrote itself is not kept for ever: {kept:?}");
}

#[test]
fn many_writes_do_not_push_out_a_persons_edit_in_between() {
    let world = World::with_policy(&policy(THREE));
    world.file("a.txt", "the original");
    for round in 0..10 {
        if round == 2 {
            world.file("a.txt", "a person's edit");
        }
        world.write("a.txt", format!("version {round}")).ok();
    }
    let expected = ["the original", "a person's edit", "version 6", "version 7", "version 8"];
    assert_eq!(kept(&world, "a.txt"), expected);
}

#[test]
fn a_directory_that_was_moved_and_removed_is_not_pushed_out() {
    let world = World::with_policy(&policy(THREE));
    world.file("src/main.rs", "precious");
    let come_and_go = || {
        world.fs(&["mkdir", "t"]).ok();
        world.fs(&["rm", "-r", "t"]).ok();
    };
    come_and_go();
    world.fs(&["mv", "src", "t"]).ok();
    world.fs(&["rm", "-r", "t"]).ok();
    (0..6).for_each(|_| come_and_go());
    let tree = list(&world, &["t"]).into_iter().find(|tree| tree["bytes"] != 0).unwrap();
    backup(&world, &["restore", tree["id"].as_str().unwrap()]).ok();
    assert_eq!(world.read("t/main.rs"), "precious");
}

#[test]
fn a_change_that_nobody_approved_costs_no_backups() {
    let world = World::with_policy(&policy(
        r#"
[backups]
keep = { versions = 50, days = 30, size = "64KiB" }
[limits]
approvalTimeout = "1s"
[[rules]]
id = "big"
effect = "ask"
operations = ["remove"]
paths = ["big"]
"#,
    ));
    world.file("big", "b".repeat(40_000));
    for round in 0..6 {
        world.write("f", format!("{round:08000}")).ok();
    }
    let before = list(&world, &[]);
    world.fs(&["rm", "big"]).denied("big");
    assert_eq!(list(&world, &[]), before);
}

#[test]
fn a_full_vault_refuses_the_change() {
    let world = World::with_policy(&policy(
        "[backups]\nkeep = { versions = 3, days = 30, size = \"10KiB\" }\n",
    ));
    // Of what can be compressed more would fit.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut noise = || -> String {
        let mut next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(b'!' + u8::try_from((state >> 32) % 94).unwrap())
        };
        (0..6000).map(&mut next).collect()
    };
    world.file("a.txt", noise());
    world.file("b.txt", noise());
    world.write("a.txt", "").ok();
    for refused in [world.write("b.txt", ""), world.fs(&["rm", "b.txt"])] {
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("the vault is full"), "{refused:?}");
    }
    assert_eq!(world.read("b.txt").len(), 6000);
    assert_eq!(world.last()["result"], "noSpace");
    // What needs no backup still goes on.
    world.write("new.txt", "x").ok();

    // Nor does it keep the operator from putting right what filled it.
    world.write("made.txt", noise()).ok();
    world.write("a.txt", noise()).ok();
    for path in ["made.txt", "a.txt"] {
        assert_eq!(world.fs(&["rm", path]).code, 1);
    }
    let records = world.requests();
    let made = records.iter().find(|record| record["path"] == "made.txt").unwrap();
    let made = made["seq"].to_string();
    world.run(&["backup", "undo", "--yes", "--record", &made]).ok();
    assert!(!world.path("made.txt").exists());
    let first = list(&world, &["a.txt"]).into_iter().find(|one| one["bytes"] == 6000).unwrap();
    world.run(&["backup", "restore", first["id"].as_str().unwrap()]).ok();
    assert_eq!(world.read("a.txt").len(), 6000);
    assert_eq!(world.fs(&["rm", "b.txt"]).code, 1);
}

#[test]
fn a_tree_with_a_device_or_a_pipe_is_not_removed() {
    let world = World::new();
    world.file("d/a.txt", "x");
    let kind = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, world.path("d/pipe"), kind, mode, 0).unwrap();
    let refused = world.fs(&["rm", "-r", "d"]);
    assert_ne!(refused.code, 0);
    assert_eq!(world.read("d/a.txt"), "x");
    assert!(list(&world, &[]).is_empty());
}

#[test]
fn killed_while_restoring_a_tree_is_there_whole_or_not_at_all() {
    let world = World::new();
    for file in 0..20 {
        world.file(&format!("d/{}/{file}.txt", file % 4), "old".repeat(1000));
    }
    world.fs(&["rm", "-r", "d"]).ok();
    let tree = newest(&world, "d");
    let started = Instant::now();
    backup(&world, &["restore", &tree]).ok();
    let whole = u64::try_from(started.elapsed().as_micros()).unwrap();
    let (mut killed, mut random) = (0, Random::new(0x2545_f491));
    for round in 0..60 {
        if world.path("d").is_dir() {
            std::fs::remove_dir_all(world.path("d")).unwrap();
        } else {
            std::fs::remove_file(world.path("d")).unwrap();
        }
        if round % 2 == 0 {
            world.file("d/new.txt", "new");
        } else {
            world.file("d", "new");
        }
        let mut child = world
            .command(&["backup", "restore", &tree])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(random.below(whole)));
        child.kill().unwrap();
        killed += u32::from(child.wait().unwrap().code().is_none());

        world.fs(&["ls"]).ok();
        let names: Vec<_> = walk(&world.root());
        assert!(
            names.iter().all(|name| !name.to_string_lossy().contains(".portcullis-")),
            "round {round}: {names:?}"
        );
        let restored = names.len() == 20 && world.path("d/3/3.txt").exists();
        let untouched = names.len() == 1 && std::fs::read(&names[0]).unwrap() == b"new";
        assert!(restored || untouched, "round {round}: {names:?}");
    }
    assert!(killed > 15, "only {killed} were killed in time");
    world.run(&["audit", "verify"]).ok();
}

/// Every file beneath a directory.
fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => pending.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files
}

/// The same command for a user who may not override modes.
fn without_privileges(command: &std::process::Command) -> std::process::Command {
    let mut plain = if rustix::process::geteuid().is_root() {
        let mut plain = std::process::Command::new("setpriv");
        plain.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(command.get_program());
        plain
    } else {
        std::process::Command::new(command.get_program())
    };
    plain.args(command.get_args()).env_clear();
    plain.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    plain
}

#[test]
fn a_tree_with_read_only_directories_goes_and_comes_back() {
    let world = World::new();
    world.file("d/ro/f", "x");
    world.file("d/ro/sub/f", "y");
    for directory in ["d/ro/sub", "d/ro"] {
        let mode = std::fs::Permissions::from_mode(0o500);
        std::fs::set_permissions(world.path(directory), mode).unwrap();
    }
    let run = |args: &[&str]| {
        let output = without_privileges(&world.command(args)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run(&["fs", "rm", "-r", "d"]);
    assert_eq!(std::fs::read_dir(world.root()).unwrap().count(), 0, "nothing half removed");
    run(&["backup", "restore", "d"]);
    assert_eq!(world.read("d/ro/sub/f"), "y");
    assert_eq!(std::fs::metadata(world.path("d/ro")).unwrap().mode() & 0o777, 0o500);
    run(&["fs", "rm", "-r", "d"]);
}

/// Whoever may remove somebody else's file could not have it back, nor the tree
/// that it was in.
#[test]
fn what_belonged_to_somebody_else_comes_back_as_the_gates_own() {
    let world = World::with_policy(SECRETIVE);
    world.file("d/mine.txt", "mine");
    let mode = |path: &str| {
        let look = std::fs::metadata(world.path(path)).unwrap();
        (look.uid(), look.mode() & 0o777)
    };
    let theirs = world.file("d/theirs.txt", "theirs");
    let before = mode("d/mine.txt");
    for path in ["d", "d/theirs.txt"] {
        // The gate has given up what lets root give files away.
        chown(&theirs, Some(65534), Some(65534)).unwrap();
        std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o664)).unwrap();
        let gone = world.fs(&["rm", "-r", path, "--json"]).ok().json();
        assert!(!world.path(path).exists());
        let done = world.run(&["backup", "restore", gone["backup"].as_str().unwrap()]).ok();
        assert!(done.stderr.contains("belonged to somebody else"), "{done:?}");
        assert_eq!(
            (world.read("d/theirs.txt"), world.read("d/mine.txt")),
            ("theirs".into(), "mine".into())
        );
        assert_eq!((mode("d/theirs.txt"), mode("d/mine.txt")), ((0, 0o600), before));
        let records = world.requests();
        let intent = records.iter().rfind(|record| record["kind"] == "intent").unwrap();
        assert_eq!(intent["counts"]["ownersNotKept"], 1);
        if path == "d" {
            let tree = std::fs::File::open(world.path("d")).unwrap();
            let there = portcullis::backup::fingerprint(tree.as_fd(), u64::MAX).unwrap();
            assert_eq!(intent["after"], there.to_string());
        }
    }
}

/// What an editor had left in it was gone, without a backup.
#[test]
fn a_backup_is_written_to_no_file_of_the_workspace_past_the_gate() {
    let world = World::new();
    world.file("a.txt", "one");
    world.write("a.txt", "two").ok();
    world.file("a.txt", "precious");
    let file = world.path("a.txt");
    let refused = backup(&world, &["show", "a.txt", "-o", file.to_str().unwrap()]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("lies in the workspace"), "{refused:?}");
    assert_eq!(world.read("a.txt"), "precious");
}
