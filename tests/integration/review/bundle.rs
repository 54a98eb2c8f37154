//! `audit bundle` and `audit check-bundle`.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use portcullis_audit::PrivateKey;
use serde_json::Value;
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

use crate::{
    common::{Done, World},
    proof::{proof_with_a_hash_of, second},
};

type Members = BTreeMap<String, Vec<u8>>;

fn bundle(world: &World, args: &[&str]) -> (Done, PathBuf) {
    let file = world.base().join("evidence.zip");
    let done = world.run(&[&["audit", "bundle", "-o", file.to_str().unwrap()], args].concat());
    (done, file)
}

fn check(world: &World, file: &Path, key: Option<&str>) -> Done {
    let mut args = vec!["audit", "check-bundle", file.to_str().unwrap()];
    args.extend(key.iter().flat_map(|key| ["--key", key]));
    world.run(&args)
}

fn unpack(file: &Path) -> Members {
    let mut zip = ZipArchive::new(std::fs::File::open(file).unwrap()).unwrap();
    (0..zip.len())
        .map(|at| {
            let mut member = zip.by_index(at).unwrap();
            let mut bytes = Vec::new();
            member.read_to_end(&mut bytes).unwrap();
            (member.name().unwrap().into_owned(), bytes)
        })
        .collect()
}

fn pack(members: &Members, file: &Path) {
    let mut zip = ZipWriter::new(std::fs::File::create(file).unwrap());
    for (name, bytes) in members {
        zip.start_file(name.as_str(), SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

/// `check.py` of the bundle, with Python alone.
fn python(world: &World, members: &Members, key: Option<&str>) -> Done {
    let directory = world.base().join("unpacked");
    let _ = std::fs::remove_dir_all(&directory);
    for (name, bytes) in members {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let mut command = Command::new("python3");
    command.args(["-I", "-B", "-c"]).arg(
        "import pkgutil, re, runpy, sys; sys.path.insert(0, sys.argv[1]); sys.argv = sys.argv[1:]; \
         sys.argv[0] += '/check.py'; runpy.run_path(sys.argv[0], run_name='__main__')",
    );
    command.arg(&directory).args(key.iter().flat_map(|key| ["--key", key]));
    crate::common::done(command.output().unwrap())
}

/// The log's public key in a file elsewhere.
fn key(world: &World) -> String {
    let file = world.base().join("log.vkey");
    std::fs::write(&file, world.run(&["audit", "key"]).ok().stdout).unwrap();
    file.to_str().unwrap().to_owned()
}

fn world() -> World {
    let world = World::new();
    world.write("a.txt", "one").ok();
    world.write("a.txt", "two").ok();
    world.fs(&["read", ".env"]).denied("secrets.names[0]");
    world
}

#[test]
fn a_bundle_proves_its_records_to_somebody_with_python_alone() {
    let world = world();
    let key = key(&world);
    let count = world.records().len() as u64;
    let (done, file) = bundle(&world, &[]);
    done.ok();
    let members = unpack(&file);
    let manifest: Value = serde_json::from_slice(&members["manifest.json"]).unwrap();
    // Only records that a checkpoint covers are proven, and the rest is reported.
    let last = manifest["last"].as_u64().unwrap();
    assert_eq!(manifest["first"], 0);
    assert!(last < count);
    let log = std::fs::read(world.state().join("audit/seg-000000.jsonl")).unwrap();
    assert!(log.starts_with(&members["records.jsonl"]));
    assert_eq!(members["records.jsonl"].iter().filter(|b| **b == b'\n').count() as u64, last + 1);
    assert_eq!(members.keys().filter(|name| name.starts_with("policies/")).count(), 1);
    for name in ["README.txt", "verify.py", "FORMAT.md", "key.vkey", "checkpoint"] {
        assert!(members.contains_key(name), "{name}");
    }
    let done = check(&world, &file, Some(&key)).ok();
    assert!(done.text().starts_with(&format!("valid: records 0 to {last} of ")), "{done:?}");
    let done = python(&world, &members, Some(&key)).ok();
    assert!(done.text().starts_with(&format!("valid: records 0 to {last} of ")), "{done:?}");
    python(&world, &members, None).ok();
    assert!(check(&world, &file, None).ok().text().contains("own key"));
    // Another log's key proves nothing of it.
    let other = self::world();
    let other = self::key(&other);
    assert_eq!(check(&world, &file, Some(&other)).code, 5);
    assert_eq!(python(&world, &members, Some(&other)).code, 5);
}

/// The reader of the proof saw a record that no log has.
#[test]
fn a_proof_that_shows_another_record_is_found_by_both() {
    let world = world();
    let (done, file) = bundle(&world, &[]);
    done.ok();
    let good = unpack(&file);
    let proof = String::from_utf8(good["last.tlog-proof"].clone()).unwrap();
    let extra = proof.lines().find(|line| line.starts_with("extra ")).unwrap();
    let wrong = {
        let own = proof.lines().last().unwrap();
        let signature = own.rsplit_once(' ').unwrap().1;
        let changed = if signature.ends_with("A=") { "E=" } else { "A=" };
        own.replace(signature, &format!("{}{changed}", &signature[..signature.len() - 2]))
    };
    let checkpoint = String::from_utf8(good["checkpoint"].clone()).unwrap();
    for (what, member, text) in [
        ("no extra", "last.tlog-proof", proof.replace(&format!("{extra}\n"), "")),
        ("forged", "last.tlog-proof", proof.replace(extra, "extra eyJ2IjoxfQ==")),
        ("wrong signature", "last.tlog-proof", format!("{proof}{wrong}\n")),
        ("wrong signature", "checkpoint", format!("{checkpoint}{wrong}\n")),
    ] {
        let mut members = good.clone();
        members.insert(member.to_owned(), text.into_bytes());
        reseal(&mut members);
        let changed = world.base().join("changed.zip");
        pack(&members, &changed);
        assert_eq!(check(&world, &changed, None).code, 5, "{what} in {member}");
        assert_eq!(python(&world, &members, None).code, 5, "{what} in {member}");
    }
}

/// `check.py` took hashes of any length, as `verify.py` did.
#[test]
fn a_bundle_whose_proof_has_a_hash_of_another_length_is_refused_by_both() {
    let world = world();
    let (done, file) = bundle(&world, &[]);
    done.ok();
    let mut members = unpack(&file);
    let lines = members["records.jsonl"].clone();
    let line = lines.split(|byte| *byte == b'\n').nth(1).unwrap();
    let mut manifest: Value = serde_json::from_slice(&members["manifest.json"]).unwrap();
    manifest["first"] = 1.into();
    manifest["last"] = 1.into();
    members.insert("manifest.json".to_owned(), serde_json::to_vec(&manifest).unwrap());
    members.insert("records.jsonl".to_owned(), [line, b"\n"].concat());
    let key = PrivateKey::from_seed("example.com/log", [7; 32]).unwrap();
    members.insert("key.vkey".to_owned(), format!("{}\n", key.public()).into_bytes());
    for (length, code) in [(32, 0), (64, 5)] {
        let proof = proof_with_a_hash_of(&key, line, length);
        let note = proof.split_once("\n\n").unwrap().1;
        members.insert("checkpoint".to_owned(), note.as_bytes().to_vec());
        members.insert("last.tlog-proof".to_owned(), proof.into_bytes());
        reseal(&mut members);
        pack(&members, &file);
        let rust = check(&world, &file, None);
        let python = python(&world, &members, None);
        assert_eq!((rust.code, python.code), (code, code), "{length}: {rust:?} {python:?}");
    }
}

/// Writes the manifest anew, as a party would that changes a member.
fn reseal(members: &mut Members) {
    let mut manifest: Value = serde_json::from_slice(&members["manifest.json"]).unwrap();
    let files = members.iter().filter(|(name, _)| *name != "manifest.json");
    let files: BTreeMap<_, _> =
        files.map(|(name, bytes)| (name.clone(), portcullis_audit::Hash::of(bytes))).collect();
    manifest["files"] = serde_json::to_value(files).unwrap();
    members.insert("manifest.json".to_owned(), serde_json::to_vec(&manifest).unwrap());
}

#[test]
fn a_tampered_member_is_found_by_both() {
    let world = world();
    let key = key(&world);
    let (done, file) = bundle(&world, &[]);
    done.ok();
    let good = unpack(&file);
    let tampered = world.base().join("tampered.zip");
    let both = |members: &Members, what: &str| {
        pack(members, &tampered);
        let rust = check(&world, &tampered, Some(&key));
        assert_eq!(rust.code, 5, "{what}: {rust:?}");
        assert!(rust.stderr.contains("the bundle is not valid: "), "{what}: {rust:?}");
        let python = python(&world, members, Some(&key));
        assert_eq!(python.code, 5, "{what}: {python:?}");
        assert!(python.text().starts_with("wrong: "), "{what}: {python:?}");
    };
    // A changed byte or a missing member. The checker cannot check itself.
    for name in good.keys().filter(|name| !name.ends_with(".py") && *name != "manifest.json") {
        let mut members = good.clone();
        let bytes = members.get_mut(name).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        both(&members, name);
        members.remove(name);
        both(&members, name);
    }
    // With a manifest that fits, the records prove themselves.
    let lines: Vec<&[u8]> = good["records.jsonl"].split_inclusive(|byte| *byte == b'\n').collect();
    let changed =
        String::from_utf8(good["records.jsonl"].clone()).unwrap().replace("\"deny\"", "\"allow\"");
    assert_ne!(changed.as_bytes(), good["records.jsonl"]);
    let without = |at: usize| [&lines[..at], &lines[at + 1..]].concat().concat();
    let cases = [
        ("a changed record", changed.into_bytes()),
        ("without the first", without(0)),
        ("without one", without(2)),
        ("without the last", without(lines.len() - 1)),
        ("none", Vec::new()),
    ];
    for (what, records) in cases {
        let mut members = good.clone();
        members.insert("records.jsonl".to_owned(), records);
        reseal(&mut members);
        both(&members, what);
    }
    let mut members = good.clone();
    let policy = members.keys().find(|name| name.starts_with("policies/")).unwrap().clone();
    members.insert(policy, b"schema = 1\n".to_vec());
    reseal(&mut members);
    both(&members, "another policy");
    // A member beside those that a bundle has, or outside of where it is unpacked.
    for name in ["extra.txt", "../x", "policies/x.toml", "policies/../../x.toml", "records.jsonl/x"]
    {
        let mut members = good.clone();
        members.insert(name.to_owned(), b"x".to_vec());
        reseal(&mut members);
        pack(&members, &tampered);
        let rust = check(&world, &tampered, Some(&key));
        assert_eq!(rust.code, 5, "{name}: {rust:?}");
        assert!(rust.stderr.contains("is no member that a bundle has"), "{name}: {rust:?}");
    }
    let mut members = good.clone();
    members.insert("/abs".to_owned(), b"x".to_vec());
    reseal(&mut members);
    pack(&members, &tampered);
    assert_eq!(check(&world, &tampered, Some(&key)).code, 5);
    members.remove("/abs");
    both(&members, "a member that is not there");
    // Those beside the proof are of the proof, also where the key is from elsewhere.
    let other = self::world();
    let other = unpack(&bundle(&other, &[]).1);
    for name in ["checkpoint", "key.vkey"] {
        for (what, bytes) in [
            ("garbage", Some(b"garbage".to_vec())),
            ("another", Some(other[name].clone())),
            ("none", None),
        ] {
            let mut members = good.clone();
            members.remove(name);
            members.extend(bytes.map(|bytes| (name.to_owned(), bytes)));
            reseal(&mut members);
            both(&members, &format!("{what} as {name}"));
        }
    }
    // A member that is not listed is no evidence.
    for name in ["extra.txt", "summary.html", "policies/../x", "policies/x", "empty/x"] {
        let mut members = good.clone();
        members.insert(name.to_owned(), b"x".to_vec());
        both(&members, name);
    }
    std::fs::write(&tampered, "no archive").unwrap();
    assert_eq!(check(&world, &tampered, Some(&key)).code, 5);
}

/// `check.py` took them, or ended with a traceback.
#[test]
fn a_malformed_manifest_is_refused_by_both() {
    let world = world();
    let good = unpack(&bundle(&world, &[]).1);
    let text = String::from_utf8(good["manifest.json"].clone()).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    let with = |name: &str, value: Value| {
        let mut manifest = manifest.clone();
        manifest[name] = value;
        manifest.to_string()
    };
    let without = |name: &str| {
        let mut manifest = manifest.clone();
        manifest.as_object_mut().unwrap().remove(name);
        manifest.to_string()
    };
    let fields = ["version", "created", "first", "last", "files"];
    let mut cases: Vec<String> = fields.map(without).into();
    cases.extend([
        with("version", 2.into()),
        with("version", true.into()),
        with("first", (0.0).into()),
        with("first", false.into()),
        with("files", Value::Array(Vec::new())),
        with("more", 1.into()),
        "[]".to_owned(),
        Value::Array(fields.map(|name| manifest[name].clone()).into()).to_string(),
        text.replacen("\"first\": 0", "\"first\": -0", 1),
        text.replacen("\"first\": 0", "\"first\": NaN", 1),
        text.replacen("\"first\": 0", "\"first\": 0, \"first\": 0", 1),
        text.replacen("\"files\": {", "\"files\": {\"checkpoint\": \"x\",", 1),
        text.replacen("\"created\": \"", "\"created\": \"\\ud800", 1),
        format!("\u{feff}{text}"),
        format!("{text}{{}}"),
        "[".repeat(100_000),
    ]);
    let hash = manifest["files"]["checkpoint"].as_str().unwrap();
    let twice = format!("\"files\": {{\"checkpoint\": \"{hash}\",");
    cases.push(text.replacen("\"files\": {", &twice, 1));
    let mut cases: Vec<_> = cases.into_iter().map(String::into_bytes).collect();
    cases.push(text.encode_utf16().flat_map(u16::to_le_bytes).collect());
    let file = world.base().join("malformed.zip");
    for case in cases {
        let what = String::from_utf8_lossy(&case[..case.len().min(300)]).into_owned();
        assert_ne!(case, text.as_bytes());
        let mut members = good.clone();
        members.insert("manifest.json".to_owned(), case);
        pack(&members, &file);
        let rust = check(&world, &file, None);
        assert_eq!(rust.code, 5, "{what}: {rust:?}");
        let python = python(&world, &members, None);
        assert_eq!((python.code, python.stderr.as_str()), (5, ""), "{what}: {python:?}");
    }
}

/// The archive as the program read it was intact, and another program unpacked others of its bytes.
#[test]
fn an_archive_of_another_form_than_a_bundle_has_does_not_hold() {
    let world = world();
    let (done, file) = bundle(&world, &[]);
    done.ok();
    let good = std::fs::read(&file).unwrap();
    let (rest, end) = good.split_at(good.len() - 22);
    let number = |at: usize| {
        usize::try_from(u32::from_le_bytes(end[at..at + 4].try_into().unwrap())).unwrap()
    };
    let (members, list) = rest.split_at(number(16));
    assert_eq!(list.len(), number(12));
    // A list whose last comment contains the list.
    let mut outer = list.to_vec();
    let last = list.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap();
    outer[last + 32..last + 34].copy_from_slice(&u16::try_from(list.len()).unwrap().to_le_bytes());
    outer.extend(list);
    let mut link = list.to_vec();
    link[38..42].copy_from_slice(&(0o120_777_u32 << 16).to_le_bytes());
    // Another program unpacks the second, or both.
    let mut two = unpack(&file);
    two.insert("recordz.jsonl".to_owned(), b"forged\n".to_vec());
    pack(&two, &file);
    let two = replace_all(std::fs::read(&file).unwrap(), b"recordz.jsonl", b"records.jsonl");
    std::fs::write(&file, &good).unwrap();
    let bytes = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    let (size, offset) = (bytes(outer.len()), bytes(members.len() + list.len()));
    let cases = [
        ("before the first member", [b"#!/bin/sh\n", &good[..]].concat()),
        ("between members and list", [members, b"x", list, end].concat()),
        ("a comment", [rest, &end[..20], &[3, 0], b"abc"].concat()),
        ("after the end", [&good[..], b"x"].concat()),
        ("two lists", [members, &outer, &end[..12], &size, &offset, &end[20..]].concat()),
        // `unzip` makes a link of it, which leads to another file.
        ("a link", [members, &link, end].concat()),
        ("two members of one name", two),
        ("no end", rest.to_vec()),
        ("nothing", Vec::new()),
    ];
    let key = key(&world);
    check(&world, &file, Some(&key)).ok();
    for (what, archive) in cases {
        std::fs::write(&file, archive).unwrap();
        let done = check(&world, &file, Some(&key));
        assert_eq!(done.code, 5, "{what}: {done:?}");
        assert!(done.stderr.contains("is not as `portcullis audit bundle`"), "{what}: {done:?}");
    }
}

/// Replaces a text by one of the same length.
fn replace_all(mut bytes: Vec<u8>, old: &[u8], new: &[u8]) -> Vec<u8> {
    while let Some(at) = bytes.windows(old.len()).position(|window| window == old) {
        bytes[at..at + old.len()].copy_from_slice(new);
    }
    bytes
}

/// A small archive of which a member unpacks to much more took as long as that takes.
#[test]
fn a_member_larger_than_any_is_refused_before_it_is_unpacked() {
    let world = world();
    let (done, file) = bundle(&world, &[]);
    done.ok();
    let mut members = unpack(&file);
    members.insert("FORMAT.md".to_owned(), vec![0; 17 << 20]);
    reseal(&mut members);
    pack(&members, &file);
    let done = check(&world, &file, None);
    assert_eq!(done.code, 5, "{done:?}");
    assert!(done.stderr.contains("FORMAT.md") && done.stderr.contains("is too large"), "{done:?}");
}

#[test]
fn no_bundle_is_made_of_a_damaged_log_or_of_nothing() {
    let world = world();
    let (done, file) = bundle(&world, &["--since", "2001-01-01", "--until", "2002-01-01"]);
    assert_eq!((done.code, file.exists()), (1, false));
    // Another checkpoint would not help.
    assert!(done.stderr.contains("the log has no record of the period"), "{}", done.stderr);
    assert!(!done.stderr.contains("audit checkpoint"), "{}", done.stderr);
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text.replacen("a.txt", "b.txt", 1)).unwrap();
    let (done, file) = bundle(&world, &[]);
    assert_eq!((done.code, file.exists()), (5, false), "{done:?}");
    assert_eq!(
        std::fs::read_dir(world.base())
            .unwrap()
            .filter(|entry| {
                entry.as_ref().unwrap().file_name().to_string_lossy().contains("zip")
            })
            .count(),
        0
    );
}

/// A reviewer who checked a bundle with a `check.py` of his own ran the modules that came with it.
#[test]
fn no_module_that_a_bundle_brings_runs() {
    let world = World::new();
    world.write("a", "1").ok();
    world.run(&["audit", "checkpoint"]).ok();
    let (done, file) = bundle(&world, &[]);
    done.ok();
    let members = unpack(&file);
    let ran = world.base().join("ran");
    let hostile = format!("open({:?}, 'w')\n", ran.to_str().unwrap());
    for module in ["hashlib.py", "json.py", "os.py", "re.py", "base64.py", "encodings/__init__.py"]
    {
        let mut members = members.clone();
        members.insert(module.to_owned(), hostile.clone().into_bytes());
        python(&world, &members, None);
        let unpacked = world.base().join("unpacked");
        let checked = Command::new("python3").arg(unpacked.join("check.py")).output().unwrap();
        assert_eq!(checked.status.code(), Some(5), "{module}: {checked:?}");
        assert!(!ran.exists(), "{module}");
    }
}

/// The library that packs it printed an error of its own in front.
#[test]
fn a_bundle_for_which_there_is_no_room_fails_with_one_message() {
    let world = World::new();
    world.write("a", "1").ok();
    world.run(&["audit", "checkpoint"]).ok();
    let file = world.base().join("evidence.zip");
    let portcullis = env!("CARGO_BIN_EXE_portcullis");
    let script = "trap '' XFSZ; ulimit -f 4; exec \"$@\"";
    let made = world.command(&[]);
    let envs = made.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut limited = Command::new("sh");
    limited.args(["-c", script, "sh", portcullis, "audit", "bundle", "-o"]).arg(&file);
    let done = crate::common::done(limited.env_clear().envs(envs).output().unwrap());
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.lines().all(|line| line.starts_with("portcullis: ")), "{done:?}");
    assert!(!file.exists());
}

/// The programs in Python ended with an error, where `audit verify` passes a comment over.
#[test]
fn a_comment_that_is_no_utf8_hid_the_keys_of_its_file() {
    let world = world();
    let log = world.state().join("audit");
    let keys = [&b"# \xff\n"[..], &std::fs::read(log.join("key.vkey")).unwrap()].concat();
    std::fs::write(log.join("key.vkey"), &keys).unwrap();
    let given = world.base().join("given.vkey");
    std::fs::write(&given, &keys).unwrap();
    let given = given.to_str();
    let (done, file) = bundle(&world, &[]);
    done.ok();
    check(&world, &file, given).ok();
    python(&world, &unpack(&file), given).ok();
    second(&["log", log.to_str().unwrap(), "--key", given.unwrap()]).ok();
}
