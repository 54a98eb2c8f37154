//! Hosts with credentials about which a person is asked, and hosts with two of them.

use super::*;
use crate::approvals::{id, kinds, waiting};

impl Keyed {
    /// Has the rule of the host ask, and lets programs use both credentials.
    fn ask(&mut self) {
        let policy = self.net.world.base().join("policy/policy.toml");
        let policy = std::fs::read_to_string(policy).unwrap();
        let policy = policy
            .replace("effect = \"allow\"\nports", "effect = \"ask\"\nports")
            .replace("[\"model\"]", "[\"model\", \"other\"]");
        self.net.world.set_policy(&policy);
    }

    /// Adds another credential for the host.
    fn add_other(&self) {
        let text = std::fs::read_to_string(self.config()).unwrap();
        let other = text.replace("\"model\"", "\"other\"").replace("MODEL_", "OTHER_");
        std::fs::write(self.config(), text + &other).unwrap();
    }
}

/// An approval of one of them covered the other one, the question named none, and both were one
/// line in lists and summaries.
#[test]
fn each_of_two_credentials_of_a_host_is_asked_about() {
    let mut keyed = Keyed::new("h1");
    keyed.add_other();
    keyed.ask();
    let world = &keyed.net.world;
    let summary = world.base().join("summary.json");
    let options = ["--summary", summary.to_str().unwrap()];
    let client = ["/usr/bin/python3", "client.py", "two"];
    let child = keyed.command(&options, &client).spawn().unwrap();
    let host = format!("site.example:{}", keyed.upstream.port);
    let is_about = |asked: &Value, id: &str| {
        asked["path"] == format!("{host}, also at 127.0.0.1, with the credential `{id}`")
    };
    let answer = |options: &[&str], asked: &Value| {
        world.run(&[&["approve"], options, &[&id(asked)]].concat()).ok();
    };
    // Both at once.
    let asked = waiting(world, 2);
    let listed = world.run(&["approve", "--list"]).ok();
    assert!(!listed.text().contains("equal requests"), "{listed:?}");
    for asked in &asked {
        match is_about(asked, "model") {
            true => answer(&["--yes"], asked),
            false => answer(&["--reject"], asked),
        }
    }
    assert!(asked.iter().any(|asked| is_about(asked, "other")), "{asked:?}");
    let asked_next = |name: &str| {
        eventually(|| {
            let list = world.run(&["approve", "--list", "--json"]).ok().json();
            let mut list = list["waiting"].as_array().unwrap().clone().into_iter();
            let is_new = |next: &Value| asked.iter().all(|asked| id(asked) != id(next));
            list.find(|next| is_about(next, name) && is_new(next))
        })
    };
    // One after the other.
    answer(&["--yes", "--session"], &asked_next("model"));
    answer(&["--reject"], &asked_next("other"));
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(reported(output), json!([200, 403, 200, 200, 403]), "{stderr}");
    assert_eq!(kinds(world, "approval").len(), 4);

    let text = std::fs::read_to_string(summary).unwrap();
    let summary: Value = serde_json::from_str(&text).unwrap();
    let of = |list: &str, times: &str| -> Vec<_> {
        let list = summary[list].as_array().unwrap().iter();
        list.map(|one| (one["credential"].clone(), one[times].clone())).collect()
    };
    assert_eq!(of("connections", "connections"), [(json!("model"), json!(3))], "{summary}");
    assert_eq!(of("denials", "times"), [(json!("other"), json!(2))], "{summary}");
    let session = summary["session"].as_str().unwrap();
    let told = world.run(&["audit", "session", session]).ok();
    assert!(told.text().contains(&format!("{host} with `model` (3 times")), "{told:?}");
}

/// The reply of the proxy and `policy explain` named one of them as the only one.
#[test]
fn all_credentials_of_a_host_are_named() {
    let mut keyed = Keyed::new("h1");
    keyed.add_other();
    keyed.ask();
    let port = keyed.upstream.port;
    let found = keyed.client("proxy", &[port]);
    let named =
        "`model` alone, at http://127.0.0.1:3129, or `other` alone, at http://127.0.0.1:3130";
    let reply = found["connect"].as_str().unwrap();
    assert!(reply.contains(named), "{reply}");
    let target = format!("site.example:{port}");
    let config = keyed.config();
    let explain =
        ["policy", "explain", "connect", &target, "--config", config.to_str().unwrap(), "--json"];
    let explained = keyed.net.world.command(&explain).env("OPERATORS_KEY", KEY).output().unwrap();
    let explained: Value = serde_json::from_slice(&explained.stdout).unwrap();
    assert_eq!(explained["credentials"], json!(["model", "other"]), "{explained}");
}

/// The process of the credential does not read a body before the answer, so it did not notice. After
/// the approval the host got the body with the key.
#[test]
fn a_program_that_gave_up_an_upload_leaves_no_question() {
    let mut keyed = Keyed::new("h1");
    keyed.add_other();
    keyed.ask();
    let child = keyed.start_client("give_up_upload", &[]);
    let world = &keyed.net.world;
    waiting(world, 1);
    std::fs::write(world.path("go"), "").unwrap();
    waiting(world, 0);
    std::fs::write(world.path("end"), "").unwrap();
    child.wait_with_output().unwrap();
    assert_eq!(kinds(world, "approval")[0]["result"], "withdrawn");
    assert_eq!(keyed.net.connects().last().unwrap()["result"], "cancelled");
    assert_eq!(keyed.upstream.seen(), Vec::<Value>::new());
}
