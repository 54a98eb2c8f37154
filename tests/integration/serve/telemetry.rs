//! Spans of requests, and a collector that takes them over real HTTP and reads
//! the protocol buffers itself.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Instant,
};

use serde_json::json;

use super::rig::{Site, wait};

/// A collector, which stores its input.
struct Collector {
    address: String,
    posts: Arc<Mutex<Vec<Post>>>,
}

#[derive(Clone)]
struct Post {
    head: String,
    body: Vec<u8>,
}

/// Reply of a collector.
const TAKEN: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";

impl Collector {
    fn start() -> Self {
        Self::answering(TAKEN.to_owned())
    }

    fn answering(reply: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let posts = Arc::<Mutex<Vec<Post>>>::default();
        let taken = Arc::clone(&posts);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (taken, reply) = (Arc::clone(&taken), reply.clone());
                thread::spawn(
                    move || while take(stream.as_ref().unwrap(), &taken, &reply).is_some() {},
                );
            }
        });
        Self { address, posts }
    }

    fn spans(&self) -> Vec<Span> {
        let posts = self.posts.lock().unwrap();
        posts.iter().flat_map(|post| spans(&post.body)).collect()
    }
}

/// Takes one request.
fn take(stream: &TcpStream, posts: &Mutex<Vec<Post>>, reply: &str) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let length = head.to_lowercase().split("content-length: ").nth(1)?.to_owned();
    let mut body = vec![0; length.lines().next()?.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    posts.lock().unwrap().push(Post { head, body });
    (&mut &*stream).write_all(reply.as_bytes()).ok()
}

/// Value of a field of a message.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(&self) -> &'a [u8] {
        let Self::Bytes(bytes) = self else { panic!("a number") };
        bytes
    }

    fn number(&self) -> u64 {
        let Self::Number(number) = self else { panic!("bytes") };
        *number
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }
}

/// The fields of a message, as <https://protobuf.dev/programming-guides/encoding>
/// has them.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)),
            kind @ (1 | 5) => {
                let (fixed, rest) = bytes.split_at(if kind == 1 { 8 } else { 4 });
                bytes = rest;
                let mut number = [0; 8];
                number[..fixed.len()].copy_from_slice(fixed);
                Value::Number(u64::from_le_bytes(number))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (inner, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(inner)
            }
            kind => panic!("{kind}"),
        };
        found.push((tag >> 3, value));
    }
    found
}

fn all<'a>(message: &'a [u8], number: u64) -> impl Iterator<Item = Value<'a>> {
    fields(message).into_iter().filter(move |(field, _)| *field == number).map(|(_, value)| value)
}

#[derive(Debug)]
struct Span {
    name: String,
    trace: Vec<u8>,
    nanos: (u64, u64),
    attributes: BTreeMap<String, String>,
    resource: BTreeMap<String, String>,
}

fn attributes<'a>(values: impl Iterator<Item = Value<'a>>) -> BTreeMap<String, String> {
    let pair = |value: Value<'a>| {
        let key = all(value.bytes(), 1).next().unwrap().text();
        let value = all(value.bytes(), 2).next().unwrap().bytes();
        let shown = match fields(value).remove(0) {
            (1, text) => text.text(),
            (3, number) => number.number().to_string(),
            (kind, _) => panic!("{kind}"),
        };
        (key, shown)
    };
    values.map(pair).collect()
}

/// The spans of an `ExportTraceServiceRequest` of opentelemetry-proto.
fn spans(body: &[u8]) -> Vec<Span> {
    let mut found = Vec::new();
    for resource_spans in all(body, 1) {
        let resource = all(resource_spans.bytes(), 1).next().unwrap();
        for scope_spans in all(resource_spans.bytes(), 2) {
            for span in all(scope_spans.bytes(), 2) {
                let one = |number| all(span.bytes(), number).next().unwrap();
                found.push(Span {
                    name: one(5).text(),
                    trace: one(1).bytes().to_vec(),
                    nanos: (one(7).number(), one(8).number()),
                    attributes: attributes(all(span.bytes(), 9)),
                    resource: attributes(all(resource.bytes(), 1)),
                });
            }
        }
    }
    found
}

fn site(address: &str, more: &str) -> Site {
    let mut site = Site::new(&["shop", "docs"]);
    site.settings = format!("[telemetry]\notlp = \"http://{address}\"\n{more}");
    site
}

#[test]
fn requests_are_exported_with_their_records_and_nothing_that_they_are_about() {
    let collector = Collector::start();
    let site = site(&collector.address, "service = \"gateway\"");
    let rule = "[[rules]]\nid = \"hush\"\neffect = \"deny\"\npaths = [\"secret-name/**\"]\n";
    std::fs::write(site.base().join("policy.toml"), format!("{}{rule}", crate::common::ALL))
        .unwrap();
    let service = site.serve();
    let token = site.token("all").to_owned();
    let mut session = service.session(&token, "shop");
    session.read("file.txt").unwrap();
    session.write("made-name.txt", "made content");
    assert_eq!(session.read("secret-name/x").unwrap(), "refused");
    service.session(&token, "docs").read("file.txt").unwrap();
    // They go while the service runs, and are counted.
    wait(|| {
        (collector.spans().iter().filter(|span| span.name == "read").count() == 3).then_some(())
    });
    wait(|| {
        let page = service.numbers(&token);
        let line = "portcullis_telemetry_spans_total{result=\"exported\"} ";
        let count = page.split(line).nth(1)?.lines().next()?.parse::<u64>().unwrap();
        (count >= 4 && page.contains("{result=\"dropped\"} 0\n")).then_some(())
    });
    // Requests just before the end are exported as well.
    session.ask("stat", json!({ "path": "file.txt" })).unwrap();
    drop(session);
    service.stop();
    let spans = collector.spans();
    let of = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    assert_eq!((of("read").len(), of("write").len(), of("stat").len()), (3, 1, 1), "{spans:#?}");
    let get = |span: &Span, name: &str| span.attributes.get(&format!("portcullis.{name}")).cloned();
    let read =
        of("read").into_iter().find(|span| get(span, "workspace").unwrap() == "shop").unwrap();
    let said = ["transport", "operation", "decision", "rule", "agent", "result"]
        .map(|name| get(read, name));
    let expected = ["files", "read", "allow", "allowedPaths.read", "all", "ok"];
    assert_eq!(said.map(Option::unwrap), expected.map(str::to_owned));
    let records = site.records("shop");
    let record = |op: &str| records.iter().find(|record| record["op"] == op).unwrap();
    assert_eq!(get(read, "record").unwrap(), record("read")["seq"].to_string());
    assert_eq!(get(of("write")[0], "record").unwrap(), record("write")["seq"].to_string());
    let denied =
        of("read").into_iter().find(|span| get(span, "decision").unwrap() == "deny").unwrap();
    assert_eq!(
        (get(denied, "rule").unwrap(), get(denied, "result").unwrap()),
        ("hush".to_owned(), "denied".to_owned())
    );
    for span in &spans {
        assert!(span.nanos.0 < span.nanos.1 && span.trace.len() == 16, "{span:?}");
        assert_eq!(span.resource["service.name"], "gateway");
    }
    let posts = collector.posts.lock().unwrap();
    for post in posts.iter() {
        let head = post.head.to_lowercase();
        assert!(
            head.starts_with("post /v1/traces ") && head.contains("application/x-protobuf"),
            "{head}"
        );
        let text = format!("{head}{}", String::from_utf8_lossy(&post.body));
        let base = site.base();
        for word in [
            "name.txt",
            "file.txt",
            "secret-name",
            "content of",
            "of shop",
            &token,
            base.to_str().unwrap(),
        ] {
            assert!(!text.contains(word), "{word}");
        }
    }
}

/// Spans went to any host that a collector named, with the headers that
/// authenticate them.
#[test]
fn a_redirection_of_a_collector_is_not_followed() {
    let other = Collector::start();
    let to = format!("Location: http://{}/v1/traces\r\nContent-Length: 0\r\n\r\n", other.address);
    let collector = Collector::answering(format!("HTTP/1.1 307 Temporary Redirect\r\n{to}"));
    let site = site(&collector.address, "");
    let service = site.serve();
    let token = site.token("all").to_owned();
    let mut session = service.session(&token, "shop");
    session.read("file.txt").unwrap();
    wait(|| {
        let line = "portcullis_telemetry_spans_total{result=\"failed\"} ";
        let page = service.numbers(&token);
        let count = page.split(line).nth(1)?.lines().next()?.parse::<u64>().unwrap();
        (count >= 1).then_some(())
    });
    drop(session);
    service.stop();
    assert!(!collector.spans().is_empty());
    assert!(other.posts.lock().unwrap().is_empty());
}

#[test]
fn a_collector_that_is_gone_or_never_answers_keeps_nobody_waiting() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (address, lost) in
        [(silent.local_addr().unwrap().to_string(), None), (gone, Some("failed"))]
    {
        let site = site(&address, "");
        let service = site.serve();
        let token = site.token("all").to_owned();
        let mut session = service.session(&token, "shop");
        for _ in 0..100 {
            assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
        }
        if let Some(lost) = lost {
            wait(|| {
                let line = format!("portcullis_telemetry_spans_total{{result=\"{lost}\"}} ");
                let page = service.numbers(&token);
                let count = page.split(&line).nth(1)?.lines().next()?.parse::<u64>().unwrap();
                (count >= 100).then_some(())
            });
        }
        drop(session);
        let begun = Instant::now();
        service.stop();
        assert!(begun.elapsed().as_secs() < 10);
        assert_eq!(site.records("serve").pop().unwrap()["kind"], "stop");
    }
}
