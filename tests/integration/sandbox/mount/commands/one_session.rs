//! A run is one session, whatever way its agent takes.

use super::*;

impl Run {
    /// Opens one more ACP session, in which further orders are carried out; returns the one before.
    fn open_another(&mut self) -> String {
        let root = self.world.base().join("ws").canonicalize().unwrap();
        let another = self.client.as_mut().unwrap().session(&root);
        std::mem::replace(&mut self.session, another)
    }
}

/// The agent's update of a tool call.
fn update(id: &str, status: &str) -> Value {
    let kind = if status == "pending" { "tool_call" } else { "tool_call_update" };
    let update = json!({"sessionUpdate": kind, "toolCallId": id, "title": "t", "status": status});
    json!(["session/update", {"update": update}])
}

/// Writes over ACP were in another session than those of the agent's own tools: the story had no turns,
/// and `undo` took half back.
#[test]
fn what_an_agent_writes_over_acp_and_in_the_mount_is_told_and_undone_as_one() {
    for who in users() {
        let mut run = Run::start(who);
        let ws = run.world.at("ws");
        let by_acp = |name: &str| json!(["fs/write_text_file", {"path": format!("{ws}/{name}"), "content": "acp\n"}]);
        let by_mount = |name: &str| json!({"order": "own_write", "path": format!("{ws}/{name}"), "text": "m\n"});
        run.order(&json!({"order": "several", "orders": [
            {"order": "terminals", "calls": [update("call 1", "pending"), by_acp("by-acp")]},
            by_mount("by-mount"),
            {"order": "terminals", "calls": [
                update("call 2", "pending"), update("call 3", "pending"), by_acp("open-calls"),
            ]},
            by_mount("of-several"),
            {"order": "terminals", "calls": [
                update("call 1", "failed"), update("call 2", "in_progress"), by_acp("by-acp"),
            ]},
            by_mount("of-the-one-in-progress"),
        ]}));
        let first = run.open_another();
        run.order(&by_mount("second"));
        let second = run.session.clone();
        let world_of = |name: &str| run.world.base().join("ws").join(name);
        let made = ["by-acp", "by-mount", "of-several", "of-the-one-in-progress", "second"];
        assert!(made.iter().all(|name| world_of(name).exists()), "{who:?}");
        run.client = None;
        let ended = end(run.child);
        assert_eq!(ended.code, 0, "{ended:?}");
        let world = run.world;

        let records = world.records();
        let of = |transport: &str, path: &str| {
            let is = |record: &&Value| {
                said(record, "transport") == transport && said(record, "path") == path
            };
            records.iter().rfind(is).unwrap_or_else(|| panic!("{transport} {path} {records:#?}"))
        };
        let session = said(&records[0], "session");
        assert!(records.iter().all(|record| record["session"] == session), "{records:#?}");
        assert_eq!(of("acp", "by-acp")["facts"]["acpSession"], first);
        assert_eq!(of("acp", "by-acp")["facts"]["toolCall"], "call 2");
        let claimed = |path: &str| of("mount", path)["facts"]["toolCall"].clone();
        assert_eq!(claimed("by-mount"), "call 1");
        assert_eq!(claimed("of-several"), Value::Null);
        assert_eq!(claimed("of-the-one-in-progress"), "call 2");
        assert_eq!(claimed("second"), Value::Null);

        let policy = world.at("policies/policy.toml");
        let print = |args: &[&str]| {
            let ended = end(world.command(args).spawn().unwrap());
            assert_eq!(ended.code, 0, "{args:?} {ended:?}");
            ended.stdout
        };
        let story =
            |id: &str| print(&["audit", "session", id, "--json", "--workspace", &world.at("ws")]);
        let told = story(session);
        let parts: Vec<Value> =
            told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let changed = |path: &str| {
            let is = |part: &&Value| {
                let paths = part["changed"]["paths"].as_array();
                paths.into_iter().flatten().any(|entry| entry["path"] == path)
            };
            parts.iter().find(is).unwrap_or_else(|| panic!("{path} {told}"))
        };
        for (path, turn) in [("by-acp", 1), ("by-mount", 1), ("of-several", 1), ("second", 2)] {
            assert_eq!(changed(path)["turn"], turn, "{path} {told}");
        }
        assert_eq!(changed("by-mount")["claimedToolCalls"], json!(["call 1", "call 2"]));
        let read = print(&["audit", "session", &first, "--workspace", &world.at("ws")]);
        assert!(read.contains("to work for tool call \"call 1\""), "{read}");
        assert!(read.contains(&format!("turn 2 of {second} begins")), "{read}");
        // Each name is the run's.
        let undo = |id: &str, how: &str| {
            print(&["undo", "--session", id, how, "--json", "--policy", &policy])
        };
        let names = [first.as_str(), second.as_str(), "last"];
        names.iter().for_each(|id| assert_eq!(story(id), told));
        let planned = |id: &str| {
            serde_json::from_str::<Value>(&undo(id, "--dry-run")).unwrap()["steps"].clone()
        };
        let steps = planned(session);
        names.iter().for_each(|id| assert_eq!(planned(id), steps));
        undo("last", "--yes");
        for name in made {
            assert!(!world.base().join("ws").join(name).exists(), "{who:?} {name}");
        }
    }
}

/// An approval for the session would count in each ACP session of the run if these had one
/// identifier.
#[test]
fn an_approval_for_a_session_counts_in_no_other_session_of_the_run() {
    let mut run = Run::with(users()[0], "\n[agent]\nterminal = \"ask\"\n", &[]);
    let picks = |run: &mut Run, kind: &'static str| {
        run.client.as_mut().unwrap().editor.permissions.extend([kind]);
    };
    let create = json!({"command": "true"});
    picks(&mut run, "allow_always");
    run.command(&create);
    run.command(&create);
    let first = run.open_another();
    picks(&mut run, "reject_once");
    let refused = run.terminals(&json!([["terminal/create", create]]));
    assert_eq!(refused[0]["error"]["code"], -32001, "{refused:?}");
    assert_eq!(run.client.as_ref().unwrap().asked.len(), 2);
    let records = run.end();
    let approvals: Vec<_> =
        records.iter().filter(|record| said(record, "kind") == "approval").collect();
    let [approved, rejected] = approvals[..] else { panic!("{approvals:#?}") };
    assert_eq!((said(approved, "result"), said(rejected, "result")), ("session", "rejected"));
    assert_eq!(approved["session"], rejected["session"]);
    assert_eq!(approved["facts"]["acpSession"], first);
    assert_ne!(rejected["facts"]["acpSession"], first);
}

/// The token by which a program attaches to a session was in arguments on record.
#[test]
fn a_token_of_the_gateway_is_in_no_record() {
    let mut run = Run::start(users()[0]);
    let servers = run.order(&json!({"order": "servers"}));
    let token = servers[0]["env"][0]["value"].as_str().unwrap().to_owned();
    // Of some records a busy gateway leaves the arguments out.
    std::fs::create_dir(run.world.at("ws/many")).unwrap();
    for number in 1..=50 {
        std::fs::write(run.world.at(&format!("ws/many/{number}")), "x\n").unwrap();
    }
    let script = format!(
        "PORTCULLIS_ATTACH_TOKEN={token}; for n in $(seq 50); do read line <many/$n; done; \
         read line <file.txt; echo $line"
    );
    assert_eq!(run.command(&json!({"command": script})).0, "secret\n");
    let records = run.end();
    let shown = |op: &str| {
        let is = |record: &&Value| {
            said(record, "op") == op && record.to_string().contains("TOKEN=[portcullis token];")
        };
        records.iter().any(|record| is(&record))
    };
    assert!(shown("command") && shown("read"), "{records:#?}");
    assert!(!records.iter().any(|record| record.to_string().contains(&token)), "{records:#?}");
}
