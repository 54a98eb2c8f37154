//! Agents under partial enforcement.

use super::*;

#[test]
fn where_namespaces_are_forbidden_weaker_confinement_must_be_asked_for() {
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    let refused = world.run(&[], &["/bin/true"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("user.max_user_namespaces"), "{refused:?}");
    assert!(refused.stderr.contains("--allow-partial"), "{refused:?}");

    let allowed = world.run(&["--allow-partial"], &["/bin/sh", "-c", "exit 5"]);
    assert_eq!(allowed.code, 5, "{allowed:?}");
    assert!(allowed.stderr.contains("only partly confined"), "{allowed:?}");
}

#[test]
fn partial_confinement_still_keeps_the_agent_from_content() {
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    let attempts = world.hostile_files(&["--allow-partial"]);
    for name in [
        "read",
        "write",
        "create",
        "create in the current directory",
        "list",
        "chmod",
        "chown",
        "utime",
        "truncate",
        "unlink",
        "rename",
        "link",
        "symlink",
        "mkdir",
        "mkfifo",
        "setxattr",
        "getxattr",
        "listxattr",
        "inotify",
        "list the state",
        "write to the state",
        "read the policy",
        "write the policy",
        "connect to a socket",
        "connect to an abstract socket",
        "read through /proc/self/root",
        "read through a link",
    ] {
        assert_ne!(attempts[name], "ok", "{name}");
        assert_ne!(attempts[name], "empty", "{name}");
    }
    // Partial confinement cannot hide that, and reports it.
    assert_eq!(attempts["stat"], "ok");
    world.untouched();

    let (one, other) = (listener(), listener());
    let port = |l: &TcpListener| l.local_addr().unwrap().port().to_string();
    let options = ["--allow-partial", "--agent-network", &port(&one)];
    let attempts = world.hostile(&options, &["network", &port(&one), &port(&other)]);
    assert_eq!(attempts["the allowed port"], "ok");
    let mut rest = attempts;
    rest.remove("the allowed port");
    none_worked(&rest);
    none_worked(&world.hostile(&["--allow-partial"], &["network", &port(&one), &port(&other)]));
}

/// A descriptor for reading was enough to set them, and to keep others from writing.
#[test]
fn an_agent_changed_flags_of_what_it_may_only_read() {
    let mut cases: Vec<(As, &[&str])> = users().into_iter().map(|who| (who, &[][..])).collect();
    cases.push((As::UserWithoutNamespaces, &["--allow-partial"]));
    for (who, options) in cases {
        let world = SandboxWorld::new(who);
        std::fs::create_dir(world.base().join("given")).unwrap();
        std::fs::write(world.base().join("given/f"), "f").unwrap();
        world.give_away_if_root();
        let (given, file) = (world.at("given"), world.at("given/f"));
        let options = [options, &["--agent-read", &given]].concat();
        let attempts = world.hostile(&options, &["flags", &file]);
        assert_eq!(attempts.len(), 3, "{attempts:?}");
        none_worked(&attempts);
        if who != As::Root {
            let attempts = world.hostile(&["--unconfined"], &["flags", &file]);
            assert_eq!(attempts["lease"], "ok", "{attempts:?}");
        }
    }
}

#[test]
fn partial_confinement_keeps_the_agent_from_the_users_other_processes() {
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    let attempts = world.hostile(&["--allow-partial"], &["strangers"]);
    for (name, got) in &attempts {
        let meant = if name.starts_with("own ") { "ok" } else { "EPERM" };
        assert_eq!(got, meant, "{name}");
    }
    let attempts = world.hostile(&["--unconfined"], &["strangers"]);
    assert!(attempts.values().all(|got| got == "ok"), "{attempts:?}");
}

/// Programs made with Bun ended with SIGABRT.
#[test]
fn partial_confinement_left_programs_without_proc_self() {
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    let attempts = beside_a_stranger(&world, "--allow-partial");
    for (name, got) in &attempts {
        assert_eq!(got == "ok", name.starts_with("own "), "{name}: {got}");
    }
    let attempts = beside_a_stranger(&world, "--unconfined");
    for name in ["environ", "maps", "map_files"] {
        assert_eq!(attempts[name], "ok", "{name}");
    }
}

/// The hostile agent looks at another process of its user, which runs in the same
/// user namespace and outside the sandbox.
fn beside_a_stranger(world: &SandboxWorld, option: &str) -> BTreeMap<String, String> {
    let scripts = tools().join("agent");
    let script = scripts.join("hostile.py");
    let [scripts, script] = [&scripts, &script].map(|path| path.to_str().unwrap());
    let given = [option, "--agent-env", "STRANGER", "--agent-read", scripts];
    let agent = ["--", "/usr/bin/python3", script, "proc"];
    let inner = world.command(&[&["run"], &given[..], &agent].concat());
    let mut words: Vec<_> = std::iter::once(inner.get_program()).chain(inner.get_args()).collect();
    let start = "sleep 120 </dev/null >/dev/null 2>&1 & export STRANGER=$!; exec \"$@\"";
    let binary = tools().join("portcullis");
    let at = words.iter().position(|word| *word == binary.as_os_str()).unwrap();
    words.splice(at..at, ["/bin/sh", "-c", start, "sh"].map(AsRef::as_ref));
    let ended = end(Command::new(words[0])
        .args(&words[1..])
        .env_clear()
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.attempts()
}

#[test]
fn full_confinement_is_not_weakened_by_allowing_partial() {
    let world = SandboxWorld::new(users()[0]);
    let ended = world.run(&["--allow-partial"], &["/bin/true"]);
    assert_eq!(ended.code, 0);
    assert!(!ended.stderr.contains("warning"), "{ended:?}");
}
