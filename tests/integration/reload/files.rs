//! The files that a policy names besides itself, changed and gone while a
//! gateway runs; and expressions that no machine should have to run.

use std::path::Path;

use super::{comes_to, policies, replace};
use crate::{common::World, relay::Relay};

const RULES: &str = "[[rules]]\nid = \"token\"\nregex = 'tok_[0-9a-z]{8}'\nkeywords = [\"tok_\"]\n";
const TOKEN: &str = "tok_a1b2c3d4";

fn policy(version: u64, secrets: &str) -> String {
    format!(
        "schema = 1\nname = \"p\"\nversion = {version}\n[allowedPaths]\nread = [\"**\"]\n\
         [secrets]\n{secrets}\n"
    )
}

const USE: &str = "rulesets = [{ file = \"rules.toml\", format = \"gitleaks\" }]";

fn start() -> Relay {
    let world = World::new();
    let directory = world.base().join("policy");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("rules.toml"), RULES).unwrap();
    let mut world = world;
    world.set_policy(&policy(5, USE));
    world.file("a.txt", format!("{TOKEN}\n"));
    world.file("b.txt", "plain\n");
    Relay::start(world)
}

/// Checks that the rule of the start is still in force.
#[track_caller]
fn still_holds(relay: &mut Relay) {
    let secret = relay.read("a.txt");
    assert_eq!(relay.ask_one(secret)["error"]["data"]["rule"], "secrets.rules.token");
    let plain = relay.read("b.txt");
    assert!(relay.ask_one(plain).get("result").is_some());
}

fn put(directory: &Path, name: &str, text: impl AsRef<[u8]>) {
    let fresh = directory.join("fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, directory.join(name)).unwrap();
}

#[test]
fn a_rule_file_that_vanishes_changes_or_is_a_bomb() {
    let mut relay = start();
    let directory = relay.world().base().join("policy");
    still_holds(&mut relay);
    let bomb = RULES.replace("tok_[0-9a-z]{8}", "(?:(?:a{1000}){1000}){1000}");
    type Change = Box<dyn Fn(&Path)>;
    let cases: Vec<(Change, &str)> = vec![
        (Box::new(|at| std::fs::remove_file(at.join("rules.toml")).unwrap()), "no such file"),
        // A party that can only change rules can loosen nothing.
        (Box::new(|at| put(at, "rules.toml", RULES.replace("8", "9"))), "version 5 is not greater"),
        (Box::new(move |at| put(at, "rules.toml", &bomb)), "larger than 10 MiB"),
        (Box::new(|at| put(at, "rules.toml", b"title = \"\xff\"\n")), "not UTF-8"),
        (Box::new(|at| put(at, "rules.toml", vec![b'#'; 10 << 20])), "larger than"),
    ];
    for (count, (change, why)) in (1..).zip(&cases) {
        change(&directory);
        let record = policies(relay.world(), count).pop().unwrap();
        assert_eq!(record["result"], "refused", "{record}");
        assert!(record["reason"].as_str().unwrap().contains(why), "{why}: {record}");
        still_holds(&mut relay);
    }
    put(&directory, "rules.toml", RULES.replace("tok_", "key_"));
    let record = policies(relay.world(), cases.len() + 1).pop().unwrap();
    assert_eq!(record["result"], "refused", "{record}");
    replace(relay.world(), policy(6, USE));
    let record = policies(relay.world(), cases.len() + 2).pop().unwrap();
    assert_eq!(record["result"], "ok", "{record}");
    comes_to(&mut relay, |answer| answer.get("result").is_some());
    relay.end();
}

#[test]
fn expressions_that_are_bombs() {
    let mut relay = start();
    let rule = |regex: &str| {
        policy(6, &format!("[[secrets.rules]]\nid = \"bomb\"\nregex = '''{regex}'''"))
    };
    let cases = [
        (rule("(?:(?:(?:a{1000}){1000}){1000}){1000}"), "larger than 10 MiB"),
        (rule("a{4294967295}{4294967295}"), "does not load"),
        (rule(&"(".repeat(100_000)), "does not load"),
        (rule(&format!("{}a{}", "(?:".repeat(5000), ")".repeat(5000))), "does not load"),
        (rule(r"\w{0,1000}".repeat(2000).as_str()), "larger than 10 MiB"),
        // Each is good by itself.
        (
            policy(
                6,
                &(0..2000)
                    .map(|number| {
                        let regex = r"\w{0,9000}x\w{0,9000}";
                        format!("[[secrets.rules]]\nid = \"r{number}\"\nregex = '{regex}'\n")
                    })
                    .collect::<String>(),
            ),
            "too large together",
        ),
        (
            policy(
                6,
                &format!(
                    "[[secrets.rules]]\nid = \"r\"\nregex = 'a+b'\nmatch = [\"{}b\"]\n",
                    "a".repeat(20_000)
                ),
            ),
            "a sample of `match` is too long",
        ),
    ];
    for (count, (text, why)) in (1..).zip(&cases) {
        replace(relay.world(), text);
        let record = policies(relay.world(), count).pop().unwrap();
        assert_eq!(record["result"], "refused", "{record}");
        assert!(record["reason"].as_str().unwrap().contains(why), "{why}: {record}");
    }
    still_holds(&mut relay);
    relay.end();
}
