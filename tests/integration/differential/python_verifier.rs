//! `audit/verify.py`, kept running, and the first verifier's answers in its words.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use portcullis_audit::{Claim, Directory, Hash, Proof, PublicKey, Source as _, Verifier};
use serde_json::{Value, json};

use super::case::VerifierArguments;
use crate::proof::PYTHON;

/// A process that verifies many logs.
pub(super) struct Second {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Second {
    pub(super) fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new(PYTHON)
            .arg("-I")
            .arg(root.join("tests/integration/differential/verify_each.py"))
            .arg(root.join("audit/verify.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { requests: child.stdin.take(), child, answers }
    }

    /// Returns its result for the log in `directory`.
    pub(super) fn answer(&mut self, directory: &Path, asked: &VerifierArguments) -> Value {
        let heads: serde_json::Map<_, _> =
            asked.heads.iter().map(|(seq, leaf)| (seq.to_string(), json!(leaf))).collect();
        let key = asked.key.as_ref().map(|key| format!("{key}\n"));
        self.ask(&json!({ "directory": directory, "key": key, "heads": heads }))
    }

    /// True if the proof holds under the key, to it.
    pub(super) fn holds(&mut self, proof: &str, key: &PublicKey) -> bool {
        self.ask(&json!({ "proof": proof, "key": key.to_string() }))["valid"].as_bool().unwrap()
    }

    fn ask(&mut self, request: &Value) -> Value {
        let requests = self.requests.as_mut().unwrap();
        writeln!(requests, "{request}").unwrap();
        requests.flush().unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("verify.py failed on {request}"))
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        self.requests = None;
        self.child.wait().unwrap();
    }
}

/// Returns the first verifier's result, by its library.
pub(super) fn first(directory: &Path, asked: &VerifierArguments) -> Value {
    let source = Directory::new(directory);
    let of_a_log = |name: &str, regular: bool| {
        let others = ["checkpoint", "checkpoints", "key.vkey", "roots", "frontier", "quarantine"];
        name.starts_with("seg-") || others.contains(&name) || (name == "lock" && regular)
    };
    if !source.list().unwrap().iter().any(|entry| of_a_log(&entry.name, entry.regular)) {
        return json!({ "none": true });
    }
    let verifier = Verifier::new(&source).trust(asked.key.iter().cloned().collect());
    let verifier =
        asked.heads.iter().fold(verifier, |verifier, (seq, leaf)| verifier.expect(*seq, *leaf));
    in_words(&serde_json::to_value(verifier.run().unwrap()).unwrap())
}

/// True if the proof of a line holds under the key, to the library.
pub(super) fn holds(proof: &str, key: &PublicKey) -> bool {
    let Ok(proof) = Proof::parse(proof.as_bytes()) else { return false };
    let Claim::Inclusion { line: Some(line), .. } = &proof.claim else { return false };
    let is_signed = proof.note.verify(std::slice::from_ref(key)).is_ok();
    is_signed && proof.check_inclusion(Hash::leaf(line)).is_ok()
}

/// Returns the program's result.
pub(super) fn program(directory: &Path, asked: &VerifierArguments) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(["audit", "verify", "--json", "--dir"]).arg(directory);
    for (seq, leaf) in &asked.heads {
        command.arg("--head").arg(format!("{seq}:{leaf}"));
    }
    if let Some(key) = &asked.key {
        command.arg("--key").arg(key.to_string());
    }
    let done = command.env_clear().output().unwrap();
    match done.status.code() {
        Some(1) => json!({ "none": true }),
        Some(code @ (0 | 5)) => {
            let report: Value = serde_json::from_slice(&done.stdout).unwrap();
            assert_eq!(report["valid"], json!(code == 0), "{directory:?}");
            in_words(&report)
        }
        _ => panic!("{directory:?}: {done:?}"),
    }
}

/// A report, in the words of the second verifier.
fn in_words(report: &Value) -> Value {
    match report["damages"].as_array().unwrap().first() {
        Some(damage) => {
            let of = |name: &str| damage.get(name).cloned().unwrap_or_default();
            json!({ "damage": { "kind": of("kind"), "segment": of("segment"), "seq": of("seq"), "line": of("line") } })
        }
        None => {
            let head = match &report["head"] {
                Value::Null => Value::Null,
                head => json!({ "seq": head["seq"], "leaf": head["leaf"] }),
            };
            json!({ "intact": { "records": report["records"], "signed": report["signed"]["records"], "head": head } })
        }
    }
}
