//! Names of files in previews and questions.

use super::*;

/// A name with blanks passed for parts of the line, such as the records of another file.
#[test]
fn a_name_passed_for_parts_of_what_would_be_undone() {
    let world = World::with_policy(POLICY);
    world.write("draft.txt  (record 3)", "x").ok();
    world.fs(&["mv", "draft.txt  (record 3)", "old -> y"]).ok();
    world.fs(&["rm", "old -> y"]).ok();
    let listed = backup(&world, &["list"]).ok();
    assert!(listed.text().contains("  \"old -> y\"  "), "{listed:?}");
    let shown = backup(&world, &["undo", "--last"]);
    assert!(shown.text().contains("restore  \"old -> y\"  (record"), "{shown:?}");
}

/// A long name was wrapped by the terminal, and forged steps above the question.
#[test]
fn names_forged_steps_above_the_question() {
    let world = World::with_policy(POLICY);
    let name = format!("{}y", "x ".repeat(100));
    world.file(&name, "x");
    let agent = Agent::new(&world, 1);
    agent.remove(&name);
    drop(agent);
    let args = ["backup", "undo", "--session", "0101"];
    let done = crate::approvals::terminal::on_a_terminal(&world, "n", &args);
    let shown = done.text();
    assert!(shown.contains("1 to do"), "{shown}");
    let names = shown.lines().filter(|line| line.contains("x x"));
    let (first, others): (Vec<_>, Vec<_>) = names.partition(|line| line.contains("restore"));
    assert!(first.len() == 1 && others.len() > 3, "{shown}");
    assert!(others.iter().all(|line| line.starts_with(&" ".repeat(20))), "{shown}");
    assert!(shown.lines().all(|line| line.len() <= 60), "{shown}");
}

#[test]
fn names_cannot_steer_the_terminal_that_shows_them() {
    let world = World::with_policy(POLICY);
    let name = "\u{1b}[31mred\u{202e}\nline";
    world.file(name, "x");
    let agent = Agent::new(&world, 1);
    agent.remove(name);
    drop(agent);
    let shown = backup(&world, &["undo", "--session", "0101", "--dry-run"]).ok();
    assert!(!shown.text().contains('\u{1b}') && !shown.text().contains('\u{202e}'), "{shown:?}");
    assert_eq!(shown.text().lines().count(), 2, "{shown:?}");
    assert!(shown.text().contains("\\u{1b}[31mred"), "{shown:?}");
}

/// Regression: entries with names that no agent may write were removed with their directory or
/// renamed, and no undo and no restore brought them back.
#[test]
fn names_that_no_agent_may_write_could_not_be_brought_back() {
    let hidden = ["src/z\u{200d}w", "src/in\u{ad}/a", "\u{2764}\u{fe0f}.md", "bare\u{feff}/a"];
    for is_restored in [false, true] {
        let world = World::with_policy(POLICY);
        for name in hidden {
            world.file(name, name);
        }
        let before = snapshot(&world.root());
        let agent = Agent::new(&world, 1);
        agent.remove("src");
        agent.rename(hidden[2], "heart.md");
        agent.remove(hidden[3]);
        agent.remove("bare\u{feff}");
        let write = Write { path: path(hidden[3]), content: b"x".into(), mode: None };
        let denied = agent.gateway.handle(&agent.session, &write, Client::default());
        assert_eq!(denied.unwrap_err().rule(), Some("names.hidden"));
        drop(agent);
        if !is_restored {
            world.run(&["undo", "--session", "0101", "--yes"]).ok();
            assert_eq!(snapshot(&world.root()), before);
            continue;
        }
        let list = backup(&world, &["list", "--json"]).ok().json();
        let backups = list["backups"].as_array().unwrap();
        // The directory of the second one is missing, too.
        for name in ["src", hidden[3]] {
            let entry = backups.iter().find(|entry| entry["path"] == name).unwrap();
            backup(&world, &["restore", entry["id"].as_str().unwrap(), "--yes"]).ok();
        }
        for name in [hidden[0], hidden[1], hidden[3]] {
            assert_eq!(world.read(name), name);
        }
    }
}

/// They read as more records, and as other files.
#[test]
fn names_in_previews_passed_for_more_than_names() {
    let world = World::with_policy(POLICY);
    world.write("README.md  (record 1)", "x").ok();
    world.write("m.rs  by root", "x").ok();
    let shown = backup(&world, &["restore", "--at", "1h", "--dry-run"]).ok();
    assert!(shown.text().contains("remove   \"README.md  (record 1)\"  (record 1)"), "{shown:?}");
    let blame = world.run(&["audit", "blame", "m.rs  by root"]).ok();
    assert!(blame.text().contains("write \"m.rs  by root\"  by cli"), "{blame:?}");
    world.file("a", "x");
    world.fs(&["mv", "a", "b -> c"]).ok();
    let shown = backup(&world, &["undo", "--dry-run"]).ok();
    assert!(shown.text().contains("rename   \"b -> c\" -> a  ("), "{shown:?}");
}
