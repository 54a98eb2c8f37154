#![expect(clippy::disallowed_methods, reason = "tests make files behind the gateway's back")]

use std::{
    collections::BTreeMap,
    fs, thread,
    time::{Duration, Instant},
};

use cap_std::fs::Dir;
use portcullis_audit::{AuditRecord, Directory, Kind, Reader};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::{
    audit_log::AuditLog,
    gateway::{Answer, ConnectionEnd, ErrorKind},
    model::Transport,
    policy::{Policy, PolicySource, SecretKey, compile},
    workspace::Workspace,
};

const SITES: &str = "[limits]\napprovalTimeout = \"10m\"\n[network.limits]\nbytesOut = \"10B\"\nconnections = 2\n\
    [[network.rules]]\nid = \"sites\"\neffect = \"allow\"\nhosts = [\"*.example.com\", \"127.0.0.1\"]\nports = [443]\n\
    [[network.rules]]\nid = \"person\"\neffect = \"ask\"\nhosts = [\"ask.example\", \"10.0.0.0/8\"]\nports = [443]\n\
    [[network.rules]]\nid = \"never\"\neffect = \"deny\"\nhosts = [\"bad.example.com\"]\n";

struct Fixture {
    dir: TempDir,
    gateway: Arc<Gateway>,
}

fn session() -> Session {
    let (id, user) = ("ab".repeat(16), "user".to_owned());
    Session { id, agent: "agent".parse().unwrap(), user, transport: Transport::Proxy, acp: None }
}

fn policy(version: u64, text: &str) -> Policy {
    let text = format!("schema = 1\nversion = {version}\n{text}");
    compile(&PolicySource::from_text("test", &text)).unwrap()
}

fn open(dir: &TempDir, text: &str) -> Gateway {
    let state = Dir::from_std_file(fs::File::open(dir.path().join("state")).unwrap());
    let workspace = Workspace::open(&dir.path().join("ws")).unwrap();
    let audit_log = AuditLog::open(&state).unwrap();
    let key = SecretKey::new(&[7; SecretKey::LENGTH]);
    let gateway =
        Gateway::open(workspace, Arc::new(policy(1, text)), audit_log, &state, key).unwrap();
    gateway.add_local_address("93.184.216.34".parse().unwrap());
    gateway.start(&session(), BTreeMap::new()).unwrap();
    gateway
}

impl Fixture {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ws", "state"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let gateway = Arc::new(open(&dir, text));
        Self { dir, gateway }
    }

    fn connect(&self, host: &str) -> Result<ConnectionAttempt, Error> {
        self.gateway.connect(&session(), &Connect::parse(host).unwrap(), Client::default())
    }

    fn open(&self, host: &str, address: &str) -> Result<OpenConnection, Error> {
        self.connect(host)?.open(address.parse().unwrap(), Client::default())
    }

    /// The records of connections: kind, decision, rule, result and facts.
    fn records(&self) -> Vec<AuditRecord> {
        let mut records = self.all();
        records.retain(|record| record.draft.op.as_deref() == Some("connect"));
        records
    }

    fn all(&self) -> Vec<AuditRecord> {
        let source = Directory::new(self.dir.path().join("state/audit"));
        let (mut reader, mut records) = (Reader::new(&source, 0), Vec::new());
        while let Some(entry) = reader.next().unwrap() {
            records.push(AuditRecord::parse(&entry.bytes).unwrap());
        }
        records
    }
}

fn fact(record: &AuditRecord, name: &str) -> Value {
    record.draft.facts.as_ref().unwrap().get(name).cloned().unwrap_or(Value::Null)
}

/// Waits until something is there, for a minute at most.
#[track_caller]
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it did not come");
        thread::sleep(Duration::from_millis(1));
    }
}

fn end(reason: EndReason) -> ConnectionEnd<'static> {
    let detail = Some("both sides sent everything");
    ConnectionEnd { bytes_in: Some(7), detail, ..ConnectionEnd::of(reason) }
}

#[test]
fn a_connection_is_on_record_before_it_is_made_and_when_it_has_ended() {
    let fixture = Fixture::new(SITES);
    let attempt = fixture.connect("www.example.com:443").unwrap();
    let connection = attempt.open("1.1.1.1".parse().unwrap(), Client::default()).unwrap();
    let records = fixture.records();
    let kinds: Vec<_> = records.iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [Kind::Decision, Kind::Intent]);
    assert_eq!(fact(&records[0], "address"), Value::Null);
    for record in &records {
        assert_eq!(record.draft.rule.as_deref(), Some("sites"));
        assert_eq!(
            (fact(record, "host"), fact(record, "port")),
            (json!("www.example.com"), json!(443))
        );
        assert_eq!((record.draft.transport.as_deref(), &record.draft.path), (Some("proxy"), &None));
    }
    assert_eq!(fact(&records[1], "address"), json!("1.1.1.1"));
    assert!(connection.receipt().durable);
    connection.account(3).unwrap();
    let receipt = connection.close(end(EndReason::Closed)).unwrap();
    let records = fixture.records();
    let outcome = records.last().unwrap();
    assert_eq!(
        (outcome.seq, outcome.kind, outcome.draft.of),
        (receipt.seq, Kind::Outcome, Some(records[1].seq))
    );
    assert_eq!(outcome.draft.result.as_deref(), Some("ok"));
    let counts = outcome.draft.counts.as_ref().unwrap();
    assert_eq!((counts["bytesIn"], counts["bytesOut"]), (7, 3));
    assert!(counts.contains_key("milliseconds"));
    assert_eq!(fact(outcome, "address"), json!("1.1.1.1"));
}

/// The words of a peer about an end entered the record as they were.
#[test]
fn the_detail_of_an_end_was_recorded_with_its_secrets() {
    let secret = format!("acme_live_{}", "9hQ2vTz8".repeat(4));
    let rule = "[secrets]\nonRead = \"redact\"\n[[secrets.rules]]\nid = \"acme\"\n\
                regex = '''acme_live_[0-9A-Za-z]{32}'''\n";
    let fixture = Fixture::new(&format!("{SITES}{rule}"));
    // The secret is on both sides of the end of what is recorded.
    let detail = format!("{}{secret}", "the server sent this".repeat(24));
    let attempt = fixture.connect("www.example.com:443").unwrap();
    attempt.unreachable(&detail).unwrap();
    let connection = attempt.open("1.1.1.1".parse().unwrap(), Client::default()).unwrap();
    let end = ConnectionEnd { detail: Some(&detail), ..ConnectionEnd::of(EndReason::Reset) };
    connection.close(end).unwrap();
    let records = fixture.records();
    let reasons: Vec<_> = records.iter().filter_map(|r| r.draft.reason.as_deref()).collect();
    assert_eq!(reasons.iter().filter(|reason| reason.starts_with("the server")).count(), 2);
    assert!(reasons.iter().all(|reason| !reason.contains("acme_live_")), "{reasons:?}");
}

#[test]
fn a_denied_name_and_a_denied_address_have_records_and_nothing_else() {
    let fixture = Fixture::new(SITES);
    for (host, rule) in [
        ("other.example:443", "default"),
        ("www.example.com:80", "default"),
        ("bad.example.com:443", "never"),
        ("169.254.169.254:443", "default"),
        ("127.0.0.2:443", "default"),
    ] {
        let error = fixture.connect(host).unwrap_err();
        assert_eq!((error.kind(), error.rule()), (ErrorKind::Denied, Some(rule)), "{host}");
        assert!(error.receipt().is_some());
    }
    assert!(
        fixture.records().iter().all(|record| record.kind == Kind::Decision
            && record.draft.decision.as_deref() == Some("deny"))
    );
    let before = fixture.records().len();
    for address in ["127.0.0.2", "::1", "::ffff:127.0.0.1", "169.254.169.254", "93.184.216.34"] {
        let error = fixture.open("www.example.com:443", address).unwrap_err();
        assert_eq!(error.rule(), Some("network.address"), "{address}");
    }
    let records = fixture.records();
    assert!(records.iter().all(|record| record.kind == Kind::Decision));
    assert_eq!(records.len(), before + 10);
    // A rule that names the address lets it be one.
    assert!(fixture.open("www.example.com:443", "127.0.0.1").is_ok());
    assert!(fixture.open("127.0.0.1:443", "127.0.0.1").is_ok());
    assert_eq!(
        fixture.open("127.0.0.1:443", "1.1.1.1").unwrap_err().rule(),
        Some("network.address")
    );
}

#[test]
fn limits_end_a_connection_and_refuse_the_next() {
    let fixture = Fixture::new(SITES);
    let one = fixture.open("www.example.com:443", "1.1.1.1").unwrap();
    let two = fixture.open("a.example.com:443", "1.1.1.1").unwrap();
    let many = fixture.open("b.example.com:443", "1.1.1.1").unwrap_err();
    assert_eq!(many.rule(), Some("network.limits.connections"));
    one.account(10).unwrap();
    for _ in 0..2 {
        assert_eq!(one.account(1).unwrap_err().rule(), Some("network.limits.bytesOut"));
    }
    one.close(end(EndReason::Closed)).unwrap();
    let outcome = fixture.records().pop().unwrap();
    assert_eq!(outcome.draft.rule.as_deref(), Some("network.limits.bytesOut"));
    assert_eq!(outcome.draft.result.as_deref(), Some("denied"));
    let spent = fixture.open("www.example.com:443", "1.1.1.1").unwrap_err();
    assert_eq!(spent.rule(), Some("network.limits.bytesOut"));
    two.account(10).unwrap();
}

#[test]
fn a_person_is_asked_about_a_name_and_about_an_address() {
    let fixture = Fixture::new(SITES);
    let approvals = fixture.gateway.approvals();
    let (gateway, answers) = (&fixture.gateway, [Answer::Once, Answer::Reject, Answer::Session]);
    let answer = |answer| {
        let ticket = eventually(|| approvals.waiting().pop());
        let question = ticket.question().clone();
        ticket.answer(answer, "a test").unwrap();
        eventually(|| approvals.waiting().is_empty().then_some(()));
        (question.binding.path, question.asked_path, question.change)
    };
    thread::scope(|scope| {
        for (number, given) in answers.into_iter().enumerate() {
            let connect = Connect::parse("ask.example:443").unwrap();
            let asked =
                scope.spawn(move || gateway.connect(&session(), &connect, Client::default()));
            let (path, asked_path, change) = answer(given);
            assert_eq!(
                (path.as_str(), asked_path.as_str()),
                ("ask.example:443", "ask.example:443")
            );
            assert!(change.contains("ask.example:443"));
            let attempt = asked.join().unwrap();
            assert_eq!(attempt.is_ok(), number != 1);
            if let Ok(attempt) = attempt {
                // The approval of a name covers an address that no rule asks about.
                attempt.open("1.1.1.1".parse().unwrap(), Client::default()).unwrap();
            }
        }
        // For the rest of the session no approval of this host is needed.
        fixture.open("ask.example:443", "1.1.1.1").unwrap();
        // The rule names the address, so that it may be one, after an answer.
        let attempt = fixture.connect("www.example.com:443").unwrap();
        let asked = scope
            .spawn(move || attempt.open("10.0.0.1".parse().unwrap(), Client::default()).map(drop));
        let (path, asked_path, change) = answer(Answer::Reject);
        let told = "www.example.com:443 at 10.0.0.1";
        assert_eq!((path.as_str(), asked_path.as_str()), (told, told));
        assert_eq!(change, format!("connect to {told}"));
        assert_eq!(asked.join().unwrap().unwrap_err().rule(), Some("person"));
    });
}

/// The owner of a name could lead it elsewhere after an approval, and the question did not name the
/// address.
#[test]
fn an_answer_about_a_name_or_an_address_holds_for_no_other_address() {
    let fixture = Fixture::new(SITES);
    let approvals = fixture.gateway.approvals();
    let asked = |host: &str, address: &str, given: Answer| {
        let attempt = fixture.connect(host);
        let address = address.parse().unwrap();
        thread::scope(|scope| {
            let opening = scope.spawn(move || attempt.unwrap().open(address, Client::default()));
            let mut paths = Vec::new();
            eventually(|| {
                if let Some(ticket) = approvals.waiting().pop() {
                    paths.push(ticket.question().binding.path.clone());
                    ticket.answer(given, "a test").unwrap();
                    eventually(|| approvals.waiting().is_empty().then_some(()));
                }
                opening.is_finished().then_some(())
            });
            (paths, opening.join().unwrap().is_ok())
        })
    };
    let (a, b) = ("10.0.0.1", "10.9.9.9");
    let name = "www.example.com:443";
    let about = |address: &str| vec![format!("{name} at {address}")];
    assert_eq!(asked(name, a, Answer::Session), (about(a), true));
    assert_eq!(asked(name, a, Answer::Reject), (Vec::new(), true));
    assert_eq!(asked(name, b, Answer::Reject), (about(b), false));
    // An address that is asked for itself is asked about once.
    let direct = thread::scope(|scope| {
        let attempt = scope.spawn(|| fixture.connect("10.0.0.2:443"));
        let ticket = eventually(|| approvals.waiting().pop());
        assert_eq!(ticket.question().binding.path, "10.0.0.2:443");
        ticket.answer(Answer::Once, "a test").unwrap();
        attempt.join().unwrap().unwrap()
    });
    direct.open("10.0.0.2".parse().unwrap(), Client::default()).unwrap();
}

#[test]
fn a_connection_that_another_policy_denies_is_ended() {
    let fixture = Fixture::new(SITES);
    let connection = fixture.open("www.example.com:443", "1.1.1.1").unwrap();
    let attempt = fixture.connect("www.example.com:443").unwrap();
    connection.account(1).unwrap();
    let closed = "[[network.rules]]\nid = \"other\"\neffect = \"allow\"\nhosts = [\"other.example\"]\nports = [443]\n";
    fixture.gateway.reload(&session(), policy(2, closed), "test").unwrap();
    assert_eq!(connection.account(0).unwrap_err().rule(), Some("default"));
    let late = attempt.open("1.1.1.1".parse().unwrap(), Client::default()).unwrap_err();
    assert_eq!(late.rule(), Some("default"));
    drop(connection);
    assert_eq!(fixture.records().pop().unwrap().draft.result.as_deref(), Some("denied"));
}

/// It went on, as if it had been approved.
#[test]
fn a_connection_about_which_another_policy_asks_is_ended() {
    let fixture = Fixture::new(SITES);
    let connection = fixture.open("www.example.com:443", "1.1.1.1").unwrap();
    let asks = "[[network.rules]]\nid = \"asks\"\neffect = \"ask\"\nhosts = [\"www.example.com\"]\nports = [443]\n";
    fixture.gateway.reload(&session(), policy(2, asks), "test").unwrap();
    assert_eq!(connection.account(0).unwrap_err().rule(), Some("asks"));
    drop(connection);
    let outcome = fixture.records().pop().unwrap().draft;
    assert_eq!(
        (outcome.decision.as_deref(), outcome.result.as_deref()),
        (Some("deny"), Some("denied"))
    );
}

#[test]
fn every_intent_has_an_outcome_however_its_gateway_ends() {
    let fixture = Fixture::new(SITES);
    let dropped = fixture.open("www.example.com:443", "1.1.1.1").unwrap();
    dropped.account(2).unwrap();
    drop(dropped);
    let outcome = fixture.records().pop().unwrap();
    assert_eq!(outcome.draft.result.as_deref(), Some("abandoned"));
    assert_eq!(outcome.draft.counts.as_ref().unwrap()["bytesOut"], 2);
    // A gateway that dies leaves an intent, which the next one settles.
    let intent = fixture.open("a.example.com:443", "1.1.1.1").unwrap();
    let (seq, Fixture { dir, gateway }) = (intent.receipt().seq, fixture);
    gateway.stop_shared(&session()).unwrap();
    drop((intent, gateway));
    let fixture = Fixture { gateway: Arc::new(open(&dir, SITES)), dir };
    let recovered = fixture.records().pop().unwrap();
    assert_eq!((recovered.kind, recovered.draft.of), (Kind::Recovered, Some(seq)));
    assert_eq!(recovered.draft.result.as_deref(), Some("interrupted"));
    assert_eq!(fact(&recovered, "host"), json!("a.example.com"));
}

/// A connection that was open before went on, also with the operator's credential.
#[test]
fn a_connection_of_a_session_that_denials_closed_went_on() {
    let fixture = Fixture::new(&format!("{SITES}[mount]\ndenials = 2\n"));
    let connection = fixture.open("www.example.com:443", "1.1.1.1").unwrap();
    let attempt = fixture.connect("a.example.com:443").unwrap();
    fixture.connect("other.example:443").unwrap_err();
    connection.account(1).unwrap();
    fixture.connect("other.example:443").unwrap_err();
    assert_eq!(connection.account(0).unwrap_err().rule(), Some("mount.denials"));
    assert_eq!(connection.account(1).unwrap_err().rule(), Some("mount.denials"));
    attempt.open("1.1.1.1".parse().unwrap(), Client::default()).unwrap_err();
    connection.close(end(EndReason::Denied)).unwrap();
    let outcome = fixture.records().pop().unwrap().draft;
    assert_eq!(
        (outcome.rule.as_deref(), outcome.result.as_deref()),
        (Some("mount.denials"), Some("denied"))
    );
    assert_eq!(outcome.counts.unwrap()["bytesOut"], 1);
}

/// The process that carried the bytes had ended, and 0 was recorded in both directions.
#[test]
fn bytes_of_an_end_that_nobody_reported_were_recorded_as_none() {
    let fixture = Fixture::new(SITES);
    let connection = fixture.open("www.example.com:443", "1.1.1.1").unwrap();
    connection.account(5).unwrap();
    let end = ConnectionEnd { bytes_in: None, ..ConnectionEnd::of(EndReason::Reset) };
    connection.close(end).unwrap();
    let counts = fixture.records().pop().unwrap().draft.counts.unwrap();
    assert_eq!((counts["bytesOut"], counts.get("bytesIn")), (5, None));
}

/// A program can put one into a name that a rule with `*.` allows, or that is denied.
#[test]
fn a_secret_in_the_name_of_a_host_was_recorded() {
    let secret = "acme-9hq2vtz89hq2vtz8";
    let rule = "[[secrets.rules]]\nid = \"acme\"\nregex = '''acme-[0-9a-z]{16}'''\n";
    let fixture = Fixture::new(&format!("{SITES}{rule}"));
    let connection = fixture.open(&format!("{secret}.example.com:443"), "1.1.1.1").unwrap();
    connection.close(end(EndReason::Closed)).unwrap();
    fixture.connect(&format!("{secret}.example:443")).unwrap_err();
    let records = fixture.records();
    assert_eq!(records.len(), 4);
    for record in records {
        assert!(
            !fact(&record, "host").as_str().unwrap().contains(secret.get(..9).unwrap()),
            "{record:?}"
        );
        assert_eq!(fact(&record, "port"), json!(443));
    }
}

/// It was searched for secrets after it was cut, and no rule finds half a secret.
#[test]
fn a_path_is_searched_for_secrets_before_it_is_cut() {
    let rule = "[[secrets.rules]]\nid = \"acme\"\nregex = '''acme/[0-9a-z]{4}/[0-9a-z]{9}'''\n";
    let fixture = Fixture::new(&format!("{SITES}{rule}"));
    let path = format!("{}/acme/9hq2/vtz89hq2v/x", "/ab".repeat(80));
    assert!(path.len() > 255);
    let connection = fixture.open("www.example.com:443", "1.1.1.1").unwrap();
    let end = ConnectionEnd { path: Some(&path), ..end(EndReason::Reset) };
    connection.close(end).unwrap();
    let recorded = fact(&fixture.records().pop().unwrap(), "requestPath");
    let recorded = recorded.as_str().unwrap();
    assert!(recorded.len() <= 255 && recorded.starts_with("/ab/ab"), "{recorded}");
    assert!(!recorded.contains("9hq2"), "{recorded}");
}

/// An agent's own key at an allowed host would send data to another party's account.
#[test]
fn a_host_with_a_credential_is_reached_with_that_alone_and_as_long_as_the_policy_names_it() {
    let named = |ids: &str| format!("[network]\ncredentials = [{ids}]\n{SITES}");
    let fixture = Fixture::new(&named("\"model\""));
    let gateway = &fixture.gateway;
    let host = Host::parse("api.example.com").unwrap();
    gateway.reach_with_credential(&host, "model", "http://127.0.0.1:3129");
    for port in ["443", "80"] {
        let error = fixture.connect(&format!("API.example.com:{port}")).unwrap_err();
        assert_eq!(error.rule(), Some("network.credentials"));
        assert!(error.reason().unwrap().contains("`model` alone, at http://127.0.0.1:3129"));
    }
    fixture.connect("www.example.com:443").unwrap();
    let connect = Connect { host, port: 443 };
    let with = |id| gateway.connect_with(&session(), &connect, Some(id), Client::default());
    assert_eq!(with("other").unwrap_err().rule(), Some("network.credentials"));
    let open = with("model").unwrap().open("1.1.1.1".parse().unwrap(), Client::default()).unwrap();
    open.account(1).unwrap();
    gateway.reload(&session(), policy(2, &named("")), "test").unwrap();
    assert_eq!(open.account(0).unwrap_err().rule(), Some("network.credentials"));
    open.close(ConnectionEnd { requests: Some(3), ..end(EndReason::Closed) }).unwrap();
    let outcome = fixture.records().pop().unwrap();
    assert_eq!(fact(&outcome, "credential"), json!("model"));
    assert_eq!(outcome.draft.counts.as_ref().unwrap()["requests"], 3);
    assert_eq!(outcome.draft.rule.as_deref(), Some("network.credentials"));
}

mod labels;

/// Only requests that were refused before a decision did.
#[test]
fn connections_that_are_denied_or_cut_off_make_their_agent_wait() {
    let fixture = Fixture::new(SITES);
    let (gateway, session) = (&fixture.gateway, session());
    // The wait is not over before all are counted.
    (0..20_000).for_each(|_| gateway.refusals.charge(session.agent.as_str(), &Draft::default()));
    let is_counted = |action: &dyn Fn()| {
        let (begun, before) = (Instant::now(), gateway.pause(&session));
        (0..20).for_each(|_| action());
        let after = gateway.pause(&session) + begun.elapsed();
        assert!(after >= before + 20 * Duration::from_millis(5), "{before:?} {after:?}");
    };
    is_counted(&|| drop(fixture.connect("bad.example.com:443").unwrap_err()));
    is_counted(&|| {
        let connection = fixture.open("www.example.com:443", "1.1.1.1").unwrap();
        connection.close(end(EndReason::Refused)).unwrap();
    });
}
