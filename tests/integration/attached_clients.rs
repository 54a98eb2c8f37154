//! The agent's MCP clients are part of its sessions: what ends there ends here.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::Arc,
    time::Duration,
};

use portcullis::{
    gateway::{Answer, Gateway},
    mcp::{
        attach::AttachTokens,
        sandbox_socket::{Connections, SandboxSocket},
    },
};
use serde_json::{Value, json};

use crate::{
    acp_rig::{POLICY, Rig, gateway_under, notification, request, result, workspace},
    sandbox_socket,
};

/// Policy under which removals below `ask` wait for an approval.
fn policy() -> String {
    format!(
        "{POLICY}\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\n\
         operations = [\"remove\"]\npaths = [\"ask/**\"]\n"
    )
}

/// An editor, an agent, and the gateway's MCP server for that.
pub(crate) struct Host {
    rig: Rig,
    pub(crate) gateway: Arc<Gateway>,
    inside: Option<SandboxSocket>,
    sessions: i64,
}

/// An MCP client of the agent.
pub(crate) struct AttachedClient {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Host {
    pub(crate) fn new() -> Self {
        let (dir, root) = workspace();
        std::fs::create_dir(root.join("ask")).unwrap();
        let gateway = Arc::new(gateway_under(&policy(), &root, dir.path()));
        let attached_clients = AttachTokens::new(Path::new("/p"), Path::new("/s"));
        let config = sandbox_socket::config(root.clone());
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let (shared, among) = (Arc::clone(&gateway), Arc::clone(&attached_clients));
        let inside =
            SandboxSocket::start(Connections::Listener(listener.into()), shared, among, config)
                .unwrap();
        let rig = Rig::over(Arc::clone(&gateway), (dir, root), |config| {
            config.attach = Some(attached_clients);
        });
        Self { rig: rig.made_ready(json!({})), gateway, inside: Some(inside), sessions: 1 }
    }

    /// Opens a session, and connects to the server as an attached client of it.
    pub(crate) fn invite(&mut self) -> (String, AttachedClient) {
        self.sessions += 1;
        let (id, session) = (self.sessions, format!("s{}", self.sessions));
        let params = json!({"cwd": self.rig.root, "mcpServers": []});
        self.rig.editor.send(&request(id, "session/new", params));
        let asked = self.rig.agent.hear();
        let word = asked["params"]["mcpServers"][0]["env"][0]["value"].as_str().unwrap().to_owned();
        self.rig.agent.send(&result(id, json!({ "sessionId": session })));
        self.editor_hears(|heard| heard["id"] == id);
        let sandbox_socket = self.rig.root.parent().unwrap().join("socket");
        (session, AttachedClient::new(&sandbox_socket, &word))
    }

    /// Removes `ask/a` as the client; returns the question to the editor's
    /// user.
    fn ask(&mut self, attached_client: &mut AttachedClient) -> Value {
        std::fs::write(self.rig.root.join("ask/a"), "kept").unwrap();
        attached_client.post(7, "rm", json!({"path": "ask/a"}));
        self.editor_hears(|heard| heard["method"] == "session/request_permission")
    }

    /// Returns the editor's next message that fits; questions that are taken
    /// back are skipped.
    fn editor_hears(&self, is: impl Fn(&Value) -> bool) -> Value {
        loop {
            let heard = self.rig.editor.hear();
            if is(&heard) {
                return heard;
            }
            assert_eq!(heard["method"], "$/cancel_request", "{heard}");
        }
    }

    /// Waits until all requests of attached clients are done.
    fn end(&mut self) {
        if let Some(inside) = self.inside.take() {
            inside.stop(std::time::Duration::from_secs(60));
        }
    }

    /// True if an approval, from any source, comes too late now.
    fn is_over(&self) -> bool {
        let waiting = self.gateway.approvals().waiting();
        waiting.iter().all(|ticket| ticket.answer(Answer::Once, "a shell").is_err())
            && self.rig.root.join("ask/a").exists()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}

impl AttachedClient {
    fn new(sandbox_socket: &Path, word: &str) -> Self {
        let mut stream = UnixStream::connect(sandbox_socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(format!("{word}\n").as_bytes()).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        let mut attached_client = Self { stream, lines };
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        attached_client.send(&request(0, "initialize", hello));
        assert_eq!(attached_client.hear().unwrap()["id"], 0);
        attached_client.send(&notification("notifications/initialized", json!({})));
        attached_client
    }

    /// Fails without effect for a client that was disconnected.
    fn send(&mut self, message: &Value) {
        let _ = self.stream.write_all(format!("{message}\n").as_bytes());
    }

    pub(crate) fn post(&mut self, id: i64, tool: &str, arguments: Value) {
        let name = format!("workspace__ws__{tool}");
        self.send(&request(id, "tools/call", json!({"name": name, "arguments": arguments})));
    }

    /// The next message, if there is one before the end.
    pub(crate) fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }
}

/// It was served for as long as the agent had to end.
#[test]
fn what_an_attached_client_begins_after_the_editor_has_gone_is_not_done() {
    let mut host = Host::new();
    let (_, mut attached_client) = host.invite();
    attached_client.post(1, "write_file", json!({"path": "before", "content": "1"}));
    assert_ne!(attached_client.hear().unwrap()["result"]["isError"], true);
    host.rig.editor.hang_up();
    // The agent takes no notice.
    host.rig.agent.hears_the_end();
    attached_client.post(2, "write_file", json!({"path": "after", "content": "2"}));
    attached_client.post(3, "rm", json!({"path": "before"}));
    assert!(attached_client.hear().is_none());
    host.rig.agent.hang_up();
    host.rig.ending();
    host.end();
    assert!(host.rig.root.join("before").exists() && !host.rig.root.join("after").exists());
}

/// A later approval had it done.
#[test]
fn cancelling_the_turn_takes_back_what_an_attached_client_waits_for() {
    let mut host = Host::new();
    let ((session, mut attached_client), (_, mut other)) = (host.invite(), host.invite());
    let asked = host.ask(&mut attached_client);
    std::fs::write(host.rig.root.join("ask/b"), "removed").unwrap();
    other.post(9, "rm", json!({"path": "ask/b"}));
    let others = host.rig.editor.hear();
    host.rig.editor.send(&notification("session/cancel", json!({ "sessionId": session })));
    assert_eq!(host.rig.agent.hear()["method"], "session/cancel");
    let answer = attached_client.hear().unwrap();
    assert_eq!(answer["result"]["_meta"]["portcullis/error"]["kind"], "cancelled", "{answer}");
    let back = host.rig.editor.hear();
    let taken = (&back["method"], &back["params"]["requestId"]);
    assert_eq!(taken, (&json!("$/cancel_request"), &asked["id"]));
    let once = json!({"outcome": {"outcome": "selected", "optionId": "once"}});
    host.rig.editor.send(&result(asked["id"].clone(), once.clone()));
    // That of another session continues, and so does the client.
    host.rig.editor.send(&result(others["id"].clone(), once));
    assert_ne!(other.hear().unwrap()["result"]["isError"], true);
    assert!(!host.rig.root.join("ask/b").exists() && host.rig.root.join("ask/a").exists());
    attached_client.post(8, "ls", json!({"path": "."}));
    assert_ne!(attached_client.hear().unwrap()["result"]["isError"], true);
}

/// It was taken back a moment after the close was answered.
#[test]
fn nothing_waits_for_an_attached_client_once_its_session_is_closed() {
    let mut host = Host::new();
    for _ in 0..25 {
        let (session, mut attached_client) = host.invite();
        host.ask(&mut attached_client);
        let close = json!({ "sessionId": session });
        host.rig.editor.send(&request(1000, "session/close", close));
        host.rig.agent.hear();
        host.rig.agent.send(&result(1000, json!({})));
        host.editor_hears(|heard| heard["id"] == 1000);
        assert!(host.is_over());
        while attached_client.hear().is_some() {}
        while !host.gateway.approvals().waiting().is_empty() {
            std::thread::yield_now();
        }
    }
}
