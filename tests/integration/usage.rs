//! What a user meets first: commands as the documents show them, and what is
//! said, to people and to programs, about those that cannot be done.

use serde_json::{Value, json};

use crate::common::{Done, World, done};

/// The fenced block of the README that has `part`.
fn block(part: &str) -> String {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    readme.split("```").find(|block| block.starts_with("sh\n") && block.contains(part)).unwrap()
        [3..]
        .to_owned()
}

#[test]
fn the_tour_of_policies_works_as_written() {
    let world = World::new();
    world.file("src/main.rs", "fn main() {}\n");
    world.file("Cargo.toml", "[package]\nname = \"a\"\n");
    world.file("new.rs", "fn main() { todo!() }\n");
    let mut shell = std::process::Command::new("sh");
    let own = world.command(&[]);
    shell.env_clear().envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.env_remove("PORTCULLIS_WORKSPACE").current_dir(world.root());
    let tour = format!("portcullis() {{ {} \"$@\"; }}\n", env!("CARGO_BIN_EXE_portcullis"))
        + &block("policy init");
    done(shell.arg("-ec").arg(tour).output().unwrap()).ok();
    assert_eq!(world.read("src/main.rs"), world.read("new.rs"));
}

/// What a program finds on stdout of a command that failed.
#[track_caller]
fn failed(done: &Done, code: i32, kind: &str) -> Value {
    assert_eq!((done.code, done.stderr.as_str()), (code, ""), "{done:?}");
    let object = done.json();
    assert_eq!((&object["ok"], &object["error"]["kind"]), (&json!(false), &json!(kind)));
    assert!(object["error"]["message"].is_string(), "{object}");
    object
}

#[test]
fn failures_before_the_gate_are_json_where_json_was_asked_for() {
    let world = World::new();
    world.file("a", "1");
    std::fs::write(world.base().join("bad.toml"), "schema = 1\nname = \"x\"\nfoo = 1\n").unwrap();
    let known = world.run(&["policy", "check", "bad.toml", "--json"]).json()["policies"].clone();
    assert_eq!(known[0]["errors"][0]["line"], 3);
    for args in [
        &["fs", "read", "a", "--policy", "bad.toml"][..],
        &["backup", "diff", "a", "--policy", "bad.toml"],
        &["policy", "lint", "bad.toml"],
        &["policy", "explain", "read", "a", "--policy", "bad.toml"],
        &["policy", "diff", "bad.toml", "default"],
        &["policy", "replay", "bad.toml"],
        &["policy", "learn", "--policy", "bad.toml"],
    ] {
        let object = failed(&world.run(&[args, &["--json"]].concat()), 4, "policy");
        assert_eq!(object["policies"], known, "{args:?}");
    }
    let none = ["fs", "read", "a", "--workspace", "/nonexistent", "--json"];
    failed(&world.run(&none), 1, "failed");
    failed(&world.run_with_input(&["fs", "batch", "--json"], "[{}]"), 2, "usage");
    failed(&world.run(&["approve", "0000", "--json"]), 1, "failed");
    let text = world.fs(&["read", "a", "--policy", "bad.toml"]);
    assert!(text.stdout.is_empty() && text.stderr.contains("unknown key"), "{text:?}");
}

#[test]
fn a_filter_that_can_find_nothing_is_refused() {
    let world = World::new();
    world.write("src/a.rs", "1").ok();
    for command in ["query", "show"] {
        for (option, wrong, right) in [
            ("--decision", "denied", "ask"),
            ("--kind", "foo", "approval"),
            ("--op", "frob", "grep"),
        ] {
            let done = world.run(&["audit", command, option, wrong]);
            assert!(done.code == 2 && done.stderr.contains(right), "{done:?}");
            world.run(&["audit", command, option, right]).ok();
        }
        for path in ["src/**", "src", "./src/"] {
            let found = world.run(&["audit", command, "--path", path, "--json"]).ok();
            assert_eq!(found.text().lines().count(), 2, "{found:?}");
        }
    }
    let done = world.run(&["audit", "query", "--door", "frob"]);
    assert!(done.code == 2 && done.stderr.contains("files"), "{done:?}");
    world.run(&["audit", "query", "--op", "terminal/create"]).ok();
}

#[test]
fn an_undo_that_is_all_conflict_says_what_to_do() {
    let world = World::new();
    world.write("a", "1").ok();
    world.write("a", "2").ok();
    std::fs::write(world.path("a"), "by hand").unwrap();
    let done = world.run(&["backup", "restore", "--to", "0", "--yes"]);
    assert!(done.code == 1 && done.text().contains("0 to do, 1 in conflict"), "{done:?}");
    assert!(done.stderr.contains("--skip-conflicts"), "{done:?}");
}

/// What `demo` tells to put there kept every `--dir` from being taken.
#[test]
fn an_option_holds_whatever_the_environment_says() {
    let world = World::new();
    world.run(&["fs", "ls"]);
    let log = world.state().join("audit");
    let log = log.to_str().unwrap();
    for command in [&["audit", "verify"][..], &["audit", "query"]] {
        world.run(&[command, &["--dir", log]].concat()).ok();
    }
    let both = world.run(&["audit", "verify", "--dir", log, "--workspace", "."]);
    assert_eq!(both.code, 2);
    assert!(both.stderr.contains("'--dir' cannot be used with '--workspace'"), "{both:?}");
    let mut who = world.command(&["policy", "explain", "--who", "bot"]);
    done(who.env("PORTCULLIS_AGENT", "other").output().unwrap()).ok();
}

#[test]
fn a_missing_directory_is_named_with_what_to_do() {
    let world = World::new();
    for args in [["policy", "keygen"], ["policy", "init"]] {
        let done = world.run(&[&args[..], &["-o", "none/x"]].concat());
        assert!(done.code == 1 && done.stderr.contains("mkdir -p"), "{done:?}");
    }
    world.run(&["policy", "keygen", "-o", "x.key"]).ok();
}

#[test]
fn help_keeps_a_command_s_own_options_together_and_examples_whole() {
    let world = World::new();
    let help = world.fs(&["grep", "--help"]).ok();
    let (own, gate) = help.text().split_once("\nGate options:\n").unwrap();
    assert!(own.contains("--gitignore") && !own.contains("--workspace"), "{own}");
    assert!(gate.contains("--workspace") && !gate.contains("--gitignore"), "{gate}");
    let run = world.run(&["run", "--help"]).ok();
    assert!(run.text().contains("--agent-network 443 \\\n    --agent-network dns -- fast"));
    let listed = world.run(&["policy", "list", "--json"]).ok().json();
    assert_eq!(listed["policies"][0]["name"], "baseline");
}

/// An empty variable was a value, of which the command line then complained as if it
/// had been typed there.
#[test]
fn a_variable_that_is_set_to_nothing_is_not_set() {
    let world = World::new();
    world.file("a", "1");
    for name in ["WORKSPACE", "STATE", "CONFIG", "POLICY", "AGENT", "LOG"] {
        let name = format!("PORTCULLIS_{name}");
        for args in [&["fs", "stat", "."][..], &["audit", "show"], &["policy", "learn"]] {
            let mut command = world.command(args);
            command.current_dir(world.root()).env(&name, "");
            let done = done(command.output().unwrap());
            assert_eq!(done.code, 0, "{name}: {done:?}");
        }
    }
    let given = world.run(&["fs", "stat", ".", "--state", ""]);
    assert_eq!(given.code, 2, "{given:?}");
}
