//! Real agents, unmodified, whose model follows a plan: they fix a failing test and commit it,
//! what they must not do fails, and the operator sees, imports and undoes what they did.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    path::PathBuf,
};

use serde_json::json;

use super::{repository::git, *};
use crate::{
    acp_client::{Client, Editor},
    fast_agent::peers,
    fast_agent_confined::python,
};

mod keyed;

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

/// Placeholder of the model's address.
const MODEL: &str = "MODEL";

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
    fn start(place: &Place, plan: Plan) -> Self {
        Self::start_with(place, plan, &[])
    }

    /// The same over TLS, with a certificate and its key.
    fn start_with(place: &Place, plan: Plan, certificate: &[PathBuf]) -> Self {
        let (steps, plan): (Vec<_>, Vec<_>) = plan.into_iter().unzip();
        let (file, log) = (place.at("plan.json"), place.at("model.jsonl"));
        std::fs::write(&file, Value::from(plan).to_string()).unwrap();
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/model.py"));
        command.args([&file, &log]).args(certificate);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { process, port: port.trim().to_owned(), log: log.into(), steps }
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
enum Way {
    /// Its own command line, in `exec`.
    CommandLine,
    /// An editor, through `run`.
    Editor,
}

/// An agent that is started as its documentation shows.
struct Agent {
    preset: &'static str,
    /// The directories with its programs.
    programs: Vec<PathBuf>,
    /// Options of `run` and `exec` besides.
    options: Vec<String>,
    /// With [`MODEL`] where the model's address belongs.
    environment: Vec<(&'static str, &'static str)>,
    command: Vec<&'static str>,
    /// It has tools of its own that read, write and edit files; else a shell alone.
    has_file_tools: bool,
    /// A file of its home, with its text.
    home: Option<(&'static str, &'static str)>,
}

/// The agents that npm has, where every user can read them.
fn packages(who: As) -> PathBuf {
    static COPY: OnceLock<TempDir> = OnceLock::new();
    let installed = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/agents"));
    let modules = installed.join("node_modules");
    assert!(modules.join(".bin/gemini").exists(), "no agents; see tests/peers/README.md");
    if who == As::Root || !is_root() {
        return modules;
    }
    let copy = COPY.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        set_mode(dir.path(), 0o755);
        let mut command = Command::new("cp");
        command.args(["--archive", "--reflink=auto"]).arg(&modules).arg(dir.path());
        assert!(command.status().unwrap().success());
        dir
    });
    copy.path().join("node_modules")
}

fn claude_code(who: As) -> Agent {
    let modules = packages(who);
    let packages = std::fs::read_dir(modules.join("@anthropic-ai")).unwrap();
    let mut packages = packages.map(|package| package.unwrap().path());
    let program = packages.find(|package| package.join("claude").is_file()).unwrap();
    Agent {
        preset: "claude-code",
        programs: vec![modules.join(".bin"), program],
        options: Vec::new(),
        environment: vec![("ANTHROPIC_AUTH_TOKEN", "none"), ("ANTHROPIC_BASE_URL", MODEL)],
        command: vec!["claude", "-p", "--dangerously-skip-permissions", "fix the test"],
        has_file_tools: true,
        home: None,
    }
}

fn gemini_cli(who: As) -> Agent {
    Agent {
        preset: "gemini-cli",
        programs: vec![packages(who).join(".bin")],
        options: Vec::new(),
        environment: vec![("GEMINI_API_KEY", "none"), ("GOOGLE_GEMINI_BASE_URL", MODEL)],
        command: vec!["gemini", "--skip-trust", "--yolo", "-m", "gemini-2.5-flash", "-p", "fix it"],
        has_file_tools: true,
        home: Some((
            ".gemini/settings.json",
            r#"{"security": {"auth": {"selectedType": "gemini-api-key"}}}"#,
        )),
    }
}

fn fast_agent(_who: As) -> Agent {
    let peers = peers();
    let python = python(&peers).to_str().unwrap().to_owned();
    Agent {
        preset: "fast-agent",
        programs: vec![peers.join("bin")],
        options: vec!["--agent-read".to_owned(), python],
        environment: vec![
            ("GENERIC_API_KEY", "none"),
            ("GENERIC_BASE_URL", "MODEL/v1"),
            ("FAST_AGENT_MODEL", "generic.scripted"),
        ],
        command: vec!["fast-agent", "go", "--shell", "--message", "fix the test"],
        has_file_tools: false,
        home: None,
    }
}

/// A project with a failing test, committed.
fn project(who: As) -> Place {
    let place = Place::new(who);
    for (name, text) in FILES {
        let path = place.base().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    git(&place, &["init", "-q", "-b", "main"]);
    git(&place, &["add", "--all"]);
    git(&place, &["commit", "-qm", "the operator's"]);
    // The owner of this must not be the reason of a refusal.
    set_mode(&place.base().join("other"), 0o777);
    if is_root() && who != As::Root {
        place.give_away();
    }
    place
}

fn plan(place: &Place, has_file_tools: bool, canary: u16) -> Plan {
    let test = "PYTHONDONTWRITEBYTECODE=1 python3 -m unittest 2>&1 | tail -4";
    let shell = |command: &str| json!({"do": "shell", "command": command});
    let read = |name: &str| match has_file_tools {
        true => json!({"do": "read", "path": place.at(&format!("ws/{name}"))}),
        false => shell(&format!("cat {name}")),
    };
    let hook = json!({
        "do": "write", "path": place.at("ws/.git/hooks/pre-commit"), "content": "#!/bin/sh\nexit 1\n"
    });
    let (calc, outside) = (place.at("ws/calc.py"), place.base().display());
    let edit = json!({"do": "edit", "path": calc, "old": "return a - b", "new": "return a + b"});
    let without = |file_tool: Value, command: &str| match has_file_tools {
        true => file_tool,
        false => shell(command),
    };
    let connect = format!(
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {canary}), 5)'"
    );
    vec![
        ("read", read("test_calc.py")),
        ("fails", shell(test)),
        ("code", read("calc.py")),
        ("edit", without(edit, "sed -i 's/a - b/a + b/' calc.py")),
        ("passes", shell(test)),
        ("commit", shell("git commit -qam fixed && git log --format=%s")),
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
        ("large", shell("truncate -s 10G large; ls large")),
        ("bomb", shell(BOMB)),
        ("end", shell("echo the-end")),
    ]
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

impl Place {
    /// `portcullis ARGS…` under the policy that is built in.
    fn with_agent(&self, agent: &Agent, model: &Model, args: &[&str]) -> Command {
        let options = ["--preset", agent.preset, "--agent-network", &model.port];
        let options = [&options[..], &["--agent-limit", "processes=500"]].concat();
        let more: Vec<_> = agent.options.iter().map(String::as_str).collect();
        let (command, rest) = args.split_first().unwrap();
        let mut command = self.limited(&[&[*command], &options[..], &more, rest].concat());
        let path = std::env::var("PATH").unwrap();
        let programs = agent.programs.iter().map(|program| format!("{}:", program.display()));
        command.env("PATH", programs.collect::<String>() + &path);
        let url = format!("http://127.0.0.1:{}", model.port);
        let environment = agent.environment.iter();
        command.envs(environment.map(|(name, value)| (name, value.replace(MODEL, &url))));
        command
    }

    /// `portcullis ARGS…` by the operator, which has to succeed.
    #[track_caller]
    fn operator(&self, args: &[&str]) -> String {
        let ended = end(self.limited(args).spawn().unwrap());
        assert_eq!(ended.code, 0, "{args:?} {ended:?}");
        ended.stdout
    }
}

fn fixes_a_test(agent: fn(As) -> Agent, who: As, way: &Way) {
    let agent = agent(who);
    let place = project(who);
    let canary = TcpListener::bind("127.0.0.1:0").unwrap();
    canary.set_nonblocking(true).unwrap();
    let before = content(&place.base().join("ws"));
    let port = canary.local_addr().unwrap().port();
    let model = Model::start(&place, plan(&place, agent.has_file_tools, port));

    if let Some((file, text)) = agent.home {
        let script = format!("mkdir -p $(dirname ~/{file}) && echo '{text}' >~/{file}");
        let args = ["exec", "--", "sh", "-c", &script];
        let ended = end(place.with_agent(&agent, &model, &args).spawn().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    match way {
        Way::CommandLine => {
            let args = [&["exec", "--"], &agent.command[..]].concat();
            let ended = end(place.with_agent(&agent, &model, &args).spawn().unwrap());
            assert_eq!(ended.code, 0, "{ended:?}");
        }
        Way::Editor => {
            let mut run = place.with_agent(&agent, &model, &["run"]).spawn().unwrap();
            let streams = (run.stdout.take().unwrap(), run.stdin.take().unwrap());
            let mut client = Client::with(streams.0, streams.1, Editor::default());
            let session = client.session(&place.base().join("ws"));
            let turn = client.prompt(&session, "fix the test");
            assert_eq!(turn.stop_reason, "end_turn", "{}", turn.said);
            drop(client);
            assert!(run.wait().unwrap().success());
        }
    }

    // It did its task.
    let (heard, results) = model.heard();
    let result = |step: &str| results.get(step).map_or("", String::as_str);
    assert!(result("end").contains("the-end"), "{results:#?}");
    assert!(heard.contains("marker-of-rules"), "{results:#?}");
    for (step, text) in [
        ("read", "marker-of-the-test"),
        ("fails", "FAILED"),
        ("passes", "OK"),
        ("commit", "fixed"),
        ("commit", "Files that the policy shows"),
        ("bomb", "bomb-stopped"),
    ] {
        assert!(result(step).contains(text), "{step}: {results:#?}");
    }
    let calc = std::fs::read_to_string(place.at("ws/calc.py")).unwrap();
    assert_eq!(calc, "def add(a, b):\n    return a + b\n");

    // Forbidden actions failed.
    for marker in ["marker-of-env", "marker-of-ssh", "marker-of-other"] {
        assert!(!heard.contains(marker), "{marker}: {results:#?}");
    }
    assert!(!place.base().join("other/planted").exists());
    assert_eq!(canary.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let large = std::fs::metadata(place.at("ws/large")).map_or(0, |large| large.len());
    assert!(large < 1 << 30, "{large}");
    let after = content(&place.base().join("ws"));
    let is_changed = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let changed: Vec<_> = after.keys().filter(is_changed).collect();
    let git_directory = place.base().join("ws/.git");
    assert!(!changed.iter().any(|path| path.starts_with(&git_directory)), "{changed:?}");

    // The log records it, and verifies; its commits are imported; all of it is undone.
    let records = place.records();
    let session = records.iter().rev().find(|record| record["kind"] == "start").unwrap();
    let session = said(session, "session");
    let told = |op: &str, path: &str| {
        records.iter().any(|record| {
            let names = [said(record, "path"), said(record, "to"), said(&record["facts"], "to")];
            said(record, "op") == op && names.contains(&path)
        })
    };
    assert!(told("read", "test_calc.py"), "{records:#?}");
    assert!(told("write", "calc.py") || told("rename", "calc.py"), "{records:#?}");
    place.operator(&["audit", "verify"]);
    place.operator(&["git", "import", "--session", session, "--yes"]);
    let name = format!("refs/portcullis/{session}/main");
    assert_eq!(git(&place, &["log", "-1", "--format=%s", &name]), "fixed");
    assert_eq!(git(&place, &["diff", "--name-only", "HEAD", &name]), "calc.py");
    place.operator(&["backup", "undo", "--session", session, "--yes"]);
    assert_eq!(content(&place.base().join("ws")), before);
    place.operator(&["audit", "verify"]);
}

#[test]
fn claude_code_fixes_a_test() {
    for who in users() {
        fixes_a_test(claude_code, who, &Way::CommandLine);
    }
    fixes_a_test(claude_code, users()[0], &Way::Editor);
}

#[test]
fn gemini_cli_fixes_a_test() {
    for who in users() {
        fixes_a_test(gemini_cli, who, &Way::CommandLine);
    }
    fixes_a_test(gemini_cli, users()[0], &Way::Editor);
}

#[test]
fn fast_agent_fixes_a_test() {
    fixes_a_test(fast_agent, users()[0], &Way::CommandLine);
    fixes_a_test(fast_agent, users()[0], &Way::Editor);
}
