//! Interop: the real fast-agent under `portcullis run`, driven by our ACP
//! client, in its sandbox.

use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use crate::{
    acp_client::{Client, Editor, Turn},
    acp_rig::POLICY,
    common::World,
    fast_agent::{arguments, fast_agent_config, peers},
    scripted_agent::TERMINATED,
};

pub(crate) struct Run {
    pub(crate) world: World,
    client: Option<Client>,
    session: String,
    gateway: Child,
}

impl Run {
    /// The agent before an editor that offers nothing, served from the disk.
    fn start(more: &[&str]) -> Self {
        Self::with("disk", &fast_agent_config(), |_| Editor::default(), more)
    }

    /// A workspace with `a.txt` and the denied `secret/key.txt`, and
    /// `portcullis run --source SOURCE -- fast-agent-acp MORE…` in front of
    /// it; `editor` is given the workspace's root.
    pub(crate) fn with(
        source: &str,
        config: &Path,
        editor: impl FnOnce(&Path) -> Editor,
        more: &[&str],
    ) -> Self {
        Self::launch(&["--no-mount"], source, config, editor, more)
    }

    /// The same with these options of `run`.
    fn launch(
        options: &[&str],
        source: &str,
        config: &Path,
        editor: impl FnOnce(&Path) -> Editor,
        more: &[&str],
    ) -> Self {
        let world = World::with_policy(POLICY);
        world.file("a.txt", "one\ntwo żółć\nthree\n");
        world.file("secret/key.txt", "TOP-SECRET\n");
        let home = world.base().join("agent-home");
        std::fs::create_dir_all(&home).unwrap();
        // The agent may run as another user than this test.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&home, open).unwrap();
        let home = home.to_str().unwrap();
        let peers = peers();
        let scripts = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/progress.py"));
        let mut command = world.command(&["run", "--source", source, "--agent", "fast-agent"]);
        for dir in [peers.as_path(), &python(&peers), config, scripts] {
            command.arg("--agent-read").arg(dir);
        }
        let mut gateway = command
            .args(options)
            .args(["--agent-write", home, "--"])
            .arg(peers.join("bin/fast-agent-acp"))
            .args(arguments(config, home))
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let streams = (gateway.stdout.take().unwrap(), gateway.stdin.take().unwrap());
        let root = world.root().canonicalize().unwrap();
        let mut client = Client::with(streams.0, streams.1, editor(&root));
        let session = client.session(&root);
        Self { world, client: Some(client), session, gateway }
    }

    /// An absolute path in the workspace.
    pub(crate) fn path(&self, name: &str) -> String {
        self.world.root().canonicalize().unwrap().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        self.client.as_mut().unwrap()
    }

    pub(crate) fn prompt(&mut self, text: &str) -> Turn {
        let session = self.session.clone();
        self.client().prompt(&session, text)
    }

    pub(crate) fn tool(&mut self, tool: &str, arguments: &Value) -> Turn {
        let session = self.session.clone();
        self.client().tool(&session, tool, arguments)
    }

    /// Hangs up, as an editor does, and gives what was recorded.
    pub(crate) fn end(mut self) -> Vec<Value> {
        self.client = None;
        let status = self.gateway.wait().unwrap();
        assert!(status.success() || status.code() == Some(TERMINATED), "{status}");
        self.world.run(&["audit", "verify"]).ok();
        self.world.records()
    }
}

/// Returns the directory in which the virtual environment's interpreter is
/// installed.
pub(crate) fn python(peers: &Path) -> PathBuf {
    let config = std::fs::read_to_string(peers.join("pyvenv.cfg")).unwrap();
    let home = config.lines().find_map(|line| line.strip_prefix("home = ")).unwrap();
    Path::new(home).parent().unwrap().to_owned()
}

#[test]
fn fast_agent_works_in_its_sandbox_through_the_gateway_alone() {
    let mut run = Run::start(&[]);

    let read = json!({"path": run.path("a.txt")});
    let turn = run.tool("read_text_file", &read);
    assert_eq!(turn.stop_reason, "end_turn");
    assert!(turn.said.contains("two żółć") && turn.said.contains("three"), "{}", turn.said);

    let lines = json!({"path": run.path("a.txt"), "line": 2, "limit": 1});
    let turn = run.tool("read_text_file", &lines);
    assert!(turn.said.contains("two żółć") && !turn.said.contains("three"), "{}", turn.said);

    // fast-agent reads a file before it writes it.
    let write = json!({"path": run.path("a.txt"), "content": "ünïcode\nok\n"});
    let turn = run.tool("write_text_file", &write);
    assert!(turn.states.contains(&"completed".to_owned()), "{}", turn.said);
    assert_eq!(run.world.read("a.txt"), "ünïcode\nok\n");

    let missing = json!({"path": run.path("missing.txt")});
    let turn = run.tool("read_text_file", &missing);
    assert!(turn.states.contains(&"failed".to_owned()), "{}", turn.said);

    let denied = json!({"path": run.path("secret/key.txt"), "content": "pwned"});
    for tool in ["read_text_file", "write_text_file"] {
        let turn = run.tool(tool, &denied);
        assert!(turn.states.contains(&"failed".to_owned()), "{tool} {}", turn.said);
        assert!(turn.said.contains("denied"), "{tool} {}", turn.said);
        assert!(!turn.said.contains("TOP-SECRET"), "{tool} {}", turn.said);
    }
    assert_eq!(run.world.read("secret/key.txt"), "TOP-SECRET\n");

    let records = run.end();
    let ops = |kind: &str, op: &str, decision: &str| {
        let is = |record: &&Value| {
            record["kind"] == kind && record["op"] == op && record["decision"] == decision
        };
        records.iter().filter(is).count()
    };
    // Two asked for, one before each of the two writes, and the missing file.
    assert_eq!(ops("intent", "write", "allow"), 1, "{records:#?}");
    assert!(ops("decision", "read", "allow") >= 4, "{records:#?}");
    assert!(ops("decision", "read", "deny") >= 1, "{records:#?}");
    let intent = records.iter().find(|record| record["kind"] == "intent").unwrap();
    assert!(intent["backup"].is_string(), "{intent}");
    assert!(
        records.iter().any(|record| record["kind"] == "outcome" && record["of"] == intent["seq"])
    );
}

#[test]
fn a_shell_of_the_agent_sees_in_a_mount_what_the_policy_shows() {
    let config = fast_agent_config();
    let mut run = Run::launch(&[], "disk", &config, |_| Editor::default(), &["--shell"]);
    let turn = run.tool("bash", &json!({"command": format!("cat {:?}", run.path("a.txt"))}));
    assert!(turn.said.contains("żółć"), "{}", turn.said);
    let command = format!("cat {:?}; echo status=$?", run.path("secret/key.txt"));
    let turn = run.tool("bash", &json!({ "command": command }));
    assert!(turn.said.contains("status=1") && !turn.said.contains("TOP-SECRET"), "{}", turn.said);
}

#[test]
fn a_shell_of_the_agent_cannot_reach_the_workspace() {
    let mut run = Run::start(&["--shell"]);
    // That the shell works at all is what makes the refusal mean something.
    let turn = run.tool("bash", &json!({"command": "echo shell-$((6 * 7))"}));
    assert!(turn.said.contains("shell-42"), "{}", turn.said);
    for name in ["a.txt", "secret/key.txt"] {
        let command = format!("cat {:?}; echo status=$?", run.path(name));
        let turn = run.tool("bash", &json!({ "command": command }));
        assert!(turn.said.contains("status=1"), "{}", turn.said);
        assert!(!turn.said.contains("żółć") && !turn.said.contains("TOP-SECRET"), "{}", turn.said);
    }
    let command = format!("echo pwned > {:?}; ls -A {:?} | wc -l", run.path("a.txt"), run.path(""));
    let turn = run.tool("bash", &json!({ "command": command }));
    assert!(!turn.said.contains("secret"), "{}", turn.said);
    assert_eq!(run.world.read("a.txt"), "one\ntwo żółć\nthree\n");
    run.end();
}
