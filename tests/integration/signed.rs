//! The operator's configuration file, and policies that must be signed.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    common::{Done, World},
    relay::Relay,
};

const TIMEOUT: Duration = Duration::from_secs(60);

fn policy(version: u64) -> String {
    format!(
        "schema = 1\nname = \"signed\"\nversion = {version}\nextends = [\"baseline\", \
         \"./part.toml\"]\n[allowedPaths]\nread = [\"**\"]\n"
    )
}

struct Signer {
    world: World,
    public: String,
}

impl Signer {
    /// A world that requires signatures by a fresh key; nothing is signed yet.
    fn new() -> Self {
        let world = World::with_policy(&policy(3));
        world.file("a.txt", "a\n");
        std::fs::write(world.base().join("policy/part.toml"), "schema = 1\n").unwrap();
        let signer = Self { world, public: String::new() };
        let public = signer.keygen("key");
        std::fs::create_dir_all(signer.config().parent().unwrap()).unwrap();
        let text = format!("requireSignature = true\npolicyKeys = [\"{public}\"]\n");
        std::fs::write(signer.config(), text).unwrap();
        Self { public, ..signer }
    }

    /// The default path of the configuration.
    fn config(&self) -> PathBuf {
        self.world.base().join("home/.config/portcullis/portcullis.toml")
    }

    fn policy(&self) -> PathBuf {
        self.world.base().join("policy/policy.toml")
    }

    fn key(&self, name: &str) -> String {
        self.world.base().join(name).to_str().unwrap().to_owned()
    }

    fn keygen(&self, name: &str) -> String {
        let key = self.key(name);
        let made = self.world.run(&["policy", "keygen", "--out", &key, "--json"]).ok().json();
        made["public"].as_str().unwrap().to_owned()
    }

    fn sign(&self, key: &str) -> Done {
        let policy = self.policy();
        self.world.run(&["policy", "sign", policy.to_str().unwrap(), "--key", &self.key(key)])
    }

    fn read(&self) -> Done {
        self.world.fs(&["read", "a.txt"])
    }

    #[track_caller]
    fn refuses(&self, why: &str) {
        let done = self.read();
        assert_eq!(done.code, 4, "{done:?}");
        assert!(done.stderr.contains(why), "{why}: {}", done.stderr);
        assert!(done.stdout.is_empty());
    }
}

#[test]
fn only_what_is_signed_is_enforced() {
    let signer = Signer::new();
    signer.refuses("policy.toml.sig`: no such file");
    signer.sign("key").ok();
    assert_eq!(signer.read().ok().text(), "a\n");
    let start = signer.world.records().remove(0);
    assert_eq!(start["facts"]["policySignedBy"], signer.public.as_str());

    // Every part of it is signed.
    let part = signer.world.base().join("policy/part.toml");
    std::fs::write(&part, "schema = 1\n# changed\n").unwrap();
    signer.refuses("is not as it was when");
    std::fs::write(&part, "schema = 1\n").unwrap();
    signer.read().ok();
    std::fs::write(signer.policy(), policy(4)).unwrap();
    signer.refuses("is not as it was when");

    signer.keygen("other");
    signer.sign("other").ok();
    signer.refuses("which is not an accepted one");
    let signature = signer.world.base().join("policy/policy.toml.sig");
    std::fs::write(&signature, "signed, honestly\n").unwrap();
    signer.refuses("is not a signature of a policy");
    let embedded = signer.world.run(&["fs", "read", "a.txt", "--policy", "default"]);
    assert_eq!(embedded.code, 4);
    assert!(embedded.stderr.contains("the embedded policy `default` has no signature"));
    let other = signer.world.base().join("other.toml");
    std::fs::write(&other, "").unwrap();
    let other = other.to_str().unwrap();
    signer.world.run(&["fs", "read", "a.txt", "--config", other]).ok();
}

#[test]
fn an_older_one_never_comes_back() {
    let signer = Signer::new();
    let both = |version| {
        std::fs::write(signer.policy(), policy(version)).unwrap();
        signer.sign("key").ok();
    };
    both(3);
    let kept = std::fs::read(signer.world.base().join("policy/policy.toml.sig")).unwrap();
    signer.read().ok();
    both(5);
    signer.read().ok();
    // With its own good signature of then.
    std::fs::write(signer.policy(), policy(3)).unwrap();
    std::fs::write(signer.world.base().join("policy/policy.toml.sig"), &kept).unwrap();
    signer.refuses("has version 3, and version 5 (sha256 ");
    // Nor another of the same version.
    std::fs::write(signer.policy(), policy(5) + "# another\n").unwrap();
    signer.sign("key").ok();
    signer.refuses("has version 5, and version 5 (sha256 ");
    both(5);
    signer.read().ok();
    let newest: Vec<_> = std::fs::read_dir(signer.world.state().join("policies"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().contains("newest-"))
        .collect();
    std::fs::write(&newest[0], "{").unwrap();
    let refused = || {
        let done = signer.read();
        assert_eq!(done.code, 1, "what cannot be found out is refused");
        assert!(
            done.stderr.contains("cannot read which policies were in force"),
            "{}",
            done.stderr
        );
    };
    refused();
    // A start waited for a writer of the pipe.
    std::fs::remove_file(&newest[0]).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &newest[0], 0o600.into()).unwrap();
    refused();
}

/// `doctor` saw no fault in an older policy, and had `policy check` show one of a
/// signature, which that does not look at.
#[test]
fn every_command_says_of_a_stale_signature_what_the_documents_say() {
    let signer = Signer::new();
    let world = &signer.world;
    std::fs::write(signer.policy(), policy(3)).unwrap();
    signer.sign("key").ok();
    let old = std::fs::read(world.base().join("policy/policy.toml.sig")).unwrap();
    std::fs::write(signer.policy(), policy(4)).unwrap();
    signer.sign("key").ok();
    signer.read().ok();
    let codes = |why: &str| {
        let named = signer.policy();
        let commands: [&[&str]; 6] = [
            &["fs", "read", "a.txt"],
            &["run", "--", "/bin/true"],
            &["mcp"],
            &["backup", "diff", "a.txt"],
            &["doctor"],
            &["policy", "check", named.to_str().unwrap()],
        ];
        let codes = commands.map(|args| world.run(args).code);
        assert_eq!(codes, [4, 4, 4, 4, 1, 0], "{why}");
        let report = world.run(&["doctor", "--json"]).json();
        let checks = report["checks"].as_array().unwrap();
        let policy = checks.iter().find(|check| check["name"] == "policy").unwrap().clone();
        assert_eq!(policy["status"], "failed", "{why}: {policy}");
        policy["help"].as_str().unwrap().to_owned()
    };
    // The policy is older than one that was in force, with its good signature of then.
    std::fs::write(signer.policy(), policy(3)).unwrap();
    std::fs::write(world.base().join("policy/policy.toml.sig"), &old).unwrap();
    assert!(codes("older").contains("greater `version`"));
    // The signature is for what the policy was.
    std::fs::write(signer.policy(), policy(5)).unwrap();
    assert!(codes("changed").contains("portcullis policy sign"));
    std::fs::remove_file(world.base().join("policy/policy.toml.sig")).unwrap();
    assert!(codes("gone").contains("portcullis policy sign"));
}

#[track_caller]
fn policies(world: &World, count: usize) -> Value {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        let mut records = world.records();
        records.retain(|record| record["kind"] == "policy");
        if records.len() == count {
            return records.pop().unwrap();
        }
        assert!(records.len() < count && Instant::now() < give_up, "{records:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_running_gateway_takes_up_what_is_signed_only() {
    let signer = Signer::new();
    signer.sign("key").ok();
    let directory = signer.world.base().join("policy");
    let sign = |version| {
        // Signed elsewhere, then put there in one go each.
        let fresh = directory.join("fresh.toml");
        std::fs::write(&fresh, policy(version)).unwrap();
        let key = signer.key("key");
        signer.world.run(&["policy", "sign", fresh.to_str().unwrap(), "--key", &key]).ok();
        let signature = std::fs::read_to_string(directory.join("fresh.toml.sig")).unwrap();
        (fresh, signature)
    };
    let (good, signature) = sign(6);
    let mut relay = Relay::start(signer.world);
    std::fs::rename(good, directory.join("policy.toml")).unwrap();
    let record = policies(relay.world(), 1);
    assert_eq!(record["result"], "refused", "{record}");
    assert!(record["reason"].as_str().unwrap().contains("is not as it was when"), "{record}");
    std::fs::write(directory.join("fresh.sig"), signature).unwrap();
    std::fs::rename(directory.join("fresh.sig"), directory.join("policy.toml.sig")).unwrap();
    let record = policies(relay.world(), 2);
    assert_eq!((&record["result"], &record["facts"]["version"]), (&"ok".into(), &6.into()));
    let read = relay.read("a.txt");
    assert!(relay.ask_one(read).get("result").is_some());
    relay.end();
}

#[test]
fn rule_files_are_signed_with_the_policy() {
    let signer = Signer::new();
    let rules = signer.world.base().join("policy/rules.toml");
    let rule = |word: &str| {
        format!("[[rules]]\nid = \"r\"\nregex = '{word}_[0-9]{{8}}'\nkeywords = [\"{word}\"]\n")
    };
    std::fs::write(&rules, rule("tok")).unwrap();
    let text = format!(
        "{}[secrets]\nrulesets = [{{ file = \"rules.toml\", format = \"gitleaks\" }}]\n",
        policy(3)
    );
    std::fs::write(signer.policy(), &text).unwrap();
    signer.sign("key").ok();
    signer.read().ok();
    std::fs::write(&rules, rule("key")).unwrap();
    signer.refuses("is not as it was when");
    std::fs::write(&rules, rule("tok")).unwrap();

    let directory = signer.world.base().join("policy");
    let mut relay = Relay::start(signer.world);
    // Neither a changed rule file nor a changed part of the policy comes into force by a signature
    // that is for another one.
    for (count, (name, text)) in
        (1..).zip([("rules.toml", rule("key")), ("part.toml", "schema = 1\n# more\n".to_owned())])
    {
        std::fs::write(directory.join("fresh"), text).unwrap();
        std::fs::rename(directory.join("fresh"), directory.join(name)).unwrap();
        let record = policies(relay.world(), count);
        assert_eq!(record["result"], "refused", "{record}");
        assert!(record["reason"].as_str().unwrap().contains("is not as it was when"), "{record}");
    }
    let read = relay.read("a.txt");
    assert!(relay.ask_one(read).get("result").is_some());
    relay.end();
}

#[test]
fn keys_are_private_and_not_overwritten() {
    let signer = Signer::new();
    let mode = std::fs::metadata(signer.key("key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = signer.world.run(&["policy", "keygen", "--out", &signer.key("key")]);
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("cannot write the key"), "{}", again.stderr);
    let shown = signer.world.run(&["policy", "keygen", "--out", &signer.key("new")]).ok();
    assert!(shown.text().starts_with("requireSignature = true\npolicyKeys = [\"ed25519:"));
    let secret = std::fs::read_to_string(signer.key("new")).unwrap();
    assert!(!shown.text().contains(secret.rsplit(' ').next().unwrap().trim_end()));
    // A policy that does not load, or whose tests fail, is not signed.
    std::fs::write(signer.policy(), "schema = 2\n").unwrap();
    assert_eq!(signer.sign("key").code, 4);
    let policy = signer.policy();
    let no_key = policy.to_str().unwrap();
    let done = signer.world.run(&["policy", "sign", no_key, "--key", no_key]);
    assert_eq!(done.code, 1);
    assert!(
        done.stderr.contains("is not a private key of `portcullis policy keygen`"),
        "{}",
        done.stderr
    );
}

/// A signature was written through a link of the workspace.
#[test]
fn a_signature_is_written_through_no_link() {
    let signer = Signer::new();
    let (directory, link) = (signer.policy(), signer.world.path("link"));
    let directory = directory.parent().unwrap();
    std::os::unix::fs::symlink(directory, &link).unwrap();
    let policy = link.join("policy.toml");
    let key = signer.key("key");
    let done = signer.world.run(&["policy", "sign", policy.to_str().unwrap(), "--key", &key]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(!directory.join("policy.toml.sig").exists());
}

#[test]
fn the_configuration_is_understood_or_refused() {
    let mut world = World::new();
    world.use_policy("default");
    world.file("a.txt", "a\n");
    world.fs(&["read", "a.txt"]).ok();
    let config = world.base().join("portcullis.toml");
    let path = config.to_str().unwrap().to_owned();
    let read = |world: &World| world.fs(&["read", "a.txt", "--config", &path]);
    let missing = read(&world);
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("no such file"), "{}", missing.stderr);
    std::fs::write(&config, "# nothing\n\nrequireSignatur = true\n").unwrap();
    let shown = read(&world).stderr.replace(world.base().to_str().unwrap(), "DIR");
    insta::assert_snapshot!(shown, @r"
    portcullis: the configuration cannot be used
    DIR/portcullis.toml:3: unknown key `requireSignatur`
      help: did you mean `requireSignature`?
    ");
    std::fs::write(&config, b"\xff").unwrap();
    assert!(read(&world).stderr.contains("it is not UTF-8"));
    std::fs::remove_file(&config).unwrap();
    std::fs::create_dir(&config).unwrap();
    assert!(read(&world).stderr.contains("not a regular file"));
    // Where an agent could write it, it is no configuration.
    let inside = world.file("portcullis.toml", "");
    let done = world.fs(&["read", "a.txt", "--config", inside.to_str().unwrap()]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("overlap"), "{}", done.stderr);
    let doctor = world.run(&["doctor", "--json", "--config", &path]);
    assert!(doctor.text().contains("cannot read the configuration"), "{}", doctor.text());
}

/// Only `config check` said that keys alone make nobody sign.
#[test]
fn keys_without_required_signatures_are_warned_of_by_every_start() {
    let signer = Signer::new();
    let world = &signer.world;
    let warnings = |args: &[&str]| {
        let done = world.run(args);
        (args[0].to_owned(), done.stderr.matches("without `requireSignature").count())
    };
    let all = |expected: usize| {
        for args in [
            &["fs", "read", "a.txt"][..],
            &["mcp"],
            &["exec", "--", "/bin/true"],
            &["run", "--", "/bin/true"],
            // It warns, and then refuses to start.
            &["serve", "--listen", "127.0.0.1:0", "--policy", "nonexistent.toml"],
            &["config", "check"],
        ] {
            assert_eq!(warnings(args), (args[0].to_owned(), expected));
        }
        let report = world.run(&["doctor", "--json"]).json();
        let checks = report["checks"].as_array().unwrap().iter();
        let found: Vec<_> = checks.filter(|check| check["name"] == "policy signatures").collect();
        assert_eq!(found.len(), expected);
        assert!(found.iter().all(|check| check["status"] == "warning"), "{found:?}");
    };
    std::fs::write(signer.config(), format!("policyKeys = [\"{}\"]\n", signer.public)).unwrap();
    all(1);
    std::fs::write(signer.config(), "").unwrap();
    all(0);
}
