//! Streams of events over HTTP as the client's revision of MCP has them.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use serde_json::{Value, json};

use super::rig::{Service, Site, status};

/// Revisions that have sessions; the last one has events without data, which
/// prime a client to come back.
const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const PRIMED: &str = "2025-11-25";

struct Client<'a> {
    service: &'a Service,
    token: &'a str,
    /// Headers of each further request.
    headers: String,
}

impl Client<'_> {
    fn begin(&self, method: &str, more: &str, body: &str) -> TcpStream {
        let Self { token, headers, .. } = self;
        let head = format!(
            "{method} /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}{more}\
             Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = self.service.connect();
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    }

    fn send(&self, method: &str, more: &str, body: &str) -> String {
        let mut reply = String::new();
        self.begin(method, more, body).read_to_string(&mut reply).unwrap();
        assert_eq!(status(&reply), 200, "{reply}");
        reply
    }

    /// Opens the stream of messages that are no replies, and ends the session then; gives all that
    /// came over the stream.
    fn heard_to_the_end(&self, begin: &str) -> String {
        let mut stream = self.begin("GET", "", "");
        let mut heard = Vec::new();
        while !heard.windows(begin.len()).any(|part| part == begin.as_bytes()) {
            let mut some = [0; 4096];
            let got = stream.read(&mut some).unwrap();
            assert!(got > 0, "{}", String::from_utf8_lossy(&heard));
            heard.extend(&some[..got]);
        }
        self.send("DELETE", "", "");
        stream.read_to_end(&mut heard).unwrap();
        let heard = String::from_utf8(heard).unwrap();
        assert_eq!(status(&heard), 200, "{heard}");
        heard
    }

    fn put(&self, id: u32, method: &str, params: &Value) -> String {
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send("POST", "", &body.to_string())
    }
}

/// The data of the events in a reply; each other line of theirs belongs to one.
fn events(reply: &str) -> Vec<String> {
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    let mut rest = body;
    let mut text = String::new();
    // Chunks (RFC 9112, 7.1).
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text += &more[..size];
        rest = more[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    let blocks = text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
    let data = |block: &str| {
        let lines = block.lines().filter_map(|line| line.strip_prefix("data:"));
        lines.map(str::trim_start).collect::<Vec<_>>().join("\n")
    };
    blocks.map(data).collect()
}

/// Returns the number of a reply's events without data, and the messages of the
/// others.
fn parted(reply: &str) -> (usize, Vec<Value>) {
    let (empty, told): (Vec<_>, Vec<_>) =
        events(reply).into_iter().partition(|data| data.is_empty());
    (empty.len(), told.iter().map(|data| serde_json::from_str(data).unwrap()).collect())
}

/// Gemini CLI, of 2025-06-18, disconnected.
#[test]
fn only_revisions_that_know_them_get_events_without_data() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    for revision in REVISIONS {
        let mut client =
            Client { service: &service, token: site.token("all"), headers: String::new() };
        let info = json!({ "name": "test", "version": "1" });
        let hello = json!({ "protocolVersion": revision, "capabilities": {}, "clientInfo": info });
        let begun = client.put(1, "initialize", &hello);
        let id = begun.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
        client.headers = format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: {revision}\r\n");
        let listed = client.put(2, "tools/list", &json!({}));
        let again = client.send("GET", "Last-Event-ID: 0/0\r\n", "");
        let begin = if revision == PRIMED { "id: 0" } else { "\r\n\r\n" };
        let heard = client.heard_to_the_end(begin);
        let (empty, _) = parted(&again);
        assert!(revision == PRIMED || empty == 0, "{revision}: {again}");
        for (reply, answers) in [(&begun, 1), (&listed, 1), (&heard, 0)] {
            let (empty, told) = parted(reply);
            assert_eq!(empty, usize::from(revision == PRIMED), "{revision}: {reply}");
            assert_eq!(told.len(), answers, "{revision}: {reply}");
            assert!(told.iter().all(|answer| answer["result"].is_object()), "{told:?}");
        }
        let agreed = &parted(&begun).1[0]["result"]["protocolVersion"];
        assert_eq!(agreed, revision);
    }
}

/// A client whose revision has no sessions gets the reply to its request.
#[test]
fn a_revision_without_sessions_is_answered() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let read = service.call(site.token("all"), "shop", "read_file", &json!({ "path": "file.txt" }));
    assert_eq!(read["result"]["content"][0]["text"], "of shop\n", "{read}");
}
