//! Output of commands with `--json`, and exit codes.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

use super::{Shapes, golden};
use crate::common::{Stop, World};

/// Words of the subcommands that have `--json`, as the help lists them.
fn with_json(world: &World, words: &[String], found: &mut BTreeSet<String>) {
    let mut args: Vec<_> = words.iter().map(String::as_str).collect();
    args.push("--help");
    let help = world.run(&args).ok();
    let help = help.text();
    let Some((_, list)) = help.split_once("Commands:\n") else {
        if help.lines().any(|line| line.trim_start().starts_with("--json")) {
            found.insert(words.join(" "));
        }
        return;
    };
    for line in list.lines().take_while(|line| !line.is_empty()) {
        let Some(word) = line.strip_prefix("  ").and_then(|line| line.split(' ').next()) else {
            continue;
        };
        if !word.is_empty() && word != "help" {
            with_json(world, &[words, &[word.to_owned()]].concat(), found);
        }
    }
}

struct Recorder {
    world: World,
    shapes: Shapes,
    seen: BTreeSet<String>,
    codes: BTreeSet<(String, i32)>,
}

impl Recorder {
    fn file(&self, name: &str, content: &str) {
        std::fs::write(self.world.base().join(name), content).unwrap();
    }

    /// Runs a command and notes the shape of what it prints, a line each or all of it.
    fn run(&mut self, command: &str, args: &[&str]) -> Value {
        self.run_with_input(command, args, "")
    }

    /// `exec` prints beside the command's own output.
    fn exec(&mut self, script: &str) {
        let done = self.world.run(&["exec", "--json", "--", "sh", "-c", script]);
        let line = done.stderr.lines().last().unwrap();
        let value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        self.shapes.add("exec", &value);
        self.seen.insert("exec".to_owned());
        self.codes.insert(("exec".to_owned(), done.code));
    }

    /// A program that does not start leaves no summary.
    fn exec_nothing(&mut self, program: &str) {
        let done = self.world.run(&["exec", "--", program]);
        self.codes.insert((format!("exec {program}"), done.code));
    }

    /// `shell` prints what `exec` does, on a terminal; without one it ends at once.
    fn shell(&mut self) {
        let done = self.world.run(&["shell", "--json", "--", "true"]);
        self.seen.insert("shell".to_owned());
        self.codes.insert(("shell".to_owned(), done.code));
    }

    fn run_with_input(&mut self, command: &str, args: &[&str], input: &str) -> Value {
        let words: Vec<_> = command.split(' ').collect();
        let done = self.world.run_with_input(&[&words[..], args, &["--json"]].concat(), input);
        let text = done.text();
        let mut values: Vec<Value> = match serde_json::from_str(text) {
            Ok(value) => vec![value],
            Err(_) => text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        };
        assert!(!values.is_empty(), "{command} {args:?}: {done:?}");
        self.seen.insert(command.to_owned());
        for value in &mut values {
            // Facts about the machine differ from one to another.
            if command == "doctor" {
                let checks = value["checks"].as_array_mut().unwrap();
                checks.iter_mut().for_each(|check| check["facts"] = json!({}));
            }
            let failed = value["ok"] == false && value.get("error").is_some();
            let heading = if failed { "(a failure)" } else { command };
            self.shapes.add(heading, &*value);
        }
        let code = if done.code == 0 { "" } else { args.first().copied().unwrap_or_default() };
        self.codes.insert((format!("{command} {code}").trim_end().to_owned(), done.code));
        values.into_iter().next().unwrap()
    }
}

const POLICY: &str = "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\n\
    write = [\"**\"]\nremove = [\"**\"]\n[[rules]]\nid = \"ask\"\neffect = \"ask\"\n\
    operations = [\"write\"]\npaths = [\"ask/**\"]\n[[rules]]\nid = \"closed\"\n\
    effect = \"deny\"\npaths = [\"closed/**\"]\n[[rules]]\nid = \"part\"\neffect = \"deny\"\n\
    operations = [\"write\"]\npaths = [\"part/**\"]\n[[tests]]\noperation = \"read\"\n\
    path = \"closed/a\"\nexpect = { effect = \"deny\", rule = \"closed\" }\n";

#[test]
fn json_and_exit_codes() {
    let world = World::with_policy(POLICY);
    world.file("a.txt", "one\n");
    world.file("b.bin", b"\xff\x00");
    world.file("closed/a", "x");
    std::fs::write(world.base().join("narrow.toml"), "schema = 1\nextends = [\"default\"]\n")
        .unwrap();
    std::fs::write(world.base().join("bad.toml"), "schema = 1\nx = 1\n").unwrap();
    std::fs::create_dir(world.base().join("copy")).unwrap();
    let (codes, seen) = (BTreeSet::new(), BTreeSet::new());
    let shapes = Shapes::default();
    world.file("c.txt", "c\n");
    world.file("part/y", "y\n");
    let mut recorder = Recorder { world, shapes, seen, codes };
    let r = &mut recorder;

    r.run("fs read", &["a.txt"]);
    r.run("fs read", &["b.bin"]);
    r.run("fs read", &["a.txt", "closed/a"]);
    r.run("fs read", &["closed/a"]);
    r.run("fs read", &["gone.txt"]);
    r.run_with_input("fs write", &["a.txt"], "two\n");
    r.run_with_input("fs write", &["closed/a"], "two\n");
    r.run_with_input("fs append", &["a.txt"], "three\n");
    let edit = r.run("fs edit", &["a.txt", "--old", "two", "--new", "2"]);
    let edit = edit["receipt"]["seq"].to_string();
    r.run("fs mkdir", &["d"]);
    r.run("fs ls", &["."]);
    r.run("fs stat", &["a.txt"]);
    r.run("fs glob", &["**"]);
    r.run("fs grep", &["three"]);
    r.run("fs mv", &["c.txt", "d/c.txt"]);
    r.run("fs rm", &["d/c.txt"]);
    let changes = "[{\"op\":\"write\",\"path\":\"e.txt\",\"content\":\"e\\n\"}]";
    r.run_with_input("fs batch", &[], changes);

    // Two opens of one version are counted.
    r.exec("cat a.txt a.txt; echo x >f.txt; echo x >>part/y; exit 3");
    r.exec_nothing("no-such-program");
    r.exec_nothing("/etc/passwd");
    r.shell();
    let commit = "git init -q && git add a.txt && \
        git -c user.name=n -c user.email=n@example.org commit -qm one";
    let made = std::process::Command::new("sh")
        .args(["-c", commit])
        .current_dir(r.world.root())
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .status();
    assert!(made.unwrap().success());
    r.exec(
        "echo g >g.txt && git add g.txt && git commit -qm good && \
         b=$(git rev-parse HEAD:g.txt) && git update-index --cacheinfo 100644,$b,part/y && \
         git commit -qm denied",
    );
    r.run("git import", &["--list"]);
    r.run("git import", &["--dry-run"]);

    let backups = r.run("backup list", &[]);
    let id = backups["backups"][0]["id"].as_str().unwrap().to_owned();
    r.run("backup show", &[&id]);
    r.run("backup diff", &[&id]);
    r.run("backup restore", &[&id, "--dry-run"]);
    r.run("backup undo", &["--record", &edit, "--dry-run"]);
    r.run("undo", &["--dry-run"]);
    r.run("backup verify", &[]);
    r.run("backup prune", &["--dry-run"]);

    r.run("policy check", &["narrow.toml"]);
    r.run("policy check", &["policy/policy.toml"]);
    r.run("policy check", &["bad.toml"]);
    r.run("policy test", &["policy/policy.toml"]);
    r.run("policy lint", &["policy/policy.toml"]);
    r.run("policy explain", &["write", "a.txt"]);
    r.run("policy explain", &["read", "closed/a"]);
    r.run("policy diff", &["default", "read-only"]);
    r.run("policy replay", &["read-only"]);
    r.run("policy learn", &[]);
    r.run("policy list", &[]);
    let key = r.run("policy keygen", &["--output", "policy.key"]);
    let key = key["public"].as_str().unwrap().to_owned();
    r.run("policy sign", &["narrow.toml", "--key", "policy.key"]);
    r.run("policy verify", &["narrow.toml", "--key", &key]);
    r.run("config check", &[]);

    r.run("approve", &[]);
    r.run("doctor", &[]);
    r.run("token new", &["--agent", "x"]);
    r.run("agents", &[]);
    let own = r.world.base().join("own.toml");
    std::fs::write(&own, "name = \"own\"\ntitle = \"Own\"\n").unwrap();
    r.run("agents", &[own.to_str().unwrap()]);
    r.run("setup", &[]);
    r.run("uninstall", &["--dry-run"]);

    r.run("audit verify", &[]);
    r.run("audit show", &[]);
    r.run("log", &[]);
    r.run("status", &[]);
    r.run("audit query", &[]);
    r.run("audit query", &["--stats", "op"]);
    let session = r.run("audit session", &[]);
    let session = session["session"].as_str().unwrap().to_owned();
    r.run("audit session", &[&session]);
    r.run("audit session", &[&session, "--records"]);
    r.run("audit blame", &["a.txt"]);
    let receipt = r.run("fs read", &["a.txt"]);
    r.file("transcript", &receipt.to_string());
    r.run("audit check-receipts", &["transcript"]);
    r.world.run(&["audit", "checkpoint"]).ok();
    let key = r.world.run(&["audit", "key"]).ok();
    r.file("log.vkey", key.text());
    let proof = r.world.run(&["audit", "prove", "1"]).ok();
    r.file("proof", proof.text());
    r.run("audit check-proof", &["proof", "--key", "log.vkey"]);
    r.world.run(&["audit", "bundle", "--output", "bundle.zip"]).ok();
    r.run("audit check-bundle", &["bundle.zip"]);
    r.world.run(&["audit", "report", "--output", "report.json"]).ok();
    let report = std::fs::read(r.world.base().join("report.json")).unwrap();
    r.shapes.add("audit report --output FILE.json", &serde_json::from_slice(&report).unwrap());
    r.file("ship.toml", "[audit]\nship = [{ to = \"copy\" }]\n");
    r.run("audit ship", &["--status", "--config", "ship.toml"]);
    r.run("demo", &[]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (file, has_ended) = (r.world.path("new.txt"), &ended);
        // Nobody outside knows when the watch begins.
        scope.spawn(move || {
            while !has_ended.load(Ordering::Relaxed) {
                std::fs::write(&file, "new").unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let _stop = Stop(&ended);
        r.run("fs watch", &["--count", "1", "--timeout", "120"]);
    });

    let mut known = BTreeSet::new();
    with_json(&r.world, &[], &mut known);
    let left: Vec<_> = known.difference(&r.seen).collect();
    golden("json.txt", &r.shapes.text());
    let mut codes = String::new();
    for (command, code) in &r.codes {
        codes += &format!("{code} {command}\n");
    }
    golden("exit-codes.txt", &codes);
    assert!(left.is_empty(), "no golden file has the output of {left:?}");
}
