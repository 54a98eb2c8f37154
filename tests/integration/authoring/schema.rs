//! `portcullis policy schema`.

use std::path::PathBuf;

use serde_json::Value;

use crate::common::{World, done};

fn policies() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/policies"))
}

/// What of `value` a schema refuses. Knows the keywords that ours has, and
/// fails on any other.
fn refused(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut no = |what: &str| wrong.push(format!("{path}: {what}"));
    for (keyword, wanted) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "type" => {
                let fits = match wanted.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "number" => value.is_number(),
                    "boolean" => value.is_boolean(),
                    other => panic!("unknown type {other}"),
                };
                if !fits {
                    no("type");
                }
            }
            "enum" if !wanted.as_array().unwrap().contains(value) => no("enum"),
            "minimum" if value.as_f64() < wanted.as_f64() => no("minimum"),
            "maximum" if value.as_f64() > wanted.as_f64() => no("maximum"),
            "required" => {
                for key in wanted.as_array().unwrap() {
                    if value.get(key.as_str().unwrap()).is_none() {
                        no(&format!("lacks {key}"));
                    }
                }
            }
            "anyOf" => {
                let any = wanted.as_array().unwrap();
                if any.iter().all(|schema| !refused(schema, value, path).is_empty()) {
                    no("anyOf");
                }
            }
            "enum"
            | "minimum"
            | "maximum"
            | "pattern"
            | "description"
            | "title"
            | "$schema"
            | "properties"
            | "items"
            | "additionalProperties" => {}
            other => panic!("unknown keyword {other}"),
        }
    }
    if let Some(object) = value.as_object() {
        for (key, value) in object {
            match schema["properties"].get(key) {
                Some(inner) => wrong.extend(refused(inner, value, &format!("{path}.{key}"))),
                None if schema.get("properties").is_some() => {
                    assert_eq!(schema["additionalProperties"], false);
                    wrong.push(format!("{path}: no key {key}"));
                }
                None => {}
            }
        }
    }
    for value in value.as_array().into_iter().flatten() {
        wrong.extend(refused(&schema["items"], value, &format!("{path}[]")));
    }
    wrong
}

fn parsed(text: &str) -> Value {
    serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap()
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
    let schema = World::new().run(&["policy", "schema"]).ok().json();
    let mut seen = 0;
    for entry in std::fs::read_dir(policies()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // Language servers look at the comments before the first key.
        let head: Vec<_> = text.lines().take_while(|line| line.starts_with('#')).collect();
        assert!(head.contains(&"#:schema ./policy.schema.json"), "{}", path.display());
        assert_eq!(refused(&schema, &parsed(&text), ""), Vec::<String>::new());
        seen += 1;
    }
    assert_eq!(seen, 7);
}

#[test]
fn the_schema_refuses_what_the_loader_refuses() {
    let schema = World::new().run(&["policy", "schema"]).ok().json();
    for (text, wrong) in [
        ("name = \"x\"", ": lacks \"schema\""),
        ("schema = 2", ".schema: maximum"),
        ("schema = 1\n[allowedPaths]\nraed = []", ".allowedPaths: no key raed"),
        (
            "schema = 1\n[[rules]]\nid = \"a\"\neffect = \"dney\"\npaths = [\"a\"]",
            ".rules[].effect: enum",
        ),
        ("schema = 1\n[agent]\nnetwork = \"all\"", ".agent.network: anyOf"),
        ("schema = 1\n[agent]\nnetwork = { connect = [70000] }", ".agent.network: anyOf"),
        ("schema = 1\nextends = \"baseline\"", ".extends: type"),
    ] {
        assert_eq!(refused(&schema, &parsed(text), ""), [wrong], "{text}");
        let mut world = World::new();
        world.set_policy(text);
        assert_eq!(world.run(&["policy", "check", "policy/policy.toml"]).code, 4, "{text}");
    }
}

/// `jsonschema` for Python, which knows the whole of the draft, on what our own
/// look at the keywords above may have missed.
const VALIDATOR: &str = r#"
import json, sys, tomllib
from jsonschema import Draft7Validator
schema = json.load(open(sys.argv[1]))
assert schema["$schema"] == "http://json-schema.org/draft-07/schema#", schema["$schema"]
Draft7Validator.check_schema(schema)
validator = Draft7Validator(schema)
for path in sys.argv[2:]:
    errors = list(validator.iter_errors(tomllib.load(open(path, "rb"))))
    print(path.rsplit("/", 1)[-1], "ok" if not errors else "refused")
"#;

#[test]
fn another_validator_says_the_same() {
    let world = World::new();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(policies()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push((path, "ok"));
        }
    }
    assert_eq!(files.len(), 7);
    let bad = [
        "name = \"x\"",
        "schema = 1\n[allowedPaths]\nraed = []",
        "schema = 1\n[[rules]]\nid = \"a\"\neffect = \"dney\"\npaths = [\"a\"]",
        "schema = 1\nmode = \"observed\"",
        "schema = 1\n[files]\nmaxReadSize = \"10 MB\"",
        "schema = 1\n[agent]\nnetwork = { connect = [70000] }",
    ];
    for (number, text) in bad.iter().enumerate() {
        let path = world.base().join(format!("bad{number}.toml"));
        std::fs::write(&path, text).unwrap();
        let loaded = world.run(&["policy", "check", path.to_str().unwrap()]);
        assert_eq!(loaded.code, 4, "{text}");
        files.push((path, "refused"));
    }
    let python = crate::fast_agent::peers().join("bin/python");
    let output = std::process::Command::new(python)
        .args(["-c", VALIDATOR])
        .arg(policies().join("policy.schema.json"))
        .args(files.iter().map(|(path, _)| path))
        .output()
        .unwrap();
    let expected: String = files
        .iter()
        .map(|(path, word)| format!("{} {word}\n", path.file_name().unwrap().to_str().unwrap()))
        .collect();
    assert_eq!(done(output).ok().text(), expected);
}
