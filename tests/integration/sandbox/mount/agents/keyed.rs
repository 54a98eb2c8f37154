//! Agents whose models want a key that the agents never have.

use super::{
    table::{aider, claude_code, codex, fast_agent, gemini_cli, opencode, qwen_code},
    *,
};
use crate::egress::credentials::certify;

const KEY: &str = "sk-ant-api03-4bT9xQ2mVw7LpZ0rKc5NyHd8GfSa1JeU";

/// The permissions of an agent with a credential, besides those of `default`.
const POLICY: &str = "schema = 1\nname = \"keyed\"\nextends = [\"default\"]\n\
    [network]\ncredentials = [\"model\"]\n\
    [[network.rules]]\nid = \"model\"\neffect = \"allow\"\nhosts = [\"127.0.0.1\"]\nports = [PORT]\n";

/// The credential of a preset, for a host of the tests.
const CONFIGURATION: &str = "[[credentials]]\nid = \"model\"\npreset = \"PRESET\"\n\
    from = \"env:OPERATORS_KEY\"\nhost = \"127.0.0.1\"\nport = PORT\nca = \"ca.pem\"\n";

/// An agent, with what its model gets in front of the key, and the variable of the phantom.
struct Keyed {
    agent: Agent,
    prefix: &'static str,
    variable: &'static str,
}

impl Keyed {
    fn new(agent: Agent, variable: &'static str) -> Self {
        Self { agent, prefix: "", variable }
    }

    fn edits_a_file(&self, who: As) {
        let Self { agent, prefix, variable } = self;
        let world = project(who);
        let policies = world.base().join("policies");
        certify(&policies);
        let shell = |command: &str| json!({"do": "shell", "command": command});
        let calc = world.at("ws/calc.py");
        let (read, edit) = match agent.tools {
            Tools::Files => (
                json!({"do": "read", "path": calc}),
                json!({"do": "edit", "path": calc, "old": "return a - b", "new": "return a + b"}),
            ),
            _ => (shell("cat calc.py"), shell("sed -i 's/a - b/a + b/' calc.py")),
        };
        let environment = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'";
        let steps = vec![
            ("environment", shell(environment)),
            ("read", read),
            ("edit", edit),
            ("end", shell("echo the-end")),
        ];
        let certificate = ["cert.pem", "key.pem"].map(|name| policies.join(name));
        let (plan, attempts) = planned(agent.tools, steps);
        let count = plan.len();
        let model = Model::start_with(&world, plan, &certificate);
        for (name, text) in [("keyed.toml", POLICY), ("portcullis.toml", CONFIGURATION)] {
            let text = text.replace("PORT", &model.port).replace("PRESET", agent.preset);
            std::fs::write(policies.join(name), text).unwrap();
        }
        if is_root() && who != As::Root {
            world.give_away();
        }
        for file in agent.home.iter().chain(&attempts) {
            world.put_home(agent, &model, file);
        }
        let (policy, config) =
            (world.at("policies/keyed.toml"), world.at("policies/portcullis.toml"));
        let options = ["exec", "--preset", agent.preset, "--policy", &policy, "--config", &config];
        let own: Vec<_> = agent.options.iter().map(String::as_str).collect();
        let mut command = world.limited(&[&options[..], &own, &["--"], &agent.command].concat());
        // The sandbox has a phantom and a URL in the place of the agent's own.
        command.envs(world.environment(agent, &model)).env("OPERATORS_KEY", KEY);
        let ended = end(command.stdin(Stdio::null()).spawn().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");

        let (heard, results) = model.heard();
        let (keys, said): (Vec<_>, Vec<_>) =
            heard.lines().partition(|line| line.starts_with("{\"key\": "));
        // The server got the real one each time, and the agent told of the phantom alone.
        assert_eq!(keys, [format!("{{\"key\": \"{prefix}{KEY}\"}}")]);
        let said = said.concat();
        assert!(!said.contains(KEY), "{said}");
        let result = |step| {
            let step = if agent.tools == Tools::None { "edit" } else { step };
            results.get(step).map_or("", String::as_str)
        };
        let environment = result("environment");
        assert!(environment.contains("=http://127.0.0.1:3129"), "{results:#?}");
        let phantom = format!("{variable}=portcullis-phantom-");
        assert!(environment.contains(&phantom), "{results:#?}");
        assert!(result("end").contains("the-end"), "{results:#?}");
        assert_eq!(std::fs::read_to_string(&calc).unwrap(), "def add(a, b):\n    return a + b\n");
        for output in [&ended.stdout, &ended.stderr] {
            assert!(!output.contains(KEY), "{output}");
        }
        let records = world.records();
        assert!(!records.iter().any(|record| record.to_string().contains(KEY)));
        let outcomes = records.iter().filter(|record| record["kind"] == "outcome");
        let requests = outcomes.filter_map(|record| record["counts"]["requests"].as_u64());
        assert!(requests.sum::<u64>() > count as u64);
        world.operator(&["audit", "verify"]);
    }
}

#[test]
fn claude_code_edits_a_file_with_a_key_that_it_never_has() {
    let who = users()[0];
    // It takes a token rather than the key, where it has both.
    let agent = Agent { environment: Vec::new(), ..claude_code(who) };
    Keyed::new(agent, "ANTHROPIC_API_KEY").edits_a_file(who);
}

#[test]
fn gemini_cli_edits_a_file_with_a_key_that_it_never_has() {
    let who = users()[0];
    Keyed::new(gemini_cli(who), "GEMINI_API_KEY").edits_a_file(who);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn codex_edits_a_file_with_a_key_that_it_never_has() {
    let who = users()[0];
    // It reads the address from no variable.
    let here = |text: String| text.replace(MODEL, "http://127.0.0.1:3129");
    let agent = codex(who);
    let home = agent.home.map(|(file, text)| (file, here(text)));
    let agent = Agent { home, ..agent };
    Keyed { prefix: "Bearer ", ..Keyed::new(agent, "CODEX_API_KEY") }.edits_a_file(who);
}

#[test]
fn fast_agent_edits_a_file_with_a_key_that_it_never_has() {
    let who = users()[0];
    let environment = vec![("ANTHROPIC_API_KEY", "none"), ("FAST_AGENT_MODEL", "sonnet")];
    let agent = Agent { environment, ..fast_agent(who) };
    Keyed::new(agent, "ANTHROPIC_API_KEY").edits_a_file(who);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn opencode_edits_a_file_with_a_key_that_it_never_has() {
    let who = users()[0];
    let model = "anthropic/claude-sonnet-4-5";
    let configuration = json!({"model": model, "small_model": model, "permission": {"*": "allow"}});
    let home = Some((".config/opencode/opencode.json", configuration.to_string()));
    Keyed::new(Agent { home, ..opencode(who) }, "ANTHROPIC_API_KEY").edits_a_file(who);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn qwen_code_edits_a_file_with_a_key_that_it_never_has() {
    let who = users()[0];
    let agent = qwen_code(who);
    // With a proxy it asks that for its own loopback interface, too.
    let without = ["env", "-u", "HTTPS_PROXY", "-u", "https_proxy", "-u", "HTTP_PROXY"];
    let command = [&without[..], &["-u", "http_proxy"], &agent.command].concat();
    let agent = Agent { command, ..agent };
    Keyed { prefix: "Bearer ", ..Keyed::new(agent, "OPENAI_API_KEY") }.edits_a_file(who);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn aider_edits_a_file_with_a_key_that_it_never_has() {
    let who = users()[0];
    Keyed { prefix: "Bearer ", ..Keyed::new(aider(who), "OPENAI_API_KEY") }.edits_a_file(who);
}
