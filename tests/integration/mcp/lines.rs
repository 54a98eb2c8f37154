//! Clients of one gateway in this process, each with a stream of lines, as an attached client of
//! `run` and a session of `serve` have: policies that come into force meanwhile, and clients that
//! go.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use portcullis::{
    gateway::{Answer, Gateway},
    mcp::{self, ClientLocation, Config, Input, Name, Toolset},
    model::{Session, Transport},
    policy::{PolicySource, compile},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::acp_rig::gateway_under;

const TIMEOUT: Duration = Duration::from_secs(60);
const READ: &str = "read = [\"**\"]\nlist = [\"**\"]\n";
const WRITE: &str = "read = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n";
const CHANGED: &str = "notifications/tools/list_changed";

fn policy(version: u64, more: &str) -> String {
    format!("schema = 1\nname = \"p\"\nversion = {version}\n[allowedPaths]\n{more}")
}

fn asks(operation: &str) -> String {
    format!(
        "[[rules]]\nid = \"ask\"\neffect = \"ask\"\noperations = [\"{operation}\"]\n\
         paths = [\"ask/**\"]\n"
    )
}

/// A gateway of its own.
struct Site {
    base: TempDir,
    gateway: Arc<Gateway>,
    session: Session,
}

impl Site {
    fn new(text: &str) -> Self {
        let base = TempDir::new().unwrap();
        let root = base.path().join("ws");
        std::fs::create_dir_all(root.join("ask")).unwrap();
        std::fs::write(root.join("ask/a.txt"), "a\n").unwrap();
        let gateway = Arc::new(gateway_under(&policy(1, text), &root, base.path()));
        let (id, user) = ("one".to_owned(), "somebody".to_owned());
        let session =
            Session { id, agent: "a".parse().unwrap(), user, transport: Transport::Mcp, acp: None };
        Self { base, gateway, session }
    }

    fn offer(&self, version: u64, text: &str) {
        let source = PolicySource::from_text("next.toml", &policy(version, text));
        let taken = self.gateway.reload(&self.session, compile(&source).unwrap(), "test");
        assert!(taken.unwrap().is_some());
    }

    /// Connects a client that sends nothing yet.
    fn admit(&self) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(TIMEOUT)).unwrap();
        let config = Config {
            session: self.session.clone(),
            root: self.base.path().join("ws"),
            alias: None,
            further: Vec::new(),
            commands: None,
            toolset: Toolset::Workspace(Name::near("ws")),
            location: ClientLocation::Host,
            elicit: false,
            prompt: true,
            max_line: 1 << 20,
            attached: None,
            revoked: Default::default(),
            options: String::new(),
            announce: |_, _| {},
        };
        let gateway = Arc::clone(&self.gateway);
        let stream = File::from(OwnedFd::from(theirs.try_clone().unwrap()));
        let output = File::from(OwnedFd::from(theirs));
        let input = Input { stream, stop: None };
        let serving = thread::spawn(move || mcp::serve(&gateway, config, input, output).unwrap());
        let (heard, next) = (VecDeque::new(), 0);
        Client { stream: BufReader::new(ours), serving, heard, next }
    }

    /// Lets a client in that greets as the revisions with sessions do.
    fn client(&self) -> Client {
        let mut client = self.admit();
        let info = json!({ "name": "test", "version": "1" });
        let hello =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
        let greeting = client.ask("initialize", &hello);
        let tools = &greeting["result"]["capabilities"]["tools"];
        assert_eq!(tools["listChanged"], true, "{greeting}");
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    /// Waits until so many questions wait; gives their paths.
    fn questions(&self, count: usize) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let waiting = self.gateway.approvals().waiting();
            if waiting.len() >= count {
                return waiting.iter().map(|one| one.question().asked_path.clone()).collect();
            }
            assert!(begun.elapsed() < TIMEOUT, "nobody is asked");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Client {
    stream: BufReader<UnixStream>,
    serving: JoinHandle<()>,
    heard: VecDeque<Value>,
    next: u64,
}

impl Client {
    fn send(&mut self, message: &Value) {
        self.stream.get_mut().write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    fn post(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn post_call(&mut self, tool: &str, arguments: &Value) -> u64 {
        let name = format!("workspace__ws__{tool}");
        self.post("tools/call", &json!({ "name": name, "arguments": arguments }))
    }

    /// Returns the next message that fits; others are kept.
    fn hear(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.heard.iter().position(&fits) {
            return self.heard.remove(at).unwrap();
        }
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).unwrap() > 0, "it is over");
            let message: Value = serde_json::from_str(&line).unwrap();
            if fits(&message) {
                return message;
            }
            self.heard.push_back(message);
        }
    }

    fn answer(&mut self, id: u64) -> Value {
        self.hear(|message| message["id"] == id && message.get("method").is_none())
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        let id = self.post(method, params);
        self.answer(id)
    }

    fn has_write(&mut self) -> bool {
        let listed = self.ask("tools/list", &json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap();
        tools.iter().any(|tool| tool["name"] == "workspace__ws__write_file")
    }

    /// Closes the client's side; returns the messages that come then.
    fn leave(self) -> Vec<Value> {
        self.stream.get_ref().shutdown(Shutdown::Write).unwrap();
        let lines = self.stream.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let told = self.heard.into_iter().chain(lines).collect();
        self.serving.join().unwrap();
        told
    }
}

/// A client had the tools of the policy under which it connected until it left.
#[test]
fn tools_are_those_of_the_policy_in_force_and_a_client_hears_when_they_are_others() {
    let site = Site::new(READ);
    let mut client = site.client();
    assert!(!client.has_write());
    let write = json!({ "path": "b.txt", "content": "b" });

    // Another policy with the same tools is no news.
    site.offer(2, &format!("{READ}[limits]\ndenials = 100\n"));
    assert!(!client.has_write());
    site.offer(3, WRITE);
    client.hear(|message| message["method"] == CHANGED);
    assert!(client.has_write());
    let id = client.post_call("write_file", &write);
    assert_eq!(client.answer(id)["result"]["isError"], false);

    site.offer(4, READ);
    client.hear(|message| message["method"] == CHANGED);
    assert!(!client.has_write());
    let id = client.post_call("write_file", &write);
    let refused = client.answer(id);
    assert!(refused["error"]["message"].as_str().unwrap().contains("no tool"), "{refused}");
    let told = client.leave();
    assert!(!told.iter().any(|message| message["method"] == CHANGED), "{told:?}");
}

/// The stream was cut off after five seconds, without an answer.
#[test]
fn a_listener_hears_of_tools_and_that_its_stream_ends() {
    let site = Site::new(READ);
    let mut client = site.admit();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let wanted = json!({ "_meta": meta, "notifications": { "toolsListChanged": true } });
    let id = client.post("subscriptions/listen", &wanted);
    let acknowledged = client.hear(|message| message.get("method").is_some());
    assert_eq!(acknowledged["params"]["notifications"], json!({ "toolsListChanged": true }));
    site.offer(2, WRITE);
    let changed = client.hear(|message| message["method"] == CHANGED);
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
    let told = client.leave();
    assert!(told.iter().any(|message| message["id"] == id && message["error"].is_null()));
}

/// The rules that ask were looked up when a client connected; a read that waited for an approval
/// then delayed all its calls.
#[test]
fn a_read_that_a_new_policy_asks_about_holds_up_no_other_call() {
    let site = Site::new(READ);
    let mut client = site.client();
    assert!(!client.has_write());
    site.offer(2, &format!("{READ}{}", asks("read")));
    let read = client.post_call("read_file", &json!({ "path": "ask/a.txt" }));
    assert_eq!(site.questions(1), ["ask/a.txt"]);
    assert!(!client.has_write());
    let waiting = site.gateway.approvals().waiting().remove(0);
    waiting.answer(Answer::Once, "somebody").unwrap();
    assert_eq!(client.answer(read)["result"]["isError"], false);
    client.leave();
}

/// Attached clients of one session of `run` have the same session.
#[test]
fn who_leaves_takes_back_no_question_of_another_client_of_the_same_session() {
    let site = Site::new(&format!("{WRITE}{}", asks("write")));
    let (mut stays, mut leaves) = (site.client(), site.client());
    let write = |name: &str| json!({ "path": format!("ask/{name}.txt"), "content": "new" });
    let id = stays.post_call("write_file", &write("stays"));
    site.questions(1);
    leaves.post_call("write_file", &write("leaves"));
    assert_eq!(site.questions(2), ["ask/stays.txt", "ask/leaves.txt"]);
    leaves.leave();
    let waiting = site.gateway.approvals().waiting();
    assert_eq!(waiting.len(), 1);
    waiting[0].answer(Answer::Once, "somebody").unwrap();
    assert_eq!(stays.answer(id)["result"]["isError"], false);
    stays.leave();
}
