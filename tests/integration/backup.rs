//! Backups by the command line: made by every change, listed, shown, compared
//! and restored, and never a way around the policy.

mod retention;
mod trees;

use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
};

use rustix::fs::{XattrFlags, fsetxattr};
use serde_json::Value;

use crate::{
    common::{Done, World},
    consistency,
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
fn a_restore_is_mediated_audited_and_itself_backed_up() {
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

/// Regression: a directory lost its sticky and its set-group-id bit.
#[test]
fn a_restored_directory_lost_its_special_bits() {
    let world = World::new();
    world.file("shared/sub/tool", "x");
    let set = |name: &str, mode| {
        std::fs::set_permissions(world.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let modes = || {
        ["shared", "shared/sub", "shared/sub/tool"]
            .map(|name| std::fs::metadata(world.path(name)).unwrap().mode() & 0o7777)
    };
    set("shared/sub/tool", 0o6755);
    set("shared/sub", 0o3775);
    set("shared", 0o5777);
    world.fs(&["rm", "-r", "shared"]).ok();
    assert_eq!(list(&world, &["shared"])[0]["mode"], "5777");
    backup(&world, &["restore", "shared"]).ok();
    // Neither set-user-id nor any bit of a file.
    assert_eq!(modes(), [0o1777, 0o3775, 0o755]);
    // An undo takes the removal back after a restore, too, and finds nothing changed.
    let before = modes();
    world.fs(&["rm", "-r", "shared"]).ok();
    let undone = world.run(&["undo", "--yes", "--json"]).ok().json();
    assert_eq!((&undone["stepsDone"], modes()), (&1.into(), before));
    // The restored tree is the one that the log expects.
    let record = world.last()["seq"].to_string();
    let again = world.run(&["undo", "--record", &record, "--dry-run", "--json"]).ok().json();
    assert_eq!(again["steps"][0]["status"], "ready", "{again}");
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

    // A link at that path is replaced itself, and backed up.
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
    let entry = consistency::walk(&world.state().join("backups"))
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
    assert_eq!(backup(&world, &["show", "./2026"]).ok().text(), "a file with an odd name");
    let ambiguous = backup(&world, &["show", id.get(..8).unwrap()]);
    assert!(ambiguous.stderr.contains("more than one backup"), "{ambiguous:?}");
    let unknown = backup(&world, &["restore", "nowhere.txt"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("no backup has the id `nowhere.txt`"), "{unknown:?}");
    assert!(!unknown.stderr.contains("did you mean"), "{unknown:?}");
    assert_eq!(world.last()["op"], "restore");
    // The one letter too many had to be found by eye.
    let similar = backup(&world, &["restore", "aa.txt"]);
    assert!(similar.code == 1 && similar.stderr.contains("did you mean `a.txt`?"), "{similar:?}");
    backup(&world, &["restore", &id, "--to", "../x"]).denied("workspace.outside");
    assert_eq!(list(&world, &["--agent", "nobody"]).len(), 0);
    assert_eq!(list(&world, &["--agent", "cli"]).len(), 2);
    let session = list(&world, &[])[0]["session"].as_str().unwrap().to_owned();
    assert_eq!(list(&world, &["--session", &session]).len(), 1);
    // Arguments that a shell makes of `evil*` in a hostile directory.
    for command in ["restore", "diff", "show"] {
        let hostile = world.run(&["backup", command, "evil\u{1b}]0;x\u{7}"]);
        assert!(hostile.code != 0 && !hostile.stderr.contains(['\u{1b}', '\u{7}']), "{hostile:?}");
    }
}

/// A report counted the operator's own typo among the denials.
#[test]
fn a_name_without_a_backup_is_no_denial() {
    let world = World::new();
    world.file("a.txt", "1");
    world.write("a.txt", "2").ok();
    let id = newest(&world, "a.txt");
    for (command, name, kind) in [
        ("show", "nope", "notFound"),
        ("diff", "nope", "notFound"),
        ("restore", "nope", "notFound"),
        ("show", &id[..8], "invalidInput"),
    ] {
        world.file("b.txt", "1");
        world.write("b.txt", "2").ok();
        let refused = backup(&world, &[command, name, "--json"]);
        assert_eq!(
            (refused.code, &refused.json()["error"]["kind"]),
            (1, &kind.into()),
            "{refused:?}"
        );
        let record = world.last();
        assert_eq!((&record["result"], &record["decision"]), (&kind.into(), &Value::Null));
    }
    let denied = world.run(&["audit", "query", "--decision", "deny", "--json"]).ok();
    assert_eq!(denied.text(), "");
}

/// The file was taken, and `restore --to` put the agent's text in the place of the original.
#[test]
fn an_agents_file_named_like_the_beginning_of_an_id_was_taken_for_that_backup() {
    let world = World::new();
    world.file("a.txt", "good");
    world.write("a.txt", "bad").ok();
    let id = newest(&world, "a.txt");
    for length in [1, 8, 15, 22, 30] {
        let name = id.get(..length).unwrap();
        world.file(name, "evil");
        world.write(name, "x").ok();
        for command in ["show", "diff", "restore"] {
            let refused = backup(&world, &[command, name]);
            assert_eq!(refused.code, 1, "{refused:?}");
            assert!(refused.stderr.contains("may be the beginning of an id"), "{refused:?}");
        }
        assert_eq!(backup(&world, &["show", &format!("./{name}")]).ok().text(), "evil");
    }
    assert_eq!(backup(&world, &["show", &id]).ok().text(), "good");
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

/// Unsaved changes of an editor in it were gone, without a backup.
#[test]
fn a_backup_is_written_to_no_file_of_the_workspace_past_the_gateway() {
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
