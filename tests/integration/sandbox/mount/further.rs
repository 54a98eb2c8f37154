//! Further workspaces (`--add-dir`) in the sandbox: each has a mount, a policy, a state
//! directory and a log of its own.

use std::time::Instant;

use super::*;

/// A policy under which one file must not change.
const LIBRARY: &str = r#"
schema = 1
name = "library"
version = 1

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]

[[rules]]
id = "frozen"
effect = "deny"
operations = ["write", "remove"]
paths = ["frozen.txt"]
"#;

impl SandboxWorld {
    /// The same with a second directory, and a policy for it.
    fn with_library(who: As) -> Self {
        let world = Self::mounted(who);
        std::fs::create_dir(world.at("lib")).unwrap();
        std::fs::write(world.at("lib/lib.txt"), "lib\n").unwrap();
        std::fs::write(world.at("lib/frozen.txt"), "frozen\n").unwrap();
        std::fs::write(world.at("policies/library.toml"), LIBRARY).unwrap();
        world.give_away_if(who != As::Root);
        world
    }

    fn library(&self) -> String {
        format!("{}={}", self.at("lib"), self.at("policies/library.toml"))
    }

    /// Returns the state directory of `lib`, if a gateway made it.
    fn library_state(&self) -> Option<String> {
        let all = std::fs::read_dir(self.at("home/.local/state/portcullis")).ok()?;
        let mut names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let name = names.find(|name| name.starts_with("lib-"))?;
        Some(format!("home/.local/state/portcullis/{name}"))
    }

    fn library_records(&self) -> Vec<Value> {
        self.records_in(&self.library_state().unwrap())
    }
}

fn paths(records: &[Value]) -> Vec<&str> {
    records.iter().filter_map(|record| record["path"].as_str()).collect()
}

/// An operator could give none: an agent had one directory, or the other one past the gateway.
#[test]
fn programs_reach_a_further_workspace_through_a_gateway_of_its_own() {
    for who in users() {
        let world = SandboxWorld::with_library(who);
        let (lib, file) = (world.at("lib"), world.at("summary.json"));
        let script = format!(
            "cat file.txt {lib}/lib.txt; echo new >{lib}/new.txt; echo more >>{lib}/lib.txt; \
             echo x >{lib}/frozen.txt && echo wrote; rm -f {lib}/frozen.txt; mv {lib}/new.txt moved; \
             echo x >fixed.txt; ls {lib}"
        );
        let ended = world.exec(&["--add-dir", &world.library(), "--summary", &file], &script);
        assert_eq!(ended.stdout, "secret\nlib\nfrozen.txt\nlib.txt\n", "{who:?} {ended:?}");
        assert_eq!(std::fs::read_to_string(world.at("lib/lib.txt")).unwrap(), "lib\nmore\n");
        assert_eq!(std::fs::read_to_string(world.at("lib/frozen.txt")).unwrap(), "frozen\n");
        assert_eq!(std::fs::read_to_string(world.at("ws/moved")).unwrap(), "new\n");

        let (main, library) = (world.records(), world.library_records());
        for (records, root, other) in [(&main, "ws", "lib"), (&library, "lib", "ws")] {
            assert_eq!(said(&records[0], "kind"), "start");
            let facts = &records[0]["facts"];
            let root = world.base().canonicalize().unwrap().join(root);
            let other = world.base().canonicalize().unwrap().join(other);
            assert_eq!(facts["workspace"], root.to_str().unwrap(), "{facts}");
            assert_eq!(facts["otherWorkspaces"], serde_json::json!([other]), "{facts}");
            assert_eq!(records[0]["session"], main[0]["session"]);
            assert_eq!(said(&records[1], "op"), "sandbox");
            assert_eq!(said(records.last().unwrap(), "kind"), "stop");
        }
        assert_eq!(library[0]["facts"]["policyName"], "library");
        assert!(paths(&library).contains(&"lib.txt") && !paths(&library).contains(&"file.txt"));
        assert!(paths(&main).contains(&"file.txt") && !paths(&main).contains(&"lib.txt"));
        let denied = |records: &[Value], path: &str| {
            let is = |record: &&Value| record["path"] == path && record["decision"] == "deny";
            said(records.iter().find(is).unwrap(), "rule").to_owned()
        };
        assert_eq!(denied(&library, "frozen.txt"), "frozen");
        assert_eq!(denied(&main, "fixed.txt"), "fixed");
        let written =
            library.iter().find(|record| record["kind"] == "intent" && record["path"] == "lib.txt");
        assert!(written.unwrap()["backup"].is_string(), "{written:?}");

        // The summary of that workspace is as if it had been alone.
        let summary: Value =
            serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let further = &summary["furtherWorkspaces"][0];
        assert_eq!(further["session"], summary["session"], "{summary}");
        assert_eq!(further["denials"][0]["rule"], "frozen", "{summary}");
        assert_eq!(summary["denials"][0]["rule"], "fixed", "{summary}");
        assert!(further["workspace"].as_str().unwrap().ends_with("/lib"), "{summary}");
        let state = world.at(&world.library_state().unwrap());
        let verified = end(world.command(&["audit", "verify", "--state", &state]).spawn().unwrap());
        assert_eq!(verified.code, 0, "{verified:?}");
        let session = summary["session"].as_str().unwrap();
        let mut undo = world.command(&[
            "backup",
            "undo",
            "--session",
            session,
            "--workspace",
            &lib,
            "--state",
            &state,
            "--yes",
        ]);
        let undone = end(undo.spawn().unwrap());
        assert_eq!(undone.code, 0, "{undone:?}");
        assert_eq!(std::fs::read_to_string(world.at("lib/lib.txt")).unwrap(), "lib\n");
        assert_eq!(std::fs::read_to_string(world.at("ws/moved")).unwrap(), "new\n");
    }
}

/// The second mount was beside the first alone: nothing else may lead there.
#[test]
fn nothing_but_its_mount_leads_to_a_further_workspace() {
    for who in users() {
        let world = SandboxWorld::with_library(who);
        let lib = world.at("lib");
        let script = format!(
            "stat -c %d:%i {lib} {lib}/lib.txt; cat /proc/1/root{lib}/lib.txt; umount {lib}; \
             mount -t tmpfs none {lib}; ls {0}/home; ln {lib}/lib.txt linked; ln -s {lib}/lib.txt way; \
             cat way",
            world.at("")
        );
        let ended = world.exec(&["--add-dir", &world.library()], &script);
        for name in ["lib", "lib/lib.txt"] {
            let facts = world.base().join(name).metadata().unwrap();
            let number = format!("{}:{}", facts.dev(), facts.ino());
            assert!(!ended.stdout.contains(&number), "{who:?} {ended:?}");
        }
        assert!(!world.base().join("ws/linked").exists(), "{who:?} {ended:?}");
        assert!(!ended.stdout.contains(".local"), "{who:?} {ended:?}");
        let facts = &world.library_records()[1]["facts"];
        let counted = facts["selfTest"].as_str().unwrap().split_once('/').unwrap();
        assert_eq!(counted.0, counted.1, "{facts}");
    }
}

#[test]
fn without_a_mount_a_further_workspace_is_an_empty_directory() {
    for who in users() {
        let world = SandboxWorld::with_library(who);
        let script = format!("ls -A {0} >&2; cat {0}/lib.txt >&2; echo done >&2", world.at("lib"));
        let options = ["--no-mount", "--add-dir", &world.library()];
        let ended = world.run(&options, &["/bin/sh", "-c", &script]);
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        assert!(ended.stderr.contains("agent: done"), "{who:?} {ended:?}");
        assert!(!ended.stderr.contains("agent: lib"), "{who:?} {ended:?}");
        assert_eq!(said(&world.library_records()[0], "kind"), "start");
    }
}

#[test]
fn further_workspaces_that_lie_in_one_another_are_refused() {
    let world = SandboxWorld::with_library(users()[0]);
    for name in ["given/tool", "ws/dir/deep", "lib/sub", "policies/inner"] {
        std::fs::create_dir_all(world.at(name)).unwrap();
    }
    std::os::unix::fs::symlink(world.at("lib"), world.at("ws/way")).unwrap();
    std::os::unix::fs::symlink(world.at("ws"), world.at("other")).unwrap();
    world.give_away_if(users()[0] != As::Root);
    let at = |name: &str| world.at(name);
    for options in [
        vec!["--add-dir", &at("ws")],
        vec!["--add-dir", &at("ws/dir")],
        vec!["--add-dir", &at("other")],
        vec!["--add-dir", &at("")],
        vec!["--add-dir", &at("lib"), "--add-dir", &at("lib")],
        vec!["--add-dir", &at("lib"), "--add-dir", &at("lib/sub")],
        vec!["--add-dir", &at("ws/way")],
        vec!["--add-dir", &at("given"), "--agent-write", &at("given/tool")],
        vec!["--add-dir", &at("given/tool"), "--agent-read", &at("given")],
        vec!["--add-dir", &at("policies")],
        vec!["--add-dir", &at("state")],
        vec!["--add-dir", &at("home")],
        vec!["--add-dir", &at("missing")],
        vec!["--add-dir", &format!("{}={}", at("lib"), at("lib/lib.txt"))],
    ] {
        std::fs::create_dir_all(at("state")).unwrap();
        set_mode(Path::new(&at("state")), 0o700);
        world.give_away_if(users()[0] != As::Root);
        let ended = world.exec(&options, "echo ran");
        assert!(ended.code == 1 || ended.code == 4, "{options:?} {ended:?}");
        assert_eq!(ended.stdout, "", "{options:?} {ended:?}");
        assert_eq!(world.library_state(), None, "{options:?}");
    }
    // The command could change its own summary.
    let (lib, told) = (world.library(), at("lib/told.json"));
    let ended = world.exec(&["--add-dir", &lib, "--summary", &told], "echo ran");
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{ended:?}");
    let nine: Vec<_> = std::iter::repeat_n(["--add-dir", &lib], 9).flatten().collect();
    assert_eq!(world.exec(&nine, "echo ran").code, 2);
    assert_eq!(world.exec(&["--add-dir", ""], "echo ran").code, 2);
}

/// Two logs in one directory would be one.
#[test]
fn a_state_directory_serves_one_of_several_workspaces() {
    let world = SandboxWorld::with_library(users()[0]);
    assert_eq!(world.exec(&["--add-dir", &world.library()], "true").code, 0);
    let state = world.library_state().unwrap();
    let before = world.library_records().len();
    let given = world.at(&state);
    let ended = world.exec(&["--state", &given, "--add-dir", &world.library()], "echo ran");
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{ended:?}");
    std::fs::remove_dir_all(&given).unwrap();
    let ended = world.exec(&["--state", &given, "--add-dir", &world.library()], "echo ran");
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{ended:?}");
    // Nothing was begun in it.
    assert!(before > 0 && !Path::new(&given).join("audit").exists());
}

fn wait_for(mut is_there: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_there() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Each follows its own policy, which lies apart from all of them.
#[test]
fn the_policy_of_a_further_workspace_is_taken_up_while_it_is_served() {
    let world = SandboxWorld::with_library(users()[0]);
    let lib = world.at("lib");
    let script = format!(
        "echo >ready; until ! cat {lib}/lib.txt; do sleep 0.1; done >/dev/null 2>&1; \
         cat file.txt; echo >closed; until test -e over; do sleep 0.1; done"
    );
    let policy = world.at("policies/policy.toml");
    let args = ["exec", "--add-dir", &world.library(), "--policy", &policy, "--", "sh", "-c"];
    let child = world.limited(&[&args[..], &[&script]].concat()).spawn().unwrap();
    wait_for(|| world.base().join("ws/ready").exists());
    let closed = "[[rules]]\nid = \"closed\"\neffect = \"deny\"\npaths = [\"lib.txt\"]\n";
    let text = LIBRARY.replace("version = 1", "version = 2") + closed;
    std::fs::write(world.at("policies/fresh"), text).unwrap();
    std::fs::rename(world.at("policies/fresh"), world.at("policies/library.toml")).unwrap();
    wait_for(|| world.base().join("ws/closed").exists());
    // A file that the agent could write in the further workspace is no policy of the first.
    let planted = "schema = 1\nname = \"planted\"\nversion = 9\n";
    std::fs::write(world.at("lib/planted.toml"), planted).unwrap();
    let extends = "name = \"mounted\"\nextends = [\"../lib/planted.toml\"]";
    let text = POLICY.replace("version = 1", "version = 2").replace("name = \"mounted\"", extends);
    std::fs::write(world.at("policies/fresh"), text).unwrap();
    std::fs::rename(world.at("policies/fresh"), &policy).unwrap();
    let policies = |records: Vec<Value>| {
        let kept = records.into_iter().filter(|record| record["kind"] == "policy");
        kept.collect::<Vec<_>>()
    };
    wait_for(|| !policies(world.records()).is_empty());
    std::fs::write(world.at("ws/over"), "").unwrap();
    let ended = end(child);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "secret\n"), "{ended:?}");
    // Both messages had no workspace.
    for (workspace, told) in [("lib", "is in force"), ("ws", "is not accepted")] {
        let root = format!("`{}`", world.base().canonicalize().unwrap().join(workspace).display());
        let is_told = |line: &str| line.contains(told) && line.contains(&root);
        assert!(ended.stderr.lines().any(is_told), "{workspace} {ended:?}");
    }
    let taken = policies(world.library_records());
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert_eq!(taken[0]["facts"]["version"], 2, "{taken:?}");
    let refused = policies(world.records());
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_ne!(refused[0]["result"], "ok", "{refused:?}");
}
