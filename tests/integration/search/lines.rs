//! Lines that `grep` gives and those that it leaves out, and which expressions it takes.

use serde_json::json;

use super::{grep, paths, world};

/// Lines before a match for which there was no room were given without it.
#[test]
fn a_search_that_stops_gives_no_lines_that_stand_near_nothing() {
    let world = world("");
    let text: Vec<_> = (1..=200).map(|n| if n % 50 == 0 { "hit\n" } else { "hay\n" }).collect();
    world.file("a.txt", text.concat());
    let numbers = |args: &[&str]| -> Vec<u64> {
        let found = grep(&world, &[&["hit", "a.txt"], args].concat()).ok().json();
        let lines = found["files"][0]["lines"].as_array().unwrap();
        lines.iter().map(|line| line["number"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(&["--max-results", "1", "-B", "2"]), [48, 49, 50]);
    assert_eq!(numbers(&["--max-results", "1", "-C", "1"]), [49, 50, 51]);
    assert_eq!(numbers(&["--max-results", "2", "-A", "1"]), [50, 51, 100, 101]);
    assert_eq!(numbers(&["--max-results", "1", "-B", "60"]).last(), Some(&50));
}

/// A file with many matching lines took all the room there was.
#[test]
fn the_names_of_files_are_found_behind_one_with_many_lines_that_match() {
    let world = world("");
    world.file("a.log", "hit\n".repeat(5_000));
    world.file("b.txt", "hay\n");
    world.file("z.txt", "hay\nhit\n");
    let found = world.fs(&["grep", "-l", "hit"]).ok();
    assert_eq!(found.text(), "a.log\nz.txt\n");
    assert!(!found.stderr.contains("there is more"), "{}", found.stderr);
    // The log has the output: names.
    let search = world.requests().remove(0);
    assert_eq!(search["counts"], json!({ "files": 2, "matches": 2, "searched": 3 }));
    assert_eq!((&search["bytes"], &world.last()["counts"]["matches"]), (&json!(0), &json!(1)));
    let found = grep(&world, &["-l", "-C", "1", "hit"]).ok();
    assert_eq!((paths(&found).len(), &found.json()["files"][1]["lines"]), (2, &json!([])));
    let found = world.fs(&["grep", "-l", "hit", "--max-results", "1"]).ok();
    assert!(found.text().lines().count() == 1 && found.stderr.contains("there is more"));
}

/// The comment extended over the text around the expression.
#[test]
fn an_expression_may_end_with_a_comment() {
    let world = world("");
    world.file("p.txt", "a x\nax\n# foo\n");
    for (pattern, expected) in [
        ("(?x) a x # foo", "p.txt:2:ax\n"),
        ("(?x) a\\ x # foo\n", "p.txt:1:a x\n"),
        ("(?x) a x # )", "p.txt:2:ax\n"),
        ("# foo", "p.txt:3:# foo\n"),
        ("(?x) \\#", "p.txt:3:# foo\n"),
    ] {
        assert_eq!(world.fs(&["grep", pattern]).ok().text(), expected, "{pattern}");
    }
}

/// There were fewer, without a message.
#[test]
fn more_lines_around_a_match_than_are_given_are_refused() {
    let world = world("");
    world.file("k.txt", (1..=1_000).map(|n| format!("{n}\n")).collect::<String>());
    let most = world.fs(&["grep", "^500$", "k.txt", "-C", "100"]).ok();
    assert_eq!(most.text().lines().count(), 201);
    for option in ["-A", "-B", "-C"] {
        let refused = world.fs(&["grep", "^500$", "k.txt", option, "101"]);
        assert!(refused.code == 2 && refused.stderr.contains("0..=100"), "{refused:?}");
    }
}

/// It matched, for it was put into a group.
#[test]
fn an_expression_that_is_none_by_itself_is_refused() {
    let world = world("");
    world.file("a.txt", "hi\n");
    let refused = world.fs(&["grep", "zz)|(hi"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("unopened group"), "{}", refused.stderr);
}
