//! Credentials: a key that reaches its host and no program. The server is over TLS, with an authority
//! of the tests.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
};

use super::{
    ends::{eventually, process},
    *,
};

mod asking;
mod refusals;

const KEY: &str = "sk-test-Q7hP2v0aXk3LmN9bRt5WzC8dYe1Uf6Gj";

/// The size of an upload, in MiB.
const UPLOAD: u32 = 100;

/// A server over TLS for `site.example`, and what it saw.
pub(crate) struct Upstream {
    server: Child,
    directory: tempfile::TempDir,
    pub(crate) port: u32,
}

impl Upstream {
    /// One that speaks `h1` or `h2`.
    fn start(protocol: &str) -> Self {
        let directory = tempfile::TempDir::new().unwrap();
        let at = |name: &str| directory.path().join(name);
        certify(directory.path());
        let node = std::env::var_os("PORTCULLIS_TEST_NODE").unwrap_or_else(|| "node".into());
        let mut server = Command::new(node)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/egress/upstream.mjs"))
            .arg(protocol)
            .args([at("cert.pem"), at("key.pem"), at("log")])
            .arg(KEY)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { server, directory, port: line.trim().parse().unwrap() }
    }

    fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Returns what the server logged: requests and their ends, oldest first.
    fn seen(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Makes an authority, and a certificate of it for `site.example`.
pub(crate) fn certify(directory: &Path) {
    let make = |name: &str, more: &[&str]| {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "30", "-subj", "/CN=tests"])
            .args(more)
            .args(["-keyout", &format!("{name}key.pem"), "-out", &format!("{name}.pem")])
            .current_dir(directory)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    };
    make("ca", &[]);
    let of_ca = [
        "-CA",
        "ca.pem",
        "-CAkey",
        "cakey.pem",
        "-addext",
        "subjectAltName=DNS:site.example,IP:127.0.0.1",
    ];
    make("cert", &[&of_ca[..], &["-addext", "basicConstraints=critical,CA:FALSE"]].concat());
    std::fs::rename(directory.join("certkey.pem"), directory.join("key.pem")).unwrap();
}

/// A workspace whose programs may use a key for `site.example`.
pub(super) struct Keyed {
    net: Net,
    upstream: Upstream,
}

impl Keyed {
    pub(super) fn new(protocol: &str) -> Self {
        let upstream = Upstream::start(protocol);
        let rule = format!(
            "[network]\ncredentials = [\"model\"]\n[[network.rules]]\nid = \"site\"\n\
             effect = \"allow\"\nports = [{}]\nhosts = [\"site.example\", \"127.0.0.1\"]\n",
            upstream.port
        );
        let net = Net::with_policy(&format!("{ALL}{rule}"));
        net.world.file("client.py", include_str!("credential_client.py"));
        let keyed = Self { net, upstream };
        keyed.configure("");
        keyed
    }

    /// Writes the configuration, with `more` in the credential.
    fn configure(&self, more: &str) {
        let ca = match more.contains("ca = ") {
            true => String::new(),
            false => format!("ca = \"{}\"\n", self.upstream.ca().display()),
        };
        let from = if more.contains("from = ") { "" } else { "from = \"env:OPERATORS_KEY\"\n" };
        let text = format!(
            "[[credentials]]\nid = \"model\"\nhost = \"site.example\"\nport = {}\nheader = \"x-api-key\"\n\
             env = \"MODEL_API_KEY\"\nbaseUrl = \"MODEL_URL\"\nmethods = [\"GET\", \"POST\"]\n\
             paths = [\"/v1/*\"]\n{ca}{from}{more}",
            self.upstream.port
        );
        std::fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.net.world.base().join("portcullis.toml")
    }

    /// `portcullis exec` of a command with the key in the operator's environment.
    pub(super) fn command(&self, options: &[&str], command: &[&str]) -> Command {
        let config = self.config();
        let options = [&["--config", config.to_str().unwrap()], options].concat();
        let mut command = self.net.command(&options, command);
        command.env("OPERATORS_KEY", KEY);
        command
    }

    fn start_client(&self, topic: &str, numbers: &[u32]) -> Child {
        let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
        let command = ["/usr/bin/python3", "client.py", topic];
        let numbers = numbers.iter().map(String::as_str);
        let command: Vec<_> = command.into_iter().chain(numbers).collect();
        self.command(&[], &command).spawn().unwrap()
    }

    fn client(&self, topic: &str, numbers: &[u32]) -> Value {
        reported(self.start_client(topic, numbers).wait_with_output().unwrap())
    }

    /// The outcomes of connections.
    pub(super) fn outcomes(&self) -> Vec<Value> {
        let records = self.net.connects().into_iter();
        records.filter(|record| record["kind"] == "outcome").collect()
    }

    /// Fails if a file of the gateway's, of the agent's or of the workspace has the key.
    #[track_caller]
    fn assert_forgotten(&self) {
        let base = self.net.world.base();
        let found = Command::new("grep").args(["-r", "-l", "-a", KEY]).arg(base).output().unwrap();
        // Neither a match nor an error.
        assert_eq!((found.status.code(), &*found.stdout), (Some(1), &b""[..]), "{found:?}");
    }
}

fn reaches_its_host_and_no_program(protocol: &str, version: &str) {
    let keyed = Keyed::new(protocol);
    let found = keyed.client("basics", &[]);
    assert!(!found.to_string().contains(KEY), "{found}");
    assert_eq!(found["url"], "http://127.0.0.1:3129");
    let seen = keyed.upstream.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        (&seen[0]["method"], &seen[0]["url"], &seen[0]["httpVersion"]),
        (&json!("POST"), &json!("/v1/messages?beta=true"), &json!(version))
    );
    let headers = seen[0]["headers"].as_object().unwrap();
    assert_eq!(headers["x-api-key"], "KEY");
    assert_eq!(headers["accept-encoding"], "identity");
    assert_eq!(headers["content-type"], "application/json");
    let host = if version == "2.0" { ":authority" } else { "host" };
    assert_eq!(headers[host], format!("site.example:{}", keyed.upstream.port));
    for name in ["authorization", "cookie", "x-goog-api-key", "range"] {
        assert!(!headers.contains_key(name), "{headers:?}");
    }
    // A phantom in the body is a text like any other.
    assert!(seen[0]["last"].as_str().unwrap().starts_with("portcullis-phantom-"), "{seen:?}");
    assert_eq!((&found["first"]["status"], &found["second"]["status"]), (&json!(200), &json!(200)));
    // Both requests went by one connection.
    let records = keyed.net.connects();
    let kinds: Vec<_> = records.iter().map(|record| record["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["decision", "intent", "outcome"]);
    for record in &records {
        assert_eq!(record["facts"]["credential"], "model", "{record}");
        assert_eq!(record["facts"]["host"], "site.example");
    }
    assert_eq!(
        (&records[2]["counts"]["requests"], &records[2]["result"]),
        (&json!(2), &json!("ok"))
    );
    let started = keyed.net.world.records().into_iter();
    let named = started.filter(|record| record["facts"]["credentialIds"] == json!(["model"]));
    assert_eq!(named.count(), 1);
    let target = format!("site.example:{}", keyed.upstream.port);
    let told = keyed.net.world.run(&["audit", "query", "--op", "connect"]).ok();
    assert!(told.text().contains(&format!("{target} with `model`")), "{told:?}");
    let config = keyed.config();
    let run = |args: &[&str]| {
        let args = [args, &["--config", config.to_str().unwrap(), "--json"]].concat();
        let output = keyed.net.world.command(&args).env("OPERATORS_KEY", KEY).output().unwrap();
        assert!(!String::from_utf8_lossy(&output.stdout).contains(KEY));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let explained = run(&["policy", "explain", "connect", &target]);
    assert_eq!(explained["credentials"], json!(["model"]));
    let checks = run(&["doctor"])["checks"].as_array().unwrap().clone();
    let check = checks.into_iter().find(|check| check["name"] == "credentials").unwrap();
    let expected = json!([{
        "id": "model", "host": target, "from": "env:OPERATORS_KEY", "used": true, "readable": true,
    }]);
    assert_eq!((&check["status"], &check["facts"]["credentials"]), (&json!("ok"), &expected));
    keyed.assert_forgotten();
}

#[test]
fn a_key_reaches_its_host_and_no_program_by_http1() {
    reaches_its_host_and_no_program("h1", "1.1");
}

#[test]
fn a_key_reaches_its_host_and_no_program_by_http2() {
    reaches_its_host_and_no_program("h2", "2.0");
}

fn streams_and_uploads_and_gives_up(protocol: &str) {
    let keyed = Keyed::new(protocol);
    let child = keyed.start_client("flow", &[UPLOAD]);
    let world = &keyed.net.world;
    eventually(|| world.path("given-up").exists().then_some(()));
    let slow = |member: &str| {
        let seen = keyed.upstream.seen();
        seen.iter().any(|line| line[member] == "/v1/slow").then_some(())
    };
    eventually(|| slow("url"));
    assert!(slow("closed").is_none());
    // The upload is over, and was never held.
    let status = told(process("credential-process", child.id()), "status");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let most: u32 = most.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(most < 64 << 10, "{most} KiB");
    std::fs::write(world.path("go"), "").unwrap();
    // While the program goes on.
    eventually(|| slow("closed"));
    std::fs::write(world.path("end"), "").unwrap();
    let found = reported(child.wait_with_output().unwrap());
    let expected = json!({
        "stream": ["data: one\n\n", "data: two\n\n"], "sent": UPLOAD << 20, "chunked": 3 << 20, "large": 1 << 20,
    });
    assert_eq!(found, expected);
    let outcomes = keyed.outcomes();
    let sent = outcomes.iter().map(|record| record["counts"]["bytesOut"].as_u64().unwrap());
    assert!(sent.sum::<u64>() > 103 << 20, "{outcomes:?}");
    assert!(outcomes.iter().all(|record| record["result"] == "ok"), "{outcomes:?}");
}

#[test]
fn a_route_streams_and_uploads_and_gives_up_what_a_program_gives_up_by_http1() {
    streams_and_uploads_and_gives_up("h1");
}

#[test]
fn a_route_streams_and_uploads_and_gives_up_what_a_program_gives_up_by_http2() {
    streams_and_uploads_and_gives_up("h2");
}

#[test]
fn a_reply_with_the_key_is_cut_off() {
    for protocol in ["h1", "h2"] {
        let keyed = Keyed::new(protocol);
        let found = keyed.client("leaks", &[]);
        let text = found.to_string();
        for part in [KEY, &KEY[..9], &KEY[9..]] {
            assert!(!text.contains(part), "{found}");
        }
        for path in ["leak/header", "encoded"] {
            assert_eq!(found[path]["status"], 502, "{found}");
        }
        for path in ["leak/body", "leak/base64", "leak/split"] {
            let body = found[path]["body"].as_str().unwrap();
            assert!(body.ends_with("<cut off>") && !body.contains("after"), "{found}");
        }
        assert_eq!(found["redirect"]["status"], 302);
        let location = found["redirect"]["headers"].as_object().unwrap();
        assert!(location.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case("location") && value == "https://other.example/"
        }));
        assert_eq!(
            (&found["cookie"]["body"], found["cookie"]["headers"].get("set-cookie")),
            (&json!("body"), None)
        );
        let outcomes = keyed.outcomes();
        let refused = outcomes.iter().filter(|record| record["result"] == "refused");
        let refused: Vec<_> = refused.collect();
        let is_of_credentials = |record: &&Value| record["rule"] == "network.credentials";
        assert!(refused.iter().all(is_of_credentials), "{refused:?}");
        let reasons = refused.iter().map(|record| record["reason"].as_str().unwrap());
        let reasons: Vec<_> = reasons.collect();
        assert_eq!(reasons.len(), 5, "{outcomes:?}");
        assert_eq!(reasons.iter().filter(|reason| reason.contains("is encoded")).count(), 1);
        // None of these records said which request it was.
        let paths = ["leak/header", "leak/body", "leak/base64", "leak/split", "encoded"];
        let expected = paths.map(|path| (json!("POST"), json!(format!("/v1/{path}"))));
        assert_eq!(refused.into_iter().map(named).collect::<Vec<_>>(), expected);
        // What was answered to its end is not named.
        let closed = outcomes.iter().filter(|record| record["result"] == "ok");
        assert!(closed.map(named).all(|named| named == Default::default()), "{outcomes:?}");
        keyed.assert_forgotten();
    }
}

/// It passed as a complete reply.
#[test]
fn a_reply_that_is_reset_without_an_error_is_incomplete() {
    let keyed = Keyed::new("h2");
    let found = keyed.client("reset", &[]);
    assert_eq!((&found["status"], &found["body"]), (&json!(200), &json!("part<cut off>")));
    let end = keyed.outcomes().remove(0);
    assert_eq!(named(&end), (json!("POST"), json!("/v1/reset")), "{end}");
}

/// Returns the request that a record names: its method and path.
fn named(record: &Value) -> (Value, Value) {
    (record["facts"]["method"].clone(), record["facts"]["requestPath"].clone())
}

/// The record of a request that was larger than the rest of `bytesOut` did not say which one it was.
#[test]
fn a_request_that_a_limit_cuts_off_is_named() {
    let mut keyed = Keyed::new("h1");
    let policy = std::fs::read_to_string(keyed.net.world.base().join("policy/policy.toml"));
    let limit = "[network.limits]\nbytesOut = \"100000B\"\n";
    keyed.net.world.set_policy(&(policy.unwrap() + limit));
    let summary = keyed.net.world.base().join("summary.json");
    let options = ["--summary", summary.to_str().unwrap()];
    let output = keyed.command(&options, &["/usr/bin/python3", "client.py", "spent"]).output();
    let found = reported(output.unwrap());
    assert_eq!(found["first"], 200, "{found}");
    let outcomes = keyed.outcomes();
    let said: Vec<_> = outcomes.iter().map(|record| (&record["rule"], named(record))).collect();
    let upload = (json!("POST"), json!("/v1/upload"));
    assert_eq!(said, [(&json!("network.limits.bytesOut"), upload)], "{outcomes:?}");
    let summary: Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    assert_eq!(summary["denials"][0]["request"], "POST /v1/upload", "{summary}");
}

#[test]
fn a_label_closes_what_a_credential_has_open() {
    let mut keyed = Keyed::new("h1");
    let policy = std::fs::read_to_string(keyed.net.world.base().join("policy/policy.toml"));
    let labels = "[mount]\n[[labels]]\nid = \"customers\"\npaths = [\"data/**\"]\n\
        [[network.rules]]\nid = \"closed\"\neffect = \"deny\"\nwhenRead = [\"customers\"]\n\
        hosts = [\"*\"]\n";
    keyed.net.world.set_policy(&(policy.unwrap() + labels));
    keyed.net.world.file("data/a.csv", "alice\n");
    let child = keyed.start_client("labelled", &[]);
    let seen = |name: &str, path: &str| {
        let seen = keyed.upstream.seen();
        seen.into_iter().find(|line| line[name] == path)
    };
    eventually(|| seen("began", "/v1/upload"));
    eventually(|| keyed.net.world.path("ready").exists().then_some(()));
    keyed.net.world.file("go", "");
    let found = reported(child.wait_with_output().unwrap());
    assert_eq!((&found["content"], &found["then"]), (&json!("alice\n"), &json!(403)), "{found}");
    let stream = found["stream"].as_str().unwrap();
    assert!(stream.contains("data: one") && !stream.ends_with("0\r\n\r\n"), "{found}");
    assert!(!found["upload"].as_array().unwrap().contains(&json!(200)), "{found}");
    // The server got what was sent before the read.
    let broken = eventually(|| seen("url", "/v1/upload"));
    let last = broken["last"].as_str().unwrap();
    assert!(broken["broken"].is_string() && last.ends_with("harmless"), "{broken}");
    let outcomes = keyed.outcomes();
    assert_eq!(outcomes.len(), 2, "{outcomes:?}");
    for end in &outcomes {
        let said = (&end["result"], &end["rule"], &end["facts"]["credential"]);
        assert_eq!(said, (&json!("denied"), &json!("closed"), &json!("model")), "{end}");
    }
}

/// Returns what the kernel reports of a process, by the file of `/proc`.
fn told(process: u32, file: &str) -> String {
    let bytes = std::fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_killed_process_of_a_credential_is_started_again_and_no_other_has_the_key() {
    let keyed = Keyed::new("h1");
    let child = keyed.start_client("wait", &[]);
    let world = &keyed.net.world;
    eventually(|| world.path("ready").exists().then_some(()));
    let own = process("credential-process", child.id());
    let status = told(own, "status");
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
        assert!(status.contains(line), "{status}");
    }
    let is_nowhere = || {
        // Nothing in the kernel's tables of any process but the operator's own has it.
        let commands =
            ["credential-process", "egress-process", "connector-process", "gateway-process"];
        for command in commands {
            let number = process(command, child.id());
            for file in ["environ", "cmdline"] {
                assert!(!told(number, file).contains(KEY), "{command} {file}");
            }
        }
    };
    is_nowhere();
    let noted = keyed.net.kill("credential-process", &child, 1);
    assert_eq!(noted, [json!({ "process": "credential model", "restarted": true })]);
    is_nowhere();
    std::fs::write(world.path("go"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let warning = "the process of the credential `model` ended, and is started again";
    assert!(stderr.contains(warning), "{stderr}");
    assert_eq!(reported(output), json!({ "first": 200, "then": 200 }));
    // The server got the key from both.
    let keys: Vec<_> = keyed.upstream.seen();
    let keys: Vec<_> = keys.iter().map(|line| &line["headers"]["x-api-key"]).collect();
    assert_eq!(keys, ["KEY", "KEY"]);
    let results: Vec<_> = keyed.outcomes().iter().map(|record| record["result"].clone()).collect();
    assert_eq!(results, ["reset", "ok"]);
    keyed.assert_forgotten();
}

#[test]
fn a_process_of_a_credential_that_keeps_ending_leaves_nothing_to_connect_to() {
    let keyed = Keyed::new("h1");
    let child = keyed.start_client("wait", &[]);
    let world = &keyed.net.world;
    eventually(|| world.path("ready").exists().then_some(()));
    let noted = keyed.net.kill("credential-process", &child, 4);
    let restarted: Vec<_> = noted.iter().map(|facts| &facts["restarted"]).collect();
    assert_eq!(restarted, [true, true, true, false]);
    std::fs::write(world.path("go"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let warning = "the process of the credential `model` ended, and is not started again";
    assert!(stderr.contains(warning), "{stderr}");
    assert_eq!(reported(output), json!({ "first": 200, "then": "ConnectionRefusedError" }));
    assert_eq!(keyed.upstream.seen().len(), 1);
}
