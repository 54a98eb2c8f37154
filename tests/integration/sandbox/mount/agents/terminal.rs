//! Agents on a terminal: their interfaces are driven by keys, in `shell`.

use super::{
    super::shell::{CTRL_C, Operator},
    *,
};

/// Texts that an interface shows, each with the keys that are typed when it is there.
type Dialogue = [(&'static str, &'static str)];

const PROMPT: &str = "fix the test";

impl Operator {
    /// The words that were shown. Interfaces move the cursor where other programs write a blank.
    fn words(&self) -> String {
        let text = self.text();
        let mut words = String::new();
        let mut rest = text.chars();
        while let Some(next) = rest.next() {
            if next != '\x1b' {
                words.push(next);
                continue;
            }
            words.push(' ');
            if rest.next() == Some('[') {
                let _ = rest.find(|c| ('@'..='~').contains(c));
            }
        }
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Types the keys of a dialogue, each when its text is there.
    #[track_caller]
    fn talks(&mut self, dialogue: &Dialogue) {
        for (shown, keys) in dialogue {
            self.sees_in(shown, Self::words);
            self.clear();
            self.types(keys);
        }
    }
}

/// An agent fixes the test on its terminal, where a plan without attempts is followed.
fn fixes_a_test(agent: Agent, command: &[&str], dialogue: &Dialogue) {
    let who = users()[0];
    let world = project(who);
    let plan = steps(&world, agent.tools, 0).into_iter().take_while(|(name, _)| *name != "commit");
    let model = Model::start(&world, plan.collect());
    if let Some(file) = &agent.home {
        world.put_home(&agent, &model, file);
    }
    std::fs::write(world.at("policies/policy.toml"), "schema = 1\nextends = [\"default\"]\n")
        .unwrap();

    let args = [world.options(&agent, &model), vec!["--".to_owned()]].concat();
    let args: Vec<_> = args.iter().map(String::as_str).chain(command.iter().copied()).collect();
    let environment = world.environment(&agent, &model);
    let environment = environment.iter().map(|(name, value)| (*name, value.as_str()));
    let environment: Vec<_> = environment.chain([("LANG", "C.UTF-8")]).collect();
    let mut operator = world.on_terminal("shell", &args, &environment);
    operator.talks(dialogue);
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
    operator.is_restored();

    let (_, results) = model.heard();
    let result = |step: &str| results.get(step).map_or("", String::as_str);
    assert!(result("fails").contains("FAILED"), "{results:#?}");
    assert!(result("passes").contains("OK"), "{results:#?}");
    let facts = world.facts();
    assert_eq!((&facts["pseudoTerminal"], &facts["preset"]), (&json!(true), &json!(agent.preset)));
    world.assert_fixed();
    world.operator(&["audit", "verify"]);
}

#[test]
fn claude_code_fixes_a_test_on_a_terminal() {
    let command = ["claude", "--allowedTools", "Bash,Edit,Read"];
    let dialogue = [
        ("theme", "\r"),
        ("continue", "\r"),
        ("Accessing workspace", "\r"),
        ("for shortcuts", PROMPT),
        (PROMPT, "\r"),
        (CLOSING, "/exit"),
        ("/exit", "\r"),
    ];
    fixes_a_test(table::claude_code(users()[0]), &command, &dialogue);
}

#[test]
fn gemini_cli_fixes_a_test_on_a_terminal() {
    let command = ["gemini", "--skip-trust", "--yolo", "-m", "gemini-2.5-flash"];
    let dialogue = [
        ("Type your message", PROMPT),
        (PROMPT, "\r"),
        (CLOSING, CTRL_C),
        ("again to exit", CTRL_C),
    ];
    fixes_a_test(table::gemini_cli(users()[0]), &command, &dialogue);
}

#[test]
fn fast_agent_fixes_a_test_on_a_terminal() {
    let command = ["fast-agent", "go", "--shell"];
    // Its line of state is there when it reads keys.
    let dialogue = [("NRM", PROMPT), (PROMPT, "\r"), (CLOSING, ""), ("NRM", "\x04")];
    fixes_a_test(table::fast_agent(users()[0]), &command, &dialogue);
}
