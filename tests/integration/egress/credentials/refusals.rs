//! Requests that are not passed on with a key, and keys with which no program is started.

use super::*;
use crate::common::ON_TERMINAL;

impl Keyed {
    /// Waits until the requests that the client counted are on record, and lets it end.
    fn see_refusals(&self) {
        let world = &self.net.world;
        let count = eventually(|| std::fs::read_to_string(world.path("refused")).ok());
        let count: usize = count.parse().unwrap();
        eventually(|| (self.net.connects().len() >= count).then_some(()));
        world.file("go", "");
    }
}

#[test]
fn a_request_that_is_not_the_session_s_or_has_two_readings_is_not_passed_on() {
    let keyed = Keyed::new("h1");
    let child = keyed.start_client("refused", &[]);
    keyed.see_refusals();
    let found = reported(child.wait_with_output().unwrap());
    let expected = |name: &str| match name {
        "no phantom" | "another phantom" | "in another header" => 401,
        "another method" | "another path" => 403,
        "trace" | "connect" => 405,
        // There is no reply.
        "another protocol" => 0,
        _ => 400,
    };
    let found = found.as_object().unwrap();
    let wrong: Vec<_> = found.iter().filter(|(name, status)| **status != expected(name)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(keyed.upstream.seen(), Vec::<Value>::new());
    let records = keyed.net.connects();
    let denied = |record: &Value| record["kind"] == "decision" && record["decision"] == "deny";
    assert!(records.iter().all(denied), "{records:?}");
    assert_eq!(records.len(), found.len(), "{records:?}");
    let rule = |record: &Value| record["rule"] == "network.credentials";
    assert!(records.iter().all(rule), "{records:?}");
    assert!(!records.iter().any(|record| record.to_string().contains("portcullis-phantom")));
    // One that cannot be parsed in HTTP/2 gets no reply.
    let replied = found.values().map(|status| status.as_u64().filter(|status| *status > 0));
    let mut replied: Vec<_> = replied.map(|status| status.unwrap_or(400)).collect();
    let mut recorded: Vec<_> =
        records.iter().map(|record| record["facts"]["status"].as_u64().unwrap()).collect();
    replied.sort_unstable();
    recorded.sort_unstable();
    assert_eq!(recorded, replied, "{records:?}");
}

/// The operator was told to name the credential in the policy, or to add a method or path, where
/// neither helps.
#[test]
fn help_on_a_request_that_no_setting_lets_pass_names_no_setting() {
    let keyed = Keyed::new("h1");
    let config = keyed.config();
    let exec = ["exec", "--config", config.to_str().unwrap(), "--"];
    let client = ["/usr/bin/python3", "client.py", "hopeless"];
    let mut command = keyed.net.portcullis(&[&exec[..], &client].concat());
    let child = command.env("OPERATORS_KEY", KEY).spawn().unwrap();
    keyed.see_refusals();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(reported(output), json!([401, 405, 400, 400]), "{stderr}");
    let help: Vec<_> = stderr.lines().filter(|line| line.starts_with("  help: ")).collect();
    assert_eq!(help.len(), 3, "{stderr}");
    assert!(!help.iter().any(|line| line.contains("the operator can")), "{stderr}");
}

/// Neither record nor reply said what was not listed.
#[test]
fn a_path_or_method_that_is_not_listed_is_named() {
    let keyed = Keyed::new("h1");
    let summary = keyed.net.world.base().join("summary.json");
    let options = ["--summary", summary.to_str().unwrap()];
    let output =
        keyed.command(&options, &["/usr/bin/python3", "client.py", "unlisted"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let found = reported(output);
    assert!(found[0].as_str().unwrap().contains("the path `/v2/hidden`"), "{found}");
    assert!(found[1].as_str().unwrap().contains("the method `DELETE`"), "{found}");
    let records = keyed.net.connects();
    let facts: Vec<_> = records
        .iter()
        .map(|record| {
            (&record["rule"], &record["facts"]["method"], &record["facts"]["requestPath"])
        })
        .collect();
    let rule = &json!("network.credentials");
    let expected = [
        (rule, &json!("POST"), &json!("/v2/hidden")),
        (rule, &json!("DELETE"), &json!("/v1/messages")),
    ];
    assert_eq!(facts, expected, "{records:?}");
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(summary).unwrap()).unwrap();
    let requests: Vec<_> = (0..2).map(|n| summary["denials"][n]["request"].clone()).collect();
    assert_eq!(requests, ["POST /v2/hidden", "DELETE /v1/messages"], "{summary}");
    assert!(
        stderr.contains("a request to `site.example:") && stderr.contains("`/v2/hidden`"),
        "{stderr}"
    );
    let all = format!("{found}{records:?}{summary}{stderr}");
    assert!(!all.contains("secret=1"), "{all}");
}

/// The path was cut in record and reason before secrets in it were redacted.
#[test]
fn half_a_secret_in_a_long_path_was_recorded() {
    let mut keyed = Keyed::new("h1");
    let policy = keyed.net.world.base().join("policy/policy.toml");
    let policy = std::fs::read_to_string(policy).unwrap();
    let rules = super::super::secret_texts::rules();
    keyed.net.world.set_policy(&format!("{policy}{rules}"));
    let output = keyed.command(&[], &["/usr/bin/python3", "client.py", "long_paths"]).output();
    let output = output.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(reported(output), json!([403, 403, 403, 403]), "{stderr}");
    let records = keyed.net.connects();
    let paths = records.iter().map(|record| record["facts"]["requestPath"].as_str().unwrap());
    assert!(paths.clone().all(|path| path.starts_with("/v2/xxx")), "{records:?}");
    assert!(!format!("{records:?}{stderr}").contains("AKIAQ"), "{records:?}{stderr}");
}

#[test]
fn a_phantom_is_worth_nothing_at_another_credential_nor_in_a_later_session() {
    let mut keyed = Keyed::new("h1");
    let policy = std::fs::read_to_string(keyed.net.world.base().join("policy/policy.toml"));
    let policy = policy.unwrap().replace("[\"model\"]", "[\"model\", \"other\"]");
    keyed.net.world.set_policy(&policy);
    let text = std::fs::read_to_string(keyed.config()).unwrap();
    let other = text
        .replace("\"model\"", "\"other\"")
        .replace("site.example", "127.0.0.1")
        .replace("MODEL_", "OTHER_")
        .replace("OPERATORS_KEY", "OTHERS_KEY");
    std::fs::write(keyed.config(), text + &other).unwrap();
    for earlier in [json!([]), json!([401, 401, 401, 401])] {
        let mut command = keyed.command(&[], &["/usr/bin/python3", "client.py", "phantoms"]);
        let output = command.env("OTHERS_KEY", "another-key-of-the-tests").output().unwrap();
        let expected =
            json!({"own": [200, 200], "the other's": [401, 401], "an earlier one": earlier});
        assert_eq!(reported(output), expected);
    }
    // What was refused went nowhere.
    let seen = keyed.upstream.seen();
    let keys: Vec<_> = seen.iter().map(|line| &line["headers"]["x-api-key"]).collect();
    let own = ["KEY", "another-key-of-the-tests"];
    assert_eq!(keys, [own, own].concat());
}

#[test]
fn a_head_for_a_credential_that_does_not_end_is_given_up() {
    let keyed = Keyed::new("h1");
    let slow = keyed.client("slow", &[]);
    let seconds = slow["seconds"].as_f64().unwrap();
    assert!(slow["ended"] == true && (29.0..60.0).contains(&seconds), "{slow}");
    assert!(keyed.upstream.seen().is_empty() && keyed.net.connects().is_empty());
}

#[test]
fn nothing_is_smuggled_past_the_filter() {
    let keyed = Keyed::new("h1");
    let found = keyed.client("smuggled", &[]);
    assert_eq!(found["a second request"], json!([200, 403, 401]), "{found}");
    let seen = keyed.upstream.seen();
    assert!(!seen.is_empty());
    for line in &seen {
        assert_eq!(line["url"], "/v1/messages", "{seen:?}");
        assert_eq!(line["headers"].get("authorization"), None);
        assert!(!line["last"].as_str().unwrap().contains("hidden"), "{seen:?}");
        let both =
            (line["headers"].get("content-length"), line["headers"].get("transfer-encoding"));
        assert!(both.0.is_none() || both.1.is_none(), "{line}");
    }
}

/// A key of the agent's own would take what it knows to another account.
#[test]
fn a_host_with_a_credential_is_not_reached_by_the_proxy() {
    let keyed = Keyed::new("h1");
    let found = keyed.client("proxy", &[keyed.upstream.port]);
    for (name, reply) in found.as_object().unwrap() {
        let reply = reply.as_str().unwrap();
        assert!(
            reply.starts_with("HTTP/1.1 403 Denied by rule network.credentials"),
            "{name}: {reply}"
        );
        assert!(reply.contains("`model` alone, at http://127.0.0.1:3129"), "{name}: {reply}");
    }
    assert!(keyed.upstream.seen().is_empty());
    let rules = keyed.net.connects();
    assert!(rules.iter().all(|record| record["rule"] == "network.credentials"), "{rules:?}");
    assert_eq!(rules.len(), 4);
}

#[test]
fn a_server_that_nobody_vouches_for_gets_no_key() {
    let keyed = Keyed::new("h1");
    let other = tempfile::TempDir::new().unwrap();
    certify(other.path());
    keyed.configure(&format!("ca = \"{}\"\n", other.path().join("ca.pem").display()));
    let found = keyed.client("once", &[]);
    assert_eq!(found["status"], 502);
    assert!(found["body"].as_str().unwrap().contains("no TLS with `site.example`"), "{found}");
    let outcomes = keyed.outcomes();
    // It was a denial by `network.host`.
    let (result, rule) = (&outcomes[0]["result"], outcomes[0].get("rule"));
    assert_eq!((outcomes.len(), result, rule), (1, &json!("failed"), None));
    assert_eq!(outcomes[0].get("decision"), None);
    assert!(found["body"].as_str().unwrap().contains("`ca` in `[[credentials]]`"), "{found}");
    assert!(
        outcomes[0]["reason"].as_str().unwrap().contains("invalid peer certificate"),
        "{outcomes:?}"
    );
    assert!(keyed.upstream.seen().is_empty());
}

#[test]
fn a_key_that_the_agent_would_get_or_could_change_starts_nothing() {
    let keyed = Keyed::new("h1");
    let refused = |options: &[&str], command: &[&str], words: &str| {
        let output = keyed.command(options, command).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_ne!(output.status.code(), Some(0), "{words}");
        assert!(stderr.contains(words) && !stderr.contains(KEY), "{words}: {stderr}");
    };
    let holding = format!("OTHER=x{KEY}");
    refused(&["--agent-env", &holding], &["true"], "in the variable `OTHER`");
    refused(&[], &["echo", KEY], "on its command line");
    for (more, words) in [
        (
            format!("from = \"file:{}\"\n", keyed.net.world.file("key", KEY).display()),
            "key of the credential",
        ),
        ("from = \"env:UNSET_KEY\"\n".to_owned(), "(env:UNSET_KEY): it is not set"),
        ("from = \"file:/proc/version_signature_of_none\"\n".to_owned(), "no such file"),
        ("prefx = \"Bearer \"\n".to_owned(), "unknown key `prefx`"),
        ("prefix = \"Bearer\\n\"\n".to_owned(), "`prefix` is no text of a header"),
    ] {
        keyed.configure(&more);
        refused(&[], &["true"], words);
    }
    std::fs::write(keyed.config(), "").unwrap();
    refused(&[], &["true"], "the credential `model`, which the configuration does not have");
    assert!(keyed.upstream.seen().is_empty());
}

/// Regression: where the policy passes the variables of a credential on, the operator's values were
/// passed on.
#[test]
fn a_login_got_the_key_of_a_credential() {
    let mut keyed = Keyed::new("h1");
    let policy =
        std::fs::read_to_string(keyed.net.world.base().join("policy/policy.toml")).unwrap();
    let agent = "[agent]\nenv = [\"MODEL_API_KEY\", \"MODEL_URL\", \"OTHER\"]\n";
    keyed.net.world.set_policy(&format!("{policy}{agent}"));
    keyed.configure("from = \"env:MODEL_API_KEY\"\n");
    let config = keyed.config();
    let login = ["login", "--config", config.to_str().unwrap(), "--agent", "it", "--", "env"];
    let login = |other: &str| {
        let inner = keyed.net.portcullis(&login);
        let mut outer = Command::new("/usr/bin/python3");
        outer.args(["-c", ON_TERMINAL]).arg(inner.get_program()).args(inner.get_args()).env_clear();
        outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        outer.envs([
            ("MODEL_API_KEY", KEY),
            ("MODEL_URL", "https://own.example"),
            ("OTHER", other),
        ]);
        outer.current_dir(keyed.net.world.base()).stdin(Stdio::null());
        let output = outer.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = login("value");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("OTHER=value"), "{said}");
    assert!(!said.contains("MODEL_") && !said.contains(KEY), "{said}");
    // Neither does it get it in another one.
    let (code, said) = login(KEY);
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("in the variable `OTHER`") && !said.contains(KEY), "{said}");
}

/// A preset passes on more variables than that of its credential, so that no agent was started
/// where another of them had the key. What is no key, such as one with a space in it, reached the
/// agent.
#[test]
fn an_agent_got_the_variable_that_has_the_key() {
    let mut keyed = Keyed::new("h1");
    let policy = keyed.net.world.base().join("policy/policy.toml");
    let policy = std::fs::read_to_string(policy).unwrap();
    let run = |keyed: &Keyed, key: &str| {
        let mut command = keyed.command(&["--agent-env", "OPERATORS_KEY"], &["env"]);
        let output = command.env("OPERATORS_KEY", key).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!said.contains("OPERATORS_KEY") && !said.contains(key), "{said}");
        (said, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (said, stderr) = run(&keyed, KEY);
    assert!(said.contains("MODEL_API_KEY=portcullis-phantom-"), "{said}");
    assert!(!stderr.contains("is not passed on"), "{stderr}");
    // A credential that the policy does not name needs no key.
    keyed.net.world.set_policy(&policy.replace("[\"model\"]", "[]"));
    let (_, stderr) = run(&keyed, "two words");
    assert!(stderr.contains("`OPERATORS_KEY` is not passed on"), "{stderr}");
}

/// The operator's own value must not be what an agent falls back on.
#[test]
fn without_a_proxy_the_agent_has_neither_phantom_nor_key() {
    let keyed = Keyed::new("h1");
    let port = keyed.upstream.port.to_string();
    let options = ["--agent-network", &port, "--agent-env", "MODEL_API_KEY=own"];
    let output = keyed.command(&options, &["env"]).output().unwrap();
    let (said, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(!said.contains("MODEL_API_KEY") && !said.contains(KEY), "{said}");
    assert!(stderr.contains("cannot use the credentials"), "{stderr}");
}

/// A file that is extended and names credentials bounds those of the policy.
#[test]
fn a_policy_uses_no_credential_that_what_it_extends_does_not_name() {
    let mut keyed = Keyed::new("h1");
    let base = keyed.net.world.base().join("policy/base.toml");
    let policy =
        std::fs::read_to_string(keyed.net.world.base().join("policy/policy.toml")).unwrap();
    for (named, has_phantom) in [("[]", false), ("[\"model\", \"more\"]", true)] {
        std::fs::write(&base, format!("schema = 1\n[network]\ncredentials = {named}\n")).unwrap();
        let extending = policy.replacen("schema = 1", "schema = 1\nextends = [\"base.toml\"]", 1);
        keyed.net.world.set_policy(&extending);
        let own = ["--agent-env", "MODEL_API_KEY=own"];
        let output = keyed.command(&own, &["env"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.contains("MODEL_API_KEY=portcullis-phantom-"), has_phantom, "{said}");
        // Without it the agent does not get the operator's own value either.
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(!said.contains("MODEL_API_KEY"), !has_phantom, "{said}");
        assert_eq!(!stderr.contains("`MODEL_API_KEY` is not passed on"), has_phantom, "{stderr}");
    }
}

/// Connections that were opened with the credential end, too.
#[test]
fn a_policy_that_is_reloaded_takes_a_credential_away() {
    let keyed = Keyed::new("h1");
    let child = keyed.start_client("wait", &[]);
    let world = &keyed.net.world;
    eventually(|| world.path("ready").exists().then_some(()));
    let file = world.base().join("policy/policy.toml");
    let policy = std::fs::read_to_string(&file).unwrap();
    let policy = policy.replacen("schema = 1", "schema = 1\nversion = 1", 1);
    std::fs::write(&file, policy.replace("[\"model\"]", "[]")).unwrap();
    let ended = eventually(|| keyed.outcomes().pop());
    let said = (&ended["result"], &ended["rule"], &ended["facts"]["credential"]);
    assert_eq!(said, (&json!("denied"), &json!("network.credentials"), &json!("model")));
    // The one request on it was answered.
    assert_eq!(named(&ended), Default::default(), "{ended}");
    std::fs::write(world.path("go"), "").unwrap();
    let found = reported(child.wait_with_output().unwrap());
    assert_eq!(found, json!({ "first": 200, "then": 403 }));
    assert_eq!(keyed.upstream.seen().len(), 1);
}
