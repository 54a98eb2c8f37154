//! Commands that wait for a person.

use super::*;

/// Terminals were allowed or denied, and no person could be asked about a command.
#[test]
fn a_person_is_asked_about_each_command() {
    let ask = "\n[agent]\nterminal = \"ask\"\n";
    for who in users() {
        let mut run = Run::with(who, ask, &[]);
        assert_eq!(run.order(&json!({"order": "capabilities"}))["terminal"], true);
        let picks = |run: &mut Run, kinds: &[&'static str]| {
            let editor = &mut run.client.as_mut().unwrap().editor;
            assert!(editor.permissions.is_empty(), "{:?}", editor.permissions);
            editor.permissions.extend(kinds);
        };
        let directory = run.world.at("ws/dir");
        let token = "hunter7";
        let with = |line: &str, value: &str| {
            let env = json!([{"name": "MINE", "value": value}]);
            json!({"command": line, "cwd": directory, "env": env})
        };
        let once = with("printf \"$MINE\"; pwd", "mi\nne");
        picks(&mut run, &["allow_once"]);
        assert_eq!(run.command(&once), (format!("mi\nne{directory}\n"), json!({"exitCode": 0})));
        picks(&mut run, &["reject_once"]);
        let refused = run.terminals(&json!([["terminal/create", {"command": "touch made"}]]));
        assert_eq!(refused[0]["error"]["code"], -32001, "{refused:?}");
        // For a session, one command is approved, with its variables and its directory.
        picks(&mut run, &["allow_always", "reject_once", "reject_once"]);
        let line = format!("echo {token}");
        run.command(&with(&line, ""));
        run.command(&with(&line, ""));
        for other in [with(&line, "x"), json!({"command": line, "env": with("", "")["env"]})] {
            let refused = run.terminals(&json!([["terminal/create", other]]));
            assert_eq!(refused[0]["error"]["code"], -32001, "{refused:?}");
        }
        // The editor's user is asked for clients of MCP, too.
        picks(&mut run, &["allow_once", "cancelled"]);
        let exec = json!(["exec", {"command": "printf", "args": ["it's"]}]);
        let results = run.calls(&json!([exec, exec]));
        assert_eq!(results[0]["structuredContent"]["output"], "it's", "{results:?}");
        assert_eq!(results[1]["isError"], true, "{results:?}");

        let asked = run.client.as_ref().unwrap().asked.clone();
        let calls: Vec<_> = asked.iter().map(|one| &one["params"]["toolCall"]).collect();
        assert_eq!(calls.len(), 7, "{asked:#?}");
        assert_eq!(calls[0]["title"], "Portcullis asks: run `printf \"$MINE\"; pwd`");
        assert_eq!((&calls[0]["kind"], &calls[0]["locations"]), (&json!("execute"), &json!([])));
        let text = |number: usize| calls[number]["content"][0]["content"]["text"].as_str().unwrap();
        let shown = format!(
            "directory: {directory}\nvariable: MINE=mi\\nne\ncommand:\nprintf \"$MINE\"; pwd\n"
        );
        assert!(text(0).contains(&shown), "{}", text(0));
        assert!(text(5).contains("directory: that of the agent\ncommand:\nprintf 'it'\\''s'\n"));
        assert!(!asked.iter().any(|one| one.to_string().contains(token)), "{asked:#?}");

        assert!(!run.world.base().join("ws/made").exists());
        let session = run.world.records().last().unwrap()["session"].as_str().unwrap().to_owned();
        let story = ["audit", "session", &session, "--workspace", &run.world.at("ws")];
        let story = end(run.world.command(&story).spawn().unwrap()).stdout;
        for told in ["asked     ", "denied    "] {
            let told = format!("{told}\"/bin/sh -c touch made\" by agent.terminal\n");
            assert!(story.contains(&told), "{story}");
        }
        check_subjects(&run.world);
        let records = run.end();
        assert!(!records.iter().any(|record| record.to_string().contains(token)), "{records:#?}");
        let of = |kind: &str, decision: &str| {
            let is = |record: &&Value| {
                (said(record, "op"), said(record, "kind")) == ("command", kind)
                    && said(record, "decision") == decision
            };
            records.iter().filter(is).collect::<Vec<_>>()
        };
        let (allowed, questions) = (of("decision", "allow"), of("decision", "ask"));
        assert_eq!((allowed.len(), questions.len(), of("decision", "deny").len()), (4, 7, 4));
        let answers = of("approval", "allow");
        assert_eq!(answers.len(), 3, "{records:#?}");
        assert_eq!(answers[0]["facts"]["by"], "the editor's user");
        for (number, answer) in [0, 1, 1, 2].into_iter().enumerate() {
            let (allowed, answer) = (allowed[number], answers[answer]);
            assert_eq!(allowed["facts"]["approval"], answer["seq"]);
            assert_eq!(allowed["facts"]["command"], answer["facts"]["command"]);
        }
    }
}

/// They showed `-` as the subject of commands.
fn check_subjects(world: &SandboxWorld) {
    let workspace = world.at("ws");
    let audit = |args: &[&str]| {
        let args = [&["audit"], args, &["--workspace", &workspace]].concat();
        end(world.command(&args).spawn().unwrap()).stdout
    };
    for shown in [audit(&["show"]), audit(&["query"])] {
        let about = |kind: &str| {
            shown.lines().any(|line| {
                line.contains(&format!("  {kind} ")) && line.contains("\"/bin/sh -c touch made\"")
            })
        };
        assert!(about("decision") && about("approval"), "{shown}");
    }
    let found = audit(&["query", "--path", "**", "--op", "command", "--json"]);
    assert_eq!(found, "", "a pattern of paths finds no commands");
    let file = world.at("report.json");
    audit(&["report", "-o", &file]);
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let approvals = report["approvals"]["listed"].as_array().unwrap();
    assert!(approvals.iter().any(|one| one["path"] == "/bin/sh -c touch made"), "{report:#}");
}

/// The operator answers where the editor does not. A part of the command that the rules take for a
/// secret is not shown, and nothing said so: an agent could hide there what the command does.
#[test]
fn a_command_waits_for_an_operator_or_a_timeout() {
    let ask = "\n[agent]\nterminal = \"ask\"\n[limits]\napprovalTimeout = \"1s\"\n";
    let mut run = Run::with(users()[0], ask, &[]);
    run.client.as_mut().unwrap().editor.permissions.push_back("error");
    let refused = run.terminals(&json!([["terminal/create", {"command": "true"}]]));
    assert!(refused[0]["error"]["message"].as_str().unwrap().contains("timed out"), "{refused:?}");
    run.end();

    let ask = "\n[agent]\nterminal = \"ask\"\n";
    let mut run = Run::with(users()[0], ask, &[]);
    run.client.as_mut().unwrap().editor.permissions.push_back("error");
    let workspace = run.world.at("ws");
    let approve = |args: &[&str]| {
        let args = [&["approve", "--workspace", &workspace], args].concat();
        run.world.command(&args)
    };
    let (mut list, mut look, mut yes) =
        (approve(&["--list", "--json"]), approve(&["--list"]), approve(&["--session", "--yes"]));
    let operator = std::thread::spawn(move || {
        let asked = loop {
            let listed: Value = serde_json::from_str(&end(list.spawn().unwrap()).stdout).unwrap();
            match listed["waiting"].get(0) {
                Some(asked) => break asked.clone(),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let looked = end(look.spawn().unwrap());
        let answered = end(yes.arg(said(&asked, "id")).spawn().unwrap());
        (asked, looked.stdout, answered)
    });
    for _ in 0..2 {
        assert_eq!(run.command(&json!({"command": "echo 1\necho 2 # hunter7"})).0, "1\n2\n");
    }
    let (asked, looked, answered) = operator.join().unwrap();
    assert_eq!(answered.code, 0, "{answered:?}");
    assert_eq!(said(&asked, "operation"), "command");
    assert!(said(&asked, "path").starts_with("echo 1\necho 2 # [portcullis-secret"), "{asked}");
    assert!(asked["command"].as_str().is_some_and(|hash| hash.len() == 64), "{asked}");
    let shown = "  directory: that of the agent\n  \
        not shown: what placeholders stand for, which may be anything\n  \
        command:\n  echo 1\n  echo 2 # [portcullis-secret";
    assert!(looked.contains(shown), "{looked}");
    let records = run.end();
    assert!(!records.iter().any(|record| record.to_string().contains("hunter7")), "{records:#?}");
    let questions = records.iter().filter(|record| said(record, "decision") == "ask");
    assert_eq!(questions.count(), 1, "{records:#?}");
}
