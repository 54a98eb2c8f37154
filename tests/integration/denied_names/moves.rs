//! Names that a move or a removal must not reveal.

use super::*;

const HIDES: &str = r#"
[[rules]]
id = "keys"
effect = "deny"
paths = ["**/*.key"]

[[rules]]
id = "logs"
effect = "deny"
operations = ["read", "list", "remove"]
paths = ["**/*.log"]

[[rules]]
id = "kept"
effect = "deny"
operations = ["remove"]
paths = ["**/kept.txt"]

[[rules]]
id = "person"
effect = "ask"
operations = ["list", "remove"]
paths = ["**/*.asked"]
"#;

/// Returns the error of a refused change of a directory.
fn said(world: &World, args: &[&str]) -> String {
    let done = world.fs(args);
    assert_eq!(done.code, 3, "{done:?}");
    done.stderr.lines().next().unwrap().split_once(": denied").unwrap().1.to_owned()
}

/// The rule that refused was that of the hidden entry, and disclosed it.
#[test]
fn a_directory_that_may_not_be_moved_or_removed_does_not_tell_why() {
    let world = World::with_rules(HIDES);
    let (rm, mv) = (["rm", "-r", "d"], ["mv", "d", "e"]);
    let mut heard = Vec::new();
    for (name, rule) in [("a.key", "keys"), ("longer.log", "logs"), ("shut.key/x", "keys")] {
        world.file(&format!("d/s/{name}"), "x");
        for args in [&rm[..], &mv] {
            heard.push(said(&world, args));
            let record = world.last();
            assert_eq!((&record["rule"], &record["result"]), (&json!(rule), &json!("denied")));
        }
        std::fs::remove_dir_all(world.path("d")).unwrap();
    }
    assert!(heard.iter().all(|text| *text == heard[0]), "{heard:?}");
    assert!(heard[0].contains("`workspace.hidden`"), "{heard:?}");
    // Listed entries are named.
    world.file("d/s/kept.txt", "x");
    for args in [&rm[..], &mv] {
        world.fs(args).denied("kept");
    }
    std::fs::remove_file(world.path("d/s/kept.txt")).unwrap();
    // The same for a rejected request.
    world.file("d/s/x.asked", "x");
    let child = begin(&world, &rm, "");
    let asked = waiting(&world, 1).remove(0);
    assert_eq!(asked["rules"][0]["id"], "person");
    world.run(&["approve", "--reject", &id(&asked)]).ok();
    let done = end(child).denied("workspace.hidden");
    assert!(done.stderr.contains("rejected it"), "{done:?}");
    assert_eq!(world.last()["rule"], "person");
}

/// New names that are a little too long were refused by their length where those of
/// hidden entries were, too.
#[test]
fn the_length_of_a_hidden_name_is_not_told_by_how_long_a_new_name_may_be() {
    let world = World::with_rules(HIDES);
    world.file("d/a.md", "x");
    let answers = ["x.key", "as-long-as-this.key", "x.log"].map(|name| {
        world.file(&format!("d/s/{name}"), "x");
        let of = |left: usize| {
            let directories = vec!["y".repeat(200); 20].join("/");
            let last = 4095 - left - directories.len() - 1;
            said(&world, &["mv", "d", &format!("{directories}/{}", "z".repeat(last))])
        };
        let answers = [2, 4, 6, 8, 10, 20, 24, 30].map(of);
        std::fs::remove_dir_all(world.path("d/s")).unwrap();
        answers
    });
    assert!(answers.iter().all(|heard| *heard == answers[0]), "{answers:?}");
}

/// `mv` and back disclosed all the names.
#[test]
fn what_may_not_be_listed_is_neither_moved_nor_restored_to_where_it_may() {
    let world = World::with_rules(&HIDES.replace(
        "operations = [\"read\", \"list\", \"remove\"]\npaths = [\"**/*.log\"]",
        "operations = [\"list\"]\npaths = [\"blind/**\", \"**/*.log\"]",
    ));
    world.file("blind/alice.txt", "x");
    world.file("d/bob.txt", "x");
    world.fs(&["mv", "blind", "open"]).denied("logs");
    world.fs(&["mv", "blind/alice.txt", "alice.txt"]).denied("logs");
    world.fs(&["mv", "blind/alice.txt", "blind/bob.txt"]).ok();
    world.fs(&["mv", "d", "blind/d"]).ok();
    // Nor with the directory that contains it.
    world.file("e/deep/x.log", "x");
    world.fs(&["mv", "e", "f"]).ok();
    world.fs(&["rm", "-r", "blind/d"]).ok();
    let listed = world.run(&["backup", "list", "--json"]).ok().json();
    let backup = listed["backups"][0]["id"].as_str().unwrap().to_owned();
    let restored = world.run(&["backup", "restore", &backup, "--to", "open", "--yes"]);
    assert!(restored.code == 3 && restored.stderr.contains("`logs`"), "{restored:?}");
    world.run(&["backup", "restore", &backup, "--yes"]).ok();
}

/// The walk before the decision failed at a hidden entry, and disclosed it.
#[test]
fn what_a_hidden_directory_holds_is_not_told_by_how_its_parent_fails_to_move() {
    let world =
        World::with_rules("[[rules]]\nid = \"priv\"\neffect = \"deny\"\npaths = [\"d/priv\"]\n");
    world.file("d/priv/sub/x", "x");
    let plain = [said(&world, &["rm", "-r", "d"]), said(&world, &["mv", "d", "e"])];
    let name = std::ffi::OsStr::from_bytes(b"\xff");
    std::fs::write(world.path("d/priv/sub").join(name), "x").unwrap();
    let odd = [said(&world, &["rm", "-r", "d"]), said(&world, &["mv", "d", "e"])];
    assert_eq!(plain, odd);
    assert!(plain[0].contains("workspace.hidden"), "{plain:?}");
    // Where the agent may look, it gets the reason.
    std::fs::create_dir(world.path("open")).unwrap();
    std::fs::write(world.path("open").join(name), "x").unwrap();
    assert_eq!(world.fs(&["rm", "-r", "open"]).code, 1);
}

/// A person was asked, and the request was denied after the approval.
#[test]
fn a_move_that_is_denied_by_its_names_asks_nobody() {
    for (access, read, list) in [("list", "**", "src{,/**}"), ("read", "src/**", "**")] {
        let rule = format!("allowedPaths.{access}");
        let expect = format!("expect = {{ effect = \"deny\", rule = \"{rule}\" }}");
        let request = "operation = \"rename\", path = \"hid/there\", to = \"src/new\"";
        let world = World::with_policy(&format!(
            "schema = 1\n[allowedPaths]\nread = [\"{read}\"]\nlist = [\"{list}\"]\n\
             write = [\"**\"]\nremove = [\"**\"]\n[limits]\napprovalTimeout = \"1s\"\n\
             [[rules]]\nid = \"person\"\neffect = \"ask\"\noperations = [\"write\"]\n\
             paths = [\"src\"]\n[[tests]]\n{}\n{expect}\n",
            request.replace(", ", "\n")
        ));
        world.file("hid/there", "x");
        world.file("src/a", "y");
        for from in ["hid/there", "hid/missing", "hid/there/x", "hid"] {
            world.fs(&["mv", from, "src/new"]).denied(&rule);
            assert_eq!(world.last()["rule"], json!(rule), "{from}");
            let explained = ["policy", "explain", "rename", from, "--to", "src/new", "--json"];
            let decision = world.run(&explained).json()["decision"].clone();
            assert_eq!(decision["rule"], json!(rule), "{from}: {decision}");
        }
        assert_eq!(kinds(&world, "approval"), Vec::<Value>::new());
        let steps = format!(
            "schema = 1\n[[tests]]\nname = \"moved\"\nfiles = {{ \"hid/there\" = \"x\" }}\n\
             steps = [{{ {request}, {expect} }}]\n"
        );
        std::fs::write(world.base().join("policy/policy.test.toml"), steps).unwrap();
        let policy = world.base().join("policy/policy.toml");
        world.run(&["policy", "test", policy.to_str().unwrap()]).ok();
    }
}
