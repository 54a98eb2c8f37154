//! Hosts of a preset: a session reaches them by the proxy, as far as the policy is silent about hosts.

use super::*;

impl Net {
    /// A preset with lines besides its name, and the options that name it.
    fn preset(&self, lines: &str) -> [String; 2] {
        let file = self.world.base().join("preset.toml");
        std::fs::write(&file, format!("name = \"it\"\ntitle = \"It\"\n{lines}\n")).unwrap();
        ["--preset".to_owned(), file.to_str().unwrap().to_owned()]
    }

    /// The answer to a request for a URL, made by the proxy, and what `portcullis` said.
    fn fetch(&self, preset: &[String; 2], url: &str) -> (String, String) {
        let options = [&*preset[0], &*preset[1]];
        let curl = ["curl", "-sS", "--noproxy", "", "-w", " %{http_code}", url];
        let got = self.command(&options, &curl).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(got.stdout), text(got.stderr))
    }

    /// The rules by which connections were decided, the last ones first.
    fn rules(&self) -> Vec<String> {
        let decided = self.connects().into_iter().rev();
        let decided = decided.filter(|record| record["kind"] == "decision");
        decided.map(|record| record["rule"].as_str().unwrap().to_owned()).collect()
    }
}

/// It shared the host's network with the agent, which could connect to that port of every host.
#[test]
fn a_preset_opened_a_port_of_every_host() {
    let server = Server::http();
    let net = Net::with_policy(ALL);
    let port = server.port;
    let preset = net.preset(&format!("hosts = [\"site.example:{port}\", \"127.0.0.1:{port}\"]"));
    let (said, stderr) = net.fetch(&preset, &format!("http://site.example:{port}/"));
    assert_eq!(said, "hello 200", "{stderr}");
    assert!(stderr.contains(&format!("`site.example:{port}`")), "{stderr}");
    let sandbox = net.world.records().into_iter().find(|record| record["op"] == "sandbox").unwrap();
    let facts = &sandbox["facts"];
    assert_eq!((&facts["agentNetwork"], &facts["proxy"]), (&json!("none"), &json!("enforce")));
    let hosts = json!([format!("site.example:{port}"), format!("127.0.0.1:{port}")]);
    assert_eq!(facts["presetHosts"], hosts);

    let (said, _) = net.fetch(&preset, &format!("http://other.example:{port}/"));
    assert!(said.contains("rule `default`") && said.ends_with(" 403"), "{said}");
    let (said, _) = net.fetch(&preset, "http://site.example:1/");
    assert!(said.ends_with(" 403"), "{said}");
    assert_eq!(net.rules(), ["default", "default", &*format!("preset:it:site.example:{port}")]);
    let direct = ["curl", "-sS", "--noproxy", "*", &format!("http://127.0.0.1:{port}/")];
    let direct = net.command(&[&*preset[0], &*preset[1]], &direct).output().unwrap();
    assert_eq!(direct.status.code(), Some(7), "{direct:?}");
}

#[test]
fn a_policys_rules_of_hosts_hold_instead_of_a_presets() {
    let server = Server::http();
    let net = Net::new(server.port, "");
    let port = server.port;
    let preset =
        net.preset(&format!("hosts = [\"other.example:{port}\", \"site.example:{port}\"]"));
    let (said, stderr) = net.fetch(&preset, &format!("http://other.example:{port}/"));
    assert!(said.ends_with(" 403"), "{said}");
    let warning = stderr.lines().find(|line| line.contains("warning")).unwrap();
    assert!(warning.contains("`other.example:") && !warning.contains("`site."), "{stderr}");
    let (said, _) = net.fetch(&preset, &format!("http://site.example:{port}/"));
    assert_eq!(said, "hello 200");
    assert_eq!(net.rules(), ["site", "default"]);
}

#[test]
fn a_denial_of_the_policy_beats_a_presets_host() {
    let server = Server::http();
    let denial = "[[network.rules]]\nid = \"never\"\neffect = \"deny\"\nhosts = [\"*.example\"]\n";
    let net = Net::with_policy(&format!("{ALL}{denial}"));
    let port = server.port;
    let preset = net.preset(&format!("hosts = [\"site.example:{port}\", \"127.0.0.1:{port}\"]"));
    let (said, stderr) = net.fetch(&preset, &format!("http://site.example:{port}/"));
    assert!(said.contains("rule `never`") && stderr.contains("deny `site.example:"), "{stderr}");
    let (said, _) = net.fetch(&preset, &format!("http://127.0.0.1:{port}/"));
    assert_eq!(said, "hello 200");
    assert_eq!(server.seen().len(), 1);
}

/// A model at another address could not be reached without options.
#[test]
fn a_variable_of_a_preset_names_a_host() {
    let server = Server::http();
    let net = Net::with_policy(ALL);
    let preset = net.preset("env = [\"MODEL_URL\"]\nhostsFrom = [\"MODEL_URL\"]");
    let url = format!("http://127.0.0.1:{}/v1", server.port);
    let curl = ["curl", "-sS", "--noproxy", "", &url];
    let options = [&*preset[0], &*preset[1]];
    let got = net.command(&options, &curl).env("MODEL_URL", &url).output().unwrap();
    assert_eq!(&*got.stdout, b"hello", "{got:?}");
    assert_eq!(net.rules(), ["preset:it:MODEL_URL"]);
    // The rule had another id where the log was read.
    let sandbox = net.world.records().into_iter().find(|record| record["op"] == "sandbox").unwrap();
    assert_eq!(sandbox["facts"]["presetRules"], json!(["preset:it:MODEL_URL"]));
    let record = net.connects()[0]["seq"].to_string();
    let explained = net.world.run(&["policy", "explain", "--record", &record]).ok();
    let named = |rule: &str| explained.text().matches(rule).count();
    assert!(named("preset:it:MODEL_URL") > 1, "{explained:?}");
    assert_eq!(named("preset:it:"), named("preset:it:MODEL_URL"), "{explained:?}");
    for url in ["api.example", "https://user:word@site.example/"] {
        let got = net.command(&options, &["true"]).env("MODEL_URL", url).output().unwrap();
        assert_eq!(got.status.code(), Some(2), "{got:?}");
    }
    // Where it is not set there is nothing to reach, and no proxy.
    let got = net.command(&options, &curl).output().unwrap();
    assert_eq!(got.status.code(), Some(7), "{got:?}");
}

/// Hosts of the session were lost with the policy that it began with.
#[test]
fn a_policy_that_is_taken_up_keeps_a_presets_hosts() {
    let server = Server::http();
    let policy = |version: u32, more: &str| {
        let all = ALL.replacen("schema = 1\n", &format!("schema = 1\nversion = {version}\n"), 1);
        all + more
    };
    let mut net = Net::with_policy(&policy(1, ""));
    let port = server.port;
    let preset = net.preset(&format!("hosts = [\"127.0.0.1:{port}\"]"));
    let url = format!("http://127.0.0.1:{port}/");
    let script = format!(
        "for step in 1 2 3; do touch at.$step; until [ -e go.$step ]; do sleep 0.05; done; \
         curl -s --noproxy '' -o /dev/null -w '%{{http_code}} ' {url}; done"
    );
    let child = net.command(&[&*preset[0], &*preset[1]], &["sh", "-c", &script]).spawn().unwrap();
    let rule = "[[network.rules]]\nid = \"other\"\neffect = \"allow\"\nports = [1]\n\
                hosts = [\"other.example\"]\n";
    for (step, more) in [(1, ""), (2, ""), (3, rule)] {
        ends::eventually(|| net.world.path(&format!("at.{step}")).exists().then_some(()));
        if step > 1 {
            net.world.set_policy(&policy(step, more));
            ends::eventually(|| {
                let taken = |record: &Value| record["facts"]["version"] == step;
                net.world.records().into_iter().find(taken)
            });
        }
        std::fs::write(net.world.path(&format!("go.{step}")), "").unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(&*output.stdout, b"200 200 403 ", "{output:?}");
}
