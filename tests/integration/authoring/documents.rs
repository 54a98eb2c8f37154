//! Checks of `docs/authoring.md`.

use portcullis::policy_tools::{LINTS, Lint};

use super::policy_file;
use crate::common::World;

fn guide() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/authoring.md")).unwrap()
}

/// The block of TOML number `index`.
fn block(index: usize) -> String {
    let guide = guide();
    let block = guide.split("```toml\n").nth(index + 1).unwrap();
    block.split("```").next().unwrap().to_owned()
}

#[test]
fn the_examples_work_together() {
    let world = World::new();
    let draft = format!("schema = 1\n{}", block(0));
    // The patterns that the guide learns, and the list that it leaves out.
    let learned = draft.replace("\"clippy.toml\",", "\"tests\", \"tests/*.rs\",");
    policy_file(&world, "next.test.toml", &block(1));
    policy_file(&world, "next.toml", &(learned + "remove = [\"src/**\"]\n"));
    world.run(&["policy", "test", "next.toml"]).ok();
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
