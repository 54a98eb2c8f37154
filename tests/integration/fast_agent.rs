//! Interop: the real fast-agent behind the ACP proxy, driven by our ACP client.
//!
//! fast-agent runs with the model `passthrough`, which calls the tools that a
//! prompt names, so no language model is needed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
};

use portcullis::acp::{self, ClosedBy, Config};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    acp_client::Client,
    acp_rig::{connection, gateway, workspace},
};

/// The virtual environment with the agent.
pub(crate) fn peers() -> PathBuf {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/.venv");
    let dir = std::env::var_os("PORTCULLIS_TEST_PEERS").unwrap_or_else(|| default.into());
    let dir = PathBuf::from(dir);
    assert!(
        dir.join("bin/fast-agent-acp").exists(),
        "no fast-agent in {}; see tests/peers/README.md, or set PORTCULLIS_TEST_PEERS",
        dir.display()
    );
    dir
}

/// A configuration that needs nothing but fast-agent itself.
pub(crate) fn fast_agent_config() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/fastagent.config.yaml").into()
}

/// The arguments that every start of fast-agent has; `home` is written to.
pub(crate) fn arguments(config: &Path, home: &str) -> Vec<String> {
    let config = config.to_str().unwrap();
    ["--model", "passthrough", "--config-path", config, "--home", home, "--name", "t"]
        .map(str::to_owned)
        .to_vec()
}

/// fast-agent behind the ACP proxy, in this process and without confinement.
struct Scene {
    client: Client,
    session: String,
    root: PathBuf,
    agent: Child,
    served: JoinHandle<ClosedBy>,
    _dir: TempDir,
}

impl Scene {
    fn start(buffers: Option<&[(&str, &str)]>) -> Self {
        let (dir, root) = workspace();
        let gateway = gateway(&root, dir.path());
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        let mut agent = Command::new(peers().join("bin/fast-agent-acp"))
            .args(arguments(&fast_agent_config(), home.to_str().unwrap()))
            .current_dir(&home)
            .env_clear()
            .envs([
                ("HOME", home.to_str().unwrap()),
                ("PATH", "/usr/bin:/bin"),
                ("LANG", "C.UTF-8"),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let streams = (agent.stdout.take().unwrap(), agent.stdin.take().unwrap());
        let config = Config::new(connection(), root.clone());
        let (from_editor, editor_in) = std::io::pipe().unwrap();
        let (editor_out, to_editor) = std::io::pipe().unwrap();
        let served = thread::spawn(move || {
            acp::serve(&gateway, &config, (from_editor, to_editor), streams).unwrap()
        });
        let absolute = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let buffers = buffers.map(|buffers| {
            buffers.iter().map(|(name, text)| (absolute(name), (*text).to_owned())).collect()
        });
        let mut client = Client::start(editor_out, editor_in, buffers);
        let session = client.session(&root);
        Self { client, session, root, agent, served, _dir: dir }
    }

    fn path(&self, name: &str) -> String {
        self.root.join(name).to_str().unwrap().to_owned()
    }

    fn end(self) {
        drop(self.client);
        assert_eq!(self.served.join().unwrap(), ClosedBy::Editor);
        let mut agent = self.agent;
        agent.wait().unwrap();
    }
}

#[test]
fn reads_writes_and_refusals_through_the_transport() {
    let mut scene = Scene::start(None);
    let session = scene.session.clone();

    let read = json!({"path": scene.path("a.txt")});
    let turn = scene.client.tool(&session, "read_text_file", &read);
    assert_eq!(turn.stop_reason, "end_turn");
    assert!(turn.said.contains("two żółć") && turn.said.contains("three"), "{}", turn.said);

    let lines = json!({"path": scene.path("a.txt"), "line": 2, "limit": 1});
    let turn = scene.client.tool(&session, "read_text_file", &lines);
    assert!(turn.said.contains("two żółć") && !turn.said.contains("three"), "{}", turn.said);

    // fast-agent reads a file before it writes it, to show the difference.
    let write = json!({"path": scene.path("new.txt"), "content": "ünïcode\nok\n"});
    let turn = scene.client.tool(&session, "write_text_file", &write);
    assert!(turn.states.contains(&"completed".to_owned()), "{}", turn.said);
    assert_eq!(fs::read_to_string(scene.path("new.txt")).unwrap(), "ünïcode\nok\n");

    let missing = json!({"path": scene.path("missing.txt")});
    let turn = scene.client.tool(&session, "read_text_file", &missing);
    assert!(turn.states.contains(&"failed".to_owned()), "{}", turn.said);

    let denied = json!({"path": scene.path("secret/key.txt"), "content": "pwned"});
    for tool in ["read_text_file", "write_text_file"] {
        let turn = scene.client.tool(&session, tool, &denied);
        assert!(turn.states.contains(&"failed".to_owned()), "{tool} {}", turn.said);
        assert!(turn.said.contains("denied"), "{tool} {}", turn.said);
        assert!(!turn.said.contains("TOP-SECRET"), "{tool} {}", turn.said);
    }
    assert_eq!(fs::read_to_string(scene.path("secret/key.txt")).unwrap(), "TOP-SECRET\n");

    let methods: Vec<_> =
        scene.client.asked.iter().filter_map(|asked| asked["method"].as_str()).collect();
    assert!(methods.iter().all(|method| *method == "session/request_permission"), "{methods:?}");
    scene.end();
}

#[test]
fn unsaved_buffers_reach_the_agent() {
    let mut scene = Scene::start(Some(&[("a.txt", "not saved yet\n")]));
    let session = scene.session.clone();
    let read = json!({"path": scene.path("a.txt")});
    let turn = scene.client.tool(&session, "read_text_file", &read);
    assert!(turn.said.contains("not saved yet"), "{}", turn.said);
    scene.end();
}
