//! Under partial confinement an agent's MCP clients reach the gateway by named
//! pipes.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::{
    acp_client::{Client, Editor},
    scripted_agent,
};

const PIPES: &str = ".portcullis-pipes-";

/// An agent before our own client.
struct Run {
    world: SandboxWorld,
    child: Child,
    client: Option<Client>,
    sessions: Vec<String>,
}

impl Run {
    fn start(options: &[&str], sessions: usize) -> Self {
        let world = SandboxWorld::new(As::UserWithoutNamespaces);
        let line = "0123456789abcdef".repeat(20) + "\n";
        std::fs::write(world.at("ws/large.txt"), line.repeat(3_000)).unwrap();
        Self::in_place(world, options, sessions)
    }

    fn in_place(world: SandboxWorld, options: &[&str], sessions: usize) -> Self {
        let scripts = tools().join("agent");
        let script = scripts.join("acp_agent.py");
        let given = ["--agent-read", scripts.to_str().unwrap(), "--source", "disk"];
        let agent = ["/usr/bin/python3", script.to_str().unwrap()];
        let mut child = world.start(&[&given, options].concat(), &agent);
        let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let mut client = Client::with(streams.0, streams.1, Editor::default());
        let root = world.base().join("ws").canonicalize().unwrap();
        let sessions = (0..sessions).map(|_| client.session(&root)).collect();
        Self { world, child, client: Some(client), sessions }
    }

    /// Has the agent carry out an order; returns its report.
    fn order(&mut self, order: &Value) -> Value {
        let client = self.client.as_mut().unwrap();
        let turn = client.prompt(&self.sessions[0], &order.to_string());
        assert_eq!(turn.stop_reason, "end_turn");
        let last = client.updates.last().expect("an answer");
        let said = last["update"]["content"]["text"].as_str().unwrap();
        let said: Value = serde_json::from_str(said).unwrap();
        assert_eq!(said["error"], Value::Null, "{said}");
        said["ok"].clone()
    }

    /// The directory of the pipes.
    fn pipes(&mut self) -> PathBuf {
        let servers = self.order(&json!({"order": "servers"}));
        servers[0]["args"][2].as_str().unwrap().into()
    }

    /// Closes the connection; returns the text on stderr.
    fn end(mut self) -> (SandboxWorld, AgentOutput) {
        self.client = None;
        let ended = end(self.child);
        assert_eq!(ended.code, 0, "{ended:?}");
        (self.world, ended)
    }
}

fn read() -> Value {
    json!([["read_file", {"path": "file.txt"}]])
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

/// There was no MCP server, and so no way to remove or search.
#[test]
fn an_agent_in_part_confined_has_the_gateways_mcp_server() {
    let mut run = Run::start(&["--allow-partial"], 1);
    let servers = run.order(&json!({"order": "servers"}));
    assert_eq!(servers[0]["name"], "portcullis", "{servers}");
    let pipes = run.pipes();
    assert!(pipes.file_name().unwrap().to_str().unwrap().starts_with(PIPES), "{servers}");
    let calls = json!([
        ["read_file", {"path": "file.txt"}],
        ["read_file", {"path": "large.txt"}],
        ["write_file", {"path": "new.txt", "content": "x".repeat(300_000)}],
        ["rm", {"path": "file.txt"}],
        ["read_file", {"path": "../state"}],
    ]);
    let said = run.order(&json!({"order": "calls", "calls": calls}));
    let results = said["results"].as_array().unwrap();
    assert!(text(&results[0]).contains("secret"), "{results:#?}");
    assert!(text(&results[1]).len() > 60_000, "{}", text(&results[1]).len());
    for done in &results[..4] {
        assert_ne!(done["isError"], true, "{done}");
    }
    assert_eq!(results[4]["isError"], true);
    assert_eq!(said["end"], json!({"exit": 0, "rest": "", "said": ""}));
    assert!(!run.world.base().join("ws/file.txt").exists());
    assert_eq!(std::fs::read(run.world.at("ws/new.txt")).unwrap().len(), 300_000);

    let (world, ended) = run.end();
    assert!(!ended.stderr.contains("MCP"), "{ended:?}");
    let records = world.records();
    let start = records.iter().find(|record| record["kind"] == "start").unwrap();
    assert_eq!(start["facts"]["enforcement"], "partial");
    assert_eq!(start["facts"]["mcp"], "offered");
    let removed = records.iter().find(|record| record["op"] == "remove").unwrap();
    assert_eq!((&removed["transport"], &removed["agent"]), (&json!("mcp"), &start["agent"]));
    assert!(!pipes.exists());
}

/// Other agents without namespaces see command lines.
#[test]
fn the_word_of_a_session_stood_on_a_command_line() {
    let mut run = Run::start(&["--allow-partial"], 1);
    let servers = run.order(&json!({"order": "servers"}));
    let word = servers[0]["env"][0]["value"].as_str().unwrap();
    assert_eq!(word.strip_prefix("portcullis-token-").map(str::len), Some(32), "{servers}");
    assert!(!servers[0]["args"].to_string().contains(word), "{servers}");
    run.end();
}

/// An agent that was given `/tmp` had other agents' pipes with it.
#[test]
fn the_directory_of_all_pipes_was_given_to_an_agent() {
    for option in ["--agent-read", "--agent-write"] {
        let outside = TempDir::new_in("/var/tmp").unwrap();
        let world = SandboxWorld::in_directory(outside, As::UserWithoutNamespaces);
        let ended = world.run(&["--allow-partial", option, "/tmp"], &["/bin/true"]);
        assert_eq!(ended.code, 1, "{option} {ended:?}");
        let given = TempDir::new().unwrap();
        let beneath = given.path().to_str().unwrap();
        let ended = world.run(&["--allow-partial", option, beneath], &["/bin/true"]);
        assert_eq!(ended.code, 0, "{option} {ended:?}");
    }
}

#[test]
fn clients_of_two_sessions_are_served_beside_each_other() {
    let mut run = Run::start(&["--allow-partial"], 2);
    assert_eq!(run.order(&json!({"order": "beside"})), json!([0, 0]));
    let (world, _) = run.end();
    let records = world.records();
    let reads =
        records.iter().filter(|record| record["op"] == "read" && record["transport"] == "mcp");
    let sessions: std::collections::BTreeSet<_> =
        reads.map(|record| record["facts"]["acpSession"].as_str().unwrap()).collect();
    assert_eq!(sessions.len(), 2, "{sessions:?}");
}

#[test]
fn nothing_of_a_killed_client_reaches_the_next_one() {
    let mut run = Run::start(&["--allow-partial"], 1);
    let order = json!({"order": "killed", "times": 300, "seed": 7, "calls": read()});
    let said = run.order(&order);
    assert!(text(&said["results"][0]).contains("secret"), "{said}");
    run.end();
}

#[test]
fn what_is_no_announcement_costs_nobody_anything() {
    let mut run = Run::start(&["--allow-partial"], 1);
    let said = run.order(&json!({"order": "garbage", "calls": read()}));
    assert!(text(&said["results"][0]).contains("secret"), "{said}");
    assert_eq!(said["end"]["exit"], 0, "{said}");
    let (world, _) = run.end();
    let dropped = world.records().iter().filter(|record| record["op"] == "mcp.dropped").count();
    assert!((1..=3).contains(&dropped), "{dropped}");
}

#[test]
fn who_finds_no_place_is_told_how_many_there_are() {
    let mut run = Run::start(&["--allow-partial"], 1);
    let said = run.order(&json!({"order": "full", "room": 16}));
    assert_eq!(said["refused"]["exit"], 1, "{said}");
    assert!(said["refused"]["said"].as_str().unwrap().contains("all 16 connections"), "{said}");
    assert_eq!((&said["ended"], &said["again"]), (&json!(0), &json!(0)), "{said}");
    run.end();
}

/// A client that does not read must not hold up the end either.
#[test]
fn the_pipes_are_gone_when_the_gateway_ends_or_another_begins_after_it_was_killed() {
    let mut run = Run::start(&["--allow-partial"], 1);
    let pipes = run.pipes();
    run.order(&json!({"order": "keep"}));
    let begun = std::time::Instant::now();
    let (world, _) = run.end();
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert!(!pipes.exists());

    let mut run = Run::in_place(world, &["--allow-partial"], 1);
    let pipes = run.pipes();
    let processes = scripted_agent::descendants(i32::try_from(run.child.id()).unwrap());
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    // As long as one of them is there, the pipes are locked.
    assert!(scripted_agent::gone(&processes));
    assert!(pipes.exists());
    let mut next = Run::in_place(run.world, &["--allow-partial"], 1);
    assert!(!pipes.exists());
    let own = next.pipes();
    let beside = Run::start(&["--allow-partial"], 1);
    assert!(own.exists(), "another run removed the pipes of one that goes on");
    beside.end();
    next.end();
}

#[test]
fn another_user_cannot_open_the_pipes() {
    use std::os::unix::fs::PermissionsExt as _;

    let mut run = Run::start(&["--allow-partial"], 1);
    let pipes = run.pipes();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&pipes), 0o700);
    let open = |user: &str, name: &str| {
        let script = format!("exec 3<>{}/{name}", pipes.display());
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "sh", "-c", &script]);
        command.stderr(Stdio::null()).status().unwrap().success()
    };
    for name in ["announcements", "0.in", "0.out", "15.in", "15.out"] {
        assert_eq!(mode(&pipes.join(name)), 0o600, "{name}");
        if is_root() {
            assert!(open(USER, name), "{name}");
            assert!(!open("4322", name), "{name}");
        }
    }
    run.end();
}

#[test]
fn unconfined_there_is_no_server() {
    let mut run = Run::start(&["--unconfined"], 1);
    assert_eq!(run.order(&json!({"order": "servers"})), json!([]));
    let (world, ended) = run.end();
    assert!(ended.stderr.contains("not offered the gateway's MCP server"), "{ended:?}");
    let records = world.records();
    let start = records.iter().find(|record| record["kind"] == "start").unwrap();
    assert_eq!(start["facts"]["mcp"], "not offered: the agent is not confined");
}
