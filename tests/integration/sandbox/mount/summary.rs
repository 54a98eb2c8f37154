//! The summary of `portcullis exec`.

use super::*;

#[test]
fn a_summary_for_programs_is_one_object() {
    let world = SandboxWorld::mounted(users()[0]);
    std::fs::create_dir(world.at("out")).unwrap();
    world.give_away_if(users()[0] != As::Root);
    let file = world.at("out/summary.json");
    let ended =
        world.exec(&["--summary", &file], "cat file.txt; echo x >made; rm -f fixed.txt; exit 3");
    assert_eq!((ended.code, ended.stdout.as_str()), (3, "secret\n"), "{ended:?}");
    assert!(!ended.stderr.contains("denial"), "{ended:?}");
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    // The same may stand where the text would.
    let printed = world.exec(&["--json"], "echo out; exit 3");
    let last: Value = serde_json::from_str(printed.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&last["exitCode"], printed.stdout.as_str()), (&3.into(), "out\n"));
    assert_eq!(
        last.as_object().unwrap().keys().collect::<Vec<_>>(),
        summary.as_object().unwrap().keys().collect::<Vec<_>>()
    );
    assert_eq!((&summary["exitCode"], &summary["timedOut"]), (&3.into(), &false.into()));
    assert_eq!((&summary["reads"], &summary["complete"]), (&1.into(), &true.into()));
    let read = (&summary["readPaths"], &summary["moreReadPaths"]);
    assert_eq!(read, (&serde_json::json!(["file.txt"]), &0.into()));
    assert_eq!(summary["changes"][0]["path"], "made");
    assert_eq!(summary["changes"][0]["result"], "ok");
    assert_eq!(summary["denials"][0]["rule"], "fixed");
    assert!(summary["undo"].as_str().unwrap().contains(summary["session"].as_str().unwrap()));
}

/// The answer to a question was told as a failed write, also that it was approved, and a rejection
/// as another denial.
#[test]
fn answers_of_a_person_were_counted_as_refused_writes() {
    let world = SandboxWorld::mounted(users()[0]);
    let rule = "[[rules]]\nid = \"asks\"\neffect = \"ask\"\noperations = [\"write\"]\n\
        paths = [\"asked*\"]\n";
    std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{rule}")).unwrap();
    let policy = world.at("policies/policy.toml");
    let write = "echo x >asked1; echo x >asked2; echo x >asked3";
    let script = format!("{write}; echo asked; read line; {write}");
    let args = ["exec", "--json", "--policy", &policy, "--", "sh", "-c", &script];
    let mut child = world.limited(&args).spawn().unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut String::new()).unwrap();
    let question = |name: &str| {
        let records = world.records();
        let asked = records.iter().rfind(|r| said(r, "path") == name && r["decision"] == "ask");
        asked.unwrap()["facts"]["question"].as_str().unwrap().to_owned()
    };
    for (option, name) in [("--yes", "asked1"), ("--reject", "asked2")] {
        let question = question(name);
        let answer = ["approve", option, &question];
        let ended = end(world.command(&answer).spawn().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
    let ended = end(child);
    let summary: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(summary["failures"], serde_json::json!([]), "{summary}");
    let denials = summary["denials"].as_array().unwrap().iter();
    let denials: Vec<_> = denials.map(|denial| (said(denial, "path"), &denial["times"])).collect();
    let (once, twice) = (Value::from(1), Value::from(2));
    assert_eq!(denials, [("asked1", &once), ("asked2", &twice), ("asked3", &twice)], "{summary}");
    assert_eq!(summary["changes"].as_array().unwrap().len(), 1, "{summary}");
}

/// It was opened by its name: a link that a repository, or the command before, had there led to any
/// file of the operator's, and a pipe blocked `exec` for ever.
#[test]
fn a_summary_is_written_through_no_link() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let precious = world.at("out/precious");
        std::fs::create_dir(world.at("out")).unwrap();
        std::fs::write(&precious, "kept").unwrap();
        std::os::unix::fs::symlink(&precious, world.at("ws/link")).unwrap();
        std::os::unix::fs::symlink(&precious, world.at("link")).unwrap();
        std::os::unix::fs::symlink(world.at("out"), world.at("ws/way")).unwrap();
        for pipe in [world.at("ws/pipe"), world.at("pipe")] {
            assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        }
        world.give_away_if(who != As::Root);
        for name in ["ws/link", "ws/way/new", "ws/way/precious", "ws/pipe", "ws", "link", "pipe"] {
            let ended = world.exec(&["--summary", &world.at(name)], "echo ran");
            assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{who:?} {name} {ended:?}");
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
        assert_eq!(std::fs::read_dir(world.at("out")).unwrap().count(), 1);
    }
}

/// The command wrote into it what `exec` had written, or what another agent did.
#[test]
fn a_summary_among_scratch_directories_or_homes_is_refused() {
    let world = SandboxWorld::mounted(users()[0]);
    let policy = format!("{POLICY}\n[scratch]\npaths = [\"target\"]\n");
    std::fs::write(world.at("policies/policy.toml"), policy).unwrap();
    assert_eq!(world.exec(&[], "mkdir target").code, 0);
    let scratch = world.records()[0]["facts"]["scratch"]["directory"].clone();
    let homes = world.at("home/.local/share/portcullis/homes");
    std::fs::create_dir_all(&homes).unwrap();
    for directory in [scratch.as_str().unwrap(), &homes] {
        let file = format!("{directory}/summary.json");
        let ended = world.exec(&["--summary", &file], "echo ran");
        assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{file} {ended:?}");
        assert!(!std::path::Path::new(&file).exists(), "{file}");
    }
}

/// Each denial was looked for among all others: 20,000 names took half a minute after the
/// command had ended.
#[test]
fn a_summary_of_many_denials_is_bounded_and_soon_there() {
    const NAMES: usize = 6_000;
    let world = SandboxWorld::mounted(users()[0]);
    let rule = "[[rules]]\nid = \"many\"\neffect = \"deny\"\npaths = [\"no-*\"]\n";
    std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{rule}")).unwrap();
    let script = format!(
        "import os\nfor n in range({NAMES}):\n try: os.mkdir(f'no-{{n}}')\n except OSError: pass"
    );
    let command = format!("python3 -c \"{script}\"; date +%s.%N");
    let ended = world.exec(&["--json"], &command);
    let over = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let took = over.as_secs_f64() - ended.stdout.trim().parse::<f64>().unwrap();
    let summary: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(summary["denials"].as_array().unwrap().len(), 1_000, "{summary}");
    // Each name is looked up before.
    assert_eq!(summary["moreDenials"], 2 * NAMES - 1_000, "{summary}");
    assert!(took < 60.0, "{took}");
}

/// A few names filled the terminal.
#[test]
fn a_line_of_a_summary_is_bounded() {
    let world = SandboxWorld::mounted(users()[0]);
    let rule = "[[rules]]\nid = \"long\"\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"d*/**\"]\n";
    std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{rule}")).unwrap();
    let long = ["d"; 10].map(|name| name.repeat(200)).join("/");
    std::fs::create_dir_all(world.at(&format!("ws/{long}"))).unwrap();
    let ended = world.exec(&[], &format!("mkdir {long}/new"));
    let lines = ended.stderr.lines().filter(|line| line.starts_with("  denied "));
    let lines: Vec<_> = lines.map(|line| line.chars().count()).collect();
    assert_eq!(lines.len(), 1, "{ended:?}");
    assert!(lines[0] < 500, "{ended:?}");
}

/// The command chose its mode, or put a directory or a summary of its own in its place.
#[test]
fn a_summary_in_a_place_that_the_command_may_change_is_refused() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        std::fs::create_dir(world.at("granted")).unwrap();
        world.give_away_if(who != As::Root);
        let granted = ["--agent-write", &world.at("granted")].map(str::to_owned);
        for name in ["ws/made.json", "ws/dir/made.json", "granted/made.json"] {
            let file = world.at(name);
            let options = [&granted[0], &granted[1], "--summary", &file];
            let ended = world.exec(&options, "echo ran");
            assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{who:?} {name} {ended:?}");
            assert!(ended.stderr.contains("beside the workspace"), "{name} {ended:?}");
            assert!(!Path::new(&file).exists());
        }
    }
}

#[test]
fn a_summary_of_many_changes_is_bounded() {
    let world = SandboxWorld::mounted(users()[0]);
    let script = "import os\nfor n in range(1010): os.mkdir(f'new-{n}')";
    let ended = world.exec(&["--json"], &format!("python3 -c \"{script}\""));
    let summary: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(summary["changes"].as_array().unwrap().len(), 1_000, "{summary}");
    assert_eq!(summary["moreChanges"], 10, "{summary}");
    assert!(summary["undo"].is_string(), "{summary}");
}

/// It was quoted for bash (`$'…'`): another shell executed the name of a directory.
#[test]
fn the_way_back_is_read_by_any_shell() {
    let name = "b';touch PWNED #\u{1}%s\\\n";
    for shell in ["sh", "bash"] {
        let world = SandboxWorld::mounted(users()[0]);
        let workspace = world.at(name);
        std::fs::create_dir(&workspace).unwrap();
        world.give_away_if(users()[0] != As::Root);
        let state = world.at("other\u{1b}[31m");
        let options = ["--json", "--workspace", &workspace, "--state", &state];
        let ended = world.exec(&options, "mkdir made");
        let made = Path::new(&workspace).join("made");
        assert!(ended.code == 0 && made.is_dir(), "{ended:?}");
        let summary: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
        let undo = format!("{} --yes", summary["undo"].as_str().unwrap());
        let undone = world.printed(shell, &undo);
        assert!(undone.code == 0 && !made.exists(), "{shell} {undo} {undone:?}");
        assert!(!world.base().join("PWNED").exists());
    }
}

/// It ran under the default policy, which denies the change, and undid nothing.
#[test]
fn the_printed_undo_ran_under_another_policy_than_the_session() {
    let world = SandboxWorld::mounted(users()[0]);
    std::fs::create_dir_all(world.at("ws/.github/workflows")).unwrap();
    std::fs::write(world.at("ws/.github/workflows/a.yml"), "good\n").unwrap();
    world.give_away_if(users()[0] != As::Root);
    let config = world.at("policies/it's mine.toml");
    std::fs::write(&config, "").unwrap();
    let script = "echo evil >.github/workflows/a.yml; for n in $(seq 30); do mkdir d$n; done";
    let ended = world.exec(&["--config", &config], script);
    let command = |begin: &str| {
        let line = ended.stderr.lines().find_map(|line| Some(line.split_once(begin)?.1));
        line.unwrap_or_else(|| panic!("{begin} {ended:?}")).trim_end_matches('`').to_owned()
    };
    let (undo, story) = (command("  undo: "), command(" more: `"));
    assert!(undo.contains("--policy") && undo.contains("--config"), "{undo}");
    let told = world.printed("sh", &story);
    assert!(told.code == 0 && told.stdout.contains("a.yml"), "{story} {told:?}");
    let undone = world.printed("sh", &format!("{undo} --yes"));
    assert_eq!(undone.code, 0, "{undo} {undone:?}");
    let content = || std::fs::read_to_string(world.at("ws/.github/workflows/a.yml")).unwrap();
    assert_eq!(content(), "good\n");
    let back = undone.stderr.split_once("to take back: `").unwrap().1.split_once('`').unwrap().0;
    let again = world.printed("sh", &format!("{back} --yes"));
    assert_eq!((again.code, content().as_str()), (0, "evil\n"), "{back} {again:?}");
}

#[test]
fn the_story_of_a_session_names_the_command_and_what_it_did() {
    let world = SandboxWorld::mounted(users()[0]);
    let script =
        "cat file.txt password.txt >/dev/null; echo x >new.txt; rm fixed.txt 2>/dev/null; true";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let records = world.records();
    let command = records.iter().find(|record| said(record, "op") == "sandbox").unwrap();
    let args =
        ["audit", "session", said(command, "session"), "--json", "--workspace", &world.at("ws")];
    let told = end(world.limited(&args).spawn().unwrap());
    let parts = told.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let done: Vec<_> = parts.filter(|part| part["part"] == "activity").collect();
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!(done[0]["actor"]["command"], command["seq"], "{done:?}");
    assert_eq!(done[0]["command"][2], script, "{done:?}");
    let paths = |kind: &str| {
        let listed = done[0][kind]["paths"].as_array().unwrap().iter();
        listed.map(|entry| said(entry, "path").to_owned()).collect::<Vec<_>>()
    };
    assert!(paths("read").contains(&"password.txt".to_owned()), "{done:?}");
    assert_eq!(
        (paths("changed"), paths("denied")),
        (vec!["new.txt".to_owned()], vec!["fixed.txt".to_owned()])
    );
    assert_eq!(done[0]["findings"]["password"], 1, "{done:?}");
}

/// They stood among the changes, and their reasons nowhere.
#[test]
fn an_allowed_change_that_could_not_be_made_was_a_change() {
    let world = SandboxWorld::mounted(users()[0]);
    let file = world.at("ws/file.txt");
    // Nobody without privileges may give a file to this group, so the new one cannot have it.
    let namespace: &[&str] =
        if is_root() { &["env"] } else { &["unshare", "--map-auto", "-U", "-r"] };
    let mut chown = Command::new(namespace[0]);
    chown.args(&namespace[1..]).args(["chgrp", "4242", &file]);
    assert!(chown.status().unwrap().success());
    let other = world.at("ws/other.txt");
    std::fs::write(&other, "").unwrap();
    let mut chown = Command::new(namespace[0]);
    chown.args(&namespace[1..]).args(["chown", "4242", &other]);
    assert!(chown.status().unwrap().success());
    let ended = world.exec(&["--json"], "echo x >file.txt; chmod 600 other.txt; mkdir made");
    let summary: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    let paths = |list: &str| {
        let listed = summary[list].as_array().unwrap().iter();
        listed.map(|entry| said(entry, "path").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (paths("changes"), paths("failures")),
        (vec!["made".to_owned()], vec!["file.txt".to_owned(), "other.txt".to_owned()])
    );
    let failure = &summary["failures"][0];
    assert!(failure["operation"] == "write" && failure["reason"].is_string(), "{summary}");
    let outcome = &world.records()[usize::try_from(failure["record"].as_u64().unwrap()).unwrap()];
    assert_eq!(
        (said(outcome, "result"), &outcome["reason"]),
        ("io", &failure["reason"]),
        "{outcome}"
    );
    let told = world.exec(&[], "echo x >file.txt; chmod 600 other.txt");
    for line in
        ["no changes", "2 failed changes", "failed   write file.txt", "failed   setattr other.txt"]
    {
        assert!(told.stderr.contains(line) && !told.stderr.contains("undo"), "{told:?}");
    }
}

/// Its content was said to be neither on the disk nor in a backup, and its target was nowhere.
#[test]
fn the_story_of_a_session_did_not_say_where_a_link_leads() {
    let world = SandboxWorld::mounted(users()[0]);
    let workspace = world.at("ws");
    let ended = world.exec(&[], "ln -s 'to here' link");
    assert_eq!(ended.code, 0, "{ended:?}");
    for (args, line) in [
        (&["session", "last", "--records"][..], "  symlink   link -> \"to here\"\n"),
        (&["session", "last"][..], "  link [symlink -> \"to here\"]\n"),
        (&["show"][..], "  link -> \"to here\"  rule="),
    ] {
        let args = [&["audit"], args, &["--workspace", &workspace]].concat();
        let told = end(world.limited(&args).spawn().unwrap());
        assert!(told.code == 0 && told.stdout.contains(line), "{told:?}");
        assert!(!told.stdout.contains("no backup"), "{told:?}");
    }
    let args = ["audit", "session", "last", "--records", "--json", "--workspace", &workspace];
    let told = end(world.limited(&args).spawn().unwrap());
    let mut lines = told.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let link = lines.find(|line| line["op"] == "symlink").unwrap();
    assert_eq!((&link["target"], &link["content"]), (&"to here".into(), &Value::Null), "{link}");
}
