//! Messages, for people and programs, about commands that fail.

use serde_json::{Value, json};

use crate::common::{Done, World, done};

/// Returns stdout of a command that failed, for programs.
#[track_caller]
fn failed(done: &Done, code: i32, kind: &str) -> Value {
    assert_eq!((done.code, done.stderr.as_str()), (code, ""), "{done:?}");
    let object = done.json();
    assert_eq!((&object["ok"], &object["error"]["kind"]), (&json!(false), &json!(kind)));
    assert!(object["error"]["message"].is_string(), "{object}");
    object
}

#[test]
fn failures_before_the_gateway_are_json_where_json_was_asked_for() {
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
    let done = world.run(&["audit", "query", "--transport", "frob"]);
    assert!(done.code == 2 && done.stderr.contains("files"), "{done:?}");
    world.run(&["audit", "query", "--op", "terminal/create"]).ok();
}

/// The first began and failed, the others were taken for what they were not.
#[test]
fn a_run_that_makes_no_sense_is_not_begun() {
    let world = World::new();
    for (option, wrong, why) in [
        ("--forward", "fs/read_text_file", "the gateway itself serves `fs/*`"),
        ("--forward", "", "a method has a name"),
        ("--agent-env", "", "a variable has a name"),
        ("--agent-env", "=x", "a variable has a name"),
    ] {
        let done = world.run(&["run", option, wrong, "--", "/bin/true"]);
        assert!(done.code == 2 && done.stderr.contains(why), "{option} {wrong:?} {done:?}");
    }
    assert!(!world.state().exists());
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

/// The variable that `demo` advises to set disabled every `--dir`.
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

/// Only the command after `--` was asked for, and a directory that is not empty had no help.
#[test]
fn errors_name_the_option_that_is_left_out() {
    let world = World::new();
    let run = world.run(&["run"]);
    assert!(run.code == 2 && run.stderr.contains("--preset"), "{run:?}");
    world.file("dir/a", "a");
    let removed = world.fs(&["rm", "dir"]);
    assert!(removed.code == 1 && removed.stderr.contains("`-r`"), "{removed:?}");
    world.fs(&["delete", "-r", "dir"]).ok();
}

#[test]
fn help_keeps_a_command_s_own_options_together_and_examples_whole() {
    let world = World::new();
    let help = world.fs(&["grep", "--help"]).ok();
    let (own, gateway) = help.text().split_once("\nGateway options:\n").unwrap();
    assert!(own.contains("--no-ignore") && !own.contains("--workspace"), "{own}");
    assert!(gateway.contains("--workspace") && !gateway.contains("--no-ignore"), "{gateway}");
    // These stood among the options of every command.
    for (command, option) in [
        (&["approve"][..], "--reject"),
        (&["audit", "query"], "--stats"),
        (&["audit", "export"], "--format"),
    ] {
        let help = world.run(&[command, &["--help"]].concat()).ok();
        let heading = ["\nGateway options:\n", "\nFilters:\n"];
        let parts = heading.iter().find_map(|heading| help.text().split_once(heading));
        let (own, others) = parts.unwrap();
        let is_listed = |text: &str| text.contains(&format!("\n      {option} <"));
        assert!(is_listed(own) && !is_listed(others), "{command:?} {}", help.text());
    }
    let run = world.run(&["run", "--help"]).ok();
    assert!(run.text().contains("\n  portcullis run --preset fast-agent --policy mine.toml\n"));
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

/// The configuration's workspaces were served, under their own policies,
/// without a message.
#[test]
fn serve_refuses_options_that_the_configuration_leaves_without_effect() {
    let world = World::new();
    let token = world.run(&["token", "new", "--agent", "a", "--workspace", "w", "--json"]).json();
    let config = world.base().join("portcullis.toml");
    // Without its root it cannot be served, so that nothing is.
    let text = format!(
        "[[workspaces]]\nname = \"w\"\nroot = \"none\"\npolicy = \"default\"\n\
         [[agents]]\nname = \"a\"\ntokenHash = {}\nworkspaces = [\"w\"]\n",
        token["tokenHash"]
    );
    std::fs::write(&config, text).unwrap();
    let serve = |more: &[&str]| {
        let args = [&["serve", "--config", config.to_str().unwrap()], more].concat();
        let mut command = world.command(&args);
        command.env_remove("PORTCULLIS_WORKSPACE").env_remove("PORTCULLIS_STATE");
        command
    };
    for (option, value) in [
        ("--workspace", "."),
        ("--policy", "strict"),
        ("--state", "state"),
        ("--agent", "other"),
        ("--name", "other"),
        ("--tools", "reference"),
        ("--ask", "shell"),
    ] {
        let refused = done(serve(&[option, value]).output().unwrap());
        assert_eq!(refused.code, 2, "{refused:?}");
        let said = format!("the configuration names workspaces: `{option}` would have no effect");
        assert!(refused.stderr.contains(&said), "{refused:?}");
    }
    // In the environment they may be there for other commands.
    let warned = done(serve(&[]).env("PORTCULLIS_POLICY", "strict").output().unwrap());
    assert_eq!(warned.code, 1, "{warned:?}");
    assert!(warned.stderr.contains("`PORTCULLIS_POLICY` has no effect"), "{warned:?}");
    let silent = done(serve(&[]).output().unwrap());
    assert!(silent.code == 1 && !silent.stderr.contains("no effect"), "{silent:?}");
}

/// A path that `fs` accepts matched no record, as if nothing had happened.
#[test]
fn an_absolute_path_in_the_workspace_is_one_for_every_command() {
    let world = World::new();
    world.write("src/a.rs", "1").ok();
    assert_eq!(world.fs(&["read", "/etc/passwd"]).code, 3);
    let root = world.root().canonicalize().unwrap();
    let at = |rest: &str| root.join(rest).to_str().unwrap().to_owned();
    for command in [&["query", "--json"][..], &["show", "--json"], &["export", "--format", "csv"]] {
        let found = |path: &str| {
            let done = world.run(&[&["audit"], command, &["--path", path]].concat()).ok();
            done.text().lines().count()
        };
        let relative = found("src/a.rs");
        assert!(relative > 0);
        for path in [at("src/a.rs"), at("src/"), at("src/*.rs"), root.to_str().unwrap().to_owned()]
        {
            assert!(found(&path) >= relative, "{command:?} {path}");
        }
        let none = found(&at("src/b.rs"));
        assert!(none < relative && none < found("/etc/passwd"), "{command:?}");
    }
    assert_eq!(world.run(&["audit", "query", "--path", "/etc/*"]).code, 2);
    let explain = |path: &str| world.run(&["policy", "explain", "write", path]);
    assert_eq!(explain(&at("src/a.rs")).ok().text(), explain("src/a.rs").ok().text());
    assert_eq!(explain("/etc/passwd").code, 2);
}

/// They reached the terminal as they were.
#[test]
fn names_of_files_steer_no_terminal() {
    let world = World::new();
    world.write("a.txt", "1").ok();
    std::fs::write(world.base().join("f\u{1b}[31m.toml"), "schema = 1\n").unwrap();
    for args in [
        &["policy", "check", "f\u{1b}[31m.toml"][..],
        &["policy", "test", "f\u{1b}[31m.toml"],
        &["policy", "check", "./none\u{1b}[31m.toml"],
        &["fs", "ls", "--policy", "./none\u{1b}[31m"],
        &["policy", "keygen", "-o", "key\u{1b}[31m"],
        &["audit", "export", "--format", "csv", "-o", "out\u{1b}[31m.csv"],
        &["audit", "report", "-o", "out\u{1b}[31m.html"],
        &["audit", "bundle", "-o", "out\u{1b}[31m.zip"],
    ] {
        let done = world.run(args);
        let said = format!("{}{}", done.text(), done.stderr);
        assert!(said.contains("\\u{1b}[31m") && !said.contains('\u{1b}'), "{args:?}: {said:?}");
    }
}

/// The larger one was cut to the bound, whose advice was then wrong, and zero
/// found nothing.
#[test]
fn a_search_has_the_results_that_it_was_asked_for_or_is_refused() {
    let world = World::new();
    world.file("a.txt", "x\n".repeat(10_001));
    for args in [
        ["grep", "x", "--max-results", "10001"],
        ["grep", "x", "--max-results", "0"],
        ["glob", "*", "--max-results", "100001"],
        ["glob", "*", "--max-results", "0"],
    ] {
        assert_eq!(world.fs(&args).code, 2, "{args:?}");
    }
    let more = world.fs(&["grep", "x", "--max-results", "10"]).ok();
    assert!(more.stderr.contains("raise --max-results"), "{}", more.stderr);
    let most = world.fs(&["grep", "x", "--max-results", "10000"]).ok();
    assert_eq!(most.text().lines().count(), 10_000);
    assert!(most.stderr.contains("there is more; narrow the search\n"), "{}", most.stderr);
}

/// No configuration took them, and a program was not told the workspaces of the
/// token.
#[test]
fn a_token_is_for_workspaces_that_there_can_be() {
    let world = World::new();
    let new = |more: &[&str]| world.run(&[&["token", "new", "--agent", "a"], more].concat());
    for name in ["", "shop shop", "a/b", "**"] {
        assert_eq!(new(&["--workspace", name]).code, 2, "{name}");
    }
    let all = new(&["--workspace", "shop", "--workspace", "*", "--metrics", "--json"]).ok();
    assert_eq!(all.stderr, "");
    let all = all.json();
    assert_eq!((&all["workspaces"], &all["metrics"]), (&json!(["shop", "*"]), &json!(true)));
    for more in [&[][..], &["--json"]] {
        let nothing = new(more).ok();
        assert!(nothing.stderr.contains("warning: neither --workspace nor"), "{nothing:?}");
    }
}

#[test]
fn a_misspelt_log_level_is_refused_by_commands() {
    let world = World::new();
    let done = world.run(&["mcp", "--log", "inof"]);
    assert!(done.code == 2 && done.stderr.contains("`inof` is no level"), "{done:?}");
}

/// It had an idea of its own of where colours go.
#[test]
fn a_policy_s_warnings_have_colours_where_others_have_them() {
    let world = World::new();
    std::fs::write(world.base().join("p.toml"), "schema = 1\n").unwrap();
    let lint = |name: &str, value: &str| {
        let mut command = world.command(&["policy", "lint", "p.toml"]);
        done(command.env(name, value).output().unwrap()).ok().text().contains('\u{1b}')
    };
    assert!(lint("CLICOLOR_FORCE", "1"));
    assert!(!lint("TERM", "xterm"));
}
