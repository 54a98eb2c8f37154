//! Checks of `docs/authoring.md`.

use portcullis::policy_tools::{LINTS, Lint};

fn guide() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/authoring.md")).unwrap()
}

#[test]
fn every_lint_and_every_tool_is_described() {
    let guide = guide();
    for Lint { id, .. } in LINTS {
        assert!(guide.contains(&format!("`{id}`")), "{id}");
    }
    for tool in ["init", "schema", "lint", "test", "explain", "diff", "replay", "learn"] {
        assert!(guide.contains(&format!("policy {tool}")), "{tool}");
    }
}
