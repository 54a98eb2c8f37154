//! Errors are reported: queues that overflow, limits, subscribers that do not
//! read or leave.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use portcullis::{
    gateway::{EventKind, WatchEnd},
    model::{Session, WatchQuery},
};
use serde_json::{Value, json};

use super::{Fixture, TIMEOUT, path};
use crate::common::Stop;

#[test]
fn a_full_queue_of_the_kernel_leads_to_a_look_at_everything() {
    let fixture = Fixture::new("");
    fixture.mkdir("d");
    let all = fixture.watch(".");
    // While the watching thread is blocked, the kernel's queue overflows.
    let (held, release) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (hold, go) = (Arc::clone(&held), Arc::clone(&release));
    let (say, heard) = mpsc::channel();
    all.on_ready(move || {
        let watching = std::thread::current().name() == Some("watch");
        if watching && hold.swap(false, Ordering::SeqCst) {
            // The receiver is gone when the test is over.
            let _ = say.send(());
            while !go.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    });
    let _release = Stop(&release);
    fixture.write("first", "x");
    heard.recv_timeout(TIMEOUT).unwrap();
    let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    for n in 0..=most {
        let name = fixture.at(&format!("d/{}", n % 2));
        if n % 4 < 2 { fs::write(name, "").unwrap() } else { fs::remove_file(name).unwrap() }
    }
    // Made while its events were lost.
    fixture.mkdir("new/deep");
    release.store(true, Ordering::SeqCst);
    while all.next(TIMEOUT).unwrap().unwrap().what != EventKind::Rescan {}
    fixture.told(&all);
    fixture.write("new/deep/f", "x");
    assert_eq!(fixture.told(&all), ["create new/deep/f"]);
}

#[test]
fn a_subscriber_that_does_not_read_has_to_look_again_and_holds_nobody_up() {
    let fixture = Fixture::new("");
    let (idle, busy) = (fixture.watch("."), fixture.watch("."));
    for n in 0..6_000 {
        fixture.write(&format!("f{n}"), "");
        if n % 500 == 499 {
            fixture.told(&busy);
        }
    }
    let first = idle.next(TIMEOUT).unwrap().unwrap();
    assert_eq!(first.what, EventKind::Rescan);
    assert!(fixture.told(&idle).len() < 6_000);
}

#[test]
fn beginning_and_end_are_on_record() {
    let fixture = Fixture::new("");
    fixture.mkdir("a/b");
    let subscription = fixture.watch(".");
    fixture.write("x", "x");
    fixture.told(&subscription);
    fixture.gateway.unwatch(&subscription);
    assert_eq!(subscription.next(TIMEOUT), Err(WatchEnd::Closed));
    // A subscription that is dropped is recorded with the next one; one that is
    // still there at the end with the stop.
    drop(fixture.watch("a"));
    let last = fixture.watch("a/b");
    let Fixture { gateway, session, _dir: dir, .. } = fixture;
    gateway.stop(&session).unwrap();
    assert_eq!(last.next(TIMEOUT), Err(WatchEnd::Stopped));
    let text = fs::read_to_string(dir.path().join("state/audit/seg-000000.jsonl")).unwrap();
    let records: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |op: &str| -> Vec<&Value> { records.iter().filter(|r| r["op"] == op).collect() };
    let (begun, ended) = (of("watch"), of("watch.end"));
    assert_eq!((begun.len(), ended.len()), (3, 3), "{text}");
    assert_eq!(begun[0]["counts"], json!({ "directories": 3 }));
    assert_eq!(
        (&begun[0]["decision"], &begun[0]["rule"]),
        (&json!("allow"), &json!("allowedPaths.list"))
    );
    assert_eq!(begun[0]["facts"]["recursive"], true);
    for (begun, ended) in begun.iter().zip(&ended) {
        assert_eq!(ended["facts"]["watch"], begun["seq"]);
        assert_eq!(ended["path"], begun["path"]);
    }
    let why: Vec<_> =
        ended.iter().map(|ended| ended["facts"]["reason"].as_str().unwrap()).collect();
    assert_eq!(why, ["closed", "closed", "stopped"]);
    assert!(ended[0]["counts"]["events"].as_u64().unwrap() >= 2, "{}", ended[0]);
    assert_eq!(ended[0]["counts"]["rescans"], 0);
}

#[test]
fn subscriptions_of_a_session_are_bounded_and_given_back() {
    let fixture = Fixture::new("");
    let mut held: Vec<_> = (0..256).map(|_| fixture.watch(".")).collect();
    let query = || WatchQuery::new(path("."));
    let error = fixture.gateway.watch(&fixture.session, &query()).unwrap_err();
    assert!(error.to_string().contains("too many"), "{error}");
    let other = Session { id: "ab".repeat(16), ..fixture.session.clone() };
    fixture.gateway.watch(&other, &query()).unwrap();
    held.pop();
    fixture.watch(".");
    for (path, ignore) in [("nothing", ""), (".", "a/b"), (".", "..")] {
        let ignore = vec![ignore.to_owned()].into_iter().filter(|i| !i.is_empty()).collect();
        let query = WatchQuery { path: super::path(path), recursive: true, ignore };
        assert!(fixture.gateway.watch(&other, &query).is_err(), "{path}");
    }
}
