//! `SIGHUP` revokes something: requests that came before and have not begun are
//! not carried out.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::rig::{Service, Site, answer, kill, wait};

/// Requests that wait for the worker.
const MANY: usize = 100;
/// Calls over MCP that wait for it.
const CALLS: usize = 24;

/// Has that many writes wait for the worker of `shop` while `change` comes into
/// force, and checks that only those that had begun are done.
fn writes_that_wait(site: &mut Site, service: &Service, token: &str, change: impl Fn(&mut Site)) {
    let mut session = service.session(token, "shop");
    assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
    let worker = service.processes("worker-process").pop().unwrap();
    kill(worker, Signal::STOP);
    for id in 0..MANY {
        let path = format!("new/{id}.txt");
        let write = json!({
            "channel": "files", "type": "write", "requestId": id, "path": path, "content": "x",
        });
        session.say(write.to_string().as_bytes()).unwrap();
    }
    change(site);
    site.write();
    service.signal(Signal::HUP);
    site.await_record("serve", |record| record["op"] == "reload");
    kill(worker, Signal::CONT);
    let (done, _) = session.rest();
    let dropped = site.await_record("shop", |record| record["op"] == "files.dropped");
    let left = usize::try_from(dropped["facts"]["notStarted"].as_u64().unwrap()).unwrap();
    let new = site.root("shop").join("new");
    let written = std::fs::read_dir(new).map_or(0, Iterator::count);
    assert!(left > 0 && written == done && written + left <= MANY, "{written} {done} {dropped}");
}

/// They were all carried out, for seconds after the word that he was gone.
#[test]
fn what_an_agent_that_is_removed_had_asked_before_is_not_begun() {
    let mut site = Site::new(&["shop"]);
    let token = site.add_agent("ci", "workspaces = [\"shop\"]");
    let service = site.serve();
    writes_that_wait(&mut site, &service, &token, |site| {
        site.agents.retain(|(name, ..)| name != "ci");
    });
    service.stop();
}

/// They were all carried out: only those over WebSocket were not.
#[test]
fn calls_over_mcp_of_an_agent_that_is_removed_are_not_begun() {
    let mut site = Site::new(&["shop"]);
    let token = site.add_agent("ci", "workspaces = [\"shop\"]");
    let service = site.serve();
    let write = |path: &str| {
        service.post(&token, "shop", "write_file", &json!({ "path": path, "content": "x" }))
    };
    assert_eq!(answer(write("first.txt"))["result"]["isError"], json!(false));
    let worker = service.processes("worker-process").pop().unwrap();
    kill(worker, Signal::STOP);
    let calls: Vec<_> = (0..CALLS).map(|id| write(&format!("new/{id}.txt"))).collect();
    // All have reached the worker's input when the front serves others.
    service.await_ready();
    site.agents.retain(|(name, ..)| name != "ci");
    site.write();
    service.signal(Signal::HUP);
    site.await_record("serve", |record| record["op"] == "reload");
    kill(worker, Signal::CONT);
    let is_refused = |record: &Value| {
        record["op"] == "write" && record["kind"] == "decision" && record["decision"] != "allow"
    };
    site.await_record("shop", is_refused);
    let written = std::fs::read_dir(site.root("shop").join("new")).map_or(0, Iterator::count);
    assert!(written < CALLS, "all were carried out");
    drop(calls);
    service.stop();
}

/// Its clients were served for a second more.
#[test]
fn a_workspace_that_is_removed_takes_no_request_any_more() {
    let mut site = Site::new(&["shop", "docs"]);
    let service = site.serve();
    let token = site.token("all").to_owned();
    writes_that_wait(&mut site, &service, &token, |site| {
        site.workspaces.retain(|name| name != "shop");
    });
    wait(|| site.records("shop").pop().filter(|last| last["kind"] == "stop"));
    service.stop();
}
