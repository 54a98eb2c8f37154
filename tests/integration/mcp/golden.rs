//! Shapes of the MCP server's messages: greeting, tools, results, errors.

use super::rig::Client;
use crate::{
    common::World,
    golden::{Shapes, golden},
};

/// Calls of the workspace's own tools.
const OWN: &[(&str, &str)] = &[
    ("read_file", r#"{ "path": "a.txt" }"#),
    ("read_file", r#"{ "path": "b.bin" }"#),
    ("read_file", r#"{ "path": "gone" }"#),
    ("read_files", r#"{ "paths": ["a.txt", "gone"] }"#),
    ("write_file", r#"{ "path": "c.txt", "content": "c" }"#),
    ("append_file", r#"{ "path": "c.txt", "content": "c" }"#),
    ("edit_file", r#"{ "path": "c.txt", "oldText": "cc", "newText": "d" }"#),
    ("ls", r#"{ "path": "." }"#),
    ("stat", r#"{ "path": "a.txt" }"#),
    ("mkdir", r#"{ "path": "d" }"#),
    ("rename", r#"{ "from": "c.txt", "to": "d/c.txt" }"#),
    ("rm", r#"{ "path": "d", "recursive": true }"#),
    ("glob", r#"{ "pattern": "**" }"#),
    ("grep", r#"{ "pattern": "one" }"#),
];

/// Calls of the tools of the reference server.
const REFERENCE: &[(&str, &str)] = &[
    ("read_text_file", r#"{ "path": "a.txt" }"#),
    ("list_directory", r#"{ "path": "." }"#),
    ("write_file", r#"{ "path": "c.txt", "content": "c" }"#),
    ("get_file_info", r#"{ "path": "c.txt" }"#),
];

#[test]
fn tools_and_results() {
    for (tools, file) in [("workspace", "mcp.txt"), ("reference", "mcp-reference.txt")] {
        let world = World::with_rules("");
        world.file("a.txt", "one\ntwo\n");
        world.file("b.bin", b"\xff\x00");
        let mut client = Client::start(&world, &["--tools", tools]);
        let mut shapes = Shapes::default();
        shapes.add("initialize", &client.greeting);
        let mut schemas = String::new();
        for tool in client.tools() {
            let name = tool["name"].as_str().unwrap();
            let pretty = |key: &str| serde_json::to_string_pretty(&tool[key]).unwrap();
            schemas += &format!("{name}\n{}\n{}\n", pretty("inputSchema"), pretty("outputSchema"));
            shapes.add(&format!("tool {name}"), &tool["annotations"]);
        }
        let (prefix, calls) =
            if tools == "workspace" { ("workspace__ws__", OWN) } else { ("", REFERENCE) };
        for (tool, arguments) in calls.iter().copied() {
            let arguments = serde_json::from_str(arguments).unwrap();
            let reply = client.call(&format!("{prefix}{tool}"), &arguments);
            shapes.add(&format!("call {tool}"), &reply);
        }
        client.end();
        golden(file, &(shapes.text() + "\n" + &schemas));
    }
}
