//! Attempts of a program to reach another host than an allowed one, or to exhaust the proxy.

use std::{
    net::UdpSocket,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
};

use super::*;

/// A client that is refused.
const REFUSED_CLIENT: &str = include_str!("refused_client.py");

#[test]
fn no_way_leads_round_the_proxy() {
    let server = Server::http();
    let net = Net::new(server.port, "");
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    // What is not there refuses everybody.
    let _ipv6 = TcpListener::bind(("::1", server.port.try_into().unwrap())).unwrap();
    let name = format!("portcullis-egress-{}", server.port);
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let _abstract_socket = UnixListener::bind_addr(&name).unwrap();
    let ports = [server.port, udp.local_addr().unwrap().port().into()].map(|port| port.to_string());
    // The process that starts it has a connection open, which is not the agent's.
    let [tcp, udp_port] = [&ports[0], &ports[1]];
    let inner = net.command(&[], &["/usr/bin/python3", "client.py", "around", tcp, udp_port]);
    let open = r#"exec 9<>"/dev/tcp/127.0.0.1/$0" && exec "$@""#;
    let mut command = Command::new("bash");
    command.args(["-c", open, tcp]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let tried = reported(command.current_dir(net.world.base()).output().unwrap());
    let worked: Vec<_> =
        tried.as_object().unwrap().iter().filter(|(_, got)| *got == "ok").collect();
    assert!(worked.is_empty(), "{worked:?}");
    assert!(tried.as_object().unwrap().len() > 14, "{tried}");
    assert_eq!(server.seen().concat(), "");
    assert_eq!(net.connects().len(), 0);
}

#[test]
fn targets_that_two_readers_take_differently_are_refused() {
    let server = Server::http();
    let net = Net::new(server.port, "");
    let found = net.client("targets", &[server.port]);
    for (name, statuses) in found.as_object().unwrap() {
        match &**name {
            // The tunnel is cut off for what is in it.
            "the host"
            | "in capitals"
            | "the address"
            | "Host: as it is"
            | "Host: without the port" => {
                assert_eq!(statuses, &json!([200, 200]), "{name}");
            }
            "other loopback" => assert_eq!(statuses, &json!([403, 403]), "{name}"),
            // The following is a path there.
            "a path" | "a question" => assert_eq!(statuses, &json!([400, 403]), "{name}"),
            _ => assert_eq!(statuses, &json!([400, 400]), "{name}"),
        }
    }
    // Each that was refused is on record, with what was asked for.
    let decisions = net.connects().into_iter().filter(|record| record["kind"] == "decision");
    let denied: Vec<_> = decisions.filter(|record| record["decision"] == "deny").collect();
    let statuses = found.as_object().unwrap().values().flat_map(|all| all.as_array().unwrap());
    assert_eq!(denied.len(), statuses.filter(|status| **status != 200).count(), "{denied:?}");
    let port = server.port;
    let paths: Vec<_> = denied.iter().filter_map(|record| record["path"].as_str()).collect();
    for (target, times) in [
        (format!("0x7f.0.0.1:{port}"), 2),
        ("site.example:0".to_owned(), 2),
        // The password stood in record and message.
        (format!("other.example:{port}"), 2),
        (format!("s\u{ed}te.example:{port}"), 2),
        // One lost its brackets.
        (format!("[fe80::1%25lo]:{port}"), 2),
    ] {
        let count = paths.iter().filter(|path| **path == target).count();
        assert_eq!(count, times, "{target}: {paths:?}");
    }
    assert!(!paths.iter().any(|path| path.contains('@') || path.contains("user")), "{paths:?}");
    let other_host = denied.iter().filter(|record| record["rule"] == "network.host");
    assert_eq!(other_host.count(), 8, "{denied:?}");
    for seen in server.seen().iter().filter(|seen| !seen.is_empty()) {
        assert!(
            seen.contains("\r\nHost: site.example:") || seen.contains("\r\nHost: 127.0.0.1:"),
            "{seen}"
        );
    }
}

#[test]
fn a_name_that_leads_to_a_private_address_is_refused() {
    let net = Net::new(443, "");
    let found = net.client("leads", &[443]);
    let expected = json!({
        "metadata.example": 403, "private.example": 403, "nat64.example": 403, "nowhere.example": 403,
    });
    assert_eq!(found, expected);
    let denied: Vec<_> =
        net.connects().into_iter().filter(|record| record["decision"] == "deny").collect();
    let rules: Vec<_> = denied.iter().map(|record| record["rule"].as_str().unwrap()).collect();
    assert_eq!(rules, ["network.address", "network.address", "network.address", "default"]);
    assert_eq!(denied[0]["facts"]["address"], "169.254.169.254");
}

#[test]
fn a_tunnel_to_a_host_carries_nothing_for_another() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let found = net.client("tunnels", &[server.port]);
    for (name, got) in found.as_object().unwrap() {
        let expected = match &**name {
            "its name"
            | "more behind it"
            | "its name in capitals"
            | "byte by byte"
            | "in small records"
            | "an address without a name" => "echo",
            "half a hello" => "got b''",
            "ssh"
            | "something"
            | "http/2"
            | "http to another host"
            | "http without a host"
            | "http with a whole URL" => "status 403",
            // The server sends back the request that it got, of which the head was written anew.
            "http" => {
                assert!(got.as_str().unwrap().starts_with("got b'GET / HTTP/1.1"), "{got}");
                continue;
            }
            _ => "alert 49",
        };
        assert_eq!(got, expected, "{name}");
    }
    let seen = server.seen();
    assert!(
        seen.iter().all(|seen| !seen.contains("other.example") && !seen.contains("SSH")),
        "{seen:?}"
    );
    let records = net.connects();
    let refused = records.iter().filter(|record| record["result"] == "refused");
    let reasons: Vec<_> = refused.map(|record| record["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.len(), 12, "{reasons:?}");
    // Another name in TLS, in `Host` and in a whole URL.
    let named = reasons.iter().filter(|reason| reason.ends_with("names \"other.example\"")).count();
    assert_eq!(named, 3, "{reasons:?}");
    assert_eq!(
        reasons.iter().filter(|reason| reason.contains("there is no name in TLS")).count(),
        1
    );
    // The record of a connection that hides the name has advice.
    assert_eq!(reasons.iter().filter(|reason| reason.contains("--ech false")).count(), 1);
    let intents = records.iter().filter(|record| record["kind"] == "intent").count();
    assert_eq!(records.iter().filter(|record| record["kind"] == "outcome").count(), intents);
}

/// Reviewers were told of an ordinary connection, and no limit counted it.
#[test]
fn what_is_cut_off_is_a_denial_to_every_reviewer() {
    let server = Server::echo();
    let net = Net::new(server.port, "[mount]\ndenials = 3\n");
    let (port, summary) = (server.port.to_string(), net.world.base().join("summary.json"));
    let options = ["--summary", summary.to_str().unwrap()];
    let command = ["/usr/bin/python3", "client.py", "fronting", &port, "5"];
    let found = reported(net.command(&options, &command).output().unwrap());
    // The end of a connection is counted beside the next ones.
    let cut = found.as_array().unwrap().iter().take_while(|got| **got == "alert 49").count();
    assert!((3..1000).contains(&cut), "{found}");
    assert!(found.as_array().unwrap()[cut..].iter().all(|got| got == "refused 403"), "{found}");
    let world = &net.world;
    let host = format!("site.example:{port}");
    let query = ["audit", "query", "--decision", "deny", "--rule", "network", "--json"];
    let denied = world.run(&query).ok();
    let denied: Vec<Value> =
        denied.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(denied.len(), cut, "{denied:?}");
    for record in &denied {
        let said = (&record["kind"], &record["result"], &record["rule"]);
        assert_eq!(said, (&json!("outcome"), &json!("refused"), &json!("network.host")));
        assert!(record["reason"].as_str().unwrap().contains("it names \"exfil"), "{record}");
    }
    let closed = denied.iter().filter(|record| record["facts"]["sessionClosed"] == true);
    assert_eq!(closed.count(), 1, "{denied:?}");
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(summary).unwrap()).unwrap();
    let first = &summary["denials"][0];
    assert_eq!(
        (&first["path"], &first["rule"], &first["times"]),
        (&json!(host), &json!("network.host"), &json!(cut)),
        "{summary}"
    );
    assert!(denied.iter().any(|record| record["seq"] == first["record"]), "{summary}");
    let session = denied[0]["session"].as_str().unwrap();
    let told = world.run(&["audit", "session", session, "--json"]).ok();
    let told: Vec<Value> =
        told.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let party = told.iter().find(|part| part["connected"].is_object()).unwrap();
    let expected = json!({ "path": host, "rule": "network.host", "times": cut });
    assert!(party["denied"]["paths"].as_array().unwrap().contains(&expected), "{party}");
}

#[test]
fn a_request_is_followed_by_none_that_nobody_looked_at() {
    let server = Server::http();
    let net = Net::new(server.port, "");
    let found = net.client("requests", &[server.port]);
    for (name, status) in found.as_object().unwrap() {
        let expected = if name.starts_with("a second one") { 200 } else { 400 };
        assert_eq!(status, expected, "{name}");
    }
    let decisions = net.connects().into_iter().filter(|record| record["kind"] == "decision");
    let denied: Vec<_> = decisions.filter(|record| record["decision"] == "deny").collect();
    assert_eq!(denied.len(), found.as_object().unwrap().len() - 2, "{denied:?}");
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|seen| !seen.contains("second") && seen.contains("abc")), "{seen:?}");
}

/// A client that continues on a connection which the server keeps open would wait for ever.
#[test]
fn a_second_request_to_a_server_that_keeps_its_connection_is_sent_elsewhere() {
    let server = Server::start(|stream, _| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    });
    let net = Net::new(server.port, "");
    assert_eq!(net.client("again", &[server.port]), json!({ "first": 200, "then": 0 }));
    assert_eq!(server.seen()[0].matches("GET").count(), 1);
}

#[test]
fn a_head_that_does_not_end_is_given_up() {
    let net = Net::new(443, "");
    let slow = net.client("slow", &[]);
    assert_eq!(slow["status"], 408, "{slow}");
    let seconds = slow["seconds"].as_f64().unwrap();
    assert!((4.5..60.0).contains(&seconds), "{slow}");
    assert_eq!(net.connects().len(), 0);
    assert_eq!(net.client("long_head", &[])["status"], 400);
    assert_eq!(net.connects().len(), 1);
}

/// The server gets nothing of it.
#[test]
fn a_first_message_in_a_tunnel_that_does_not_end_is_given_up() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let slow = net.client("slow_hello", &[server.port]);
    let seconds = slow["seconds"].as_f64().unwrap();
    assert!((9.5..90.0).contains(&seconds), "{slow}");
    assert_eq!(server.seen().concat(), "");
    let end = net.connects().pop().unwrap();
    assert_eq!((&end["kind"], &end["result"]), (&json!("outcome"), &json!("timeout")), "{end}");
}

/// There was no record, since a packet has no room for it, and the program heard that the gateway
/// is gone.
#[test]
fn a_host_that_is_too_long_for_a_packet_is_refused_on_record() {
    let net = Net::new(443, "");
    net.world.file("client.py", REFUSED_CLIENT);
    let found = net.client("long", &[254, 256, 6000, 9000]);
    assert_eq!(found, json!([400, 400, 400, 400]));
    let records = net.connects();
    let paths: Vec<_> = records.iter().map(|record| record["path"].as_str().unwrap()).collect();
    // Half of a longer one could be half a secret.
    let (longest, longer) = (format!("{}:443", "x".repeat(254)), "(unreadable)");
    assert_eq!(paths, [&*longest, longer, longer, longer]);
    assert!(records.iter().all(|record| record["decision"] == "deny"), "{records:?}");
}

/// Refused clients were not paused: the log grew by a megabyte a second.
#[test]
fn refused_connections_are_heard_two_hundred_times_a_second() {
    let net = Net::new(443, "");
    net.world.file("client.py", REFUSED_CLIENT);
    let found = net.client("flood", &[2000, 200, 600]);
    assert_eq!(found["statuses"], json!([400]), "{found}");
    let denied = net.connects().into_iter().filter(|record| record["decision"] == "deny");
    assert_eq!(denied.count(), usize::try_from(found["count"].as_u64().unwrap()).unwrap());
    // Two thousand are heard at once, and as many as connect at once when these are over. Of all
    // the time, since a machine may be too slow for more at any moment of it.
    let (count, seconds) = (found["count"].as_f64().unwrap(), found["seconds"].as_f64().unwrap());
    assert!(count < 2000.0 + 200.0 * seconds + 8.0, "{found}");
}

#[test]
fn many_idle_connections_leave_room_for_one_that_is_used() {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let found = net.client("idle", &[server.port, 300]);
    assert_eq!(found, json!({ "open": 300, "echo": true }));
    let outcomes = net.connects().into_iter().filter(|record| record["kind"] == "outcome");
    assert_eq!(outcomes.count(), 300);
}

/// Uses that many connections, opens as many that send nothing, and uses one more. Returns how many
/// were refused.
fn survives_connections(count: u32) -> u64 {
    let server = Server::echo();
    let net = Net::new(server.port, "");
    let found = net.client("many", &[server.port, count]);
    assert_eq!((&found["used"], &found["then"]), (&json!(count), &json!(true)), "{found}");
    let outcomes = net.connects().into_iter().filter(|record| record["result"] == "ok");
    assert_eq!(outcomes.filter(|record| record["kind"] == "outcome").count(), count as usize + 1);
    found["refused"].as_u64().unwrap()
}

#[test]
fn many_connections_are_survived() {
    assert_eq!(survives_connections(300), 0);
}

/// There are more of those that send nothing than the proxy holds open.
#[test]
#[ignore = "`tests/run.sh full` runs it"]
fn ten_thousand_connections_are_survived() {
    assert!(survives_connections(10_000) > 0);
}

#[test]
fn the_limit_of_connections_refuses_those_above_it() {
    let server = Server::echo();
    let net = Net::new(server.port, "[network.limits]\nconnections = 3\n");
    let found = net.client("idle", &[server.port, 5]);
    assert_eq!(found["open"], 3, "{found}");
    let denied = net.connects().into_iter().filter(|record| record["decision"] == "deny");
    let denied: Vec<_> = denied.map(|record| record["rule"].clone()).collect();
    assert_eq!(denied, ["network.limits.connections", "network.limits.connections"]);
    assert_eq!(server.seen().len(), 3);
}

/// The limit is that of the host, over all its connections of a session.
#[test]
fn bytes_to_one_host_are_counted_together_and_those_to_another_one_are_not() {
    let server = Server::echo();
    let more = "[network.limits]\nbytesOut = \"8KiB\"\n";
    let net = Net::new(server.port, more);
    let found = net.client("share", &[server.port, 5000]);
    assert_eq!(found["to an address"], 5000, "{found}");
    assert_eq!(found["first"], 5000, "{found}");
    assert!(found["second"].as_i64().unwrap() < 5000, "{found}");
    let lengths = server.lengths();
    assert!(lengths[0] + lengths[1] <= 8 << 10, "{lengths:?}");
}

#[test]
fn a_limit_of_bytes_is_held_before_they_are_sent() {
    let server = Server::echo();
    let net = Net::new(server.port, "[network.limits]\nbytesOut = \"100KiB\"\n");
    assert_eq!(net.client("upload", &[server.port, 1000]), json!({ "echoed": 1000 }));
    let found = net.client("upload", &[server.port, 500]);
    assert_eq!(found, json!({ "echoed": 500 }), "each session has its own");
    net.client("upload", &[server.port, 200_000]);
    assert!(server.lengths().into_iter().all(|length| length <= 100 << 10));
    let last = net.connects().pop().unwrap();
    let ended = (&last["result"], &last["rule"]);
    assert_eq!(ended, (&json!("denied"), &json!("network.limits.bytesOut")));
}
