//! `docs/policy.md` is complete, and the examples of policies are true.

use portcullis::policy::{PolicySource, compile};

fn page(name: &str) -> String {
    std::fs::read_to_string(format!("{}/docs/{name}.md", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn reference() -> String {
    page("policy")
}

/// The fenced blocks of the language `info`.
fn blocks(text: &str, info: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(found) = line.strip_prefix("```") else { continue };
        let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        if found == info {
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

/// An example is a complete policy, or a piece that needs the first line only.
#[test]
fn every_example_compiles_and_its_tests_pass() {
    let pages = ["policy", "getting-started", "git", "network"];
    let mut examples: Vec<_> =
        pages.into_iter().flat_map(|name| blocks(&page(name), "toml")).collect();
    // Credentials are the configuration's.
    examples.retain(|example| !example.starts_with("[[credentials]]"));
    assert!(examples.len() >= 15, "only {} examples were found", examples.len());
    for example in examples {
        let whole = example.lines().any(|line| line.starts_with("schema"));
        let text = if whole { example } else { format!("schema = 1\n{example}") };
        if let Err(error) = compile(&PolicySource::from_text("example", &text)) {
            panic!("{text}\n\n{error}");
        }
    }
}

#[test]
fn every_key_is_described() {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/policy/src/schema.rs");
    let schema = std::fs::read_to_string(schema).unwrap();
    let mut keys = 0;
    for call in ["optional(", "required("] {
        for piece in schema.split(call).skip(1) {
            let Some(key) =
                piece.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next())
            else {
                continue;
            };
            keys += 1;
            let named = ["`KEY`", "`KEY ", ".KEY`", "KEY =", "[KEY]"]
                .iter()
                .any(|form| reference().contains(&form.replace("KEY", key)));
            assert!(named, "docs/policy.md does not describe `{key}`");
        }
    }
    assert!(keys > 40, "only {keys} keys were found");
}
