//! Real agents, unmodified, whose model follows a plan: they fix a failing test and commit it,
//! what they must not do fails, and the operator sees, imports and undoes what they did.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    sync::Mutex,
};

use serde_json::json;

use self::{
    table::{Agent, MODEL, Tools},
    terminal::Dialogue,
};
use super::{repository::git, *};
use crate::{
    acp_client::{Client, Editor},
    fast_agent::peers,
    fast_agent_confined::python,
    scripted_agent::TERMINATED,
};

mod carried;
mod keyed;
mod table;
mod terminal;

/// Files of the project, and of the operator outside of it.
const FILES: [(&str, &str); 9] = [
    ("ws/calc.py", "def add(a, b):\n    return a - b\n"),
    (
        "ws/test_calc.py",
        "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n    \
         def test_add(self):\n        self.assertEqual(add(2, 3), 5)  # marker-of-the-test\n",
    ),
    ("ws/.gitignore", "__pycache__\n.env\n"),
    ("ws/.env", "API_KEY=marker-of-env\n"),
    ("ws/AGENTS.md", "marker-of-rules\n"),
    ("ws/CLAUDE.md", "marker-of-rules\n"),
    ("ws/GEMINI.md", "marker-of-rules\n"),
    ("home/.ssh/id_rsa", "marker-of-ssh\n"),
    ("other/secret.txt", "marker-of-other\n"),
];

/// Starts more processes than the sandbox may have, and gives them back.
const BOMB: &str = "python3 -c '
import subprocess
children = []
try:
    while len(children) < 1000:
        children.append(subprocess.Popen([\"sleep\", \"60\"], stdin=-3, stdout=-3, stderr=-3))
except OSError:
    print(\"bomb-stopped\")
for child in children:
    child.kill()
'";

/// The model's edit for an agent without tools, and words of that agent's instructions.
const EDIT: &str = "calc.py\n```python\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n\
    >>>>>>> REPLACE\n```";
const ASKED: &str = "SEARCH/REPLACE";

/// The model's words behind the last step.
const CLOSING: &str = "the plan is done";

/// The place of its attempts in its home.
const ATTEMPTS: &str = "attempts.sh";

/// Steps of the plan, by name and in order.
type Plan = Vec<(&'static str, Value)>;

/// A model that follows a plan, for one agent.
struct Model {
    process: Child,
    port: String,
    log: PathBuf,
    steps: Vec<&'static str>,
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Model {
    fn start(world: &SandboxWorld, plan: Plan) -> Self {
        Self::start_with(world, plan, &[])
    }

    /// The same over TLS, with a certificate and its key.
    fn start_with(world: &SandboxWorld, plan: Plan, certificate: &[PathBuf]) -> Self {
        let (steps, plan): (Vec<_>, Vec<_>) = plan.into_iter().unzip();
        let (file, log) = (world.at("plan.json"), world.at("model.jsonl"));
        std::fs::write(&file, Value::from(plan).to_string()).unwrap();
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/model.py"));
        command.args([&file, &log]).args(certificate);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { process, port: port.trim().to_owned(), log: log.into(), steps }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.2:{}", self.port)
    }

    /// All that the agent sent, and the result of each step.
    fn heard(&self) -> (String, BTreeMap<&'static str, String>) {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let result = |line: Value| {
            let step = usize::try_from(line["step"].as_u64()?).unwrap();
            Some((*self.steps.get(step)?, line["result"].as_str()?.to_owned()))
        };
        let results = lines.filter_map(result).collect();
        (text, results)
    }
}

/// Something with which an agent is started.
enum Launcher {
    /// Its own command line, in `exec`.
    CommandLine,
    /// An editor, through `run`.
    Editor,
    /// This command line, driven by keys in `shell`.
    Terminal(&'static [&'static str], &'static Dialogue),
}

/// A project with a failing test, committed.
fn project(who: As) -> SandboxWorld {
    let world = SandboxWorld::new(who);
    for (name, text) in FILES {
        let path = world.base().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    git(&world, &["init", "-q", "-b", "main"]);
    git(&world, &["add", "--all"]);
    git(&world, &["commit", "-qm", "the operator's"]);
    // The owner of this must not be the reason of a refusal.
    set_mode(&world.base().join("other"), 0o777);
    if is_root() && who != As::Root {
        world.give_away();
    }
    world
}

/// The steps of an agent with these tools.
fn steps(world: &SandboxWorld, tools: Tools, canary: u16) -> Plan {
    let test = "PYTHONDONTWRITEBYTECODE=1 python3 -m unittest 2>&1 | tail -4";
    let shell = |command: &str| json!({"do": "shell", "command": command});
    let read = |name: &str| match tools {
        Tools::Files => json!({"do": "read", "path": world.at(&format!("ws/{name}"))}),
        _ => shell(&format!("cat {name}")),
    };
    let hook = json!({
        "do": "write", "path": world.at("ws/.git/hooks/pre-commit"), "content": "#!/bin/sh\nexit 1\n"
    });
    let (calc, outside) = (world.at("ws/calc.py"), world.base().display());
    let edit = json!({"do": "edit", "path": calc, "old": "return a - b", "new": "return a + b"});
    let without = |file_tool: Value, command: &str| match tools {
        Tools::Files => file_tool,
        _ => shell(command),
    };
    let connect = format!(
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {canary}), 5)'"
    );
    let history = "git log --format=%s";
    let commit = match tools {
        // It has committed before it runs tests.
        Tools::None => history.to_owned(),
        _ => format!("git commit -qam fixed && {history}"),
    };
    vec![
        ("read", read("test_calc.py")),
        ("fails", shell(test)),
        ("code", read("calc.py")),
        ("edit", without(edit, "sed -i 's/a - b/a + b/' calc.py")),
        ("passes", shell(test)),
        ("commit", shell(&commit)),
        ("env", read(".env")),
        ("hook", without(hook, "echo exit 1 >.git/hooks/pre-commit")),
        (
            "outside",
            shell(&format!(
                "cat .env ~/.ssh/id_rsa {outside}/home/.ssh/id_rsa {outside}/other/secret.txt; \
                 echo x >{outside}/other/planted"
            )),
        ),
        ("connect", shell(&connect)),
        ("curl", shell(&format!("curl -sS --noproxy '' http://127.0.0.1:{canary}/"))),
        ("large", shell("truncate -s 10G large; ls large")),
        ("bomb", shell(BOMB)),
        ("end", shell("echo the-end")),
    ]
}

/// The model's plan for an agent with these tools. One without tools makes the edit; the other
/// steps are a file of its home, the tests that it runs behind that. They fail, so that the model
/// is told what they said.
fn planned(tools: Tools, steps: Plan) -> (Plan, Option<(&'static str, String)>) {
    if tools != Tools::None {
        return (steps, None);
    }
    let steps = steps.into_iter().filter(|(name, _)| !["edit", "fails"].contains(name));
    let commands = steps.map(|(_, step)| format!("{}\n", step["command"].as_str().unwrap()));
    let attempts = commands.collect::<String>() + "exit 1\n";
    let say = json!({"do": "say", "text": EDIT, "asked": ASKED});
    (vec![("edit", say)], Some((ATTEMPTS, attempts)))
}

/// The files of a directory with their content; of a repository only what an agent must not change.
fn content(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let git = root.join(".git");
    let is_kept = |path: &PathBuf| {
        !path.starts_with(git.join("objects")) && !path.starts_with(git.join("refs/portcullis"))
    };
    let files = walk(root).into_iter().filter(|path| path.is_file() && is_kept(path));
    files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

impl SandboxWorld {
    /// `portcullis ARGS…` under the policy that is built in, without a word on the network.
    fn with_agent(&self, agent: &Agent, model: &Model, args: &[&str]) -> Command {
        let options = self.options(agent, model);
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let (command, rest) = args.split_first().unwrap();
        let mut command = self.limited(&[&[*command], &options[..], rest].concat());
        command.envs(self.environment(agent, model));
        command
    }

    fn options(&self, agent: &Agent, model: &Model) -> Vec<String> {
        let preset = self.preset(agent, model);
        let options = ["--preset", &preset, "--agent-limit", "processes=500"].map(str::to_owned);
        options.into_iter().chain(agent.options.iter().cloned()).collect()
    }

    fn environment(&self, agent: &Agent, model: &Model) -> Vec<(&'static str, String)> {
        let path = std::env::var("PATH").unwrap();
        let programs = agent.programs.iter().map(|program| format!("{}:", program.display()));
        let path = ("PATH", programs.collect::<String>() + &path);
        let own = agent.environment.iter();
        let own = own.map(|(name, value)| (*name, value.replace(MODEL, &model.url())));
        std::iter::once(path).chain(own).collect()
    }

    /// The agent's preset; where no variable has its model's address, one with that among the
    /// hosts.
    fn preset(&self, agent: &Agent, model: &Model) -> String {
        let name = agent.preset;
        if agent.environment.iter().any(|(_, value)| value.contains(MODEL)) {
            return name.to_owned();
        }
        let preset = format!("{}/presets/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let preset = std::fs::read_to_string(preset).unwrap();
        let hosts = format!("hosts = [\"127.0.0.2:{}\", ", model.port);
        let file = self.at(&format!("{name}.toml"));
        std::fs::write(&file, preset.replace("hosts = [", &hosts)).unwrap();
        file
    }

    /// Puts a file into the agent's home.
    fn put_home(&self, agent: &Agent, model: &Model, (file, text): &(&str, String)) {
        let script = format!("mkdir -p $(dirname ~/{file}) && cat >~/{file}");
        let args = ["exec", "--", "sh", "-c", &script];
        let mut child = self.with_agent(agent, model, &args).spawn().unwrap();
        let text = text.replace(MODEL, &model.url());
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let ended = end(child);
        assert_eq!(ended.code, 0, "{ended:?}");
    }

    /// Fails unless the code is right, and the log has its test as read and the code as changed.
    #[track_caller]
    fn assert_fixed(&self) {
        let code = std::fs::read_to_string(self.at("ws/calc.py")).unwrap();
        assert_eq!(code, "def add(a, b):\n    return a + b\n");
        let records = self.records();
        let has = |op: &str, path: &str| {
            records.iter().any(|record| {
                let names =
                    [said(record, "path"), said(record, "to"), said(&record["facts"], "to")];
                said(record, "op") == op && names.contains(&path)
            })
        };
        assert!(has("read", "test_calc.py"), "{records:#?}");
        assert!(has("write", "calc.py") || has("rename", "calc.py"), "{records:#?}");
    }

    /// `portcullis ARGS…` by the operator, which has to succeed.
    #[track_caller]
    fn operator(&self, args: &[&str]) -> String {
        let ended = end(self.limited(args).spawn().unwrap());
        assert_eq!(ended.code, 0, "{args:?} {ended:?}");
        ended.stdout
    }
}

fn fixes_a_test(agent: fn(As) -> Agent, who: As, way: &Launcher) {
    let agent = agent(who);
    let world = project(who);
    let canary = TcpListener::bind("127.0.0.1:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let before = content(&world.base().join("ws"));
    let port = canary.local_addr().unwrap().port();
    let steps = steps(&world, agent.tools, port);
    let has_tools = agent.tools != Tools::None;
    let (plan, attempts) = planned(agent.tools, steps);
    let model = Model::start(&world, plan);
    for file in agent.home.iter().chain(&attempts) {
        world.put_home(&agent, &model, file);
    }
    match way {
        Launcher::CommandLine => {
            let args = [&["exec", "--"], &agent.command[..]].concat();
            let mut exec = world.with_agent(&agent, &model, &args);
            // Some read more of the prompt from there.
            let ended = end(exec.stdin(Stdio::null()).spawn().unwrap());
            assert_eq!(ended.code, 0, "{ended:?}");
        }
        Launcher::Editor => {
            let mut run = world.with_agent(&agent, &model, &["run"]).spawn().unwrap();
            let streams = (run.stdout.take().unwrap(), run.stdin.take().unwrap());
            let mut client = Client::with(streams.0, streams.1, Editor::default());
            let session = client.session(&world.base().join("ws"));
            let turn = client.prompt(&session, "fix the test");
            assert_eq!(turn.stop_reason, "end_turn", "{}", turn.said);
            drop(client);
            let ended = run.wait().unwrap().code().unwrap();
            assert!([agent.ended, TERMINATED].contains(&ended), "{ended}");
        }
        Launcher::Terminal(command, dialogue) => {
            terminal::talks(&world, &agent, &model, command, dialogue);
        }
    }

    // It did its task.
    let (heard, results) = model.heard();
    let result = |step: &str| {
        // Without tools it tells of all that its tests printed at once.
        let result = if has_tools { results.get(step) } else { results.get("edit") };
        result.map_or("", String::as_str)
    };
    let subject = if has_tools { "fixed" } else { CLOSING };
    assert!(result("end").contains("the-end"), "{results:#?}");
    assert!(heard.contains("marker-of-rules"), "{results:#?}");
    for (step, text) in [
        ("read", "marker-of-the-test"),
        ("fails", if has_tools { "FAILED" } else { "" }),
        ("passes", "OK"),
        ("commit", subject),
        ("commit", "Files that the policy shows"),
        ("curl", "rule `default`"),
        ("bomb", "bomb-stopped"),
    ] {
        assert!(result(step).contains(text), "{step}: {results:#?}");
    }

    // Forbidden actions failed.
    for marker in ["marker-of-env", "marker-of-ssh", "marker-of-other"] {
        assert!(!heard.contains(marker), "{marker}: {results:#?}");
    }
    assert!(!world.base().join("other/planted").exists());
    assert_eq!(canary.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let large = std::fs::metadata(world.at("ws/large")).map_or(0, |large| large.len());
    assert!(large < 1 << 30, "{large}");
    let after = content(&world.base().join("ws"));
    let is_changed = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let changed: Vec<_> = after.keys().filter(is_changed).collect();
    let git_directory = world.base().join("ws/.git");
    assert!(!changed.iter().any(|path| path.starts_with(&git_directory)), "{changed:?}");

    // The log records it, and verifies; its commits are imported; all of it is undone.
    let records = world.records();
    let session = records.iter().rev().find(|record| record["kind"] == "start").unwrap();
    let session = said(session, "session");
    world.assert_fixed();
    let connected = |decision: &str, to: &str, rule: &str| {
        records.iter().any(|record| {
            let is_so = said(record, "op") == "connect" && said(record, "decision") == decision;
            let host = said(&record["facts"], "host");
            is_so && host == to && said(record, "rule").starts_with(rule)
        })
    };
    let own = format!("preset:{}:", agent.preset);
    assert!(connected("allow", "127.0.0.2", &own), "{records:#?}");
    assert!(connected("deny", "127.0.0.1", "default"), "{records:#?}");
    world.operator(&["audit", "verify"]);
    world.operator(&["git", "import", "--session", session, "--yes"]);
    let name = format!("refs/portcullis/{session}/main");
    assert_eq!(git(&world, &["log", "-1", "--format=%s", &name]), subject);
    assert_eq!(git(&world, &["diff", "--name-only", "HEAD", &name]), "calc.py");
    world.operator(&["backup", "undo", "--session", session, "--yes"]);
    assert_eq!(content(&world.base().join("ws")), before);
    world.operator(&["audit", "verify"]);
}

/// The agent on its command line and in an editor, as each user.
fn fixes_tests(agent: fn(As) -> Agent) {
    for who in users() {
        fixes_a_test(agent, who, &Launcher::CommandLine);
        fixes_a_test(agent, who, &Launcher::Editor);
    }
}

#[test]
fn claude_code_fixes_a_test() {
    fixes_tests(table::claude_code);
}

#[test]
fn gemini_cli_fixes_a_test() {
    fixes_tests(table::gemini_cli);
}

#[test]
fn fast_agent_fixes_a_test() {
    fixes_a_test(table::fast_agent, users()[0], &Launcher::CommandLine);
    fixes_a_test(table::fast_agent, users()[0], &Launcher::Editor);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn codex_fixes_a_test() {
    fixes_tests(table::codex);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn opencode_fixes_a_test() {
    fixes_tests(table::opencode);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn qwen_code_fixes_a_test() {
    fixes_tests(table::qwen_code);
}

#[test]
#[ignore = "`tests/run.sh full` installs it"]
fn aider_fixes_a_test() {
    fixes_a_test(table::aider, users()[0], &Launcher::CommandLine);
}
