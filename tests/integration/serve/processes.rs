//! Processes: kept apart, started and stopped as needed, replaced when they die.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::rig::{Service, Site, kill, status, wait};
use crate::shipping::the_copy;

#[test]
fn each_process_is_confined_and_holds_nothing_of_the_others() {
    let site = Site::new(&["shop", "docs"]);
    site.write();
    let service = Service::start(site.command(&[]).env("AWS_SECRET_ACCESS_KEY", "a-key"));
    let token = site.token("all");
    let mut sessions = ["shop", "docs"].map(|name| service.session(token, name));
    for session in &mut sessions {
        session.read("file.txt").unwrap();
    }
    let fronts = service.processes("front-process");
    let workers = service.processes("worker-process");
    assert_eq!((fronts.len(), workers.len()), (1, 2));
    for pid in fronts.iter().chain(&workers) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for word in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"] {
            assert!(status.contains(word), "{word}\n{status}");
        }
        // It had the keys of credentials, of copies of the log and of the collector.
        let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        assert!(!environment.contains("AWS_SECRET_ACCESS_KEY"), "{environment}");
    }
    let held = |pid: &u32| -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let links = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.map(|link| link.to_string_lossy().into_owned()).collect()
    };
    let beneath = |held: &[String], place: &Path| {
        held.iter().any(|link| link.starts_with(place.to_str().unwrap()))
    };
    assert!(!beneath(&held(&fronts[0]), &site.base()), "{:?}", held(&fronts[0]));
    for pid in &workers {
        let held = held(pid);
        let of = |name: &str| beneath(&held, &site.root(name)) || beneath(&held, &site.state(name));
        assert!(of("shop") != of("docs"), "{held:?}");
        assert!(!of("serve"), "{held:?}");
    }
    drop(sessions);
    service.stop();
    // The self-test had something to find: its control, and both of the other.
    let starts = site.records("serve");
    let test = &starts[0]["facts"]["selfTest"];
    assert!(test["front"]["before"].as_u64().unwrap() >= 6, "{test}");
    assert_eq!(test["worker"]["tried"], 5, "{test}");
    let start = &site.records("shop")[0];
    assert_eq!((&start["kind"], &start["facts"]["unreachable"]), (&json!("start"), &json!(5)));
}

#[test]
fn a_worker_that_is_killed_harms_nobody_else_and_is_started_anew() {
    let site = Site::new(&["shop", "docs"]);
    let service = site.serve();
    let token = site.token("all");
    let mut docs = service.session(token, "docs");
    let theirs = service.processes("worker-process");
    let mut shop = service.session(token, "shop");
    shop.write("new.txt", "x");
    let ours = service.processes("worker-process");
    let pid = *ours.iter().find(|pid| !theirs.contains(pid)).unwrap();
    kill(pid, Signal::KILL);
    assert!(shop.is_over());
    assert_eq!(docs.read("file.txt").unwrap(), "of docs\n");
    assert_eq!(service.session(token, "shop").read("new.txt").unwrap(), "x");
    assert_eq!(docs.read("file.txt").unwrap(), "of docs\n");
    let page = service.numbers(token);
    assert!(page.contains("portcullis_worker_deaths_total 1\n"), "{page}");
    drop(docs);
    service.stop();
    let died = site
        .records("serve")
        .into_iter()
        .find(|record| record["op"] == "worker.stop" && record["facts"]["process"] == pid);
    assert_eq!(died.unwrap()["facts"]["workspace"], "shop");
}

#[test]
fn a_front_that_is_killed_is_started_anew_at_the_same_place() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let mut session = service.session(token, "shop");
    let front = service.processes("front-process")[0];
    kill(front, Signal::KILL);
    assert!(session.is_over());
    assert_eq!(service.session(token, "shop").read("file.txt").unwrap(), "of shop\n");
    assert_ne!(service.processes("front-process")[0], front);
    service.stop();
}

#[test]
fn a_worker_that_nobody_needs_stops_and_comes_back() {
    let mut site = Site::new(&["shop"]);
    site.settings = "idleSeconds = 1".to_owned();
    let service = site.serve();
    let token = site.token("all");
    assert!(service.processes("worker-process").is_empty());
    let mut session = service.session(token, "shop");
    let first = service.processes("worker-process");
    assert_eq!(first.len(), 1);
    assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
    drop(session);
    site.await_record("shop", |record| record["kind"] == "stop");
    wait(|| service.processes("worker-process").is_empty().then_some(()));
    assert_eq!(service.session(token, "shop").read("file.txt").unwrap(), "of shop\n");
    service.stop();
}

#[test]
fn a_workspace_that_cannot_be_served_leaves_the_others_alone() {
    let site = Site::new(&["shop", "docs"]);
    let service = site.serve();
    let token = site.token("all");
    fs::remove_dir_all(site.root("shop")).unwrap();
    assert_eq!(service.open(token, "shop").err(), Some(503));
    assert_eq!(service.session(token, "docs").read("file.txt").unwrap(), "of docs\n");
    site.await_record("serve", |record| {
        record["op"] == "worker.start" && record["decision"] == "deny"
    });
    service.stop();
}

#[test]
fn it_is_ready_only_while_the_broker_answers_and_every_workspace_is_there() {
    let site = Site::new(&["shop", "docs"]);
    let service = site.serve();
    let ready = || service.get("/readyz", &[]);
    // A broker that is too busy to answer is not ready.
    let reply = wait(|| Some(ready()).filter(|(status, _)| *status == 200)).1;
    assert!(reply.contains(r#"{"ready":true}"#), "{reply}");
    // Gone and back again.
    let (root, aside) = (site.root("docs"), site.base().join("aside"));
    fs::rename(&root, &aside).unwrap();
    let why = r#"{"ready":false,"reason":"1 of 2 workspaces cannot be served"}"#;
    let (status, reply) = wait(|| Some(ready()).filter(|(_, reply)| reply.contains(why)));
    assert!(status == 503 && reply.contains("application/json"), "{reply}");
    fs::rename(&aside, &root).unwrap();
    wait(|| (ready().0 == 200).then_some(()));
    // A broker that does nothing any more, and then does again.
    kill(service.pid(), Signal::STOP);
    let reply = wait(|| Some(ready()).filter(|(status, _)| *status == 503)).1;
    assert!(reply.contains(r#""reason":"the broker does not answer""#), "{reply}");
    assert_eq!(service.get("/healthz", &[]).0, 200);
    kill(service.pid(), Signal::CONT);
    wait(|| (ready().0 == 200).then_some(()));
    // A broker that is gone ends the front, too: no reply comes then.
    kill(service.pid(), Signal::KILL);
    wait(|| std::net::TcpStream::connect(("127.0.0.1", service.port)).err());
}

/// A probe looked at the log, which was there from the last time.
#[test]
fn whether_a_service_is_ready_is_asked_of_the_one_that_runs() {
    let site = Site::new(&["shop"]);
    let socket = site.base().join("serve.sock");
    let unix = format!("unix:{}", socket.display());
    let mut command = site.command(&["--listen", &unix]);
    site.write();
    let service = Service::start(&mut command);
    let tcp = format!("127.0.0.1:{}", service.port);
    let ask = |at: &str| {
        let config = site.config();
        let args = ["serve", "--config", config.to_str().unwrap(), "--ready", "--listen", at];
        let mut command = site.world.command(&args);
        let done = command.env_remove("PORTCULLIS_WORKSPACE").env_remove("PORTCULLIS_STATE");
        let done = done.output().unwrap();
        (done.status.success(), String::from_utf8(done.stderr).unwrap())
    };
    for at in [&tcp, &unix] {
        wait(|| ask(at).0.then_some(()));
    }
    let (root, aside) = (site.root("shop"), site.base().join("aside"));
    fs::rename(&root, &aside).unwrap();
    let why = "1 of 1 workspaces cannot be served";
    let (ready, said) = wait(|| Some(ask(&tcp)).filter(|(_, said)| said.contains(why)));
    assert!(!ready, "{said}");
    fs::rename(&aside, &root).unwrap();
    service.stop();
    assert!(!ask(&tcp).0 && !ask(&unix).0);
}

/// It reported to be ready again as soon as the failure was a moment ago.
#[test]
fn a_workspace_whose_worker_cannot_start_is_not_ready_until_one_does() {
    let site = Site::new(&["shop", "docs"]);
    let state = site.state("docs");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&state).unwrap();
    fs::write(state.join("audit"), "no log").unwrap();
    let service = site.serve();
    let ready = || service.get("/readyz", &[]).0;
    assert_eq!(service.open(site.token("all"), "docs").err(), Some(503));
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(ready(), 503);
        std::thread::sleep(Duration::from_millis(50));
    }
    // Only a client that asks for readiness causes another attempt.
    fs::remove_file(state.join("audit")).unwrap();
    wait(|| (ready() == 200).then_some(()));
    service.stop();
}

#[test]
fn the_services_own_log_is_copied_beside_those_of_its_workspaces() {
    let mut site = Site::new(&["shop"]);
    let copies = site.base().join("copies");
    site.settings = format!("[audit]\nship = [{{ to = \"{}\" }}]", copies.display());
    let service = site.serve();
    let token = site.token("all");
    assert_eq!(service.session(token, "shop").read("file.txt").unwrap(), "of shop\n");
    assert_eq!(service.open("pcl_wrong", "shop").err(), Some(401));
    service.stop();
    let records = site.records("serve");
    let copy =
        fs::read_to_string(the_copy(&copies.join("service.log")).join("seg-000000.jsonl")).unwrap();
    let copied = copy.lines().map(|line| serde_json::from_str(line).unwrap());
    assert_eq!(copied.collect::<Vec<serde_json::Value>>(), records);
    assert!(records.iter().any(|record| record["op"] == "login") && records.len() >= 4);
    assert!(the_copy(&copies.join("shop")).join("seg-000000.jsonl").exists());
    let copy = the_copy(&copies.join("service.log"));
    let mut verify = site.world.command(&["audit", "verify", "--dir", copy.to_str().unwrap()]);
    verify.env_remove("PORTCULLIS_WORKSPACE").env_remove("PORTCULLIS_STATE");
    crate::common::done(verify.output().unwrap()).ok();
}

#[test]
fn stopping_ends_sessions_and_finishes_what_was_begun() {
    let site = Site::new(&["shop", "docs"]);
    let service = site.serve();
    let token = site.token("all");
    let mut sessions = ["shop", "docs"].map(|name| service.session(token, name));
    for session in &mut sessions {
        session.write("w.txt", "1");
    }
    let begun = std::time::Instant::now();
    service.stop();
    assert!(begun.elapsed().as_secs() < 60);
    for session in &mut sessions {
        assert!(session.is_over());
    }
    for name in ["shop", "docs", "serve"] {
        assert_eq!(site.records(name).pop().unwrap()["kind"], "stop", "{name}");
        let state = site.state(name);
        let verified =
            site.world.run(&["audit", "verify", "--json", "--state", state.to_str().unwrap()]);
        let head = verified.ok().json();
        // The last checkpoint covers everything.
        assert_eq!(head["records"], head["signed"]["records"], "{name}: {head}");
    }
}

/// `RestrictSUIDSGID=` forbids openat2: the service started and could read
/// nothing.
#[test]
fn the_unit_does_not_forbid_what_every_path_is_resolved_with() {
    let unit = include_str!("../../../deploy/portcullis.service");
    assert!(unit.contains("\nSystemCallFilter=@system-service\n"), "{unit}");
    assert!(!unit.contains("\nRestrictSUIDSGID="), "{unit}");
}

/// The changes were made, and no reply came.
#[test]
fn what_tools_did_is_answered_before_the_service_stops() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let write = |number: usize| {
        let arguments = json!({ "path": format!("new/{number}.txt"), "content": "x" });
        service.post(token, "shop", "write_file", &arguments)
    };
    let streams: Vec<_> = (0..60).map(write).collect();
    let mut streams = streams.into_iter();
    let answered = |stream: std::net::TcpStream| {
        let mut reply = String::new();
        // Connections that came too late get no reply.
        let _ = { stream }.read_to_string(&mut reply);
        usize::from(reply.contains("\"isError\":false"))
    };
    let mut told = answered(streams.next().unwrap());
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| service.stop());
        told += streams.map(answered).sum::<usize>();
        stopping.join().unwrap();
    });
    let records = site.records("shop");
    let done = |record: &&Value| record["kind"] == "outcome" && record["result"] == "ok";
    assert_eq!(told, records.iter().filter(done).count());
}

#[test]
fn pages_that_are_looked_at_take_no_other_method() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let token = site.token("all");
    let reply = |method: &str, path: &str| {
        let mut stream = service.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer {token}\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(status(&reply("GET", path)), 200);
        let head = reply("HEAD", path);
        assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "MADEUP"] {
            let refused = reply(method, path);
            assert_eq!(status(&refused), 405, "{method} {path}");
            assert!(refused.contains("allow: GET, HEAD\r\n"), "{refused}");
        }
    }
}
