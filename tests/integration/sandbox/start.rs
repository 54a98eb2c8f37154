//! What an agent is refused to be started with, and how that is explained and
//! recorded.

use super::*;

#[test]
fn where_namespaces_are_forbidden_weaker_confinement_must_be_asked_for() {
    let place = Place::new(As::UserWithoutNamespaces);
    let refused = place.run(&[], &["/bin/true"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("user.max_user_namespaces"), "{refused:?}");
    assert!(refused.stderr.contains("--allow-partial"), "{refused:?}");

    let allowed = place.run(&["--allow-partial"], &["/bin/sh", "-c", "exit 5"]);
    assert_eq!(allowed.code, 5, "{allowed:?}");
    assert!(allowed.stderr.contains("only partly confined"), "{allowed:?}");
}

#[test]
fn partial_confinement_still_keeps_the_agent_from_content() {
    let place = Place::new(As::UserWithoutNamespaces);
    let attempts = place.hostile_files(&["--allow-partial"]);
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
    // What partial confinement cannot hide, and says so.
    assert_eq!(attempts["stat"], "ok");
    place.untouched();

    let (one, other) = (listener(), listener());
    let port = |l: &TcpListener| l.local_addr().unwrap().port().to_string();
    let options = ["--allow-partial", "--agent-network", &port(&one)];
    let attempts = place.hostile(&options, &["network", &port(&one), &port(&other)]);
    assert_eq!(attempts["the allowed port"], "ok");
    let mut rest = attempts;
    rest.remove("the allowed port");
    none_worked(&rest);
    none_worked(&place.hostile(&["--allow-partial"], &["network", &port(&one), &port(&other)]));
}

#[test]
fn partial_confinement_keeps_the_agent_from_the_users_other_processes() {
    let place = Place::new(As::UserWithoutNamespaces);
    let attempts = place.hostile(&["--allow-partial"], &["strangers"]);
    for (name, got) in &attempts {
        let meant = if name.starts_with("own ") { "ok" } else { "EPERM" };
        assert_eq!(got, meant, "{name}");
    }
    let attempts = place.hostile(&["--unconfined"], &["strangers"]);
    assert!(attempts.values().all(|got| got == "ok"), "{attempts:?}");
}

#[test]
fn full_confinement_is_not_weakened_by_allowing_partial() {
    let place = Place::new(users()[0]);
    let ended = place.run(&["--allow-partial"], &["/bin/true"]);
    assert_eq!(ended.code, 0);
    assert!(!ended.stderr.contains("warning"), "{ended:?}");
}

#[test]
fn unconfined_is_warned_about() {
    let place = Place::new(users()[0]);
    let ended = place.run(&["--unconfined"], &["/bin/cat", "file.txt"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("warning: the agent is not confined"), "{ended:?}");
}

/// It was said of the agent, too.
#[test]
fn whoever_keeps_the_powers_of_root_is_not_said_to_have_given_them_up() {
    if !is_root() {
        return;
    }
    let place = Place::new(As::Root);
    let ended = place.run(&["--unconfined"], &["/bin/true"]);
    let note = "the gate gave up its powers; the agent keeps them";
    assert!(ended.stderr.contains(note), "{ended:?}");
    assert!(place.run(&[], &["/bin/true"]).stderr.contains("agent and gate gave up its powers"));
}

/// What the editor did for the agent was said to be confined.
#[test]
fn a_forwarded_method_by_which_the_editor_acts_counts_as_no_confinement() {
    let facts = |place: &Place| place.records().remove(0)["facts"].clone();
    for method in ["terminal/create", "terminal-auth", "nes/suggest", "mcp/connect", "_editor/run"]
    {
        let place = Place::new(users()[0]);
        let ended = place.run(&["--forward", method], &["/bin/true"]);
        let warning = format!("warning: with `--forward {method}` the editor acts for the agent");
        assert!(ended.code == 0 && ended.stderr.contains(&warning), "{ended:?}");
        let facts = facts(&place);
        assert_eq!(facts["enforcement"], "none", "{facts}");
        assert_eq!(facts["forward"], serde_json::json!([method]));
        assert!(facts["mcp"].as_str().unwrap().starts_with("not offered: "), "{facts}");
        assert_eq!(facts["terminal"] == true, method.starts_with("terminal"), "{facts}");
    }
    // A question to the user does nothing.
    let place = Place::new(users()[0]);
    let ended = place.run(&["--forward", "elicitation/create"], &["/bin/true"]);
    assert!(ended.code == 0 && !ended.stderr.contains("warning"), "{ended:?}");
    let facts = facts(&place);
    assert_eq!((&facts["enforcement"], &facts["mcp"]), (&"full".into(), &"offered".into()));
    assert_eq!(facts["forward"], serde_json::json!(["elicitation/create"]));
}

#[test]
fn a_workspace_has_in_the_cell_the_name_under_which_it_was_given() {
    for who in users() {
        let place = Place::new(who);
        std::fs::create_dir(place.base().join("ws/p")).unwrap();
        std::os::unix::fs::symlink("ws", place.base().join("alias")).unwrap();
        std::os::unix::fs::symlink(place.at("alias"), place.base().join("again")).unwrap();
        std::os::unix::fs::symlink("..", place.base().join("ws/p/up")).unwrap();
        if who == As::User {
            place.give_away();
        }
        for (name, real) in [("alias/p", "ws/p"), ("again", "ws"), ("ws/p/up/p", "ws/p")] {
            let alias = place.at(name);
            let script = "cd \"$0\" && pwd -P >&2 && ls -A >&2 && ! touch x";
            let agent = ["/bin/sh", "-c", script, &alias];
            let ended = place.run(&["--workspace", &alias], &agent);
            // A link in the workspace is not shown: nothing in it is.
            let is_shown = name != "ws/p/up/p";
            assert_eq!(ended.code == 0, is_shown, "{ended:?}");
            let here = format!("agent: {}\n", place.at(real));
            assert_eq!(ended.stderr.contains(&here), is_shown, "{ended:?}");
            assert!(!ended.stderr.contains("agent: p\n"), "{ended:?}");
        }
    }
}

#[test]
fn overlapping_places_are_refused_before_anything_starts() {
    let place = Place::new(users()[0]);
    let inside = place.at("ws/.state");
    let ended = place.run(&["--state", &inside], &["/bin/true"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("workspace") && ended.stderr.contains("overlap"), "{ended:?}");
    for given in [place.at("ws"), place.at("."), "/".to_owned(), place.at("state")] {
        for option in ["--agent-read", "--agent-write"] {
            let ended = place.run(&[option, &given], &["/bin/true"]);
            assert_eq!(ended.code, 1, "{option} {given}");
            assert!(ended.stderr.contains("overlap"), "{option} {given}: {ended:?}");
        }
    }
}

#[test]
fn a_grant_beneath_what_the_agent_may_change_is_refused() {
    let place = Place::new(users()[0]);
    for name in ["cache/x/tools", "private"] {
        std::fs::create_dir_all(place.base().join(name)).unwrap();
        std::fs::write(place.base().join(name).join("f"), format!("of {name}\n")).unwrap();
    }
    let (cache, tools) = (place.at("cache"), place.at("cache/x/tools"));
    let options = ["--agent-write", &cache, "--agent-read", &tools];
    let ended = place.run(&options, &["/bin/cat", &format!("{tools}/f")]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("which the agent may change"), "{ended:?}");
    // What it would have made of that directory.
    std::fs::rename(place.base().join("cache/x"), place.base().join("cache/y")).unwrap();
    std::fs::create_dir(place.base().join("cache/x")).unwrap();
    std::os::unix::fs::symlink(place.at("private"), &tools).unwrap();
    let ended = place.run(&options, &["/bin/cat", &format!("{tools}/f")]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(!ended.stdout.contains("of private"), "{ended:?}");
}

#[test]
fn a_bind_mount_of_the_workspace_is_seen_through() {
    let place = Place::new(users()[0]);
    std::fs::create_dir(place.base().join("other")).unwrap();
    let inner = place.command(&["run", "--agent-read", &place.at("other"), "--", "/bin/true"]);
    let script = "mount --bind \"$0/ws\" \"$0/other\" && exec \"$@\"";
    let ended =
        wrapped("unshare", &["--mount", "--map-root-user", "sh", "-c", script], &place, &inner);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("overlap"), "{ended:?}");
}

#[test]
fn an_agent_that_may_not_read_its_own_installation_is_explained() {
    let place = Place::new(users()[0]);
    let venv = place.base().join("venv");
    std::fs::create_dir_all(venv.join("bin")).unwrap();
    std::fs::write(venv.join("pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    std::os::unix::fs::symlink("/usr/bin/python3", venv.join("bin/python")).unwrap();
    let agent = venv.join("bin/agent");
    std::fs::write(&agent, format!("#!{}/bin/python\nprint('hello')\n", venv.display())).unwrap();
    set_mode(&agent, 0o755);
    std::os::unix::fs::symlink("venv/bin/agent", place.base().join("agent")).unwrap();
    for name in [agent.to_str().unwrap(), &place.at("agent")] {
        let ended = place.run(&[], &[name]);
        assert_eq!(ended.code, 1, "{ended:?}");
        let advice = format!("`--agent-read {}`", venv.display());
        assert!(ended.stderr.contains(&advice), "{ended:?}");
        let ended = place.run(&["--agent-read", venv.to_str().unwrap()], &[name]);
        assert_eq!(ended.code, 0, "{ended:?}");
    }
}

/// What was suggested would have given it the workspace, and was refused.
#[test]
fn what_is_suggested_for_an_agent_beside_the_workspace_is_taken() {
    let place = Place::new(users()[0]);
    let (agent, workspace) = (place.at("work/agent"), place.at("work/repo"));
    std::fs::create_dir_all(&workspace).unwrap();
    std::fs::write(&agent, "#!/bin/sh\nexit 7\n").unwrap();
    set_mode(Path::new(&agent), 0o755);
    let there = ["--workspace", &workspace];
    let given = [&there[..], &["--agent-read", &agent]].concat();
    // Its program, and what its command line names.
    for command in [&[&agent[..]][..], &["/bin/sh", &agent]] {
        let ended = place.run(&there, command);
        assert!(ended.stderr.contains(&format!("`--agent-read {agent}`")), "{ended:?}");
        assert_eq!(place.run(&given, command).code, 7);
    }
}

#[test]
fn an_agent_that_dies_at_once_is_explained_by_its_command_line() {
    let place = Place::new(users()[0]);
    std::fs::create_dir(place.base().join("app")).unwrap();
    std::fs::write(place.base().join("app/main.py"), "print('hello')\n").unwrap();
    let script = place.at("app/main.py");
    let ended = place.run(&[], &["/usr/bin/python3", &script]);
    assert_ne!(ended.code, 0);
    assert!(ended.stderr.contains("ended at once"), "{ended:?}");
    assert!(ended.stderr.contains(&format!("`--agent-read {}`", place.at("app"))), "{ended:?}");
}

#[test]
fn a_program_in_the_workspace_or_nowhere_is_refused() {
    let place = Place::new(users()[0]);
    let program = place.base().join("ws/agent");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    set_mode(&program, 0o755);
    let ended = place.run(&[], &[program.to_str().unwrap()]);
    assert!(ended.code == 1 && ended.stderr.contains("lies in the workspace"), "{ended:?}");
    let ended = place.run(&[], &["no-such-agent"]);
    assert!(ended.code == 1 && ended.stderr.contains("`no-such-agent`"), "{ended:?}");
}

#[test]
fn the_start_record_says_what_is_enforced() {
    let facts = |place: &Place| place.records().remove(0)["facts"].clone();
    for who in users() {
        let place = Place::new(who);
        assert_eq!(place.run(&[], &["/bin/true"]).code, 0);
        let facts = facts(&place);
        assert_eq!(facts["enforcement"], "full");
        assert!(facts["landlockAbi"].as_u64().unwrap() >= 3, "{facts}");
        let tested = facts["selfTest"].as_str().unwrap();
        let (passed, all) = tested.split_once('/').unwrap();
        assert!(passed == all && all.parse::<u32>().unwrap() > 30, "{tested}");
        let kinds: Vec<_> =
            place.records().iter().map(|r| r["kind"].as_str().unwrap().to_owned()).collect();
        assert_eq!(kinds, ["start", "stop"]);
    }
    let place = Place::new(users()[0]);
    place.run(&["--unconfined"], &["/bin/true"]);
    assert_eq!(facts(&place)["enforcement"], "none");
    let place = Place::new(As::UserWithoutNamespaces);
    place.run(&["--allow-partial"], &["/bin/true"]);
    assert_eq!(facts(&place)["enforcement"], "partial");
}

#[test]
fn an_agent_whose_start_cannot_be_recorded_is_never_executed() {
    let place = Place::new(users()[0]);
    assert_eq!(place.run(&[], &["/bin/sh", "-c", "touch $HOME/first"]).code, 0);
    // The log's only file is not a log any more.
    let segment = std::fs::read_dir(place.base().join("state/audit"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .unwrap();
    std::fs::write(segment, "nonsense\n").unwrap();
    let ended = place.run(&[], &["/bin/sh", "-c", "touch $HOME/second"]);
    assert_ne!(ended.code, 0, "{ended:?}");
    let homes = walk(&place.base().join("home"));
    assert!(homes.iter().any(|p| p.ends_with("first")), "{homes:?}");
    assert!(!homes.iter().any(|p| p.ends_with("second")), "{homes:?}");
}

#[test]
fn a_cell_that_fails_its_own_test_is_not_used() {
    let place = Place::new(users()[0]);
    assert_eq!(place.run(&[], &["/bin/sh", "-c", "touch $HOME/first"]).code, 0);
    // A home that cannot be written to is not what the agent was promised.
    let inner = place.command(&["run", "--", "/bin/sh", "-c", "echo executed >&2"]);
    let script = "mount --bind \"$0/home\" \"$0/home\" && \
        mount -o remount,bind,ro \"$0/home\" && exec \"$@\"";
    let own: &[&str] = if is_root() { &[] } else { &["--map-root-user"] };
    let ended =
        wrapped("unshare", &[&["--mount"], own, &["sh", "-c", script]].concat(), &place, &inner);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("the self-test inside its cell was surprised"), "{ended:?}");
    assert!(ended.stderr.contains("write to the home directory"), "{ended:?}");
    assert!(!ended.stderr.contains("executed"), "{ended:?}");
}

#[test]
fn a_policy_named_through_the_workspace_is_refused() {
    let place = Place::new(users()[0]);
    let policy = place.base().join("ws/policy.toml");
    std::os::unix::fs::symlink(place.at("policies/policy.toml"), &policy).unwrap();
    let ended = place.run(&["--policy", policy.to_str().unwrap()], &["/bin/true"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("overlap"), "{ended:?}");
}
