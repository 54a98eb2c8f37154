//! Servers that return a copy, refuse reads of it, or have lost some of it.

use std::path::PathBuf;

use portcullis_audit::SEGMENT_RECORDS;

use super::{
    gaps::world_of_segments,
    remote::verify,
    replies::{copies, next, status, world},
    run,
    server::Server,
};
use crate::common::{Done, World};

const PRUNE: [&str; 5] = ["audit", "prune", "--before", "2100-01-01", "--yes"];

fn ship(world: &World) -> Done {
    run(world, world.base(), &["audit", "ship"])
}

/// The name of the log's copy at its target.
fn copy(world: &World) -> String {
    status(world)["copy"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()
}

/// Verifies the copy that the server has; returns the number of its records.
#[track_caller]
fn records(world: &World, server: &Server) -> u64 {
    let copy = copy(world);
    let fetched = world.base().join("fetched").join(&copy);
    let _ = std::fs::remove_dir_all(&fetched);
    server.fetch(&copy, &fetched);
    verify(world, &fetched)["signed"]["records"].as_u64().unwrap()
}

fn first_segment(world: &World) -> PathBuf {
    world.state().join("audit/seg-000000.jsonl")
}

/// The records were reported as stored, and later ones were sent to where the copy had been.
#[test]
fn a_copy_that_a_server_lost_is_begun_again() {
    let server = Server::start();
    server.reads("");
    let world = world(&server, "http://127.0.0.1:PORT/log", "");
    ship(&world).ok();
    let former = copy(&world);
    assert_eq!(Some(records(&world, &server)), status(&world)["records"].as_u64());
    next(&world);
    // One that is only unavailable is continued.
    for reads in ["500 No", "503 No", "drop", "403 No"] {
        server.reads(reads);
        let sent = ship(&world).ok();
        assert_eq!((copy(&world), sent.stderr.as_str()), (former.clone(), ""), "{reads}");
        next(&world);
    }
    server.reads("");
    server.shared.files.lock().unwrap().clear();
    let sent = ship(&world).ok();
    assert!(sent.stderr.contains("another copy is begun"), "{sent:?}");
    assert_ne!(copy(&world), former);
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(Some(records(&world, &server)), own["signed"]["records"].as_u64());
}

/// Such a server would get another copy with each checkpoint.
#[test]
fn a_server_that_has_nothing_of_what_it_took_gets_one_copy() {
    let server = Server::start();
    server.reads("404 No");
    let world = world(&server, "http://127.0.0.1:PORT/log", "");
    for _ in 0..3 {
        let failed = ship(&world);
        assert!(failed.code == 1 && failed.stderr.contains("401, 403, 405"), "{failed:?}");
        assert_eq!(status(&world)["records"], 0);
        next(&world);
    }
    assert_eq!(copies(&server.heads()).len(), 1);
}

/// A server that was down, or had nothing, counted as one that may not be read: records that were
/// nowhere else were removed.
#[test]
fn a_prune_trusts_no_server_that_is_down_or_has_lost_the_copy() {
    let server = Server::start();
    server.reads("");
    let world = world_of_segments();
    let http = format!("to = \"http://127.0.0.1:{}/log\"", server.port);
    let s3 = format!(
        "to = \"s3://bucket/log\"\noptions = {{ endpoint = \"http://127.0.0.1:{}\", allow_http = \
         \"true\", region = \"r\", access_key_id = \"a\", secret_access_key = \"b\" }}",
        server.port
    );
    let config = |target: &str| {
        let config = format!("[[audit.ship]]\n{target}\n");
        std::fs::write(world.base().join("portcullis.toml"), config).unwrap();
    };
    let refused = || {
        let refused = run(&world, world.base(), &PRUNE);
        assert!(refused.code == 1 && refused.stderr.contains("nothing was removed"), "{refused:?}");
        assert!(first_segment(&world).exists());
        refused
    };
    // Both kinds of servers lose a segment, which the next copy has.
    server.says("200 OK", "etag: \"e\"\r\n", "");
    for target in [&http, &s3] {
        config(target);
        ship(&world).ok();
        for reads in ["404 No", "500 No", "503 No", "drop"] {
            server.reads(reads);
            refused();
        }
        server.reads("");
        let former = copy(&world);
        let lost = |path: &String| path.ends_with(&format!("{former}/seg-000000.jsonl.zst"));
        let before = server.shared.files.lock().unwrap().len();
        server.shared.files.lock().unwrap().retain(|path, _| !lost(path));
        assert_eq!(server.shared.files.lock().unwrap().len(), before - 1);
        let refusal = refused();
        assert!(refusal.stderr.contains("`portcullis audit ship` sends what"), "{refusal:?}");
        let sent = ship(&world).ok();
        assert!(sent.stderr.contains("another copy is begun"), "{sent:?}");
        assert_ne!(copy(&world), former);
        assert_eq!(records(&world, &server), 2 * SEGMENT_RECORDS + 500);
    }
    // The reply to the upload is enough where reads are refused, but not of a bucket.
    for reads in ["401 No", "403 No", "405 No", "501 No"] {
        server.reads(reads);
        config(&s3);
        refused();
        assert!(ship(&world).ok().stderr.is_empty());
    }
    config(&http);
    run(&world, world.base(), &PRUNE).ok();
    assert!(!first_segment(&world).exists());
}

/// The sender had given up on a request that the server finished later: the shorter piece took the
/// place of the longer one that was sent meanwhile, and the copy was damaged.
#[test]
fn a_piece_that_arrives_late_has_the_bytes_of_the_one_that_replaced_it() {
    let server = Server::start();
    server.reads("");
    let world = world(&server, "http://127.0.0.1:PORT/log", "");
    *server.shared.held.lock().unwrap() = Some(Vec::new());
    assert_eq!(ship(&world).code, 1);
    let held = server.shared.held.lock().unwrap().take().unwrap();
    assert!(!held.is_empty());
    next(&world);
    ship(&world).ok();
    server.shared.files.lock().unwrap().extend(held);
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(Some(records(&world, &server)), own["signed"]["records"].as_u64());
    next(&world);
    ship(&world).ok();
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    assert_eq!(Some(records(&world, &server)), own["signed"]["records"].as_u64());
}
