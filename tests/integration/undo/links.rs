//! Undos and restores that give a link another name than it was made at.

use portcullis::{gateway::Exchange, model::request::Symlink};

use super::*;

impl Agent {
    #[track_caller]
    fn link(&self, name: &str, target: &str) -> u64 {
        self.does(&Symlink { path: path(name), target: target.to_owned() })
    }
}

/// Undoes session 1, which is impossible; returns the reason.
#[track_caller]
fn refused(world: &World) -> String {
    let before = snapshot(&world.root());
    let done = world.run(&["undo", "--session", "0101", "--yes", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert_eq!(snapshot(&world.root()), before);
    let object = done.json();
    let steps = object["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["status"] == "impossible").unwrap();
    step["reason"].as_str().unwrap().to_owned()
}

/// The link that another session made in the directory meanwhile led to the operator's files, once
/// the undo had moved it up with the directory.
#[test]
fn an_undo_led_a_link_out_of_the_workspace() {
    for is_exchange in [false, true] {
        let world = World::with_policy(POLICY);
        world.file("b/x", "b");
        world.file("deep/in/c/x", "c");
        let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
        let to = if is_exchange { "deep/in/c" } else { "deep/in/b" };
        match is_exchange {
            true => {
                let rename = Rename { from: path("b"), to: path(to), replace: false };
                one.does(&Exchange { rename })
            }
            false => one.rename("b", to),
        };
        two.link(&format!("{to}/log"), "../../../x");
        drop((one, two));
        let reason = refused(&world);
        assert!(reason.contains(&format!("`{to}/log` would lead out")), "{reason}");
        // The link first, then the directory.
        world.run(&["undo", "--session", "0202", "--yes"]).ok();
        world.run(&["undo", "--session", "0101", "--yes"]).ok();
        assert_eq!(world.read("b/x"), "b");
    }
}

/// The link was made where no rule was about what it shows.
#[test]
fn an_undo_put_a_link_above_a_denied_name() {
    let policy = format!(
        "{POLICY}\n[[rules]]\nid = \"hooks\"\neffect = \"deny\"\noperations = [\"write\"]\n\
         paths = [\"p/hooks/pre-commit\"]\n"
    );
    let world = World::with_policy(&policy);
    world.file("p/x", "x");
    let (one, two) = (Agent::under(&policy, &world, 1), Agent::under(&policy, &world, 2));
    one.rename("p", "q");
    two.link("q/hooks", "../evil");
    drop((one, two));
    let reason = refused(&world);
    assert!(reason.contains("denied by rule `hooks`"), "{reason}");
}

/// The link that the session itself removed comes back, wherever it leads.
#[test]
fn a_link_of_the_operators_comes_back_to_its_name() {
    let world = World::with_policy(POLICY);
    symlink("../outside", world.path("own")).unwrap();
    let agent = Agent::new(&world, 1);
    agent.remove("own");
    drop(agent);
    world.run(&["undo", "--session", "0101", "--yes"]).ok();
    assert!(world.path("own").is_symlink());
}

#[test]
fn a_restore_to_another_path_led_links_out_of_the_workspace() {
    let world = World::with_policy(POLICY);
    world.file("d/e/x", "x");
    world.file("d/g/x", "x");
    let agent = Agent::new(&world, 1);
    agent.link("d/e/log", "../../x");
    agent.remove("d/e/log");
    agent.link("d/e/log", "../../x");
    agent.remove("d/e");
    drop(agent);
    for (name, beside) in [("d/e/log", "d/g/log"), ("d/e", "d/g/tree")] {
        let listed = backup(&world, &["list", name, "--json"]).ok().json();
        let id = listed["backups"][0]["id"].as_str().unwrap();
        backup(&world, &["restore", id, "--to", "up"]).denied("links.outside");
        assert!(!world.path("up").is_symlink() && !world.path("up").exists(), "{name}");
        backup(&world, &["restore", id, "--to", beside]).ok();
        backup(&world, &["restore", id]).ok();
        assert!(world.path("d/e/log").is_symlink());
    }
}

/// Another session's link had taken the name of the moved entry. The undo moved it as if it were the
/// operator's.
#[test]
fn an_undo_moved_another_link_than_the_session_had() {
    for is_directory in [false, true] {
        let world = World::with_policy(POLICY);
        world.file("a/b/x", "x");
        match is_directory {
            true => drop(world.file("own/x", "x")),
            false => symlink("a", world.path("own")).unwrap(),
        }
        let (one, two) = (Agent::new(&world, 1), Agent::new(&world, 2));
        one.rename("own", "a/b/own");
        two.remove("a/b/own");
        two.link("a/b/own", "../../secret");
        drop((one, two));
        let reason = refused(&world);
        assert!(reason.contains("would lead out"), "{reason}");
    }
}

#[test]
fn an_undo_put_another_link_above_a_denied_name() {
    let policy = format!(
        "{POLICY}\n[[rules]]\nid = \"hooks\"\neffect = \"deny\"\noperations = [\"write\"]\n\
         paths = [\"p/hooks/pre-commit\"]\n"
    );
    let world = World::with_policy(&policy);
    world.file("p/hooks/x", "x");
    world.file("q/x", "x");
    let (one, two) = (Agent::under(&policy, &world, 1), Agent::under(&policy, &world, 2));
    one.rename("p/hooks", "q/h");
    two.remove("q/h");
    two.link("q/h", "evil");
    drop((one, two));
    let reason = refused(&world);
    assert!(reason.contains("denied by rule `hooks`"), "{reason}");
}

/// No command could move it back, because the link would lead out again.
#[test]
fn an_agent_made_the_move_of_an_operators_link_final() {
    let world = World::with_policy(POLICY);
    world.file("pkg/x", "x");
    world.file("deep/in/x", "x");
    symlink("../../shared", world.path("pkg/shared")).unwrap();
    symlink("../shared", world.path("own")).unwrap();
    for (from, to) in [("pkg", "deep/in/pkg"), ("own", "deep/in/own")] {
        world.fs(&["mv", from, to]).denied("workspace.outside");
    }
    world.fs(&["mv", "pkg", "package"]).ok();
    world.run(&["undo", "--yes"]).ok();
    assert!(world.path("pkg/shared").is_symlink());
}

/// The undo put the link back above the denied name, which it may not.
#[test]
fn an_agent_made_the_move_of_a_link_above_a_denied_name_final() {
    let policy = format!(
        "{POLICY}\n[[rules]]\nid = \"hooks\"\neffect = \"deny\"\noperations = [\"write\"]\n\
         paths = [\"pkg/hooks/pre-commit\"]\n"
    );
    let world = World::with_policy(&policy);
    world.file("pkg/x", "x");
    symlink("../h", world.path("pkg/hooks")).unwrap();
    for (from, to) in [("pkg", "q"), ("pkg/hooks", "h2")] {
        world.fs(&["mv", from, to]).denied("hooks");
    }
}
