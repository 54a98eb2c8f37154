//! `SIGHUP`: the changes, and the clients that are not affected.

use std::{fs, os::unix::fs::symlink};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::rig::{Service, Site, kill, wait};
use crate::common::ALL;

#[test]
fn workspaces_and_agents_come_and_go_without_dropping_others() {
    let mut site = Site::new(&["shop", "docs"]);
    let old = site.add_agent("old", "workspaces = [\"shop\"]");
    let service = site.serve();
    let all = site.token("all").to_owned();
    let mut stays = service.session(&all, "shop");
    let mut loses = service.session(&old, "shop");
    let mut gone = service.session(&all, "docs");
    // `old` and `docs` go; `new` and `wiki` come.
    site.agents.retain(|(name, ..)| name != "old");
    let new = site.add_agent("new", "workspaces = [\"wiki\"]");
    site.workspaces.retain(|name| name != "docs");
    site.add_workspace("wiki");
    site.write();
    service.signal(Signal::HUP);
    assert!(loses.is_over() && gone.is_over());
    assert_eq!(stays.read("file.txt").unwrap(), "of shop\n");
    assert_eq!(service.session(&new, "wiki").read("file.txt").unwrap(), "of wiki\n");
    assert_eq!(service.open(&old, "shop").err(), Some(401));
    assert_eq!(service.open(&all, "docs").err(), Some(404));
    assert_eq!(stays.read("file.txt").unwrap(), "of shop\n");
    let note = site.await_record("serve", |record| record["op"] == "reload");
    assert_eq!((&note["facts"]["added"], &note["facts"]["stopped"]), (&json!(1), &json!(["docs"])));
    assert_eq!(site.records("docs").pop().unwrap()["kind"], "stop");
    drop(stays);
    service.stop();
}

#[test]
fn a_configuration_that_cannot_be_used_changes_nothing() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let mut session = service.session(token, "shop");
    fs::write(site.config(), "[serve]\nlisten = 1\n").unwrap();
    service.signal(Signal::HUP);
    site.await_record("serve", |record| record["op"] == "reload" && record["decision"] == "deny");
    assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
    assert_eq!(service.session(token, "shop").read("file.txt").unwrap(), "of shop\n");
    drop(session);
    service.stop();
}

/// Workers read the file again when they started.
#[test]
fn a_configuration_that_is_refused_does_not_keep_workers_from_starting() {
    let site = Site::new(&["shop", "docs"]);
    let service = site.serve();
    let good = fs::read_to_string(site.config()).unwrap();
    // The last is in a section of which the broker itself needs hardly anything.
    let audit = "[audit]\nsearches = \"files\"";
    for (refusals, workspace, bad) in [(1, "shop", "[[["), (2, "docs", audit)] {
        fs::write(site.config(), format!("{good}{bad}\n")).unwrap();
        service.signal(Signal::HUP);
        wait(|| {
            let records = site.records("serve");
            let reloads = records.iter().filter(|record| record["op"] == "reload");
            let denied = reloads.filter(|record| record["decision"] == "deny").count();
            (denied == refusals).then_some(())
        });
        let mut session = service.session(site.token("all"), workspace);
        assert_eq!(session.read("file.txt").unwrap(), format!("of {workspace}\n"));
    }
    service.stop();
}

/// Those of a workspace whose worker had stopped before stayed for ever.
#[test]
fn the_numbers_of_a_workspace_that_is_gone_are_gone() {
    let mut site = Site::new(&["shop", "docs"]);
    site.settings = "idleSeconds = 1".to_owned();
    let service = site.serve();
    let token = site.token("all").to_owned();
    let shows = |word: &str| service.numbers(&token).contains(word);
    {
        let mut session = service.session(&token, "docs");
        session.write("new.txt", "x");
        wait(|| shows("portcullis_worker_up{workspace=\"docs\"} 1").then_some(()));
    }
    wait(|| shows("portcullis_worker_up{workspace=\"docs\"} 0").then_some(()));
    assert!(shows("portcullis_audit_uncovered_records{workspace=\"docs\"} 0"));
    site.workspaces.retain(|name| name != "docs");
    site.write();
    service.signal(Signal::HUP);
    wait(|| (!shows("docs")).then_some(()));
    service.stop();
}

#[test]
fn a_changed_policy_holds_for_sessions_that_are_open() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let mut session = service.session(site.token("all"), "shop");
    assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
    let stricter =
        format!("{ALL}[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"file.txt\"]\n");
    fs::write(site.base().join("policy.toml"), stricter.replace("schema", "version = 2\nschema"))
        .unwrap();
    service.signal(Signal::HUP);
    wait(|| (session.read("file.txt").unwrap() == "refused").then_some(()));
    drop(session);
    service.stop();
    let mut reads = site.records("shop").into_iter().filter(|record| record["op"] == "read");
    assert_eq!(reads.next_back().unwrap()["rule"], "no");
}

#[test]
fn who_waits_for_a_worker_and_loses_the_workspace_meanwhile_is_not_let_in() {
    let mut site = Site::new(&["shop"]);
    let old = site.add_agent("old", "workspaces = [\"shop\"]");
    let service = site.serve();
    let starts =
        |site: &Site| site.records("shop").iter().filter(|one| one["kind"] == "start").count();
    // A worker that cannot come to be ready.
    let (worker, opened) = std::thread::scope(|scope| {
        let (worker, waits) = loop {
            let before = starts(&site);
            let waits = scope.spawn(|| service.open(&old, "shop").map(drop));
            let worker = wait(|| service.processes("worker-process").pop());
            kill(worker, Signal::STOP);
            let stat = format!("/proc/{worker}/stat");
            wait(|| fs::read_to_string(&stat).unwrap().contains(") T ").then_some(()));
            if starts(&site) == before {
                break (worker, waits);
            }
            // It may have been ready before it was stopped: another one is started.
            kill(worker, Signal::CONT);
            let _ = waits.join().unwrap();
            kill(worker, Signal::KILL);
            site.await_record("serve", |record| {
                record["op"] == "worker.stop" && record["facts"]["process"] == worker
            });
        };
        site.agents.retain(|(name, ..)| name != "old");
        site.write();
        service.signal(Signal::HUP);
        site.await_record("serve", |record| record["op"] == "reload");
        kill(worker, Signal::CONT);
        (worker, waits.join().unwrap())
    });
    assert_eq!(opened.err(), Some(503));
    // The worker itself serves clients that may.
    let mut session = service.session(site.token("all"), "shop");
    assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
    assert_eq!(service.processes("worker-process"), [worker]);
}

#[test]
fn a_front_that_had_no_room_to_hear_whom_it_lets_in_hears_it_later() {
    let mut site = Site::new(&["shop"]);
    // Of so many, a few messages fill the way to the front.
    let many: Vec<_> = (0..800).map(|n| format!("https://{n:060}.example")).collect();
    site.settings =
        format!("origins = {:?}", [&["https://old.example".to_owned()], &many[..]].concat());
    let service = site.serve();
    let token = site.token("all").to_owned();
    let ask = || {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", &*bearer), ("Origin", "https://old.example")];
        service.get("/metrics", &headers).0
    };
    assert_eq!(ask(), 200);
    let front = service.processes("front-process").pop().unwrap();
    kill(front, Signal::STOP);
    for done in 1..=12 {
        if done == 12 {
            site.settings = format!("origins = {many:?}");
            site.write();
        }
        service.signal(Signal::HUP);
        wait(|| {
            let records = site.records("serve");
            let reloads = records.iter().filter(|record| record["op"] == "reload").count();
            (reloads == done).then_some(())
        });
    }
    kill(front, Signal::CONT);
    wait(|| (ask() == 403).then_some(()));
    assert_eq!(service.processes("front-process"), [front]);
    drop(service.session(&token, "shop"));
    service.stop();
}

impl Site {
    /// Puts the configuration in a directory of its own and leads its name there,
    /// at once, as Kubernetes does with a `ConfigMap`.
    fn release(&self, version: &str) {
        let (etc, name) = (self.base().join("etc"), self.config());
        let _ = fs::remove_file(&name);
        self.write();
        let mut text = fs::read_to_string(&name).unwrap();
        for begin in ["roots/", "states/", "policy.toml"] {
            let whole = format!("\"{}/{begin}", self.base().display());
            text = text.replace(&format!("\"{begin}"), &whole);
        }
        fs::create_dir_all(etc.join(version)).unwrap();
        fs::write(etc.join(version).join("portcullis.toml"), text).unwrap();
        symlink(version, etc.join("next")).unwrap();
        fs::rename(etc.join("next"), etc.join("data")).unwrap();
        fs::remove_file(&name).unwrap();
        symlink("etc/data/portcullis.toml", name).unwrap();
    }
}

/// The old one was read again, and reported as in force.
#[test]
fn a_configuration_is_read_again_where_its_name_leads_now() {
    let mut site = Site::new(&["shop"]);
    let old = site.add_agent("old", "workspaces = [\"shop\"]");
    site.release("v1");
    let service = Service::start(&mut site.command(&[]));
    let mut loses = service.session(&old, "shop");
    site.agents.retain(|(name, ..)| name != "old");
    site.release("v2");
    service.signal(Signal::HUP);
    let note = site.await_record("serve", |record| record["op"] == "reload");
    assert_eq!(note["facts"]["agents"], 1, "{note}");
    assert!(loses.is_over());
    assert_eq!(service.open(&old, "shop").err(), Some(401));
    // Nor is the first one missed.
    fs::remove_dir_all(site.base().join("etc/v1")).unwrap();
    let new = site.add_agent("new", "workspaces = [\"shop\"]");
    site.release("v3");
    service.signal(Signal::HUP);
    let is_third = |record: &Value| record["op"] == "reload" && record["facts"]["agents"] == 2;
    site.await_record("serve", is_third);
    assert_eq!(service.session(&new, "shop").read("file.txt").unwrap(), "of shop\n");
    service.stop();
}
