//! Further workspaces (`--add-dir`) over ACP and MCP: absolute paths lead to them.

use serde_json::json;

use super::*;
use crate::acp_client::{Client, Editor};

/// A policy that allows everything except one file, and asks about another.
const POLICY: &str = r#"
schema = 1
name = "library"
version = 1

[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]

[[rules]]
id = "frozen"
effect = "deny"
operations = ["read", "write", "remove"]
paths = ["frozen.txt"]

[[rules]]
id = "careful"
effect = "ask"
operations = ["write"]
paths = ["careful.txt"]
"#;

struct Run {
    world: SandboxWorld,
    child: Child,
    client: Option<Client>,
    session: String,
}

impl Run {
    fn start(who: As, options: &[&str]) -> Self {
        let world = SandboxWorld::new(who);
        std::fs::create_dir(world.at("lib")).unwrap();
        std::fs::write(world.at("lib/lib.txt"), "one\ntwo\n").unwrap();
        std::fs::write(world.at("lib/frozen.txt"), "frozen two\n").unwrap();
        std::fs::write(world.at("policies/library.toml"), POLICY).unwrap();
        if is_root() && who != As::Root {
            world.give_away();
        }
        let scripts = tools().join("agent");
        let script = scripts.join("acp_agent.py");
        let added = format!("{}={}", world.at("lib"), world.at("policies/library.toml"));
        let given = ["--agent-read", scripts.to_str().unwrap(), "--source", "disk"];
        let options = [&given, &["--add-dir", &added][..], options].concat();
        let agent = ["/usr/bin/python3", script.to_str().unwrap()];
        let mut child = world.start(&options, &agent);
        let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let mut client = Client::with(streams.0, streams.1, Editor::default());
        let root = world.base().canonicalize().unwrap();
        let params = json!({
            "cwd": root.join("ws"), "mcpServers": [], "additionalDirectories": [root.join("lib")]
        });
        let session = client.session_in(&params);
        Self { world, child, client: Some(client), session }
    }

    fn lib(&self, name: &str) -> String {
        let lib = self.world.base().canonicalize().unwrap().join("lib");
        lib.join(name).to_str().unwrap().trim_end_matches('/').to_owned()
    }

    /// Has the agent carry out an order; returns its report.
    fn order(&mut self, order: &Value) -> Value {
        let client = self.client.as_mut().unwrap();
        assert_eq!(client.prompt(&self.session, &order.to_string()).stop_reason, "end_turn");
        let last = client.updates.last().expect("an answer");
        let said = last["update"]["content"]["text"].as_str().unwrap();
        let said: Value = serde_json::from_str(said).unwrap();
        assert_eq!(said["error"], Value::Null, "{said}");
        said["ok"].clone()
    }

    fn file(&mut self, method: &str, params: &Value) -> Value {
        self.order(&json!({"order": "file", "method": method, "params": params}))
    }

    /// Returns the results of calls of the gateway's tools.
    fn calls(&mut self, calls: &Value) -> Vec<Value> {
        let said = self.order(&json!({"order": "calls", "calls": calls}));
        said["results"].as_array().unwrap().clone()
    }

    /// Hangs up; gives the records of both logs.
    fn end(mut self) -> (Vec<Value>, Vec<Value>) {
        self.client = None;
        let ended = end(self.child);
        assert_eq!(ended.code, 0, "{ended:?}");
        let states = self.world.base().join("home/.local/state/portcullis");
        let mut names = std::fs::read_dir(states).unwrap().map(|entry| entry.unwrap().path());
        let state = names.find(|path| path.to_str().unwrap().contains("/lib-")).unwrap();
        (self.world.records(), self.world.records_in(state.to_str().unwrap()))
    }
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

fn of<'a>(records: &'a [Value], transport: &str, op: &str) -> Option<&'a Value> {
    records.iter().find(|record| record["transport"] == transport && record["op"] == op)
}

/// `additionalDirectories` of ACP were refused, even directories that the operator gave.
#[test]
fn an_acp_agent_reads_and_writes_in_a_further_workspace() {
    for who in users() {
        let mut run = Run::start(who, &[]);
        let (lib, frozen, new) = (run.lib("lib.txt"), run.lib("frozen.txt"), run.lib("new.txt"));
        let read = run.file("fs/read_text_file", &json!({"path": lib, "line": 2}));
        assert_eq!(read["result"]["content"], "two\n", "{who:?} {read}");
        let write = run.file("fs/write_text_file", &json!({"path": new, "content": "new\n"}));
        assert!(
            write["result"]["_meta"]["portcullis/receipt"].is_object() || write["error"].is_null()
        );
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "new\n");
        let denied = run.file("fs/read_text_file", &json!({"path": frozen}));
        assert_eq!(denied["error"]["data"]["rule"], "frozen", "{denied}");
        let beside = format!("{}-evil/x", run.lib(""));
        let outside = run.file("fs/read_text_file", &json!({"path": beside}));
        assert!(outside["error"].is_object(), "{outside}");
        let (main, library) = run.end();
        let session = &of(&library, "acp", "read").unwrap()["session"];
        assert_eq!(&of(&library, "acp", "acp.session").unwrap()["session"], session);
        assert_eq!(&of(&main, "acp", "acp.session").unwrap()["session"], session);
        assert!(main.iter().all(|record| record["path"] != "lib.txt"));
        assert!(library.iter().any(|record| record["rule"] == "frozen"));
    }
}

#[test]
fn a_person_is_asked_about_the_file_of_the_further_workspace() {
    let mut run = Run::start(users()[0], &[]);
    let careful = run.lib("careful.txt");
    run.file("fs/write_text_file", &json!({"path": careful, "content": "x"}));
    run.calls(&json!([["write_file", {"path": careful, "content": "y"}]]));
    assert_eq!(std::fs::read_to_string(&careful).unwrap(), "y");
    let asked = run.client.as_ref().unwrap().asked.clone();
    let asked: Vec<_> =
        asked.iter().filter(|asked| asked["method"] == "session/request_permission").collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    for asked in asked {
        let call = &asked["params"]["toolCall"];
        assert_eq!(call["locations"][0]["path"], careful, "{call}");
        assert!(call["title"].as_str().unwrap().contains(&run.lib("")), "{call}");
    }
    run.end();
}

/// Only its id was given, which `portcullis approve` looked for in the first workspace.
#[test]
fn a_question_about_a_further_workspace_did_not_say_how_to_find_it() {
    let mut run = Run::start(users()[0], &[]);
    let careful = run.lib("careful.txt");
    run.calls(&json!([["write_file", {"path": careful, "content": "y"}]]));
    run.client = None;
    let ended = end(run.child);
    let told = ended.stderr.lines().find(|line| line.contains("`portcullis approve "));
    let state = told.and_then(|line| line.split_once(" --state "));
    assert!(state.is_some_and(|(_, state)| state.contains("/lib-")), "{ended:?}");
}

#[test]
fn the_tools_reach_a_further_workspace_by_absolute_paths() {
    let mut run = Run::start(users()[0], &[]);
    let at = |name: &str| run.lib(name);
    let (lib, txt, new, frozen) = (at(""), at("lib.txt"), at("new.txt"), at("frozen.txt"));
    let results = run.calls(&json!([
        ["read_file", {"path": txt}],
        ["write_file", {"path": new, "content": "new two\n"}],
        ["ls", {"path": lib}],
        ["grep", {"pattern": "two", "path": lib}],
        ["glob", {"pattern": format!("{lib}/**/*.txt")}],
        ["stat", {"path": lib}],
        ["rename", {"from": new, "to": at("renamed.txt")}],
        ["read_files", {"paths": [txt, frozen]}],
        // Relative paths are the first workspace's, also where this one is called as the other.
        ["grep", {"pattern": lib}],
        ["read_file", {"path": "file.txt"}],
        ["ls", {"path": "."}],
        ["rm", {"path": at("renamed.txt")}],
    ]));
    for (number, result) in results.iter().enumerate() {
        assert_ne!(result["isError"], true, "{number}: {result}");
    }
    assert_eq!(text(&results[0]), "one\ntwo\n");
    for (number, path) in [(2, &txt), (3, &txt), (3, &new), (4, &new), (5, &lib)] {
        assert!(
            results[number].to_string().contains(&format!("\"{path}\"")),
            "{}",
            results[number]
        );
    }
    assert!(!results[3].to_string().contains("frozen two"), "{}", results[3]);
    assert!(!results[7].to_string().contains("frozen two"), "{}", results[7]);
    assert_eq!(text(&results[9]), "secret\n");
    assert!(text(&results[10]).contains("file.txt") && !text(&results[10]).contains("lib.txt"));
    let (main, library) = run.end();
    for op in ["read", "list", "grep", "glob", "stat", "rename", "remove"] {
        assert!(of(&library, "mcp", op).is_some(), "{op} {library:?}");
    }
    let session = &of(&library, "mcp", "read").unwrap()["session"];
    assert_eq!(&of(&main, "mcp", "read").unwrap()["session"], session);
}

/// A path of one workspace in a call about the other would name another file than intended.
#[test]
fn no_call_is_about_two_workspaces() {
    let mut run = Run::start(users()[0], &[]);
    let (txt, moved) = (run.lib("lib.txt"), run.lib("moved.txt"));
    let main = run.world.base().canonicalize().unwrap().join("ws/file.txt");
    std::fs::write(run.lib("file.txt"), "of the library\n").unwrap();
    let results = run.calls(&json!([
        ["rename", {"from": "file.txt", "to": moved}],
        ["rename", {"from": main, "to": moved}],
        ["rename", {"from": txt, "to": "moved.txt"}],
        ["read_files", {"paths": ["file.txt", txt]}],
        ["read_file", {"path": run.lib("../ws/file.txt")}],
    ]));
    for refused in [0, 1, 2, 4] {
        assert_eq!(results[refused]["isError"], true, "{}", results[refused]);
    }
    let both = results[3].to_string();
    assert!(both.contains("one\\ntwo") || both.contains("one\\\\ntwo"), "{both}");
    assert!(!both.contains("of the library") && !both.contains("secret"), "{both}");
    assert!(!Path::new(&moved).exists() && main.exists() && Path::new(&txt).exists());
    run.end();
}
