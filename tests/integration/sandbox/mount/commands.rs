//! Commands that the gateway has started in an agent's sandbox: `terminal/*` of ACP, and the tool
//! `exec` of MCP.

use std::time::Instant;

use serde_json::json;

use super::*;
use crate::acp_client::{Client, Editor};

mod approvals;
mod one_session;

/// The time that something may take that is over at once on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An agent in a mount, with terminals, before our own client.
struct Run {
    world: SandboxWorld,
    child: Child,
    client: Option<Client>,
    session: String,
}

impl Run {
    fn start(who: As) -> Self {
        Self::with(who, "\n[agent]\nterminal = \"allow\"\n", &[])
    }

    fn with(who: As, policy: &str, options: &[&str]) -> Self {
        let world = SandboxWorld::mounted(who);
        let file = world.at("policies/policy.toml");
        std::fs::write(&file, format!("{POLICY}{policy}")).unwrap();
        let scripts = tools().join("agent");
        let script = scripts.join("acp_agent.py");
        let given = ["run", "--policy", &file, "--source", "disk", "--agent-read"];
        let scripts = [scripts.to_str().unwrap()];
        let agent = ["--", "/usr/bin/python3", script.to_str().unwrap()];
        let args = [&given, &scripts[..], options, &agent].concat();
        let mut child = world.limited(&args).spawn().unwrap();
        let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let mut client = Client::with(streams.0, streams.1, Editor::default());
        let session = client.session(&world.base().join("ws").canonicalize().unwrap());
        Self { world, child, client: Some(client), session }
    }

    /// Has the agent carry out an order; returns its report.
    fn order(&mut self, order: &Value) -> Value {
        let client = self.client.as_mut().unwrap();
        assert_eq!(client.prompt(&self.session, &order.to_string()).stop_reason, "end_turn");
        let mut updates = client.updates.iter().rev();
        let chunk = updates.find(|it| it["update"]["sessionUpdate"] == "agent_message_chunk");
        let said = chunk.unwrap()["update"]["content"]["text"].as_str().unwrap();
        let said: Value = serde_json::from_str(said).unwrap();
        assert_eq!(said["error"], Value::Null, "{said}");
        said["ok"].clone()
    }

    /// Returns the replies to requests about terminals.
    fn terminals(&mut self, calls: &Value) -> Vec<Value> {
        let answers = self.order(&json!({"order": "terminals", "calls": calls}));
        answers.as_array().unwrap().clone()
    }

    /// The output and the end of a command.
    fn command(&mut self, create: &Value) -> (String, Value) {
        let answers = self.terminals(&json!([
            ["terminal/create", create],
            ["terminal/wait_for_exit", {"terminalId": "$"}],
            ["terminal/output", {"terminalId": "$"}],
            ["terminal/release", {"terminalId": "$"}],
            ["terminal/output", {"terminalId": "$"}],
        ]));
        assert_eq!(answers.len(), 5, "{answers:#?}");
        assert_eq!(answers[3]["result"], json!({}), "{answers:#?}");
        assert!(answers[4]["error"]["code"].is_number(), "{answers:#?}");
        let (output, exit) = (&answers[2]["result"], answers[1]["result"].clone());
        assert_eq!(output["exitStatus"], exit, "{answers:#?}");
        (output["output"].as_str().unwrap().to_owned(), exit)
    }

    /// Starts a command that goes on, and returns its terminal.
    fn begin(&mut self, create: &Value) -> String {
        let answers = self.terminals(&json!([["terminal/create", create]]));
        answers[0]["result"]["terminalId"].as_str().unwrap_or_else(|| panic!("{answers:?}")).into()
    }

    /// The output of a terminal once it has a text.
    fn until(&mut self, terminal: &str, text: &str) -> String {
        let order = json!({"order": "until", "terminal": terminal, "text": text});
        self.order(&order)["result"]["output"].as_str().unwrap().to_owned()
    }

    /// The results of calls of the gateway's tools.
    fn calls(&mut self, calls: &Value) -> Vec<Value> {
        let said = self.order(&json!({"order": "calls", "calls": calls}));
        assert_eq!(said["end"]["exit"], 0, "{said}");
        said["results"].as_array().unwrap().clone()
    }

    /// Hangs up; gives the records.
    fn end(mut self) -> Vec<Value> {
        self.client = None;
        let ended = end(self.child);
        assert_eq!(ended.code, 0, "{ended:?}");
        self.world.records()
    }
}

/// True if a process of this machine has these words in its command line.
fn runs(words: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.into_iter().any(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        // This test, and the text of a shell's argument, are no such process.
        String::from_utf8_lossy(&line).replace('\0', " ").starts_with(words)
    })
}

#[track_caller]
fn ends(words: &str) {
    let end = Instant::now() + TIMEOUT;
    while runs(words) {
        assert!(Instant::now() < end, "`{words}` goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The record of the command with these words, and that of its end.
fn of_command<'a>(records: &'a [Value], words: &str) -> (&'a Value, &'a Value) {
    let named = |record: &&Value| {
        said(record, "op") == "command" && record["facts"]["command"].to_string().contains(words)
    };
    let begun = records.iter().find(named).unwrap_or_else(|| panic!("{records:#?}"));
    let of_it = |record: &&Value| {
        said(record, "op") == "command.ended" && record["facts"]["command"] == begun["seq"]
    };
    (begun, records.iter().find(of_it).unwrap_or_else(|| panic!("{records:#?}")))
}

/// They went to the editor, which ran them outside, and the session counted as unconfined.
#[test]
fn terminals_were_the_editors_and_outside_the_sandbox() {
    for who in users() {
        let mut run = Run::start(who);
        assert_eq!(run.order(&json!({"order": "capabilities"}))["terminal"], true);
        let ws = run.world.at("ws");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = format!(
            "pwd; cat file.txt; echo \"$MINE$SECRET_TOKEN.\"; echo x >made; cat hidden/file; ls {}; \
             python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 2)' && \
             echo connected; exit 3",
            run.world.at("state")
        );
        let own = run.order(&json!({"order": "own_read", "path": format!("{ws}/dir/inner.txt")}));
        assert_eq!(own, "inner\n");
        let env = json!([{"name": "MINE", "value": "mine"}]);
        let (output, exit) = run.command(&json!({"command": script, "env": env}));
        assert_eq!(exit, json!({"exitCode": 3}), "{output}");
        assert!(output.starts_with(&format!("{ws}\nsecret\nmine.\n")), "{output}");
        assert!(!output.contains("audit") && !output.contains("\nconnected"), "{output}");
        assert!(output.contains("hidden/file: No such file"), "{output}");
        assert_eq!(std::fs::read_to_string(run.world.at("ws/made")).unwrap(), "x\n");

        let direct = json!({"command": "printf", "args": ["%s|", "a b", "$HOME"], "cwd": format!("{ws}/dir")});
        assert_eq!(run.command(&direct), ("a b|$HOME|".to_owned(), json!({"exitCode": 0})));
        let within = json!({"command": "pwd", "cwd": format!("{ws}/dir")});
        assert_eq!(run.command(&within).0, format!("{ws}/dir\n"));
        for (create, code) in [
            (json!({"command": "true", "cwd": "/etc"}), -32001),
            (json!({"command": "true", "cwd": format!("{ws}/../x")}), -32001),
            (json!({"command": "true", "cwd": "dir"}), -32602),
            (json!({"command": "no-such-program", "args": ["x"]}), -32603),
            (json!({"command": ""}), -32602),
            (json!({"command": "a\u{0}b"}), -32602),
            (json!({"command": "true", "env": [{"name": "A=B", "value": ""}]}), -32602),
        ] {
            let answers = run.terminals(&json!([["terminal/create", create]]));
            assert_eq!(answers[0]["error"]["code"], code, "{create} {answers:?}");
        }
        let asked = run.client.as_ref().unwrap().asked.clone();
        assert!(asked.is_empty(), "{asked:?}");

        let world = run.world.at("");
        let records = run.end();
        let facts =
            |op: &str| &records.iter().find(|record| said(record, "op") == op).unwrap()["facts"];
        assert_eq!(facts("sandbox")["enforcement"], "full");
        assert_eq!(
            (&facts("sandbox")["commands"], &facts("sandbox")["mcp"]),
            (&json!(true), &json!("offered"))
        );
        let (begun, ended) = of_command(&records, "cat file.txt");
        assert_eq!((said(begun, "decision"), said(begun, "rule")), ("allow", "agent.terminal"));
        assert_eq!(begun["facts"]["variables"], json!(["MINE"]));
        assert_eq!(ended["facts"]["exitCode"], 3);
        assert_eq!((said(begun, "transport"), &begun["session"]), ("acp", &ended["session"]));
        // Its accesses in the mount are recorded as its own, and those of the agent are not.
        let mounted = |op: &str, path: &str| {
            let mut all = records.iter().filter(|record| said(record, "transport") == "mount");
            let is = |record: &&Value| said(record, "op") == op && said(record, "path") == path;
            all.find(is).unwrap_or_else(|| panic!("{op} {path} {world} {records:#?}"))
        };
        for (op, path) in [("read", "file.txt"), ("write", "made")] {
            assert_eq!(mounted(op, path)["facts"]["command"], begun["seq"], "{who:?} {op} {path}");
        }
        assert_eq!(mounted("read", "dir/inner.txt")["facts"]["command"], Value::Null);
        let refused = records.iter().find(|record| said(record, "rule") == "workspace.outside");
        assert_eq!(said(refused.unwrap(), "op"), "terminal/create");
        let (_, ended) = of_command(&records, "no-such-program");
        assert!(ended["facts"]["notStarted"].is_string(), "{ended}");
    }
}

#[test]
fn a_command_is_killed_with_all_that_descends_from_it() {
    let mut run = Run::start(users()[0]);
    // Numbers that no other test has.
    let script = "sleep 86411 & (setsid sleep 86412; true) & python3 -c 'import os, time; \
                  os.setpgid(0, 0); print(\"up\", flush=True); time.sleep(86413)' & echo $!; wait";
    for way in ["terminal/kill", "terminal/release"] {
        let terminal = run.begin(&json!({"command": script}));
        run.until(&terminal, "up");
        let end = Instant::now() + TIMEOUT;
        while !runs("sleep 86411") || !runs("sleep 86412") {
            assert!(Instant::now() < end, "they do not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        let calls = json!([[way, {"terminalId": terminal}], ["terminal/wait_for_exit", {"terminalId": terminal}]]);
        let answers = run.terminals(&calls);
        match way {
            "terminal/kill" => assert_eq!(answers[1]["result"], json!({"signal": "SIGKILL"})),
            _ => assert!(answers[1]["error"].is_object(), "{answers:?}"),
        }
        for words in ["sleep 86411", "sleep 86412", "python3 -c import os, time; os.setpgid"] {
            ends(words);
        }
    }
    // Requests that wait meanwhile get their replies.
    let terminal = run.begin(&json!({"command": "sleep 86414"}));
    let (script, calls) =
        ("sleep 86415 & exit 0", json!([["terminal/release", {"terminalId": terminal}]]));
    let (_, exit) = run.command(&json!({"command": script}));
    assert_eq!(exit, json!({"exitCode": 0}));
    // Processes that a command left end with its terminal.
    ends("sleep 86415");
    run.terminals(&calls);
    let records = run.end();
    let (_, ended) = of_command(&records, "sleep 86411");
    assert_eq!(ended["facts"]["signal"], "SIGKILL", "{ended}");
}

#[test]
fn output_and_terminals_are_bounded() {
    let mut run = Run::start(users()[0]);
    let flood = run.begin(&json!({"command": "yes żółć", "outputByteLimit": 1001}));
    let output = run.until(&flood, "żółć");
    assert!(output.len() <= 1001, "{}", output.len());
    let answers = run.terminals(&json!([
        ["terminal/kill", {"terminalId": flood}],
        ["terminal/wait_for_exit", {"terminalId": flood}],
        ["terminal/output", {"terminalId": flood}],
    ]));
    let output = answers[2]["result"]["output"].as_str().unwrap();
    assert!((995..=1001).contains(&output.len()) && !output.contains('\u{fffd}'), "{output}");
    assert_eq!(answers[2]["result"]["truncated"], true);
    let long = "python3 -c 'print(\"x\" * 3000000)'";
    let (output, _) = run.command(&json!({"command": long, "outputByteLimit": 1u64 << 40}));
    assert_eq!(output.len(), 1 << 20);
    let none = run.command(&json!({"command": "echo no", "outputByteLimit": 0}));
    assert_eq!(none.0, "");
    // There is one already.
    let create = json!(["terminal/create", {"command": "sleep 86421"}]);
    let answers = run.terminals(&json!(vec![create; 100]));
    let made = answers.iter().filter(|answer| answer["result"]["terminalId"].is_string()).count();
    assert_eq!(made, 31, "{answers:?}");
    assert_eq!(answers[99]["error"]["code"], -32602, "{answers:?}");
    run.terminals(&json!([["terminal/release", {"terminalId": flood}]]));
    run.begin(&json!({"command": "true"}));
    run.end();
    ends("sleep 86421");
}

#[test]
fn commands_end_with_the_agent_and_with_the_gateway() {
    for way in ["agent", "gateway", "session"] {
        let mut run = Run::start(users()[0]);
        let number = 86_430 + way.len();
        let words = format!("sleep {number}");
        let terminal = run.begin(&json!({"command": format!("(setsid {words}) & {words}; true")}));
        run.terminals(&json!([["terminal/output", {"terminalId": terminal}]]));
        let begun = Instant::now();
        while !runs(&words) {
            assert!(begun.elapsed() < TIMEOUT);
        }
        match way {
            "gateway" => {
                let all = beneath(run.child.id());
                let gateway = all.iter().find(|(_, line)| line.contains("gateway-process"));
                let gateway = i32::try_from(gateway.unwrap().0).unwrap();
                let gateway = rustix::process::Pid::from_raw(gateway).unwrap();
                rustix::process::kill_process(gateway, rustix::process::Signal::KILL).unwrap();
                assert_ne!(end(run.child).code, 0);
            }
            "agent" => {
                let prompt = json!([{"type": "text", "text": "{\"order\": \"leave\"}"}]);
                let params = json!({"sessionId": run.session, "prompt": prompt});
                let client = run.client.as_mut().unwrap();
                client.send(&json!({"jsonrpc": "2.0", "id": 99, "method": "session/prompt", "params": params}));
                assert_eq!(end(run.child).code, 0);
                let records = run.world.records();
                let (_, ended) = of_command(&records, &words);
                assert!(ended["facts"]["lost"] == true || ended["facts"]["signal"] == "SIGKILL");
            }
            _ => drop(run.end()),
        }
        ends(&words);
    }
}

/// An editor knows no terminal that it did not make.
#[test]
fn an_editor_is_shown_what_terminals_of_the_gateway_wrote() {
    let mut run = Run::start(users()[0]);
    let mark = json!({"type": "content", "content": {"type": "text", "text": "before"}});
    let content = json!([mark, {"type": "terminal", "terminalId": "$"}, {"type": "terminal", "terminalId": "call_9"}]);
    let call =
        json!({"sessionUpdate": "tool_call", "toolCallId": "t1", "title": "x", "content": content});
    run.terminals(&json!([
        ["terminal/create", {"command": "echo first; sleep 1; echo last; exit 4"}],
        ["session/update", {"update": call}],
        ["terminal/wait_for_exit", {"terminalId": "$"}],
        ["terminal/release", {"terminalId": "$"}],
    ]));
    let updates = run.client.as_ref().unwrap().updates.clone();
    let updates = updates.iter().map(|update| &update["update"]);
    let shown: Vec<_> = updates.filter(|update| update["toolCallId"] == "t1").collect();
    assert!(shown.len() >= 2, "{shown:#?}");
    for update in &shown {
        assert_eq!(update["content"][0], mark, "{update}");
        assert_eq!(update["content"][1]["type"], "content", "{update}");
        // Another terminal is the editor's business.
        assert_eq!(update["content"][2]["terminalId"], "call_9", "{update}");
    }
    assert_eq!(
        (&shown[0]["sessionUpdate"], &shown[0]["title"]),
        (&json!("tool_call"), &json!("x"))
    );
    let last = &shown.last().unwrap()["content"][1]["content"]["text"];
    assert_eq!(last, "```\nfirst\nlast\n```\nexit code 4", "{shown:#?}");
    let records = run.end();
    assert_eq!(of_command(&records, "echo first").1["facts"]["toolCall"], "t1");
}

/// Each reference, of 46 bytes, had up to 16 KiB of output in its place.
#[test]
fn a_tool_call_of_many_terminals_grew_without_bound() {
    let mut run = Run::start(users()[0]);
    for (items, is_replaced) in [(1_000, true), (2_000, false)] {
        let content = vec![json!({"type": "terminal", "terminalId": "$"}); items];
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": "t1", "title": "x", "content": content});
        run.terminals(&json!([
            ["terminal/create", {"command": "head -c 20000 /dev/zero | tr '\\0' x; echo end"}],
            ["terminal/wait_for_exit", {"terminalId": "$"}],
            ["session/update", {"update": call}],
            ["terminal/release", {"terminalId": "$"}],
        ]));
        let updates = &run.client.as_ref().unwrap().updates;
        let mut updates = updates.iter().rev().map(|update| &update["update"]);
        let shown = updates.find(|update| update["toolCallId"] == "t1").unwrap();
        let content = shown["content"].as_array().unwrap();
        let full = |item: &&Value| {
            item["content"]["text"].as_str().is_some_and(|text| text.contains("end"))
        };
        assert_eq!(content.len(), items);
        assert_eq!(content.iter().filter(full).count(), usize::from(is_replaced));
        assert!(shown.to_string().len() < 300_000, "{} bytes", shown.to_string().len());
    }
    run.end();
}

#[test]
fn mcp_clients_in_the_sandbox_have_commands_too() {
    for who in users() {
        let mut run = Run::start(who);
        let long = "python3 -c 'for n in range(20000): print(\"line\", n)'; exit 2";
        let results = run.calls(&json!([
            ["exec", {"command": "cat file.txt; echo $MINE; pwd", "cwd": "dir/..", "env": {"MINE": "m"}}],
            ["exec", {"command": "cat file.txt; echo $MINE", "env": {"MINE": "m"}}],
            ["exec", {"command": long}],
            ["exec", {"command": "sleep 86441", "timeout": 1}],
            ["exec", {"command": "true", "cwd": "/etc"}],
            ["exec", {"command": "echo begun; sleep 86442", "background": true}],
        ]));
        let told = |result: &Value| result["structuredContent"].clone();
        let output =
            |result: &Value| told(result)["output"].as_str().unwrap_or_default().to_owned();
        assert_eq!(results[0]["isError"], true, "a path with `..`: {}", results[0]);
        assert_eq!(
            (output(&results[1]).as_str(), &told(&results[1])["exitCode"]),
            ("secret\nm\n", &json!(0))
        );
        let cut = output(&results[2]);
        assert_eq!(told(&results[2])["exitCode"], 2, "{}", results[2]);
        assert!(cut.starts_with("line 0\n") && cut.ends_with("line 19999\n"), "{cut}");
        assert!(cut.len() < 34 << 10 && cut.contains("`exec_output`"), "{cut}");
        assert_eq!(told(&results[3])["signal"], "SIGKILL", "{}", results[3]);
        ends("sleep 86441");
        assert_eq!(results[4]["_meta"]["portcullis/error"]["rule"], "workspace.outside");
        assert_eq!(told(&results[5])["running"], true, "{}", results[5]);
        // All of the long output is there, page by page, for another client of the session, too.
        let (task, mut after, mut all) =
            (told(&results[2])["task"].clone(), json!(0), String::new());
        while !after.is_null() {
            let page = run.calls(&json!([["exec_output", {"task": task, "after": after}]]));
            all += &output(&page[0]);
            after = told(&page[0])["next"].clone();
        }
        assert!(all.lines().count() == 20_000 && all.ends_with("line 19999\n"), "{}", all.len());
        let task = told(&results[5])["task"].clone();
        let end = Instant::now() + TIMEOUT;
        while output(&run.calls(&json!([["exec_output", {"task": task}]]))[0]).is_empty() {
            assert!(Instant::now() < end, "it prints nothing");
        }
        let results = run.calls(&json!([
            ["exec_output", {"task": task}],
            ["exec_kill", {"task": task}],
            ["exec_output", {"task": task, "wait": 30}],
            ["exec_output", {"task": 999_999}],
        ]));
        assert_eq!(
            (output(&results[0]).as_str(), &told(&results[0])["running"]),
            ("begun\n", &json!(true))
        );
        assert_eq!(told(&results[2])["signal"], "SIGKILL", "{}", results[2]);
        assert_eq!(results[3]["isError"], true);
        ends("sleep 86442");
        let records = run.end();
        let (begun, ended) = of_command(&records, "echo $MINE");
        assert_eq!((said(begun, "transport"), &ended["facts"]["exitCode"]), ("mcp", &json!(0)));
        // The client numbers its requests.
        let request = |words: &str| of_command(&records, words).0["facts"]["mcpRequest"].as_u64();
        assert!(request("echo $MINE") < request("20000"), "{begun}");
        let is = |record: &&Value| {
            record["facts"]["command"] == begun["seq"] && said(record, "transport") == "mount"
        };
        let read = records.iter().find(is).unwrap_or_else(|| panic!("{records:#?}"));
        assert_eq!((said(read, "op"), said(read, "path")), ("read", "file.txt"));
    }
}

#[test]
fn where_the_policy_denies_terminals_there_are_none() {
    let mut run = Run::with(users()[0], "", &[]);
    assert_eq!(run.order(&json!({"order": "capabilities"}))["terminal"], false);
    let answers = run.terminals(&json!([["terminal/create", {"command": "true"}]]));
    assert_eq!(answers[0]["error"]["code"], -32601, "{answers:?}");
    let results = run.calls(&json!([["exec", {"command": "true"}]]));
    assert_eq!(results[0]["code"], -32602, "{results:?}");
    run.end();
}

/// The operator's way round is the editor's terminals alone.
#[test]
fn terminals_that_the_operator_forwards_are_the_editors() {
    let allow = "\n[agent]\nterminal = \"allow\"\n";
    let mut run = Run::with(users()[0], allow, &["--forward", "terminal/create"]);
    let answers = run.terminals(&json!([["terminal/create", {"command": "true"}]]));
    assert!(answers[0]["error"].is_object(), "{answers:?}");
    assert_eq!(run.client.as_ref().unwrap().asked[0]["method"], "terminal/create");
    let records = run.end();
    let facts = &records.iter().find(|record| said(record, "op") == "sandbox").unwrap()["facts"];
    assert_eq!((&facts["enforcement"], &facts["commands"]), (&json!("none"), &Value::Null));
}

/// The sandbox is the same as the agent's without namespaces, too.
#[test]
fn an_agent_in_part_confined_has_commands() {
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    let policy = world.at("policies/policy.toml");
    let terminal = "schema = 1\nname = \"test\"\nversion = 1\n[agent]\nterminal = \"allow\"\n";
    std::fs::write(&policy, terminal).unwrap();
    let scripts = tools().join("agent");
    let script = scripts.join("acp_agent.py");
    let options =
        ["--allow-partial", "--policy", &policy, "--agent-read", scripts.to_str().unwrap()];
    let mut child = world.start(&options, &["/usr/bin/python3", script.to_str().unwrap()]);
    let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let mut client = Client::with(streams.0, streams.1, Editor::default());
    let session = client.session(&world.base().join("ws").canonicalize().unwrap());
    let mut run = Run { world, child, client: Some(client), session };
    let script = format!("echo here; cat {}; exit 5", run.world.at("ws/file.txt"));
    let (output, exit) = run.command(&json!({"command": script}));
    assert!(output.starts_with("here\n") && !output.contains("secret"), "{output}");
    assert_eq!(exit, json!({"exitCode": 5}));
    run.begin(&json!({"command": "(setsid sleep 86451) & sleep 86452"}));
    run.end();
    ends("sleep 86451");
    ends("sleep 86452");
}
