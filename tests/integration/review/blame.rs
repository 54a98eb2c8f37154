//! `audit blame` and `audit session`.

use std::os::unix::fs::symlink;

use serde_json::Value;

use super::{HOSTILE, assert_visible};
use crate::common::{Done, World, done};

fn blame(world: &World, path: &str) -> Value {
    world.run(&["audit", "blame", path, "--history", "--json"]).ok().json()
}

fn sha256(content: &str) -> String {
    portcullis_audit::Hash::of(content.as_bytes()).to_string()
}

fn seqs(found: &Value) -> Vec<u64> {
    let changes = found["changes"].as_array().unwrap();
    changes.iter().map(|change| change["record"].as_u64().unwrap()).collect()
}

/// The number of the last intent.
fn last_intent(world: &World) -> u64 {
    let mut records = world.records();
    records.retain(|record| record["kind"] == "intent");
    records.pop().unwrap()["seq"].as_u64().unwrap()
}

#[test]
fn says_who_changed_a_file_last_and_whether_it_is_the_same() {
    let world = World::new();
    world.write("a.txt", "one").ok();
    world.run_with_input(&["fs", "write", "a.txt", "--agent", "second"], "two").ok();
    let found = blame(&world, "a.txt");
    assert_eq!(found["state"], "same");
    assert_eq!(found["found"], sha256("two"));
    let (newest, oldest) = (&found["changes"][0], &found["changes"][1]);
    assert_eq!((&newest["agent"], &oldest["agent"]), (&"second".into(), &"cli".into()));
    assert_eq!(newest["record"], last_intent(&world));
    assert_eq!((&newest["rule"], &newest["result"]), (&"allowedPaths.write".into(), &"ok".into()));
    assert_eq!(newest["before"], sha256("one"));
    assert_eq!(newest["stored"]["bytes"], 3);
    // Its outcome is the named record.
    let outcome = newest["outcome"].as_u64().unwrap();
    assert_eq!(world.records()[usize::try_from(outcome).unwrap()]["of"], newest["record"]);
    // Without --history only the last.
    let one = world.run(&["audit", "blame", "a.txt", "--json"]).ok().json();
    assert_eq!(seqs(&one), [last_intent(&world)]);

    world.file("a.txt", "somebody else");
    let found = blame(&world, "a.txt");
    assert_eq!(found["state"], "differs");
    assert_eq!(found["found"], sha256("somebody else"));
    std::fs::remove_file(world.path("a.txt")).unwrap();
    assert_eq!(blame(&world, "a.txt")["state"], "missing");
}

/// Regression: the backups of the current directory's workspace were searched, and a current
/// directory that can be no workspace was refused.
#[test]
fn a_log_elsewhere_was_compared_with_the_backups_of_the_current_directory() {
    let world = World::new();
    world.write("a.txt", "one").ok();
    world.write("a.txt", "two").ok();
    let log = world.state().join("audit");
    let mut command =
        world.command(&["audit", "blame", "a.txt", "--json", "--dir", log.to_str().unwrap()]);
    command.env_remove("PORTCULLIS_WORKSPACE").env_remove("PORTCULLIS_STATE").current_dir("/");
    let found = done(command.output().unwrap()).ok().json();
    assert_eq!(found["changes"][0]["stored"]["bytes"], 3, "{found}");
}

/// Regression: it reported backups as gone that nobody had looked for.
#[test]
fn a_copy_of_a_log_without_backups_was_compared_with_none() {
    let world = World::new();
    world.write("a.txt", "one").ok();
    world.write("a.txt", "two").ok();
    let copy = world.base().join("evidence/audit");
    std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
    std::fs::rename(world.state().join("audit"), &copy).unwrap();
    let mut args = vec!["audit", "blame", "a.txt", "--dir", copy.to_str().unwrap()];
    let told = world.run(&args).ok();
    assert!(told.text().contains("not checked"), "{told:?}");
    assert!(!told.text().contains("gone"), "{told:?}");
    args.push("--json");
    let found = world.run(&args).ok().json();
    assert_eq!(
        (&found["backupsChecked"], &found["changes"][0]["stored"]),
        (&false.into(), &Value::Null)
    );
    // Beside the backups they are looked at.
    std::fs::rename(world.state().join("backups"), copy.with_file_name("backups")).unwrap();
    let found = world.run(&args).ok().json();
    assert_eq!(found["backupsChecked"], true);
    assert_eq!(found["changes"][0]["stored"]["bytes"], 3, "{found}");
}

#[test]
fn follows_a_file_through_renames_of_itself_and_of_directories() {
    let world = World::new();
    world.write("old/name.txt", "1").ok();
    let made = last_intent(&world);
    world.fs(&["mv", "old/name.txt", "old/other.txt"]).ok();
    let renamed = last_intent(&world);
    world.fs(&["mv", "old", "new"]).ok();
    let moved = last_intent(&world);
    // Another client's file of the former name is another file.
    world.write("old/name.txt", "not it").ok();
    world.write("new/other.txt", "2").ok();
    let changed = last_intent(&world);
    let found = blame(&world, "new/other.txt");
    assert_eq!(seqs(&found), [changed, moved, renamed, made]);
    assert_eq!(found["state"], "same");
    assert_eq!(found["changes"][3]["name"], "old/name.txt");
    // The file at the former name now has its own history.
    let former = blame(&world, "old/name.txt");
    assert_eq!(former["state"], "same");
    assert_eq!(former["changes"][0]["after"], sha256("not it"));
}

#[test]
fn what_was_removed_and_put_back_is_told() {
    let world = World::new();
    world.write("d/x", "kept").ok();
    world.fs(&["rm", "-r", "d"]).ok();
    let removed = last_intent(&world);
    let found = blame(&world, "d/x");
    assert_eq!((&found["state"], seqs(&found)[0]), (&"removed".into(), removed));
    assert_eq!(found["changes"][0]["stored"]["type"], "tree");
    world.run(&["backup", "restore", "d"]).ok();
    let found = blame(&world, "d/x");
    assert_eq!(found["state"], "same");
    assert_eq!(found["recorded"], sha256("kept"));
    world.file("d/x", "changed");
    assert_eq!(blame(&world, "d/x")["state"], "differs");
    assert_eq!(blame(&world, "d")["state"], "notAFile");
    assert_eq!(blame(&world, "never")["state"], "unknown");
    world.file("never", "x");
    assert_eq!(blame(&world, "never")["state"], "notRecorded");
}

#[test]
fn people_see_the_same() {
    let world = World::new();
    world.write("a.txt", "one").ok();
    world.write("a.txt", "two").ok();
    let done = world.run(&["audit", "blame", "a.txt"]).ok();
    let intent = world.records()[usize::try_from(last_intent(&world)).unwrap()].clone();
    let text = (done.text())
        .replace(intent["session"].as_str().unwrap(), "SESSION")
        .replace(intent["backup"].as_str().unwrap(), "BACKUP")
        .replace(&(intent["t"].as_str().unwrap()[..19].replace('T', " ") + "Z"), "TIME");
    insta::assert_snapshot!(text, @r"
    a.txt
      record 5  TIME  write a.txt  by cli
        session  SESSION
        rule     allowedPaths.write  (default:22)
        result   ok  (record 6)
        before   7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed
        after    3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3
        backup   BACKUP, a file of 3 bytes
      on disk  the recorded bytes (3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3)
    ");
    assert_eq!(world.run(&["audit", "blame", "../x"]).code, 2);
}

#[test]
fn a_session_is_a_timeline_with_differences() {
    let world = World::new();
    world.write("a.txt", "one\ntwo\n").ok();
    let session = |world: &World| world.last()["session"].as_str().unwrap().to_owned();
    world.run_with_input(&["fs", "write", "a.txt"], "one\n2\n").ok();
    let id = session(&world);
    world.write("a.txt", "three\n").ok();
    let done: Done = world.run(&["audit", "session", &id[..12], "--records"]).ok();
    let lines: Vec<_> = done.text().lines().map(str::trim).collect();
    assert_eq!(lines[0], format!("session {id}"));
    assert!(lines[1].contains(" start"), "{lines:?}");
    assert!(lines[2].contains(" write     a.txt"), "{lines:?}");
    assert_eq!(
        &lines[3..9],
        ["--- a/a.txt", "+++ b/a.txt", "@@ -1,2 +1,2 @@", "one", "-two", "+2"]
    );
    assert!(lines[9].contains(" stop"), "{lines:?}");

    // The last one's content is on the disk, until it is changed.
    let id = session(&world);
    let json = |world: &World| {
        let done = world.run(&["audit", "session", &id, "--records", "--json"]).ok();
        let events: Vec<Value> =
            done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        events.into_iter().find(|event| event["kind"] == "change").unwrap()
    };
    assert!(json(&world)["diff"].as_str().unwrap().ends_with("-one\n-2\n+three\n"));
    world.file("a.txt", "else\n");
    assert_eq!(json(&world)["content"], "unavailable");

    assert_eq!(world.run(&["audit", "session", "nothing-like-it"]).code, 1);
    let list = world.run(&["audit", "session"]).ok();
    assert!(list.text().lines().last().unwrap().contains(&id), "{list:?}");
    let all = world.run(&["audit", "session", ""]);
    assert_eq!(all.code, 1);
    assert!(all.stderr.contains("more than one session"), "{}", all.stderr);
}

#[test]
fn hostile_contents_and_names_steer_no_terminal() {
    let world = World::new();
    world.write("a.txt", format!("{HOSTILE}\n")).ok();
    let id = world.last()["session"].as_str().unwrap().to_owned();
    world.fs(&["read", HOSTILE]);
    let hostile = world.last()["session"].as_str().unwrap().to_owned();
    for id in [id, hostile] {
        for format in [&[][..], &["--json"], &["--records"], &["--records", "--json"]] {
            let args = [&["audit", "session", id.as_str()], format].concat();
            assert_visible(world.run(&args).ok().text());
        }
    }
    // A name that no gateway makes, but another process may.
    std::fs::write(world.path("a\u{202e}\u{1b}[2Jb"), "x").unwrap();
    assert_visible(world.run(&["audit", "blame", "a\u{202e}\u{1b}[2Jb"]).ok().text());
}

/// A client that was allowed to rename could make it forget recorded changes,
/// of a directory for all its entries.
#[test]
fn a_rename_onto_itself_hides_nothing() {
    let world = World::new();
    world.write("d/a.txt", "one").ok();
    let made = last_intent(&world);
    world.fs(&["mv", "d/a.txt", "d/a.txt"]).ok();
    world.fs(&["mv", "d", "d"]).ok();
    let found = blame(&world, "d/a.txt");
    assert_eq!((&found["state"], seqs(&found)), (&"same".into(), vec![made]));
    world.file("d/a.txt", "evil");
    let found = blame(&world, "d/a.txt");
    assert_eq!((&found["state"], seqs(&found)), (&"differs".into(), vec![made]));
    assert_eq!(found["recorded"], sha256("one"));
    // Nor is it a change in the report.
    let page = world.base().join("report.json");
    world.run(&["audit", "report", "-o", page.to_str().unwrap()]).ok();
    let report: Value = serde_json::from_slice(&std::fs::read(page).unwrap()).unwrap();
    assert_eq!(report["files"]["total"], 1, "{report}");
    assert_eq!(report["files"]["listed"][0]["changes"], 1, "{report}");
}

#[test]
fn a_directory_that_was_there_is_not_blamed_on_who_asked_for_it() {
    let world = World::new();
    world.fs(&["mkdir", "d"]).ok();
    let made = last_intent(&world);
    world.fs(&["mkdir", "-p", "d"]).ok();
    assert_eq!(seqs(&blame(&world, "d")), [made]);
}

/// It reported that something was missing, and that no record names the party
/// that removed it.
#[test]
fn nothing_is_missed_that_no_record_tells_of() {
    let world = World::new();
    world.write("d/a", "1").ok();
    world.fs(&["mv", "d", "e"]).ok();
    assert_eq!(blame(&world, "e/never")["state"], "unknown");
    world.write("f", "2").ok();
    world.fs(&["mv", "f", "g"]).ok();
    assert_eq!(blame(&world, "g/never")["state"], "unknown");
    // A recorded file is missed, also under its new name.
    std::fs::remove_dir_all(world.path("e")).unwrap();
    assert_eq!(blame(&world, "e/a")["state"], "missing");
    world.fs(&["mkdir", "h"]).ok();
    std::fs::remove_dir(world.path("h")).unwrap();
    assert_eq!(blame(&world, "h")["state"], "missing");
}

/// It was said to be there again, without a record of its creation.
#[test]
fn a_directory_that_the_gateway_made_as_a_parent_has_a_record_of_its_creation() {
    let world = World::new();
    world.fs(&["mkdir", "d"]).ok();
    world.fs(&["mv", "d", "e"]).ok();
    world.write("d/f", "x").ok();
    let made = last_intent(&world);
    let found = blame(&world, "d");
    assert_eq!((&found["state"], seqs(&found)[0]), (&"notAFile".into(), made));
    // The content is that of the file.
    std::fs::remove_dir_all(world.path("d")).unwrap();
    assert_eq!(blame(&world, "d")["state"], "missing");
    world.file("d", "x");
    assert_eq!(blame(&world, "d")["state"], "notRecorded");
}

/// Writes a file, as this agent.
fn write_as(world: &World, agent: &str, path: &str) {
    world.run_with_input(&["fs", "write", path, "--agent", agent], agent).ok();
}

fn last_agent(found: &Value) -> &str {
    found["changes"][0]["agent"].as_str().unwrap()
}

/// The changes of the link's target were reported, so another agent was accused.
#[test]
fn a_link_that_replaced_a_file_had_the_changes_of_its_target() {
    let world = World::new();
    write_as(&world, "alice", "honest.txt");
    write_as(&world, "carol", "report.txt");
    world.fs(&["rm", "report.txt", "--agent", "mallory"]).ok();
    symlink("honest.txt", world.path("report.txt")).unwrap();
    let found = blame(&world, "report.txt");
    assert_eq!((last_agent(&found), &found["changes"][1]["agent"]), ("mallory", &"carol".into()));
    assert_eq!((&found["path"], &found["state"]), (&"report.txt".into(), &"recreated".into()));
    // Without a removal on record, the link is not what was written.
    write_as(&world, "carol", "other.txt");
    std::fs::remove_file(world.path("other.txt")).unwrap();
    for target in ["honest.txt", "other.txt", "/etc/passwd", "nothing"] {
        symlink(target, world.path("other.txt")).unwrap();
        let found = blame(&world, "other.txt");
        assert_eq!(
            (last_agent(&found), &found["state"]),
            ("carol", &"notAFile".into()),
            "{target}"
        );
        std::fs::remove_file(world.path("other.txt")).unwrap();
    }
}

/// The command ended with an error, and without the changes.
#[test]
fn a_link_on_the_way_hid_who_had_removed_the_directory() {
    let world = World::new();
    write_as(&world, "carol", "lib/f");
    world.fs(&["rm", "-r", "lib", "--agent", "mallory"]).ok();
    for target in ["lib", "/etc", "../.."] {
        symlink(target, world.path("lib")).unwrap();
        let found = blame(&world, "lib/f");
        assert_eq!((last_agent(&found), &found["path"]), ("mallory", &"lib/f".into()), "{target}");
        assert_eq!(found["state"], "notChecked", "{target}");
        assert!(found["notChecked"].is_string(), "{found}");
        let shown = world.run(&["audit", "blame", "lib/f"]).ok();
        assert!(shown.text().contains("not checked: "), "{target}: {shown:?}");
        std::fs::remove_file(world.path("lib")).unwrap();
    }
}

/// Nothing said that the changes are those of another path than the requested one.
#[test]
fn a_directory_that_is_a_link_was_followed_without_a_word() {
    let world = World::new();
    write_as(&world, "alice", "lib/f");
    write_as(&world, "carol", "old/f");
    world.fs(&["rm", "-r", "old", "--agent", "mallory"]).ok();
    symlink("lib", world.path("old")).unwrap();
    let found = blame(&world, "old/f");
    assert_eq!((&found["requested"], &found["path"]), (&"old/f".into(), &"lib/f".into()));
    assert_eq!((last_agent(&found), &found["state"]), ("alice", &"same".into()));
    let shown = world.run(&["audit", "blame", "old/f"]).ok();
    assert!(
        shown.text().contains("requested as old/f, of which a directory is a link"),
        "{shown:?}"
    );
    // The command that it prints led to the log of another workspace, and it said that the changes
    // by that name were not among these.
    write_as(&world, "dave", "old/f");
    let shown = world.run(&["audit", "blame", "old/f"]).ok();
    assert!(!shown.text().contains("not among"), "{shown:?}");
    let shown = shown.text().split_whitespace().collect::<Vec<_>>().join(" ");
    let query = shown.split("`portcullis ").nth(1).unwrap().split('`').next().unwrap();
    let query: Vec<_> = query.split(' ').collect();
    let mut command = world.command(&query);
    let found = command.env_remove("PORTCULLIS_STATE").env_remove("PORTCULLIS_WORKSPACE");
    let found = found.current_dir("/").output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(found.contains("carol") && found.contains("dave"), "{query:?}: {found}");
    let direct = world.run(&["audit", "blame", "lib/f"]).ok();
    assert!(!direct.text().contains("requested"), "{direct:?}");
}
