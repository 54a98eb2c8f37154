//! Secrets in what programs send: neither records nor messages to the operator have one, nor a part of
//! one.

use std::net::{Ipv4Addr, SocketAddrV4};

use rustix::net::{AddressFamily, SocketType, bind, listen, socket};

use super::*;

const KEY: &str = "AKIAQ3EGRIBNBTZ5X7LT";

/// Sends each argument as the head of a request, with the first one as the key, and prints what
/// comes.
const HEADS: &str = r#"
import socket, sys
for head in sys.argv[1:]:
    with socket.create_connection(("127.0.0.1", 3128), 60) as stream:
        for part in head.split("|"):
            stream.sendall(part.encode() + b" HTTP/1.1\r\n\r\n")
            stream.recv(65536)
"#;

/// Rules by which the key is a secret.
pub(super) fn rules() -> String {
    "[secrets]\n[[secrets.rules]]\nid = \"aws\"\nregex = \"AKIA[0-9A-Z]{16}\"\nkeywords = [\"AKIA\"]\n"
        .to_owned()
}

/// Sends heads, and returns standard error and the records.
fn sent(heads: &[String]) -> (String, Vec<Value>) {
    let net = Net::new(443, &rules());
    let heads = heads.iter().map(String::as_str);
    let command: Vec<_> = ["/usr/bin/python3", "-c", HEADS].into_iter().chain(heads).collect();
    let output = net.exec(&command);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    (stderr, net.connects())
}

#[track_caller]
fn assert_secret(stderr: &str, records: &[Value]) {
    // A quarter of the key.
    let part = &KEY[..5];
    assert!(!stderr.contains(part), "{stderr}");
    for record in records {
        assert!(!record.to_string().contains(part), "{record}");
    }
}

/// Half of a secret at the end of a text that was cut was recorded, and all of it was printed.
#[test]
fn a_secret_in_the_target_of_a_refused_request_was_printed() {
    for head in [
        format!("CONNECT {KEY}_:443"),
        format!("CONNECT a.{KEY}.example:0"),
        format!("GET {KEY}"),
        format!("CONNECT {}{KEY}:443", "x".repeat(245)),
        format!("CONNECT {}{KEY}:443", "x".repeat(230)),
        format!("GET {}{KEY}", "x".repeat(245)),
    ] {
        let (stderr, records) = sent(&[head]);
        assert_eq!(records.len(), 1, "{records:?}");
        assert_secret(&stderr, &records);
        let refused = stderr.matches("portcullis: warning: a request to the proxy was refused: ");
        assert_eq!(refused.count(), 1, "{stderr}");
    }
}

/// The beginning of a password was recorded as the port of a host.
#[test]
fn a_part_of_a_password_was_recorded_as_a_port() {
    let (stderr, records) = sent(&["CONNECT user:12/34@a.example:443".to_owned()]);
    assert_eq!(records[0]["path"], "(unreadable)");
    assert!(!format!("{stderr}{records:?}").contains("user:12"), "{stderr}{records:?}");
}

/// Each text was a message of its own, so that 32 of them hid all others.
#[test]
fn many_malformed_requests_hid_a_denied_host() {
    let mut heads: Vec<_> = (0..40).map(|number| format!("CONNECT h_{number}:443")).collect();
    heads.push("CONNECT other.example:443".to_owned());
    let (stderr, _) = sent(&heads);
    assert_eq!(stderr.matches("a request to the proxy was refused").count(), 1, "{stderr}");
    assert!(stderr.contains("denied: a connection to `other.example:443`"), "{stderr}");
}

/// The name in a tunnel was cut before it was searched.
#[test]
fn half_a_secret_in_a_tunnel_was_recorded() {
    let server = Server::echo();
    let net = Net::new(server.port, &rules());
    let port = server.port;
    let name = format!("{}{KEY}", "x".repeat(240));
    let heads = format!("CONNECT site.example:{port}|GET / HTTP/1.1\r\nHost: {name}\r\nX: y");
    let output = net.exec(&["/usr/bin/python3", "-c", HEADS, &heads]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let records = net.connects();
    let end = records.iter().find(|record| record["kind"] == "outcome").unwrap();
    assert_eq!((&end["result"], &end["rule"]), (&json!("refused"), &json!("network.host")));
    assert_secret(&stderr, &records);
}

/// A request that was refused while many connections were being opened had no record.
#[test]
fn a_request_that_is_refused_beside_many_attempts_is_recorded() {
    // The kernel answers no connection to a socket whose queue is full.
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let _queue = TcpStream::connect(address).unwrap();
    let net = Net::new(address.port().into(), "");
    let script = r#"
import socket, sys, time
def send(head):
    stream = socket.create_connection(("127.0.0.1", 3128), 60)
    stream.sendall(head.encode() + b" HTTP/1.1\r\n\r\n")
    return stream
streams = [send("CONNECT 127.0.0.1:%s" % sys.argv[1]) for _ in range(80)]
time.sleep(2)
print(send("GET /").recv(65536).decode())
"#;
    let port = address.port().to_string();
    let output = net.exec(&["/usr/bin/python3", "-c", script, &port]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
    let records = net.connects();
    let refused = records.iter().filter(|record| record["result"] == "invalidInput");
    assert_eq!(refused.count(), 1, "{records:?}");
}

/// The operator was told that a connection was denied which was open.
#[test]
fn an_address_that_is_denied_beside_one_that_is_connected_to_is_no_message() {
    // The resolver returns the address of the interface first, which is denied.
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    });
    let net = Net::with_policy(&format!(
        "{ALL}[[network.rules]]\nid = \"both\"\neffect = \"allow\"\nports = [{port}]\n\
         hosts = [\"both.example\", \"127.0.0.2\"]\n"
    ));
    let hosts = "127.0.0.1 both.example\n127.0.0.2 both.example\n";
    std::fs::write(net.world.base().join("hosts"), hosts).unwrap();
    let output = net.exec(&["curl", "-sS", &format!("http://both.example:{port}/")]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.stdout, b"hello", "{stderr}");
    let records = net.connects();
    let denied = records.iter().filter(|record| record["rule"] == "network.address");
    assert_eq!(denied.count(), 1, "{records:?}");
    assert!(!stderr.contains("denied"), "{stderr}");
}
