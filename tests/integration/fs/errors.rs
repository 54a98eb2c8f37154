//! Errors as users and programs see them.

use super::*;

#[test]
fn errors_are_the_same_for_a_denied_path_that_exists_and_one_that_does_not() {
    let world = World::new();
    world.file(".env", "SECRET=1");
    let answer = |path: &str| {
        let done = world.run(&["fs", "read", path, "--json"]);
        let mut json = done.json();
        json["receipt"] = serde_json::Value::Null;
        (done.code, json.to_string())
    };
    let (exists, missing) = (answer(".env"), answer("sub/.env"));
    assert_eq!(exists, missing);
    assert_eq!(exists.0, 3);
}

#[test]
fn errors_name_no_host_path() {
    let world = World::new();
    for args in [vec!["read", "missing"], vec!["ls", "missing"], vec!["rm", "missing"]] {
        let done = world.fs(&args);
        assert_eq!(done.code, 1);
        assert!(done.stderr.contains("not found"), "{}", done.stderr);
        assert!(!done.stderr.contains(world.base().to_str().unwrap()), "{}", done.stderr);
        assert_eq!(world.last()["result"], "notFound");
    }
}

#[test]
fn types_that_do_not_fit_say_so() {
    let world = World::new();
    world.file("a.txt", "x");
    std::fs::create_dir(world.path("dir")).unwrap();
    assert!(world.fs(&["read", "dir"]).stderr.contains("is a directory"));
    assert!(world.fs(&["ls", "a.txt"]).stderr.contains("not a directory"));
    assert!(world.write("dir", "x").stderr.contains("is a directory"));
    assert!(world.write("a.txt/b", "x").stderr.contains("not a directory"));
    assert!(world.fs(&["read", "a.txt/b"]).stderr.contains("not found"));
}

#[test]
fn errors_as_a_user_sees_them() {
    let world = World::new();
    world.file("a.txt", "alpha alpha");
    world.file("bin", "ab\0cd");
    std::fs::create_dir(world.path("dir")).unwrap();
    world.file("dir/x", "x");
    let seen = |args: &[&str]| {
        let done = world.run_with_input(&[&["fs"], args].concat(), "content");
        let message = done.stderr.lines().next().unwrap_or_default().to_owned();
        format!("{} {message}", done.code)
    };
    let all: Vec<_> = [
        &["read", "missing"][..],
        &["read", "dir"],
        &["read", "bin"],
        &["read", ".env"],
        &["read", "../x"],
        &["read", "/etc/passwd"],
        &["read", "a\nb"],
        &["ls", "a.txt"],
        &["write", "dir"],
        &["write", "a.txt/b"],
        &["write", ".git/hooks/pre-commit"],
        &["write", "a\u{200b}b"],
        &["edit", "a.txt", "--old", "alpha", "--new", "x"],
        &["edit", "a.txt", "--old", "", "--new", "x"],
        &["edit", "bin", "--old", "a", "--new", "x"],
        &["mkdir", "dir"],
        &["mkdir", "no/such"],
        &["rm", "dir"],
        &["rm", "-r", "."],
        &["mv", "dir", "dir/in"],
        &["mv", "a.txt", "dir"],
        &["mv", "missing", "b"],
    ]
    .iter()
    .map(|args| seen(args))
    .collect();
    insta::assert_snapshot!(all.join("\n"), @r#"
    1 portcullis: read missing: not found
    1 portcullis: read dir: is a directory
    3 portcullis: read bin: denied by rule `files.binary.read`: the content is not text: it contains a NUL byte or is not UTF-8
    3 portcullis: read .env: denied by rule `secrets.names[0]`: files with this name usually hold secrets
    3 portcullis: read ../x: denied by rule `workspace.outside`: the path contains `..`
    3 portcullis: read /etc/passwd: denied by rule `workspace.outside`: the path is outside the workspace
    1 portcullis: read a\nb: not found
    1 portcullis: list a.txt: not a directory
    1 portcullis: write dir: is a directory
    1 portcullis: write a.txt/b: not a directory
    3 portcullis: write .git/hooks/pre-commit: denied by rule `git`: files in .git can make Git run code
    3 portcullis: write a\u{200b}b: denied by rule `names.hidden`: the name contains control, bidirectional or zero-width characters
    1 portcullis: edit a.txt: the old text occurs more than once, it must occur exactly once
    1 portcullis: edit a.txt: the old text is empty
    3 portcullis: edit bin: denied by rule `files.binary.read`: the content is not text: it contains a NUL byte or is not UTF-8
    1 portcullis: mkdir dir: already exists
    1 portcullis: mkdir no/such: not found
    1 portcullis: remove dir: the directory is not empty
    1 portcullis: remove .: the workspace itself is never removed
    1 portcullis: rename dir to dir/in: a directory cannot be moved into itself
    1 portcullis: rename a.txt to dir: already exists
    1 portcullis: rename missing to b: not found
    "#);
}
