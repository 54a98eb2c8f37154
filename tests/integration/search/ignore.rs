//! Files of `.gitignore`, as a search obeys them.

use super::*;

#[test]
fn gitignore_files_count_where_they_may_be_read() {
    let world = world(
        "[[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"secret/.gitignore\"]\n",
    );
    for name in [
        "a.log",
        "b.txt",
        "target/c.txt",
        "src/keep.log",
        "src/d.txt",
        "src/e.tmp",
        ".git/config",
        "secret/f.txt",
    ] {
        world.file(name, "needle\n");
    }
    world.file(".gitignore", "*.log\n/target/\n\\[broken\n{\n");
    world.file("src/.gitignore", "!keep.log\n*.tmp\n");
    world.file("secret/.gitignore", "*\n");
    let expected = ["b.txt", "secret/f.txt", "src/d.txt", "src/keep.log"];
    let found = grep(&world, &["needle"]).ok();
    assert_eq!(
        (paths(&found).as_slice(), &found.json()["skipped"]),
        (&expected.map(str::to_owned)[..], &json!({ "denied": 1, "ignored": 3 }))
    );
    assert_eq!(world.requests()[0]["counts"]["ignored"], 3);
    assert_eq!(paths(&glob(&world, &["**/*.{log,txt,tmp}"]).ok()), expected);
    // Those above the start count too.
    assert_eq!(paths(&grep(&world, &["needle", "src"]).ok()), ["src/d.txt", "src/keep.log"]);
    // Named paths are searched.
    assert_eq!(paths(&grep(&world, &["needle", "target"]).ok()), ["target/c.txt"]);
    assert_eq!(paths(&grep(&world, &["needle", ".git"]).ok()), [".git/config"]);
    assert_eq!(paths(&grep(&world, &["needle", "a.log"]).ok()), ["a.log"]);
    assert_eq!(paths(&grep(&world, &["needle", "--no-ignore"]).ok()).len(), 8);
    assert_eq!(
        paths(&glob(&world, &["**/c*", "--no-ignore"]).ok()),
        [".git/config", "target/c.txt"]
    );
    world.file("src/.gitignore", "x\n".repeat(100_000));
    assert_eq!(grep(&world, &["needle"]).ok().json()["skipped"]["gitignore"], 1);
}

/// The entries that are left out tell of its content.
#[test]
fn a_labelled_gitignore_had_an_effect_without_its_label() {
    let world = world("[[labels]]\nid = \"rules\"\npaths = [\"data/.gitignore\"]\n");
    world.file("data/.gitignore", "a.txt\n");
    world.file("data/a.txt", "needle\n");
    world.file("b.txt", "needle\n");
    let labels = || -> Vec<Value> {
        let records = world.records().into_iter().filter(|record| record["op"] == "label");
        records.map(|record| record["facts"].clone()).collect()
    };
    // These do not obey it.
    glob(&world, &["*.txt"]).ok();
    glob(&world, &["**/*.txt", "--no-ignore"]).ok();
    grep(&world, &["needle", "b.txt"]).ok();
    assert_eq!(labels(), Vec::<Value>::new());
    assert_eq!(paths(&glob(&world, &["**/*.txt"]).ok()), ["b.txt"]);
    assert_eq!(paths(&grep(&world, &["needle"]).ok()), ["b.txt"]);
    let of = |by: &str| json!({ "by": by, "labels": { "rules": "data/.gitignore" } });
    assert_eq!(labels(), [of("glob"), of("grep")]);
}

/// They took 230 MB for each search: bytes were bounded, and what patterns take once compiled was
/// not.
#[test]
fn many_patterns_of_gitignore_files_are_not_obeyed() {
    let world = World::new();
    world.file(".gitignore", "*.log\n");
    world.file("few/.gitignore", (0..1_000).map(|n| format!("f{n}?\n")).collect::<String>());
    world.file("few/f7x", "needle\n");
    for name in ["a", "b", "c"] {
        world.file(&format!("{name}/.gitignore"), "Q?\n?Q\n".repeat(10_000));
        world.file(&format!("{name}/a.log"), "needle\n");
        world.file(&format!("{name}/xQ"), "needle\n");
    }
    world.file("long/.gitignore", format!("{}\n", "?Q".repeat(32_760)));
    let found = grep(&world, &["needle"]).ok();
    assert_eq!(paths(&found), ["a/xQ", "b/xQ", "c/xQ"]);
    assert_eq!(found.json()["skipped"]["gitignore"], 4);
}

/// A search left out paths by ignore files that no reader gets, or gets changed: an agent that
/// makes files of any name could find out their content.
#[test]
fn gitignore_files_count_as_their_readers_see_them() {
    const KEY: &str = "AKIAQ3EGRIBNBTZ5X7LT";
    let policy = |action: &str| {
        format!(
            "{OPEN}[secrets]\nonRead = \"{action}\"\n[[secrets.rules]]\nid = \"aws\"\n\
             regex = \"AKIA[0-9A-Z]{{16}}\"\nkeywords = [\"AKIA\"]\n"
        )
    };
    let mut world = World::with_policy(&policy("deny"));
    world.file(KEY, "needle\n");
    world.file("b.log", "needle\n");
    world.file(".gitignore", format!("{KEY}\n*.log\n"));
    let found = grep(&world, &["needle"]).ok();
    assert_eq!(paths(&found), [KEY, "b.log"]);
    assert_eq!(found.json()["skipped"]["gitignore"], 1);
    world.set_policy(&policy("redact"));
    let found = grep(&world, &["needle"]).ok();
    assert_eq!(
        (paths(&found), &found.json()["skipped"]),
        (vec![KEY.to_owned()], &json!({ "ignored": 1 }))
    );
    // Nothing of it is sent, so no record reports a secret.
    assert!(world.requests().iter().all(|record| record.get("findings").is_none()));
    // Neither do those count that a person would have to be asked about, or that are binary.
    world.set_policy(&format!(
        "{OPEN}[[rules]]\nid = \"ask\"\neffect = \"ask\"\noperations = [\"read\"]\n\
         paths = [\"**/.gitignore\"]\n"
    ));
    assert_eq!(paths(&grep(&world, &["needle"]).ok()), [KEY, "b.log"]);
    world.set_policy(OPEN);
    world.file(".gitignore", "*.log\n\0");
    assert_eq!(paths(&grep(&world, &["needle"]).ok()), [KEY, "b.log"]);
}

/// Ignored entries that may not be seen were counted with the rest.
#[test]
fn what_is_ignored_and_denied_leaves_no_trace() {
    let world = world("[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"secret/**\"]\n");
    world.file(".gitignore", "*.log\n");
    world.file("a.log", "needle\n");
    world.file("secret/b.log", "needle\n");
    world.file("c.txt", "needle\n");
    let found = grep(&world, &["needle"]).ok();
    assert_eq!(
        (paths(&found), &found.json()["skipped"]),
        (vec!["c.txt".to_owned()], &json!({ "ignored": 1 }))
    );
}

/// Braces were alternatives, a mark at the beginning was part of the first pattern, and
/// blanks went from a line's end where git keeps them.
#[test]
fn gitignore_files_mean_what_git_takes_them_for() {
    let world = world("");
    let names = ["a", "b", "{a,b}", "first", "kept/x", "out/x", "out/in/x", "blank ", "c]d", "d/c"];
    names.iter().for_each(|name| drop(world.file(name, "needle\n")));
    let lines =
        ["\u{feff}first", "{a,b}", "blank\\ ", "c[\\]]d", "d[!x]c", "out/", "!out/in/x", ""];
    world.file(".gitignore", lines.join("\n"));
    let found = paths(&grep(&world, &["needle"]).ok());
    assert_eq!(found, ["a", "b", "d/c", "kept/x"]);
}
