//! Earlier sessions, which an import needs, and which it must not hide.

use super::*;

/// The refusal did not say which session has the version that the commit builds on.
#[test]
fn an_import_did_not_name_the_session_that_comes_first() {
    let world = committed(users()[0]);
    let first = world.commit_as("one");
    let second = world.commit_as("two");
    let refused = world.import(&["--session", &second, "--yes"]);
    assert_eq!(refused.code, 1, "{} {}", refused.told, refused.stderr);
    let reasons = refused.refused("two");
    let advice = format!(
        "session {first} changed it before: import that first, with `portcullis git import \
         --session {first} --workspace "
    );
    assert!(reasons[0].1.contains(&advice), "{reasons:?}");
    // Without its options it led to another workspace.
    let command = reasons[0].1.split('`').nth(1).unwrap();
    let words: Vec<_> = command.split(' ').skip(1).collect();
    let options = [&words[..], &["--yes"]].concat();
    let imported = end(world.limited(&options).current_dir("/").spawn().unwrap());
    assert_eq!(imported.code, 0, "{imported:?}");
    assert_eq!(world.import(&["--session", &second, "--yes"]).code, 0);
}

/// It showed the import's own session, which has the agent's name.
#[test]
fn the_last_session_after_an_import_was_the_import() {
    let world = committed(users()[0]);
    let session = world.commit_as("one");
    assert_eq!(world.import(&["--yes"]).code, 0);
    let last = end(world.limited(&["audit", "session", "last"]).spawn().unwrap());
    assert!(last.stdout.starts_with(&format!("session {session} ")), "{last:?}");
    let status = end(world.limited(&["status", "--json"]).spawn().unwrap());
    assert!(status.stdout.contains(&session), "{status:?}");
}

/// It told of a missing file.
#[test]
fn an_import_without_any_session_said_that_a_file_was_missing() {
    let world = committed(users()[0]);
    for options in [&["--yes"][..], &["--session", "5f2c", "--yes"]] {
        let ended = world.end_import(options);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(
            ended.stderr.contains("no session of this workspace is on record yet"),
            "{ended:?}"
        );
        assert!(ended.stderr.contains("`portcullis run` and `exec`"), "{ended:?}");
    }
    let list = world.end_import(&["--list"]);
    assert_eq!((list.code, list.stdout.as_str()), (0, ""), "{list:?}");
}
