//! Checkpoints, proofs, receipts and retention, as a gateway makes them and as
//! a reviewer with Python alone checks them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use portcullis_audit::{
    Chain, Checkpoint, Claim, Draft, Hash, Kind, Note, Prepared, PrivateKey, Proof, Segment,
};
use serde_json::{Value, json};

use crate::{
    common::{Done, World, done},
    shipping::the_copy,
};

mod compression;
mod keys;
mod pruning;
mod receipts;
mod witnesses;

/// Python without any packages.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// `audit/verify.py ARGS…`
pub(crate) fn second(args: &[&str]) -> Done {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("audit/verify.py");
    done(Command::new(PYTHON).arg("-I").arg(script).args(args).output().unwrap())
}

fn audit(world: &World) -> PathBuf {
    world.state().join("audit")
}

/// The text of a path.
fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a log of `count` records with nothing but the audit crate.
pub(crate) fn write_log(world: &World, count: u64, time: &str) -> Vec<String> {
    write_log_at(world, count, |_seq| time)
}

/// The same with each record's time.
fn write_log_at<'a>(world: &World, count: u64, time: impl Fn(u64) -> &'a str) -> Vec<String> {
    std::fs::create_dir_all(audit(world)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(world.state(), mode).unwrap();
    let mut chain = Chain::new();
    let mut leaves = Vec::new();
    let mut lines = Vec::new();
    for seq in 0..count {
        let draft = Draft {
            op: Some("read".to_owned()),
            path: Some(format!("src/file-{}.rs", seq % 100)),
            decision: Some("allow".to_owned()),
            ..Draft::default()
        };
        let record = Prepared::new(Kind::Decision, &draft, u128::from(seq).to_be_bytes()).unwrap();
        leaves.push(chain.append(&record, time(seq), &mut lines).leaf.to_string());
        if chain.next().is_multiple_of(65_536) || chain.next() == count {
            let name = Segment::of(seq).to_string();
            std::fs::write(audit(world).join(name), &lines).unwrap();
            lines.clear();
        }
    }
    leaves
}

#[test]
fn a_gateway_signs_what_it_wrote_and_both_verifiers_agree() {
    let world = World::new();
    world.file("a", "x");
    for _ in 0..3 {
        world.fs(&["read", "a"]).ok();
        world.write("b", "y").ok();
    }
    let report = world.run(&["audit", "verify", "--json", "--policies", "--backups"]).ok().json();
    let count = world.records().len();
    assert_eq!((&report["records"], &report["signed"]["records"]), (&json!(count), &json!(count)));
    assert_eq!(report["warnings"], json!([]));
    assert_eq!(report["attached"]["backups"], 2);
    let other = second(&["log", text(&audit(&world))]).ok().json();
    assert_eq!(other["head"]["leaf"], report["head"]["leaf"]);
    assert_eq!((&other["records"], &other["signed"]), (&json!(count), &json!(count)));
    let start = &world.records()[0];
    let key = world.run(&["audit", "key"]).ok();
    assert_eq!(start["facts"]["checkpointKey"], key.text().trim());
    let mode = std::os::unix::fs::MetadataExt::mode(
        &std::fs::metadata(world.state().join("keys/checkpoint.key")).unwrap(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn both_verifiers_answer_every_vector_alike() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("audit/vectors");
    let mut seen = 0;
    for entry in std::fs::read_dir(vectors).unwrap() {
        let directory = entry.unwrap().path();
        let expected = std::fs::read(directory.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let log = directory.join("log");
        let mut args = vec!["log".to_owned(), text(&log).to_owned()];
        for receipt in expected["receipts"].as_array().unwrap() {
            let leaf = receipt["leaf"].as_str().unwrap();
            args.extend(["--head".to_owned(), format!("{}:{leaf}", receipt["seq"])]);
        }
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let answer = second(&args);
        if expected["valid"] == true {
            let json = answer.ok().json();
            for field in ["records", "signed", "head"] {
                assert_eq!(json[field], expected[field], "{directory:?}");
            }
        } else {
            assert_eq!(answer.code, 5, "{directory:?}: {answer:?}");
            assert_eq!(answer.json(), expected["damage"], "{directory:?}");
        }
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn a_log_of_200_000_records_is_proved_record_by_record() {
    let world = World::new();
    let leaves = write_log(&world, 200_000, "2026-01-01T00:00:00.000000Z");
    let first = world.run(&["audit", "checkpoint"]).ok();
    assert_eq!(first.text().lines().nth(1), Some("200000"));
    let kept = world.base().join("kept");
    std::fs::write(&kept, &first.stdout).unwrap();
    let key = world.base().join("log.vkey");
    std::fs::write(&key, &world.run(&["audit", "key"]).ok().stdout).unwrap();
    let roots = std::fs::read_to_string(audit(&world).join("roots")).unwrap();
    assert_eq!(roots.lines().count(), 3);

    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let report =
        world.run(&["audit", "verify", "--json", "--key", text(&key), "--head", text(&kept)]);
    let report = report.ok().json();
    assert_eq!(
        (&report["records"], &report["signed"]["records"]),
        (&json!(200_003), &json!(200_003))
    );
    let other = second(&["log", text(&audit(&world)), "--key", text(&key)]).ok().json();
    assert_eq!((&other["records"], &other["signed"]), (&json!(200_003), &json!(200_003)));
    assert_eq!(other["head"]["leaf"], report["head"]["leaf"]);

    let proof = world.base().join("proof");
    for seq in [0_usize, 1, 65_535, 65_536, 131_072, 199_999] {
        std::fs::write(&proof, &world.run(&["audit", "prove", &seq.to_string()]).ok().stdout)
            .unwrap();
        let holds =
            world.run(&["audit", "check-proof", text(&proof), "--key", text(&key), "--json"]);
        let holds = holds.ok().json();
        assert_eq!((&holds["seq"], &holds["leaf"]), (&json!(seq), &json!(leaves[seq])));
        let holds = second(&["proof", text(&proof), "--key", text(&key)]).ok().json();
        assert_eq!((&holds["seq"], &holds["size"]), (&json!(seq), &json!(200_003)));
    }
    // Another record under the same proof.
    let forged = std::fs::read_to_string(&proof).unwrap();
    let (head, rest) = forged.split_once("\nindex ").unwrap();
    let (_, extra) = head.split_once("extra ").unwrap();
    let forged =
        format!("{}extra B{}\nindex {rest}", &head[..head.len() - extra.len() - 6], &extra[1..]);
    std::fs::write(&proof, forged).unwrap();
    assert_eq!(world.run(&["audit", "check-proof", text(&proof), "--key", text(&key)]).code, 5);
    assert_eq!(second(&["proof", text(&proof), "--key", text(&key)]).code, 5);

    std::fs::write(&proof, &world.run(&["audit", "prove", "--from", "200000"]).ok().stdout)
        .unwrap();
    let args = [text(&proof), "--key", text(&key), "--old", text(&kept)];
    world.run(&[&["audit", "check-proof"], &args[..]].concat()).ok();
    second(&[&["proof"], &args[..]].concat()).ok();
    // From another size than that of the older checkpoint.
    std::fs::write(&proof, &world.run(&["audit", "prove", "--from", "199999"]).ok().stdout)
        .unwrap();
    assert_eq!(world.run(&[&["audit", "check-proof"], &args[..]].concat()).code, 5);
    assert_eq!(second(&[&["proof"], &args[..]].concat()).code, 5);
}

/// `verify.py` accepted every form of a number that Python does.
#[test]
fn an_index_of_a_proof_is_spelled_in_one_way() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let key = audit(&world).join("key.vkey");
    let proof = world.base().join("proof");
    let right = world.run(&["audit", "prove", "1"]).ok().text().to_owned();
    for (index, code) in
        [("1", 0), ("01", 5), ("+1", 5), ("0_1", 5), ("\u{661}", 5), ("  1", 5), ("1 ", 5)]
    {
        let text_of = right.replacen("\nindex 1\n", &format!("\nindex {index}\n"), 1);
        std::fs::write(&proof, text_of).unwrap();
        let args = [text(&proof), "--key", text(&key)];
        let first = world.run(&[&["audit", "check-proof"], &args[..]].concat());
        let other = second(&[&["proof"], &args[..]].concat());
        assert_eq!((first.code, other.code), (code, code), "{index:?}: {first:?} {other:?}");
    }
}

/// A proof of a line that is no record held, if a key of the log had signed it.
#[test]
fn a_line_that_is_no_record_is_not_proved() {
    let world = World::new();
    let good = write_log(&world, 1, "2026-01-01T00:00:00.000000Z");
    let line = std::fs::read_to_string(audit(&world).join("seg-000000.jsonl")).unwrap();
    let line = line.trim_end();
    assert_eq!(Hash::leaf(line.as_bytes()).to_string(), good[0]);
    let key = PrivateKey::from_seed("example.com/log", [7; 32]).unwrap();
    let paths = ["proof", "key"].map(|name| world.base().join(name));
    std::fs::write(&paths[1], format!("{}\n", key.public())).unwrap();
    let longest = line.len() + portcullis_audit::MAX_LINE;
    let long = |length: usize| line.replacen('{', &format!("{{{}", " ".repeat(length)), 1);
    for (line, code) in [
        (line.to_owned(), 0),
        (String::new(), 5),
        ("the agent did nothing wrong".to_owned(), 5),
        (r#"{"transfer":"1000000"}"#.to_owned(), 5),
        (line.replacen("\"v\":1", "\"v\":2", 1), 5),
        (line.replacen("\"seq\":0", "\"seq\":1", 1), 5),
        (line.replacen("\"seq\":0", "\"seq\":7,\"seq\":0", 1), 5),
        (line.replacen("\"nonce\":\"0", "\"nonce\":\"A", 1), 5),
        (format!("{line}\n"), 5),
        (long(longest - 2 * line.len()), 0),
        (long(longest - 2 * line.len() + 1), 5),
        (long(longest * 3 / 2), 5),
    ] {
        std::fs::write(&paths[0], proof_of_line(&key, line.as_bytes(), 0)).unwrap();
        let args = [text(&paths[0]), "--key", text(&paths[1])];
        let first = world.run(&[&["audit", "check-proof"], &args[..]].concat());
        let other = second(&[&["proof"], &args[..]].concat());
        let shown = &line[..line.len().min(200)];
        assert_eq!((first.code, other.code), (code, code), "{shown:?}: {first:?} {other:?}");
    }
}

/// The proof that `line` is the only one of a log, signed with its key.
pub(crate) fn proof_of_line(key: &PrivateKey, line: &[u8], index: u64) -> String {
    let note = signed(key, 1, Hash::leaf(line));
    let claim = Claim::Inclusion { index, line: Some(line.to_vec()) };
    Proof { claim, hashes: Vec::new(), note }.to_string()
}

/// `verify.py` took hashes of any length, so a party with the key could prove two records of one
/// index, and that the log only grew between them.
#[test]
fn a_hash_of_a_proof_has_32_bytes() {
    let world = World::new();
    write_log(&world, 2, "2026-01-01T00:00:00.000000Z");
    let lines = std::fs::read_to_string(audit(&world).join("seg-000000.jsonl")).unwrap();
    let line = lines.lines().nth(1).unwrap().as_bytes();
    let key = PrivateKey::from_seed("example.com/log", [7; 32]).unwrap();
    let paths = ["proof", "older", "key"].map(|name| world.base().join(name));
    let [proof, older, public] = [0, 1, 2].map(|number| text(&paths[number]));
    std::fs::write(public, format!("{}\n", key.public())).unwrap();
    let both = |args: &[&str]| {
        let first = world.run(&[&["audit", "check-proof"], args].concat());
        (first, second(&[&["proof"], args].concat()))
    };
    for (length, code) in [(32, 0), (31, 5), (33, 5), (64, 5), (96, 5)] {
        std::fs::write(proof, proof_with_a_hash_of(&key, line, length)).unwrap();
        let (first, other) = both(&[proof, "--key", public]);
        assert_eq!((first.code, other.code), (code, code), "{length}: {first:?} {other:?}");

        let root = Hash::leaf(line);
        std::fs::write(older, signed(&key, 1, root).to_string()).unwrap();
        let note = signed(&key, 2, node(root.as_bytes(), &vec![0; length]));
        let claim = Claim::Consistency { old: 1 };
        let growth = Proof { claim, hashes: Vec::new(), note }.to_string();
        let hash = base64_of_zeros(length);
        std::fs::write(proof, growth.replacen("old 1\n", &format!("old 1\n{hash}\n"), 1)).unwrap();
        let (first, other) = both(&[proof, "--key", public, "--old", older]);
        assert_eq!((first.code, other.code), (code, code), "{length}: {first:?} {other:?}");
    }
}

/// The proof that `line` is the second of two records, signed with the log's key. The hash of the
/// first one is `length` zeros.
pub(crate) fn proof_with_a_hash_of(key: &PrivateKey, line: &[u8], length: usize) -> String {
    let note = signed(key, 2, node(&vec![0; length], Hash::leaf(line).as_bytes()));
    let claim = Claim::Inclusion { index: 1, line: Some(line.to_vec()) };
    let proof = Proof { claim, hashes: Vec::new(), note }.to_string();
    let hash = base64_of_zeros(length);
    proof.replacen("\nindex 1\n", &format!("\nindex 1\n{hash}\n"), 1)
}

/// A signed checkpoint.
fn signed(key: &PrivateKey, size: u64, root: Hash) -> Note {
    let origin = key.public().name().to_owned();
    let body = Checkpoint { origin, size, root }.to_string();
    Note::assemble(&body, &key.sign(&body)).unwrap()
}

/// The hash of an inner node, whose parts may have another length than hashes.
fn node(left: &[u8], right: &[u8]) -> Hash {
    Hash::of(&[&[1_u8][..], left, right].concat())
}

fn base64_of_zeros(length: usize) -> String {
    "AAAA".repeat(length / 3) + ["", "AA==", "AAA="][length % 3]
}

/// It ended in a traceback.
#[test]
fn a_proof_of_growth_without_the_older_checkpoint_is_a_mistake_in_usage() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    let key = audit(&world).join("key.vkey");
    let proof = world.base().join("proof");
    std::fs::write(&proof, &world.run(&["audit", "prove", "--from", "1"]).ok().stdout).unwrap();
    let args = [text(&proof), "--key", text(&key)];
    let first = world.run(&[&["audit", "check-proof"], &args[..]].concat());
    let other = second(&[&["proof"], &args[..]].concat());
    for done in [first, other] {
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.stderr.contains("needs the older checkpoint"), "{done:?}");
    }
}

#[test]
fn a_record_that_is_not_there_is_not_said_to_need_a_checkpoint() {
    let world = World::new();
    world.file("a", "x");
    world.fs(&["read", "a"]).ok();
    for args in [&["4711"][..], &["--from", "4711"]] {
        let refused = world.run(&[&["audit", "prove"], args].concat());
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("the log has 3 records"), "{args:?}: {refused:?}");
        assert!(!refused.stderr.contains("audit checkpoint"), "{args:?}: {refused:?}");
    }
}

#[test]
fn the_configuration_can_be_named_on_the_command_line() {
    let world = World::new();
    world.fs(&["ls"]).ok();
    let target = world.base().join("copy");
    let config = world.base().join("named.toml");
    std::fs::write(&config, format!("[audit]\nship = [{{ to = {:?} }}]\n", text(&target))).unwrap();
    world.run(&["audit", "ship", "--config", text(&config)]).ok();
    assert!(the_copy(&target).join("seg-000000.jsonl").exists());
    let refused = world.run(&["audit", "ship"]);
    assert!(refused.code == 2 && refused.stderr.contains("no target"), "{refused:?}");
}

#[test]
fn a_shipped_log_verifies_where_it_arrives() {
    let world = World::new();
    let target = world.base().join("elsewhere/log");
    let config = world.base().join("portcullis.toml");
    let ship = format!("[audit]\nship = [{{ to = {:?} }}]\n", text(&target));
    std::fs::write(&config, ship).unwrap();
    let run = |args: &[&str]| {
        done(world.command(args).env("PORTCULLIS_CONFIG", &config).output().unwrap())
    };
    write_log(&world, 70_000, "2026-01-01T00:00:00.000000Z");
    run(&["audit", "checkpoint"]).ok();
    run(&["audit", "ship"]).ok();
    world.file("a", "x");
    for _ in 0..3 {
        run(&["fs", "read", "a"]).ok();
        run(&["audit", "ship"]).ok();
    }
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    let verify_copy = || {
        let copy = the_copy(&target);
        let mut command = world.command(&["audit", "verify", "--json", "--dir", text(&copy)]);
        command.env_remove("PORTCULLIS_STATE").env_remove("PORTCULLIS_WORKSPACE");
        done(command.output().unwrap()).ok().json()
    };
    let copy = verify_copy();
    assert_eq!(own["head"], copy["head"]);
    assert_eq!(copy["signed"]["records"], 70_009);
    assert!(the_copy(&target).join("seg-000000.jsonl.zst").exists());
    // A missing target is reported, and caught up with later.
    std::fs::rename(&target, world.base().join("away")).unwrap();
    std::fs::write(&target, "in the way").unwrap();
    run(&["fs", "read", "a"]).ok();
    assert_eq!(run(&["audit", "ship"]).code, 1);
    let status = run(&["audit", "ship", "--status"]).ok();
    assert!(status.text().contains("last attempt"), "{status:?}");
    std::fs::remove_file(&target).unwrap();
    std::fs::rename(world.base().join("away"), &target).unwrap();
    run(&["audit", "ship"]).ok();
    let copy = verify_copy();
    assert_eq!(copy["signed"]["records"], 70_012);
    the_copy(&target);
}

/// Ed25519 signing (RFC 8032) with verify.py's arithmetic, written for this
/// test.
pub(crate) const SIGNER: &str = r#"
import base64, hashlib, sys
name, key_hash, key = "PRIVATE"[12:].split("+", 2)
seed = base64.b64decode(key)[1:]
P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
def add(p, q):
    a, b, c, d = (p[1]-p[0])*(q[1]-q[0]), (p[1]+p[0])*(q[1]+q[0]), 2*p[3]*q[3]*D, 2*p[2]*q[2]
    e, f, g, h = b-a, d-c, d+c, b+a
    return e*f % P, g*h % P, f*g % P, e*h % P
def times(s, p):
    q = (0, 1, 1, 0)
    while s: q, p, s = add(q, p) if s & 1 else q, add(p, p), s >> 1
    return q
y = 4 * pow(5, -1, P) % P
xx = (y*y - 1) * pow(D*y*y + 1, -1, P) % P
x = pow(xx, (P + 3) // 8, P)
if (x*x - xx) % P: x = x * pow(2, (P - 1) // 4, P) % P
if x & 1: x = P - x
B = (x, y, 1, x * y % P)
def pack(p):
    z = pow(p[2], -1, P)
    return (p[1]*z % P | (p[0]*z % P & 1) << 255).to_bytes(32, "little")
h = hashlib.sha512(seed).digest()
a = int.from_bytes(h[:32], "little") & (1 << 254) - 8 | 1 << 254
public, message = pack(times(a, B)), sys.stdin.buffer.read()
r = int.from_bytes(hashlib.sha512(h[32:] + message).digest(), "little") % L
R = pack(times(r, B))
k = int.from_bytes(hashlib.sha512(R + public + message).digest(), "little") % L
sig = bytes.fromhex(key_hash) + R + ((r + k * a) % L).to_bytes(32, "little")
sys.stdout.buffer.write(b"\xe2\x80\x94 " + name.encode() + b" " + base64.b64encode(sig) + b"\n")
"#;
