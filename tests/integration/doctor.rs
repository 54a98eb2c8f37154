//! `portcullis doctor`: its report, and that `run` agrees.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::{
    common::{Done, World},
    disk::Disk,
    limited_machines::{LANDLOCK, OPENAT2, Without},
};

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {report}"))
}

/// The check has this status, and the exit code and `run` go with it.
#[track_caller]
fn says(done: &Done, name: &str, status: &str) -> Value {
    let report = done.json();
    let found = check(&report, name).clone();
    assert_eq!(found["status"], status, "{found}");
    let refuses = report["runRefuses"].as_bool().unwrap();
    assert_eq!(done.code, i32::from(refuses), "{report}");
    found
}

const RUN: [&str; 3] = ["run", "--", "/bin/true"];

#[test]
fn here_everything_works_and_nothing_is_left_behind() {
    let world = World::new();
    let done = world.run(&["doctor", "--json"]).ok();
    let report = done.json();
    assert_eq!(report["runRefuses"], false);
    let test = says(&done, "self-test", "ok");
    assert_eq!(test["facts"]["enforcement"], "full");
    let probes = test["facts"]["probes"].as_array().unwrap();
    assert!(probes.len() > 20 && probes.iter().all(|probe| probe["passed"] == true), "{test}");
    let landlock = &check(&report, "Landlock")["facts"];
    let [abi, used] = ["abi", "used"].map(|fact| landlock[fact].as_u64().unwrap());
    assert!(abi >= 3 && used == abi.min(10), "{landlock}");
    let missed: Vec<_> = (abi + 1..=10).collect();
    assert_eq!(landlock["missed"], serde_json::json!(missed), "{landlock}");
    for name in ["kernel", "openat2", "namespaces", "seccomp", "workspace", "policy"] {
        assert_eq!(check(&report, name)["status"], "ok");
    }
    let names: Vec<_> =
        std::fs::read_dir(world.base()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["ws"], "no state, no home");
    world.run(&RUN).ok();
}

/// It said that all was well, and `run` and `exec` refused it.
#[test]
fn a_grant_that_every_start_refuses_is_found() {
    let mut world = World::new();
    let grant = world.base().join("home/.claude");
    std::fs::create_dir_all(&grant).unwrap();
    world.set_policy(&format!("schema = 1\nname = \"p\"\n[agent]\nwrite = [{grant:?}]\n"));
    let found = says(&world.run(&["doctor", "--json"]), "grants", "failed");
    assert!(found["help"].as_str().unwrap().contains("--accept-agent-config"), "{found}");
    assert_eq!(world.run(&RUN).code, 1);
}

#[test]
fn people_get_what_it_means_and_what_to_do() {
    let world = World::new();
    let done = world.run(&["doctor"]).ok();
    let text = done.text();
    assert!(text.contains("ok       Landlock"), "{text}");
    assert!(text.contains("ABI 3  Linux 6.2"), "{text}");
    assert!(text.contains("open the workspace"), "every probe is shown: {text}");
    assert!(!text.contains('\u{1b}'), "colours are for terminals");
    let base = world.base().to_str().unwrap();
    let too_wide: Vec<_> =
        text.lines().filter(|line| line.chars().count() > 80 && !line.contains(base)).collect();
    assert!(too_wide.is_empty(), "{too_wide:#?}");
}

#[test]
fn without_namespaces_run_refuses_unless_partial_enforcement_is_accepted() {
    let world = World::new();
    let without = |args: &[&str]| world.run_without(Without::Namespaces, args);
    let done = without(&["doctor", "--json"]);
    says(&done, "self-test", "failed");
    let namespaces = says(&done, "namespaces", "warning");
    assert_eq!(namespaces["facts"]["switches"]["user.max_user_namespaces"], "0");
    assert!(namespaces["help"].as_str().unwrap().contains("user.max_user_namespaces"));
    assert_eq!(done.code, 1);
    assert_eq!(without(&RUN).code, 1);

    let done = without(&["doctor", "--json", "--allow-partial"]);
    let sandbox = says(&done, "self-test", "warning");
    assert_eq!(sandbox["facts"]["mcp"], "offered", "{sandbox}");
    assert_eq!(done.code, 0);
    without(&["run", "--allow-partial", "--", "/bin/true"]).ok();
}

#[test]
fn where_root_can_become_nobody_else_enforcement_is_partial_and_says_so() {
    for without in [Without::OtherUsers, Without::Capabilities] {
        let world = World::new();
        let without = |args: &[&str]| world.run_without(without, args);
        let done = without(&["doctor", "--json", "--allow-partial"]);
        let sandbox = says(&done, "self-test", "warning");
        let stays = "the agent stays root, without root's powers";
        assert!(sandbox["facts"]["gaps"].to_string().contains(stays), "{sandbox}");
        // The kernel does not count root's processes, and an operator who asks for a limit must be
        // told.
        if says(&done, "limits", "warning")["facts"]["processes"].is_null() {
            let asked =
                ["run", "--allow-partial", "--agent-limit", "processes=64", "--", "/bin/true"];
            let refused = without(&asked);
            assert_eq!(refused.code, 1);
            assert!(refused.stderr.contains("processes of root"), "{refused:?}");
        }
        assert_eq!(done.code, 0);
        assert_eq!(without(&["doctor"]).code, 1);
        assert_eq!(without(&RUN).code, 1);
        let done = without(&["run", "--allow-partial", "--", "/bin/true"]).ok();
        assert!(done.stderr.contains(stays), "{done:?}");
        let start = world.records().into_iter().rfind(|it| it["kind"] == "start").unwrap();
        assert!(start["facts"]["gaps"].to_string().contains(stays), "{start}");
        let place = world.base().join("demo");
        let done = without(&["demo", "--keep", place.to_str().unwrap()]).ok();
        assert!(done.text().contains("enforcement is partial here"), "{done:?}");
    }
}

#[test]
fn a_kernel_without_landlock_is_named() {
    let world = World::new();
    let done = world.run_without(LANDLOCK, &["doctor", "--json"]);
    let landlock = says(&done, "Landlock", "failed");
    assert!(landlock["help"].as_str().unwrap().contains("Linux 6.2"), "{landlock}");
    says(&done, "self-test", "failed");
    assert_eq!(world.run_without(LANDLOCK, &RUN).code, 1);
    // The error was that a file could not be opened, without a reason.
    let service = world.run_without(LANDLOCK, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(service.code, 1, "{service:?}");
    assert!(service.stderr.contains("this kernel has no Landlock"), "{service:?}");
}

#[test]
fn a_kernel_without_openat2_is_named() {
    let world = World::new();
    world.file("a.txt", "a");
    let done = world.run_without(OPENAT2, &["doctor", "--json"]);
    says(&done, "openat2", "failed");
    assert_eq!(done.code, 1);
    for command in [&["fs", "read", "a.txt"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let done = world.run_without(OPENAT2, command);
        assert_eq!(done.code, 1);
        assert!(done.stderr.contains("openat2"), "{}", done.stderr);
    }
}

#[test]
fn a_torn_log_is_a_warning_and_a_damaged_one_stops_everything() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let whole = says(&world.run(&["doctor", "--json"]), "audit log", "ok");
    assert_eq!(whole["facts"]["records"], world.records().len());

    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, format!("{text}{{\"v\":1,\"se")).unwrap();
    let torn = says(&world.run(&["doctor", "--json"]), "audit log", "warning");
    assert!(torn["found"].as_str().unwrap().contains("10 bytes"), "{torn}");

    std::fs::write(&segment, text.replacen("\"op\":\"write\"", "\"op\":\"wrote\"", 1)).unwrap();
    let done = world.run(&["doctor", "--json"]);
    let damaged = says(&done, "audit log", "failed");
    assert!(damaged["help"].as_str().unwrap().contains("audit recover"), "{damaged}");
    assert_eq!(done.code, 1);
    // A script can distinguish this from any other failure.
    assert_eq!(world.run(&RUN).code, 5);
    assert_eq!(world.fs(&["ls"]).code, 5);
}

/// Regression: a log without its public key was `ok`.
#[test]
fn a_log_whose_public_key_is_missing_was_in_order() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    // Without what was signed nothing else contradicts it.
    let audit = world.state().join("audit");
    for name in ["key.vkey", "checkpoint", "frontier", "checkpoints"] {
        let path = audit.join(name);
        let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
    }
    std::fs::remove_file(world.state().join("keys/signed")).unwrap();
    let found = says(&world.run(&["doctor", "--json"]), "audit log", "warning");
    assert!(found["found"].as_str().unwrap().contains("key.vkey"), "{found}");
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    world.fs(&["ls"]).ok();
    says(&world.run(&["doctor", "--json"]), "audit log", "ok");
}

#[test]
fn a_log_that_somebody_keeps_locked_is_told_of() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let lock = std::fs::File::open(world.state().join("audit/lock")).unwrap();
    lock.lock().unwrap();
    let done = world.run(&["doctor", "--json"]);
    assert_eq!(says(&done, "audit log", "warning")["found"], "locked");
    // It was taken for the directory of another workspace.
    assert_ne!(check(&done.json(), "state directory")["status"], "failed");
}

#[test]
fn a_state_directory_that_lets_others_in_fails_with_the_command_that_helps() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    std::fs::set_permissions(world.state(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let done = world.run(&["doctor", "--json"]);
    let directory = says(&done, "state directory", "failed");
    assert!(directory["help"].as_str().unwrap().starts_with("chmod 700"), "{directory}");
    assert_eq!(done.code, 1);
    assert_eq!(world.run(&RUN).code, 1);
}

/// It reported no problem, and `run` refused.
#[test]
fn a_state_directory_that_cannot_be_written_fails() {
    let world = World::new();
    std::fs::create_dir_all(world.state()).unwrap();
    let disk = Disk::memory(&world.state(), 1024);
    std::fs::set_permissions(world.state(), std::fs::Permissions::from_mode(0o700)).unwrap();
    disk.remount("ro");
    let done = world.run(&["doctor", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    says(&done, "state directory", "failed");
}

/// It reported no problem, and `run` refused.
#[test]
fn a_part_of_the_state_directory_that_is_none_fails() {
    for part in ["approvals", "audit", "backups", "gateways", "keys", "logs", "policies"] {
        let world = World::new();
        world.write("a.txt", "a").ok();
        let place = world.state().join(part);
        if place.exists() {
            std::fs::remove_dir_all(&place).unwrap();
        }
        std::fs::write(&place, "").unwrap();
        let done = world.run(&["doctor", "--json"]);
        let directory = says(&done, "state directory", "failed");
        assert!(directory["found"].as_str().unwrap().contains(part), "{directory}");
        assert_ne!(world.run(&RUN).code, 0, "{part}");
    }
}

/// The lines of an error were shown with `\n` between them.
#[test]
fn an_error_of_several_lines_is_shown_in_lines() {
    let world = World::new();
    let config = world.base().join("broken.toml");
    std::fs::write(&config, "[audit\nx").unwrap();
    let done = world.run(&["doctor", "--config", config.to_str().unwrap()]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.text().contains("unclosed table") && !done.text().contains("\\n"), "{done:?}");
}

#[test]
fn a_policy_that_does_not_load_fails() {
    let world = World::with_policy("schema = 1\nname = \"x\"\nsurprise = true\n");
    let done = world.run(&["doctor", "--json"]);
    let policy = says(&done, "policy", "failed");
    assert!(policy["help"].as_str().unwrap().contains("portcullis policy check"), "{policy}");
    assert_eq!(done.code, 1);
    assert_eq!(world.run(&RUN).code, 4);
}

#[test]
fn a_workspace_that_holds_the_state_directory_fails() {
    let world = World::new();
    let inside = world.path("state");
    let inside = inside.to_str().unwrap();
    let done = world.run(&["doctor", "--json", "--state", inside]);
    let test = says(&done, "self-test", "failed");
    assert!(test["meaning"].as_str().unwrap().contains("overlap"), "{test}");
    assert_eq!(world.run(&["run", "--state", inside, "--", "/bin/true"]).code, 1);
}

#[test]
fn a_workspace_that_is_not_there_fails() {
    let world = World::new();
    let done = world.run(&["doctor", "--json", "--workspace", "/no/such/directory"]);
    says(&done, "workspace", "failed");
    assert_eq!(done.code, 1);
}
