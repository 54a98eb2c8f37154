//! Hosts about which a person is asked: the program waits for the answer.

use super::*;
use crate::{
    acp_client::{Client, Editor},
    approvals::{id, kinds, waiting},
};

/// An ACP agent that fetches the URL that it is told, and says what it got.
const AGENT: &str = r#"
import json, subprocess, sys
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    result = {}
    if request["method"] == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {}}
    elif request["method"] == "session/new":
        result = {"sessionId": "one"}
    elif request["method"] == "session/prompt":
        url = request["params"]["prompt"][0]["text"]
        got = subprocess.run(["curl", "-sS", url], capture_output=True, text=True)
        content = {"type": "text", "text": got.stdout + got.stderr}
        update = {"sessionUpdate": "agent_message_chunk", "content": content}
        say(method="session/update", params={"sessionId": "one", "update": update})
        result = {"stopReason": "end_turn"}
    if "id" in request:
        say(id=request["id"], result=result)
"#;

/// A policy that asks about `other.example`.
fn asking(port: u32) -> Net {
    let rule = format!(
        "[[network.rules]]\nid = \"asked\"\neffect = \"ask\"\nhosts = [\"other.example\"]\nports = [{port}]\n"
    );
    Net::new(port, &rule)
}

/// It was asked on standard error alone, where an editor's user does not look.
#[test]
fn the_editor_s_user_is_asked_about_a_host() {
    let server = Server::http();
    let net = asking(server.port);
    net.world.file("agent.py", AGENT);
    let mut run = net.portcullis(&["run", "--", "/usr/bin/python3", "agent.py"]);
    let mut run = run.stdin(Stdio::piped()).spawn().unwrap();
    let (input, output) = (run.stdin.take().unwrap(), run.stdout.take().unwrap());
    let permissions = ["allow_once", "reject_once"].into();
    let mut client = Client::with(output, input, Editor { permissions, ..Editor::default() });
    let session = client.session(&net.world.root());
    let url = format!("http://other.example:{}/", server.port);
    let said = client.prompt(&session, &url).said;
    assert!(said.contains("hello"), "{said}");
    let asked = &client.asked[0];
    assert_eq!(asked["method"], "session/request_permission");
    assert_eq!(asked["params"]["sessionId"], "one");
    let call = &asked["params"]["toolCall"];
    assert_eq!((&call["kind"], &call["locations"]), (&json!("fetch"), &json!([])));
    let title = call["title"].as_str().unwrap();
    assert!(title.contains(&format!("other.example:{}", server.port)), "{title}");
    let said = client.prompt(&session, &url).said;
    assert!(said.contains("rule `asked`") && !said.contains("hello"), "{said}");
    assert_eq!(client.asked.len(), 2);
    drop(client);
    assert!(run.wait().unwrap().success());
    let approvals = net.world.records().into_iter().filter(|record| record["kind"] == "approval");
    let approvals: Vec<_> = approvals.map(|record| record["result"].clone()).collect();
    assert_eq!(approvals, ["once", "rejected"]);
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn a_host_is_approved_from_a_shell() {
    let server = Server::http();
    let net = asking(server.port);
    let url = format!("http://other.example:{}/", server.port);
    let child = net.command(&[], &["curl", "-sS", &url]).spawn().unwrap();
    let asked = waiting(&net.world, 1).remove(0);
    assert_eq!(asked["operation"], "connect");
    assert_eq!(asked["path"], format!("other.example:{}", server.port));
    assert_eq!(server.seen().len(), 0);
    net.world.run(&["approve", "--yes", &id(&asked)]).ok();
    let output = child.wait_with_output().unwrap();
    assert_eq!(&*output.stdout, b"hello", "{output:?}");
    let intent = net.connects().into_iter().find(|record| record["kind"] == "intent").unwrap();
    assert!(intent["facts"]["approval"].is_u64(), "{intent}");
}

/// One connection asked two questions, the second about the address that the rule names.
#[test]
fn a_rule_with_a_name_and_its_address_asks_once() {
    let server = Server::http();
    let rule = format!(
        "{ALL}[[network.rules]]\nid = \"asked\"\neffect = \"ask\"\nports = [{}]\n\
         hosts = [\"other.example\", \"127.0.0.1\"]\n",
        server.port
    );
    let net = Net::with_policy(&rule);
    let url = format!("http://other.example:{}/", server.port);
    let script = r#"curl -sS "$0" && curl -sS "$0""#;
    let child = net.command(&[], &["sh", "-c", script, &url]).spawn().unwrap();
    let asked = waiting(&net.world, 1).remove(0);
    assert_eq!(asked["path"], format!("other.example:{}, also at 127.0.0.1", server.port));
    net.world.run(&["approve", "--yes", "--session", &id(&asked)]).ok();
    let output = child.wait_with_output().unwrap();
    assert_eq!(&*output.stdout, b"hellohello", "{output:?}");
    assert_eq!(kinds(&net.world, "approval").len(), 1);
    assert_eq!(server.seen().len(), 2);
}

/// An approval that was given when content of one label had been read held for that of another: for
/// the session, and for the connection that was open.
#[test]
fn an_approval_after_one_label_did_not_cover_another() {
    let server = Server::echo();
    let rules = format!(
        "{ALL}[mount]\n\
         [[labels]]\nid = \"notes\"\npaths = [\"notes/**\"]\n\
         [[labels]]\nid = \"customers\"\npaths = [\"customers/**\"]\n\
         [[network.rules]]\nid = \"site\"\neffect = \"allow\"\nhosts = [\"other.example\", \"127.0.0.1\"]\nports = [{}]\n\
         [[network.rules]]\nid = \"person\"\neffect = \"ask\"\nwhenRead = [\"notes\", \"customers\"]\n\
         hosts = [\"*\"]\n",
        server.port
    );
    let net = Net::with_policy(&rules);
    net.world.file("notes/n", "n");
    net.world.file("customers/c", "CUSTOMER");
    let script = r#"cat notes/n
        exec 3<>/dev/tcp/127.0.0.1/3128
        printf "CONNECT other.example:$0 HTTP/1.1\r\n\r\n" >&3
        read -r line <&3; echo "first: $line"; read -r line <&3
        until [ -e go ]; do sleep 0.02; done
        content=$(cat customers/c)
        echo "$content" >&3; cat <&3 >/dev/null; echo closed
        exec 4<>/dev/tcp/127.0.0.1/3128
        printf "CONNECT other.example:$0 HTTP/1.1\r\n\r\n" >&4
        read -r line <&4; echo "second: $line""#;
    let port = server.port.to_string();
    let child = net.command(&[], &["bash", "-c", script, &port]).spawn().unwrap();
    let asked = waiting(&net.world, 1).remove(0);
    net.world.run(&["approve", "--yes", "--session", &id(&asked)]).ok();
    ends::eventually(|| {
        net.connects().iter().any(|record| record["kind"] == "intent").then_some(())
    });
    net.world.file("go", "");
    let again = waiting(&net.world, 1).remove(0);
    assert_ne!(id(&asked), id(&again));
    net.world.run(&["approve", "--reject", &id(&again)]).ok();
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("first: HTTP/1.1 200") && stdout.contains("closed"), "{output:?}");
    assert!(stdout.contains("second: HTTP/1.1 403"), "{output:?}");
    assert!(!server.seen().iter().any(|seen| seen.contains("CUSTOMER")), "{output:?}");
}

/// The log was closed first, so there was no record of its end, and `exec` waited for two seconds.
#[test]
fn a_question_that_nobody_answers_ends_with_the_session() {
    let net = asking(443);
    let script = r#"exec 3<>/dev/tcp/127.0.0.1/3128
        printf "CONNECT other.example:443 HTTP/1.1\r\n\r\n" >&3
        until [ -e go ]; do sleep 0.02; done"#;
    let child = net.portcullis(&["exec", "--json", "--", "bash", "-c", script]).spawn().unwrap();
    let asked = waiting(&net.world, 1).remove(0);
    std::fs::write(net.world.path("go"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let results = |records: Vec<Value>| -> Vec<_> {
        records.into_iter().map(|record| record["result"].clone()).collect()
    };
    assert_eq!(results(kinds(&net.world, "approval")), ["withdrawn"], "{stderr}");
    assert_eq!(results(net.connects()).last(), Some(&json!("cancelled")), "{stderr}");
    assert!(!stderr.contains("ERROR"), "{stderr}");
    let summary: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    let denials = summary["denials"].as_array().unwrap();
    assert_eq!(denials.len(), 1, "{summary}");
    assert_eq!((&denials[0]["rule"], &denials[0]["question"]), (&json!("asked"), &asked["id"]));
}

/// It took one of the places of waiting requests until the session ended.
#[test]
fn a_program_that_gave_up_left_its_question() {
    let net = asking(443);
    // It had sent more than its request, which the proxy does not read before the answer.
    let script = r#"exec 3<>/dev/tcp/127.0.0.1/3128
        printf "CONNECT other.example:443 HTTP/1.1\r\n\r\nmore" >&3
        until [ -e go ]; do sleep 0.02; done
        exec 3>&-
        until [ -e end ]; do sleep 0.02; done"#;
    let child = net.command(&[], &["bash", "-c", script]).spawn().unwrap();
    waiting(&net.world, 1);
    std::fs::write(net.world.path("go"), "").unwrap();
    waiting(&net.world, 0);
    std::fs::write(net.world.path("end"), "").unwrap();
    child.wait_with_output().unwrap();
    let approvals = kinds(&net.world, "approval");
    assert_eq!(approvals[0]["result"], "withdrawn");
    assert_eq!(net.connects().last().unwrap()["result"], "cancelled");
}
