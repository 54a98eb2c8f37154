//! `portcullis policy schema`.

use std::path::PathBuf;

use crate::common::{World, done};

fn policies() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/policies"))
}

/// `jsonschema` for Python, which supports the complete draft.
const VALIDATOR: &str = r#"
import json, sys, tomllib
from jsonschema import Draft7Validator
schema = json.load(open(sys.argv[1]))
assert schema["$schema"] == "http://json-schema.org/draft-07/schema#", schema["$schema"]
Draft7Validator.check_schema(schema)
validator = Draft7Validator(schema)
for path in sys.argv[2:]:
    for error in validator.iter_errors(tomllib.load(open(path, "rb"))):
        print(path.rsplit("/", 1)[-1], error.json_path, error.validator)
"#;

/// Returns the refusals of `files` by the printed schema, one a line: file,
/// place, keyword.
fn refused(files: &[PathBuf]) -> String {
    let world = World::new();
    let schema = world.base().join("schema.json");
    std::fs::write(&schema, world.run(&["policy", "schema"]).ok().text()).unwrap();
    let python = crate::fast_agent::peers().join("bin/python");
    let output = std::process::Command::new(python)
        .args(["-c", VALIDATOR])
        .arg(schema)
        .args(files)
        .output()
        .unwrap();
    done(output).ok().text().to_owned()
}

#[test]
fn the_file_beside_the_policies_is_what_the_command_prints() {
    let printed = World::new().run(&["policy", "schema"]).ok();
    let file = std::fs::read_to_string(policies().join("policy.schema.json")).unwrap();
    assert_eq!(
        printed.text(),
        file,
        "stale: cargo run -- policy schema > policies/policy.schema.json"
    );
}

#[test]
fn every_embedded_policy_names_the_schema_and_fits_it() {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(policies()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // Language servers look at the comments before the first key.
        let head: Vec<_> = text.lines().take_while(|line| line.starts_with('#')).collect();
        assert!(head.contains(&"#:schema ./policy.schema.json"), "{}", path.display());
        files.push(path);
    }
    assert_eq!(files.len(), 7);
    assert_eq!(refused(&files), "");
}

#[test]
fn the_schema_refuses_what_the_loader_refuses() {
    const DENY: &str = "[[rules]]\nid = \"a\"\neffect = \"deny\"\npaths = [\"a\"]\n";
    const HOST: &str =
        "[[network.rules]]\nid = \"h\"\neffect = \"ask\"\nhosts = [\"a.b\"]\nports = [443]\n";
    const SECRET: &str = "[[secrets.rules]]\nid = \"a\"\nregex = \"a\"\n";
    const TEST: &str = "[[tests]]\npath = \"a\"\nexpect = { effect = \"deny\" }\n";
    let instead = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    };
    let host = |from: &str, to: &str| instead(HOST, from, to);
    let deny = |from: &str, to: &str| instead(DENY, from, to);
    let cases = [
        ("allowedPaths.raed = []".to_owned(), "$.allowedPaths additionalProperties"),
        ("agent.network = \"none\"".to_owned(), "$.agent additionalProperties"),
        ("network.limits.bytesOut = \"1 MB\"".to_owned(), "$.network.limits.bytesOut pattern"),
        (host("[443]", "[70000]"), "$.network.rules[0].ports[0] maximum"),
        (host("ports = [443]", ""), "$.network.rules[0] required"),
        (host("\"a.b\"", "\"a b\""), "$.network.rules[0].hosts[0] pattern"),
        (host("id = \"h\"", "id = \"network.a\""), "$.network.rules[0].id not"),
        ("extends = \"baseline\"".to_owned(), "$.extends type"),
        ("mode = \"observed\"".to_owned(), "$.mode enum"),
        ("files.maxReadSize = \"10 MB\"".to_owned(), "$.files.maxReadSize pattern"),
        ("limits.approvalTimeout = \"0s\"".to_owned(), "$.limits.approvalTimeout pattern"),
        ("name = \"a\\nb\"".to_owned(), "$.name pattern"),
        ("allowedPaths.read = [\"/etc/**\"]".to_owned(), "$.allowedPaths.read[0] pattern"),
        ("allowedPaths.write = [\"../a\"]".to_owned(), "$.allowedPaths.write[0] not"),
        ("extensions.deny = [\".pem\"]".to_owned(), "$.extensions.deny[0] pattern"),
        ("extensions.allow.read = [\"*.rs\"]".to_owned(), "$.extensions.allow.read[0] pattern"),
        ("agent.env = [\"A=b\"]".to_owned(), "$.agent.env[0] pattern"),
        ("agent.read = [\"usr\"]".to_owned(), "$.agent.read[0] pattern"),
        ("agent.write = [\"/a/../b\"]".to_owned(), "$.agent.write[0] not"),
        (
            "secrets.onRead = \"redact\"\nsecrets.onWrite = \"warn\"".to_owned(),
            "$.secrets.onWrite not",
        ),
        (
            "secrets.rulesets = [{ file = \"a\", format = \"gitleaks\", sha256 = \"1\" }]"
                .to_owned(),
            "$.secrets.rulesets[0].sha256 pattern",
        ),
        (instead(SECRET, "id = \"a\"", "id = \"a b\""), "$.secrets.rules[0].id pattern"),
        (format!("{SECRET}keywords = [\"\"]"), "$.secrets.rules[0].keywords[0] pattern"),
        (deny("\"deny\"", "\"dney\""), "$.rules[0].effect enum"),
        (deny("\"deny\"", "\"allow\""), "$.rules[0] required"),
        (deny("[\"a\"]", "[]"), "$.rules[0].paths minItems"),
        (deny("[\"a\"]", "[\"a/\"]"), "$.rules[0].paths[0] pattern"),
        (deny("id = \"a\"", "id = \"limits.a\""), "$.rules[0].id not"),
        (format!("{DENY}operations = []"), "$.rules[0].operations minItems"),
        (format!("{DENY}agents = []"), "$.rules[0].agents minItems"),
        (format!("{DENY}agents = [\"a/b\"]"), "$.rules[0].agents[0] pattern"),
        (format!("{TEST}operation = \"rename\""), "$.tests[0] required"),
        (format!("{TEST}operation = \"read\"\nto = \"b\""), "$.tests[0] not"),
        (format!("{TEST}operation = \"connect\"\nhost = \"a.b\"\nport = 443"), "$.tests[0] not"),
        (format!("{TEST}operation = \"read\"\nport = 443"), "$.tests[0] not"),
        (format!("{TEST}operation = \"read\"\nagent = \"a b\""), "$.tests[0].agent pattern"),
        (
            format!("{}operation = \"read\"", instead(TEST, "\"a\"", "\"../a\"")),
            "$.tests[0].path not",
        ),
    ];
    let world = World::new();
    let mut files = Vec::new();
    let mut expected = String::new();
    for (number, (text, wrong)) in cases.iter().enumerate() {
        let name = format!("{number}.toml");
        let path = world.base().join(&name);
        std::fs::write(&path, format!("schema = 1\n{text}\n")).unwrap();
        let checked = world.run(&["policy", "check", path.to_str().unwrap()]);
        assert_eq!(checked.code, 4, "{text}");
        files.push(path);
        expected += &format!("{name} {wrong}\n");
    }
    for (name, text, wrong) in [
        ("none.toml", "name = \"x\"", "$ required"),
        ("next.toml", "schema = 2", "$.schema maximum"),
    ] {
        let path = world.base().join(name);
        std::fs::write(&path, text).unwrap();
        assert_eq!(world.run(&["policy", "check", path.to_str().unwrap()]).code, 4, "{text}");
        files.push(path);
        expected += &format!("{name} {wrong}\n");
    }
    assert_eq!(refused(&files), expected);
}
