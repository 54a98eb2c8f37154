//! Lints of the names of agents.

use super::{found_at, of_lint, set};
use crate::common::World;

/// They applied to no agent, and nothing said so.
#[test]
fn names_that_no_agent_has_by_default_were_no_finding() {
    let found = found_at(
        "schema = 1\n[[rules]]\nid = \"a\"\neffect = \"deny\"\npaths = [\"x/**\"]\n\
         agents = [\"mcp\", \"FS\", \"shell\", \"run\", \"acp\", \"agent.py\", \"[cli]\", \
         \"cli.*\", \"claude-code.*\"]\n\
         [[network.rules]]\nid = \"n\"\neffect = \"deny\"\nhosts = [\"*\"]\n\
         agents = [\"serve\", \"mcp-client\", \"exec\", \"codex\", \"claude*\", \"v1.2\", \"release.*\"]\n",
    );
    let expected = [
        ("agent-name", "mcp"),
        ("agent-name", "FS"),
        ("agent-name", "shell"),
        ("agent-name", "run"),
        ("agent-name", "acp"),
        ("agent-name", "agent.py"),
        ("agent-name", "serve"),
        ("class-as-name", "[cli]"),
        ("regex-as-pattern", "cli.*"),
        ("regex-as-pattern", "claude-code.*"),
    ];
    assert_eq!(found, set(&expected));
    let world = World::new();
    for (name, meant) in [("mcp", "mcp-client"), ("fs", "cli"), ("shell", "exec"), ("a.py", "a")] {
        let policy = format!(
            "schema = 1\n[[rules]]\nid = \"a\"\neffect = \"ask\"\npaths = [\"x\"]\n\
             agents = [\"{name}\"]\n"
        );
        let list = of_lint(&world, &policy, "agent-name");
        let advice = list[0]["suggestion"].as_str().unwrap();
        assert!(advice.contains(&format!("`{meant}`")), "{name}: {advice}");
    }
}
