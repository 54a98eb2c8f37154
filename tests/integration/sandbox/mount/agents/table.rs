//! The agents, each as its page says that it is started.

use super::*;

/// Placeholder for the model's address.
pub(super) const MODEL: &str = "MODEL";

/// Means by which an agent reaches files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tools {
    /// Tools that read, write and edit them, and a shell.
    Files,
    /// A shell alone.
    Shell,
    /// None: it takes edits from what the model says, and runs tests by itself.
    None,
}

/// An agent as its page says that it is started.
pub(super) struct Agent {
    pub(super) preset: &'static str,
    /// The directories with its programs.
    pub(super) programs: Vec<PathBuf>,
    /// Options of `run` and `exec` besides.
    pub(super) options: Vec<String>,
    /// The text has [`MODEL`] in place of the model's address.
    pub(super) environment: Vec<(&'static str, &'static str)>,
    pub(super) command: Vec<&'static str>,
    pub(super) tools: Tools,
    /// The exit code of `run` when the editor is gone: that of a signal, where it goes on then.
    pub(super) ended: i32,
    /// A file that its home has before, with [`MODEL`] as in the environment.
    pub(super) home: Option<(&'static str, String)>,
}

impl Agent {
    fn new(preset: &'static str, programs: Vec<PathBuf>, command: &[&'static str]) -> Self {
        Self {
            preset,
            programs,
            options: Vec::new(),
            environment: Vec::new(),
            command: command.to_vec(),
            tools: Tools::Files,
            ended: 0,
            home: None,
        }
    }
}

/// Packages of npm beneath a directory of the tests, where every user can read them.
fn packages(who: As, directory: &'static str, program: &str) -> PathBuf {
    static COPIES: Mutex<BTreeMap<&str, TempDir>> = Mutex::new(BTreeMap::new());
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let modules = installed.join("node_modules");
    assert!(modules.join(".bin").join(program).exists(), "no agents; see tests/peers/README.md");
    if who == As::Root || !is_root() {
        return modules;
    }
    let mut copies = COPIES.lock().unwrap();
    let copy = copies.entry(directory).or_insert_with(|| {
        let dir = TempDir::new().unwrap();
        set_mode(dir.path(), 0o755);
        let mut command = Command::new("cp");
        command.args(["--archive", "--reflink=auto"]).arg(&modules).arg(dir.path());
        assert!(command.status().unwrap().success());
        dir
    });
    copy.path().join("node_modules")
}

/// The agents of every run.
fn usual(who: As) -> PathBuf {
    packages(who, "tests/peers/agents", "gemini")
}

/// Those of `tests/run.sh full`.
fn more(who: As) -> PathBuf {
    packages(who, "tests/peers/agents/more", "qwen")
}

pub(super) fn claude_code(who: As) -> Agent {
    let modules = usual(who);
    let packages = std::fs::read_dir(modules.join("@anthropic-ai")).unwrap();
    let mut packages = packages.map(|package| package.unwrap().path());
    let program = packages.find(|package| package.join("claude").is_file()).unwrap();
    let command = ["claude", "-p", "--dangerously-skip-permissions", "fix the test"];
    Agent {
        environment: vec![("ANTHROPIC_AUTH_TOKEN", "none"), ("ANTHROPIC_BASE_URL", MODEL)],
        ..Agent::new("claude-code", vec![modules.join(".bin"), program], &command)
    }
}

pub(super) fn gemini_cli(who: As) -> Agent {
    let command =
        ["gemini", "--skip-trust", "--yolo", "-m", "gemini-2.5-flash", "-p", "fix the test"];
    let settings = r#"{"security": {"auth": {"selectedType": "gemini-api-key"}}}"#;
    Agent {
        environment: vec![("GEMINI_API_KEY", "none"), ("GOOGLE_GEMINI_BASE_URL", MODEL)],
        home: Some((".gemini/settings.json", settings.to_owned())),
        ..Agent::new("gemini-cli", vec![usual(who).join(".bin")], &command)
    }
}

pub(super) fn fast_agent(_who: As) -> Agent {
    let peers = peers();
    let python = python(&peers).to_str().unwrap().to_owned();
    let command = ["fast-agent", "go", "--shell", "--message", "fix the test"];
    Agent {
        options: vec!["--agent-read".to_owned(), python],
        environment: vec![
            ("GENERIC_API_KEY", "none"),
            ("GENERIC_BASE_URL", "MODEL/v1"),
            ("FAST_AGENT_MODEL", "generic.scripted"),
        ],
        tools: Tools::Shell,
        ..Agent::new("fast-agent", vec![peers.join("bin")], &command)
    }
}

pub(super) fn codex(who: As) -> Agent {
    let configuration = "model = \"scripted\"\nmodel_provider = \"scripted\"\n\
        [model_providers.scripted]\nname = \"scripted\"\nbase_url = \"MODEL/v1\"\n\
        wire_api = \"responses\"\nenv_key = \"CODEX_API_KEY\"\n";
    let command = ["codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "fix the test"];
    Agent {
        environment: vec![("CODEX_API_KEY", "none")],
        tools: Tools::Shell,
        ended: 143,
        home: Some((".codex/config.toml", configuration.to_owned())),
        ..Agent::new("codex", vec![more(who).join(".bin")], &command)
    }
}

pub(super) fn opencode(who: As) -> Agent {
    let model = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": "scripted",
        "options": {"baseURL": "MODEL/v1", "apiKey": "none"},
        "models": {"scripted": {"name": "scripted", "tool_call": true}}
    });
    let configuration = json!({
        "autoupdate": false,
        "share": "disabled",
        "model": "scripted/scripted",
        "small_model": "scripted/scripted",
        "provider": {"scripted": model},
        "permission": {"*": "allow", "read": "allow"}
    });
    // Its package has the program in the place of this one only after an install script.
    let programs = more(who).join("opencode-linux-x64/bin");
    // It would ask a host that the tests do not reach for its list of models.
    let offline = ["--agent-env", "OPENCODE_DISABLE_MODELS_FETCH=1"];
    Agent {
        options: offline.map(str::to_owned).to_vec(),
        home: Some((".config/opencode/opencode.json", configuration.to_string())),
        ..Agent::new("opencode", vec![programs], &["opencode", "run", "fix the test"])
    }
}

pub(super) fn qwen_code(who: As) -> Agent {
    let command = ["qwen", "--auth-type", "openai", "--yolo", "-p", "fix the test"];
    let settings = r#"{"security": {"auth": {"selectedType": "openai"}}}"#;
    Agent {
        environment: vec![
            ("OPENAI_API_KEY", "none"),
            ("OPENAI_BASE_URL", "MODEL/v1"),
            ("OPENAI_MODEL", "scripted"),
        ],
        home: Some((".qwen/settings.json", settings.to_owned())),
        ..Agent::new("qwen-code", vec![more(who).join(".bin")], &command)
    }
}

/// Its command without a prompt.
pub(super) const AIDER: [&str; 14] = [
    "aider",
    "--model",
    "openai/scripted",
    "--edit-format",
    "diff",
    "--no-show-model-warnings",
    "--yes-always",
    "--read",
    "AGENTS.md",
    "--auto-test",
    "--test-cmd",
    "sh ~/attempts.sh",
    "calc.py",
    "test_calc.py",
];

pub(super) fn aider(_who: As) -> Agent {
    let environment =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/agents/more/.venv"));
    assert!(environment.join("bin/aider").exists(), "no aider; see tests/peers/README.md");
    let python = python(environment).to_str().unwrap().to_owned();
    let command = [&AIDER[..], &["--message", "fix the test"]].concat();
    Agent {
        options: vec!["--agent-read".to_owned(), python],
        environment: vec![("OPENAI_API_KEY", "none"), ("OPENAI_API_BASE", "MODEL/v1")],
        tools: Tools::None,
        ..Agent::new("aider", vec![environment.join("bin")], &command)
    }
}
