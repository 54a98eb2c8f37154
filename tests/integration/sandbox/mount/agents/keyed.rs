//! An agent whose model wants a key that the agent never has.

use super::{table::claude_code, *};
use crate::egress::credentials::certify;

const KEY: &str = "sk-ant-api03-4bT9xQ2mVw7LpZ0rKc5NyHd8GfSa1JeU";

/// The permissions of an agent with a credential, besides those of `default`.
const POLICY: &str = "schema = 1\nname = \"keyed\"\nextends = [\"default\"]\n\
    [network]\ncredentials = [\"model\"]\n\
    [[network.rules]]\nid = \"model\"\neffect = \"allow\"\nhosts = [\"127.0.0.1\"]\nports = [PORT]\n";

const CONFIGURATION: &str = "[[credentials]]\nid = \"model\"\nhost = \"127.0.0.1\"\nport = PORT\n\
    header = \"x-api-key\"\nfrom = \"env:OPERATORS_KEY\"\nenv = \"ANTHROPIC_API_KEY\"\n\
    baseUrl = \"ANTHROPIC_BASE_URL\"\nmethods = [\"GET\", \"POST\"]\nca = \"ca.pem\"\n\
    paths = [\"/v1/messages\", \"/v1/messages/*\", \"/v1/models\"]\n";

#[test]
fn claude_code_edits_a_file_with_a_key_that_it_never_has() {
    let who = users()[0];
    let agent = claude_code(who);
    let place = project(who);
    let policies = place.base().join("policies");
    certify(&policies);
    let shell = |command: &str| json!({"do": "shell", "command": command});
    let calc = place.at("ws/calc.py");
    let plan = vec![
        (
            "environment",
            shell("env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'"),
        ),
        ("read", json!({"do": "read", "path": calc})),
        ("edit", json!({"do": "edit", "path": calc, "old": "return a - b", "new": "return a + b"})),
        ("end", shell("echo the-end")),
    ];
    let certificate = ["cert.pem", "key.pem"].map(|name| policies.join(name));
    let model = Model::start_with(&place, plan, &certificate);
    for (name, text) in [("keyed.toml", POLICY), ("portcullis.toml", CONFIGURATION)] {
        std::fs::write(policies.join(name), text.replace("PORT", &model.port)).unwrap();
    }
    if is_root() && who != As::Root {
        place.give_away();
    }
    let (policy, config) = (place.at("policies/keyed.toml"), place.at("policies/portcullis.toml"));
    let options =
        ["exec", "--preset", agent.preset, "--policy", &policy, "--config", &config, "--"];
    let mut command = place.limited(&[&options[..], &agent.command].concat());
    let path = std::env::var("PATH").unwrap();
    let programs = agent.programs.iter().map(|program| format!("{}:", program.display()));
    command.env("PATH", programs.collect::<String>() + &path).env("OPERATORS_KEY", KEY);
    let ended = end(command.spawn().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");

    let (heard, results) = model.heard();
    let (keys, said): (Vec<_>, Vec<_>) =
        heard.lines().partition(|line| line.starts_with("{\"key\": "));
    // The server got the real one each time, and the agent told of the phantom alone.
    assert_eq!(keys, [format!("{{\"key\": \"{KEY}\"}}")]);
    let said = said.concat();
    assert!(!said.contains(KEY), "{said}");
    let environment = results.get("environment").map_or("", String::as_str);
    assert!(environment.contains("ANTHROPIC_API_KEY=portcullis-phantom-"), "{results:#?}");
    assert!(environment.contains("ANTHROPIC_BASE_URL=http://127.0.0.1:3129"), "{results:#?}");
    assert!(results.get("end").is_some_and(|end| end.contains("the-end")), "{results:#?}");
    assert_eq!(std::fs::read_to_string(&calc).unwrap(), "def add(a, b):\n    return a + b\n");
    for output in [&ended.stdout, &ended.stderr] {
        assert!(!output.contains(KEY), "{output}");
    }
    let records = place.records();
    assert!(!records.iter().any(|record| record.to_string().contains(KEY)));
    let outcomes = records.iter().filter(|record| record["kind"] == "outcome");
    let requests = outcomes.filter_map(|record| record["counts"]["requests"].as_u64());
    assert!(requests.sum::<u64>() >= 5);
    place.operator(&["audit", "verify"]);
}
