//! The tools of the reference filesystem server and what it documents of them.

use serde_json::{Value, json};

use super::rig::Client;
use crate::common::{ALL, World};

fn start(world: &World) -> Client {
    Client::start(world, &["--tools", "reference"])
}

/// The text of a reply that must succeed: the structured content's, or else the content's
/// first.
fn text(reply: &Value) -> &str {
    let content = &reply["content"];
    content.as_str().unwrap_or_else(|| content[0]["text"].as_str().unwrap())
}

/// A reply that must succeed, and gives texts once.
fn only(client: &mut Client, tool: &str, arguments: &Value) -> Value {
    let reply = client.call(tool, arguments);
    assert_eq!(reply["isError"], false, "{reply}");
    assert!(reply.get("structuredContent").is_none(), "{tool}");
    reply
}

#[test]
fn reading_writing_and_lists() {
    let world = World::with_policy(ALL);
    let root = world.root().canonicalize().unwrap();
    let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
    world.file("a.txt", "1\n2\n3\n4\n");
    world.file("d/b.txt", "x".repeat(2000));
    let mut client = start(&world);
    assert_eq!(client.names().len(), 14);
    for tool in client.tools() {
        assert!(tool["inputSchema"]["$schema"].is_string(), "{tool}");
    }

    let read = |client: &mut Client, more: Value| {
        let mut arguments = json!({ "path": at("a.txt") });
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        only(client, "read_text_file", &arguments)
    };
    assert_eq!(text(&read(&mut client, json!({}))), "1\n2\n3\n4\n");
    assert_eq!(text(&read(&mut client, json!({ "head": 2 }))), "1\n2\n");
    assert_eq!(text(&read(&mut client, json!({ "head": 1e300 }))), "1\n2\n3\n4\n");
    assert_eq!(text(&read(&mut client, json!({ "tail": 2 }))), "3\n4\n");
    assert_eq!(text(&only(&mut client, "read_file", &json!({ "path": "a.txt" }))), "1\n2\n3\n4\n");
    let both = json!({ "path": at("a.txt"), "head": 1, "tail": 1 });
    assert_eq!(client.bad("read_text_file", &both)["kind"], "invalidInput");
    let several =
        only(&mut client, "read_multiple_files", &json!({ "paths": [at("a.txt"), at("no")] }));
    assert!(text(&several).contains("a.txt:\n1\n2") && text(&several).contains("no: Error - "));

    client.good("write_file", &json!({ "path": at("n/c.txt"), "content": "c" }));
    assert_eq!(world.read("n/c.txt"), "c");
    client.good("create_directory", &json!({ "path": at("n/e") }));
    client.good("create_directory", &json!({ "path": at("n/e") }));
    let listed = only(&mut client, "list_directory", &json!({ "path": at(".") }));
    assert_eq!(text(&listed), "[FILE] a.txt\n[DIR] d\n[DIR] n");
    let sizes = json!({ "path": at("d"), "sortBy": "size" });
    let sizes = only(&mut client, "list_directory_with_sizes", &sizes);
    assert!(text(&sizes).contains("1.95 KB"), "{sizes}");
    assert!(text(&sizes).ends_with("Total: 1 files, 0 directories\nCombined size: 1.95 KB"));
    let info = client.good("get_file_info", &json!({ "path": at("d/b.txt") }));
    assert!(text(&info).contains("size: 2000\n") && text(&info).contains("isFile: true"));
    let allowed = client.good("list_allowed_directories", &json!({}));
    assert_eq!(text(&allowed), format!("Allowed directories:\n{}", root.display()));
    assert_eq!(client.bad("read_file", &json!({ "path": "/etc/passwd" }))["kind"], "denied");
    client.end();
}

/// It was denied, or not there, where the workspace itself may not be listed.
#[test]
fn every_client_can_ask_for_the_directories() {
    let list = "[allowedPaths]\nread = [\"**\"]\nlist = [\"src{,/**}\"]\n";
    let stat =
        "[[rules]]\nid = \"x\"\neffect = \"deny\"\noperations = [\"stat\"]\npaths = [\"**\"]\n";
    let none = "[allowedPaths]\nread = [\"src/**\"]\n";
    for more in [list.to_owned(), format!("{list}{stat}"), none.to_owned()] {
        let world = World::with_policy(&format!("schema = 1\n{more}"));
        let root = world.root().canonicalize().unwrap();
        let mut client = start(&world);
        assert!(client.names().contains(&"list_allowed_directories".to_owned()), "{more}");
        let allowed = client.good("list_allowed_directories", &json!({}));
        assert_eq!(text(&allowed), format!("Allowed directories:\n{}", root.display()));
        client.end();
        assert_eq!(world.last()["op"], "mcp.directories");
    }
}

/// `null` was taken for `false`, and the edit was made.
#[test]
fn a_dry_run_that_is_null_changes_nothing() {
    let world = World::with_policy(ALL);
    world.file("a.txt", "old\n");
    let mut client = start(&world);
    let edits = json!([{ "oldText": "old", "newText": "new" }]);
    let edit = json!({ "path": "a.txt", "edits": edits, "dryRun": null });
    assert_eq!(client.bad("edit_file", &edit)["kind"], "invalidInput");
    assert_eq!(world.read("a.txt"), "old\n");
    client.end();
}

/// A complete file was recorded where its last lines were sent, or only an error.
#[test]
fn a_read_is_on_record_as_what_went_out() {
    let world = World::with_policy(&format!("{ALL}[files]\nbinary = {{ read = \"base64\" }}\n"));
    world.file("a.txt", "1\n2\n3\n44\n");
    world.file("b.bin", b"\x00\x01");
    let mut client = start(&world);
    let mut record = |tool: &str, arguments: Value, good: bool| {
        match good {
            true => drop(only(&mut client, tool, &arguments)),
            false => assert_eq!(client.bad(tool, &arguments)["kind"], "invalidInput"),
        }
        let record = world.last();
        assert_eq!(record["op"], "read", "{record}");
        (record["bytes"].clone(), record["counts"].clone(), record["result"].clone())
    };
    let ok = |bytes: u64, counts: Value| (json!(bytes), counts, json!("ok"));
    let text = |more: Value| {
        let mut arguments = json!({ "path": "a.txt" });
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        arguments
    };
    let tool = "read_text_file";
    assert_eq!(record(tool, text(json!({})), true), ok(9, Value::Null));
    assert_eq!(
        record(tool, text(json!({ "tail": 1 })), true),
        ok(3, json!({ "line": 4, "limit": 1 }))
    );
    assert_eq!(
        record(tool, text(json!({ "head": 2 })), true),
        ok(4, json!({ "line": 1, "limit": 2 }))
    );
    let refused = (Value::Null, Value::Null, json!("invalidInput"));
    assert_eq!(record(tool, json!({ "path": "b.bin" }), false), refused);
    assert_eq!(record("read_multiple_files", json!({ "paths": ["b.bin"] }), true), refused);
    assert_eq!(record("read_media_file", json!({ "path": "b.bin" }), true), ok(2, Value::Null));
    client.end();
}

#[test]
fn an_edit_shows_its_diff_and_a_dry_run_only_that() {
    let world = World::with_policy(ALL);
    world.file("a.rs", "fn a() {\n    one();\n    two();\n}\n");
    let mut client = start(&world);
    let edits = json!([
        { "oldText": "one();", "newText": "uno();" },
        { "oldText": "two();", "newText": "due();" },
    ]);
    let dry = json!({ "path": "a.rs", "edits": edits, "dryRun": true });
    let shown = client.good("edit_file", &dry);
    assert!(text(&shown).starts_with("```diff\n"), "{shown}");
    assert!(text(&shown).contains("-    one();\n-    two();\n+    uno();\n+    due();"), "{shown}");
    assert!(world.read("a.rs").contains("one();"));
    let done = client.good("edit_file", &json!({ "path": "a.rs", "edits": edits }));
    assert_eq!(text(&done), text(&shown));
    assert_eq!(world.read("a.rs"), "fn a() {\n    uno();\n    due();\n}\n");
    // Any indentation is accepted, as long as the lines are those.
    let loose = json!([{ "oldText": "uno();\ndue();", "newText": "x();\ny();" }]);
    client.good("edit_file", &json!({ "path": "a.rs", "edits": loose }));
    assert!(world.read("a.rs").contains("    x();\n"), "{}", world.read("a.rs"));
    let none = json!([{ "oldText": "nowhere", "newText": "" }]);
    client.bad("edit_file", &json!({ "path": "a.rs", "edits": none }));
    client.end();
    let edits = world.requests();
    assert!(edits.iter().any(|record| record["op"] == "edit" && record["kind"] == "intent"));
}

/// Paths in the reply were relative to the link, entries were not.
#[test]
fn edits_without_number_are_refused_before_the_first() {
    let world = World::with_policy(ALL);
    world.file("a.txt", "a\nb\n");
    let mut client = start(&world);
    let mut edits = vec![json!({ "oldText": "a", "newText": "a" }); 256];
    client.good("edit_file", &json!({ "path": "a.txt", "edits": edits }));
    edits.push(json!({ "oldText": "b", "newText": "c" }));
    let refused = client.bad("edit_file", &json!({ "path": "a.txt", "edits": edits }));
    assert_eq!(refused["kind"], "invalidInput");
    assert!(refused["message"].as_str().unwrap().contains("at most 256"), "{refused}");
    assert_eq!(world.read("a.txt"), "a\nb\n");
    // Lines that nearly match everywhere are compared once.
    world.file("b.txt", " x\n".repeat(80_000));
    let old = format!("{}y", "x\n".repeat(40_000));
    let edits = json!([{ "oldText": old, "newText": "z" }]);
    let id = client.post_call("edit_file", &json!({ "path": "b.txt", "edits": edits }));
    assert_eq!(client.answer(id)["result"]["isError"], true);
    client.end();
}

/// The error had all of `oldText`.
#[test]
fn an_edit_that_matches_nothing_was_sent_back_whole() {
    let world = World::with_policy(ALL);
    world.file("a.txt", "a\n");
    let mut client = start(&world);
    let edits = json!([{ "oldText": "\u{e9}".repeat(50_000), "newText": "z" }]);
    let id = client.post_call("edit_file", &json!({ "path": "a.txt", "edits": edits }));
    let result = client.answer(id)["result"].to_string();
    assert!(result.contains("could not find a match") && result.len() < 5_000, "{result}");
    client.end();
}

#[test]
fn searches_and_trees_begin_where_a_link_leads() {
    let world = World::with_policy(ALL);
    world.file("sub/deep/z.ts", "z");
    world.file("sub/b.ts", "b");
    std::os::unix::fs::symlink("sub", world.path("lsub")).unwrap();
    let mut client = start(&world);
    let mut tree = |path: &str| {
        let arguments = json!({ "path": path, "excludePatterns": ["deep/*"] });
        text(&only(&mut client, "directory_tree", &arguments)).to_owned()
    };
    assert_eq!(tree("lsub"), tree("sub"));
    let arguments = json!({ "path": "lsub", "pattern": "**/*.ts", "excludePatterns": ["deep/**"] });
    let found = only(&mut client, "search_files", &arguments);
    assert!(text(&found).ends_with("sub/b.ts") && !text(&found).contains("z.ts"), "{found}");
    client.end();
}

/// All but a few got the error that the old text, which was there, was not.
#[test]
fn edits_of_one_file_at_the_same_time_are_all_made() {
    const LINES: usize = 20;
    let world = World::with_policy(ALL);
    let lines = |word: &str| (0..LINES).map(|n| format!("{word} {n:02}\n")).collect::<String>();
    world.file("a.txt", lines("old"));
    let mut client = start(&world);
    let calls: Vec<_> = (0..LINES)
        .map(|n| {
            let edits =
                json!([{ "oldText": format!("old {n:02}"), "newText": format!("new {n:02}") }]);
            client.post_call("edit_file", &json!({ "path": "a.txt", "edits": edits }))
        })
        .collect();
    for call in calls {
        let answer = client.answer(call);
        assert_eq!(answer["result"]["isError"], false, "{answer}");
    }
    client.end();
    assert_eq!(world.read("a.txt"), lines("new"));
}

/// A file of 81 KB came as 167 KB, a directory of 3,000 files as 100 KB, a tree as 479 KB, without
/// advice how to get less.
#[test]
fn replies_had_no_bound_and_texts_came_twice() {
    const LARGEST: usize = 80_000;
    let world = World::with_policy(ALL);
    let lines: Vec<_> = (1..=9000).map(|n| format!("line {n:04}")).collect();
    world.file("long.txt", lines.join("\n"));
    world.file("wide.txt", "ż".repeat(50_000));
    let names: Vec<_> = (0..1500).map(|n| format!("file-with-a-long-name-{n:04}.txt")).collect();
    for name in &names {
        world.file(&format!("many/{name}"), "x");
    }
    let mut client = start(&world);
    let mut pages = |tool: &str, arguments: &Value, key: &str| -> Vec<String> {
        let (mut pages, mut arguments) = (Vec::new(), arguments.clone());
        loop {
            let reply = only(&mut client, tool, &arguments);
            let size = reply["content"].to_string().len();
            assert!(size < LARGEST, "{tool} {size}");
            pages.push(text(&reply).to_owned());
            assert!(pages.len() < 100, "{tool}");
            let note = reply["content"].as_array().unwrap().get(1);
            let Some(note) = note.map(|note| note["text"].as_str().unwrap()) else { break };
            let Some((_, next)) = note.split_once(&format!("`{key}`: ")) else { break };
            match key {
                "line" => {
                    let numbers: Vec<u64> = next
                        .split(|c: char| !c.is_ascii_digit())
                        .filter_map(|number| number.parse().ok())
                        .collect();
                    arguments["line"] = numbers[0].into();
                    arguments["column"] = numbers.get(1).copied().unwrap_or(1).into();
                }
                _ => arguments[key] = serde_json::from_str(next.trim_end_matches('.')).unwrap(),
            }
        }
        pages
    };
    for tool in ["read_file", "read_text_file"] {
        for name in ["long.txt", "wide.txt"] {
            let read = pages(tool, &json!({ "path": name }), "line");
            assert!(read.len() > 1 && read.concat() == world.read(name), "{tool} {name}");
        }
    }
    let tail = pages("read_text_file", &json!({ "path": "long.txt", "tail": 8000 }), "none");
    assert!(tail[0].ends_with("line 9000") && tail[0].starts_with("line 7001\n"), "{}", tail[0]);
    let many = json!({ "path": "many" });
    for (tool, arguments, entry) in [
        ("list_directory", many.clone(), "[FILE] "),
        ("list_directory_with_sizes", many.clone(), "[FILE] "),
        ("list_directory_with_sizes", json!({ "path": "many", "sortBy": "size" }), "[FILE] "),
        ("directory_tree", many.clone(), "\"name\""),
        ("search_files", json!({ "path": "many", "pattern": "*.txt" }), "/many/"),
    ] {
        let all = pages(tool, &arguments, "after");
        assert!(all.len() > 1, "{tool}");
        let all = all.join("\n");
        assert_eq!(all.matches(entry).count(), names.len(), "{tool}");
        assert!(names.iter().all(|name| all.contains(name)), "{tool}");
    }
    let paths = ["long.txt", "long.txt", "long.txt", "long.txt", "wide.txt"];
    let several = pages("read_multiple_files", &json!({ "paths": paths }), "none");
    assert!(several[0].contains("`line`: 2001") && !several[0].contains("ż"), "{}", several[0]);
    client.end();
}

/// The diff of a line of a megabyte has that line twice.
#[test]
fn a_diff_had_no_bound() {
    let world = World::with_policy(ALL);
    world.file("wide.txt", format!("{}a", "x".repeat(1 << 20)));
    let mut client = start(&world);
    let edits = json!([{ "oldText": "xa", "newText": "xb" }]);
    let shown = client.call("edit_file", &json!({ "path": "wide.txt", "edits": edits }));
    assert_eq!(shown["isError"], false);
    assert!(shown.to_string().len() < 80_000);
    assert!(world.read("wide.txt").ends_with("xxb"));
    client.end();
}

#[test]
fn moving_never_replaces() {
    let world = World::with_policy(ALL);
    world.file("a", "a");
    world.file("b", "b");
    let mut client = start(&world);
    let taken = client.bad("move_file", &json!({ "source": "a", "destination": "b" }));
    assert_eq!((taken["kind"].as_str(), world.read("b")), (Some("alreadyExists"), "b".to_owned()));
    let itself = client.bad("move_file", &json!({ "source": "a", "destination": "./a" }));
    assert_eq!((&itself["kind"], world.read("a")), (&json!("alreadyExists"), "a".to_owned()));
    client.good("move_file", &json!({ "source": "a", "destination": "c" }));
    assert_eq!(world.read("c"), "a");
    client.end();
    // Each look is an operation of its own.
    let records: Vec<_> =
        world.requests().iter().map(|r| (r["op"].clone(), r["result"].clone())).collect();
    let expected =
        [("stat", "ok"), ("rename", "alreadyExists"), ("stat", "notFound"), ("rename", "ok")];
    let is_there = |(op, result): &(&str, &str)| records.contains(&(json!(op), json!(result)));
    assert!(expected.iter().all(is_there), "{records:?}");
}

/// The check before a move discloses no more than a look-up.
#[test]
fn a_move_tells_nothing_of_names_that_may_not_be_listed() {
    let hide = "[[rules]]\nid = \"hide\"\neffect = \"deny\"\noperations = [\"list\", \"stat\"]\n\
        paths = [\"secret/**\"]\n";
    let world = World::with_rules(hide);
    world.file("a", "a");
    world.file("secret/there", "s");
    let mut client = start(&world);
    let mut moved = |to: &str| {
        let mut error = client.bad("move_file", &json!({ "source": "a", "destination": to }));
        error.as_object_mut().unwrap().remove("receipt");
        error
    };
    let told = moved("secret/there");
    assert_eq!((&told["kind"], &told["rule"]), (&json!("denied"), &json!("hide")), "{told}");
    assert_eq!(told, moved("secret/gone"));
    client.end();
    let mut records = world.requests();
    records.retain(|record| record["path"].is_string());
    assert_eq!(records.len(), 2);
    assert!(records.iter().all(|r| r["op"] == "stat" && r["decision"] == "deny"), "{records:?}");
}

#[test]
fn searches_and_trees_leave_out_what_is_excluded_and_what_the_policy_hides() {
    let hide = "[[rules]]\nid = \"hide\"\neffect = \"deny\"\noperations = [\"list\"]\n\
        paths = [\"secret/**\"]\n";
    let world = World::with_rules(hide);
    for name in ["a.md", "d/b.md", "d/e/c.md", "node_modules/x/d.md", "secret/s.md"] {
        world.file(name, "x");
    }
    let root = world.root().canonicalize().unwrap();
    let mut client = start(&world);
    let all = json!({ "path": ".", "pattern": "**/*.md", "excludePatterns": ["node_modules"] });
    let found = only(&mut client, "search_files", &all);
    let expected = ["a.md", "d/b.md", "d/e/c.md"].map(|name| format!("{}/{name}", root.display()));
    assert_eq!(text(&found), expected.join("\n"));
    let none = only(&mut client, "search_files", &json!({ "path": "d", "pattern": "*.txt" }));
    assert_eq!(text(&none), "No matches found");
    let tree = json!({ "path": ".", "excludePatterns": ["node_modules", "e"] });
    let tree = only(&mut client, "directory_tree", &tree);
    let tree: Value = serde_json::from_str(text(&tree)).unwrap();
    assert_eq!(
        tree,
        json!([
            { "name": "a.md", "type": "file" },
            { "name": "d", "type": "directory",
              "children": [{ "name": "b.md", "type": "file" }] },
        ])
    );
    client.end();
}

#[test]
fn media_come_as_what_they_are() {
    let world = World::with_policy(&format!("{ALL}[files]\nbinary = {{ read = \"base64\" }}\n"));
    world.file("p.PNG", b"\x89PNG\x00");
    world.file("x.dat", b"\x00");
    let mut client = start(&world);
    let image = client.call("read_media_file", &json!({ "path": "p.PNG" }));
    let block = &image["content"][0];
    assert_eq!((&block["type"], &block["mimeType"]), (&json!("image"), &json!("image/png")));
    assert!(image.get("structuredContent").is_none(), "{image}");
    let other = client.call("read_media_file", &json!({ "path": "x.dat" }));
    assert_eq!(other["content"][0]["type"], "resource", "{other}");
    assert!(other["content"][0]["resource"]["blob"].is_string());
    client.end();
}

/// They were listed as files.
#[test]
fn what_is_never_served_is_not_listed() {
    let world = World::with_policy(ALL);
    world.file("a b#.bin", "text");
    let fifo = world.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
    let mut client = start(&world);
    for tool in ["list_directory", "list_directory_with_sizes", "directory_tree"] {
        let listed = only(&mut client, tool, &json!({ "path": "." }));
        assert!(text(&listed).contains("a b#.bin"), "{tool}: {listed}");
        assert!(!text(&listed).contains("fifo"), "{tool}: {listed}");
    }
    let found = only(&mut client, "search_files", &json!({ "path": ".", "pattern": "f*" }));
    assert!(!text(&found).contains("fifo"), "{found}");
    // A client can request a file by the URI that it gets.
    let media = only(&mut client, "read_media_file", &json!({ "path": "a b#.bin" }));
    let uri = media["content"][0]["resource"]["uri"].as_str().unwrap();
    assert!(uri.starts_with("file:///") && uri.ends_with("/a%20b%23.bin"), "{uri}");
}
