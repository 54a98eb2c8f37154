//! Rules without effect in a mount, of which `policy lint` has a note.

use super::policy_file;
use crate::common::World;

/// A denial of `stat` or `append` seemed to apply to programs, which look names up and write.
#[test]
fn a_rule_without_effect_in_a_mount_had_no_note() {
    let world = World::new();
    let noted = |operations: &str| {
        let text = format!(
            "schema = 1\n[allowedPaths]\nlist = [\"**\"]\n[[rules]]\nid = \"r\"\n\
             effect = \"deny\"\noperations = [{operations}]\npaths = [\"d/x\"]\n[[tests]]\n\
             operation = \"list\"\npath = \"a\"\nexpect = {{ effect = \"allow\" }}\n"
        );
        policy_file(&world, "p.toml", &text);
        let args = ["policy", "lint", "p.toml", "--no-tree", "--json"];
        let allowed = ["--allow", "untested-rule", "--allow", "unguarded-operation"];
        let strict = [&["--deny-warnings"], &allowed[..]].concat();
        // It is no finding.
        let done = world.run(&[&args[..], &strict].concat()).ok();
        let plain = world.run(&args[..4]).ok();
        let json = done.json();
        assert_eq!(
            plain.stderr.contains("in a mount"),
            json["notInMount"] != serde_json::json!([])
        );
        json["notInMount"].clone()
    };
    for operations in ["'stat'", "'grep', 'glob'", "'watch', 'stat'"] {
        assert_eq!(noted(operations), serde_json::json!(["r"]), "{operations}");
    }
    for operations in ["'list'", "'stat', 'list'", "'read', 'grep'", "'restore'", "'setattr'"] {
        assert_eq!(noted(operations), serde_json::json!([]), "{operations}");
    }
    for policy in ["baseline", "default", "read-only", "coding-agent", "docs-writer", "strict"] {
        let done = world.run(&["policy", "lint", policy, "--no-tree", "--json"]).ok();
        assert_eq!(done.json()["notInMount"], serde_json::json!([]), "{policy}");
    }
}
