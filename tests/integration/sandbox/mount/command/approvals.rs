//! Approvals of what a command of `portcullis exec` does.

use super::*;

#[test]
fn a_command_that_tries_again_passes_once_a_person_has_approved() {
    let rule = "\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\"]\npaths = [\"asked.txt\"]\n";
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let policy = world.at("policies/policy.toml");
        std::fs::write(&policy, format!("{POLICY}{rule}")).unwrap();
        let script =
            "echo approved >~/new; until cp ~/new asked.txt; do sleep 0.1; done 2>/dev/null";
        let command = ["exec", "--policy", &policy, "--", "sh", "-c", script];
        let child = world.limited(&command).spawn().unwrap();
        let workspace = world.at("ws");
        let approve = |args: &[&str]| {
            let args = [&["approve", "--json", "--workspace", &workspace], args].concat();
            end(world.command(&args).spawn().unwrap())
        };
        let id = loop {
            let list: Value = serde_json::from_str(&approve(&["--list"]).stdout).unwrap();
            if let Some(id) = list["waiting"][0]["id"].as_str() {
                break id.to_owned();
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(!world.base().join("ws/asked.txt").exists());
        assert_eq!(approve(&["--yes", &id]).code, 0, "{who:?}");
        let ended = end(child);
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        assert_eq!(std::fs::read_to_string(world.at("ws/asked.txt")).unwrap(), "approved\n");
        // It was reported at once, and at the end.
        for told in
            [format!("`portcullis approve {id} --state"), format!(": rule careful, question {id}")]
        {
            assert!(ended.stderr.contains(&told), "{who:?} {told} {ended:?}");
        }
        let records = world.records();
        let approval = records.iter().find(|record| said(record, "kind") == "approval").unwrap();
        assert_eq!((said(approval, "transport"), said(approval, "result")), ("mount", "once"));
    }
}

/// It was made without its mode, and then a person was asked about a removal that no program wanted.
#[test]
fn a_directory_about_which_a_person_is_asked_is_made_with_its_mode() {
    let rule = "\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"mkdir\", \"setattr\", \"remove\"]\npaths = [\"asked\"]\n";
    let world = SandboxWorld::mounted(users()[0]);
    let policy = world.at("policies/policy.toml");
    std::fs::write(&policy, format!("{POLICY}{rule}")).unwrap();
    let script = "until mkdir -m 700 asked; do sleep 0.1; done 2>/dev/null; stat -c %a asked";
    let command = ["exec", "--quiet", "--policy", &policy, "--", "sh", "-c", script];
    let child = world.limited(&command).spawn().unwrap();
    let workspace = world.at("ws");
    let approve = |args: &[&str]| {
        let args = [&["approve", "--json", "--workspace", &workspace], args].concat();
        end(world.command(&args).spawn().unwrap()).stdout
    };
    let asked = loop {
        let list: Value = serde_json::from_str(&approve(&[])).unwrap();
        match list["waiting"].get(0) {
            Some(asked) => break asked.clone(),
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    assert_eq!(
        (said(&asked, "operation"), &asked["attributes"]["mode"]),
        ("mkdir", &"0700".into())
    );
    assert!(said(&asked, "change").contains("mode 0700"), "{asked}");
    approve(&["--yes", said(&asked, "id")]);
    let ended = end(child);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "700\n"), "{ended:?}");
    let mut records = world.records();
    records.retain(|record| said(record, "path") == "asked");
    assert!(records.iter().all(|record| said(record, "op") == "mkdir"), "{records:?}");
    let intents = records.iter().filter(|record| said(record, "kind") == "intent").count();
    assert_eq!(intents, 1, "{records:?}");
}

/// It reported success for a file that was removed again.
#[test]
fn touch_fails_where_a_person_is_asked() {
    let rule = "\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\"]\npaths = [\"asked.txt\"]\n";
    let world = SandboxWorld::mounted(users()[0]);
    std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{rule}")).unwrap();
    // The kernel forgets the name in the background.
    let script = "touch asked.txt; echo $?; n=0; \
                  while test -e asked.txt && [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done; \
                  test -e asked.txt; echo $?";
    let ended = world.exec(&["--quiet"], script);
    assert_eq!(ended.stdout, "1\n1\n", "{ended:?}");
    let records = world.records();
    let asks = records.iter().filter(|record| said(record, "decision") == "ask").count();
    assert_eq!(asks, 1, "{records:?}");
}

/// The question about a program did not mention that the file would be executable.
#[test]
fn a_question_shows_the_mode_of_what_it_would_make() {
    let rule = "\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\", \"setattr\"]\npaths = [\"tool\", \"file.txt\"]\n";
    let world = SandboxWorld::mounted(users()[0]);
    let policy = world.at("policies/policy.toml");
    std::fs::write(&policy, format!("{POLICY}{rule}")).unwrap();
    // The content of an empty file is known after fsync(2), and only some time after close(2).
    let making =
        "import os; os.fsync(os.open('tool', os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o755))";
    for (script, path, shown) in [
        (format!("python3 -c \"{making}\""), "tool", "new file, mode 0755 (executable)\n"),
        ("chmod 755 file.txt".to_owned(), "file.txt", "sets of `file.txt`: mode 0755 (executable)"),
    ] {
        let script = format!("until {script}; do sleep 0.1; done 2>/dev/null");
        let command = ["exec", "--quiet", "--policy", &policy, "--", "sh", "-c", &script];
        let child = world.limited(&command).spawn().unwrap();
        let workspace = world.at("ws");
        let approve = |args: &[&str]| {
            let args = [&["approve", "--workspace", &workspace], args].concat();
            end(world.command(&args).spawn().unwrap()).stdout
        };
        let begun = std::time::Instant::now();
        let asked = loop {
            let list: Value = serde_json::from_str(&approve(&["--json"])).unwrap();
            match list["waiting"].get(0) {
                Some(asked) => break asked.clone(),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody was asked about {path}");
        };
        assert_eq!((said(&asked, "path"), said(&asked, "change")), (path, shown), "{asked}");
        assert_eq!(asked["attributes"]["mode"], "0755", "{asked}");
        let listed = approve(&["--list"]);
        assert!(listed.contains("mode 0755 (executable)"), "{listed}");
        approve(&["--yes", said(&asked, "id")]);
        assert_eq!(end(child).code, 0, "{path}");
        let mode = std::fs::metadata(world.base().join("ws").join(path)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o755, "{path}");
    }
}
