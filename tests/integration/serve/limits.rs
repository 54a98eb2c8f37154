//! Bounds of one agent in a service.

use std::io::{Read as _, Write as _};

use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::{Value, json};

use super::rig::{Site, answer, status, take_little, wait};
use crate::common::ALL;

#[test]
fn sessions_of_an_agent_are_bounded_and_counted_when_they_end() {
    let mut site = Site::new(&["shop", "docs"]);
    let other = site.add_agent("other", "workspaces = [\"*\"]");
    site.settings = "limits = { sessions = 2 }".to_owned();
    let service = site.serve();
    let token = site.token("all");
    let one = service.session(token, "shop");
    let _two = service.session(token, "shop");
    assert_eq!(service.open(token, "shop").err(), Some(429));
    // Nor over MCP, as often as it is tried.
    for _ in 0..2 {
        let mut reply = String::new();
        let mut stream = service.post(token, "shop", "ls", &json!({ "path": "" }));
        stream.read_to_string(&mut reply).unwrap();
        assert_eq!(status(&reply), 429, "{reply}");
        assert!(reply.to_lowercase().contains("\nretry-after: "), "{reply}");
    }
    // Neither another agent nor another workspace is meant.
    service.session(&other, "shop");
    service.session(token, "docs");
    drop(one);
    wait(|| service.open(token, "shop").ok());
    // Each refusal is on record.
    let why = "the agent has as many sessions as it may have";
    let refused = site.records("serve").into_iter().filter(|record| record["reason"] == why);
    let refused: Vec<_> =
        refused.map(|record| (record["op"].clone(), record["facts"].clone())).collect();
    let facts = json!({ "agent": "all", "workspace": "shop", "peer": "127.0.0.1" });
    assert!(refused.len() >= 3, "{refused:?}");
    assert!(refused.iter().all(|one| *one == (json!("session"), facts.clone())), "{refused:?}");
}

/// One token took all connections, and neither another agent nor a health check was answered.
#[test]
fn connections_of_one_token_leave_places_to_others() {
    let mut site = Site::new(&["shop"]);
    let other = site.add_agent("other", "workspaces = [\"*\"]");
    site.settings = "limits = { connections = 8 }".to_owned();
    let service = site.serve();
    let token = site.token("all").to_owned();
    let mut own: Vec<_> = (0..4).map(|_| service.session(&token, "shop")).collect();
    assert_eq!(service.open(&token, "shop").err(), Some(429));
    let mut reply = String::new();
    service.post(&token, "shop", "ls", &json!({})).read_to_string(&mut reply).unwrap();
    assert_eq!(status(&reply), 429, "{reply}");
    let _others: Vec<_> = (0..4).map(|_| wait(|| service.open(&other, "shop").ok())).collect();
    // All places are taken: a service that is well says so, and does nothing else.
    assert_eq!(service.get("/healthz", &[]).0, 200);
    service.await_ready();
    let (status, reply) = service.get_as(&other, "/metrics");
    assert_eq!(status, 503, "{reply}");
    assert!(reply.to_lowercase().contains("\nretry-after: "), "{reply}");
    own.pop();
    wait(|| service.open(&token, "shop").ok());
}

/// One agent's sessions took all of a worker's descriptors, and others could not write any more.
#[test]
fn sessions_leave_a_worker_files_for_the_requests_in_them() {
    let mut site = Site::new(&["shop"]);
    let other = site.add_agent("other", "workspaces = [\"*\"]");
    let service = site.serve();
    // The worker that starts then has no more either.
    let pid = rustix::process::Pid::from_raw(service.pid().try_into().unwrap());
    let few = Rlimit { current: Some(1024), maximum: Some(1024) };
    prlimit(pid, Resource::Nofile, few).unwrap();
    let mut one = service.session(&other, "shop");
    let token = site.token("all");
    let _others: Vec<_> = (1..16).map(|_| service.session(token, "shop")).collect();
    assert_eq!(service.open(token, "shop").err(), Some(429));
    assert_eq!(one.write("new.txt", "x")["error"], Value::Null);
    let page = service.numbers(token);
    assert!(page.contains("portcullis_refused_total{reason=\"busy\"} 1\n"), "{page}");
    site.await_record("serve", |record| record["facts"]["agent"] == "all");
}

#[test]
fn haste_is_refused_by_name_and_ends_no_session() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { requestsPerSecond = 2 }".to_owned();
    let service = site.serve();
    let token = site.token("all").to_owned();
    let mut session = service.session(&token, "shop");
    let mut refused = None;
    for _ in 0..2000 {
        let reply = session.ask("stat", json!({ "path": "file.txt" })).unwrap();
        if !reply["error"].is_null() {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.unwrap();
    assert_eq!(refused["rule"], "serve.limits.requestsPerSecond", "{refused}");
    assert!(refused["receipt"]["seq"].is_u64(), "{refused}");
    wait(|| (session.read("file.txt").unwrap() == "of shop\n").then_some(()));
    wait(|| {
        let page = service.numbers(&token);
        let line = "effect=\"deny\",rule=\"serve.limits.requestsPerSecond\"}";
        page.contains(line).then_some(())
    });
}

#[test]
fn watches_of_an_agent_are_bounded_and_a_client_without_one_is_told() {
    let mut site = Site::new(&["shop", "docs"]);
    let other = site.add_agent("other", "workspaces = [\"*\"]");
    site.settings = "limits = { watches = 2 }".to_owned();
    let service = site.serve();
    let token = site.token("all").to_owned();
    // The first message is the notice that no events are sent, or the reply.
    let first = |token: &str, workspace: &str| {
        let mut session = service.session(token, workspace);
        let stat = json!({ "channel": "files", "type": "stat", "requestId": "first", "path": "/" });
        session.say(stat.to_string().as_bytes()).unwrap();
        let first = session.hear().unwrap();
        (session, first)
    };
    let is_told = |first: &Value| first["requestId"] == "first";
    let mut watching: Vec<_> = (0..2).map(|_| first(&token, "shop")).collect();
    assert!(watching.iter().all(|(_, first)| is_told(first)));
    let (mut blind, told) = first(&token, "shop");
    let why = told["error"].as_str().unwrap();
    assert!(told["type"] == "change" && why.contains("serve.limits.watches"), "{told}");
    // It is served all the same, and neither another agent nor another
    // workspace is meant.
    assert_eq!(blind.read("file.txt").unwrap(), "of shop\n");
    assert!(is_told(&first(&other, "shop").1) && is_told(&first(&token, "docs").1));
    let refused = site.await_record("shop", |record| record["rule"] == "serve.limits.watches");
    assert_eq!((&refused["op"], &refused["agent"]), (&json!("watch"), &json!("all")));
    wait(|| {
        let line = "effect=\"deny\",rule=\"serve.limits.watches\"} 1\n";
        service.numbers(&token).contains(line).then_some(())
    });
    // An ended session leaves its slot to the next.
    watching.pop();
    wait(|| is_told(&first(&token, "shop").1).then_some(()));
}

#[test]
fn a_reply_counts_in_the_memory_of_the_front_until_the_client_has_it() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { messageSize = \"64KiB\", messageMemory = \"1MiB\" }".to_owned();
    for (name, size) in [("fits", 100_000), ("large", 600_000)] {
        std::fs::write(site.root("shop").join(name), "x".repeat(size)).unwrap();
    }
    let service = site.serve();
    let token = site.token("all");
    let root = site.root("shop").canonicalize().unwrap();
    let read = |name: &str| {
        let uri = format!("file://{}", root.join(name).display());
        let method = ("resources/read", Some(uri.as_str()));
        answer(service.post_message(token, "shop", method, &json!({ "uri": uri })))
    };
    // More than there is, had they not been given back.
    for _ in 0..10 {
        let read = read("fits");
        assert_eq!(read["result"]["contents"][0]["text"].as_str().unwrap().len(), 100_000);
    }
    let refused = read("large");
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(why.contains("too large for what is under way"), "{refused}");
    assert!(read("fits")["result"]["contents"].is_array());
}

/// They could have all of it, for ten minutes each, and what others sent was refused.
#[test]
fn replies_that_one_token_does_not_take_leave_memory_of_the_front_to_others() {
    let mut site = Site::new(&["shop", "docs"]);
    let eve = site.add_agent("eve", "workspaces = [\"docs\"]");
    site.settings = "limits = { messageSize = \"1MiB\", messageMemory = \"64MiB\" }".to_owned();
    let size = 9_000_000;
    for name in ["shop", "docs"] {
        std::fs::write(site.root(name).join("large.txt"), "x".repeat(size)).unwrap();
    }
    let service = site.serve();
    let read = |token: &str, workspace: &str| {
        let root = site.root(workspace).canonicalize().unwrap();
        let uri = format!("file://{}", root.join("large.txt").display());
        let method = ("resources/read", Some(uri.as_str()));
        service.post_message(token, workspace, method, &json!({ "uri": uri }))
    };
    let unread: Vec<_> = (0..3).map(|_| read(&eve, "docs")).collect();
    unread.iter().for_each(take_little);
    // Those that find no room are errors. They counted for nothing once HTTP had them.
    let is_content = |mut stream: &std::net::TcpStream| {
        let mut begin = Vec::new();
        while !begin.windows(4).any(|four| four == b"xxxx") {
            let mut some = [0; 64];
            let read = stream.read(&mut some).unwrap();
            if read == 0 {
                break;
            }
            begin.extend(&some[..read]);
        }
        String::from_utf8_lossy(&begin).contains("\"result\"")
    };
    assert_eq!(unread.iter().filter(|stream| is_content(stream)).count(), 1);
    let taken = answer(read(site.token("all"), "shop"));
    let text = taken["result"]["contents"][0]["text"].as_str();
    assert_eq!(text.map(str::len), Some(size), "{}", taken["error"]);
}

#[test]
fn a_call_that_the_worker_refuses_as_a_whole_is_answered_and_holds_no_memory() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { messageSize = \"4MiB\", messageMemory = \"6MiB\" }".to_owned();
    let small = format!("{ALL}[files]\nmaxReadSize = \"1KiB\"\nmaxWriteSize = \"1KiB\"\n");
    std::fs::write(site.base().join("policy.toml"), small).unwrap();
    let service = site.serve();
    let token = site.token("all");
    let keys: serde_json::Map<_, _> = (0..270_000).map(|n| (n.to_string(), json!(0))).collect();
    for _ in 0..2 {
        let long = json!({ "path": "new.txt", "content": "x".repeat(3 << 20) });
        let refused = service.call(token, "shop", "write_file", &long);
        assert_eq!(refused["error"]["message"], "the line is too long", "{refused}");
        let refused = service.call(token, "shop", "write_file", &json!({ "path": keys }));
        assert!(refused["error"].is_object(), "{refused}");
    }
    assert_eq!(site.records("shop").iter().filter(|one| one["op"] == "mcp.dropped").count(), 4);
    let read = service.call(token, "shop", "read_file", &json!({ "path": "file.txt" }));
    assert_eq!(read["result"]["content"][0]["text"], "of shop\n", "{read}");
}

#[test]
fn a_body_whose_length_is_not_said_counts_in_the_memory_of_the_front() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { messageSize = \"1MiB\", messageMemory = \"1MiB\" }".to_owned();
    let service = site.serve();
    let token = site.token("all");
    let large = json!({ "path": "new.txt", "content": "x".repeat(700_000) });
    let write = || {
        let mut reply = String::new();
        service.post(token, "shop", "write_file", &large).read_to_string(&mut reply).unwrap();
        status(&reply)
    };
    assert_eq!(write(), 200);
    let head = format!(
        "POST /workspaces/shop/mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    // By what has come of it, unless the other one is there first.
    let begun = format!("{head}{:x}\r\n{}\r\n", 700_000, " ".repeat(700_000));
    let mut untold = wait(|| {
        let mut untold = service.connect();
        untold.write_all(begun.as_bytes()).ok()?;
        std::thread::sleep(std::time::Duration::from_millis(100));
        (write() == 429).then_some(untold)
    });
    untold.write_all(b"2\r\n{}\r\n0\r\n\r\n").unwrap();
    untold.read_to_string(&mut String::new()).unwrap();
    wait(|| (write() == 200).then_some(()));
}

/// Every message over 64 KiB, of any client, was refused, for as long as a body may take to arrive.
#[test]
fn a_body_that_is_announced_and_does_not_come_takes_memory_from_nobody() {
    let mut site = Site::new(&["shop", "docs"]);
    let eve = site.add_agent("eve", "workspaces = [\"docs\"]");
    site.settings = "limits = { messageSize = \"1MiB\", messageMemory = \"4MiB\" }".to_owned();
    let service = site.serve();
    let announce = |sent: usize| {
        let head = format!(
            "POST /workspaces/docs/mcp HTTP/1.1\r\nHost: localhost\r\n\
             Authorization: Bearer {eve}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: 1048576\r\n\r\n"
        );
        let mut stream = service.connect();
        // A connection that is refused meanwhile gets nothing more.
        let _ = stream.write_all(format!("{head}{}", " ".repeat(sent)).as_bytes());
        stream
    };
    let large = "x".repeat(700_000);
    let mut session = service.session(site.token("all"), "shop");
    let mut is_served = || {
        let written = session.write("new.txt", &large);
        assert_eq!(written["error"], Value::Null, "{written}");
        let arguments = json!({ "path": "new.txt", "content": large });
        let called = service.call(site.token("all"), "shop", "write_file", &arguments);
        assert_eq!(called["result"]["isError"], false, "{called}");
    };
    let _silent: Vec<_> = (0..4).map(|_| announce(0)).collect();
    std::thread::sleep(std::time::Duration::from_millis(200));
    is_served();
    // Nor do requests take all of it that come almost completely. One after the other: of those
    // that arrive together each may take a part that is too small for all of them.
    let mut slow = Vec::new();
    let refused = wait(|| {
        let mut reply = [0; 512];
        let mut stream = announce(1_000_000);
        stream.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        let read = stream.read(&mut reply).ok().filter(|read| *read > 0);
        if read.is_none() {
            slow.push(stream);
        }
        Some(String::from_utf8_lossy(&reply[..read?]).into_owned())
    });
    assert!(refused.contains(" 429 ") && refused.contains("retry-after: 1\r\n"), "{refused}");
    assert!(refused.contains("too much is under way"), "{refused}");
    is_served();
}

#[test]
fn a_call_that_waits_for_a_person_holds_no_memory_of_the_front() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { messageSize = \"1MiB\", messageMemory = \"1MiB\" }".to_owned();
    let asks = "[[rules]]\nid = \"ask\"\neffect = \"ask\"\npaths = [\"asked.txt\"]\n";
    std::fs::write(site.base().join("policy.toml"), format!("{ALL}{asks}")).unwrap();
    let service = site.serve();
    let token = site.token("all");
    let content = |path: &str| json!({ "path": path, "content": "x".repeat(700_000) });
    let _waits = service.post(token, "shop", "write_file", &content("asked.txt"));
    site.await_record("shop", |record| record["decision"] == "ask");
    let written = service.call(token, "shop", "write_file", &content("free.txt"));
    assert_eq!(written["result"]["isError"], false, "{written}");
}

#[test]
fn content_counts_by_its_bytes() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { bytesPerSecond = \"1KiB\" }".to_owned();
    let service = site.serve();
    let mut session = service.session(site.token("all"), "shop");
    let big = "x".repeat(64 * 1024);
    session.write("big", &big);
    let refused = session.ask("stat", json!({ "path": "big" })).unwrap();
    assert_eq!(refused["rule"], "serve.limits.bytesPerSecond", "{refused}");
}

#[test]
fn numbers_tell_rules_and_times_and_no_path() {
    let site = Site::new(&["shop"]);
    std::fs::create_dir(site.root("shop").join("secret-name")).unwrap();
    let service = site.serve();
    let token = site.token("all").to_owned();
    let mut session = service.session(&token, "shop");
    session.read("file.txt").unwrap();
    session.read("secret-name/x").unwrap();
    let page = wait(|| {
        let page = service.numbers(&token);
        page.contains("rule=\"allowedPaths.read\"").then_some(page)
    });
    for word in [
        "portcullis_worker_up{workspace=\"shop\"} 1",
        "portcullis_sessions_total{transport=\"files\"} 1",
        "portcullis_request_duration_seconds_bucket{workspace=\"shop\",operation=\"read\",le=\"+Inf\"}",
        "portcullis_audit_uncovered_records{workspace=\"shop\"}",
        "portcullis_requests_waiting{workspace=\"shop\"} 0",
    ] {
        assert!(page.contains(word), "{word}\n{page}");
    }
    for word in ["secret-name", "file.txt", "127.0.0.1\"", &token] {
        assert!(!page.contains(word), "{word}\n{page}");
    }
}

/// All its parsed forms were in memory together, six times the message.
#[test]
fn a_binary_content_that_is_searched_for_secrets_takes_three_times_its_message() {
    let site = Site::new(&["shop"]);
    let searched = "[files]\nbinary = { write = \"base64\" }\n[[secrets.rules]]\n\
                    id = \"key\"\nregex = \"key-[0-9]{8}\"\nkeywords = [\"key-\"]\n";
    std::fs::write(site.base().join("policy.toml"), format!("{ALL}{searched}")).unwrap();
    let service = site.serve();
    let mut session = service.session(site.token("all"), "shop");
    let mut write = |blocks: usize| {
        // Each three bytes are no text, and as UTF-16 longer than as they are.
        let content = "gNjA".repeat(blocks);
        let fields = json!({ "path": "new.bin", "content": content, "encoding": "base64" });
        let reply = session.ask("write", fields).unwrap();
        assert_eq!(reply["error"], Value::Null, "{reply}");
    };
    let peak = || {
        let worker = service.processes("worker-process").pop().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    write(1 << 16);
    let before = peak();
    write(2 << 20);
    let taken = peak() - before;
    assert!(taken < 3 * (8 << 20) + (4 << 20), "{taken}");
}
