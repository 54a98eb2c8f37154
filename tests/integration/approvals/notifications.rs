//! Notifications of requests that wait: what is sent, by whom, and how often.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use serde_json::Value;

use super::{TIMEOUT, begin, end, id, waiting, world};
use crate::{
    common::{World, done},
    scripted_agent::ScriptedAgent,
};

/// A server that remembers what it gets: head and body of each request.
struct Server {
    address: String,
    requests: Receiver<(String, String)>,
}

impl Server {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (send, requests) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if stream.read_line(&mut head).unwrap() == 0 {
                        break;
                    }
                }
                let lower = head.to_lowercase();
                let length = lower.split("content-length: ").nth(1).unwrap_or("0\r");
                let length = length.split('\r').next().unwrap().parse().unwrap();
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                let reply = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                stream.get_mut().write_all(reply.as_bytes()).unwrap();
                let _ = send.send((head, String::from_utf8(body).unwrap()));
            }
        });
        Self { address, requests }
    }

    fn next(&self) -> (String, String) {
        self.requests.recv_timeout(TIMEOUT).unwrap()
    }

    fn is_silent(&self) -> bool {
        self.requests.recv_timeout(Duration::from_millis(500)).is_err()
    }
}

/// Writes the section at the default path of the configuration.
fn configure(world: &World, section: &str) {
    let path = world.base().join("home/.config/portcullis/portcullis.toml");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("[approvals.notify]\n{section}")).unwrap();
}

/// A program `notify-send` that writes its arguments to a file, and that file.
fn fake_notify_send(world: &World) -> (String, PathBuf) {
    let (programs, shown) = (world.base().join("programs"), world.base().join("shown"));
    std::fs::create_dir_all(&programs).unwrap();
    let program = programs.join("notify-send");
    std::fs::write(&program, format!("#!/bin/sh\necho \"$@\" >> {}\n", shown.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (format!("{}:/usr/bin:/bin", programs.display()), shown)
}

fn write_card(world: &World) -> std::process::Child {
    begin(world, &["write", "src/payments/card.ts"], "three\n")
}

#[test]
fn a_webhook_gets_a_reference_and_nothing_of_the_request() {
    let (world, server) = (world(), Server::start("200 OK"));
    let section = format!(
        "webhook = \"http://{}/hook\"\nheaders = {{ authorization = \"Bearer t\" }}",
        server.address
    );
    configure(&world, &section);
    let child = write_card(&world);
    let (head, body) = server.next();
    let id = id(&waiting(&world, 1)[0]);
    let expected = format!(
        "{{\"event\":\"approvalWaiting\",\"reference\":\"{id}\",\"schema\":1,\"waiting\":1}}"
    );
    assert_eq!(body, expected);
    assert!(head.starts_with("POST /hook HTTP/1.1\r\n"), "{head}");
    assert!(head.to_lowercase().contains("\r\nauthorization: bearer t\r\n"), "{head}");
    assert!(head.to_lowercase().contains("\r\ncontent-type: application/json\r\n"), "{head}");
    for text in ["payments", "card", "src", world.root().to_str().unwrap()] {
        assert!(!format!("{head}{body}").contains(text), "{text}: {head}{body}");
    }
    world.run(&["approve", "--yes", &id]).ok();
    end(child).ok();
}

/// The gateway of `run` is confined before the agent says anything; its broker starts the notifier.
#[test]
fn ntfy_gets_a_text_from_an_agents_session_and_one_a_minute() {
    let (world, server) = (world(), Server::start("200 OK"));
    configure(&world, &format!("webhook = \"http://{}/topic\"\nformat = \"ntfy\"", server.address));
    let mut scripted_agent = ScriptedAgent::start(&world);
    let requests = ["src/payments/card.ts", "src/payments/other.ts"];
    let requests = requests.map(|name| scripted_agent.write(name, "x\n"));
    let first = scripted_agent.prompt(&requests[..1]).unwrap();
    let (head, body) = server.next();
    let first_id = id(&waiting(&world, 1)[0]);
    assert_eq!(body, format!("portcullis approve {first_id}"));
    assert!(head.to_lowercase().contains("\r\ntitle: portcullis: a request waits"), "{head}");
    // The editor of the test asks nobody, and answers the first question by a shell.
    world.run(&["approve", "--yes", &first_id]).ok();
    while scripted_agent.hear().is_some_and(|message| message["id"] != first) {}
    scripted_agent.prompt(&requests[1..]).unwrap();
    let second = id(&waiting(&world, 1)[0]);
    assert!(server.is_silent());
    world.run(&["approve", "--yes", &second]).ok();
}

#[test]
fn the_desktop_is_notified_by_notify_send() {
    let world = world();
    configure(&world, "desktop = true");
    let (path, shown) = fake_notify_send(&world);
    let mut command = world.command(&["fs", "rm", "src/payments/card.ts"]);
    let child = command
        .env("PATH", path)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let id = id(&waiting(&world, 1)[0]);
    let expected = format!(
        "--app-name=Portcullis Portcullis: a request waits for approval portcullis approve {id}\n"
    );
    let give_up = std::time::Instant::now() + TIMEOUT;
    while std::fs::read_to_string(&shown).ok().as_deref() != Some(&expected) {
        assert!(std::time::Instant::now() < give_up, "{:?}", std::fs::read_to_string(&shown));
        thread::sleep(Duration::from_millis(20));
    }
    world.run(&["approve", "--yes", &id]).ok();
    end(child).ok();
}

#[test]
fn a_missing_notify_send_and_a_server_that_fails_are_warned_of_and_stop_nothing() {
    let (world, server) = (world(), Server::start("500 Oops"));
    configure(&world, &format!("desktop = true\nwebhook = \"http://{}/secret\"", server.address));
    let mut command = world.command(&["fs", "rm", "src/payments/card.ts"]);
    let mut child = command
        .env("PATH", "/nonexistent")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let id = id(&waiting(&world, 1)[0]);
    server.next();
    let warnings = [
        "warning: there is no `notify-send`",
        "warning: a notification was not sent: webhook: the server replied 500",
    ];
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut told = String::new();
    while !warnings.iter().all(|warning| told.contains(warning)) {
        assert!(stderr.read_line(&mut told).unwrap() > 0, "{told}");
    }
    world.run(&["approve", "--yes", &id]).ok();
    stderr.read_to_string(&mut told).unwrap();
    end(child).ok();
    assert!(!told.contains("secret"), "{told}");
}

/// An agent that replaces the program would run as the operator.
#[test]
fn a_notify_send_that_the_agent_could_replace_is_refused() {
    let world = world();
    configure(&world, "desktop = true");
    let program = world.file("notify-send", "#!/bin/sh\n");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = world.root().to_str().unwrap().to_owned();
    let refused = world.command(&["fs", "ls"]).env("PATH", path).output().unwrap();
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && stderr.contains("shows notifications"), "{stderr}");
    // The one of the agent was run.
    std::fs::write(&program, "#!/bin/sh\n: >ran\n").unwrap();
    let mut command = world.command(&["config", "check", "--notify"]);
    command.env("PATH", world.root()).current_dir(world.root());
    let refused = done(command.output().unwrap());
    assert!(refused.code == 1 && refused.stderr.contains("notify-send"), "{refused:?}");
    assert!(!world.path("ran").exists(), "{refused:?}");
}

/// Regression: only the program was compared, not the interpreter that its first line names.
#[test]
fn the_interpreter_of_notify_send_lay_in_the_workspace() {
    let world = world();
    configure(&world, "desktop = true");
    let (path, shown) = fake_notify_send(&world);
    let interpreter = world.path("python");
    std::os::unix::fs::symlink("/bin/sh", &interpreter).unwrap();
    let text = format!("#!{}\necho >> {}\n", interpreter.display(), shown.display());
    std::fs::write(world.base().join("programs/notify-send"), text).unwrap();
    for args in [&["fs", "ls"][..], &["config", "check", "--notify"]] {
        let mut command = world.command(args);
        let refused = done(command.env("PATH", &path).current_dir(world.root()).output().unwrap());
        let named = format!("`{}`", interpreter.display());
        assert!(refused.code == 1 && refused.stderr.contains(&named), "{refused:?}");
    }
    assert!(!shown.exists());
}

#[test]
fn config_check_sends_a_notification_for_a_try() {
    let (world, server) = (World::new(), Server::start("200 OK"));
    let none = world.run(&["config", "check", "--notify"]);
    assert!(none.code == 1 && none.stderr.contains("names nothing to notify"), "{none:?}");
    assert!(none.stderr.contains("help: set `desktop = true`"), "{none:?}");
    configure(&world, "desktop = true");
    let mut command = world.command(&["config", "check", "--notify"]);
    let missing = done(command.env("PATH", "/nonexistent").output().unwrap());
    assert!(missing.code == 1 && missing.stderr.contains("no program or server"), "{missing:?}");
    // It said that it had sent one, and exited with 0.
    configure(&world, &format!("desktop = true\nwebhook = \"http://{}/\"", server.address));
    let mut command = world.command(&["config", "check", "--notify"]);
    let missing = done(command.env("PATH", "/nonexistent").output().unwrap());
    assert!(missing.code == 1 && missing.stderr.contains("no `notify-send`"), "{missing:?}");
    assert!(!missing.stderr.contains("sent a notification"), "{missing:?}");
    server.next();
    configure(&world, &format!("webhook = \"http://{}/\"", server.address));
    let checked = world.run(&["config", "check", "--notify", "--json"]).ok();
    assert_eq!(checked.json()["notifications"], true);
    let body: Value = serde_json::from_str(&server.next().1).unwrap();
    assert!(checked.stderr.contains(body["reference"].as_str().unwrap()), "{checked:?}");
    configure(
        &world,
        &format!("webhook = \"http://{}/\"", {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        }),
    );
    let failed = world.run(&["config", "check", "--notify"]);
    assert!(failed.code == 1 && failed.stderr.contains("Connection refused"), "{failed:?}");
}
