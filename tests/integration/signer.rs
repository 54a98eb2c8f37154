//! `audit.signer` under `portcullis run`: the broker runs it, the gateway
//! process never has the key, and a signer that fails costs checkpoints only.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    common::{Done, World, done},
    proof::{PYTHON, SIGNER},
    scripted_agent::{ScriptedAgent, TIMEOUT, gone, receipt},
};

/// A world whose checkpoints a program signs, which behaves as the file `mode`
/// determines.
struct Signed {
    world: World,
    public: String,
    place: PathBuf,
}

/// Code that runs before the signing.
const MODES: &str = r#"
import os, sys, time
place = os.path.dirname(os.path.abspath(__file__))
mode = open(os.path.join(place, "mode")).read()
with open(os.path.join(place, "environment"), "a") as file:
    file.write(" ".join(os.environ) + "\n")
with open(os.path.join(place, "runs"), "a") as file:
    file.write(f"{os.getppid()} {os.getpid()}\n")
if mode == "fail":
    sys.exit(3)
if mode == "hang":
    if os.fork() == 0:
        with open(os.path.join(place, "runs"), "a") as file:
            file.write(f"{os.getppid()} {os.getpid()}\n")
    time.sleep(600)
if mode == "nonsense":
    sys.exit(print("\u2014 x AAAAAAAA"))
if mode == "endless":
    while True:
        print("\u2014 x AAAAAAAA")
"#;

/// A credential that nothing uses.
const CREDENTIAL: &str = "[[credentials]]\nid = \"unused\"\npreset = \"claude-code\"\n\
    from = \"env:OPERATORS_KEY\"\n";

/// It had them in its environment, as the broker that runs it.
#[test]
#[cfg(feature = "full")]
fn a_signer_does_not_get_the_keys_of_credentials() {
    let signed = Signed::new();
    let configuration = std::fs::read_to_string(signed.config()).unwrap() + CREDENTIAL;
    std::fs::write(signed.config(), configuration).unwrap();
    let config = signed.config();
    let mut command =
        signed.world.command(&["exec", "--config", config.to_str().unwrap(), "--", "true"]);
    done(command.env("OPERATORS_KEY", "a-key-of-the-tests").output().unwrap()).ok();
    let environment = std::fs::read_to_string(signed.place.join("environment")).unwrap();
    assert!(
        environment.contains("PATH") && !environment.contains("OPERATORS_KEY"),
        "{environment}"
    );
}

impl Signed {
    fn new() -> Self {
        let (world, other) = (World::new(), World::new());
        world.file("a", "x");
        // Another log's key represents one that is stored elsewhere.
        other.file("a", "x");
        other.fs(&["read", "a"]).ok();
        let private = std::fs::read_to_string(other.state().join("keys/checkpoint.key")).unwrap();
        let public = other.run(&["audit", "key"]).ok().text().trim().to_owned();
        let place = world.base().join("signer");
        std::fs::create_dir(&place).unwrap();
        let script = place.join("sign.py");
        std::fs::write(&script, MODES.to_owned() + &SIGNER.replace("PRIVATE", private.trim()))
            .unwrap();
        let signed = Self { world, public, place };
        signed.mode("ok");
        signed.configure(&script);
        signed
    }

    fn configure(&self, script: &std::path::Path) {
        let text = format!(
            "[audit]\ncheckpoints = {{ records = 4, seconds = 1 }}\nsigner = [{PYTHON:?}, \"-I\", \
             {script:?}]\npublicKey = {:?}\n",
            self.public
        );
        std::fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.world.base().join("portcullis.toml")
    }

    fn mode(&self, mode: &str) {
        let fresh = self.place.join("mode.new");
        std::fs::write(&fresh, mode).unwrap();
        std::fs::rename(fresh, self.place.join("mode")).unwrap();
    }

    /// Every run of the signer: whose child it was, and itself.
    fn runs(&self) -> Vec<(i32, i32)> {
        let runs = std::fs::read_to_string(self.place.join("runs")).unwrap_or_default();
        let pair = |line: &str| {
            let (parent, own) = line.split_once(' ')?;
            Some((parent.parse().ok()?, own.parse().ok()?))
        };
        runs.lines().filter_map(pair).collect()
    }

    fn start(&self) -> ScriptedAgent {
        ScriptedAgent::with(&self.world, &["--config", self.config().to_str().unwrap()])
    }

    fn run(&self, args: &[&str]) -> Done {
        done(self.world.command(args).env("PORTCULLIS_CONFIG", self.config()).output().unwrap())
    }

    /// Returns the number of records that a checkpoint of the right key covers,
    /// of a log that is otherwise intact.
    fn covered(&self) -> u64 {
        let report = self.run(&["audit", "verify", "--json", "--key", &self.public]).json();
        let covered = report["signed"]["records"].as_u64().unwrap();
        for damage in report["damages"].as_array().unwrap() {
            assert!(covered == 0 && damage["kind"] == "missing-checkpoint", "{report}");
        }
        covered
    }

    #[track_caller]
    fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !holds() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_broker_runs_the_signer_and_the_gateway_never_has_the_key() {
    let signed = Signed::new();
    let mut scripted_agent = signed.start();
    for _ in 0..10 {
        receipt(&scripted_agent.ask(scripted_agent.read("a")));
    }
    signed.wait("a checkpoint while it serves", || signed.covered() > 8);
    let broker = scripted_agent.broker.id().cast_signed();
    let gateway = scripted_agent.gateway();
    for (parent, _) in signed.runs() {
        assert!(parent == broker && parent != gateway, "{parent}");
    }
    let (status, complaints) = scripted_agent.end();
    assert!(status.success(), "{complaints}");
    assert!(!complaints.contains("signer"), "{complaints}");
    assert!(!signed.world.state().join("keys/checkpoint.key").exists());
    let records = signed.world.records();
    assert_eq!(signed.covered(), records.len() as u64, "the stop too");
    assert_eq!(records[0]["facts"]["checkpointKey"], json!(signed.public));
}

/// It was executed from wherever its path led, also if that was the workspace of an agent.
#[test]
fn a_signer_whose_path_leads_elsewhere_is_not_executed() {
    let signed = Signed::new();
    let (link, other) = (signed.world.base().join("live"), signed.world.base().join("other"));
    std::os::unix::fs::symlink("signer", &link).unwrap();
    signed.configure(&link.join("sign.py"));
    let mut scripted_agent = signed.start();
    for _ in 0..5 {
        receipt(&scripted_agent.ask(scripted_agent.read("a")));
    }
    // A signer that is about to be executed when the link changes would be the one that was compared.
    let all = || signed.world.records().len() as u64;
    signed.wait("a checkpoint of all records", || signed.covered() == all());
    std::fs::create_dir(&other).unwrap();
    for name in ["sign.py", "mode"] {
        std::fs::copy(signed.place.join(name), other.join(name)).unwrap();
    }
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("other", &link).unwrap();
    for _ in 0..10 {
        receipt(&scripted_agent.ask(scripted_agent.read("a")));
    }
    let (status, complaints) = scripted_agent.end();
    assert!(status.success() && complaints.contains("leads elsewhere"), "{complaints}");
    assert!(!other.join("runs").exists());
}

#[test]
fn a_signer_that_goes_wrong_costs_checkpoints_only() {
    for (mode, word) in
        [("fail", "failed: exit status: 3"), ("nonsense", "does not sign"), ("endless", "failed: ")]
    {
        let signed = Signed::new();
        signed.mode(mode);
        let mut scripted_agent = signed.start();
        for round in 0..5 {
            receipt(&scripted_agent.ask(scripted_agent.write("b", &round.to_string())));
        }
        signed.wait("it is asked", || !signed.runs().is_empty());
        let (status, complaints) = scripted_agent.end();
        assert!(status.success(), "{mode}: {complaints}");
        let warning = "the signer signed no checkpoint of the audit log";
        assert!(complaints.contains(warning) && complaints.contains(word), "{mode}: {complaints}");
        assert_eq!(complaints.matches(warning).count(), 1, "said once: {complaints}");
        assert_eq!(signed.covered(), 0);
        // Nothing is lost: when it works again, a checkpoint covers it all.
        signed.mode("ok");
        signed.run(&["audit", "checkpoint"]).ok();
        assert_eq!(signed.covered(), signed.world.records().len() as u64);
    }
}

#[test]
fn a_signer_that_hangs_holds_up_nobody_and_is_ended() {
    let signed = Signed::new();
    signed.mode("hang");
    let mut scripted_agent = signed.start();
    receipt(&scripted_agent.ask(scripted_agent.write("b", "0")));
    signed.wait("it is asked", || signed.runs().len() >= 2);
    for round in 0..20 {
        receipt(&scripted_agent.ask(scripted_agent.write("b", &round.to_string())));
    }
    let hung: Vec<_> = signed.runs().into_iter().map(|(_, own)| own).collect();
    signed.mode("ok");
    assert!(gone(&hung), "{hung:?}");
    // The same gateway goes on with it.
    signed.wait("a checkpoint", || {
        receipt(&scripted_agent.ask(scripted_agent.read("b")));
        signed.covered() > 20
    });
    // And one that hangs at the end is not waited for long.
    signed.mode("hang");
    let before = signed.runs().len();
    receipt(&scripted_agent.ask(scripted_agent.write("b", "last")));
    signed.wait("it is asked", || signed.runs().len() >= before + 2);
    let (status, complaints) = scripted_agent.end();
    assert!(status.success(), "{complaints}");
    assert!(complaints.contains("did not answer within"), "{complaints}");
    let last = signed.world.records().pop().unwrap();
    assert_eq!(last["kind"], "stop");
    signed.mode("ok");
    signed.run(&["audit", "checkpoint"]).ok();
    assert_eq!(signed.covered(), signed.world.records().len() as u64);
}

#[test]
fn a_signer_that_the_agent_could_change_is_refused() {
    let signed = Signed::new();
    let script = signed.world.file("sign.py", "print('x')");
    signed.configure(&script);
    let refused = signed.run(&["run", "--", "/bin/true"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains(&format!("`{}`", script.display())), "{refused:?}");
}

/// It ran in the directory of the command, which is the workspace by default.
#[test]
fn a_signer_never_runs_a_file_of_the_workspace_by_a_relative_name() {
    let signed = Signed::new();
    let mark = signed.world.base().join("mark");
    signed.world.file("sign.sh", format!("touch '{}'\n", mark.display()));
    let text =
        format!("[audit]\nsigner = [\"/bin/sh\", \"sign.sh\"]\npublicKey = {:?}\n", signed.public);
    std::fs::write(signed.config(), text).unwrap();
    let mut command = signed.world.command(&["run", "--", "/bin/true"]);
    command.env("PORTCULLIS_CONFIG", signed.config()).current_dir(signed.world.root());
    done(command.output().unwrap()).ok();
    assert!(!mark.exists());
}
