//! Scratch directories: outside the workspace, not recorded, and named at the
//! start.

use std::io::{BufRead as _, BufReader};

use super::*;

const SCRATCH: &str = "\n[scratch]\npaths = [\"target\", \"hidden\"]\n";

impl SandboxWorld {
    pub(super) fn with_scratch(who: As, more: &str) -> Self {
        let world = Self::mounted(who);
        std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{SCRATCH}{more}"))
            .unwrap();
        world
    }
}

#[test]
fn what_is_done_in_scratch_is_outside_and_not_recorded() {
    for who in users() {
        let world = SandboxWorld::with_scratch(who, "");
        let script = "mkdir -p dir/target/a; echo x >dir/target/a/f; ln -s /etc/passwd dir/target/l; \
            mv dir/target/a/f dir/target/g; cp dir/target/g out.txt; echo no >fixed.txt; ls dir hidden";
        let ended = world.exec(&[], script);
        assert_eq!(ended.stdout, "dir:\ninner.txt\ntarget\n", "{who:?} {ended:?}");
        assert!(ended.stderr.contains("fixed.txt"), "{who:?} {ended:?}");
        let notes = ended.stderr.matches("scratch directories (target, hidden)").count();
        assert_eq!(notes, 1, "{ended:?}");
        assert!(!world.base().join("ws/dir/target").exists());
        assert_eq!(std::fs::read_to_string(world.at("ws/out.txt")).unwrap(), "x\n");
        assert_eq!(std::fs::read_to_string(world.at("ws/fixed.txt")).unwrap(), "fixed\n");
        let records = world.records();
        let facts = &records[0]["facts"]["scratch"];
        assert_eq!(facts["paths"], serde_json::json!([["target", "hidden"]]), "{facts}");
        assert!(facts["directory"].as_str().unwrap().contains("/portcullis/scratch/"), "{facts}");
        let touched = |r: &&Value| said(r, "path").contains("target");
        assert_eq!(records.iter().find(touched), None);
        let end: Vec<_> = records.iter().filter(|r| said(r, "op") == "scratch").collect();
        assert_eq!(end.len(), 1, "{records:?}");
        assert_eq!(end[0]["facts"]["entries"], 4, "{end:?}");
        // It is there again, for the same agent alone.
        let _ = std::fs::remove_file(world.base().join("fuse"));
        let again = world.exec(&[], "cat dir/target/g; rm -r dir/target; ls dir");
        assert_eq!(again.stdout, "x\ninner.txt\n", "{who:?} {again:?}");
        // Nothing said what the programs of a session began with.
        let records = world.records();
        let sandboxes = records.iter().filter(|record| said(record, "op") == "sandbox");
        let begun: Vec<_> = sandboxes.map(|record| record["facts"]["scratch"].clone()).collect();
        let left = serde_json::json!({ "entries": 4, "bytes": end[0]["facts"]["bytes"] });
        assert_eq!(begun, [serde_json::json!({ "entries": 0, "bytes": 0 }), left]);
    }
}

/// The empty directory was removed before the policy was asked.
#[test]
fn a_denied_rename_removed_the_scratch_directory_of_that_name() {
    let rule = "\n[[rules]]\nid = \"stays\"\neffect = \"deny\"\noperations = [\"remove\"]\npaths = [\"dir/**\"]\n";
    let world = SandboxWorld::with_scratch(users()[0], rule);
    let script =
        "mkdir target; mv -T dir target || ls -d target dir; echo y >target/y; cat target/y";
    let ended = world.exec(&[], script);
    assert_eq!(ended.stdout, "dir\ntarget\ny\n", "{ended:?}");
}

/// A program that filled the directory meanwhile cost both: that of the workspace was removed, and
/// what it had got in scratch was dropped.
#[test]
fn a_scratch_directory_that_is_filled_meanwhile_is_not_replaced() {
    let world = SandboxWorld::with_scratch(users()[0], "");
    let script = "for n in $(seq 40); do
            mkdir target from$n; echo x >from$n/f
            (mv -T from$n target 2>/dev/null) & (echo y >target/y) 2>/dev/null; wait
            cat target/f 2>/dev/null || cat from$n/f; rm -rf target from$n
        done | uniq -c";
    let ended = world.exec(&[], script);
    assert_eq!(ended.stdout.trim(), "40 x", "{ended:?}");
}

/// It failed with EBADF.
#[test]
fn a_directory_of_the_workspace_could_not_replace_an_empty_scratch_directory() {
    let world = SandboxWorld::with_scratch(users()[0], "");
    let script = "mkdir target full; mkdir full/target; echo x >full/target/f
        mv -T dir target && cat target/inner.txt
        mkdir other && mv -T other full/target || cat full/target/f; ls -d other";
    let ended = world.exec(&[], script);
    assert_eq!(ended.stdout, "inner\nx\nother\n", "{ended:?}");
    assert!(!world.base().join("ws/dir").exists());
}

#[test]
fn another_agent_or_policy_sees_nothing_of_it() {
    let world = SandboxWorld::with_scratch(users()[0], "");
    let script = "mkdir target; echo x >target/f; mkdir target/a; chmod 0 target/a";
    assert_eq!(world.exec(&[], script).code, 0);
    let other = world.exec(&["--agent", "other"], "ls target");
    assert!(other.code != 0 && other.stderr.contains("target"), "{other:?}");
    assert_eq!(world.exec(&[], "cat target/f").stdout, "x\n");
    let text = format!("{POLICY}{SCRATCH}keep = false\n");
    std::fs::write(world.at("policies/policy.toml"), text).unwrap();
    for _ in 0..2 {
        // Also where a program leaves a directory that no other process can
        // open.
        let script = "mkdir target && echo y >target/f && cat target/f && mkdir -p target/a/b && \
            chmod 0 target/a/b && chmod 500 target/a";
        let ended = world.exec(&[], script);
        assert_eq!(ended.stdout, "y\n", "{ended:?}");
    }
}

#[test]
fn a_place_that_an_agent_could_change_is_refused() {
    // Also where this policy has none: a later start may have another.
    let world = SandboxWorld::new(users()[0]);
    let scratch = world.at("home/.local/share/portcullis/scratch");
    std::fs::create_dir_all(&scratch).unwrap();
    world.give_away();
    let ended = world.exec(&["--agent-write", &scratch], "true");
    assert!(ended.code != 0 && ended.stderr.contains("place of scratch directories"), "{ended:?}");
}

#[test]
fn cargo_builds_in_scratch() {
    let world = SandboxWorld::with_scratch(users()[0], "");
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let sysroot = String::from_utf8(sysroot.stdout).unwrap().trim().to_owned();
    for (name, text) in [
        ("ws/Cargo.toml", "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"),
        ("ws/src/main.rs", "fn main() { println!(\"built\"); }\n"),
        ("ws/build.rs", "fn main() { println!(\"cargo:rerun-if-changed=build.rs\"); }\n"),
    ] {
        let path = world.base().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let cargo = |script: &str| {
        let script = format!("export PATH={sysroot}/bin:$PATH\n{script}");
        let ended = world.exec(&["--agent-read", &sysroot], &script);
        assert_eq!(ended.code, 0, "{ended:?}");
        ended
    };
    let built = cargo("cargo build --offline && target/debug/tiny");
    assert_eq!(built.stdout, "built\n", "{built:?}");
    assert!(!world.base().join("ws/target").exists());
    let again = cargo("cargo build --offline -v; ! cat hidden/file; ! echo x >fixed.txt");
    assert!(again.stderr.contains("Fresh tiny"), "{again:?}");
    let cleaned =
        cargo("cargo clean && test ! -e target && cargo build --offline && target/debug/tiny");
    assert_eq!(cleaned.stdout, "built\n", "{cleaned:?}");
    assert!(!world.base().join("ws/target").exists());
    assert_eq!(std::fs::read_to_string(world.at("ws/hidden/file")).unwrap(), "hidden\n");
}

/// The slot of a session with a deep tree. A world with such a tree could not be removed.
struct DeepSlot(String);

impl Drop for DeepSlot {
    fn drop(&mut self) {
        let _ = Command::new("rm").args(["-rf", &self.0]).status();
    }
}

/// Makes a chain of directories in the one scratch directory of a session, which must have made it.
fn deepen(world: &SandboxWorld) -> DeepSlot {
    let found = Command::new("find")
        .args([&world.at("home/.local/share/portcullis/scratch"), "-path", "*/slot-0/0/d"])
        .output()
        .unwrap();
    let content = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    let script = "import os, sys\nos.chdir(sys.argv[1])\n\
        for _ in range(16000): os.mkdir('d', 0o777); os.chdir('d')";
    let made = Command::new("python3").args(["-c", script, &content]).status().unwrap();
    assert!(made.success(), "{content}");
    DeepSlot(content.strip_suffix("/0/d").unwrap().to_owned())
}

/// The gateway counted it before it answered, in a time that grew with the square of the depth, and
/// each later start failed after a minute.
#[test]
fn a_deep_tree_that_a_killed_session_left_kept_the_next_from_starting() {
    let world = SandboxWorld::with_scratch(users()[0], "");
    assert_eq!(world.exec(&[], "mkdir target").code, 0);
    let slot = deepen(&world);
    std::fs::remove_file(format!("{}/usage", slot.0)).unwrap();
    let ended = world.exec(&[], "ls target");
    assert_eq!((ended.code, &*ended.stdout), (0, "d\n"), "{ended:?}");
    let records = world.records();
    let counted = records.iter().rfind(|record| said(record, "op") == "scratch").unwrap();
    assert_eq!(counted["facts"]["entries"], 16_001, "{counted}");
}

/// The gateway was stopped while it removed it, and `exec` said that it had failed.
#[test]
fn a_deep_tree_that_is_not_kept_made_the_gateway_fail() {
    let world = SandboxWorld::with_scratch(users()[0], "keep = false\n");
    let script = "mkdir target; echo; while [ ! -e go.txt ]; do sleep 0.1; done; exit 7";
    let policy = world.at("policies/policy.toml");
    let args = ["exec", "--quiet", "--policy", &policy, "--", "sh", "-c", script];
    let mut child = world.limited(&args).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let slot = deepen(&world);
    std::fs::write(world.at("ws/go.txt"), "").unwrap();
    let ended = end(child);
    assert_eq!(ended.code, 7, "{ended:?}");
    assert!(!ended.stderr.contains("failed"), "{ended:?}");
    assert!(!Path::new(&format!("{}/0", slot.0)).exists());
    let records = world.records();
    assert!(records.iter().any(|record| said(record, "op") == "scratch"), "{records:?}");
}
