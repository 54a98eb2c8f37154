//! Interop: the Python SDK's client on every revision that it speaks, and
//! fast-agent with the gateway as its MCP server.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    common::{ALL, World},
    fast_agent::peers,
};

/// Runs `mcp_client.py` with a plan of calls.
fn python(world: &World, mode: &str, answer: &str, args: &[&str], plan: &Value) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/mcp_client.py");
    let gateway = world.command(&[&["mcp"], args].concat());
    let mut command = Command::new(peers().join("bin/python"));
    command.args([script, mode, answer]).arg(gateway.get_program()).args(gateway.get_args());
    command.env_clear().envs(gateway.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = command
        .current_dir(world.base())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(plan.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{mode}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

fn world() -> World {
    let world = World::with_policy(&format!(
        "{ALL}[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\"]\n\
         paths = [\"ask/**\"]\n"
    ));
    world.file("a.txt", "hello\n");
    world
}

#[test]
fn the_python_client_is_served_on_every_revision_and_asked_for_approval() {
    let plan = json!([
        ["workspace__ws__read_file", { "path": "a.txt" }],
        ["workspace__ws__write_file", { "path": "b/c.txt", "content": "new" }],
        ["workspace__ws__read_file", { "path": "/etc/passwd" }],
        ["workspace__ws__grep", { "pattern": "hel+o" }],
        ["workspace__ws__write_file", { "path": "ask/d.txt", "content": "asked" }],
        ["no_such_tool", {}],
    ]);
    for (mode, revision) in
        [("legacy", "2025-11-25"), ("auto", "2026-07-28"), ("2026-07-28", "2026-07-28")]
    {
        let world = world();
        let said = python(&world, mode, "once", &[], &plan);
        assert_eq!(said["protocol"], revision);
        assert_eq!(said["tools"].as_array().unwrap().len(), 12);
        let results = said["results"].as_array().unwrap();
        assert_eq!(results[0]["content"][0]["text"], "hello\n", "{mode}: {said}");
        assert_eq!(results[1]["structuredContent"], json!({ "ok": true }), "{mode}");
        assert_eq!(results[2]["isError"], true, "{mode}");
        assert_eq!(results[2]["_meta"]["portcullis/error"]["rule"], "workspace.outside");
        assert_eq!(results[3]["structuredContent"]["matches"][0]["lineNumber"], 1, "{mode}");
        assert_eq!(results[4]["structuredContent"], json!({ "ok": true }), "{mode}: {said}");
        assert!(results[5]["raised"].as_str().unwrap().contains("no_such_tool"), "{mode}");
        assert_eq!(said["asked"].as_array().unwrap().len(), 1, "{mode}");
        assert_eq!(world.read("ask/d.txt"), "asked");
        let greeting = world.requests().into_iter().find(|record| record["op"] == "mcp.client");
        assert_eq!(greeting.unwrap()["facts"]["protocolVersion"], revision);

        let refused = python(
            &world,
            mode,
            "decline",
            &[],
            &json!([
                ["workspace__ws__write_file", { "path": "ask/e.txt", "content": "asked" }],
            ]),
        );
        assert_eq!(refused["results"][0]["isError"], true, "{mode}: {refused}");
        assert!(!world.path("ask/e.txt").exists());
        world.run(&["audit", "verify"]).ok();
    }
}

#[test]
fn the_python_client_accepts_every_reference_tool() {
    let world = world();
    let plan = json!([
        ["read_text_file", { "path": "a.txt", "head": 1 }],
        ["edit_file", { "path": "a.txt", "edits": [{ "oldText": "hello", "newText": "hi" }] }],
        ["list_directory_with_sizes", { "path": "." }],
        ["directory_tree", { "path": "." }],
        ["search_files", { "path": ".", "pattern": "*.txt" }],
        ["get_file_info", { "path": "a.txt" }],
        ["list_allowed_directories", {}],
        ["read_multiple_files", { "paths": ["a.txt"] }],
        ["move_file", { "source": "a.txt", "destination": "b.txt" }],
    ]);
    let said = python(&world, "auto", "-", &["--tools", "reference"], &plan);
    for result in said["results"].as_array().unwrap() {
        // The client validates structured content against the output schema.
        assert_eq!(result["isError"], false, "{result}");
        let structured = &result["structuredContent"]["content"];
        assert!(structured.is_null() || *structured == result["content"][0]["text"], "{result}");
    }
    assert_eq!(world.read("b.txt"), "hi\n");
}

#[test]
fn fast_agent_has_the_gateway_as_its_server() {
    let world = world();
    let gateway = world.command(&["mcp"]);
    let environment: Value = gateway
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_str()?.to_owned(), json!(value?.to_str()?))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let config = world.base().join("fastagent.config.yaml");
    let settings = json!({
        "default_model": "passthrough",
        "logger": { "type": "none", "progress_display": false, "show_chat": false },
        "mcp": { "servers": { "files": {
            "command": gateway.get_program().to_str().unwrap(),
            "args": ["mcp"],
            "env": environment,
        } } },
    });
    // JSON is YAML.
    std::fs::write(&config, settings.to_string()).unwrap();
    let home = world.base().join("fast-home");
    std::fs::create_dir(&home).unwrap();
    let call = r#"***CALL_TOOL workspace__ws__read_file {"path": "a.txt"}"#;
    let output = Command::new(peers().join("bin/fast-agent"))
        .args(["go", "--model", "passthrough", "--servers", "files"])
        .args(["--config-path", config.to_str().unwrap(), "--home", home.to_str().unwrap()])
        .args(["--message", call])
        .current_dir(&home)
        .env_clear()
        .envs([("HOME", home.to_str().unwrap()), ("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("hello"), "{said} {}", String::from_utf8_lossy(&output.stderr));
    let read = world.requests().into_iter().find(|record| record["op"] == "read").unwrap();
    assert_eq!((&read["path"], &read["transport"]), (&json!("a.txt"), &json!("mcp")));
}
