//! Interop: the TypeScript SDK as the agent in its sandbox, and as the editor.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    acp_client::{Client, Editor, Turn},
    acp_rig::POLICY,
    common::{Done, World, done},
    fast_agent::{arguments, fast_agent_config, peers},
    fast_agent_confined::python,
};

/// The directory with our scripts and the SDK.
pub(crate) fn scripts() -> PathBuf {
    let scripts = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers"));
    assert!(
        scripts.join("node_modules/@agentclientprotocol/sdk").exists(),
        "no SDK in {}; see tests/peers/README.md",
        scripts.display()
    );
    scripts.to_owned()
}

/// Node 20 or newer, by the name that leads to its installation.
pub(crate) fn node() -> PathBuf {
    let node = std::env::var("PORTCULLIS_TEST_NODE").unwrap_or_else(|_| "node".to_owned());
    let ask = ["-p", "process.execPath + ' ' + process.versions.node"];
    let said = Command::new(&node).args(ask).output();
    let said = said.unwrap_or_else(|error| panic!("`{node}`: {error}; see tests/peers/README.md"));
    let said = String::from_utf8(said.stdout).unwrap();
    let (path, version) = said.trim().rsplit_once(' ').expect("a path and a version");
    let major: u32 = version.split('.').next().unwrap().parse().unwrap();
    assert!(major >= 20, "`{path}` is {version}; see tests/peers/README.md");
    path.into()
}

/// A workspace with `a.txt` and the denied `secret/key.txt`.
fn world() -> World {
    let world = World::with_policy(POLICY);
    world.file("a.txt", "one\ntwo żółć\nthree\n");
    world.file("secret/key.txt", "TOP-SECRET\n");
    world
}

fn absolute(world: &World, name: &str) -> String {
    world.root().canonicalize().unwrap().join(name).to_str().unwrap().to_owned()
}

/// `portcullis run --source SOURCE -- node agent.mjs`, confined.
fn mediated_agent(world: &World, source: &str) -> Command {
    mediated_agent_with(world, source, &[])
}

/// The same with these options of `run`.
fn mediated_agent_with(world: &World, source: &str, options: &[&str]) -> Command {
    let mut command = world.command(&["run", "--source", source, "--agent", "ts"]);
    command.args(options);
    let (node, scripts) = (node(), scripts());
    // `PREFIX/bin/node`
    let prefix = node.parent().and_then(Path::parent).unwrap();
    for dir in [prefix, &scripts] {
        command.arg("--agent-read").arg(dir);
    }
    command.arg("--").arg(&node).arg(scripts.join("agent.mjs"));
    command
}

/// The agent on the SDK under the gateway, before our own client.
struct Run {
    world: World,
    client: Option<Client>,
    session: String,
    gateway: Child,
}

impl Run {
    fn start(source: &str, editor: Editor) -> Self {
        Self::with(source, &[], editor)
    }

    fn with(source: &str, options: &[&str], editor: Editor) -> Self {
        let world = world();
        let mut gateway = mediated_agent_with(&world, source, options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let streams = (gateway.stdout.take().unwrap(), gateway.stdin.take().unwrap());
        let mut client = Client::with(streams.0, streams.1, editor);
        let session = client.session(&world.root().canonicalize().unwrap());
        Self { world, client: Some(client), session, gateway }
    }

    fn path(&self, name: &str) -> String {
        absolute(&self.world, name)
    }

    /// Has the agent carry out an order; returns its report, and the turn.
    fn order(&mut self, order: &Value) -> (Value, Turn) {
        let session = self.session.clone();
        let client = self.client.as_mut().unwrap();
        let turn = client.prompt(&session, &order.to_string());
        assert_eq!(turn.stop_reason, "end_turn");
        let last = client.updates.last().expect("an answer");
        let answer = last["update"]["content"]["text"].as_str().expect("a text");
        (serde_json::from_str(answer).unwrap(), turn)
    }

    fn end(mut self) -> Vec<Value> {
        self.client = None;
        let status = self.gateway.wait().unwrap();
        assert!(status.success(), "{status}");
        self.world.run(&["audit", "verify"]).ok();
        self.world.records()
    }
}

#[test]
fn an_agent_on_the_sdk_works_in_its_sandbox_through_the_gateway_alone() {
    let mut run = Run::start("disk", Editor::default());
    let (offered, _) = run.order(&json!({"order": "offered"}));
    assert_eq!(offered["ok"]["fs"], json!({"readTextFile": true, "writeTextFile": true}));
    assert_eq!(offered["ok"]["terminal"], false);

    let file = run.path("a.txt");
    let (read, turn) = run.order(&json!({"order": "read", "path": file}));
    assert_eq!(read["ok"]["content"], "one\ntwo żółć\nthree\n");
    assert!(read["ok"]["_meta"]["portcullis/receipt"]["leaf"].is_string(), "{read}");
    assert_eq!(turn.states, ["in_progress", "completed"]);
    let slice = json!({"order": "read", "path": file, "line": 2, "limit": 1});
    assert_eq!(run.order(&slice).0["ok"]["content"], "two żółć\n");

    for (name, content) in [("a.txt", "changed\n"), ("new/deep.txt", "ünïcode\n")] {
        let write = json!({"order": "write", "path": run.path(name), "content": content});
        let (written, turn) = run.order(&write);
        assert_eq!(written["ok"]["_meta"]["portcullis/receipt"]["durable"], true, "{written}");
        assert_eq!(turn.states, ["in_progress", "completed"]);
        assert_eq!(run.world.read(name), content);
    }
    let backup = run.world.run(&["backup", "show", "a.txt"]).ok();
    assert_eq!(backup.text(), "one\ntwo żółć\nthree\n");

    let records = run.end();
    let count = |kind: &str| records.iter().filter(|record| record["kind"] == kind).count();
    assert_eq!((count("intent"), count("outcome")), (2, 2), "{records:#?}");
}

#[test]
fn an_agent_on_the_sdk_understands_refusals() {
    let mut run = Run::start("disk", Editor::default());
    let (missing, turn) = run.order(&json!({"order": "read", "path": run.path("missing.txt")}));
    assert_eq!(missing["error"]["code"], -32002, "{missing}");
    assert_eq!(missing["error"]["data"]["uri"], run.path("missing.txt"));
    assert_eq!(turn.states, ["in_progress", "failed"]);

    for order in ["read", "write"] {
        let secret = run.path("secret/key.txt");
        let order = json!({"order": order, "path": secret, "content": "pwned"});
        let (denied, turn) = run.order(&order);
        assert_eq!(denied["error"]["code"], -32001, "{denied}");
        assert_eq!(denied["error"]["data"]["rule"], "keys");
        assert!(denied["error"]["data"]["receipt"]["seq"].is_u64(), "{denied}");
        assert_eq!(turn.states, ["in_progress", "failed"]);
    }
    assert_eq!(run.world.read("secret/key.txt"), "TOP-SECRET\n");
    let (outside, _) = run.order(&json!({"order": "read", "path": "/etc/hostname"}));
    assert_eq!(outside["error"]["code"], -32001, "{outside}");
    let (relative, _) = run.order(&json!({"order": "read", "path": "a.txt"}));
    assert_eq!(relative["error"]["code"], -32602, "{relative}");

    for method in ["terminal/create", "fs/delete_file", "_vendor/run"] {
        let call = json!({"order": "call", "method": method, "params": {"command": "id"}});
        let (refused, _) = run.order(&call);
        assert_eq!(refused["error"]["code"], -32601, "{method}: {refused}");
    }
    assert_eq!(run.client.as_ref().unwrap().asked, Vec::<Value>::new());
    run.end();
}

#[test]
fn two_hundred_requests_of_the_sdk_at_once_are_all_answered() {
    let mut run = Run::start("disk", Editor::default());
    let name = |n: usize| format!("many/{n}.txt");
    let orders: Vec<_> = (0..100)
        .flat_map(|n| {
            let path = run.path(&name(n));
            let write = json!({"order": "write", "path": path, "content": format!("{n}\n")});
            // Of one path in the order asked, so it sees what was written.
            [write, json!({"order": "read", "path": path})]
        })
        .collect();
    let (answers, _) = run.order(&json!({"order": "many", "orders": orders}));
    let answers = answers["ok"].as_array().unwrap();
    assert_eq!(answers.len(), 200);
    for n in 0..100 {
        assert!(answers[2 * n]["ok"].is_object(), "{}", answers[2 * n]);
        assert_eq!(answers[2 * n + 1]["ok"]["content"], format!("{n}\n"));
        assert_eq!(run.world.read(&name(n)), format!("{n}\n"));
    }
    run.end();
}

/// Just-in-time compilation, WebAssembly, threads and child processes work in
/// the sandbox; the workspace and the network are not there.
#[test]
fn the_runtime_works_in_the_sandbox_and_reaches_nothing_by_itself() {
    let mut run = Run::with("disk", &["--no-mount"], Editor::default());
    // Any process in this machine's network can connect here.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (found, _) =
        run.order(&json!({"order": "runtime", "path": run.path("a.txt"), "port": port}));
    let found = &found["ok"];
    assert!(found["compiled"].is_i64(), "{found}");
    assert_eq!(found["wasm"], 42, "{found}");
    assert_eq!(found["threads"], 4000, "{found}");
    assert_eq!(found["child"], "42", "{found}");
    let shell = found["shell"].as_str().unwrap();
    assert!(shell.starts_with("42\n") && !shell.contains("żółć"), "{shell}");
    assert_eq!(found["workspace"], json!([]), "{found}");
    assert_eq!(found["read"], "ENOENT", "{found}");
    assert_ne!(found["write"], "reached", "{found}");
    assert_ne!(found["network"], "connected", "{found}");
    assert_eq!(run.world.read("a.txt"), "one\ntwo żółć\nthree\n");
    run.end();
}

/// Runs the editor on the SDK, with the gateway as its agent; returns its
/// report.
fn drive(gateway: &Command, plan: &Value) -> Value {
    let mut editor = Command::new(node());
    editor.arg(scripts().join("client.mjs")).arg(plan.to_string());
    editor.arg(gateway.get_program()).args(gateway.get_args()).env_clear();
    editor.current_dir(gateway.get_current_dir().unwrap()).stdin(Stdio::null());
    for (name, value) in gateway.get_envs() {
        if let Some(value) = value {
            editor.env(name, value);
        }
    }
    let Done { code, stdout, stderr } = done(editor.output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_slice(&stdout).unwrap();
    assert_eq!(report["exit"], 0, "{stderr}");
    report
}

fn root(world: &World) -> PathBuf {
    world.root().canonicalize().unwrap()
}

/// Returns the reply of the agent on the SDK in a turn.
fn answer(turn: &Value) -> Value {
    let last = turn["updates"].as_array().unwrap().last().unwrap();
    serde_json::from_str(last["content"]["text"].as_str().unwrap()).unwrap()
}

#[test]
fn an_editor_on_the_sdk_serves_its_buffers_through_the_gateway() {
    let world = world();
    let (open, fresh) = (absolute(&world, "open.txt"), absolute(&world, "fresh.txt"));
    let secret = absolute(&world, "secret/key.txt");
    let plan = json!({
        "cwd": root(&world),
        "fs": {"readTextFile": true, "writeTextFile": true},
        "buffers": {&open: "not\nsaved\n", &secret: "TOP-SECRET\n"},
        "turns": [
            {"prompt": {"order": "read", "path": open, "line": 2}},
            {"prompt": {"order": "write", "path": open, "content": "changed\n"}},
            {"prompt": {"order": "write", "path": fresh, "content": "fresh\n"}},
            {"prompt": {"order": "read", "path": absolute(&world, "missing.txt")}},
            {"prompt": {"order": "read", "path": secret}},
            {"prompt": {"order": "write", "path": secret, "content": "pwned"}},
            {"prompt": {"order": "call", "method": "terminal/create", "params": {"command": "id"}}},
            {"prompt": {"order": "permission"}},
        ]
    });
    let report = drive(&mediated_agent(&world, "editor"), &plan);
    assert_eq!(report["agent"]["agentInfo"]["name"], "portcullis-test-agent");
    let turns = report["turns"].as_array().unwrap();
    assert!(turns.iter().all(|turn| turn["stopReason"] == "end_turn"), "{turns:#?}");
    let answers: Vec<_> = turns.iter().map(answer).collect();
    assert_eq!(answers[0]["ok"]["content"], "saved\n");
    assert!(answers[1]["ok"].is_object() && answers[2]["ok"].is_object(), "{answers:#?}");
    assert_eq!(answers[3]["error"]["code"], -32002);
    assert_eq!(answers[4]["error"]["code"], -32001);
    assert_eq!(answers[5]["error"]["code"], -32001);
    assert_eq!(answers[6]["error"]["code"], -32601);
    assert_eq!(answers[7]["ok"]["outcome"]["optionId"], "allow_once");
    let statuses: Vec<_> = turns[4]["updates"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|update| update["status"].as_str())
        .collect();
    assert_eq!(statuses, ["in_progress", "failed"]);

    assert_eq!(report["buffers"][&open], "changed\n");
    assert_eq!(report["buffers"][&fresh], "fresh\n");
    assert_eq!(report["buffers"][&secret], "TOP-SECRET\n");
    let asked = report["asked"].as_array().unwrap();
    assert!(asked.iter().all(|asked| asked["path"] != secret), "{asked:#?}");
    assert!(asked.iter().all(|asked| asked["method"] != "terminal/create"), "{asked:#?}");
    let backup = world.run(&["backup", "show", "open.txt"]).ok();
    assert_eq!(backup.text(), "not\nsaved\n");
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_request_that_the_sdk_gives_up_on_is_cancelled_and_the_one_before_it_is_served() {
    let world = world();
    let open = absolute(&world, "open.txt");
    let plan = json!({
        "cwd": root(&world),
        "fs": {"readTextFile": true, "writeTextFile": true},
        "buffers": {&open: "held\n"},
        "turns": [{
            "prompt": {"order": "giveUp", "path": open},
            "hold": {"path": open, "until": "given up"}
        }]
    });
    let report = drive(&mediated_agent(&world, "editor"), &plan);
    let answer = answer(&report["turns"][0]);
    assert_eq!(answer["ok"]["second"]["error"]["code"], -32800, "{answer}");
    assert_eq!(answer["ok"]["first"]["ok"]["content"], "held\n", "{answer}");
    // The editor never got the second.
    assert_eq!(report["asked"].as_array().unwrap().len(), 1, "{report}");
    let reads: Vec<_> =
        world.records().into_iter().filter(|record| record["op"] == "read").collect();
    let outcome = |key: &str| reads.iter().map(|read| read[key].clone()).collect::<Vec<_>>();
    assert_eq!(outcome("decision"), [Value::Null, "allow".into()], "{reads:#?}");
    assert_eq!(reads[0]["reason"], "cancelled", "{reads:#?}");
    assert_eq!(reads[1]["result"], "ok", "{reads:#?}");
}

#[test]
fn an_editor_on_the_sdk_cancels_a_turn_and_what_waits_in_it() {
    let world = world();
    let open = absolute(&world, "open.txt");
    let plan = json!({
        "cwd": root(&world),
        "fs": {"readTextFile": true, "writeTextFile": true},
        "buffers": {&open: "held\n"},
        "turns": [
            {
                "prompt": {"order": "linger", "path": open},
                "hold": {"path": open, "until": "cancelled"},
                "cancelAt": "asked"
            },
            {"prompt": {"order": "read", "path": open}},
        ]
    });
    let report = drive(&mediated_agent(&world, "editor"), &plan);
    let (cancelled, next) = (&report["turns"][0], &report["turns"][1]);
    assert_eq!(cancelled["stopReason"], "cancelled", "{report}");
    let came = answer(cancelled);
    assert_eq!(came["ok"]["first"]["ok"]["content"], "held\n", "{came}");
    assert_eq!(came["ok"]["second"]["error"]["code"], -32800, "{came}");
    // The session continues.
    assert_eq!(next["stopReason"], "end_turn", "{report}");
    assert_eq!(answer(next)["ok"]["content"], "held\n");
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_question_that_the_sdk_takes_back_is_taken_back_from_the_editor() {
    let world = world();
    let plan = json!({
        "cwd": root(&world), "fs": {}, "leavesOpen": true,
        "turns": [{"prompt": {"order": "withdraw"}}]
    });
    let report = drive(&mediated_agent(&world, "editor"), &plan);
    let answer = answer(&report["turns"][0]);
    assert_eq!(answer["ok"]["outcome"]["outcome"], "cancelled", "{answer}");
    assert_eq!(report["asked"].as_array().unwrap().len(), 1, "{report}");
}

#[test]
fn an_editor_on_the_sdk_works_with_fast_agent_under_the_gateway() {
    let world = world();
    let home = world.base().join("agent-home");
    std::fs::create_dir_all(&home).unwrap();
    // The agent may run as another user than this test.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&home, open).unwrap();
    let (home, config, peers) = (home.to_str().unwrap(), fast_agent_config(), peers());
    let mut gateway = world.command(&["run", "--source", "auto", "--agent", "fast-agent"]);
    for dir in [peers.as_path(), &python(&peers), &config] {
        gateway.arg("--agent-read").arg(dir);
    }
    gateway
        .args(["--agent-write", home, "--"])
        .arg(peers.join("bin/fast-agent-acp"))
        .args(arguments(&config, home));
    let tool = |name: &str, arguments: Value| json!({"prompt": format!("***CALL_TOOL {name} {arguments}")});
    let (file, new) = (absolute(&world, "a.txt"), absolute(&world, "new.txt"));
    let secret = absolute(&world, "secret/key.txt");
    let plan = json!({
        "cwd": root(&world),
        "fs": {"readTextFile": true, "writeTextFile": true},
        "buffers": {&file: "not saved yet\n"},
        "turns": [
            tool("read_text_file", json!({"path": file})),
            tool("write_text_file", json!({"path": new, "content": "new\n"})),
            tool("read_text_file", json!({"path": secret})),
            tool("read_text_file", json!({"path": absolute(&world, "missing.txt")})),
        ]
    });
    let report = drive(&gateway, &plan);
    let said = |turn: usize| report["turns"][turn]["updates"].to_string();
    assert!(said(0).contains("not saved yet"), "{}", said(0));
    assert!(said(1).contains("completed"), "{}", said(1));
    // The editor has no buffer of it, so it was written to the disk.
    assert_eq!(world.read("new.txt"), "new\n");
    assert!(said(2).contains("denied by rule `keys`"), "{}", said(2));
    assert!(!said(2).contains("TOP-SECRET"), "{}", said(2));
    assert!(said(3).contains("not found"), "{}", said(3));
    world.run(&["audit", "verify"]).ok();
}
