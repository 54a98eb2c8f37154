//! Missing evidence that was asked for is reported: growth, a witness, an option.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::{PYTHON, SIGNER, audit, second, text};
use crate::common::World;

fn world() -> World {
    let world = World::new();
    world.write("a", "x").ok();
    world
}

/// The log's key in a file.
fn key(world: &World) -> String {
    let file = world.base().join("log.vkey");
    std::fs::write(&file, world.run(&["audit", "key"]).ok().stdout).unwrap();
    text(&file).to_owned()
}

/// Returns the line that a witness with another log's key adds to the note, and its public key.
fn cosigned(note: &str) -> (String, String) {
    let other = world();
    let private = std::fs::read_to_string(other.state().join("keys/checkpoint.key")).unwrap();
    let script = SIGNER
        .replace("PRIVATE", private.trim())
        .replace("sys.stdin.", "b'cosignature/v1\\ntime 7\\n' + sys.stdin.")
        .replace("name.encode()", "b'witness'")
        .replace("bytes.fromhex(key_hash)", "key_hash + (7).to_bytes(8, 'big')")
        .replace(
            "\nsig = ",
            "\nkey_hash = hashlib.sha256(b'witness\\n\\4' + public).digest()[:4]\nsig = ",
        )
        + "sys.stderr.write('witness+' + key_hash.hex() + '+' \
           + base64.b64encode(b'\\4' + public).decode())\n";
    let mut child = Command::new(PYTHON)
        .args(["-I", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let signed = note.split_once("\n\n").unwrap().0.to_owned() + "\n";
    child.stdin.take().unwrap().write_all(signed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    (format!("{note}{line}"), String::from_utf8(output.stderr).unwrap())
}

/// A checkpoint of the same records was signed in its place.
#[test]
fn a_cosigned_checkpoint_is_kept_where_the_frontier_is_lost() {
    let world = world();
    let note = world.run(&["audit", "checkpoint"]).ok().text().to_owned();
    let (cosigned, witness) = cosigned(&note);
    let file = world.base().join("cosigned");
    std::fs::write(&file, cosigned).unwrap();
    world.run(&["audit", "checkpoint", "--cosigned", text(&file), "--witness", &witness]).ok();
    std::fs::remove_file(audit(&world).join("frontier")).unwrap();
    world.run(&["audit", "checkpoint"]).ok();
    assert!(audit(&world).join("frontier").exists());
    let report = world.run(&["audit", "verify", "--witness", &witness, "--json"]).ok().json();
    let warnings = report["warnings"].as_array().unwrap().iter();
    assert_eq!(
        warnings.filter(|warning| warning["kind"] == "missing-witness").count(),
        0,
        "{report}"
    );
}

/// The file was not written again before the next record.
#[test]
fn a_checkpoint_that_is_lost_is_signed_again() {
    let world = world();
    world.run(&["audit", "checkpoint"]).ok();
    std::fs::remove_file(audit(&world).join("checkpoint")).unwrap();
    assert_eq!(world.run(&["audit", "checkpoint"]).ok().text().lines().count(), 5);
    world.run(&["audit", "verify"]).ok();
}

/// An exit code of 0 had been read as if it had cosigned.
#[test]
fn a_witness_that_cosigned_nothing_is_named() {
    let world = world();
    let note = world.run(&["audit", "checkpoint"]).ok().text().to_owned();
    let (cosigned, witness) = cosigned(&note);
    let verify = || world.run(&["audit", "verify", "--witness", &witness, "--json"]).ok().json();
    let missing = |report: &Value| -> Vec<String> {
        let warnings = report["warnings"].as_array().unwrap().iter();
        let of = warnings.filter(|warning| warning["kind"] == "missing-witness");
        of.map(|warning| warning["detail"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(missing(&verify()), ["witness cosigned no checkpoint of the log"]);
    let said = world.run(&["audit", "verify", "--witness", &witness]).ok();
    assert!(said.text().contains("warning: missing-witness: witness cosigned no"), "{said:?}");
    assert_eq!(missing(&world.run(&["audit", "verify", "--json"]).ok().json()), [""; 0]);

    let file = world.base().join("cosigned");
    std::fs::write(&file, cosigned).unwrap();
    let add = ["audit", "checkpoint", "--cosigned", text(&file), "--witness", &witness];
    let unknown = world.run(&add[..4]);
    assert!(unknown.code == 1 && unknown.stderr.contains("no known witness"), "{unknown:?}");
    assert_eq!(world.run(&add).ok().text(), "added 1 signature\n");
    let again = world.run(&add);
    assert!(again.code == 1 && again.stderr.contains("stored already"), "{again:?}");
    let report = verify();
    assert_eq!(missing(&report), [""; 0]);
    assert_eq!(report["signed"]["witnesses"], json!(["witness"]));
    let signed = report["signed"]["records"].as_u64().unwrap();

    // It has not seen later records.
    world.write("a", "y").ok();
    let report = verify();
    let now = report["signed"]["records"].as_u64().unwrap();
    let words = format!("witness cosigned the first {signed} of the {now} records signed");
    assert_eq!(missing(&report), [words]);
}

/// The checkpoint was in no history, because another had been stored a moment before, and the next
/// gateway replaced it.
#[test]
fn a_witness_could_not_cosign_a_checkpoint_of_a_log_in_use() {
    let world = world();
    world.write("a", "y").ok();
    let note = world.run(&["audit", "checkpoint"]).ok().text().to_owned();
    world.write("a", "z").ok();
    let (cosigned, witness) = cosigned(&note);
    let file = world.base().join("cosigned");
    std::fs::write(&file, cosigned).unwrap();
    let add = ["audit", "checkpoint", "--cosigned", text(&file), "--witness", &witness];
    assert_eq!(world.run(&add).ok().text(), "added 1 signature\n");
}

#[test]
fn a_checkpoint_that_brings_no_signature_is_not_said_to_be_added() {
    let world = world();
    let file = world.base().join("note");
    std::fs::write(&file, world.run(&["audit", "checkpoint"]).ok().stdout).unwrap();
    let none = world.run(&["audit", "checkpoint", "--cosigned", text(&file)]);
    assert_eq!((none.code, none.text()), (1, ""), "{none:?}");
    assert!(none.stderr.contains("nothing was added"), "{none:?}");
}

/// A cosignature that is wrong made an intact log damaged for good.
#[test]
fn a_wrong_signature_of_a_witness_is_no_damage_of_the_log() {
    let world = world();
    let note = world.run(&["audit", "checkpoint"]).ok().text().to_owned();
    let (right, witness) = cosigned(&note);
    let other = cosigned(&note.replacen('\n', "\n1", 1)).0;
    let (line, wrong) = (right.lines().last().unwrap(), other.lines().last().unwrap());
    // The key is a new one each time: the name and the hash are the right one's.
    let wrong = line[..line.len() - 20].to_owned() + &wrong[wrong.len() - 20..] + "\n";
    let file = world.base().join("cosigned");
    std::fs::write(&file, note.clone() + &wrong).unwrap();
    let add = ["audit", "checkpoint", "--cosigned", text(&file), "--witness", &witness];
    let refused = world.run(&add);
    assert!(refused.code == 1 && refused.stderr.contains("a signature is wrong"), "{refused:?}");
    // As a version before kept it.
    let kept = audit(&world).join("checkpoints").join(note.lines().nth(1).unwrap());
    for kept in [audit(&world).join("checkpoint"), kept] {
        std::fs::write(kept, note.clone() + &wrong).unwrap();
    }
    let verify = || world.run(&["audit", "verify", "--witness", &witness]).ok();
    assert!(
        verify().text().contains("the signature of witness on the checkpoint"),
        "{:?}",
        verify()
    );
    std::fs::write(&file, right).unwrap();
    world.run(&add).ok();
    assert!(!verify().text().contains("missing-witness"), "{:?}", verify());
}

/// `verify.py` refused them: a wrong cosignature by a key that was given, and growth from nothing.
#[test]
fn a_proof_with_a_wrong_cosignature_or_from_an_empty_log_was_accepted() {
    let world = world();
    let (key, kept) = (key(&world), world.base().join("kept"));
    let proof = world.run(&["audit", "prove", "1"]).ok().text().to_owned();
    let (head, note) = proof.split_once("\n\n").unwrap();
    let (right, witness) = cosigned(note);
    let other = cosigned(&note.replacen('\n', "\n1", 1)).0;
    let wrong = right[..right.len() - 20].to_owned() + &other[other.len() - 20..];
    let file = world.base().join("proof");
    let both = |more: &[&str]| {
        let args = [&[text(&file), "--key", &key], more].concat();
        let ours = world.run(&[&["audit", "check-proof"], &args[..]].concat());
        (ours, second(&[&["proof"], &args[..]].concat()))
    };
    let vkey = world.base().join("witness.vkey");
    std::fs::write(&vkey, format!("{witness}\n")).unwrap();
    for (note, code) in [(&right, 0), (&wrong, 5)] {
        std::fs::write(&file, format!("{head}\n\n{note}")).unwrap();
        let (ours, theirs) = both(&["--key", text(&vkey)]);
        assert_eq!((ours.code, theirs.code), (code, code), "{ours:?} {theirs:?}");
    }
    let (ours, _) = both(&["--witness", text(&vkey)]);
    assert!(ours.code == 5 && ours.stderr.contains("a signature is wrong"), "{ours:?}");

    std::fs::write(&file, format!("old 0\n\n{note}")).unwrap();
    std::fs::write(&kept, note).unwrap();
    let (ours, theirs) = both(&["--old", text(&kept)]);
    assert_eq!((ours.code, theirs.code), (5, 5), "{ours:?} {theirs:?}");
    assert!(ours.stderr.contains("the text is no proof"), "{ours:?}");
}

/// The proof of a record, given as one of growth, was accepted.
#[test]
fn a_proof_of_a_record_is_none_of_growth_nor_the_other_way_round() {
    let world = world();
    let (key, kept) = (key(&world), world.base().join("kept"));
    std::fs::write(&kept, world.run(&["audit", "checkpoint"]).ok().stdout).unwrap();
    let size = world.records().len().to_string();
    world.write("a", "y").ok();
    let proof = |name: &str, args: &[&str]| {
        let file = world.base().join(name);
        std::fs::write(&file, world.run(&[&["audit", "prove"], args].concat()).ok().stdout)
            .unwrap();
        text(&file).to_owned()
    };
    let (record, growth) = (proof("record", &["1"]), proof("growth", &["--from", &size]));
    let check = |args: &[&str]| world.run(&[&["audit", "check-proof"], args].concat());
    let old = [growth.as_str(), "--key", &key, "--old", text(&kept)];
    check(&old).ok();
    second(&[&["proof"], &old[..]].concat()).ok();
    for kept in [text(&kept), "/nonexistent"] {
        let wrong = check(&[&record, "--key", &key, "--old", kept]);
        assert_eq!((wrong.code, wrong.text()), (5, ""), "{wrong:?}");
        assert!(wrong.stderr.contains("it is of a record, not of growth"), "{wrong:?}");
    }
    let wrong = second(&["proof", &record, "--key", &key, "--old", text(&kept)]);
    assert_eq!(wrong.code, 5, "{wrong:?}");
    let leaf = "0".repeat(64);
    let wrong = check(&[&old[..], &["--leaf", &leaf]].concat());
    assert_eq!((wrong.code, wrong.text()), (5, ""), "{wrong:?}");
    assert!(wrong.stderr.contains("it is of growth, not of a record"), "{wrong:?}");
}

/// An option that it did not know, or with `=`, was passed over, and what it should have
/// checked looked checked.
#[test]
fn the_second_verifier_passes_no_option_over() {
    let world = world();
    let (key, state, other) = (key(&world), audit(&world), self::world());
    let (log, other) = (text(&state), self::key(&other));
    let head = format!("1:{}", "0".repeat(64));
    let run = |args: &[&str]| second(&[&["log", log], args].concat());
    let equal = |name: &str, value: &str| format!("{name}={value}");
    run(&[&equal("--key", &key)]).ok();
    // Several are trusted, as `audit verify` does.
    run(&["--key", &other, "--key", &key]).ok();
    run(&["--key", &key, "--key", &other]).ok();
    for args in [&[equal("--key", &other)][..], &[equal("--head", &head)]] {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let wrong = run(&args);
        assert_eq!(wrong.code, 5, "{args:?}: {wrong:?}");
    }
    // As for `audit verify`, a file without a key is no key, and says nothing of the log.
    let none = ["--key", &key, "--key", "/dev/null"];
    assert_eq!((run(&none).code, run(&none).text()), (1, ""));
    let given = [&["audit", "verify", "--dir", log], &none[..]].concat();
    assert_eq!(world.run(&given).code, 1);
    let minus = format!("-{head}");
    for args in [
        &["--kye", &key][..],
        &["--key"],
        &["--key", "--head", &head],
        &["--head", &minus],
        &["--head", &key],
        &["--head", "1:00"],
        &["--old", &key],
        &[&key],
    ] {
        let wrong = run(args);
        assert_eq!((wrong.code, wrong.text()), (2, ""), "{args:?}: {wrong:?}");
        assert!(wrong.stderr.contains("SEQ:HASH"), "{args:?}: {wrong:?}");
    }
    // It showed where in the script that had happened.
    for args in [&["log", log, "--key", "/no/key"][..], &["proof", "/no/proof", "--key", &key]] {
        let wrong = second(args);
        assert_eq!((wrong.code, wrong.stderr.lines().count()), (1, 1), "{args:?}: {wrong:?}");
        assert!(wrong.stderr.contains("No such file"), "{args:?}: {wrong:?}");
    }
}

/// It read all of the file before it compared the length.
#[test]
fn the_second_verifier_read_a_proof_of_any_length() {
    let world = world();
    let file = world.base().join("proof");
    std::fs::File::create(&file).unwrap().set_len(1 << 43).unwrap();
    let refused = second(&["proof", text(&file), "--key", &key(&world)]);
    assert_eq!((refused.code, &refused.json()["kind"]), (5, &"no-proof".into()), "{refused:?}");
}
