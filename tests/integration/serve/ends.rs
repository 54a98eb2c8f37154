//! Messages that a client sent before its session ended.

use std::{io::Write as _, net::Shutdown};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::rig::{Service, Site, Socket};
use crate::common::ALL;

/// More than a worker answers before the next message comes.
const MANY: usize = 50;

/// A session in which so many files are written, none of them answered yet.
fn busy(site: &Site, service: &Service) -> Socket {
    let mut session = service.session(site.token("all"), "shop");
    for id in 0..MANY {
        let path = format!("new/{id}.txt");
        let write = json!({
            "channel": "files", "type": "write", "requestId": id, "path": path, "content": "x",
        });
        session.say(write.to_string().as_bytes()).unwrap();
    }
    session
}

fn written(site: &Site) -> usize {
    std::fs::read_dir(site.root("shop").join("new")).unwrap().count()
}

/// Only one file was written, and the client got success for all.
#[test]
fn what_was_said_before_a_close_is_answered_before_it() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let mut session = busy(&site, &service);
    session.stream.get_mut().write_all(&[0x88, 0x80, 0, 0, 0, 0]).unwrap();
    assert_eq!(session.rest(), (MANY, Some(1000)));
    assert_eq!(written(&site), MANY);
}

#[test]
fn what_was_said_before_a_client_broke_a_rule_is_answered() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let mut session = busy(&site, &service);
    // Not text.
    session.stream.get_mut().write_all(&[0x82, 0x80, 0, 0, 0, 0]).unwrap();
    assert_eq!(session.rest(), (MANY, Some(1003)));
    assert_eq!(written(&site), MANY);
}

#[test]
fn what_was_said_before_a_client_shut_its_side_is_answered() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let mut session = busy(&site, &service);
    session.stream.get_mut().shutdown(Shutdown::Write).unwrap();
    assert_eq!(session.rest(), (MANY, None));
    assert_eq!(written(&site), MANY);
}

/// Messages that had come to the front and not to the worker were lost.
#[test]
fn what_was_said_before_the_service_stops_is_answered() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let mut session = busy(&site, &service);
    let stopping = std::thread::spawn(move || service.stop());
    assert_eq!(session.rest(), (MANY, Some(1001)));
    stopping.join().unwrap();
    assert_eq!(written(&site), MANY);
}

/// A session in which a write waits for a person.
fn asking(site: &Site, service: &Service) -> Socket {
    let mut session = service.session(site.token("all"), "shop");
    let write = json!({
        "channel": "files", "type": "write", "requestId": "asked", "path": "asked.txt",
        "content": "x",
    });
    session.say(write.to_string().as_bytes()).unwrap();
    site.await_record("shop", |record| record["decision"] == "ask");
    session
}

fn shop_that_asks() -> Site {
    let site = Site::new(&["shop", "docs"]);
    let asks = "[[rules]]\nid = \"ask\"\neffect = \"ask\"\npaths = [\"asked.txt\"]\n";
    std::fs::write(site.base().join("policy.toml"), format!("{ALL}{asks}")).unwrap();
    site
}

/// Sees to it that the write is answered, and the session over then.
fn is_answered(session: &mut Socket) {
    let answer = std::iter::from_fn(|| session.hear()).find(|said| said["requestId"] == "asked");
    let answer = answer.expect("the request has no answer");
    assert_ne!(answer["error"], Value::Null, "{answer}");
    assert!(session.is_over());
}

/// Only the log recorded that it was cancelled.
#[test]
fn what_waits_for_a_person_is_answered_when_the_service_stops() {
    let site = shop_that_asks();
    let service = site.serve();
    let mut session = asking(&site, &service);
    let stopping = std::thread::spawn(move || service.stop());
    is_answered(&mut session);
    stopping.join().unwrap();
}

#[test]
fn what_waits_for_a_person_is_answered_when_its_workspace_goes() {
    let mut site = shop_that_asks();
    let service = site.serve();
    let mut session = asking(&site, &service);
    site.workspaces.retain(|name| name != "shop");
    site.write();
    service.signal(Signal::HUP);
    is_answered(&mut session);
    service.stop();
}
