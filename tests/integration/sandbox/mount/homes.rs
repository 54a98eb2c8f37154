//! The home directories of commands, and what several sessions of one agent name have in common.

use std::io::{BufRead as _, BufReader};

use super::*;

impl SandboxWorld {
    fn homes(&self) -> Vec<std::path::PathBuf> {
        let homes = self.base().join("home/.local/share/portcullis/homes");
        let workspace = std::fs::read_dir(homes).unwrap().next().unwrap().unwrap().path();
        let mut found: Vec<_> =
            std::fs::read_dir(workspace).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    }

    /// Starts a command that prints a line, and then waits for the end of its input; returns it
    /// with the PID of `exec`.
    fn waiting(&self, options: &[&str], script: &str) -> (Child, u32, String) {
        let _ = std::fs::remove_file(self.base().join("fuse"));
        let (policy, script) =
            (self.at("policies/policy.toml"), format!("{script}; cat >/dev/null"));
        let command = ["--quiet", "--policy", &policy, "--", "sh", "-c", &script];
        let mut child = self.limited(&[&["exec"], options, &command].concat()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let processes = beneath(child.id());
        let exec = processes.iter().rfind(|(_, line)| line.contains("portcullis exec "));
        let exec = exec.unwrap_or_else(|| panic!("{processes:?}")).0;
        (child, exec, line)
    }
}

/// Ends the input that a command waits for.
fn over(mut child: Child) -> AgentOutput {
    child.stdin.take();
    end(child)
}

/// Files that a command left in its home stayed there for ever, once `exec` was killed.
#[test]
fn the_home_of_a_command_that_was_killed_goes_with_the_next_one() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let outside = world.base().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("stays"), "").unwrap();
        let leave = format!(
            "mkdir -p ~/closed/a && ln -s {} ~/link && chmod 0 ~/closed ~; echo left",
            outside.display()
        );
        let (child, exec, line) = world.waiting(&[], &leave);
        assert_eq!(line, "left\n", "{who:?}");
        let (running, _, _) = world.waiting(&[], "echo left");
        // Each with its lock.
        assert_eq!(world.homes().len(), 4, "{who:?} {:?}", world.homes());
        let exec = rustix::process::Pid::from_raw(i32::try_from(exec).unwrap()).unwrap();
        rustix::process::kill_process(exec, rustix::process::Signal::KILL).unwrap();
        over(child);
        assert_eq!(world.homes().len(), 4, "{who:?} {:?}", world.homes());
        let _ = std::fs::remove_file(world.base().join("fuse"));
        let ended = world.exec(&["--quiet", "--agent", "named"], "true");
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        let homes = world.homes();
        // That of the command that runs, with its lock, and that of the agent with a name.
        assert_eq!(homes.len(), 3, "{who:?} {homes:?}");
        assert!(homes.iter().any(|home| home.ends_with("named")), "{who:?} {homes:?}");
        assert!(outside.join("stays").exists(), "{who:?}");
        over(running);
        assert_eq!(world.homes().len(), 1, "{who:?} {:?}", world.homes());
    }
}

/// Files that had been removed already were reported as impossible to remove.
#[test]
fn a_home_that_was_removed_meanwhile_was_told_as_one_that_cannot_be() {
    let world = SandboxWorld::mounted(users()[0]);
    let (child, _, _) = world.waiting(&[], "echo begun");
    for path in world.homes() {
        let is_lock = path.extension().is_some_and(|extension| extension == "lock");
        let removed =
            if is_lock { std::fs::remove_file(path) } else { std::fs::remove_dir_all(path) };
        removed.unwrap();
    }
    let ended = over(child);
    assert_eq!((ended.code, ended.stderr.contains("cannot remove")), (0, false), "{ended:?}");
}

/// All sessions of an agent name were thought to share one place.
#[test]
fn sessions_at_the_same_time_have_scratch_and_a_repository_of_their_own() {
    let world = SandboxWorld::with_scratch(users()[0], "");
    let script = "mkdir -p target .git; for own in target .git; do \
                  test -e $own/mine && seen=\"$seen$own \"; echo x >$own/mine; done; echo \"${seen:-none}\"";
    let (first, _, line) = world.waiting(&["--agent", "same"], script);
    assert_eq!(line, "none\n");
    let (second, _, line) = world.waiting(&["--agent", "same"], script);
    assert_eq!(line, "none\n");
    for child in [first, second] {
        assert_eq!(over(child).code, 0);
    }
    // Sessions one after the other have the same.
    let (third, _, line) = world.waiting(&["--agent", "same"], script);
    assert_eq!(line, "target .git \n");
    assert_eq!(over(third).code, 0);
}

/// Its state directory is none of those that `uninstall` looks at.
#[test]
fn uninstall_removed_home_and_scratch_directories_that_were_in_use() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let scratch = format!("{POLICY}\n[scratch]\npaths = [\"target\"]\n");
        let uninstall = |option: &str| {
            let _ = std::fs::remove_file(world.base().join("fuse"));
            end(world.limited(&["uninstall", option]).spawn().unwrap())
        };
        let data = world.base().join("home/.local/share/portcullis");
        for (policy, named) in [
            (POLICY, &["--agent", "named"][..]),
            (POLICY, &[][..]),
            (&*scratch, &["--agent", "named"]),
        ] {
            std::fs::write(world.at("policies/policy.toml"), policy).unwrap();
            let script = "echo login >~/token && echo begun";
            let (child, _, line) = world.waiting(named, script);
            assert_eq!(line, "begun\n", "{who:?} {named:?}");
            let refused = uninstall("--yes");
            let is_refused = refused.code == 1 && refused.stderr.contains("nothing was removed");
            assert!(
                is_refused && refused.stderr.contains("or scratch directories are in use"),
                "{who:?} {named:?} {refused:?}"
            );
            let dry = uninstall("--dry-run");
            assert!(dry.code == 0 && dry.stderr.contains("in use"), "{who:?} {named:?} {dry:?}");
            let homes = world.homes();
            assert!(homes.iter().any(|home| home.join("token").exists()), "{who:?} {homes:?}");
            over(child);
        }
        let removed = uninstall("--yes");
        assert_eq!(removed.code, 0, "{who:?} {removed:?}");
        assert!(!data.exists(), "{who:?} {removed:?}");
    }
}

/// Regression: homes and scratch directories were found by the path of the workspace alone. Another project
/// at the path of one that had moved got its credentials.
#[test]
fn a_project_at_the_path_of_one_that_moved_had_its_home() {
    let world = SandboxWorld::mounted(users()[0]);
    let policy = world.at("policies/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    std::fs::write(&policy, format!("{text}\n[scratch]\npaths = [\"target\"]\n")).unwrap();
    let run = |options: &[&str], script: &str| {
        let ended = world.exec(&[&["--agent", "a"], options].concat(), script);
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.stdout
    };
    run(&[], "mkdir -p target; echo one >target/left; echo one >~/token");
    let (own, moved, state) = (world.at("ws"), world.at("moved"), world.at("state-of-two"));
    std::fs::rename(&own, &moved).unwrap();
    let leave =
        "cat target/left ~/token 2>/dev/null; mkdir -p target; echo two | tee target/left >~/token";
    assert_eq!(run(&["--workspace", &moved, "--adopt", &own], leave), "");
    std::fs::create_dir(&own).unwrap();
    assert_eq!(run(&["--state", &state], leave), "");
    assert_eq!(run(&["--workspace", &moved], leave), "two\ntwo\n");
    // Nor does another workspace that has the state directory later.
    std::fs::remove_dir_all(&state).unwrap();
    let other = world.at("other");
    std::fs::create_dir(&other).unwrap();
    assert_eq!(run(&["--workspace", &other, "--state", &state], leave), "");
}
