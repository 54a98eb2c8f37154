//! Keys of policies and of the operator's configuration.

use super::golden;
use crate::common::World;

#[test]
fn policy_keys() {
    let world = World::new();
    golden("policy.schema.json", world.run(&["policy", "schema"]).ok().text());
}

/// The keys that an unknown one is answered with, for each section.
#[test]
fn configuration_keys() {
    let world = World::new();
    let config = world.base().join("c.toml");
    let mut text = String::new();
    let sections = [
        "",
        "[approvals]",
        "[approvals.notify]",
        "[[credentials]]",
        "[audit]",
        "[[audit.ship]]",
        "[serve]",
        "[serve.limits]",
        "[serve.tls]",
        "[telemetry]",
        "[[workspaces]]",
        "[[agents]]",
    ];
    for section in sections {
        std::fs::write(&config, format!("{section}\nnothing-like-it = 1\n")).unwrap();
        let done = world.run(&["serve", "--config", "c.toml"]);
        let known = done.stderr.split_once("known keys: ");
        let (_, known) = known.unwrap_or_else(|| panic!("{section}: {done:?}"));
        let known = known.lines().next().unwrap().replace(", ", "\n    ");
        text += &format!("{section}\n    {known}\n");
    }
    golden("configuration.txt", &text);
}
