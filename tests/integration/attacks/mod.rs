//! Attacks that an agent, or a hostile repository, could try: each with the
//! refusal or harmless result, its record, and a check that the gateway still
//! serves. `docs/attacks.md` names the test of each attack.

mod execution;
mod exhaustion;
mod links;
mod paths;
mod protocol;
mod state;
mod types;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{common::World, relay::Relay};

/// All may be done but for what `secret/**` and `żółć/**` name.
const POLICY: &str = r#"
schema = 1
[allowedPaths]
read = ["**"]
list = ["**"]
write = ["**"]
remove = ["**"]
[files]
maxReadSize = "1MiB"
maxWriteSize = "1MiB"
[[rules]]
id = "keys"
effect = "deny"
paths = ["secret/**", "żółć/**"]
"#;

/// A workspace worth attacking.
fn world() -> World {
    let world = World::with_policy(POLICY);
    world.file("proof.txt", "PROOF");
    world.file("secret/key.txt", "TOP-SECRET");
    std::fs::write(world.base().join("outside.txt"), "OUTSIDE").unwrap();
    world
}

/// A long-lived gateway under attack.
struct Siege {
    relay: Relay,
}

impl Siege {
    fn begin() -> Self {
        Self { relay: Relay::start(world()) }
    }

    fn world(&self) -> &World {
        self.relay.world()
    }

    /// Reads and writes the path, returns both errors with their records, and
    /// checks that nothing leaked and that the gateway still serves.
    fn try_path(&mut self, path: &str) -> [Option<(i64, Value)>; 2] {
        let requests = [self.relay.read_at(path), self.relay.write_at(path, "PWNED")];
        let outcomes = requests.map(|request| {
            let answer = self.relay.ask_one(request);
            let text = answer.to_string();
            assert!(!text.contains("TOP-SECRET") && !text.contains("OUTSIDE"), "{path:?}: {text}");
            let code = answer["error"]["code"].as_i64()?;
            let seq = &answer["error"]["data"]["receipt"]["seq"];
            let record = self.world().records().into_iter().find(|record| record["seq"] == *seq);
            let record = record.unwrap_or_else(|| panic!("{path:?} left no record: {answer}"));
            Some((code, record))
        });
        self.serves_on();
        outcomes
    }

    /// The path in the workspace is denied by a rule, to read and to write.
    #[track_caller]
    fn denied(&mut self, path: &str, rule: &str) {
        for outcome in self.try_path(path) {
            let (code, record) = outcome.unwrap_or_else(|| panic!("{path:?} was served"));
            assert_eq!((code, record["rule"].as_str()), (-32001, Some(rule)), "{path:?}: {record}");
            assert_eq!(record["decision"], "deny");
        }
    }

    /// The path is no path.
    #[track_caller]
    fn invalid(&mut self, path: &str) {
        for outcome in self.try_path(path) {
            let (code, record) = outcome.unwrap_or_else(|| panic!("{path:?} was served"));
            assert_eq!(code, -32602, "{path:?}: {record}");
            assert_eq!(record["result"], "invalidInput");
        }
    }

    fn inside(&self, name: &str) -> String {
        self.relay.at(name)
    }

    fn serves_on(&mut self) {
        let request = self.relay.read("proof.txt");
        assert_eq!(self.relay.ask_one(request)["result"]["content"], "PROOF");
    }

    /// The end: nothing was harmed.
    fn end(self) -> World {
        let world = self.relay.end();
        is_unharmed(&world);
        world
    }
}

/// Checks that protected files did not change.
fn is_unharmed(world: &World) {
    assert_eq!(world.read("secret/key.txt"), "TOP-SECRET");
    assert_eq!(world.read("proof.txt"), "PROOF");
    let outside = std::fs::read_to_string(world.base().join("outside.txt")).unwrap();
    assert_eq!(outside, "OUTSIDE");
    world.run(&["audit", "verify"]).ok();
}

/// Checks that a rule refused a command, that the record names it, and that the
/// next command is served.
#[track_caller]
fn refused(world: &World, args: &[&str], rule: &str) {
    let done = world.run_with_input(&[&["fs"], args].concat(), "PWNED").denied(rule);
    assert!(!done.text().contains("TOP-SECRET") && !done.text().contains("OUTSIDE"), "{done:?}");
    let record = world.last();
    assert_eq!((&record["decision"], &record["rule"]), (&"deny".into(), &rule.into()), "{record}");
    world.fs(&["read", "proof.txt"]).ok();
}

/// Every source of the tests.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = ["audit", "crates"].map(|name| root.join(name));
    let mut pending = ["tests", "src"].map(|name| root.join(name)).to_vec();
    pending.extend(crates);
    while let Some(path) = pending.pop() {
        // Packages of peers link in circles.
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            pending.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_test_that_the_list_of_attacks_names_exists() {
    let list = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/attacks.md");
    let list = std::fs::read_to_string(list).unwrap();
    let texts: Vec<_> = sources()
        .into_iter()
        .map(|path| (path.to_str().unwrap().to_owned(), std::fs::read_to_string(&path).unwrap()))
        .collect();
    let mut named = 0;
    for row in list.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| attack")) {
        let mut tests =
            row.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).peekable();
        assert!(tests.peek().is_some() || row.contains("not "), "no test and no word why: {row}");
        for name in tests {
            let (module, function) = name.rsplit_once("::").unwrap();
            let file = module.rsplit("::").next().unwrap();
            let is_there = texts.iter().any(|(path, text)| {
                let right = path.ends_with(&format!("/{file}.rs"))
                    || path.ends_with(&format!("/{file}/mod.rs"));
                right && text.contains(&format!("fn {function}("))
            });
            assert!(is_there, "docs/attacks.md names `{name}`, which does not exist");
            named += 1;
        }
    }
    assert!(named > 100, "only {named} tests are named");
}
