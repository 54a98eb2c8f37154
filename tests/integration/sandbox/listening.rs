//! Programs in the sandbox that listen on TCP: in a network of their own they may,
//! in the host's only on ports that the operator names.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpStream,
};

use super::*;

/// Two ports at which nothing listens.
fn ports() -> [String; 2] {
    [unused_port(), unused_port()].map(|port| port.to_string())
}

/// Runs the agent that listens, has `outside` examine the first port meanwhile,
/// and returns the results of the agent's attempts.
fn listening(
    world: &SandboxWorld,
    options: &[&str],
    [port, more]: &[String; 2],
    outside: impl FnOnce(bool),
) -> BTreeMap<String, String> {
    let scripts = tools().join("agent");
    let script = scripts.join("hostile.py");
    let read = ["--agent-read", scripts.to_str().unwrap()];
    let agent = ["/usr/bin/python3", script.to_str().unwrap(), "listening", port, more];
    let mut child = world.start(&[&read, options].concat(), &agent);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut stderr = String::new();
    for line in lines.by_ref() {
        stderr += &format!("{line}\n");
        if line.contains(r#""wait""#) {
            break;
        }
    }
    outside(TcpStream::connect(format!("127.0.0.1:{port}")).is_ok());
    drop(child.stdin.take());
    lines.for_each(drop);
    let code = child.wait().unwrap().code().unwrap();
    let ended = AgentOutput { code, stdout: String::new(), stderr };
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.attempts()
}

/// OpenCode did not start, and no login could call back.
#[test]
fn no_program_in_the_sandbox_could_listen_on_its_loopback_interface() {
    for who in users() {
        let world = SandboxWorld::new(who);
        let attempts = listening(&world, &[], &ports(), |reached| {
            assert!(!reached, "{who:?} it can be reached from outside");
        });
        assert!(attempts.values().all(|got| got == "ok"), "{who:?} {attempts:?}");
        assert_eq!(attempts.len(), 5);
        assert_eq!(world.facts()["agentListen"], Value::Null);
    }
}

#[test]
fn in_the_hosts_network_only_named_ports_are_listened_on() {
    let named = |world: &SandboxWorld, options: &[&str]| {
        let ports = ports();
        let network = ["--agent-network", &ports[0], "--agent-network", &ports[1]];
        let listen = ["--agent-listen", &ports[0]];

        let attempts = listening(world, &[options, &network].concat(), &ports, |reached| {
            assert!(!reached);
        });
        for (name, got) in &attempts {
            assert_eq!(got, "EACCES", "{name}");
        }

        let given = [options, &network, &listen].concat();
        let attempts = listening(world, &given, &ports, |reached| assert!(reached));
        for name in ["the named port", "every interface", "wait"] {
            assert_eq!(attempts[name], "ok", "{name}");
        }
        for name in ["another port", "a free port"] {
            assert_eq!(attempts[name], "EACCES", "{name}");
        }
        let port: u16 = ports[0].parse().unwrap();
        let facts = world.facts();
        assert_eq!(facts["agentListen"], serde_json::json!([port]));
        assert!(facts["gaps"].to_string().contains(&ports[0]), "{facts}");
    };
    for who in users() {
        named(&SandboxWorld::new(who), &[]);
    }
    named(&SandboxWorld::new(As::UserWithoutNamespaces), &["--allow-partial"]);
}

#[test]
fn ports_that_cannot_be_listened_on_are_errors() {
    let world = SandboxWorld::new(users()[0]);
    for (options, code) in [
        (&["--agent-listen", "70000", "--agent-network", "443"][..], 2),
        (&["--agent-listen", "http", "--agent-network", "443"], 2),
        // The network is its own.
        (&["--agent-listen", "4096"], 2),
        (&["--agent-listen", "4096", "--agent-network", "none"], 2),
        // It has no privileges.
        (&["--agent-listen", "1", "--agent-network", "443"], 1),
    ] {
        let ended = world.run(options, &["/bin/true"]);
        assert_eq!(ended.code, code, "{options:?} {ended:?}");
    }
}
