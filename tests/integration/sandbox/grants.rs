//! Directories and variables that the operator gives an agent, and its home.

use super::*;

#[test]
fn only_named_variables_reach_the_agent() {
    let world = SandboxWorld::new(users()[0]);
    let ended = world.run(
        &["--agent-env", "GIVEN=value", "--agent-env", "NOT_SET"],
        &["/bin/sh", "-c", "env >&2"],
    );
    let mut names: Vec<_> = ended
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("agent: ")?.split('=').next())
        .filter(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["GIVEN", "HOME", "PATH", "TMPDIR", "USER"], "{ended:?}");
    let named = world.run(&["--agent-env", "SECRET_TOKEN"], &["/bin/sh", "-c", "env >&2"]);
    assert!(named.stderr.contains("SECRET_TOKEN=hunter2"));
}

#[test]
fn home_persists_and_tmp_does_not() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let script = "cat $HOME/mark /tmp/mark >&2; echo kept | tee $HOME/mark >/tmp/mark";
        let first = world.run(&[], &["/bin/sh", "-c", script]);
        assert!(!first.stderr.contains("kept"), "{first:?}");
        let second = world.run(&[], &["/bin/sh", "-c", script]);
        assert_eq!(second.stderr.matches("agent: kept").count(), 1, "{second:?}");
        let other = world.run(&["--agent", "other"], &["/bin/sh", "-c", script]);
        assert!(!other.stderr.contains("kept"), "homes of two agents: {other:?}");
    }
}

#[test]
fn given_directories_are_given_as_said() {
    for who in users() {
        let world = SandboxWorld::new(who);
        for name in ["tools", "data"] {
            std::fs::create_dir(world.base().join(name)).unwrap();
            std::fs::write(world.base().join(name).join("f"), "content\n").unwrap();
            set_mode(&world.base().join(name), 0o777);
        }
        std::os::unix::fs::symlink("tools", world.base().join("link")).unwrap();
        let (read, write) = (world.at("link"), world.at("data"));
        let ended = world.run(
            &["--agent-read", &read, "--agent-write", &write],
            &["/bin/sh", "-c", r#"cat "$0/f" >&2; echo x >"$1/new" && echo wrote >&2; echo x >"$0/new" || echo refused >&2"#, &read, &write],
        );
        assert!(ended.stderr.contains("agent: content"), "{who:?} {ended:?}");
        assert!(ended.stderr.contains("agent: wrote"), "{who:?} {ended:?}");
        assert!(ended.stderr.contains("agent: refused"), "{who:?} {ended:?}");
        assert!(!world.base().join("tools/new").exists());
    }
}

#[test]
fn no_program_that_runs_as_its_owner_is_left_in_a_given_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    let modes = |world: &SandboxWorld| {
        let found = walk(&world.base().join("data"));
        found.iter().any(|p| p.symlink_metadata().unwrap().permissions().mode() & 0o6000 != 0)
    };
    for who in users() {
        let world = SandboxWorld::new(who);
        std::fs::create_dir(world.base().join("data")).unwrap();
        set_mode(&world.base().join("data"), 0o777);
        let data = world.at("data");
        let mut attempts = world.hostile(&["--agent-write", &data], &["owners", &data]);
        assert_eq!(attempts.remove("a plain mode").unwrap(), "ok", "{who:?}");
        assert_eq!(attempts.remove("mkdir").unwrap(), "ok", "{who:?}");
        assert_eq!(attempts.remove("openat2").unwrap(), "ENOSYS", "{who:?}");
        assert!(attempts.values().all(|got| got == "EPERM"), "{who:?} {attempts:?}");
        assert!(!modes(&world), "{who:?}");
    }
    let world = SandboxWorld::new(users()[0]);
    std::fs::create_dir(world.base().join("data")).unwrap();
    let attempts = world.hostile(&["--unconfined"], &["owners", &world.at("data")]);
    assert!(attempts.values().all(|got| got == "ok"), "{attempts:?}");
    assert!(modes(&world));
}

/// The advice was to give the agent all files of the directory, which helped nothing.
#[test]
fn a_directory_that_the_agent_may_not_pass_was_blamed_on_the_owner_of_the_given_one() {
    if !is_root() {
        return;
    }
    let world = SandboxWorld::new(As::Root);
    std::fs::create_dir_all(world.base().join("above/given")).unwrap();
    set_mode(&world.base().join("above"), 0o700);
    let given = world.at("above/given");
    let inner =
        world.command(&["run", "--allow-partial", "--agent-read", &given, "--", "/bin/true"]);
    // Without unshare(2).
    let without = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/without.py");
    let script = format!("exec python3 {without} 272 \"$@\"");
    let ended = wrapped("sh", &["-c", &script], &world, &inner);
    let above = world.at("above");
    assert!(ended.stderr.contains(&format!("may not pass the directory `{above}`")), "{ended:?}");
    assert!(!ended.stderr.contains("chown"), "{ended:?}");
}
