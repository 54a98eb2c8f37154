//! Reads of labelled content close hosts, before the content is disclosed.

use std::sync::{atomic::Ordering, mpsc};

use super::*;
use crate::{
    gateway::{Reply, Request, SharedLimits},
    model::{
        Encoding, GrepQuery, LineRange, WorkspacePath,
        request::{Edit, Grep, List, Read, Rename, Write},
    },
};

const FILES: &str = "[limits]\napprovalTimeout = \"10m\"\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\nremove = [\"**\"]\n\
    [[labels]]\nid = \"data\"\npaths = [\"data/**\"]\n\
    [[network.rules]]\nid = \"site\"\neffect = \"allow\"\nports = [443]\n\
    hosts = [\"a.example\", \"model.example\", \"ask.example\"]\n";

/// Once data was read all hosts but two are closed, and one of these is asked about.
fn rules() -> String {
    format!(
        "{FILES}[[network.rules]]\nid = \"closed\"\neffect = \"deny\"\nwhenRead = [\"data\"]\n\
         hosts = [\"*\"]\nexcept = [\"model.example\", \"ask.example\"]\n\
         [[network.rules]]\nid = \"person\"\neffect = \"ask\"\nwhenRead = [\"data\"]\n\
         hosts = [\"ask.example\"]\n"
    )
}

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).unwrap()
}

fn read(name: &str) -> Read {
    Read { path: path(name), range: LineRange::default(), encoding: Encoding::Base64 }
}

fn grep(name: &str) -> Grep {
    let query = GrepQuery { pattern: "nothing has this".to_owned(), ..GrepQuery::default() };
    Grep { path: path(name), query }
}

/// The session of the mount of the same sandbox.
fn mount() -> Session {
    Session { transport: Transport::Mount, ..session() }
}

impl Fixture {
    fn with_files(text: &str) -> Self {
        let fixture = Self::new(text);
        for (name, content) in [("data/a.csv", "alice"), ("data/b.csv", "bob"), ("src/a", "code")] {
            let file = fixture.dir.path().join("ws").join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        fixture
    }

    fn handle<R: Request>(&self, request: &R) -> Result<Reply<R::Output>, Error> {
        self.gateway.handle(&mount(), request, Client::default())
    }

    /// The records of an operation.
    fn of(&self, op: &str) -> Vec<AuditRecord> {
        let mut records = self.all();
        records.retain(|record| record.draft.op.as_deref() == Some(op));
        records
    }

    fn is_open(&self) -> bool {
        self.open("a.example:443", "1.1.1.1").is_ok()
    }
}

#[test]
fn a_read_waits_until_what_its_label_forbids_is_closed() {
    let fixture = Fixture::with_files(&rules());
    let tunnel = fixture.open("a.example:443", "1.1.1.1").unwrap();
    let model = fixture.open("model.example:443", "1.1.1.1").unwrap();
    let (told, hear) = mpsc::channel();
    tunnel.closed_by(move || told.send(()).unwrap());
    model.closed_by(|| panic!("it is exempt"));
    let gateway = Arc::clone(&fixture.gateway);
    let (disclosed, content) = mpsc::channel();
    let reading = thread::spawn(move || {
        let reply = gateway.handle(&mount(), &read("data/a.csv"), Client::default());
        disclosed.send(reply.unwrap().output.bytes).unwrap();
    });
    hear.recv_timeout(Duration::from_secs(60)).unwrap();
    // The label is durable before, and the read is not on record.
    let label = fixture.of("label").pop().unwrap();
    assert_eq!(
        (label.kind, fact(&label, "labels")),
        (Kind::Decision, json!({"data": "data/a.csv"}))
    );
    assert_eq!(fact(&label, "by"), json!("read"));
    assert!(fixture.of("read").is_empty() && content.try_recv().is_err());
    // Nothing more is counted as sent.
    assert_eq!(tunnel.account(1).unwrap_err().rule(), Some("closed"));
    tunnel.close(end(EndReason::Closed)).unwrap();
    assert_eq!(content.recv_timeout(Duration::from_secs(60)).unwrap(), b"alice");
    reading.join().unwrap();
    let outcome = fixture.records().pop().unwrap();
    assert_eq!(outcome.draft.rule.as_deref(), Some("closed"));
    assert_eq!(outcome.draft.result.as_deref(), Some("denied"));
    let first = json!({"data": {"record": label.seq, "path": "data/a.csv"}});
    assert_eq!(fact(&outcome, "whenRead"), first);
    assert_eq!(fact(&fixture.of("read")[0], "labels"), json!(["data"]));
    // A later denial names the read, too; exempt hosts stay open.
    let error = fixture.connect("a.example:443").unwrap_err();
    assert_eq!(error.rule(), Some("closed"));
    assert_eq!(error.reason(), Some("content labelled `data` was read"));
    assert_eq!(fact(&fixture.records().pop().unwrap(), "whenRead"), first);
    model.account(1).unwrap();
    assert!(fixture.open("model.example:443", "1.1.1.1").is_ok());
    // There is one label record, however often it is read.
    fixture.handle(&read("data/b.csv")).unwrap();
    assert_eq!(fixture.of("label").len(), 1);
}

#[test]
fn a_read_is_refused_if_a_connection_stays_open() {
    let fixture = Fixture::with_files(&rules());
    let tunnel = fixture.open("a.example:443", "1.1.1.1").unwrap();
    let refused = fixture.handle(&read("data/a.csv")).unwrap_err();
    assert_eq!((refused.kind(), refused.rule()), (ErrorKind::Denied, Some("network.whenRead")));
    assert!(fixture.handle(&read("src/a")).is_ok());
    drop(tunnel);
    fixture.handle(&read("data/a.csv")).unwrap();
    let results: Vec<_> =
        fixture.of("read").iter().map(|record| record.draft.result.clone().unwrap()).collect();
    assert_eq!(results, ["denied", "ok", "ok"]);
}

#[test]
fn whatever_tells_of_content_counts_and_names_do_not() {
    let rename = |from: &str, to: &str| Rename { from: path(from), to: path(to), replace: false };
    let edit =
        |name: &str, old: &str| Edit { path: path(name), old: old.to_owned(), new: "x".to_owned() };
    let write = |name: &str| Write { path: path(name), content: b"new".to_vec(), mode: None };
    type Try = Box<dyn Fn(&Fixture) -> bool>;
    fn tried<R: Request + 'static>(request: R) -> Try {
        Box::new(move |fixture| fixture.handle(&request).is_ok())
    }
    let list = List { path: path("data") };
    let tries: [(&str, Try, bool, bool); 11] = [
        ("a read", tried(read("data/a.csv")), true, true),
        ("a search without a match", tried(grep("data")), true, true),
        ("a search from above", tried(grep("")), true, true),
        ("an edit", tried(edit("data/a.csv", "alice")), true, true),
        ("an edit that fails", tried(edit("data/a.csv", "carol")), false, true),
        ("a rename out of it", tried(rename("data/a.csv", "a.csv")), true, true),
        ("a rename of all of it", tried(rename("data", "other")), true, true),
        ("a rename within it", tried(rename("data/a.csv", "data/c.csv")), true, false),
        ("a list", tried(list), true, false),
        ("a write", tried(write("data/a.csv")), true, false),
        ("a search beside it", tried(grep("src")), true, false),
    ];
    for (name, attempt, is_done, is_read) in tries {
        let fixture = Fixture::with_files(&rules());
        assert!(fixture.is_open());
        assert_eq!(attempt(&fixture), is_done, "{name}");
        assert_eq!(fixture.is_open(), !is_read, "{name}");
        assert_eq!(fixture.of("label").len(), usize::from(is_read), "{name}");
    }
}

/// Only the first rule that asks counted: once it was approved, a rule that asks after a read was none.
#[test]
fn an_approval_of_one_rule_did_not_cover_another() {
    let asks = "[[network.rules]]\nid = \"always\"\neffect = \"ask\"\nports = [443]\nhosts = [\"ask.example\"]\n\
        [[network.rules]]\nid = \"person\"\neffect = \"ask\"\nwhenRead = [\"data\"]\n\
        hosts = [\"ask.example\"]\n";
    let fixture = Fixture::with_files(&format!("{FILES}{asks}"));
    let (gateway, approvals) = (&fixture.gateway, fixture.gateway.approvals());
    let asked = |expected: &[&str], answer: Answer| {
        let ticket = eventually(|| approvals.waiting().pop());
        let rules = &ticket.question().rules;
        assert_eq!(rules.iter().map(Decision::rule).collect::<Vec<_>>(), expected);
        ticket.answer(answer, "a test").unwrap();
    };
    thread::scope(|scope| {
        let opened = scope.spawn(|| fixture.open("ask.example:443", "1.1.1.1"));
        asked(&["always"], Answer::Session);
        let tunnel = opened.join().unwrap().unwrap();
        let reading =
            scope.spawn(move || gateway.handle(&mount(), &read("data/a.csv"), Client::default()));
        eventually(|| tunnel.account(0).is_err().then_some(()));
        drop(tunnel);
        reading.join().unwrap().unwrap();
        let opened = scope.spawn(|| fixture.open("ask.example:443", "1.1.1.1"));
        asked(&["always", "person"], Answer::Reject);
        assert!(opened.join().unwrap().is_err());
    });
}

#[test]
fn after_a_read_a_person_is_asked_about_a_new_connection() {
    let fixture = Fixture::with_files(&rules());
    let tunnel = fixture.open("ask.example:443", "1.1.1.1").unwrap();
    let (gateway, approvals) = (&fixture.gateway, fixture.gateway.approvals());
    thread::scope(|scope| {
        let reading =
            scope.spawn(move || gateway.handle(&mount(), &read("data/a.csv"), Client::default()));
        eventually(|| tunnel.account(0).is_err().then_some(()));
        drop(tunnel);
        reading.join().unwrap().unwrap();
        let asked = scope.spawn(|| fixture.open("ask.example:443", "1.1.1.1"));
        let ticket = eventually(|| approvals.waiting().pop());
        let rules = &ticket.question().rules;
        assert_eq!(rules.len(), 1);
        let (rule, reason) = (rules[0].rule(), rules[0].reason());
        assert_eq!((rule, reason), ("person", Some("content labelled `data` was read")));
        ticket.answer(Answer::Once, "a test").unwrap();
        let tunnel = asked.join().unwrap().unwrap();
        // Another read of the label closes no connection that was approved.
        gateway.handle(&mount(), &read("data/b.csv"), Client::default()).unwrap();
        tunnel.account(1).unwrap();
    });
    let outcome =
        fixture.records().into_iter().find(|record| record.kind == Kind::Outcome).unwrap();
    assert_eq!(outcome.draft.rule.as_deref(), Some("person"));
    assert_eq!(outcome.draft.result.as_deref(), Some("denied"));
}

/// A label that a reload brings counts from the next read on, and a rule that it brings at once.
#[test]
fn reloads_bring_labels_and_rules() {
    let fixture = Fixture::with_files(FILES);
    fixture.handle(&read("data/a.csv")).unwrap();
    let tunnel = fixture.open("a.example:443", "1.1.1.1").unwrap();
    fixture.gateway.reload(&session(), policy(2, &rules()), "test").unwrap();
    assert_eq!(tunnel.account(0).unwrap_err().rule(), Some("closed"));
    drop(tunnel);

    let unlabelled = FILES.replace("data/**", "elsewhere/**");
    let fixture = Fixture::with_files(&unlabelled);
    fixture.handle(&read("data/a.csv")).unwrap();
    let tunnel = fixture.open("a.example:443", "1.1.1.1").unwrap();
    let stat =
        fixture.gateway.mount_view(&mount()).lookup(&path("data/a.csv")).unwrap().unwrap().stat;
    assert!(fixture.gateway.mount_view(&mount()).repeat(&path("data/a.csv"), &stat));
    fixture.gateway.reload(&session(), policy(2, &rules()), "test").unwrap();
    tunnel.account(1).unwrap();
    // Content that was given before is no repetition now that it has a label.
    assert!(!fixture.gateway.mount_view(&mount()).repeat(&path("data/a.csv"), &stat));
    drop(tunnel);
    fixture.handle(&read("data/a.csv")).unwrap();
    assert!(fixture.gateway.mount_view(&mount()).repeat(&path("data/a.csv"), &stat));
    assert!(!fixture.is_open());
}

/// A connection that is opened while something is read is seen by one of the two.
#[test]
fn no_connection_outlives_a_read_that_it_races_with() {
    let fixture = Fixture::with_files(&rules());
    let (gateway, open) = (&fixture.gateway, std::sync::atomic::AtomicUsize::new(0));
    let count = &open;
    let deadline = Instant::now() + Duration::from_secs(120);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // Until it is denied, each is held for a moment, as one that carries bytes.
                while Instant::now() < deadline
                    && let Ok(tunnel) = fixture.open("a.example:443", "1.1.1.1")
                {
                    count.fetch_add(1, Ordering::SeqCst);
                    for _ in 0..50 {
                        if tunnel.account(1).is_err() {
                            break;
                        }
                    }
                    count.fetch_sub(1, Ordering::SeqCst);
                    drop(tunnel);
                }
            });
        }
        eventually(|| (fixture.records().len() >= 40).then_some(()));
        gateway.handle(&mount(), &read("data/a.csv"), Client::default()).unwrap();
        assert_eq!(open.load(Ordering::SeqCst), 0);
    });
    let (label, last) = (fixture.of("label")[0].seq, fixture.of("read")[0].seq);
    let late = fixture.records().into_iter().filter(|record| record.seq > last);
    for record in late {
        assert!(record.kind == Kind::Decision && record.draft.decision.as_deref() == Some("deny"));
    }
    assert!(label < last);
}

#[test]
fn a_change_by_an_agent_that_carries_a_label_is_noted() {
    let fixture = Fixture::with_files(&rules());
    let write = Write { path: path("out"), content: b"1".to_vec(), mode: None };
    fixture.handle(&write).unwrap();
    fixture.handle(&read("data/a.csv")).unwrap();
    fixture.handle(&write).unwrap();
    let intents = fixture.of("write").into_iter().filter(|record| record.kind == Kind::Intent);
    let carries: Vec<_> = intents.map(|record| fact_if_any(&record, "carries")).collect();
    assert_eq!(carries, [Value::Null, json!(["data"])]);
}

fn fact_if_any(record: &AuditRecord, name: &str) -> Value {
    record.draft.facts.as_ref().and_then(|facts| facts.get(name).cloned()).unwrap_or_default()
}

/// The sessions of a sandbox carry labels together, agents that share a gateway each for itself.
#[test]
fn agents_that_share_a_gateway_do_not_share_labels() {
    let mut fixture = Fixture::with_files(&rules());
    let other = || Session { id: "cd".repeat(16), agent: "other".parse().unwrap(), ..session() };
    let beside = || Session { id: "ef".repeat(16), ..mount() };
    let connect = |fixture: &Fixture, session: &Session| {
        let host = Connect::parse("a.example:443").unwrap();
        fixture.gateway.connect(session, &host, Client::default()).is_ok()
    };
    let gateway = Arc::get_mut(&mut fixture.gateway).unwrap();
    gateway.share(SharedLimits {
        slots: 4,
        per_session: 4,
        requests_per_second: 1000,
        bytes_per_second: 1 << 20,
        concurrent: 4,
        watches: 4,
    });
    fixture.gateway.handle(&other(), &read("data/a.csv"), Client::default()).unwrap();
    assert!(!connect(&fixture, &other()));
    assert!(connect(&fixture, &session()) && connect(&fixture, &beside()));
    fixture.gateway.handle(&beside(), &read("data/a.csv"), Client::default()).unwrap();
    assert!(!connect(&fixture, &session()));
    assert_eq!(fixture.of("label").len(), 2);
}

/// Reads in one workspace close hosts that another workspace's policy leaves open.
#[test]
fn workspaces_of_a_sandbox_share_labels() {
    let (first, mut second) = (Fixture::with_files(&rules()), Fixture::with_files(FILES));
    let gateway = Arc::get_mut(&mut second.gateway).unwrap();
    gateway.share_sandbox(&first.gateway);
    second.handle(&read("data/a.csv")).unwrap();
    assert!(!first.is_open());
    let boot = second.gateway.boot();
    let record = second.of("label")[0].seq;
    let shown = json!({"data": {"record": record, "path": "data/a.csv", "boot": boot}});
    assert_eq!(fact(&first.records().pop().unwrap(), "whenRead"), shown);
}

/// Denials, questions, limits and labels of a further workspace's policy did nothing.
#[test]
fn policies_of_further_workspaces_restrict_connections() {
    let beside = |text: &str| {
        let (first, mut second) = (Fixture::with_files(FILES), Fixture::with_files(text));
        let gateway = Arc::get_mut(&mut second.gateway).unwrap();
        gateway.share_sandbox(&first.gateway);
        (first, second)
    };
    let rule = |text: &str| {
        format!("{FILES}[[network.rules]]\nid = \"further\"\n{text}")
            .replace("id = \"site\"\neffect = \"allow\"", "id = \"own\"\neffect = \"deny\"")
            .replace("\"a.example\", \"model.example\", \"ask.example\"", "\"model.example\"")
    };
    let outcome = |fixture: &Fixture, host: &str| {
        let rule = fixture.open(host, "1.1.1.1").err().map(|_| fixture.records().pop().unwrap());
        rule.map(|record| (record.draft.rule.unwrap(), record.draft.reason.unwrap_or_default()))
    };
    let of = |rule: &str, reason: &str| {
        let by = "policy `test` of a further workspace";
        let reason = if reason.is_empty() { by.to_owned() } else { format!("{reason} ({by})") };
        Some((rule.to_owned(), reason))
    };

    // A policy that only denies leaves other hosts open.
    let (first, _second) = beside(&rule("effect = \"deny\"\nhosts = [\"9.9.9.0/24\"]\n"));
    assert!(first.is_open());
    assert_eq!(outcome(&first, "model.example:443"), of("own", ""));
    let tunnel = first.connect("a.example:443").unwrap();
    assert!(tunnel.open("9.9.9.9".parse().unwrap(), Client::default()).is_err());

    // One that allows some hosts has to allow each.
    let allows = "effect = \"allow\"\nhosts = [\"a.example\", \"other.example\"]\nports = [443]\n";
    let (first, second) = beside(&rule(allows));
    assert!(first.is_open());
    let nothing = "no rule of `[network]` allows this host and port";
    assert_eq!(outcome(&first, "ask.example:443"), of("default", nothing));
    let only_here = outcome(&first, "other.example:443").unwrap();
    assert_eq!(only_here, ("default".to_owned(), nothing.to_owned()));
    // A reload counts for the open connections, too.
    let tunnel = first.open("a.example:443", "1.1.1.1").unwrap();
    tunnel.account(1).unwrap();
    let closed = policy(2, &rule("effect = \"deny\"\nhosts = [\"*\"]\n"));
    second.gateway.reload(&session(), closed, "test").unwrap();
    assert!(tunnel.account(1).is_err());

    let limited = format!("{}[network.limits]\nbytesOut = \"10B\"\n", rule(allows));
    let (first, _second) = beside(&limited);
    let tunnel = first.open("a.example:443", "1.1.1.1").unwrap();
    tunnel.account(10).unwrap();
    assert!(tunnel.account(1).is_err());

    let asks = "effect = \"ask\"\nhosts = [\"ask.example\"]\nports = [443]\n";
    let (first, _second) =
        beside(&rule(asks).replace("\"own\"\neffect = \"deny\"", "\"own\"\neffect = \"allow\""));
    assert!(!first.is_open());
    let approvals = first.gateway.approvals();
    thread::scope(|scope| {
        let asked = scope.spawn(|| first.connect("ask.example:443").is_ok());
        let ticket = loop {
            match approvals.waiting().pop() {
                Some(ticket) => break ticket,
                None => thread::yield_now(),
            }
        };
        assert_eq!(ticket.question().rules[0].rule(), "further");
        ticket.answer(Answer::Session, "a test").unwrap();
        assert!(asked.join().unwrap());
    });
    assert!(first.connect("ask.example:443").is_ok());

    // A read closes what the policy of the workspace with the content forbids.
    let read_first = "effect = \"deny\"\nwhenRead = [\"data\"]\nhosts = [\"*\"]\n";
    let (first, second) = beside(&rule(read_first));
    let tunnel = first.open("a.example:443", "1.1.1.1").unwrap();
    let (told, hear) = mpsc::channel();
    tunnel.closed_by(move || told.send(()).unwrap());
    let reading = thread::spawn(move || second.handle(&read("data/a.csv")).map(|_| second));
    hear.recv_timeout(Duration::from_secs(60)).unwrap();
    drop(tunnel);
    let second = reading.join().unwrap().unwrap();
    let reason = "content labelled `data` was read";
    assert_eq!(outcome(&first, "a.example:443"), of("further", reason));
    let record = second.of("label")[0].seq;
    let shown = fact(&first.records().pop().unwrap(), "whenRead");
    assert_eq!(shown["data"]["record"], json!(record));
}

/// A rule that asks about one host, always or once data was read.
fn asks(when: &str) -> String {
    let hosts = "hosts = [\"ask.example\"]\nports = [443]\n";
    format!("{FILES}[[network.rules]]\nid = \"person\"\neffect = \"ask\"\n{when}{hosts}")
}

impl Fixture {
    /// Opens a connection that is asked about, and approves it for the session.
    fn open_approved(&self) -> OpenConnection {
        thread::scope(|scope| {
            let asked = scope.spawn(|| self.open("ask.example:443", "1.1.1.1"));
            let ticket = eventually(|| self.gateway.approvals().waiting().pop());
            ticket.answer(Answer::Session, "a test").unwrap();
            asked.join().unwrap().unwrap()
        })
    }
}

/// Reads data by way of `reader`, and waits until that has closed the connection.
fn closed_by_a_read(tunnel: OpenConnection, reader: &Fixture) {
    thread::scope(|scope| {
        let reading = scope.spawn(|| reader.handle(&read("data/a.csv")));
        eventually(|| tunnel.account(0).is_err().then_some(()));
        drop(tunnel);
        reading.join().unwrap().unwrap();
    });
}

/// An approval of one workspace's rule covered another one's rule with the same id.
#[test]
fn rules_of_two_workspaces_with_one_id_ask_each_for_itself() {
    let first = Fixture::with_files(&asks(""));
    let mut second = Fixture::with_files(&asks("whenRead = [\"data\"]\n").replace("[[l", "\n[[l"));
    Arc::get_mut(&mut second.gateway).unwrap().share_sandbox(&first.gateway);
    closed_by_a_read(first.open_approved(), &second);
    thread::scope(|scope| {
        let asked = scope.spawn(|| first.connect("ask.example:443"));
        let ticket = eventually(|| first.gateway.approvals().waiting().pop());
        assert_eq!(ticket.question().rules.len(), 2);
        ticket.answer(Answer::Reject, "a test").unwrap();
        asked.join().unwrap().unwrap_err();
    });
}

/// An approval covered what a rule with the same id of a later policy asks.
#[test]
fn an_approval_of_a_connection_does_not_outlive_its_policy() {
    let fixture = Fixture::with_files(&asks(""));
    let tunnel = fixture.open_approved();
    let later = policy(2, &asks("whenRead = [\"data\"]\n"));
    fixture.gateway.reload(&session(), later, "test").unwrap();
    tunnel.account(0).unwrap();
    closed_by_a_read(tunnel, &fixture);
}
