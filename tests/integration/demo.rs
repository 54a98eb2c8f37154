//! `portcullis demo`: the first command that a new user runs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{
    common::{Done, World, done},
    limited_machines::{LANDLOCK, Without},
};

/// The demo, kept in the world's own directory.
fn demo(world: &World, more: &[&str]) -> (PathBuf, Vec<String>) {
    let place = world.base().join("look");
    let mut args = vec!["demo".to_owned(), "--keep".to_owned(), place.display().to_string()];
    args.extend(more.iter().map(|word| (*word).to_owned()));
    (place, args)
}

fn run(world: &World, more: &[&str]) -> (PathBuf, Done) {
    let (place, args) = demo(world, more);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    (place, world.run(&args))
}

fn attempt<'a>(report: &'a Value, operation: &str, path: &str) -> &'a Value {
    let attempts = report["attempts"].as_array().unwrap();
    let found = attempts.iter().find(|a| a["operation"] == operation && a["path"] == path);
    found.unwrap_or_else(|| panic!("no `{operation} {path}` in {report}"))
}

#[test]
fn everything_that_must_be_refused_is_refused_and_the_log_says_so() {
    let world = World::new();
    let (place, done) = run(&world, &["--json"]);
    let report = done.ok().json();
    assert_eq!(report["ok"], true);
    assert_eq!(report["start"]["enforcement"], "full");
    for (operation, path, decision, rule) in [
        ("read", "src/main.rs", "allowed", "allowedPaths.read"),
        ("write", "src/main.rs", "allowed", "allowedPaths.write"),
        ("read", ".env", "denied", "secrets.names[0]"),
        ("read", "../outside/secret.txt", "denied", "workspace.outside"),
        ("read", "notes.txt", "denied", "workspace.outside"),
        ("read", "queue", "denied", "files.type"),
        ("read", "logo.png", "denied", "files.binary.read"),
        ("read", "export.csv", "denied", "files.maxReadSize"),
        ("write", ".git/hooks/pre-commit", "denied", "git"),
        ("write", "notes.txt", "denied", "workspace.outside"),
        ("remove", "old", "allowed", "allowedPaths.remove"),
        ("remove", ".git", "denied", "git"),
    ] {
        let line = attempt(&report, operation, path);
        assert_eq!((&line["decision"], &line["rule"]), (&decision.into(), &rule.into()), "{line}");
        assert!(line["record"].is_u64() && line["problem"].is_null(), "{line}");
    }
    let by_shell: Vec<_> = report["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["operation"] == "shell")
        .map(|line| line["decision"].as_str().unwrap())
        .collect();
    assert_eq!(by_shell, ["worked", "refused", "refused", "refused", "refused", "refused"]);

    // The log, read by another process, agrees.
    let log = std::fs::read_to_string(place.join("state/audit/seg-000000.jsonl")).unwrap();
    let records: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in report["attempts"].as_array().unwrap() {
        let Some(seq) = line["record"].as_u64() else { continue };
        let record = &records[usize::try_from(seq).unwrap()];
        assert_eq!(record["op"], line["operation"]);
        assert_eq!(record["rule"], line["rule"]);
        assert_eq!(record["agent"], "rude-agent");
    }
    let state = place.join("state");
    let verified = world.run(&["audit", "verify", "--json", "--state", state.to_str().unwrap()]);
    assert_eq!(verified.ok().json()["valid"], true);

    // The edit was undone, what was removed is still gone.
    let source = std::fs::read_to_string(place.join("workspace/src/main.rs")).unwrap();
    assert!(source.contains("hello"), "{source}");
    assert!(!place.join("workspace/old").exists());
    assert_eq!(report["undo"]["ok"], true);
    assert!(!place.join("agent").exists(), "the copy of the program is removed");
}

#[test]
fn people_see_one_plain_line_per_attempt_in_80_columns() {
    let world = World::new();
    let (place, done) = run(&world, &[]);
    let done = done.ok();
    let text = done.text();
    let table: Vec<_> = text
        .lines()
        .skip_while(|line| !line.contains("PATH OR COMMAND"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect();
    assert_eq!(table.len(), 18, "{text}");
    let too_wide: Vec<_> = text
        .lines()
        .filter(|line| line.chars().count() > 80 && !line.contains(place.to_str().unwrap()))
        .collect();
    assert!(too_wide.is_empty(), "{too_wide:#?}");
    assert!(!text.contains('\u{1b}'), "colours are for terminals");
    assert_eq!(done.stderr, "");
    assert!(text.contains(&format!("rm -r {}", place.display())));
}

#[test]
fn the_commands_to_try_next_work_in_a_shell() {
    let world = World::new();
    let (place, done) = run(&world, &[]);
    let done = done.ok();
    let mut script = format!(". {}/env\n", place.display());
    let commands = done.text().lines().filter(|line| line.starts_with("portcullis "));
    for line in commands {
        script += &format!("{line}\necho \"exit $?\"\n");
    }
    let mut shell = std::process::Command::new("sh");
    let output = shell
        .args(["-c", &script])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(world.base())
        .output()
        .unwrap();
    let said = super::common::done(output);
    let codes: Vec<_> = said.text().lines().filter(|line| line.starts_with("exit ")).collect();
    // The fifth is the denied read.
    assert_eq!(codes, ["exit 0", "exit 0", "exit 0", "exit 0", "exit 3", "exit 0"], "{said:?}");
    assert!(place.join("workspace/old/notes.md").exists(), "the removal was undone");
}

#[test]
fn a_policy_that_refuses_too_little_makes_the_demo_fail_loudly() {
    let mut world = World::new();
    world.set_policy(
        "schema = 1\nname = \"loose\"\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n\
         write = [\"**\"]\nremove = [\"**\"]\n",
    );
    let file = world.base().join("policy/policy.toml");
    let (_, done) = run(&world, &["--policy", file.to_str().unwrap()]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.text().contains("NOT REFUSED"), "{done:?}");
    assert!(done.text().contains("FAILED: "), "{done:?}");

    let other = World::new();
    let (_, done) = run(&other, &["--json", "--policy", file.to_str().unwrap()]);
    let report = done.json();
    assert_eq!((done.code, &report["ok"]), (1, &false.into()));
    let secret = attempt(&report, "read", ".env");
    assert!(secret["problem"].as_str().unwrap().contains("NOT REFUSED"), "{secret}");
    // Requests that no policy can allow are refused all the same.
    assert!(attempt(&report, "read", "notes.txt")["problem"].is_null());
}

#[test]
fn a_policy_that_refuses_too_much_makes_the_demo_fail() {
    let world = World::new();
    let (_, done) = run(&world, &["--json", "--policy", "read-only"]);
    assert_eq!(done.code, 1, "{done:?}");
    let report = done.json();
    let edit = attempt(&report, "write", "src/main.rs");
    assert_eq!(edit["problem"], "it should have been allowed");
}

#[test]
fn without_namespaces_it_says_that_enforcement_is_partial() {
    let world = World::new();
    let (_, args) = demo(&world, &[]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = world.run_without(Without::Namespaces, &args).ok();
    assert!(done.text().contains("enforcement is partial here"), "{done:?}");
    assert!(done.text().contains("confined: partial"), "{done:?}");
}

#[test]
fn where_nothing_confines_it_warns_shows_the_rest_and_fails() {
    let world = World::new();
    let (_, args) = demo(&world, &[]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = world.run_without(LANDLOCK, &args);
    assert_eq!(done.code, 1, "{done:?}");
    let text = done.text();
    assert!(text.contains("this machine cannot confine an agent"), "{done:?}");
    assert_eq!(text.matches("NOT REFUSED").count(), 5, "{done:?}");
    assert!(text.contains("secrets.names[0]"), "the gateway still decides: {done:?}");
}

#[test]
fn it_makes_a_new_temporary_directory_that_only_its_owner_can_list() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::new();
    let report =
        done(world.command(&["demo", "--json"]).env("TMPDIR", world.base()).output().unwrap());
    let report = report.ok().json();
    let place = Path::new(report["directory"].as_str().unwrap()).to_owned();
    assert!(place.starts_with(world.base().canonicalize().unwrap()), "{}", place.display());
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(place.clone()), 0o711);
    for inside in ["workspace", "state", "policy", "outside"] {
        assert_eq!(mode(place.join(inside)), 0o700, "{inside}");
    }
}

#[test]
fn it_does_not_touch_a_directory_that_holds_something() {
    let world = World::new();
    world.file("mine.txt", "mine");
    let root = world.root();
    let done = world.run(&["demo", "--keep", root.to_str().unwrap()]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("is not empty"), "{done:?}");
    assert_eq!(std::fs::read_dir(root).unwrap().count(), 1);
}
