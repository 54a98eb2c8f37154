//! Reads of labelled content close hosts, before the content is disclosed.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
};

use super::*;
use crate::acp_client::{Client, Editor};

/// Two hosts are open; once `data` was read, `effect` holds for all but `open`.
fn policy(port: u32, effect: &str, version: u32) -> String {
    format!(
        "{}version = {version}\n{}[limits]\napprovalTimeout = \"1s\"\n[mount]\n\
         [[labels]]\nid = \"customers\"\npaths = [\"data/**\"]\n\
         [[network.rules]]\nid = \"site\"\neffect = \"allow\"\nports = [{port}]\n\
         hosts = [\"site.example\", \"other.example\", \"127.0.0.1\"]\n\
         [[network.rules]]\nid = \"closed\"\neffect = \"{effect}\"\nwhenRead = [\"customers\"]\n\
         hosts = [\"*\"]\nexcept = [\"other.example\"]\n",
        ALL.split_inclusive('\n').next().unwrap(),
        ALL.split_once('\n').unwrap().1
    )
}

struct Labelled {
    net: Net,
    server: Server,
}

impl Labelled {
    fn new(effect: &str) -> Self {
        let server = Server::echo();
        let net = Net::with_policy(&policy(server.port, effect, 1));
        net.world.file("data/a.csv", "alice\n");
        net.world.file("src/a.rs", "fn a() {}\n");
        Self { net, server }
    }

    fn order(&self, order: &Value) {
        self.net.world.file("order.json", order.to_string());
    }

    /// Returns the client's report of reading a file while tunnels are open.
    fn labels(&self, order: &Value) -> Value {
        self.order(order);
        self.net.client("labels", &[self.server.port])
    }

    /// True if bytes that were sent after the read have come to the host.
    fn was_stolen(&self) -> bool {
        self.server.seen().iter().any(|seen| seen.contains("stolen"))
    }

    fn of(&self, op: &str) -> Vec<Value> {
        let records = self.net.world.records().into_iter();
        records.filter(|record| record["op"] == op).collect()
    }
}

const BOTH: [&str; 2] = ["site.example", "other.example"];

#[test]
fn a_tunnel_from_before_a_read_is_closed_before_it_is_disclosed() {
    let it = Labelled::new("deny");
    let order = json!({"hosts": BOTH, "open": "other.example", "path": "data/a.csv"});
    let found = it.labels(&order);
    assert_eq!(found["content"], "alice\n");
    assert_eq!(found["ended"], json!({"site.example": true}));
    assert_eq!(found["then"], json!({"site.example": 403, "other.example": 200}));
    // The exempt host alone has it.
    let stolen = it.server.seen().into_iter().filter(|seen| seen.contains("stolen")).count();
    assert_eq!(stolen, 1);
    let label = it.of("label").pop().unwrap();
    assert_eq!(label["facts"]["labels"], json!({"customers": "data/a.csv"}));
    assert!(label["facts"]["by"] == "read" && label["transport"] == "mount", "{label}");
    assert!(label["facts"]["process"].is_object(), "{label}");
    let first = json!({"customers": {"record": label["seq"], "path": "data/a.csv"}});
    let connects = it.net.connects();
    let ended = connects
        .iter()
        .find(|record| record["kind"] == "outcome" && record["facts"]["host"] == "site.example");
    let ended = ended.unwrap();
    assert_eq!((&ended["rule"], &ended["result"]), (&json!("closed"), &json!("denied")));
    assert_eq!(ended["facts"]["whenRead"], first);
    let denied =
        connects.iter().find(|record| record["decision"] == "deny" && record["kind"] == "decision");
    let denied = denied.unwrap();
    assert_eq!((&denied["rule"], &denied["facts"]["whenRead"]), (&json!("closed"), &first));
    // Label, end of the tunnel, read, in this order.
    let reads = it.of("read").into_iter().find(|record| record["path"] == "data/a.csv").unwrap();
    let seqs = [&label, ended, &reads].map(|record| record["seq"].as_u64().unwrap());
    assert!(seqs.is_sorted(), "{seqs:?}");
    assert_eq!(reads["facts"]["labels"], json!(["customers"]));
    let written = it.of("write").into_iter().find(|record| record["path"] == "out").unwrap();
    assert_eq!(written["facts"]["carries"], json!(["customers"]));
    let file = it.net.world.base().join("report.json");
    it.net.world.run(&["audit", "report", "-o", file.to_str().unwrap()]).ok();
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let label = &report["labels"][0];
    assert_eq!((&label["label"], &label["reads"]), (&json!("customers"), &json!(1)));
    assert!(label["changes"].as_u64().unwrap() >= 1, "{label}");
    // Why, of the record and of the policy.
    let number = denied["seq"].to_string();
    let why = it.net.world.run(&["policy", "explain", "--record", &number, "--json"]).ok().json();
    assert_eq!((&why["decision"]["rule"], &why["read"]), (&json!("closed"), &json!(["customers"])));
    let host = format!("site.example:{}", it.server.port);
    let explain = ["policy", "explain", "connect", &host, "--json"];
    assert_eq!(it.net.world.run(&explain).ok().json()["decision"]["effect"], "allow");
    let read = [&explain[..], &["--read", "data/a.csv"]].concat();
    let why = it.net.world.run(&read).ok().json();
    assert_eq!(why["decision"]["reason"], "content labelled `customers` was read");
}

/// The target was disclosed as a name is, to a program with an open tunnel.
#[test]
fn the_target_of_a_labelled_link_is_read_like_its_content() {
    let it = Labelled::new("deny");
    std::os::unix::fs::symlink("alice", it.net.world.path("data/link")).unwrap();
    let order = json!({"hosts": BOTH, "open": "other.example", "path": "data/link", "link": true});
    let found = it.labels(&order);
    assert_eq!(found["content"], "alice");
    assert_eq!(found["ended"], json!({"site.example": true}));
    assert_eq!(found["then"], json!({"site.example": 403, "other.example": 200}));
    let stolen = it.server.seen().into_iter().filter(|seen| seen.contains("stolen")).count();
    assert_eq!(stolen, 1);
    let label = it.of("label").pop().unwrap();
    assert_eq!(label["facts"]["labels"], json!({"customers": "data/link"}));
    assert!(label["facts"]["by"] == "read" && label["transport"] == "mount", "{label}");
    assert!(label["facts"]["process"].is_object(), "{label}");
}

/// Only the first workspace's policy decided on connections: a file of a further one was read, and
/// sent to a host that the policy with its label closes.
#[test]
fn policies_of_further_workspaces_restrict_the_sandbox() {
    let server = Server::echo();
    let net = Net::new(server.port, "[mount]\n");
    let (lib, lib_policy) = (net.world.base().join("lib"), net.world.base().join("lib.toml"));
    std::fs::create_dir_all(lib.join("data")).unwrap();
    std::fs::write(lib.join("data/a.csv"), "alice\n").unwrap();
    std::fs::write(&lib_policy, policy(server.port, "deny", 1)).unwrap();
    let it = Labelled { net, server };
    it.order(&json!({
        "hosts": ["site.example"], "path": lib.join("data/a.csv"),
    }));
    let added = format!("{}={}", lib.display(), lib_policy.display());
    let port = it.server.port.to_string();
    let command = ["/usr/bin/python3", "client.py", "labels", &port];
    let output = it.net.command(&["--add-dir", &added], &command).output().unwrap();
    let found = reported(output);
    assert_eq!(found["content"], "alice\n");
    assert_eq!(found["ended"], json!({"site.example": true}));
    assert_eq!(found["then"], json!({"site.example": 403}));
    assert!(!it.was_stolen());
    let connects = it.net.connects();
    let denied = |rule: &str| {
        let is = |record: &&Value| record["decision"] == "deny" && record["rule"] == rule;
        connects.iter().rfind(is).unwrap().clone()
    };
    let closed = denied("closed");
    assert_eq!(closed["policy"], lib_policy.to_str().unwrap(), "{closed}");
    let reason = closed["reason"].as_str().unwrap();
    assert!(reason.starts_with("content labelled `customers` was read (policy `"), "{closed}");
    assert_eq!(closed["facts"]["whenRead"]["customers"]["path"], "data/a.csv", "{closed}");
}

#[test]
fn tunnels_that_race_with_a_read_carry_nothing_of_it() {
    let it = Labelled::new("deny");
    let order = json!({"hosts": ["site.example"], "races": 4, "path": "data/a.csv"});
    let found = it.labels(&order);
    assert_eq!(
        (&found["content"], &found["then"]["site.example"]),
        (&json!("alice\n"), &json!(403))
    );
    assert!(found["raced"].as_u64().unwrap() >= 16, "{found}");
    assert!(!it.was_stolen());
}

/// Later sessions read the copies in the private repository of the first, and sent them.
#[test]
fn a_private_repository_keeps_the_labels_of_what_was_copied() {
    let it = Labelled::new("deny");
    let root = it.net.world.path("");
    let init = Command::new("git").args(["init", "-q"]).arg(&root).status().unwrap();
    assert!(init.success());
    let then = || it.net.client("reach", &[it.server.port]);
    let run = |script: &str| {
        let ended = it.net.command(&[], &["/bin/sh", "-c", script]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    };
    // The first one reads all files for its repository.
    assert_eq!(then(), 403);
    assert_eq!(then(), 403);
    let labels = it.of("label");
    assert_eq!((labels.len(), &labels[1]["facts"]["by"]), (2, &json!("repository")), "{labels:?}");
    assert_eq!(labels[1]["facts"]["labels"], json!({"customers": "data/a.csv"}));
    assert!(!it.was_stolen());

    // A new one has nothing that is labelled.
    it.net.world.file(".gitignore", "data\n");
    run("rm -rf .git");
    assert_eq!(then(), 200);
    assert_eq!(then(), 200);
    assert_eq!(it.of("label").len(), 3);

    // Nobody stored what a killed session was shown.
    let mut child = it.net.command(&[], &["/bin/sh", "-c", "echo ready; sleep 100"]);
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(then(), 403);
    let label = it.of("label").pop().unwrap();
    assert_eq!(label["facts"]["labels"], json!({"customers": ""}), "{label}");
}

#[test]
fn what_has_no_label_closes_nothing() {
    let it = Labelled::new("deny");
    let found =
        it.labels(&json!({"hosts": ["site.example"], "open": "site.example", "path": "src/a.rs"}));
    assert_eq!(found["then"]["site.example"], 200);
    assert!(it.was_stolen() && it.of("label").is_empty());
}

#[test]
fn a_question_closes_a_tunnel_and_asks_about_the_next() {
    let it = Labelled::new("ask");
    let found = it.labels(&json!({"hosts": ["site.example"], "path": "data/a.csv"}));
    assert_eq!(found["ended"]["site.example"], true);
    // Nobody answers.
    assert_eq!(found["then"]["site.example"], 403);
    assert!(!it.was_stolen());
    let asked = it.net.world.records().into_iter().find(|record| record["kind"] == "approval");
    assert!(asked.is_some());
}

#[test]
fn a_reload_brings_a_label() {
    let mut it = Labelled::new("deny");
    it.net.world.set_policy(&policy(it.server.port, "deny", 1).replace("data/**", "elsewhere/**"));
    it.order(&json!({"hosts": ["site.example"], "path": "data/a.csv", "wait": "go"}));
    let child = it.net.start_client("labels", &[it.server.port]);
    ends::eventually(|| it.net.world.path("ready").exists().then_some(()));
    it.net.world.set_policy(&policy(it.server.port, "deny", 2));
    ends::eventually(|| it.of("reload").pop().filter(|record| record["result"] == "ok"));
    it.net.world.file("go", "");
    let found = reported(child.wait_with_output().unwrap());
    assert_eq!(
        (&found["content"], &found["then"]["site.example"]),
        (&json!("alice\n"), &json!(403))
    );
    assert!(!it.was_stolen());
}

/// A label that cannot be recorded discloses nothing.
#[test]
fn a_log_that_cannot_be_written_discloses_nothing_with_a_label() {
    let it = Labelled::new("deny");
    let state = crate::disk::Disk::memory(&it.net.world.state(), 4096);
    let order =
        json!({"hosts": ["site.example"], "path": "data/a.csv", "wait": "go", "full": true});
    it.order(&order);
    let child = it.net.start_client("labels", &[it.server.port]);
    ends::eventually(|| it.net.world.path("ready").exists().then_some(()));
    state.fill(0);
    it.net.world.file("go", "");
    let output = child.wait_with_output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["filled"], 503, "{output:?}");
    assert_eq!(found["content"], "OSError", "{output:?}");
    let of_file = it.of("read").into_iter().filter(|record| record["path"] == "data/a.csv");
    assert_eq!((of_file.count(), it.of("label").len()), (0, 0));
}

/// Content that the agent is shown by ACP and MCP closes connections that its programs have open.
#[test]
fn reads_and_searches_by_acp_and_mcp_count_for_the_sandbox() {
    let agent =
        include_str!("../acp_agent.py").replace("import time\n", "import time\n\nimport client\n");
    let read = |path: &str| json!({"order": "file", "method": "fs/read_text_file", "params": {"path": path}});
    let call =
        |tool: &str, arguments: Value| json!({"order": "calls", "calls": [[tool, arguments]]});
    for number in 0..3 {
        let it = Labelled::new("deny");
        it.net.world.file("agent.py", &agent);
        let args = ["run", "--mount", "--source", "disk", "--", "/usr/bin/python3", "agent.py"];
        let mut child = it.net.portcullis(&args).stdin(Stdio::piped()).spawn().unwrap();
        let streams = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let mut client = Client::with(streams.0, streams.1, Editor::default());
        let root = it.net.world.root().canonicalize().unwrap();
        let session = client.session(&root);
        let mut order = |order: &Value| said(&mut client, &session, order);
        let host = json!({"host": "site.example", "port": it.server.port});
        let with = |name: &str| {
            let mut order = host.clone();
            order["order"] = name.into();
            order
        };
        order(&with("hold"));
        let path = |name: &str| Path::new(&root).join(name).to_str().unwrap().to_owned();
        let (harmless, disclosing) = match number {
            0 => (read(&path("src/a.rs")), read(&path("data/a.csv"))),
            1 => {
                let read = |path: &str| call("read_file", json!({"path": path}));
                (read("src/a.rs"), read("data/a.csv"))
            }
            _ => {
                let grep = |path: &str| call("grep", json!({"pattern": "nobody", "path": path}));
                (grep("src"), grep("."))
            }
        };
        let answer = order(&harmless);
        assert!(it.of("label").is_empty(), "{answer}");
        let answer = order(&disclosing);
        assert_eq!(it.of("label").len(), 1, "{answer}");
        assert_eq!(order(&with("held")), json!([true, 403]), "{answer}");
        assert!(!it.was_stolen());
        drop(client);
        child.wait().unwrap();
    }
}

/// Returns the result of an order, as the agent reports it.
fn said(client: &mut Client, session: &str, order: &Value) -> Value {
    assert_eq!(client.prompt(session, &order.to_string()).stop_reason, "end_turn");
    let mut updates = client.updates.iter().rev();
    let chunk = updates.find(|it| it["update"]["sessionUpdate"] == "agent_message_chunk");
    let said = chunk.unwrap()["update"]["content"]["text"].as_str().unwrap();
    let said: Value = serde_json::from_str(said).unwrap();
    assert_eq!(said["error"], Value::Null, "{said}");
    said["ok"].clone()
}
