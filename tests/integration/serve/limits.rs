//! What one agent may have of a service.

use serde_json::{Value, json};

use super::rig::{Site, wait};

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
    // Neither another agent nor another workspace is meant.
    service.session(&other, "shop");
    service.session(token, "docs");
    drop(one);
    wait(|| service.open(token, "shop").ok());
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
        "portcullis_sessions_total{door=\"files\"} 1",
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
