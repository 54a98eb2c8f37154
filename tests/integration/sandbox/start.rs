//! Reasons for which the start of an agent is refused, with their messages and
//! records.

use std::io::{BufRead as _, BufReader, Write as _};

use serde_json::json;

use super::*;

mod partial;

#[test]
fn unconfined_is_warned_about() {
    let world = SandboxWorld::new(users()[0]);
    let ended = world.run(&["--unconfined"], &["/bin/cat", "file.txt"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("warning: the agent is not confined"), "{ended:?}");
}

/// It was reported of the agent, too.
#[test]
fn a_process_that_keeps_the_powers_of_root_is_not_said_to_have_given_them_up() {
    if !is_root() {
        return;
    }
    let world = SandboxWorld::new(As::Root);
    let ended = world.run(&["--unconfined"], &["/bin/true"]);
    let note = "the gateway gave up its powers; the agent keeps them";
    assert!(ended.stderr.contains(note), "{ended:?}");
    assert!(
        world.run(&[], &["/bin/true"]).stderr.contains("agent and gateway gave up their powers")
    );
}

/// Actions of the editor for the agent were reported as confined.
#[test]
fn a_forwarded_method_by_which_the_editor_acts_counts_as_no_confinement() {
    let facts = SandboxWorld::facts;
    for method in ["terminal/create", "terminal-auth", "nes/suggest", "mcp/connect", "_editor/run"]
    {
        let world = SandboxWorld::new(users()[0]);
        let ended = world.run(&["--forward", method], &["/bin/true"]);
        let warning = format!("warning: with `--forward {method}` the editor acts for the agent");
        assert!(ended.code == 0 && ended.stderr.contains(&warning), "{ended:?}");
        let facts = facts(&world);
        assert_eq!(facts["enforcement"], "none", "{facts}");
        assert_eq!(facts["forward"], serde_json::json!([method]));
        assert!(facts["mcp"].as_str().unwrap().starts_with("not offered: "), "{facts}");
        assert_eq!(facts["terminal"] == true, method.starts_with("terminal"), "{facts}");
    }
    // A question to the user does nothing.
    let world = SandboxWorld::new(users()[0]);
    let ended = world.run(&["--forward", "elicitation/create"], &["/bin/true"]);
    assert!(ended.code == 0 && !ended.stderr.contains("warning"), "{ended:?}");
    let facts = facts(&world);
    assert_eq!((&facts["enforcement"], &facts["mcp"]), (&"full".into(), &"offered".into()));
    assert_eq!(facts["forward"], serde_json::json!(["elicitation/create"]));
}

#[test]
fn a_workspace_has_in_the_sandbox_the_name_under_which_it_was_given() {
    for who in users() {
        let world = SandboxWorld::new(who);
        std::fs::create_dir(world.base().join("ws/p")).unwrap();
        std::os::unix::fs::symlink("ws", world.base().join("alias")).unwrap();
        std::os::unix::fs::symlink(world.at("alias"), world.base().join("again")).unwrap();
        std::os::unix::fs::symlink("..", world.base().join("ws/p/up")).unwrap();
        if who == As::User {
            world.give_away();
        }
        for (name, real) in [("alias/p", "ws/p"), ("again", "ws"), ("ws/p/up/p", "ws/p")] {
            let alias = world.at(name);
            let script = "cd \"$0\" && pwd -P >&2 && ls -A >&2 && ! touch x";
            let agent = ["/bin/sh", "-c", script, &alias];
            // A state directory for each workspace.
            let state = world.at(&format!("state-{}", real.replace('/', "-")));
            let ended =
                world.run(&["--no-mount", "--workspace", &alias, "--state", &state], &agent);
            // A link in the workspace is not shown: nothing in it is.
            let is_shown = name != "ws/p/up/p";
            assert_eq!(ended.code == 0, is_shown, "{ended:?}");
            let here = format!("agent: {}\n", world.at(real));
            assert_eq!(ended.stderr.contains(&here), is_shown, "{ended:?}");
            assert!(!ended.stderr.contains("agent: p\n"), "{ended:?}");
        }
    }
}

#[test]
fn overlapping_places_are_refused_before_anything_starts() {
    let world = SandboxWorld::new(users()[0]);
    let inside = world.at("ws/.state");
    let ended = world.run(&["--state", &inside], &["/bin/true"]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("workspace") && ended.stderr.contains("overlap"), "{ended:?}");
    for given in [world.at("ws"), world.at("."), "/".to_owned(), world.at("state")] {
        for option in ["--agent-read", "--agent-write"] {
            let ended = world.run(&[option, &given], &["/bin/true"]);
            assert_eq!(ended.code, 1, "{option} {given}");
            assert!(ended.stderr.contains("overlap"), "{option} {given}: {ended:?}");
        }
    }
}

#[test]
fn a_grant_beneath_what_the_agent_may_change_is_refused() {
    let world = SandboxWorld::new(users()[0]);
    for name in ["cache/x/tools", "private"] {
        std::fs::create_dir_all(world.base().join(name)).unwrap();
        std::fs::write(world.base().join(name).join("f"), format!("of {name}\n")).unwrap();
    }
    let (cache, tools) = (world.at("cache"), world.at("cache/x/tools"));
    let options = ["--agent-write", &cache, "--agent-read", &tools];
    let ended = world.run(&options, &["/bin/cat", &format!("{tools}/f")]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains(&format!("`{tools}`")), "{ended:?}");
    // Changes that it would have made to that directory.
    std::fs::rename(world.base().join("cache/x"), world.base().join("cache/y")).unwrap();
    std::fs::create_dir(world.base().join("cache/x")).unwrap();
    std::os::unix::fs::symlink(world.at("private"), &tools).unwrap();
    let ended = world.run(&options, &["/bin/cat", &format!("{tools}/f")]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(!ended.stdout.contains("of private"), "{ended:?}");
}

#[test]
fn a_bind_mount_of_the_workspace_is_seen_through() {
    let world = SandboxWorld::new(users()[0]);
    std::fs::create_dir(world.base().join("other")).unwrap();
    let inner = world.command(&["run", "--agent-read", &world.at("other"), "--", "/bin/true"]);
    let script = "mount --bind \"$0/ws\" \"$0/other\" && exec \"$@\"";
    let ended =
        wrapped("unshare", &["--mount", "--map-root-user", "sh", "-c", script], &world, &inner);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("overlap"), "{ended:?}");
}

#[test]
fn an_agent_that_may_not_read_its_own_installation_is_explained() {
    let world = SandboxWorld::new(users()[0]);
    let venv = world.base().join("venv");
    std::fs::create_dir_all(venv.join("bin")).unwrap();
    std::fs::write(venv.join("pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    std::os::unix::fs::symlink("/usr/bin/python3", venv.join("bin/python")).unwrap();
    let agent = venv.join("bin/agent");
    std::fs::write(&agent, format!("#!{}/bin/python\nprint('hello')\n", venv.display())).unwrap();
    set_mode(&agent, 0o755);
    std::os::unix::fs::symlink("venv/bin/agent", world.base().join("agent")).unwrap();
    for name in [agent.to_str().unwrap(), &world.at("agent")] {
        let ended = world.run(&[], &[name]);
        assert_eq!(ended.code, 126, "{ended:?}");
        let advice = format!("`--agent-read {}`", venv.display());
        assert!(ended.stderr.contains(&advice), "{ended:?}");
        let ended = world.run(&["--agent-read", venv.to_str().unwrap()], &[name]);
        assert_eq!(ended.code, 0, "{ended:?}");
    }
}

/// The suggestion would have given it the workspace, and was refused.
#[test]
fn what_is_suggested_for_an_agent_beside_the_workspace_is_taken() {
    let world = SandboxWorld::new(users()[0]);
    let (agent, workspace) = (world.at("work/agent"), world.at("work/repo"));
    std::fs::create_dir_all(&workspace).unwrap();
    std::fs::write(&agent, "#!/bin/sh\nexit 7\n").unwrap();
    set_mode(Path::new(&agent), 0o755);
    let there = ["--workspace", &workspace];
    let given = [&there[..], &["--agent-read", &agent]].concat();
    // Its program, and what its command line names.
    for command in [&[&agent[..]][..], &["/bin/sh", &agent]] {
        let ended = world.run(&there, command);
        assert!(ended.stderr.contains(&format!("`--agent-read {agent}`")), "{ended:?}");
        assert_eq!(world.run(&given, command).code, 7);
    }
}

#[test]
fn an_agent_that_dies_at_once_is_explained_by_its_command_line() {
    let world = SandboxWorld::new(users()[0]);
    std::fs::create_dir(world.base().join("app")).unwrap();
    std::fs::write(world.base().join("app/main.py"), "print('hello')\n").unwrap();
    let script = world.at("app/main.py");
    let ended = world.run(&[], &["/usr/bin/python3", &script]);
    assert_ne!(ended.code, 0);
    assert!(ended.stderr.contains("ended at once"), "{ended:?}");
    assert!(ended.stderr.contains(&format!("`--agent-read {script}`")), "{ended:?}");
}

/// The advice was to let the agent read the directory of such an option, whatever was missing.
#[test]
fn an_agent_without_a_library_gets_no_advice_about_its_home() {
    let world = SandboxWorld::new(users()[0]);
    let (home, library) = (world.at("own-home"), world.at("lib/libown.so"));
    for directory in ["own-home", "lib"] {
        std::fs::create_dir(world.base().join(directory)).unwrap();
    }
    std::fs::write(&library, "").unwrap();
    let ends = |option: &str, path: &str| {
        let ended = world.run(&[], &["/bin/sh", "-c", "exit 127", option, path]);
        assert!(ended.code == 127 && ended.stderr.contains("`--agent-read DIR`"), "{ended:?}");
        ended.stderr
    };
    let told = ends("--home", &home);
    assert!(!told.contains(&home), "{told}");
    // What was not found may be a file that the command line names.
    let told = ends("--preload", &library);
    assert!(told.contains(&format!("`--agent-read {library}`")), "{told}");
}

#[test]
fn a_program_in_the_workspace_or_nowhere_is_refused() {
    let world = SandboxWorld::new(users()[0]);
    let program = world.base().join("ws/agent");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    set_mode(&program, 0o755);
    let ended = world.run(&["--no-mount"], &[program.to_str().unwrap()]);
    assert!(ended.code == 126 && ended.stderr.contains("lies in the workspace"), "{ended:?}");
    let ended = world.run(&[], &["no-such-agent"]);
    assert!(ended.code == 127 && ended.stderr.contains("`no-such-agent`"), "{ended:?}");
}

#[test]
fn the_start_record_says_what_is_enforced() {
    let facts = SandboxWorld::facts;
    for who in users() {
        let world = SandboxWorld::new(who);
        assert_eq!(world.run(&[], &["/bin/true"]).code, 0);
        let facts = facts(&world);
        assert_eq!(facts["enforcement"], "full");
        assert!(facts["landlockAbi"].as_u64().unwrap() >= 3, "{facts}");
        let tested = facts["selfTest"].as_str().unwrap();
        let (passed, all) = tested.split_once('/').unwrap();
        assert!(passed == all && all.parse::<u32>().unwrap() > 30, "{tested}");
        let kinds: Vec<_> =
            world.records().iter().map(|r| r["kind"].as_str().unwrap().to_owned()).collect();
        let expected: &[&str] = match facts["mount"] == true {
            // The self-test of the sandbox, and the contents of scratch
            // directories.
            true => &["start", "decision", "decision", "stop"],
            false => &["start", "stop"],
        };
        assert_eq!(kinds, expected);
    }
    let world = SandboxWorld::new(users()[0]);
    world.run(&["--unconfined"], &["/bin/true"]);
    assert_eq!(facts(&world)["enforcement"], "none");
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    world.run(&["--allow-partial"], &["/bin/true"]);
    assert_eq!(facts(&world)["enforcement"], "partial");
}

#[test]
fn an_agent_whose_start_cannot_be_recorded_is_never_executed() {
    let world = SandboxWorld::new(users()[0]);
    assert_eq!(world.run(&[], &["/bin/sh", "-c", "touch $HOME/first"]).code, 0);
    // The log's only file is not a log any more.
    let segment = std::fs::read_dir(world.base().join("state/audit"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .unwrap();
    std::fs::write(segment, "nonsense\n").unwrap();
    let ended = world.run(&[], &["/bin/sh", "-c", "touch $HOME/second"]);
    assert_ne!(ended.code, 0, "{ended:?}");
    let homes = walk(&world.base().join("home"));
    assert!(homes.iter().any(|p| p.ends_with("first")), "{homes:?}");
    assert!(!homes.iter().any(|p| p.ends_with("second")), "{homes:?}");
}

#[test]
fn a_sandbox_that_fails_its_own_test_is_not_used() {
    let world = SandboxWorld::new(users()[0]);
    assert_eq!(world.run(&[], &["/bin/sh", "-c", "touch $HOME/first"]).code, 0);
    // A home that cannot be written to is not what the agent was promised.
    let inner = world.command(&["run", "--", "/bin/sh", "-c", "echo executed >&2"]);
    let script = "homes=\"$0/home/.local/share/portcullis/homes\"; \
        mount --bind \"$homes\" \"$homes\" && mount -o remount,bind,ro \"$homes\" && exec \"$@\"";
    let own: &[&str] = if is_root() { &[] } else { &["--map-root-user"] };
    let ended =
        wrapped("unshare", &[&["--mount"], own, &["sh", "-c", script]].concat(), &world, &inner);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("the self-test of its sandbox failed"), "{ended:?}");
    assert!(ended.stderr.contains("write to the home directory"), "{ended:?}");
    assert!(!ended.stderr.contains("executed"), "{ended:?}");
}

#[test]
fn a_policy_named_through_the_workspace_is_refused() {
    let world = SandboxWorld::new(users()[0]);
    let policy = world.base().join("ws/policy.toml");
    std::os::unix::fs::symlink(world.at("policies/policy.toml"), &policy).unwrap();
    let ended = world.run(&["--policy", policy.to_str().unwrap()], &["/bin/true"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains(&format!("`{}`", policy.display())), "{ended:?}");
}

/// The operator granted it, the agent's own tools find it, and yet the session was
/// refused.
#[test]
fn a_further_directory_of_a_session_that_was_granted_is_served() {
    for who in users() {
        let world = SandboxWorld::new(who);
        for name in ["lib/inner", "other"] {
            std::fs::create_dir_all(world.base().join(name)).unwrap();
        }
        std::fs::write(world.base().join("lib/inner/found"), "").unwrap();
        let opened = |directory: &str| {
            // It opens the session only if it finds the file.
            let reply = json!({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s"}});
            let script = format!("read l; [ -e $0/found ] && echo '{reply}'; cat >/dev/null");
            let lib = world.at("lib");
            let options = ["--no-mcp", "--agent-read", &lib];
            let mut child = world.start(&options, &["/bin/sh", "-c", &script, directory]);
            let mut editor = child.stdin.take().unwrap();
            let open = json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {
                "cwd": world.at("ws"), "mcpServers": [], "additionalDirectories": [directory]}});
            writeln!(editor, "{open}").unwrap();
            let mut reply = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut reply).unwrap();
            drop(editor);
            assert_eq!(end(child).code, 0);
            serde_json::from_str::<Value>(&reply).unwrap()
        };
        assert_eq!(opened(&world.at("lib/inner"))["result"]["sessionId"], "s");
        for refused in [world.at("other"), world.at("lib/../other"), world.at("lib-other")] {
            assert_eq!(opened(&refused)["error"]["code"], -32602, "{refused}");
        }
    }
}

/// The agent's only message was "Permission denied".
#[test]
fn a_grant_that_the_agents_user_could_not_use_was_not_told_of() {
    let denied = |world: &SandboxWorld, options: &[&str]| {
        let ended = world.run(options, &["/bin/true"]);
        assert_eq!(ended.code, 0, "{ended:?}");
        let facts = world.facts();
        (facts["deniedAgentPaths"].clone(), facts["agentUid"].clone(), ended.stderr)
    };
    for who in users() {
        let world = SandboxWorld::new(who);
        // A blank made the printed command change another directory.
        for (name, mode) in [("my own", 0o755), ("private", 0o700)] {
            std::fs::create_dir(world.base().join(name)).unwrap();
            set_mode(&world.base().join(name), mode);
        }
        if who == As::User {
            world.give_away();
        }
        let (mine, private) = (world.at("my own"), world.at("private"));
        let options = ["--agent-write", &mine, "--agent-read", &private];
        let (facts, agent, stderr) = denied(&world, &options);
        if who == As::User {
            assert_eq!(facts, Value::Null, "{stderr}");
            continue;
        }
        assert_eq!(facts, serde_json::json!([private, mine]), "{stderr}");
        let agent = agent.to_string();
        assert!(stderr.contains("user 0") && stderr.contains(&agent), "{stderr}");
        // Root was advised to start it as root.
        assert!(!stderr.contains("as user 0"), "{stderr}");
        // An agent that failed at that was reported to miss a file of its own.
        let script = "touch \"$0/new\" || exit 1";
        let ended = world.run(&options, &["/bin/sh", "-c", script, &mine]);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(!ended.stderr.contains("--agent-read"), "{ended:?}");

        // The advice helps, and so does a mode that lets every user in.
        set_mode(Path::new(&private), 0o755);
        let (facts, _, stderr) = denied(&world, &options);
        assert_eq!(facts, serde_json::json!([mine]));
        let advice = stderr.split('`').find(|text| text.starts_with("chown ")).unwrap();
        let helped = Command::new("sh").args(["-c", advice]).status().unwrap();
        assert!(helped.success());
        assert_eq!(denied(&world, &options).0, Value::Null);
    }
}

/// The gateway took the entry for the policy, and no agent could be started
/// there.
#[test]
fn an_entry_with_the_name_of_an_embedded_policy_stops_no_start() {
    let world = SandboxWorld::new(users()[0]);
    let entry = world.base().join("default");
    for is_file in [false, true] {
        if is_file {
            std::fs::remove_dir(&entry).unwrap();
            std::fs::write(&entry, "schema = 1\n").unwrap();
        } else {
            std::fs::create_dir(&entry).unwrap();
        }
        for options in [&[][..], &["--policy", "default"]] {
            let command = [&["run"], options, &["--", "/bin/sh", "-c", "exit 7"]].concat();
            let ended = end(world.command(&command).current_dir(world.base()).spawn().unwrap());
            assert_eq!(ended.code, 7, "{ended:?}");
        }
    }
}

/// The next start opened any file that the agent had named in its own file, and
/// advised the operator to grant it.
#[test]
fn what_a_file_of_the_agent_names_is_not_opened_and_not_suggested() {
    let world = SandboxWorld::new(users()[0]);
    let (mine, private) = (world.at("mine"), world.at("private"));
    for directory in [&mine, &private] {
        std::fs::create_dir(directory).unwrap();
    }
    let options = ["--agent-write", &mine];
    let agent = world.at("mine/agent");
    let write = |interpreter: &str| {
        std::fs::write(&agent, format!("#!{interpreter}\nexit 7\n")).unwrap();
        set_mode(Path::new(&agent), 0o755);
    };
    let tool = world.at("private/tool");
    std::fs::write(&tool, "#!/bin/sh\n").unwrap();
    set_mode(Path::new(&tool), 0o755);
    let pipe = world.at("private/pipe");
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let end_of = pipe.clone();
    // It waits for a process that opens the other end.
    let writer = std::thread::spawn(move || std::fs::File::options().write(true).open(end_of));
    for interpreter in [&tool, &pipe] {
        write(interpreter);
        let ended = world.run(&options, &[&agent]);
        assert_eq!(ended.code, 126, "{ended:?}");
        // Nothing is looked up in what the agent cannot see.
        assert!(ended.stderr.contains(&format!("`{private}`")), "{ended:?}");
        assert!(!ended.stderr.contains("--agent-read"), "{ended:?}");
    }
    assert!(!writer.is_finished());
    drop(std::fs::File::open(&pipe).unwrap());
    writer.join().unwrap().unwrap();
    write("/bin/sh");
    assert_eq!(world.run(&options, &[&agent]).code, 7);
}

/// Its later starts failed.
#[test]
fn an_agent_that_closes_its_home_does_not_stop_its_next_start() {
    let mut cases: Vec<(_, &[&str])> = users().into_iter().map(|who| (who, &[][..])).collect();
    cases.push((As::UserWithoutNamespaces, &["--allow-partial"]));
    for (who, options) in cases {
        let world = SandboxWorld::new(who);
        for script in [
            "chmod 000 $HOME",
            "rm -rf $HOME/tmp; ln -s / $HOME/tmp",
            "rm -rf $HOME/tmp; echo > $HOME/tmp",
        ] {
            // Not every agent may change modes.
            world.run(options, &["/bin/sh", "-c", script]);
            let ended = world.run(options, &["/bin/sh", "-c", "exit 7"]);
            assert_eq!(ended.code, 7, "{who:?} {script}: {ended:?}");
        }
    }
}
