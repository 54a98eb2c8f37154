//! The `files` channel of a worker, over the stream that the front holds.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use portcullis::{
    gateway::{Answer, Gateway},
    model::{Session, Transport},
    serve::files::{Channel, ChannelLimits, Error},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::acp_rig::{POLICY, connection, gateway_under, workspace};

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of a channel over a real gateway.
pub(crate) struct Rig {
    stream: UnixStream,
    pub(crate) root: PathBuf,
    pub(crate) gateway: Arc<Gateway>,
    served: JoinHandle<Result<(), Error>>,
    dir: TempDir,
    next: u64,
    /// The changes that were notified.
    changes: Vec<Value>,
}

impl Rig {
    pub(crate) fn start(policy: &str, limits: ChannelLimits) -> Self {
        let (dir, root) = workspace();
        let gateway = Arc::new(gateway_under(policy, &root, dir.path()));
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let serving = Arc::clone(&gateway);
        let served = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let channel = Channel::new(serving, limits);
                let stream = tokio::net::UnixStream::from_std(theirs).unwrap();
                let session = Session { transport: Transport::Files, ..connection() };
                channel.serve(session, stream, Arc::default()).await
            })
        });
        Self { stream, root, gateway, served, dir, next: 0, changes: Vec::new() }
    }

    /// Sends bytes as one message.
    fn raw(&mut self, message: &[u8]) {
        self.stream.write_all(&u32::try_from(message.len()).unwrap().to_be_bytes()).unwrap();
        self.stream.write_all(message).unwrap();
    }

    /// Sends a request and gives its id.
    fn post(&mut self, kind: &str, fields: Value) -> Value {
        self.next += 1;
        let id = json!(format!("req-{}", self.next));
        let mut message = json!({"channel": "files", "type": kind, "requestId": id});
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.raw(message.to_string().as_bytes());
        id
    }

    /// The next reply.
    pub(crate) fn hear(&mut self) -> Value {
        loop {
            let message = self.any();
            if message["type"] != "change" {
                return message;
            }
            self.changes.push(message);
        }
    }

    /// The next message, asked for or not.
    fn any(&mut self) -> Value {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut message = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut message).unwrap();
        serde_json::from_slice(&message).unwrap()
    }

    /// A request and its reply, which has its id, its type and a receipt.
    pub(crate) fn ask(&mut self, kind: &str, fields: Value) -> Value {
        let id = self.post(kind, fields);
        let reply = self.hear();
        assert_eq!((&reply["requestId"], &reply["channel"]), (&id, &json!("files")), "{reply}");
        assert_eq!(reply["type"], kind, "{reply}");
        assert!(reply["receipt"]["leaf"].is_string(), "{reply}");
        reply
    }

    fn records(&self) -> Vec<Value> {
        let log = self.dir.path().join("state/audit/seg-000000.jsonl");
        let text = std::fs::read_to_string(log).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Hangs up.
    fn end(self) -> Result<(), Error> {
        self.stream.shutdown(Shutdown::Both).unwrap();
        self.served.join().unwrap()
    }
}

#[test]
fn every_operation_is_as_the_protocol_says() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    // With or without a slash before it.
    for path in ["/", "", "."] {
        let listed = rig.ask("list", json!({"path": path}));
        let entry = &listed["data"][0];
        assert_eq!((&entry["name"], &entry["type"]), (&json!("a.txt"), &json!("file")), "{listed}");
        assert_eq!(entry["size"], 23);
        assert!(entry["modified"].as_str().unwrap().ends_with('Z'), "{listed}");
    }
    for path in ["/a.txt", "a.txt"] {
        let read = rig.ask("read", json!({"path": path}));
        assert_eq!(read["data"], json!({"content": "one\ntwo żółć\nthree\n", "encoding": "utf-8"}));
    }
    let written = rig.ask("write", json!({"path": "/new/deep/b.txt", "content": "b\n"}));
    assert_eq!(written["receipt"]["durable"], true);
    assert_eq!(std::fs::read_to_string(rig.root.join("new/deep/b.txt")).unwrap(), "b\n");
    let text = json!({"path": "c.txt", "content": "Y8OpCg==", "encoding": "base64"});
    rig.ask("write", text);
    assert_eq!(std::fs::read_to_string(rig.root.join("c.txt")).unwrap(), "cé\n");

    rig.ask("mkdir", json!({"path": "/x/y/z"}));
    assert!(rig.root.join("x/y/z").is_dir());
    rig.ask("rename", json!({"oldPath": "/c.txt", "newPath": "/x/d.txt"}));
    assert!(rig.root.join("x/d.txt").is_file() && !rig.root.join("c.txt").exists());
    let stat = rig.ask("stat", json!({"path": "/x/d.txt"}));
    let data = &stat["data"];
    assert_eq!(
        (&data["name"], &data["type"], &data["size"]),
        (&json!("d.txt"), &json!("file"), &json!(4))
    );
    assert_eq!(data["permissions"].as_str().unwrap().len(), 9);
    // A link has its own name, and the rest of what it leads to.
    std::os::unix::fs::symlink("d.txt", rig.root.join("x/link")).unwrap();
    let stat = rig.ask("stat", json!({"path": "/x/link"}));
    assert_eq!((&stat["data"]["name"], &stat["data"]["size"]), (&json!("link"), &json!(4)));
    rig.ask("delete", json!({"path": "/x"}));
    assert!(!rig.root.join("x").exists());

    let records = rig.records();
    assert!(records.iter().filter(|r| r["kind"] == "intent").all(|r| r["transport"] == "files"));
    rig.end().unwrap();
}

#[test]
fn what_is_not_done_is_said_under_the_same_id_and_is_on_record() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    let missing = rig.ask("read", json!({"path": "/src/missing.ts"}));
    assert_eq!(missing["error"], "File not found: /src/missing.ts");
    assert_eq!(missing["code"], "notFound");
    for path in ["/secret/key.txt", "secret/none.txt"] {
        let denied = rig.ask("read", json!({"path": path}));
        assert_eq!(
            (&denied["rule"], &denied["code"]),
            (&json!("keys"), &json!("denied")),
            "{denied}"
        );
        assert_eq!(denied["reason"], "keys are nobody's business");
    }
    for path in ["../../etc/passwd", "/a/../../b"] {
        let outside = rig.ask("read", json!({"path": path}));
        assert_eq!(outside["rule"], "workspace.outside", "{outside}");
    }
    for (kind, fields, part) in [
        ("read", json!({}), "`path` is missing"),
        ("write", json!({"path": "a"}), "`content` is missing"),
        ("write", json!({"path": "a", "content": "x", "encoding": "utf-16"}), "`encoding`"),
        ("write", json!({"path": "a", "content": "x", "encoding": "base64"}), "base64"),
        ("rename", json!({"oldPath": "a"}), "`newPath` is missing"),
        ("chmod", json!({"path": "a"}), "no type `chmod`"),
        ("read", json!({"path": 7}), "`path` must be a string"),
        ("read", json!({"path": "x".repeat(1 << 20)}), "long"),
    ] {
        let refused = rig.ask(kind, fields);
        assert!(refused["error"].as_str().unwrap().contains(part), "{refused}");
        assert!(!refused.to_string().contains(rig.root.to_str().unwrap()), "{refused}");
    }
    assert!(!rig.root.join("a").exists());
    rig.end().unwrap();
}

#[test]
fn messages_that_are_none_and_other_channels_are_answered_and_recorded() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    for (message, part) in [
        (&b""[..], "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[]", "not a JSON object"),
        (
            br#"{"channel":"files","type":"list","requestId":"1","path":"a","path":"b"}"#,
            "repeats a key",
        ),
        (
            br#"{"channel":"files","type":"write","requestId":"q","path":"/s","content":"a\ud800"}"#,
            "half of a surrogate pair",
        ),
        (br#"{"channel":"files","type":"list","path":"/"}"#, "needs a `requestId`"),
        (br#"{"channel":"terminal","type":"open","requestId":"7"}"#, "only the channel `files`"),
    ] {
        rig.raw(message);
        let refused = rig.hear();
        assert!(refused["error"].as_str().unwrap().contains(part), "{refused}");
        assert!(refused["receipt"]["leaf"].is_string(), "{refused}");
        let is_asked = message.windows(11).any(|part| part == b"\"requestId\"");
        assert_eq!(refused["requestId"].is_string(), is_asked, "{refused}");
    }
    let dropped = rig.records().iter().filter(|record| record["op"] == "files.dropped").count();
    assert_eq!(dropped, 7);
    // The session continues.
    assert!(rig.ask("list", json!({"path": "/"}))["data"].is_array());
    rig.end().unwrap();
}

#[test]
fn changes_are_told_as_far_as_they_may_be_seen() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    // From the first reply on.
    rig.ask("list", json!({"path": "/"}));
    let root = rig.root.clone();
    std::fs::create_dir(root.join("node_modules")).unwrap();
    std::fs::write(root.join("node_modules/x.js"), "x").unwrap();
    // Nothing that is served, and in no list.
    let fifo = root.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
    std::fs::write(root.join("secret/key.txt"), "other").unwrap();
    rig.ask("write", json!({"path": "/b.txt", "content": "b"}));
    std::fs::write(root.join("a.txt"), "other").unwrap();
    std::fs::rename(root.join("b.txt"), root.join("c.txt")).unwrap();
    std::fs::create_dir(root.join("d")).unwrap();
    std::fs::remove_file(root.join("a.txt")).unwrap();
    let is = |change: &Value, event: &str, path: &str| {
        change["event"] == event && change["path"] == path
    };
    while !rig.changes.iter().any(|change| is(change, "delete", "/a.txt")) {
        let change = rig.any();
        assert_eq!((&change["channel"], &change["type"]), (&json!("files"), &json!("change")));
        assert!(change["requestId"].is_null(), "{change}");
        rig.changes.push(change);
    }
    let told = |event: &str, path: &str, kind: &str| {
        let found = rig.changes.iter().find(|change| is(change, event, path));
        let found = found.unwrap_or_else(|| panic!("{event} {path} in {:#?}", rig.changes));
        assert_eq!(found["fileType"], kind, "{found}");
    };
    told("create", "/b.txt", "file");
    told("delete", "/b.txt", "file");
    told("create", "/c.txt", "file");
    told("create", "/d", "directory");
    let all = serde_json::to_string(&rig.changes).unwrap();
    assert!(!["x.js", "secret", "fifo"].iter().any(|name| all.contains(name)), "{all}");
    rig.end().unwrap();
}

/// A subscriber gets both names, and the entries beneath the new one.
#[test]
fn a_directory_with_another_name_is_told_of_and_followed() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    let root = rig.root.clone();
    std::fs::create_dir_all(root.join("old/deep")).unwrap();
    std::fs::write(root.join("old/deep/a.txt"), "a").unwrap();
    rig.ask("list", json!({"path": "/"}));
    std::fs::rename(root.join("old"), root.join("new")).unwrap();
    let is = |change: &Value, event: &str, path: &str| {
        change["event"] == event && change["path"] == path && change["fileType"] == "directory"
    };
    let mut told = |wanted: &dyn Fn(&Value) -> bool| {
        while !rig.changes.iter().any(wanted) {
            let change = rig.any();
            rig.changes.push(change);
        }
    };
    told(&|change| is(change, "delete", "/old"));
    told(&|change| is(change, "create", "/new"));
    told(&|change| is(change, "rescan", "/new"));
    std::fs::write(root.join("new/deep/late.txt"), "x").unwrap();
    told(&|change| change["event"] == "create" && change["path"] == "/new/deep/late.txt");
    rig.end().unwrap();
}

#[test]
fn binary_content_is_base64_where_the_policy_lets_it() {
    let binary = b"\x00\x01\xff\xfe";
    for (allowed, rule) in [(true, ""), (false, "files.binary.read")] {
        let more = "\n[files]\nbinary = { read = \"base64\", write = \"base64\" }\n";
        let policy = if allowed { format!("{POLICY}{more}") } else { POLICY.to_owned() };
        let mut rig = Rig::start(&policy, ChannelLimits::default());
        std::fs::write(rig.root.join("b.bin"), binary).unwrap();
        let read = rig.ask("read", json!({"path": "b.bin"}));
        let content = json!({"path": "c.bin", "content": "AAH//g==", "encoding": "base64"});
        let written = rig.ask("write", content);
        if allowed {
            assert_eq!(read["data"], json!({"content": "AAH//g==", "encoding": "base64"}));
            assert_eq!(std::fs::read(rig.root.join("c.bin")).unwrap(), binary);
        } else {
            assert_eq!(read["rule"], rule, "{read}");
            assert_eq!(written["code"], "denied", "{written}");
        }
        rig.end().unwrap();
    }
}

#[test]
fn requests_are_carried_out_in_the_order_in_which_they_came() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    let mut ids = Vec::new();
    for n in 0..50 {
        ids.push(rig.post("write", json!({"path": "n.txt", "content": n.to_string()})));
        ids.push(rig.post("read", json!({"path": "n.txt"})));
    }
    for (n, id) in ids.iter().enumerate() {
        let reply = rig.hear();
        assert_eq!(reply["requestId"], *id);
        if n % 2 == 1 {
            assert_eq!(reply["data"]["content"], (n / 2).to_string());
        }
    }
    rig.end().unwrap();
}

#[test]
fn a_request_that_waits_for_a_person_lets_the_next_ones_go_on() {
    let policy = format!(
        "{POLICY}\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"remove\"]\n\
         paths = [\"a.txt\"]\nreason = \"old things\"\n"
    );
    let mut rig = Rig::start(&policy, ChannelLimits::default());
    let waits = rig.post("delete", json!({"path": "a.txt"}));
    assert!(rig.ask("list", json!({"path": "/"}))["data"].is_array());
    let waiting = loop {
        // It is asked about before the list is answered, or soon after.
        match rig.gateway.approvals().waiting().pop() {
            Some(ticket) => break ticket,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(rig.root.join("a.txt").exists());
    waiting.answer(Answer::Once, "a person").unwrap();
    let reply = rig.hear();
    assert_eq!(reply["requestId"], waits);
    assert!(reply["error"].is_null(), "{reply}");
    assert!(!rig.root.join("a.txt").exists());
    rig.end().unwrap();
}

#[test]
fn large_files_go_both_ways_and_larger_messages_end_the_connection() {
    let policy = format!("{POLICY}\n[files]\nmaxReadSize = \"64MiB\"\nmaxWriteSize = \"64MiB\"\n");
    let limits = ChannelLimits { message: 48 << 20, memory: 64 << 20, requests: 2 };
    let mut rig = Rig::start(&policy, limits);
    let content = "0123456789abcde\n".repeat(2 << 20);
    rig.ask("write", json!({"path": "large.txt", "content": content}));
    assert_eq!(std::fs::metadata(rig.root.join("large.txt")).unwrap().len(), 32 << 20);
    let read = rig.ask("read", json!({"path": "large.txt"}));
    assert!(read["data"]["content"] == content.as_str());
    rig.stream.write_all(&(49_u32 << 20).to_be_bytes()).unwrap();
    let served = rig.served.join().unwrap();
    assert!(matches!(served, Err(Error::TooLarge(_))), "{served:?}");
    let log = std::fs::read_to_string(rig.dir.path().join("state/audit/seg-000000.jsonl")).unwrap();
    assert!(log.lines().last().unwrap().contains("too large"), "{log}");
}

/// Eight lists of a directory of 240,000 names took a gigabyte.
#[test]
fn a_list_takes_a_bounded_part_of_the_memory() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    // Long paths, or it would need more names.
    let deep = vec!["d".repeat(250); 14].join("/");
    let directory = rig.root.join(&deep);
    std::fs::create_dir_all(&directory).unwrap();
    let make = |names: std::ops::Range<u32>| {
        for name in names {
            std::fs::write(directory.join(name.to_string()), "").unwrap();
        }
    };
    make(0..4_000);
    let listed = rig.ask("list", json!({"path": deep}));
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(4_000));
    assert_eq!(listed["data"][1]["name"], "1");
    make(4_000..5_000);
    let refused = rig.ask("list", json!({"path": deep}));
    assert_eq!(refused["code"], "invalidInput", "{refused}");
}

#[test]
fn of_a_message_that_breaks_off_nothing_is_done() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    let whole = json!({
        "channel": "files", "type": "write", "requestId": "1", "path": "a.txt", "content": "gone",
    })
    .to_string();
    rig.stream.write_all(&u32::try_from(whole.len()).unwrap().to_be_bytes()).unwrap();
    rig.stream.write_all(&whole.as_bytes()[..whole.len() - 1]).unwrap();
    let (root, dir) = (rig.root.clone(), rig.dir.path().to_owned());
    rig.stream.shutdown(Shutdown::Write).unwrap();
    assert!(rig.served.join().unwrap().is_err());
    assert_eq!(std::fs::read_to_string(root.join("a.txt")).unwrap(), "one\ntwo żółć\nthree\n");
    let log = std::fs::read_to_string(dir.join("state/audit/seg-000000.jsonl")).unwrap();
    assert!(log.lines().last().unwrap().contains("files.dropped"), "{log}");
}

/// They were gone without a word.
#[test]
fn of_a_client_that_takes_no_answers_the_rest_is_not_begun_and_counted() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    rig.stream.shutdown(Shutdown::Read).unwrap();
    for n in 0..20 {
        rig.post("write", json!({"path": format!("{n}.new"), "content": "x"}));
    }
    rig.stream.shutdown(Shutdown::Write).unwrap();
    let (root, dir) = (rig.root.clone(), rig.dir.path().to_owned());
    let served = rig.served.join().unwrap();
    assert!(matches!(served, Err(Error::NotReading { left: 19, .. })), "{served:?}");
    assert!(root.join("0.new").exists() && !root.join("1.new").exists());
    let log = std::fs::read_to_string(dir.join("state/audit/seg-000000.jsonl")).unwrap();
    let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!((&last["op"], &last["facts"]["notStarted"]), (&json!("files.dropped"), &json!(19)));
}
