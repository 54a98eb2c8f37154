//! The gateway's own MCP server for the agent in its sandbox: the agents that get it, the clients
//! that can connect, and that it is one session with the agent's requests over ACP.

mod memory;

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use portcullis::mcp::{
    ClientLocation, Config, Name, Toolset,
    attach::AttachTokens,
    sandbox_socket::{Connections, SandboxSocket},
};
use serde_json::{Value, json};

use crate::{
    acp_client::{Client, Editor},
    acp_rig::{POLICY, connection, gateway, request, workspace},
    common::World,
    fast_agent::fast_agent_config,
    fast_agent_confined,
    typescript::{node, scripts},
};

/// An agent on the TypeScript SDK in its sandbox, before our own client.
struct Run {
    world: World,
    client: Option<Client>,
    session: String,
    gateway_process: Child,
}

impl Run {
    fn start(policy: &str, more: &[&str], editor: Editor) -> Self {
        let world = World::with_policy(policy);
        world.file("a.txt", "one\ntwo\n");
        world.file("old/b.txt", "two\n");
        world.file("secret/key.txt", "TOP-SECRET two\n");
        let mut gateway_process = gateway_process(&world, more).spawn().unwrap();
        let streams =
            (gateway_process.stdout.take().unwrap(), gateway_process.stdin.take().unwrap());
        let mut client = Client::with(streams.0, streams.1, editor);
        let session = client.session(&world.root().canonicalize().unwrap());
        Self { world, client: Some(client), session, gateway_process }
    }

    fn client(&mut self) -> &mut Client {
        self.client.as_mut().unwrap()
    }

    /// Has the agent carry out an order; returns its report.
    fn order(&mut self, order: &Value) -> Value {
        let session = self.session.clone();
        let turn = self.client().prompt(&session, &order.to_string());
        assert_eq!(turn.stop_reason, "end_turn");
        let last = self.client().updates.last().expect("an answer").clone();
        serde_json::from_str(last["update"]["content"]["text"].as_str().unwrap()).unwrap()
    }

    /// Returns the results of calls to the gateway's own server: tools, and methods of the
    /// protocol.
    fn calls(&mut self, calls: &[(&str, Value)]) -> Vec<Value> {
        let called = |name: &str| match name.contains('/') {
            true => name.to_owned(),
            false => format!("workspace__ws__{name}"),
        };
        let calls: Vec<_> = calls.iter().map(|(name, args)| json!([called(name), args])).collect();
        let said = self.order(&json!({"order": "inside", "calls": calls}));
        assert_eq!(said["ok"]["exit"], 0, "{said}");
        said["ok"]["results"].as_array().unwrap().clone()
    }

    /// Closes the connection; returns the records and the text on stderr.
    fn end(mut self) -> (Vec<Value>, String) {
        self.client = None;
        let output = self.gateway_process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{} {said}", output.status);
        self.world.run(&["audit", "verify"]).ok();
        (self.world.records(), said)
    }
}

fn gateway_process(world: &World, more: &[&str]) -> Command {
    let mut command = world.command(&["run", "--source", "disk", "--agent", "ts"]);
    let (node, scripts) = (node(), scripts());
    let prefix = node.parent().and_then(Path::parent).unwrap();
    for dir in [prefix, &scripts] {
        command.arg("--agent-read").arg(dir);
    }
    command.args(more).arg("--").arg(&node).arg(scripts.join("agent.mjs"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Configuration for attached clients of the workspace at `root`.
pub(crate) fn config(root: PathBuf) -> Config {
    Config {
        session: connection(),
        root,
        alias: None,
        further: Vec::new(),
        commands: None,
        toolset: Toolset::Workspace(Name::near("ws")),
        location: ClientLocation::Sandbox,
        elicit: false,
        prompt: false,
        max_line: 1 << 20,
        attached: None,
        revoked: Default::default(),
        options: String::new(),
        announce: |_, _| {},
    }
}

/// Returns the record that names the MCP server: with a mount that is not `start`.
fn start(records: &[Value]) -> &Value {
    let mut all = records.iter();
    all.find(|record| record["facts"]["mcp"].is_string()).unwrap()
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

#[test]
fn an_acp_agent_removes_lists_and_searches_in_one_session_with_its_reads() {
    let before = sockets();
    let mut run = Run::start(POLICY, &[], Editor::default());
    let servers = run.order(&json!({"order": "servers"}));
    let server = &servers["ok"][0];
    assert_eq!(server["name"], "portcullis");
    assert_eq!(server["args"], json!(["mcp", "--connect", "/.portcullis/gateway"]));
    assert_eq!(server["env"][0]["name"], "PORTCULLIS_ATTACH_TOKEN");

    let results = run.calls(&[
        ("ls", json!({"path": "."})),
        ("grep", json!({"pattern": "two"})),
        ("rm", json!({"path": "old", "recursive": true})),
        ("rename", json!({"from": "a.txt", "to": "c.txt"})),
        ("read_file", json!({"path": "secret/key.txt"})),
    ]);
    assert!(
        text(&results[0]).contains("a.txt") && text(&results[0]).contains("old"),
        "{results:#?}"
    );
    assert!(text(&results[1]).contains("a.txt"), "{results:#?}");
    assert!(!results[1].to_string().contains("TOP-SECRET"), "{results:#?}");
    for done in &results[..4] {
        assert_ne!(done["isError"], true, "{done}");
        assert!(done["_meta"]["portcullis/receipt"]["leaf"].is_string(), "{done}");
    }
    assert_eq!(results[4]["isError"], true);
    assert_eq!(results[4]["_meta"]["portcullis/error"]["rule"], "keys");
    assert!(!run.world.path("old").exists() && run.world.path("c.txt").exists());
    let file = run.world.root().canonicalize().unwrap().join("c.txt");
    let read = run.order(&json!({"order": "read", "path": file}));
    assert_eq!(read["ok"]["content"], "one\ntwo\n");

    let (records, said) = run.end();
    assert!(!said.contains("MCP"), "{said}");
    assert_eq!(start(&records)["facts"]["mcp"], "offered");
    let of = |transport: &str, op: &str| {
        let is = |record: &&Value| record["transport"] == transport && record["op"] == op;
        let found = records.iter().find(is);
        found.unwrap_or_else(|| panic!("{transport} {op} {records:#?}"))["facts"]["acpSession"]
            .clone()
    };
    let session = of("acp", "read");
    assert!(session.is_string(), "{session}");
    for op in ["list", "grep", "remove", "rename", "read"] {
        assert_eq!(of("mcp", op), session, "{op}");
    }
    // Nothing is left of the socket on the host. Those of other runs come and go.
    let end = Instant::now() + Duration::from_secs(120);
    while !sockets().is_subset(&before) {
        assert!(Instant::now() < end, "{before:?} {:?}", sockets());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The directories in which runs have their sockets before the agent starts.
fn sockets() -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir("/tmp").unwrap().filter_map(Result::ok);
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(".portcullis-") && path.join("gateway").exists()
    };
    entries.map(|entry| entry.path()).filter(named).collect()
}

/// An agent got no hint that its own tools see none of the files.
#[test]
fn an_agent_in_the_sandbox_is_told_what_its_own_tools_see() {
    for (options, words) in [
        (&["--no-mount"][..], "your shell do not have these files"),
        (&["--mount"], "your shell have these files, too"),
    ] {
        let mut run = Run::start(POLICY, options, Editor::default());
        let said = run.order(&json!({"order": "inside", "calls": []}));
        let said = said["ok"]["instructions"].as_str().unwrap().to_owned();
        let root = run.world.root().canonicalize().unwrap();
        assert!(said.len() < 2048 && said.contains(root.to_str().unwrap()), "{said}");
        assert!(said.contains(words), "{said}");
        run.end();
    }
}

#[test]
fn limits_count_over_both_transports_and_survive_the_end_of_a_connection() {
    let policy = format!("{POLICY}\n[limits]\nfilesRemoved = 2\n");
    let mut run = Run::start(&policy, &[], Editor::default());
    run.world.file("x/1", "1");
    run.world.file("x/2", "2");
    run.world.file("x/3", "3");
    // Each time over a connection of its own.
    for (name, denied) in [("x/1", false), ("x/2", false), ("x/3", true)] {
        let results = run.calls(&[("rm", json!({"path": name}))]);
        assert_eq!(results[0]["isError"] == true, denied, "{name} {results:#?}");
    }
    assert!(run.world.path("x/3").exists());
    run.end();
}

#[test]
fn what_a_rule_asks_about_is_put_to_the_editors_user_and_never_to_the_agent() {
    let policy = format!(
        "{POLICY}\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"remove\"]\n\
         paths = [\"old/**\"]\nreason = \"old things\"\n"
    );
    let editor = Editor { permissions: ["reject_once", "allow_once"].into(), ..Editor::default() };
    let mut run = Run::start(&policy, &[], editor);
    let rm = || ("rm", json!({"path": "old/b.txt"}));
    let results = run.calls(&[rm(), rm()]);
    assert_eq!(results[0]["isError"], true, "{results:#?}");
    assert_ne!(results[1]["isError"], true, "{results:#?}");
    assert!(!run.world.path("old/b.txt").exists());
    let asked = run.client().asked.clone();
    let asked: Vec<_> =
        asked.iter().filter(|asked| asked["method"] == "session/request_permission").collect();
    assert_eq!(asked.len(), 2, "{asked:#?}");
    assert_eq!(asked[0]["params"]["sessionId"], json!(run.session));
    run.end();
}

/// It was denied after its timeout, without a question.
#[test]
fn a_resource_that_a_rule_asks_about_is_put_to_the_editors_user_too() {
    let policy = format!(
        "{POLICY}\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"read\"]\n\
         paths = [\"old/**\"]\n"
    );
    let editor = Editor { permissions: ["allow_once"].into(), ..Editor::default() };
    let mut run = Run::start(&policy, &[], editor);
    let file = run.world.root().canonicalize().unwrap().join("old/b.txt");
    let uri = format!("file://{}", file.to_str().unwrap());
    let results = run.calls(&[("resources/read", json!({ "uri": uri }))]);
    assert_eq!(results[0]["contents"][0]["text"], "two\n", "{results:#?}");
    run.end();
}

#[test]
fn a_client_without_a_current_token_is_not_served() {
    let mut run = Run::start(POLICY, &[], Editor::default());
    let servers = run.order(&json!({"order": "servers"}));
    let word = servers["ok"][0]["env"][0]["value"].as_str().unwrap().to_owned();
    for wrong in ["0".repeat(32), "x".to_owned(), word.to_uppercase().replace('A', "B") + "\n"] {
        let said = run.order(&json!({"order": "inside", "calls": [], "word": wrong}));
        assert_eq!(said["ok"]["hello"]["exit"], 1, "{said}");
    }
    let (records, said) = run.end();
    assert!(said.contains("the gateway closed the connection"), "{said}");
    let dropped = records.iter().filter(|record| record["op"] == "mcp.dropped").count();
    assert!(dropped >= 1, "{records:#?}");
}

/// Each had a line in the log file or a record: megabytes in a second.
#[test]
fn connections_that_come_to_nothing_are_told_of_by_their_number() {
    let (dir, root) = workspace();
    let gateway = Arc::new(gateway(&root, dir.path()));
    let sandbox_socket = dir.path().join("socket");
    let listener = UnixListener::bind(&sandbox_socket).unwrap();
    let attached_clients = AttachTokens::new(Path::new("/p"), Path::new("/s"));
    let inside = SandboxSocket::start(
        Connections::Listener(listener.into()),
        gateway,
        attached_clients,
        config(root),
    )
    .unwrap();
    let says = [&b""[..], &[b'0'; 33], b"0"];
    for said in says.iter().cycle().take(99) {
        let mut stream = UnixStream::connect(&sandbox_socket).unwrap();
        // It may be closed already, with unread input.
        let _ = stream.write_all(said);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    inside.stop(std::time::Duration::from_secs(60));
    let log = dir.path().join("state/audit/seg-000000.jsonl");
    let log = std::fs::read_to_string(log).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let told = records.filter(|record| record["op"] == "mcp.dropped");
    let told: Vec<_> = told.map(|record| record["facts"]["connections"].as_u64()).collect();
    // At once, and in the end.
    assert_eq!(told, [Some(1), Some(98)], "{log}");
}

/// Requests that had been read of a client were carried out after the end, and kept the gateway
/// from stopping in time.
#[test]
fn of_a_client_that_is_disconnected_nothing_more_begins() {
    let (dir, root) = workspace();
    let gateway = Arc::new(gateway(&root, dir.path()));
    let sandbox_socket = dir.path().join("socket");
    let listener = UnixListener::bind(&sandbox_socket).unwrap();
    let attached_clients = AttachTokens::new(Path::new("/p"), Path::new("/s"));
    let token = attached_clients.issue(&connection(), None).unwrap();
    let inside = SandboxSocket::start(
        Connections::Listener(listener.into()),
        gateway,
        attached_clients,
        config(root),
    )
    .unwrap();
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "t", "version": "0"}});
    let mut said = format!("{token}\n{}\n", request(0, "initialize", hello));
    said += "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";
    let asks = |id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"x\"}}\n");
    said += &asks(1);
    let mut stream = UnixStream::connect(&sandbox_socket).unwrap();
    stream.write_all(said.as_bytes()).unwrap();
    let log = dir.path().join("state/audit/seg-000000.jsonl");
    let begun =
        || std::fs::read_to_string(&log).unwrap_or_default().matches("\"op\":\"method x\"").count();
    while begun() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // No request is carried out while its record waits for this lock.
    let lock = std::fs::File::open(dir.path().join("state/audit/lock")).unwrap();
    lock.lock().unwrap();
    stream.write_all((2..1900).map(asks).collect::<String>().as_bytes()).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let before = begun();
    let unlocks = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        lock.unlock().unwrap();
    });
    inside.stop(Duration::from_secs(60));
    unlocks.join().unwrap();
    let after = begun();
    assert!(after - before < 300, "{before} {after}");
}

#[test]
fn it_is_left_out_where_it_is_not_wanted_or_the_agent_is_not_confined() {
    for (more, why, note) in [
        (&["--no-mcp"][..], "not offered: `--no-mcp`", false),
        (&["--unconfined"], "not offered: the agent is not confined", true),
    ] {
        let mut run = Run::start(POLICY, more, Editor::default());
        assert_eq!(run.order(&json!({"order": "servers"}))["ok"], json!([]));
        let (records, said) = run.end();
        assert_eq!(start(&records)["facts"]["mcp"], why);
        assert_eq!(
            said.matches("not offered the gateway's MCP server").count(),
            usize::from(note),
            "{said}"
        );
    }
}

#[test]
fn fast_agent_sees_the_gateways_server_and_uses_it() {
    let mut run =
        fast_agent_confined::Run::with("disk", &fast_agent_config(), |_| Editor::default(), &[]);
    let tool = |name: &str| format!("portcullis__workspace__ws__{name}");
    let turn = run.tool(&tool("ls"), &json!({"path": "."}));
    assert!(turn.said.contains("a.txt"), "{}", turn.said);
    let turn = run.tool(&tool("grep"), &json!({"pattern": "żółć"}));
    assert!(turn.said.contains("two żółć"), "{}", turn.said);
    let turn = run.tool(&tool("read_file"), &json!({"path": "secret/key.txt"}));
    assert!(turn.said.contains("denied") && !turn.said.contains("TOP-SECRET"), "{}", turn.said);
    let turn = run.tool("read_text_file", &json!({"path": run.path("a.txt")}));
    assert!(turn.said.contains("two żółć"), "{}", turn.said);
    let turn = run.tool(&tool("rm"), &json!({"path": "a.txt"}));
    assert!(turn.states.contains(&"completed".to_owned()), "{}", turn.said);
    assert!(!run.world.path("a.txt").exists());

    let records = run.end();
    let session = |transport: &str, op: &str| {
        let is = |record: &&Value| record["transport"] == transport && record["op"] == op;
        let found = records.iter().find(is).unwrap_or_else(|| panic!("{records:#?}"));
        found["facts"]["acpSession"].clone()
    };
    assert_eq!(session("mcp", "remove"), session("acp", "read"));
    assert_eq!(session("mcp", "grep"), session("acp", "read"));
}
