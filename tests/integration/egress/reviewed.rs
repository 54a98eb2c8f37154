//! Output about connections for authors of policies and for reviewers.

use super::*;

impl Net {
    fn run(&self, args: &[&str]) -> crate::common::Done {
        self.world.run(args).ok()
    }

    /// `portcullis exec` with a preset of hosts, in which a script runs.
    fn exec_with_hosts(&self, hosts: &[String], script: &str) -> Output {
        let file = self.world.base().join("preset.toml");
        std::fs::write(&file, format!("name = \"it\"\ntitle = \"It\"\nhosts = {hosts:?}\n"))
            .unwrap();
        let preset = ["--preset", file.to_str().unwrap()];
        self.command(&preset, &["sh", "-c", script]).output().unwrap()
    }
}

impl Net {
    /// Returns what `portcullis exec` tells of a script.
    fn told(&self, options: &[&str], script: &str) -> String {
        let command = ["--", "sh", "-c", script];
        let got = self.portcullis(&[&["exec"], options, &command].concat()).output().unwrap();
        String::from_utf8(got.stderr).unwrap()
    }
}

fn curl(url: &str) -> String {
    format!("curl -sS --noproxy '' -w '%{{http_code}} ' {url}")
}

/// The proposal closed the host of the agent's model, because rules of hosts replace those of a
/// preset, and `replay` said that a policy without such rules closed it.
#[test]
fn a_proposal_of_hosts_closed_those_of_a_preset() {
    let server = Server::http();
    let mut net = Net::with_policy(ALL);
    let port = server.port;
    let site = format!("http://site.example:{port}/");
    let hosts = [format!("site.example:{port}"), format!("127.0.0.1:{port}")];
    let other = format!("http://other.example:{port}/");
    let script = format!("{}; {}", curl(&site), curl(&other));
    let got = net.exec_with_hosts(&hosts, &script);
    assert!(got.stdout.starts_with(b"hello200 ") && got.stdout.ends_with(b"403 "), "{got:?}");

    let policy = net.world.base().join("policy/policy.toml");
    let policy = policy.to_str().unwrap().to_owned();
    let replayed = net.run(&["policy", "replay", &policy, "--json"]).json();
    assert_eq!((&replayed["changed"], &replayed["same"]), (&json!(0), &json!(2)), "{replayed}");
    let record = net.connects()[0]["seq"].to_string();
    let explained = net.run(&["policy", "explain", "--record", &record]);
    let rule = format!("preset:it:site.example:{port}");
    assert!(explained.text().matches(&rule).count() >= 2, "{}", explained.text());
    let preset = net.world.base().join("preset.toml");
    let asked = ["policy", "explain", "connect", &hosts[0], "--preset", preset.to_str().unwrap()];
    let explained = net.run(&asked);
    assert!(explained.text().starts_with(&format!("allowed by `{rule}`")), "{}", explained.text());

    let learned = net.run(&["policy", "learn", "--json"]).json();
    let proposed: Vec<_> = learned["hosts"].as_array().unwrap().iter().collect();
    let proposed: Vec<_> = proposed.iter().map(|one| (&one["host"], &one["ofPreset"])).collect();
    let expected = [("other.example", false), ("site.example", true)];
    let expected = expected.map(|(host, of)| (json!(host), json!(of)));
    assert_eq!(proposed, expected.iter().map(|(host, of)| (host, of)).collect::<Vec<_>>());

    // Without a host that is new nothing replaces the preset's.
    let before = net.connects().len();
    let alone = net.exec_with_hosts(&hosts, &curl(&site));
    assert_eq!(&*alone.stdout, b"hello200 ", "{alone:?}");
    let since = net.connects()[before]["t"].as_str().unwrap().to_owned();
    let learned = net.run(&["policy", "learn", "--json", "--since", &since]).json();
    assert!(
        learned["hosts"].as_array().unwrap().iter().all(|one| one["host"] != "site.example"),
        "{learned}"
    );

    let patched = net.run(&["policy", "learn"]);
    let added = patched.text().lines().filter_map(|line| line.strip_prefix('+'));
    let added: Vec<_> = added.filter(|line| !line.starts_with("++")).collect();
    net.world.set_policy(&format!("{ALL}{}\n", added.join("\n")));
    let kept = format!("the preset lets the agent connect to `site.example:{port}`\n");
    let got = net.exec_with_hosts(&hosts, "true");
    let stderr = String::from_utf8(got.stderr).unwrap();
    assert!(stderr.contains(&kept), "{stderr}");
}

/// A reviewer was told that every agent was fully confined.
#[test]
fn an_agent_on_the_hosts_network_was_not_to_be_seen() {
    let net = Net::with_policy(ALL);
    let summary = net.world.base().join("summary.json");
    let options = ["--agent-network", "443", "--agent-network", "dns"];
    let report = ["--summary", summary.to_str().unwrap()];
    let got = net.command(&[&options[..], &report].concat(), &["true"]).output().unwrap();
    assert_eq!(got.status.code(), Some(0), "{got:?}");
    let network = json!({ "ports": [443], "dns": true });
    let summary: Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    assert_eq!(summary["agentNetwork"], network);
    assert!(net.told(&options, "true").contains("  network  the host's (`--agent-network`)"));

    let file = net.world.base().join("report.json");
    net.run(&["audit", "report", "-o", file.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let start = &report["gateways"]["listed"][0];
    assert_eq!((&start["agentNetwork"], &start["networkMode"]), (&network, &json!("enforce")));
    let page = net.world.base().join("report.html");
    net.run(&["audit", "report", "-o", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("except for the network of 2 agents") && page.contains("2 agents shared"),
        "{page}"
    );

    let status = net.run(&["status"]);
    assert!(status.text().contains("(`--agent-network`)"), "{}", status.text());
    assert_eq!(net.run(&["status", "--json"]).json()["agentNetwork"], network);
    let id = net.world.records().iter().find_map(|record| {
        (record["op"] == "sandbox").then(|| record["session"].as_str().unwrap().to_owned())
    });
    let session = net.run(&["audit", "session", &id.unwrap()]);
    assert!(session.text().contains("(`--agent-network`)"), "{}", session.text());
}

/// Nothing was denied or recorded without a rule that allows or asks.
#[test]
fn an_empty_table_denies_and_records() {
    let net = Net::with_policy(&format!("{ALL}[network]\n"));
    let got = net.exec(&["sh", "-c", &curl("http://site.example:1/")]);
    assert!(got.stdout.ends_with(b"403 "), "{got:?}");
    let connects = net.connects();
    assert_eq!((connects.len(), &connects[0]["rule"]), (1, &json!("default")), "{connects:?}");
    let learned = net.run(&["policy", "learn", "--json"]).json();
    assert_eq!(learned["hosts"][0]["host"], "site.example", "{learned}");

    let silent = Net::with_policy(ALL);
    assert!(silent.told(&[], "false").contains("  network  programs reach no host"));
}

/// The story of a session had connections that were never made.
#[test]
fn a_host_that_could_not_be_reached_was_connected_to() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let net = Net::new(port.into(), "");
    let fetch = curl(&format!("http://site.example:{port}/"));
    let got = net.exec(&["sh", "-c", &format!("{fetch}; {fetch}")]);
    assert!(got.stdout.ends_with(b"502 "), "{got:?}");
    let session = net.run(&["audit", "session", "last", "--json"]);
    let parts: Vec<Value> =
        session.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let failed = parts.iter().find_map(|part| part["failed"]["paths"].get(0)).unwrap();
    let path = format!("site.example:{port}");
    assert_eq!(*failed, json!({ "path": path, "reason": "connect: unreachable", "times": 2 }));
    assert!(!parts.iter().any(|part| part["connected"].is_object()), "{parts:?}");
}

/// A connection was counted twice, for its name and for its address.
#[test]
fn a_connection_counts_once() {
    let server = Server::http();
    let net = Net::new(server.port, "");
    let site = format!("http://site.example:{}/", server.port);
    let script = format!("{0}; {0}; {0}", curl(&site));
    let summary = net.world.base().join("summary.json");
    let options = ["--summary", summary.to_str().unwrap()];
    let got = net.command(&options, &["sh", "-c", &script]).output().unwrap();
    assert_eq!(&*got.stdout, b"hello200 hello200 hello200 ", "{got:?}");
    let sent: u64 = server.lengths().iter().map(|length| *length as u64).sum();
    let host = format!("site.example:{}", server.port);
    let came = |object: &Value| object["bytesIn"].as_u64().unwrap() > 0;

    let summary: Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    let one = &summary["connections"][0];
    assert_eq!(
        (&one["host"], &one["connections"], &one["bytesOut"]),
        (&json!(host), &json!(3), &json!(sent))
    );
    assert!(came(one), "{summary}");

    let file = net.world.base().join("report.json");
    net.run(&["audit", "report", "-o", file.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let all = report["operations"].as_array().unwrap();
    let connect = all.iter().find(|one| one["op"] == "connect").unwrap();
    assert_eq!((&connect["allowed"], &connect["denied"]), (&json!(3), &json!(0)), "{connect}");
    let rules = report["rules"].as_array().unwrap();
    let site = rules.iter().find(|one| one["rule"] == "site").unwrap();
    assert_eq!(site["records"], 3, "{rules:?}");

    assert_eq!(net.run(&["status", "--json"]).json()["session"]["connections"], 3);
    let id = summary["session"].as_str().unwrap();
    let session = net.run(&["audit", "session", id]);
    let line = format!("connected {host} (3 times, {sent} bytes out, ");
    assert!(session.text().contains(&line), "{}", session.text());
    let session = net.run(&["audit", "session", id, "--json"]);
    let connected = session.text().lines().find_map(|line| {
        let part: Value = serde_json::from_str(line).unwrap();
        part["connected"]["paths"].get(0).cloned()
    });
    assert_eq!(connected.as_ref().map(|one| &one["bytesOut"]), Some(&json!(sent)), "{connected:?}");

    let found = net.run(&["audit", "query", "--host", "site.example", "--json"]);
    assert_eq!(found.text().lines().count(), net.connects().len());
    let none = net.run(&["audit", "query", "--host", "other.example", "--json"]);
    assert_eq!(none.text(), "");
    let stats = ["audit", "query", "--host", "site.example", "--stats", "path", "--json"];
    let stats = net.run(&stats).json();
    assert!(stats["totalBytes"].as_u64().unwrap() > sent, "{stats}");

    let told = net.told(&[], &script);
    assert!(told.contains(", 3 connections"), "{told}");
    assert!(told.contains(&format!("  connect  {host}, 3 times: {sent} bytes out")), "{told}");
}

/// `doctor` and `config check` accepted a credential whose certificates are not there.
#[test]
fn a_credential_without_its_certificates_was_accepted() {
    let net = Net::with_policy(&format!("{ALL}[network]\ncredentials = [\"key\"]\n"));
    let base = net.world.base();
    let key = base.join("key");
    std::fs::write(&key, "0123456789abcdef0123").unwrap();
    let config = base.join("portcullis.toml");
    let text = format!(
        "[[credentials]]\nid = \"key\"\nhost = \"site.example\"\nheader = \"x-api-key\"\n\
         from = \"file:{}\"\nenv = \"KEY\"\nbaseUrl = \"KEY_URL\"\nmethods = [\"GET\"]\n\
         paths = [\"/\"]\nca = \"none.pem\"\n",
        key.display()
    );
    std::fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let checked = net.world.run(&["config", "check", config]);
    assert_ne!(checked.code, 0, "{checked:?}");
    assert!(checked.stderr.contains("none.pem"), "{checked:?}");
    let doctor = net.world.run(&["doctor", "--config", config, "--json"]);
    assert!(doctor.text().contains("none.pem"), "{doctor:?}");
    let started = net.world.run(&["exec", "--config", config, "--", "true"]);
    assert!(started.code != 0 && started.stderr.contains("none.pem"), "{started:?}");
}

/// The rule that names the host for another port was not listed, and a record of a name with a dot at
/// its end was followed by an error about usage.
#[test]
fn what_names_the_host_is_listed() {
    let net = Net::new(8443, "");
    let explained = net.run(&["policy", "explain", "connect", "site.example:443"]);
    assert!(
        explained.text().contains("another port or agent:\n  allow site"),
        "{}",
        explained.text()
    );
    net.exec(&["sh", "-c", &curl("http://site.example.:8443/")]);
    let record = net.connects()[0]["seq"].to_string();
    let explained = net.run(&["policy", "explain", "--record", &record]);
    assert!(explained.text().contains("no policy decides it"), "{}", explained.text());
}

/// A step of a test could not connect, so that rules with `whenRead` had tests of names alone.
#[test]
fn a_step_connects_after_a_read() {
    let labels = "[[labels]]\nid = \"data\"\npaths = [\"data/**\"]\n\
        [[network.rules]]\nid = \"site\"\neffect = \"allow\"\nhosts = [\"site.example\"]\n\
        ports = [443]\n[[network.rules]]\nid = \"closed\"\neffect = \"deny\"\nhosts = [\"*\"]\n\
        whenRead = [\"data\"]\n";
    let net = Net::with_policy(&format!("{ALL}{labels}"));
    let step = |rest: &str, effect: &str, rule: &str| {
        format!("{{ {rest}, expect = {{ effect = \"{effect}\", rule = \"{rule}\" }} }},\n")
    };
    let connect = "operation = \"connect\", host = \"site.example\", port = 443";
    let steps = [
        step(connect, "allow", "site"),
        step("operation = \"read\", path = \"data/a\"", "allow", "allowedPaths.read"),
        step(connect, "deny", "closed"),
    ];
    let tests = format!(
        "schema = 1\n[[tests]]\nname = \"read, then connect\"\nfiles = {{ \"data/a\" = \"x\" }}\n\
         steps = [\n{}]\n",
        steps.concat()
    );
    std::fs::write(net.world.base().join("policy/policy.test.toml"), tests).unwrap();
    let policy = net.world.base().join("policy/policy.toml");
    let tested = net.run(&["policy", "test", policy.to_str().unwrap()]);
    assert!(tested.text().contains("1 of 1 tests passed"), "{}", tested.text());
}

/// Reads a report that was written as JSON.
fn report(net: &Net) -> Value {
    let file = net.world.base().join("report.json");
    let _ = std::fs::remove_file(&file);
    net.run(&["audit", "report", "-o", file.to_str().unwrap()]);
    serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
}

/// Nobody was told that the rules of hosts have no effect, and the summary advised to write some.
#[test]
fn an_agent_without_a_network_is_told_of() {
    let net = Net::new(443, "");
    let summary = net.world.base().join("summary.json");
    let options = ["--agent-network", "none", "--summary", summary.to_str().unwrap()];
    net.told(&options, "false");
    let stderr = net.told(&options[..2], "false");
    let about: Vec<_> =
        stderr.lines().filter(|line| line.contains("`--agent-network none`")).collect();
    assert_eq!(about.len(), 2, "{stderr}");
    assert!(about[0].starts_with("portcullis: note: "), "{stderr}");
    assert!(!stderr.contains("a table `[network]`"), "{stderr}");
    // The member was `null`, where the record and `status` have `none`.
    let summary: Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    assert_eq!(summary["agentNetwork"], "none", "{summary}");
    let start = &report(&net)["gateways"]["listed"][0];
    assert_eq!(start["agentNetwork"], "none", "{start}");
    assert_eq!(net.run(&["status", "--json"]).json()["agentNetwork"], "none");
    // There is nothing to tell where no rule allows or asks.
    let silent = Net::with_policy(ALL);
    let stderr = silent.told(&["--agent-network", "none"], "true");
    assert!(!stderr.contains("`--agent-network none`"), "{stderr}");
}

/// `policy diff --log` looked at requests for files alone.
#[test]
fn a_diff_over_the_log_counts_connections() {
    let net = Net::new(443, "");
    let script =
        "for n in 1 2; do curl -s https://other.example/; done; curl -s https://site.example/";
    net.exec(&["sh", "-c", script]);
    let file = |name: &str, hosts: &str| {
        let path = net.world.base().join(name);
        let rule = format!(
            "[[network.rules]]\nid = \"hosts\"\neffect = \"allow\"\nports = [443]\nhosts = [{hosts}]\n"
        );
        std::fs::write(&path, format!("{ALL}{rule}")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (site, other) =
        (file("site.toml", "\"site.example\""), file("other.toml", "\"*.example\""));
    let diff = |old: &str, new: &str| {
        net.run(&["policy", "diff", old, new, "--log", "--json"]).json()["connections"].clone()
    };
    let opened = diff(&site, &other);
    assert_eq!((&opened["requests"], &opened["changed"]), (&json!(3), &json!(2)), "{opened}");
    let change = &opened["changes"][0];
    assert_eq!(
        (&change["path"], &change["records"], &change["old"]["effect"], &change["new"]["rule"]),
        (&json!("other.example:443"), &json!(2), &json!("deny"), &json!("hosts")),
        "{opened}"
    );
    let same = diff(&site, &site);
    assert_eq!((&same["requests"], &same["changed"]), (&json!(3), &json!(0)), "{same}");
    // Without the log there is no number.
    let without = net.run(&["policy", "diff", &site, &other, "--json"]).json();
    assert_eq!(without["connections"]["requests"], 0, "{without}");
    let text = net.run(&["policy", "diff", &site, &other, "--log"]);
    assert!(text.text().contains("2 of 3 recorded connections"), "{}", text.text());
}

/// The summary counted a question that nobody answered as a denial, and no other reader did.
#[test]
fn numbers_of_denied_connections_agree() {
    let server = Server::http();
    let port = server.port;
    let asks = format!(
        "[[network.rules]]\nid = \"asks\"\neffect = \"ask\"\nports = [{port}]\n\
         hosts = [\"sub.site.example\"]\n"
    );
    let net = Net::new(port, &asks);
    let host = |name: &str| curl(&format!("http://{name}:{port}/"));
    let other = format!("-H 'Host: other.example:{port}'");
    let script = format!(
        ": >ready; exec 2>/dev/null; {other}; {other}; {private}; {metadata}; {site}; {site} {named}; \
         {site} -p {named}; {asked} & until [ -e go ]; do sleep 0.02; done",
        other = host("other.example"),
        private = host("private.example"),
        metadata = host("metadata.example"),
        site = host("site.example"),
        named = other,
        asked = host("sub.site.example"),
    );
    let summary = net.world.base().join("summary.json");
    let options = ["--summary", summary.to_str().unwrap()];
    let child = net.command(&options, &["sh", "-c", &script]).spawn().unwrap();
    let asked = |record: &Value| record["decision"] == "ask";
    ends::eventually(|| net.world.path("ready").exists().then_some(()));
    ends::eventually(|| net.connects().iter().any(asked).then_some(()));
    net.world.file("go", "");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");

    let query = |options: &[&str]| {
        let found = net.run(&[&["audit", "query", "--op", "connect", "--json"], options].concat());
        found.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    // An approval's record repeats what its request's says.
    let is_request = |record: &&Value| record["kind"] != "approval";
    let denied = query(&["--decision", "deny"]).iter().filter(is_request).count();
    let made = query(&["--kind", "intent"]).len();
    assert_eq!((denied, made), (7, 2), "{:?}", net.connects());

    let summary: Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    let sum = |list: &Value, of: &dyn Fn(&Value) -> bool, number: &str| -> u64 {
        let counted = list.as_array().unwrap().iter().filter(|one| of(one));
        counted.map(|one| one[number].as_u64().unwrap()).sum()
    };
    let is_connect = |one: &Value| one["operation"] == "connect";
    assert_eq!(sum(&summary["denials"], &is_connect, "times"), denied as u64, "{summary}");
    assert_eq!(sum(&summary["connections"], &|_| true, "connections"), made as u64, "{summary}");

    let report = report(&net);
    let operations = report["operations"].as_array().unwrap();
    let connect = operations.iter().find(|one| one["op"] == "connect").unwrap();
    assert_eq!(connect["denied"].as_u64(), Some(denied as u64), "{connect}");
    assert_eq!(connect["allowed"].as_u64(), Some(made as u64), "{connect}");
    assert_eq!(sum(&report["hosts"], &|_| true, "connections"), made as u64, "{report}");
    assert_eq!(sum(&report["hosts"], &|_| true, "denied"), 1, "{report}");

    let session = net.run(&["status", "--json"]).json()["session"].clone();
    let others = sum(&summary["denials"], &|one| !is_connect(one), "times");
    assert_eq!(session["denials"].as_u64(), Some(denied as u64 + others), "{session}");
    assert_eq!(session["connections"].as_u64(), Some(made as u64), "{session}");
}
