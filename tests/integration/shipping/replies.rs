//! Possible replies of a target over HTTP.

use serde_json::Value;

use super::{run, server::Server};
use crate::common::{World, done};

/// A world with a log whose target is `to`, where `PORT` is the server's.
pub(super) fn world(server: &Server, to: &str, more: &str) -> World {
    let world = World::new();
    let to = to.replace("PORT", &server.port.to_string());
    let config = format!("[audit]\nship = [{{ to = \"{to}\"{more} }}]\n");
    std::fs::write(world.base().join("portcullis.toml"), config).unwrap();
    world.file("a", "x");
    next(&world);
    world
}

/// Another record, and a checkpoint of it.
pub(super) fn next(world: &World) {
    world.fs(&["read", "a"]).ok();
    world.run(&["audit", "checkpoint"]).ok();
}

pub(super) fn status(world: &World) -> Value {
    run(world, world.base(), &["audit", "ship", "--status", "--json"]).ok().json()
}

/// The names of copies to which something was sent.
pub(super) fn copies(heads: &[String]) -> Vec<String> {
    let mut names: Vec<_> = heads
        .iter()
        .filter_map(|head| head.strip_prefix("PUT /log/")?.split('/').next().map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The page was stored completely in the state of the target, which then could not be read: the
/// next attempt began another copy without a message, as did each after it.
#[test]
fn a_long_error_page_is_not_kept_whole() {
    let server = Server::start();
    let world = world(&server, "http://127.0.0.1:PORT/log", "");
    run(&world, world.base(), &["audit", "ship"]).ok();
    let sent = status(&world);
    next(&world);
    server.says("500 No", "", &"X".repeat(8 << 20));
    let failed = run(&world, world.base(), &["audit", "ship"]);
    assert!(failed.code == 1 && failed.stderr.contains("500"), "{}", failed.stderr.len());
    assert!(failed.stderr.len() < 2_000, "{}", failed.stderr.len());
    let now = status(&world);
    assert_eq!((&now["copy"], &now["records"]), (&sent["copy"], &sent["records"]), "{now}");
    assert!(now["error"].as_str().unwrap().len() < 1_000, "{now}");
    server.says("201 Created", "", "");
    run(&world, world.base(), &["audit", "ship"]).ok();
    assert_eq!(copies(&server.heads()).len(), 1);
}

/// The answer of a login page counted as that of the target, and got the target's headers.
#[test]
fn a_redirection_is_not_followed() {
    let server = Server::start();
    let headers = ", headers = { x-api-key = \"of-the-target\" }";
    let world = world(&server, "http://127.0.0.1:PORT/log", headers);
    let other = Server::start();
    for code in ["301 Moved", "302 Found", "303 See Other", "307 Later", "308 Moved"] {
        let to = format!("location: http://u:secret@127.0.0.1:{}/login?t=secret\r\n", other.port);
        server.says(code, &to, "");
        let refused = run(&world, world.base(), &["audit", "ship"]);
        assert_eq!(refused.code, 1, "{code}: {refused:?}");
        let leads = format!("leads to http://127.0.0.1:{}/login", other.port);
        assert!(
            refused.stderr.contains(&leads) && !refused.stderr.contains("secret"),
            "{code}: {refused:?}"
        );
        assert_eq!(other.heads(), Vec::<String>::new(), "{code}");
        assert_eq!(status(&world)["records"], 0, "{code}");
    }
}

/// An error in a reply was reported with the complete address.
#[test]
fn a_password_in_an_address_is_sent_and_not_shown() {
    let server = Server::start();
    let world = world(&server, "http://me:s3cr%40t@127.0.0.1:PORT/log", "");
    server.says("500 No", "", "no room");
    let failed = run(&world, world.base(), &["audit", "ship"]);
    assert!(failed.code == 1 && failed.stderr.contains("no room"), "{failed:?}");
    let heads = server.heads();
    // `me:s3cr@t`
    let credentials = |head: &String| {
        head.to_ascii_lowercase().contains("authorization: basic ") && head.contains("bWU6czNjckB0")
    };
    assert!(heads.iter().all(credentials), "{heads:?}");
    let doctor = run(&world, world.base(), &["doctor"]);
    let shown = status(&world).to_string();
    let mut said = vec![failed.stderr, doctor.text().to_owned(), doctor.stderr.clone(), shown];
    for entry in std::fs::read_dir(world.state().join("ship")).unwrap() {
        said.push(std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    for text in said {
        assert!(!text.contains("s3cr"), "{text}");
    }
}

/// The HTTP client of a machine without certificates ended the broker by a panic, although HTTP
/// needs none.
#[test]
fn a_copy_over_http_needs_no_certificates() {
    let server = Server::start();
    let world = world(&server, "http://127.0.0.1:PORT/log", "");
    let mut command = world.command(&["audit", "ship"]);
    command.env("PORTCULLIS_CONFIG", world.base().join("portcullis.toml"));
    command.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/var/empty");
    done(command.output().unwrap()).ok();
    assert_eq!(copies(&server.heads()).len(), 1);
}

/// Such a length ended the process by a panic.
#[test]
fn a_frame_size_that_http_2_does_not_have_is_an_error() {
    let server = Server::start();
    let world =
        world(&server, "http://127.0.0.1:PORT/log", ", options = { http2_max_frame_size = \"1\" }");
    let refused = run(&world, world.base(), &["audit", "ship"]);
    assert!(refused.code == 1 && refused.stderr.contains("16384"), "{refused:?}");
    assert_eq!(server.heads(), Vec::<String>::new());
}
