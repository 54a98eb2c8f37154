//! Vectors with checkpoints.

use super::*;
use crate::support::key;

/// The name of a key without a known private key.
const SMALL: &str = "portcullis/small";
/// The neutral point as a key, and a signature (R is the base point, S is 1) that is then valid for
/// every text.
const SMALL_ORDER: (&str, &str) = (
    "portcullis/small+c2a904c1+AQEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "wqkEwVhmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
);
/// The same point with a coordinate that is not reduced.
const OTHER_ENCODING: &str =
    "portcullis/small+984d290d+Ae7///////////////////////////////////////9/";

/// Returns the vectors with checkpoints, by the keys that the log's directory names.
pub(super) fn vectors() -> Vec<Vector> {
    let vector = |name, about, files: Memory| Vector { name, about, files, heads: Vec::new() };
    let log = || Log::signed(1, "last");
    // A gateway that signs started and stopped in order; its checkpoints are gone.
    let stopped = || {
        let mut log = Log::default();
        log.start(&key(1));
        log.push(Kind::Stop, Draft::default());
        log.files.0.insert("key.vkey".to_owned(), format!("{}\n", key(1).public()).into_bytes());
        log
    };
    let mut rewritten = Log::default();
    rewritten.start(&key(1));
    for path in ["a", "b", "c", "d", "e", "f", "g"] {
        rewritten.read(path);
    }
    let with = |name: &str, bytes: Vec<u8>| {
        let mut files = log().files;
        files.0.insert(name.to_owned(), bytes);
        files
    };
    // The newest checkpoint with this number of signatures and additional text.
    let note = |more: &str, signatures: usize| {
        let text = log().head(7, &key(1)).text().to_owned() + more;
        let lines = key(1).sign(&text) + &key(3).sign(&text).repeat(signatures - 1);
        format!("{text}\n{lines}").into_bytes()
    };
    vec![
        vector("good-signed", "two checkpoints, the newest of seven of eight records", log().files),
        vector("good-cosigned", "a signature that nobody knows is beside the log's own", {
            let own = log().files.0["checkpoint"].clone();
            let text = log().head(7, &key(1)).text().to_owned();
            with("checkpoint", [own, key(3).sign(&text).into_bytes()].concat())
        }),
        vector("good-two-keys", "a former key signed the newest checkpoint first", {
            let mut files = log().files;
            let keys = format!("{}\n{}\n", key(1).public(), key(2).public());
            files.0.insert("key.vkey".to_owned(), keys.into_bytes());
            let text = log().head(7, &key(1)).text().to_owned();
            let note = format!("{text}\n{}{}", key(2).sign(&text), key(1).sign(&text));
            files.0.insert("checkpoint".to_owned(), note.into_bytes());
            files
        }),
        vector("good-missing-checkpoint", "a record names the key, but nothing is signed", {
            let mut files = log().files;
            files.0.retain(|name, _| !name.starts_with("checkpoint"));
            files
        }),
        vector(
            "wrong-root-rewritten",
            "the log was written anew with whole links under its checkpoints",
            with("seg-000000.jsonl", rewritten.files.0["seg-000000.jsonl"].clone()),
        ),
        vector("missing-head-checkpoint", "records that a checkpoint covers were cut off", {
            let lines = log().lines();
            with("seg-000000.jsonl", of_lines(&lines[..6]).0["seg-000000.jsonl"].clone())
        }),
        vector("bad-checkpoint-changed", "the newest checkpoint says another size", {
            let note = String::from_utf8(log().files.0["checkpoint"].clone()).unwrap();
            with("checkpoint", note.replacen("\n7\n", "\n6\n", 1).into_bytes())
        }),
        vector(
            "bad-checkpoint-key",
            "another public key beside the checkpoints",
            with("key.vkey", format!("{}\n", key(2).public()).into_bytes()),
        ),
        vector(
            "bad-checkpoint-key-control",
            "a control character before the public key",
            with("key.vkey", format!("\u{1c}{}\n", key(1).public()).into_bytes()),
        ),
        vector(
            "bad-checkpoint-no-keys",
            "an empty file of public keys",
            with("key.vkey", Vec::new()),
        ),
        vector(
            "bad-checkpoint-control",
            "a control character in what the key signed",
            with("checkpoint", note("more\tof it\n", 1)),
        ),
        vector(
            "bad-checkpoint-blank",
            "an empty line in what the key signed",
            with("checkpoint", note("\nmore\n", 1)),
        ),
        vector("bad-checkpoint-small-order", "a key under which one signature is of any text", {
            let (line, signature) = SMALL_ORDER;
            let text = Log::six().head(6, &key(1)).text().replacen("example.com/log-1", SMALL, 1);
            let note = format!("{text}\n\u{2014} {SMALL} {signature}\n");
            let mut files = Log::six().files;
            files.0.insert("key.vkey".to_owned(), format!("{line}\n").into_bytes());
            files.0.insert("checkpoint".to_owned(), note.into_bytes());
            files
        }),
        vector(
            "bad-checkpoint-key-encoding",
            "a public key that is another spelling of a point",
            with("key.vkey", format!("{OTHER_ENCODING}\n").into_bytes()),
        ),
        vector("bad-checkpoint-many", "101 signatures", with("checkpoint", note("", 101))),
        vector(
            "good-extended",
            "a line that extends the newest checkpoint, and 100 signatures",
            with("checkpoint", note("more of it\n", 100)),
        ),
        vector("missing-key-checkpoint", "kept checkpoints, and no public key", {
            let mut files = Log::six().files;
            let note = log().head(7, &key(1)).to_string().into_bytes();
            files.0.insert("checkpoints/100".to_owned(), note.clone());
            files.0.insert("checkpoints/9".to_owned(), note);
            files
        }),
        vector("missing-key-record", "a record names the key, which is gone with all it signed", {
            of_lines(log().lines())
        }),
        vector(
            "missing-checkpoint-stopped",
            "a gateway that signs stopped in order, and nothing is signed",
            {
                let mut log = stopped();
                log.read("later");
                log.files
            },
        ),
        vector(
            "good-missing-checkpoint-recovered",
            "the same, and an operator had the log go on: a warning",
            {
                let mut log = stopped();
                let facts = [("what".to_owned(), "unsigned".into())];
                let draft = Draft { facts: Some(facts.into()), ..Draft::default() };
                log.push(Kind::Recovered, draft);
                log.files
            },
        ),
        vector(
            "wrong-root-behind-empty",
            "the log was written anew under its kept checkpoints, the first of which is of no \
             records",
            {
                let mut files =
                    with("seg-000000.jsonl", rewritten.files.0["seg-000000.jsonl"].clone());
                files.0.remove("checkpoint");
                files
                    .0
                    .insert("checkpoints/0".to_owned(), log().head(0, &key(1)).to_string().into());
                files
            },
        ),
        vector("bad-checkpoint-empty", "a file of that name is no checkpoint of no records", {
            with("checkpoints/0", Vec::new())
        }),
        vector(
            "malformed-record-key",
            "a line that not every reader can read names another key",
            {
                let mut log = log();
                let line = String::from_utf8(log.lines()[0].clone()).unwrap();
                let (own, other) = (key(1).public().to_string(), key(2).public().to_string());
                let line =
                    line.replace(&own, &other).replace("\"facts\":{", "\"facts\":{\"a\":1e999,");
                let lines =
                    std::iter::once(line.into_bytes()).chain(log.lines().into_iter().skip(1));
                let files = of_lines(lines);
                log.files.0.extend(files.0);
                log.files
            },
        ),
        vector("wrong-key-signed", "a log that names one key, signed anew with another", {
            let mut log = log();
            log.files.0.retain(|name, _| !name.starts_with("checkpoint"));
            log.sign(&key(2));
            log.files
        }),
    ]
}
