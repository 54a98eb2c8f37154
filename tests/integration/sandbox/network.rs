//! The network of a sandbox, from inside.

use serde_json::json;

use super::*;

#[test]
fn only_allowed_tcp_ports_can_be_reached() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let (allowed, denied) = (listener(), listener());
        let port = |l: &TcpListener| l.local_addr().unwrap().port().to_string();
        let (allowed_port, denied_port) = (port(&allowed), port(&denied));
        let topic = ["network", &allowed_port, &denied_port];

        let attempts = world.hostile(&["--agent-network", &allowed_port], &topic);
        assert_eq!(attempts["the allowed port"], "ok", "{who:?} {attempts:?}");
        assert_eq!(attempts["the denied port"], "EACCES", "{who:?}");
        for name in [
            "UDP",
            "UDP over IPv6",
            "MPTCP",
            "SMC",
            "SMC as a family",
            "SCTP",
            "SCTP in packets",
            "ping",
            "UDP-Lite",
            "raw",
            "packet",
            "vsock",
            "bluetooth",
            "crypto",
            "netlink audit",
            "sendto with fast open",
            "sendmsg with fast open",
            "sendmmsg with fast open",
            "fast open on connect",
            "an upper layer",
        ] {
            assert_eq!(attempts[name], "EPERM", "{who:?} {name}");
        }
        let mut rest = attempts;
        rest.remove("the allowed port");
        none_worked(&rest);
        allowed.accept().unwrap();
        denied.set_nonblocking(true).unwrap();
        assert!(denied.accept().is_err(), "something reached the denied port");
    }
}

#[test]
fn the_network_attempts_succeed_without_confinement() {
    let world = SandboxWorld::new(users()[0]);
    let (one, other) = (listener(), listener());
    let port = |l: &TcpListener| l.local_addr().unwrap().port().to_string();
    let attempts = world.hostile(&["--unconfined"], &["network", &port(&one), &port(&other)]);
    for name in ["the allowed port", "the denied port", "UDP", "listen", "fast open on connect"] {
        assert_eq!(attempts[name], "ok", "{name}");
    }
    for name in ["sendto with fast open", "sendmsg with fast open"] {
        assert_ne!(attempts[name], "EPERM", "{name}");
    }
}

#[test]
fn name_resolution_opens_udp_and_nothing_else() {
    let world = SandboxWorld::new(users()[0]);
    let (allowed, denied) = (listener(), listener());
    let port = |l: &TcpListener| l.local_addr().unwrap().port().to_string();
    let options = ["--agent-network", &port(&allowed), "--agent-network", "dns"];
    let attempts = world.hostile(&options, &["network", &port(&allowed), &port(&denied)]);
    for name in ["the allowed port", "UDP", "UDP over IPv6"] {
        assert_eq!(attempts[name], "ok", "{name}");
    }
    for name in ["MPTCP", "ping", "UDP-Lite", "raw", "SCTP", "listen"] {
        assert!(matches!(attempts[name].as_str(), "EPERM" | "EACCES"), "{name}");
    }
    assert_eq!(attempts["the denied port"], "EACCES");
}

#[test]
fn without_a_network_nothing_can_be_reached() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let port = listener();
        let number = port.local_addr().unwrap().port().to_string();
        let attempts = world.hostile(&["--agent-network", "none"], &["network", &number, &number]);
        let mut rest = attempts;
        // No client connects.
        rest.remove("listen");
        none_worked(&rest);
        port.set_nonblocking(true).unwrap();
        assert!(port.accept().is_err());
    }
}

/// The report forgot the sandbox of its run, and the network that the agent shared.
#[test]
fn a_method_named_like_the_sandboxs_record_hid_the_sandbox() {
    let world = SandboxWorld::new(users()[0]);
    let line = |id: u64, method: &str| json!({"jsonrpc": "2.0", "id": id, "method": method});
    let script = format!("echo '{}'; echo '{}'", line(1, "sandbox"), line(2, "label"));
    let ended = world.run(&["--agent-network", "443"], &["/bin/sh", "-c", &script]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let refused = world.records().into_iter().filter(|record| record["decision"] == "deny");
    let refused: Vec<_> = refused.map(|record| record["op"].clone()).collect();
    assert_eq!(refused, ["method sandbox", "method label"]);

    let file = world.at("report.json");
    let options = ["--workspace", &world.at("ws"), "--state", &world.at("state")];
    let done = world.command(&[&["audit", "report", "-o", &file], &options[..]].concat());
    let done = { done }.output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let gateway = &report["gateways"]["listed"][0];
    assert_eq!(gateway["enforcement"], "full", "{gateway}");
    assert_eq!(gateway["agentNetwork"]["ports"], json!([443]), "{gateway}");
    assert_eq!(report["agents"][0]["denied"], 2, "{report}");
}

/// Programs of the host could not bind the names any more.
#[test]
fn an_agent_without_namespaces_took_names_of_the_hosts_abstract_sockets() {
    let world = SandboxWorld::new(As::UserWithoutNamespaces);
    let script = "import socket, sys\nend, _ = socket.socketpair()\n\
        try: end.bind('\\0portcullis-a-name-of-the-host')\n\
        except PermissionError: print('refused', file=sys.stderr)";
    let ended = world.run(&["--allow-partial"], &["python3", "-c", script]);
    assert!(ended.stderr.contains("agent: refused\n"), "{ended:?}");
}
