//! WebSocket peers that do not keep to RFC 6455, or do, slowly.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
};

use serde_json::{Value, json};

use super::{Service, TIMEOUT, message};
use crate::{
    acp_rig::POLICY,
    approvals::{id, waiting},
};

/// A client that sends what bytes it likes.
struct Raw(TcpStream);

impl Raw {
    /// Performs the handshake; `more` goes into the head.
    fn open(service: &Service, more: &str) -> (Self, String) {
        let mut stream = TcpStream::connect(&service.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = format!(
            "GET /workspaces/ws/ws?token={} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n",
            service.token
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            reply.push(byte[0]);
        }
        (Self(stream), String::from_utf8(reply).unwrap())
    }

    fn start(service: &Service) -> Self {
        let (raw, head) = Self::open(service, "");
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        raw
    }

    fn frame(&mut self, first: u8, payload: &[u8]) {
        let mut bytes = vec![first];
        match u16::try_from(payload.len()) {
            Ok(length) if length < 126 => bytes.push(0x80 | u8::try_from(length).unwrap()),
            Ok(length) => {
                bytes.push(0x80 | 126);
                bytes.extend(length.to_be_bytes());
            }
            Err(_) => {
                bytes.push(0x80 | 127);
                bytes.extend((payload.len() as u64).to_be_bytes());
            }
        }
        bytes.extend([0; 4]);
        bytes.extend(payload);
        self.0.write_all(&bytes).unwrap();
    }

    /// The next frame: its first byte and its payload.
    fn hear(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        let length = match head[1] {
            126 => {
                let mut long = [0; 2];
                self.0.read_exact(&mut long).unwrap();
                usize::from(u16::from_be_bytes(long))
            }
            127 => {
                let mut long = [0; 8];
                self.0.read_exact(&mut long).unwrap();
                usize::try_from(u64::from_be_bytes(long)).unwrap()
            }
            short => usize::from(short),
        };
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).unwrap();
        (head[0], payload)
    }

    /// The code and the reason with which the service closes.
    fn closed(mut self) -> (u16, String) {
        loop {
            let (first, payload) = self.hear();
            if first == 0x88 {
                let code = u16::from_be_bytes([payload[0], payload[1]]);
                return (code, String::from_utf8(payload[2..].to_vec()).unwrap());
            }
        }
    }

    /// A reply that is no change.
    fn reply(&mut self) -> Value {
        loop {
            let (first, payload) = self.hear();
            assert_eq!(first, 0x81);
            let reply: Value = serde_json::from_slice(&payload).unwrap();
            if reply["type"] != "change" {
                return reply;
            }
        }
    }
}

#[test]
fn every_broken_rule_is_a_close_with_a_reason_and_harms_nobody() {
    let service = Service::start(POLICY);
    let mut witness = Raw::start(&service);
    let gigabyte = [&[0x81, 0xff][..], &(1_u64 << 30).to_be_bytes(), &[0; 4]].concat();
    let endless = [&[0x81, 0xff][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat();
    // A frame of a client that assumes compression; decompressed, it would be
    // large.
    let compressed = [&[0xc1, 0x85, 0, 0, 0, 0][..], b"\xec\xc1\x01\x01\x00"].concat();
    for (bytes, code, part) in [
        (gigabyte, 1009, "too large"),
        (endless, 1009, "too large"),
        (compressed, 1002, "RFC 6455"),
        (b"\x81\x02{}".to_vec(), 1002, "RFC 6455"),
        (b"\x82\x82\0\0\0\0{}".to_vec(), 1003, "text"),
        (b"\x81\x81\0\0\0\0\xff".to_vec(), 1007, "UTF-8"),
        (b"\x80\x81\0\0\0\0x".to_vec(), 1002, "RFC 6455"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 1002, "RFC 6455"),
    ] {
        let mut raw = Raw::start(&service);
        raw.0.write_all(&bytes).unwrap();
        // The client may go on: its frames are skipped, and it gets the reason.
        let _ = raw.0.write_all(&vec![0; 1 << 16]);
        let (closed, reason) = raw.closed();
        assert_eq!(closed, code, "{bytes:x?} {reason}");
        assert!(reason.contains(part), "{reason}");
    }
    witness.frame(0x81, message("list", "1", json!({"path": "/"})).to_string().as_bytes());
    assert!(witness.reply()["data"].is_array());
    service.end();
}

#[test]
fn compression_is_not_offered_and_a_wrong_handshake_is_refused() {
    let service = Service::start(POLICY);
    let offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let (mut raw, head) = Raw::open(&service, offer);
    assert!(!head.to_lowercase().contains("sec-websocket-extensions"), "{head}");
    // Pieces, with a ping between them.
    let request = message("list", "1", json!({"path": "/"})).to_string();
    let (one, two) = request.as_bytes().split_at(10);
    raw.frame(0x01, one);
    raw.frame(0x89, b"are you there");
    assert_eq!(raw.hear(), (0x8a, b"are you there".to_vec()));
    raw.frame(0x80, two);
    assert!(raw.reply()["data"].is_array());
    raw.frame(0x88, b"\x03\xe8");
    assert_eq!(raw.closed().0, 1000);
    for (head, status) in [
        ("Upgrade: websocket\r\nSec-WebSocket-Version: 8", 426),
        ("Upgrade: h2c\r\nSec-WebSocket-Version: 13", 426),
        ("Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short", 400),
    ] {
        let line = format!("GET /workspaces/ws/ws?token={} HTTP/1.1", service.token);
        let mut stream = TcpStream::connect(&service.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let all = format!("{line}\r\nHost: localhost\r\nConnection: Upgrade\r\n{head}\r\n\r\n");
        stream.write_all(all.as_bytes()).unwrap();
        let mut reply = [0; 12];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(String::from_utf8_lossy(&reply), format!("HTTP/1.1 {status}"), "{head}");
    }
    service.end();
}

#[test]
fn clients_that_go_in_the_middle_of_a_write_leave_nothing_half_done() {
    let service = Service::start(POLICY);
    for n in 0..20_usize {
        let mut raw = Raw::start(&service);
        let content = format!("{n}\n").repeat(100_000);
        let write = message("write", "1", json!({"path": "a.txt", "content": content}));
        let write = write.to_string();
        let mut frame = vec![0x81, 0xff];
        frame.extend((write.len() as u64).to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(write.as_bytes());
        // Some after all of it, most before.
        let sent = frame.len() * (n + 1) / 20;
        raw.0.write_all(&frame[..sent]).unwrap();
        if n % 2 == 0 {
            raw.0.shutdown(Shutdown::Both).unwrap();
        }
    }
    let mut after = Raw::start(&service);
    after.frame(0x81, message("read", "1", json!({"path": "a.txt"})).to_string().as_bytes());
    let read = after.reply();
    let content = read["data"]["content"].as_str().unwrap();
    assert!(content == "one\ntwo\n" || content == "19\n".repeat(100_000), "{}", content.len());
    drop(after);
    let records = service.end();
    let intents = records.iter().filter(|record| record["kind"] == "intent").count();
    assert!(intents <= 1, "{intents}");
}

#[test]
fn half_open_sockets_and_many_that_say_nothing_do_not_stand_in_the_way() {
    let service = Service::start(POLICY);
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(&service.address).unwrap()).collect();
    let mut begun: Vec<_> = (0..100).map(|_| Raw::start(&service)).collect();
    // Each has begun a message that never ends.
    for raw in &mut begun {
        raw.0.write_all(b"\x81\xfe\xff\xff\0\0\0\0{").unwrap();
    }
    let mut client = Raw::start(&service);
    for n in 0..10 {
        let id = n.to_string();
        client.frame(0x81, message("list", &id, json!({"path": "/"})).to_string().as_bytes());
        assert_eq!(client.reply()["requestId"], id);
    }
    drop((silent, begun, client));
    service.end();
}

#[test]
fn a_service_that_stops_says_so() {
    let service = Service::start(POLICY);
    let mut raw = Raw::start(&service);
    raw.frame(0x81, message("list", "1", json!({"path": "/"})).to_string().as_bytes());
    raw.reply();
    service.end();
    let (code, reason) = raw.closed();
    // Which of its processes ends first is not promised.
    let expected = [(1001, "the service is stopping"), (1011, "the session has ended")];
    assert!(expected.contains(&(code, reason.as_str())), "{code} {reason}");
}

/// The changes were made, and no reply came.
#[test]
fn what_was_done_is_answered_before_the_service_stops() {
    let service = Service::start(POLICY);
    let mut raw = Raw::start(&service);
    for number in 0..300 {
        let fields = json!({"path": format!("/new/{number}.txt"), "content": "x"});
        raw.frame(0x81, message("write", &number.to_string(), fields).to_string().as_bytes());
    }
    let mut answered = 0;
    while answered < 3 {
        raw.reply();
        answered += 1;
    }
    let counting = std::thread::spawn(move || {
        loop {
            let (first, payload) = raw.hear();
            if first == 0x88 {
                return answered;
            }
            let reply: Value = serde_json::from_slice(&payload).unwrap();
            answered += usize::from(first == 0x81 && reply["type"] == "write");
        }
    });
    let records = service.end();
    let done = |record: &&Value| record["kind"] == "outcome" && record["result"] == "ok";
    assert_eq!(counting.join().unwrap(), records.iter().filter(done).count());
}

/// They had the memory reserved that they would read into.
#[test]
fn reads_that_wait_for_a_person_hold_nobody_up() {
    let rule = "[[rules]]\nid = \"person\"\neffect = \"ask\"\noperations = [\"read\"]\npaths = [\"asked/**\"]\n";
    let service = Service::start(&format!("{POLICY}{rule}"));
    let mut raw = Raw::start(&service);
    for number in 0..8 {
        service.world.file(&format!("asked/{number}"), "x");
        let fields = json!({"path": format!("/asked/{number}")});
        raw.frame(0x81, message("read", &number.to_string(), fields).to_string().as_bytes());
    }
    raw.frame(0x81, message("read", "free", json!({"path": "/a.txt"})).to_string().as_bytes());
    let reply = raw.reply();
    assert_eq!(
        (&reply["requestId"], &reply["data"]["content"]),
        (&"free".into(), &"one\ntwo\n".into())
    );
    // With a person's word one is read.
    let asked = waiting(&service.world, 8);
    service.world.run(&["approve", "--yes", &id(&asked[0])]).ok();
    let reply = raw.reply();
    let read = asked[0]["path"].as_str().unwrap().to_owned();
    assert!(read.ends_with(reply["requestId"].as_str().unwrap()), "{reply}: {read}");
    assert_eq!(reply["data"]["content"], "x", "{reply}");
    drop(raw);
    service.end();
}
