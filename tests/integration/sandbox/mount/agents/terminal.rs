//! Agents on a terminal: their interfaces are driven by keys, in `shell`.

use super::{
    super::shell::{CTRL_C, Operator},
    *,
};

/// Texts that an interface shows, each with the keys that are typed when it is there. Those of an
/// empty text are typed when nothing more is shown.
pub(super) type Dialogue = [(&'static str, &'static str)];

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
            if shown.is_empty() {
                self.rests();
            }
            self.sees_in(shown, Self::words);
            self.clear();
            self.types(keys);
        }
    }
}

/// Drives an agent in `shell` to its end.
pub(super) fn talks(
    world: &SandboxWorld,
    agent: &Agent,
    model: &Model,
    command: &[&str],
    dialogue: &Dialogue,
) {
    std::fs::write(world.at("policies/policy.toml"), "schema = 1\nextends = [\"default\"]\n")
        .unwrap();
    let args = [world.options(agent, model), vec!["--".to_owned()]].concat();
    let args: Vec<_> = args.iter().map(String::as_str).chain(command.iter().copied()).collect();
    let environment = world.environment(agent, model);
    let environment = environment.iter().map(|(name, value)| (*name, value.as_str()));
    let environment: Vec<_> = environment.chain([("LANG", "C.UTF-8")]).collect();
    let mut operator = world.on_terminal("shell", &args, &environment);
    operator.talks(dialogue);
    assert_eq!(operator.ends(), 0, "{:?}", operator.text());
    operator.is_restored();
    let facts = world.facts();
    assert_eq!((&facts["pseudoTerminal"], &facts["preset"]), (&json!(true), &json!(agent.preset)));
}

/// The users who can reach its program.
fn fixes_a_test_by_keys(
    agent: fn(As) -> Agent,
    users: &[As],
    command: &'static [&'static str],
    dialogue: &'static Dialogue,
) {
    for who in users {
        fixes_a_test(agent, *who, &Launcher::Terminal(command, dialogue));
    }
}

#[test]
fn claude_code_fixes_a_test_on_a_terminal() {
    let command = &["claude", "--allowedTools", "Bash,Edit,Read"];
    let dialogue = &[
        ("theme", "\r"),
        ("continue", "\r"),
        ("Accessing workspace", "\r"),
        ("for shortcuts", PROMPT),
        (PROMPT, "\r"),
        ("want to create", "\r"),
        (CLOSING, "/exit"),
        ("/exit", "\r"),
    ];
    fixes_a_test_by_keys(table::claude_code, &users(), command, dialogue);
}

#[test]
fn gemini_cli_fixes_a_test_on_a_terminal() {
    let command = &["gemini", "--skip-trust", "--yolo", "-m", "gemini-2.5-flash"];
    let dialogue = &[
        ("Type your message", PROMPT),
        (PROMPT, "\r"),
        (CLOSING, CTRL_C),
        ("again to exit", CTRL_C),
    ];
    fixes_a_test_by_keys(table::gemini_cli, &users(), command, dialogue);
}

#[test]
fn fast_agent_fixes_a_test_on_a_terminal() {
    let command = &["fast-agent", "go", "--shell"];
    // Its line of state is there when it reads keys.
    let dialogue = &[("NRM", PROMPT), (PROMPT, "\r"), (CLOSING, ""), ("NRM", "\x04")];
    fixes_a_test_by_keys(table::fast_agent, &users()[..1], command, dialogue);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn codex_fixes_a_test_on_a_terminal() {
    let command = &["codex", "--dangerously-bypass-approvals-and-sandbox"];
    let dialogue = &[
        ("Trust this folder", ""),
        // It discards keys that come before it has drawn the dialogue.
        ("", "\r"),
        ("Ask Codex", PROMPT),
        (PROMPT, "\r"),
        (CLOSING, "/quit"),
        ("/quit", "\r"),
    ];
    fixes_a_test_by_keys(table::codex, &users(), command, dialogue);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn opencode_fixes_a_test_on_a_terminal() {
    let dialogue = &[("commands", PROMPT), (PROMPT, "\r"), (CLOSING, "/exit"), ("/exit", "\r")];
    fixes_a_test_by_keys(table::opencode, &users(), &["opencode"], dialogue);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn qwen_code_fixes_a_test_on_a_terminal() {
    let command = &["qwen", "--auth-type", "openai", "--yolo"];
    let dialogue =
        &[("Type your message", PROMPT), (PROMPT, "\r"), (CLOSING, "/quit"), ("/quit", "\r")];
    fixes_a_test_by_keys(table::qwen_code, &users(), command, dialogue);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn aider_fixes_a_test_on_a_terminal() {
    // It prompts for the next line when it has committed.
    let dialogue =
        &[("diff>", PROMPT), (PROMPT, "\r"), (CLOSING, ""), ("diff>", "/exit"), ("/exit", "\r")];
    fixes_a_test_by_keys(table::aider, &users()[..1], &table::AIDER, dialogue);
}
