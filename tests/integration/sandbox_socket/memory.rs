//! Memory that an agent can make the gateway use by its clients.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
};

use serde_json::{Value, json};

use crate::{acp_rig::POLICY, common::World};

/// Returns the peak memory of the gateway process of a run, in bytes.
fn peak(run: u32) -> u64 {
    let children = |pid: u32| {
        let list = format!("/proc/{pid}/task/{pid}/children");
        let list = std::fs::read_to_string(list).unwrap_or_default();
        list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()
    };
    let is_gateway = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("gateway-process")
    };
    let gateway = children(run).into_iter().find(is_gateway).expect("a gateway");
    let status = std::fs::read_to_string(format!("/proc/{gateway}/status")).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    most.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Each of the agent's clients had memory of its own: together they took all of the
/// machine's.
#[test]
fn all_clients_of_an_agent_share_one_bound_and_none_starves_the_others() {
    let world = World::with_policy(POLICY);
    world.file("a.txt", "one\ntwo\n");
    world.file("big", "x".repeat(9 << 20));
    let scripts = world.base().join("agent");
    std::fs::create_dir(&scripts).unwrap();
    let script = scripts.join("flood.py");
    std::fs::write(&script, include_str!("flood.py")).unwrap();
    let (scripts, script) = (scripts.to_str().unwrap(), script.to_str().unwrap());
    let mut run = world
        .command(&["run", "--agent-read", scripts, "--", "/usr/bin/python3", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = run.stdin.take().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let cwd = world.root().canonicalize().unwrap();
    let prompt = json!({"sessionId": "s", "prompt": [{"type": "text", "text": "go"}]});
    let orders = [
        ("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})),
        ("session/new", json!({"cwd": cwd, "mcpServers": []})),
        ("session/prompt", prompt),
    ];
    let mut last = Value::Null;
    for (method, params) in orders {
        let order = json!({"jsonrpc": "2.0", "id": method, "method": method, "params": params});
        writeln!(input, "{order}").unwrap();
        last = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    }
    let told = last["params"]["update"]["content"]["text"].as_str().unwrap();
    assert!(told.contains("one\\ntwo"), "{last}");
    let peak = peak(run.id());
    assert!(peak < 1 << 30, "{} MiB", peak >> 20);
    drop((input, lines));
    run.wait().unwrap();
    let dropped: Vec<_> = world
        .records()
        .into_iter()
        .filter(|record| record["op"] == "mcp.dropped")
        .map(|record| record["facts"]["reason"].as_str().unwrap().to_owned())
        .collect();
    for why in ["there is no memory for the line", "the client did not take all answers"] {
        assert!(dropped.iter().any(|said| said.contains(why)), "{dropped:?}");
    }
}
