//! Metrics, and shapes of the messages of the `files` channel.

use serde_json::json;

use super::rig::{Site, wait};
use crate::golden::{Shapes, golden};

#[test]
fn metrics_and_messages() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let mut socket = service.session(token, "shop");
    let mut shapes = Shapes::default();
    let asked = [
        ("list", json!({ "path": "/" })),
        ("read", json!({ "path": "file.txt" })),
        ("read", json!({ "path": "gone" })),
        ("write", json!({ "path": "new.txt", "content": "new" })),
        ("stat", json!({ "path": "new.txt" })),
        ("mkdir", json!({ "path": "d" })),
        ("rename", json!({ "oldPath": "new.txt", "newPath": "d/new.txt" })),
        ("delete", json!({ "path": "d/new.txt" })),
        ("nonsense", json!({})),
    ];
    for (kind, fields) in asked {
        let reply = socket.ask(kind, fields).unwrap();
        shapes.add(kind, &reply);
    }
    golden("websocket.txt", &shapes.text());
    // The worker reports its metrics periodically.
    let page = wait(|| {
        let page = service.numbers(token);
        page.contains("\nportcullis_decisions_total{").then_some(page)
    });
    let (_, page) = page.split_once("\r\n\r\n").unwrap();
    let mut names: Vec<_> = page
        .lines()
        .filter(|line| !line.starts_with("# HELP"))
        .map(|line| match line.split_once(' ') {
            Some((name, _)) if !line.starts_with('#') => general(name),
            _ => line.to_owned(),
        })
        .collect();
    names.sort();
    names.dedup();
    golden("metrics.txt", &(names.join("\n") + "\n"));
}

/// A series with the values of its labels left out, but for those of a fixed set.
fn general(series: &str) -> String {
    let Some((name, labels)) = series.split_once('{') else { return series.to_owned() };
    let keys: Vec<_> = labels.split("\",").filter_map(|label| label.split('=').next()).collect();
    format!("{name}{{{}}}", keys.join(","))
}
