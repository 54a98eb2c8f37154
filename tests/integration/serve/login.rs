//! Authentication and authorization of clients.

use std::{fs, io::Write as _, os::unix::net::UnixStream, process::Stdio};

use super::rig::{Service, Site, status};
use crate::common::{World, done, send_descriptor, sockets_refuse_descriptors};

#[test]
fn without_a_configuration_it_serves_this_directory_for_a_token_shown_once() {
    let world = World::new();
    world.file("a.txt", "hello\n");
    let service = Service::start(&mut world.command(&["serve", "--listen", "127.0.0.1:0"]));
    let token = service.said.split("shown this once: ").nth(1).unwrap();
    let token = token.lines().next().unwrap().to_owned();
    assert!(service.said.contains("/workspaces/ws/mcp\""), "{}", service.said);
    assert_eq!(service.session(&token, "ws").read("a.txt").unwrap(), "hello\n");
    service.stop();
    // Nothing that it leaves has the token.
    let all = std::process::Command::new("grep")
        .args(["-r", "-l", &token])
        .arg(world.base())
        .output()
        .unwrap();
    assert_eq!((all.status.code(), all.stdout.len()), (Some(1), 0));
    let read = world.requests().into_iter().rfind(|record| record["op"] == "read").unwrap();
    assert_eq!((&read["agent"], &read["transport"]), (&"client".into(), &"files".into()));
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_token_opens_its_own_workspaces_and_no_other() {
    let mut site = Site::new(&["shop", "docs"]);
    let ci = site.add_agent("ci", "workspaces = [\"shop\"]");
    let service = site.serve();
    assert_eq!(service.session(&ci, "shop").read("file.txt").unwrap(), "of shop\n");
    // A workspace that is not allowed looks like one that does not exist.
    let (not_allowed, unknown) = (service.open(&ci, "docs"), service.open(&ci, "nothing"));
    assert_eq!((not_allowed.err(), unknown.err()), (Some(404), Some(404)));
    let (one, other) =
        (service.get_as(&ci, "/workspaces/docs/mcp"), service.get_as(&ci, "/workspaces/no/mcp"));
    assert_eq!(one.1.len(), other.1.len());
    for wrong in ["pcl_wrong", "", &site.token("all")[..20]] {
        assert_eq!(service.open(wrong, "shop").err(), Some(401), "{wrong}");
    }
    // The root said that there was nothing, and not where anything is.
    let (status, reply) = service.get("/", &[]);
    assert!(status == 404 && reply.contains("this is portcullis"), "{reply}");
    assert!(reply.contains("/workspaces/NAME/mcp") && !reply.contains("shop"), "{reply}");
    let (status, reply) = service.get("/workspaces/shop/mcp", &[]);
    assert!(status == 401 && reply.contains("no token was sent"), "{reply}");
    let (status, reply) = service.get_as("pcl_wrong", "/workspaces/shop/mcp");
    assert!(status == 401 && !reply.contains("no token was sent"), "{reply}");
    assert_eq!(service.get_as(&ci, "/metrics").0, 404);
    service.stop();
    let denied: Vec<_> =
        site.records("serve").into_iter().filter(|record| record["decision"] == "deny").collect();
    let reasons: Vec<_> = denied.iter().map(|record| record["reason"].as_str().unwrap()).collect();
    assert!(reasons.contains(&"the token is no agent's"), "{reasons:?}");
    assert!(reasons.contains(&"there is no such workspace for this agent"), "{reasons:?}");
    assert!(denied.iter().all(|record| record["facts"]["peer"] == "127.0.0.1"), "{denied:?}");
    // Clients over MCP were skipped.
    let of_mcp = denied.iter().filter(|record| record["facts"]["workspace"] == "docs").count();
    assert_eq!(of_mcp, 2, "{denied:?}");
    let state = site.state("serve");
    site.world.run(&["audit", "verify", "--state", state.to_str().unwrap()]).ok();
}

#[test]
fn a_page_under_another_name_or_origin_is_refused() {
    let mut site = Site::new(&["shop"]);
    site.settings = "hosts = [\"files.example\"]\norigins = [\"https://app.example\"]".to_owned();
    let service = site.serve();
    let from = |host: &str| service.get("/healthz", &[("Host", host)]).0;
    assert_eq!((from("127.0.0.1:1"), from("files.example"), from("evil.example")), (200, 200, 421));
    let (status, reply) = service.get("/healthz", &[("Origin", "https://app.example")]);
    assert_eq!(status, 200);
    assert!(reply.contains("access-control-allow-origin: https://app.example\r\n"), "{reply}");
    let (status, reply) = service.get("/healthz", &[("Origin", "https://evil.example")]);
    assert!(status == 403 && !reply.contains("access-control"), "{reply}");
    assert!(!service.get("/healthz", &[]).1.contains("access-control"));
}

#[test]
fn too_many_wrong_tokens_wait_and_those_who_are_known_do_not() {
    let mut site = Site::new(&["shop"]);
    site.settings = "limits = { failedLogins = 5 }".to_owned();
    let service = site.serve();
    let all = site.token("all").to_owned();
    let mut known = service.session(&all, "shop");
    let tried: Vec<_> = (0..20).map(|n| service.open(&format!("pcl_{n}"), "shop").err()).collect();
    assert_eq!(tried.iter().filter(|status| **status == Some(401)).count(), 5, "{tried:?}");
    assert_eq!(tried.iter().filter(|status| **status == Some(429)).count(), 15, "{tried:?}");
    assert_eq!(known.read("file.txt").unwrap(), "of shop\n");
    assert_eq!(service.session(&all, "shop").read("file.txt").unwrap(), "of shop\n");
    let page = service.numbers(&all);
    assert!(page.contains("portcullis_refused_total{reason=\"throttled\"} 15\n"), "{page}");
    drop(known);
    service.stop();
    let records = site.records("serve");
    let attempts: u64 =
        records.iter().filter_map(|record| record["facts"]["attempts"].as_u64()).sum();
    assert_eq!(attempts, 15, "{records:?}");
}

/// The first hundred refusals of a minute have records; those of both kinds counted
/// together.
#[test]
fn an_agent_that_is_refused_sessions_hides_no_wrong_token() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    for _ in 0..110 {
        assert_eq!(service.open(site.token("all"), "none").err(), Some(404));
    }
    assert_eq!(service.open("pcl_wrong", "shop").err(), Some(401));
    service.stop();
    let records = site.records("serve");
    let of = |op: &'static str| records.iter().filter(move |record| record["op"] == op);
    assert!(of("login").all(|record| record["facts"]["peer"].is_string()));
    assert_eq!((of("login").count(), of("session").count()), (1, 101));
    let last = of("session").next_back().unwrap();
    assert_eq!(last["facts"], serde_json::json!({ "attempts": 10 }));
}

#[test]
fn a_unix_socket_is_for_its_owner() {
    let site = Site::new(&["shop"]);
    site.write();
    let socket = site.base().join("s.sock");
    let at = format!("unix:{}", socket.display());
    let service = Service::start(&mut site.command(&["--listen", &at]));
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    std::io::Read::read_to_string(&mut stream, &mut reply).unwrap();
    assert_eq!(status(&reply), 200);
    service.stop();
    assert!(!socket.exists());
}

/// A lingering socket, sent beside a request, blocked the whole front.
#[test]
fn a_unix_socket_takes_no_descriptors() {
    let site = Site::new(&["shop"]);
    site.write();
    let socket = site.base().join("s.sock");
    let at = format!("unix:{}", socket.display());
    let service = Service::start(&mut site.command(&["--listen", &at]));
    let is_refused = send_descriptor(&socket) == Err(rustix::io::Errno::PERM);
    assert_eq!(is_refused, sockets_refuse_descriptors());
    service.stop();
}

/// A service that had been replaced removed the socket of the other.
#[test]
fn a_service_that_stops_leaves_the_socket_of_another_alone() {
    let sites = [Site::new(&["shop"]), Site::new(&["shop"])];
    let socket = sites[0].base().join("s.sock");
    let at = format!("unix:{}", socket.display());
    let [old, new] = sites.each_ref().map(|site| {
        site.write();
        let _ = fs::remove_file(&socket);
        Service::start(&mut site.command(&["--listen", &at]))
    });
    old.stop();
    UnixStream::connect(&socket).unwrap();
    new.stop();
    assert!(!socket.exists());
}

#[test]
fn a_configuration_that_is_not_understood_starts_nothing() {
    let site = Site::new(&["shop"]);
    let refused = |site: &Site, code: i32, words: &[&str]| {
        let done = done(site.command(&[]).stdin(Stdio::null()).output().unwrap());
        assert_eq!(done.code, code, "{done:?}");
        for word in words {
            assert!(done.stderr.contains(word), "{word}\n{}", done.stderr);
        }
    };
    let with = |settings: &str, code, words: &[&str]| {
        let site = Site { settings: settings.to_owned(), ..Site::new(&["shop"]) };
        site.write();
        refused(&site, code, words);
    };
    with("idelSeconds = 5", 1, &["portcullis.toml:3:1", "did you mean `idleSeconds`?"]);
    let far = "other machines reach `0.0.0.0:0`";
    let done = {
        site.write();
        done(site.command(&["--listen", "0.0.0.0:0"]).output().unwrap())
    };
    assert!(done.code == 1 && done.stderr.contains(far), "{done:?}");
    // Overlapping workspaces, and states, could not be kept apart.
    let mut nested = Site::new(&["shop"]);
    nested.add_workspace("shop/inner");
    nested.workspaces = vec!["shop".to_owned()];
    nested.write();
    let mut text = fs::read_to_string(nested.config()).unwrap();
    text += "[[workspaces]]\nname = \"inner\"\nroot = \"roots/shop/inner\"\n";
    fs::write(nested.config(), &text).unwrap();
    refused(&nested, 1, &["overlap", "each needs a directory of its own"]);
    text = text.replace("roots/shop/inner", "roots/other") + "state = \"states/shop\"\n";
    fs::create_dir_all(nested.root("other")).unwrap();
    fs::write(nested.config(), &text).unwrap();
    refused(&nested, 1, &["overlap"]);
    // A policy that does not load.
    fs::write(site.base().join("policy.toml"), "schema = 2\n").unwrap();
    refused(&site, 4, &["this version reads schema 1 only"]);
}
