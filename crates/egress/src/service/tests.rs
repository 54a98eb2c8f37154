#![expect(clippy::disallowed_methods, reason = "tests make directories behind the gateway's back")]

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::AsFd as _,
};

use cap_std::fs::Dir;
use portcullis_audit::{AuditRecord, Directory, Kind, Reader};
use portcullis_core::{AuditLog, Ticket, Workspace};
use portcullis_policy::{Policy, PolicySource, SecretKey, compile, model::Transport};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::{
    messages::{Candidate, FromConnector, ToConnector},
    packet,
};

/// Nobody who answers or reads.
struct Nobody;

impl Approver for Nobody {
    fn ask(&self, _: &Arc<Ticket>) {}

    fn over(&self, _: &Ticket) {}
}

impl OperatorOutput for Nobody {
    fn warn(&self, _: &str, _: &str) {}

    fn denied(&self, _: &DeniedConnection<'_>, _: &str) -> String {
        String::new()
    }

    fn has_reported(&self) -> bool {
        false
    }
}

/// An egress process with a fault, which this test is, and its server.
struct Faulty {
    dir: TempDir,
    egress: Egress,
    link: OwnedFd,
    server: TcpListener,
}

fn pair() -> (OwnedFd, OwnedFd) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
}

/// Connects as it is told.
fn connector(link: &OwnedFd) {
    while let Ok(Some((order, _))) = packet::receive(link, RecvFlags::empty()) {
        let (reply, socket) = match order {
            ToConnector::Resolve { host } => {
                let address = host.parse().unwrap();
                let addresses = vec![Candidate { address, is_local: true }];
                (FromConnector::Resolved { addresses }, None)
            }
            ToConnector::Dial { address } => {
                (FromConnector::Dialed, Some(TcpStream::connect(address).unwrap()))
            }
        };
        let socket = socket.as_ref().map(TcpStream::as_fd);
        packet::send(link, &reply, socket, SendFlags::empty()).unwrap();
    }
}

/// Returns a version of a policy with one rule, for a server.
fn policy(server: &TcpListener, version: u64, effect: &str) -> Policy {
    let text = format!(
        "schema = 1\nversion = {version}\n[[network.rules]]\nid = \"site\"\neffect = \"{effect}\"\n\
         hosts = [\"127.0.0.1\"]\nports = [{}]\n",
        server.local_addr().unwrap().port()
    );
    compile(&PolicySource::from_text("test", &text)).unwrap()
}

impl Faulty {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ws", "state"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let state = std::fs::File::open(dir.path().join("state")).unwrap();
        let state = Dir::from_std_file(state);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let policy = Arc::new(policy(&server, 1, "allow"));
        let workspace = Workspace::open(&dir.path().join("ws")).unwrap();
        let log = AuditLog::open(&state).unwrap();
        let key = SecretKey::new(&[7; SecretKey::LENGTH]);
        let gateway = Arc::new(Gateway::open(workspace, policy, log, &state, key).unwrap());
        let (id, user) = ("ab".repeat(16), "user".to_owned());
        let agent = "agent".parse().unwrap();
        let session = Session { id, agent, user, transport: Transport::Proxy, acp: None };
        gateway.start(&session, [].into()).unwrap();
        let ((link, proxy), (ours, theirs)) = (pair(), pair());
        thread::spawn(move || connector(&theirs));
        let links = Links { proxy, connector: vec![ours] };
        let (approver, output) = (Box::new(Nobody), Box::new(Nobody));
        let egress = Egress::start(gateway, session, links, approver, output).unwrap();
        Self { dir, egress, link, server }
    }

    fn send(&self, message: &Value) {
        packet::send(&self.link, message, None, SendFlags::empty()).unwrap();
    }

    /// Opens a connection, and returns the process's socket and the server's.
    fn open(&self, id: u64) -> (TcpStream, TcpStream) {
        let port = self.server.local_addr().unwrap().port();
        self.send(&json!({ "Connect": { "id": id, "host": "127.0.0.1", "port": port } }));
        let (opened, socket) = packet::receive(&self.link, RecvFlags::empty()).unwrap().unwrap();
        assert!(matches!(opened, ToProxy::Opened { .. }), "{opened:?}");
        (TcpStream::from(socket.unwrap()), self.server.accept().unwrap().0)
    }

    /// Counts bytes, and sends them.
    fn count(&self, id: u64, stream: &mut TcpStream, bytes: &[u8]) {
        self.send(&json!({ "Sending": { "id": id, "bytes": bytes.len() } }));
        let (counted, _) = packet::receive(&self.link, RecvFlags::empty()).unwrap().unwrap();
        assert!(matches!(counted, ToProxy::Counted { .. }), "{counted:?}");
        stream.write_all(bytes).unwrap();
    }

    /// Returns the ends on record, once there are so many.
    fn ends(&self, number: usize) -> Vec<AuditRecord> {
        let source = Directory::new(self.dir.path().join("state/audit"));
        for _ in 0..12_000 {
            let (mut reader, mut records) = (Reader::new(&source, 0), Vec::new());
            while let Some(entry) = reader.next().unwrap() {
                records.push(AuditRecord::parse(&entry.bytes).unwrap());
            }
            records.retain(|record| record.kind == Kind::Outcome);
            if records.len() >= number {
                return records;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("no end was recorded");
    }
}

/// Its own copy of the socket sent on: a label that was read later did not shut it down.
#[test]
fn a_process_that_reported_an_end_kept_the_connection() {
    let faulty = Faulty::new();
    let assert_shut = |mut ours: TcpStream, mut server: TcpStream, ends: usize| {
        faulty.ends(ends);
        assert!(ours.write_all(b"stolen").is_err());
        let mut seen = String::new();
        server.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "");
    };
    let (ours, server) = faulty.open(1);
    let reason = json!({ "end": "Closed", "detail": "" });
    let request = json!({ "method": null, "path": null });
    faulty.send(&json!({ "Closed": {
        "id": 1, "bytes_in": 0, "requests": null, "request": request, "reason": reason,
    } }));
    assert_shut(ours, server, 1);
    // A number that is used twice replaces the first connection.
    let (ours, server) = faulty.open(2);
    let (later, other) = faulty.open(2);
    assert_shut(ours, server, 2);
    // The process goes on after an invalid packet, which ends its link.
    faulty.send(&json!("no message"));
    assert_shut(later, other, 3);
}

/// It had to report the end before its socket was shut down.
#[test]
fn a_process_that_did_not_close_a_denied_connection_kept_it() {
    let faulty = Faulty::new();
    let (mut ours, mut server) = faulty.open(1);
    server.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let Service { gateway, session, .. } = &*faulty.egress.service;
    gateway.reload(session, policy(&faulty.server, 2, "deny"), "test").unwrap().unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    assert!(ours.write_all(b"stolen").is_err());
}

/// They were recorded as 0 in both directions.
#[test]
fn bytes_of_a_process_that_ended_were_not_recorded() {
    let mut faulty = Faulty::new();
    let (mut ours, _server) = faulty.open(1);
    faulty.count(1, &mut ours, b"0123456789");
    faulty.link = pair().0;
    let end = faulty.ends(1).pop().unwrap().draft;
    assert_eq!(end.result.as_deref(), Some("reset"));
    let counts = end.counts.unwrap();
    assert_eq!((counts["bytesOut"], counts.get("bytesIn")), (10, None));
    faulty.egress.stop(Duration::ZERO);
}

/// It was recorded as unreachable, because the connector was gone.
#[test]
fn a_connection_that_the_end_of_the_session_interrupts_has_that_cause() {
    let faulty = Faulty::new();
    let service = Arc::clone(&faulty.egress.service);
    assert!(matches!(service.cause(DialError::Gone), DialError::Gone));
    faulty.egress.stop(Duration::ZERO);
    assert!(matches!(service.cause(DialError::Gone), DialError::Ended));
    let failed = DialError::Failed("refused".to_owned());
    assert!(matches!(service.cause(failed), DialError::Failed(_)));
}
