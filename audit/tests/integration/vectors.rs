//! The committed vectors: this code makes them, and the verifier's results are those of their
//! `expected.json`. `PORTCULLIS_WRITE_VECTORS=1` writes them anew.
#![expect(clippy::disallowed_methods, reason = "reads and writes the committed vectors")]

use std::{collections::BTreeMap, fs, path::Path};

use portcullis_audit::{Directory, Draft, Hash, Kind, Receipt, Report, Source, Verifier};
use serde_json::{Value, json};

use crate::support::{Log, Memory, of_lines};

mod signed;

struct Vector {
    name: &'static str,
    about: &'static str,
    files: Memory,
    heads: Vec<Receipt>,
}

fn verify(source: &impl Source, heads: &[Receipt]) -> Report {
    let verifier = heads
        .iter()
        .fold(Verifier::new(source), |verifier, head| verifier.expect(head.seq, head.leaf));
    verifier.run().unwrap()
}

fn expected(vector: &Vector) -> Value {
    let report = verify(&vector.files, &vector.heads);
    let head = |receipt: &Receipt| json!({ "seq": receipt.seq, "leaf": receipt.leaf });
    json!({
        "about": vector.about,
        "receipts": vector.heads.iter().map(head).collect::<Vec<_>>(),
        "valid": report.is_valid(),
        "records": report.is_valid().then_some(report.records),
        "signed": report.signed.records,
        "head": report.head.as_ref().filter(|_| report.is_valid()).map(head),
        "damage": report.damages.first().map(|damage| json!({
            "kind": damage.kind,
            "segment": damage.segment,
            "seq": damage.seq,
            "line": damage.line,
        })),
        "warnings": report.warnings.iter().map(|warning| warning.kind).collect::<Vec<_>>(),
    })
}

/// Returns the files of a vector by their path in its directory.
fn rendered(vector: &Vector) -> BTreeMap<String, Vec<u8>> {
    let mut files: BTreeMap<_, _> =
        vector.files.0.iter().map(|(name, bytes)| (format!("log/{name}"), bytes.clone())).collect();
    let json = serde_json::to_string_pretty(&expected(vector)).unwrap() + "\n";
    files.insert("expected.json".to_owned(), json.into_bytes());
    files
}

fn read_tree(root: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            read_tree(&entry.path(), &format!("{name}/"), files);
        } else {
            files.insert(name, fs::read(entry.path()).unwrap());
        }
    }
}

#[test]
fn the_committed_vectors_are_current_and_verify_as_they_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let vectors = vectors();
    if std::env::var_os("PORTCULLIS_WRITE_VECTORS").is_some() {
        let _absent = fs::remove_dir_all(&root);
        for vector in &vectors {
            for (path, bytes) in rendered(vector) {
                let path = root.join(vector.name).join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
        }
    }
    let mut committed = BTreeMap::new();
    read_tree(&root, "", &mut committed);
    let mut current = BTreeMap::new();
    for vector in &vectors {
        for (path, bytes) in rendered(vector) {
            let again = current.insert(format!("{}/{path}", vector.name), bytes);
            assert!(again.is_none(), "two vectors are called {}", vector.name);
        }
    }
    assert_eq!(
        committed.keys().collect::<Vec<_>>(),
        current.keys().collect::<Vec<_>>(),
        "stale vectors: run with PORTCULLIS_WRITE_VECTORS=1"
    );
    for (path, bytes) in &current {
        assert!(committed[path] == *bytes, "{path} is stale: run with PORTCULLIS_WRITE_VECTORS=1");
    }
    for vector in &vectors {
        let from_disk = Directory::new(root.join(vector.name).join("log"));
        let report = verify(&from_disk, &vector.heads);
        assert_eq!(report, verify(&vector.files, &vector.heads), "{}", vector.name);
        assert_eq!(report.is_valid(), vector.name.starts_with("good-"), "{}", vector.name);
        if let Some(damage) = report.damages.first() {
            assert!(vector.name.starts_with(damage.kind.as_str()), "{} is {damage}", vector.name);
        }
    }
}

/// Returns the lines with a change.
fn changed(change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Memory {
    let mut lines = Log::six().lines();
    change(&mut lines);
    of_lines(lines)
}

fn replaced(line: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = str::from_utf8(line).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    text.replacen(from, to, 1).into_bytes()
}

/// Changes the last record, so that no link breaks.
fn last(from: &str, to: &str) -> Memory {
    changed(|lines| {
        let line = lines.pop().unwrap();
        lines.push(replaced(&line, from, to));
    })
}

fn full() -> Draft {
    let text = |text: &str| Some(text.to_owned());
    Draft {
        boot: text("00112233445566778899aabbccddeeff"),
        session: text("s-1"),
        agent: text("coder"),
        user: text("alice"),
        transport: text("acp"),
        op: text("rename"),
        path: text("src/\u{1b}[31m\"old\"\n.rs"),
        resolved: text("lib/żółć 日本.rs"),
        to: text("src/new.rs"),
        temp: text(".portcullis-5e1f"),
        decision: text("allow"),
        would_deny: Some(true),
        rule: text("allowedPaths.write"),
        policy: text("default"),
        policy_sha256: Some(Hash::of(b"policy").to_string()),
        line: Some(12),
        reason: text("sources are the agent's"),
        bytes: Some(18_446_744_073_709_551_615),
        before: Some(Hash::of(b"before")),
        after: Some(Hash::of(b"after")),
        backup: text("20261121T080000.000000Z-3"),
        source: text("editor"),
        findings: Some(vec![json!({ "rule": "acme-token", "line": 3 })]),
        counts: Some([("entries".to_owned(), 2), ("hidden".to_owned(), 1)].into()),
        facts: Some([("enforcement".to_owned(), json!({ "landlock": 7 }))].into()),
        of: None,
        result: text("ok"),
    }
}

fn good() -> Vec<Vector> {
    let vector = |name, about, files: Memory| Vector { name, about, files, heads: Vec::new() };
    let mut list = vec![
        vector(
            "good-empty",
            "a log before its first record",
            Memory([("lock".to_owned(), Vec::new())].into()),
        ),
        vector("good-six", "a start, a read, a write, a denial, a stop", Log::six().files),
    ];
    let mut log = Log::default();
    log.push(Kind::Start, full());
    let intent = log.push(Kind::Intent, full());
    log.push(Kind::Outcome, Draft { of: Some(intent.seq), ..full() });
    for kind in [Kind::Policy, Kind::Approval, Kind::Checkpoint, Kind::Recovered, Kind::Stop] {
        log.push(kind, full());
    }
    list.push(vector("good-all-fields", "every kind and every field", log.files));

    let mut log = Log::default();
    log.push(Kind::Start, Draft::default());
    let intent = log.push(Kind::Intent, Draft::default());
    log.read("between");
    log.outcome(Kind::Recovered, intent.seq);
    list.push(vector(
        "good-recovered",
        "an intent of which a recovery recorded the outcome",
        log.files,
    ));

    let mut log = Log::six();
    log.push(Kind::Intent, Draft::default());
    list.push(vector("good-missing-outcome", "an intent without outcome: a warning", log.files));

    let mut log = Log::six();
    log.push_at(Kind::Start, Draft::default(), "2026-11-21T07:59:59.999999Z");
    list.push(vector("good-clock-back", "the clock was set back: a warning", log.files));

    list.push(vector(
        "good-future",
        "a kind and a field that a reader of version 1 does not know, and other files",
        {
            let mut files =
                last("\"kind\":\"stop\"", "\"kind\":\"novel\",\"new\":[{\"a\":1,\"a\":2}]");
            files.0.insert("notes.txt".to_owned(), Vec::new());
            files
        },
    ));
    list.push(vector(
        "good-spelling",
        "blanks, escapes and another order of fields: the bytes are hashed, not the meaning",
        last(
            "{\"v\":1,\"seq\":5,\"kind\":\"stop\",",
            "{ \"\\u0073eq\" : 5,\t\"k\\u0069nd\":\"st\\u006fp\",\"v\":1, ",
        ),
    ));
    list.push(vector(
        "good-limits",
        "the deepest nesting, the largest integer, a pair of surrogates, large and small numbers",
        last("\"kind\":\"stop\"", &{
            let deep = format!("{}{}", "[".repeat(125), "]".repeat(125));
            let most = u64::MAX;
            // The largest double, with all digits.
            let largest = format!("{:.0}", f64::MAX);
            format!(
                "\"kind\":\"stop\",\"bytes\":{most},\"facts\":{{\"a\":{deep},\"[{{\\\"\":\"\\ud83d\\ude00\"}},\
                 \"new\":[-0,1e308,1e-999,{most}0,1.797693134862315807e308,{largest}]"
            )
        }),
    ));
    let six = Log::six();
    list.push(Vector {
        name: "good-receipts",
        about: "a log that holds what two receipts prove",
        heads: vec![six.receipts[2].clone(), six.receipts[5].clone()],
        files: six.files,
    });
    list.push(vector(
        "good-last-changed",
        "the last record was changed: nothing in the log itself can show that",
        last("\"kind\":\"stop\"", "\"kind\":\"start\""),
    ));
    list
}

fn chains() -> Vec<Vector> {
    let vector = |name, about, files: Memory| Vector { name, about, files, heads: Vec::new() };
    let mut other = Log { salt: 1, ..Log::default() };
    for path in ["a", "b", "c", "d", "e", "f"] {
        other.read(path);
    }
    let six = Log::six;
    vec![
        vector(
            "broken-link-changed",
            "a denial became an allowance",
            changed(|lines| lines[4] = replaced(&lines[4], "\"deny\"", "\"allow\"")),
        ),
        vector(
            "broken-link-first",
            "`prev` of the first record is not zero",
            changed(|lines| lines[0] = replaced(&lines[0], "\"prev\":\"00", "\"prev\":\"01")),
        ),
        vector(
            "broken-link-spliced",
            "the end of another log on the beginning of this one",
            of_lines(six().lines()[..3].iter().chain(&other.lines()[3..])),
        ),
        vector(
            "broken-link-blank",
            "a blank after a comma, the same JSON otherwise",
            changed(|lines| lines[1] = replaced(&lines[1], ",\"seq\"", ", \"seq\"")),
        ),
        vector(
            "wrong-sequence-removed",
            "a record was removed",
            changed(|lines| drop(lines.remove(4))),
        ),
        vector(
            "wrong-sequence-headless",
            "the first record was removed",
            changed(|lines| drop(lines.remove(0))),
        ),
        vector(
            "wrong-sequence-repeated",
            "a record stands twice",
            changed(|lines| lines.insert(2, lines[1].clone())),
        ),
        vector("wrong-sequence-swapped", "two records swapped", changed(|lines| lines.swap(1, 4))),
        Vector {
            name: "wrong-head-rewritten",
            about: "a log written anew with whole links: a receipt of the old one shows it",
            files: other.files,
            heads: vec![six().receipts[3].clone()],
        },
        Vector {
            name: "wrong-head-last-changed",
            about: "the last record was changed: its receipt shows it",
            files: last("\"kind\":\"stop\"", "\"kind\":\"start\""),
            heads: vec![six().receipts[5].clone()],
        },
        Vector {
            name: "missing-head-cut",
            about: "the last two records were cut off: a receipt shows it",
            files: of_lines(&six().lines()[..4]),
            heads: vec![six().receipts[1].clone(), six().receipts[5].clone()],
        },
        vector("wrong-reference-decision", "an outcome of a read", {
            let mut log = Log::six();
            log.outcome(Kind::Outcome, 1);
            log.files
        }),
        vector("wrong-reference-twice", "a second outcome of one intent", {
            let mut log = Log::six();
            log.outcome(Kind::Recovered, 2);
            log.files
        }),
        vector("wrong-reference-later", "an outcome of an intent to come", {
            let mut log = Log::six();
            log.outcome(Kind::Outcome, 7);
            log.push(Kind::Intent, Draft::default());
            log.files
        }),
    ]
}

fn files() -> Vec<Vector> {
    let vector = |name, about, files: Memory| Vector { name, about, files, heads: Vec::new() };
    let six = || Log::six().files;
    let cut = |bytes: usize| {
        let mut files = six();
        let segment = files.0.get_mut("seg-000000.jsonl").unwrap();
        segment.truncate(segment.len() - bytes);
        files
    };
    let with = |name: &str, bytes: &[u8]| {
        let mut files = six();
        files.0.insert(name.to_owned(), bytes.to_vec());
        files
    };
    let rest = Log::six().lines().join(&b'\n');
    vec![
        vector("torn-tail-middle", "the last line ends in its middle", cut(100)),
        vector("torn-tail-newline", "only the last newline is missing", cut(1)),
        vector("torn-tail-zeros", "zero bytes after the last newline", {
            let mut files = six();
            files.0.get_mut("seg-000000.jsonl").unwrap().extend([0; 64]);
            files
        }),
        vector(
            "missing-segment",
            "the first segment is not there",
            Memory([("seg-000001.jsonl".to_owned(), [&rest[..], b"\n"].concat())].into()),
        ),
        vector(
            "short-segment",
            "a second segment though the first is not full",
            with("seg-000001.jsonl", b""),
        ),
        vector("unterminated-line", "a first segment that ends within a line", {
            let mut files = cut(1);
            files.0.insert("seg-000001.jsonl".to_owned(), Vec::new());
            files
        }),
        vector("unexpected-file", "another spelling of a segment's name", with("seg-0.jsonl", b"")),
    ]
}

fn lines() -> Vec<Vector> {
    let vector = |name, about, files: Memory| Vector { name, about, files, heads: Vec::new() };
    let at =
        |name, about, line: &[u8]| vector(name, about, changed(|lines| lines[3] = line.to_vec()));
    let facts = |value: &str| {
        last("\"kind\":\"stop\"", &format!("\"kind\":\"stop\",\"facts\":{{\"a\":{value}}}"))
    };
    vec![
        at("malformed-record-empty", "an empty line", b""),
        at("malformed-record-array", "a line that is an array", b"[1,2]"),
        at("malformed-record-two", "two objects on a line", b"{} {}"),
        at("malformed-record-utf8", "bytes that are not UTF-8", b"{\"v\":1,\"path\":\"\xff\"}"),
        at("malformed-record-json", "no JSON", b"{\"v\":1,}"),
        vector(
            "malformed-record-counts",
            "a count below zero, whose key stands once more",
            last("\"kind\":\"stop\"", "\"kind\":\"stop\",\"counts\":{\"x\":-1,\"x\":1}"),
        ),
        at("malformed-record-missing", "no field but `v`", b"{\"v\":1}"),
        vector(
            "malformed-record-crlf",
            "a carriage return before the newline",
            last("\"}", "\"}\r"),
        ),
        vector("malformed-record-blank", "a blank before the object", last("{\"v\"", " {\"v\"")),
        vector("malformed-record-bom", "a byte order mark", last("{\"v\"", "\u{feff}{\"v\"")),
        vector(
            "malformed-record-float",
            "a `seq` with a fraction",
            last("\"seq\":5", "\"seq\":5.0"),
        ),
        vector("malformed-record-upper", "a hash in upper case", {
            changed(|lines| {
                let line = String::from_utf8(lines.pop().unwrap()).unwrap();
                let (rest, prev) = line.split_once("\"prev\":").unwrap();
                let line = format!("{rest}\"prev\":{}", prev.to_uppercase());
                lines.push(line.into_bytes());
            })
        }),
        vector("malformed-record-time", "a time without microseconds", last(".000000Z", "Z")),
        vector(
            "malformed-record-time-date",
            "a day that the month does not have",
            last("2026-11-21T", "2026-11-31T"),
        ),
        vector(
            "malformed-record-time-leap-day",
            "a leap day in a year without one",
            last("2026-11-21T", "2026-02-29T"),
        ),
        vector(
            "malformed-record-time-leap-second",
            "a leap second, which the system's clock does not know",
            last(":05.000000Z", ":60.000000Z"),
        ),
        vector(
            "malformed-record-null",
            "a field that is null instead of absent",
            last("\"kind\":\"stop\"", "\"kind\":\"stop\",\"path\":null"),
        ),
        vector(
            "malformed-record-type",
            "a `path` that is a number",
            last("\"kind\":\"stop\"", "\"kind\":\"stop\",\"path\":7"),
        ),
        vector(
            "malformed-record-outcome",
            "an outcome that does not say of what",
            last("\"kind\":\"stop\"", "\"kind\":\"outcome\""),
        ),
        vector(
            "malformed-record-surrogate",
            "half a surrogate pair in a text",
            facts(r#""\ud800""#),
        ),
        vector(
            "malformed-record-surrogate-key",
            "half a surrogate pair in a key",
            facts(r#"{"\udfff":1}"#),
        ),
        vector("malformed-record-infinite", "a number past the largest double", facts("1e999")),
        vector("malformed-record-infinite-integer", "the same without an exponent", {
            facts(&"9".repeat(309))
        }),
        vector("malformed-record-deep", "128 objects and arrays within one another", {
            facts(&format!("{}{}", "[".repeat(126), "]".repeat(126)))
        }),
        vector(
            "malformed-record-minus",
            "a `bytes` of minus zero",
            last("\"kind\":\"stop\"", "\"kind\":\"stop\",\"bytes\":-0"),
        ),
        vector(
            "malformed-record-large",
            "a `bytes` of 2^64",
            last("\"kind\":\"stop\"", "\"kind\":\"stop\",\"bytes\":18446744073709551616"),
        ),
        vector("duplicate-key", "a key twice", last("\"seq\":5", "\"seq\":5,\"seq\":5")),
        vector(
            "duplicate-key-escaped",
            "a key twice, once with an escape",
            last("\"seq\":5", "\"seq\":5,\"s\\u0065q\":5"),
        ),
        vector(
            "duplicate-key-unknown",
            "a key twice that version 1 does not know",
            last("\"seq\":5", "\"seq\":5,\"new\":1,\"new\":2"),
        ),
        vector("duplicate-key-prev", "`prev` twice, the first before `nonce`", {
            last("\"nonce\"", &format!("\"prev\":\"{}\",\"nonce\"", Hash::ZERO))
        }),
        vector("unsupported-version", "a record of version 2", last("\"v\":1", "\"v\":2")),
    ]
}

fn vectors() -> Vec<Vector> {
    [good(), chains(), files(), lines(), signed::vectors()].into_iter().flatten().collect()
}
