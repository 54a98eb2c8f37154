//! The targets that a build with `full` has.

use std::{
    io::{BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use portcullis_audit::Kind;
use serde_json::{Value, json};

use crate::{
    common::{Done, World, done},
    fast_agent::peers,
    review::{decision, write_log},
    scripted_agent::{ScriptedAgent, TIMEOUT, receipt},
};

/// Python with the packages of `tests/peers/requirements.txt`.
fn python() -> Command {
    Command::new(peers().join("bin/python"))
}

fn peer(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(name)
}

/// A server; gone when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the port that a server prints.
fn port(said: impl Read, word: &str) -> u16 {
    for line in BufReader::new(said).lines() {
        let line = line.expect("the server runs");
        if let Some((_, port)) = line.split_once(word) {
            return port.trim().parse().unwrap();
        }
    }
    panic!("the server ended at once: `tests/run.sh setup` installs what it needs")
}

/// Runs a command with the configuration that ships.
fn run(world: &World, args: &[&str]) -> Done {
    let config = world.base().join("portcullis.toml");
    done(world.command(args).env("PORTCULLIS_CONFIG", config).output().unwrap())
}

/// Returns the checks of `doctor` about the copies.
fn doctor(world: &World) -> Value {
    let report = run(world, &["doctor", "--json"]).json();
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == "copies of the log").unwrap().clone()
}

/// Makes a log of the arrived files as docs/proof.md describes, and verifies
/// it.
pub(super) fn verify(world: &World, copy: &Path) -> Value {
    let together = "for s in tail/*/; do s=$(basename \"$s\"); \
                    [ -e \"$s.zst\" ] || cat tail/\"$s\"/* > \"$s\"; done; rm -r tail";
    let shell = Command::new("/bin/sh").args(["-c", together]).current_dir(copy).status();
    assert!(shell.unwrap().success());
    let mut command =
        world.command(&["audit", "verify", "--json", "--dir", copy.to_str().unwrap()]);
    command.env_remove("PORTCULLIS_STATE").env_remove("PORTCULLIS_WORKSPACE");
    done(command.output().unwrap()).ok().json()
}

/// An HTTP server that behaves as the test determines.
struct Sink {
    base: PathBuf,
    _server: Server,
}

impl Sink {
    fn start(world: &World) -> (Self, u16) {
        let base = world.base().join("sink");
        std::fs::create_dir(&base).unwrap();
        let sink_mode = base.join("mode");
        std::fs::write(sink_mode, "ok").unwrap();
        let mut server = python()
            .args(["-I".as_ref(), peer("sink.py").as_os_str(), base.as_os_str()])
            .arg("Bearer of-the-test")
            .stdout(Stdio::piped())
            .spawn()
            .expect("`tests/run.sh setup` makes the virtual environment");
        let port = port(server.stdout.take().unwrap(), "");
        (Self { base, _server: Server(server) }, port)
    }

    fn mode(&self, mode: &str) {
        let fresh = self.base.join("mode.new");
        std::fs::write(&fresh, mode).unwrap();
        std::fs::rename(fresh, self.base.join("mode")).unwrap();
    }

    fn log(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(self.base.join("log")).unwrap_or_default();
        // A last line may be half written.
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for so many events of a kind in a mode.
    #[track_caller]
    fn wait(&self, what: &str, mode: &str, count: usize) {
        let end = Instant::now() + TIMEOUT;
        let is = |event: &&Value| !event[what].is_null() && event["mode"] == mode;
        while self.log().iter().filter(is).count() < count {
            assert!(Instant::now() < end, "{what} {mode}: {:#?}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn over_http_everything_arrives_in_order_whatever_goes_wrong_there() {
    let world = World::new();
    world.file("a", "x");
    let (sink, port) = Sink::start(&world);
    let config = format!(
        "[audit]\ncheckpoints = {{ records = 8, seconds = 1 }}\nship = [{{ to = \
         \"http://me:secret@127.0.0.1:{port}/log\", headers = {{ authorization = \"Bearer \
         of-the-test\" }} }}]\n"
    );
    let file = world.base().join("portcullis.toml");
    std::fs::write(&file, config.replace("me:secret@", "")).unwrap();
    let options = ["--config", file.to_str().unwrap()];

    // A target that does not answer delays no client.
    sink.mode("hold");
    let mut scripted_agent = ScriptedAgent::with(&world, &options);
    sink.wait("began", "hold", 1);
    for round in 0..50 {
        receipt(&scripted_agent.ask(scripted_agent.read("a")));
        receipt(&scripted_agent.ask(scripted_agent.write("b", &round.to_string())));
    }
    let log = sink.log();
    assert!(log.iter().all(|event| event["stored"].is_null()), "all that time it waited: {log:?}");
    let copies = doctor(&world);
    let lag = &copies["facts"]["targets"][0];
    assert!(lag["behind"].as_u64().unwrap() > 50 && lag["seconds"].is_u64(), "{copies}");

    // Errors are reported, and retried with growing intervals.
    sink.mode("fail");
    sink.wait("failed", "fail", 3);
    let copies = doctor(&world);
    assert_eq!(copies["status"], "warning", "{copies}");
    let lag = &copies["facts"]["targets"][0];
    assert!(lag["error"].as_str().unwrap().contains("500"), "{lag}");
    let log = sink.log();
    let times: Vec<_> = log.iter().filter(|event| event["failed"].is_string()).collect();
    let gap = |at: usize| times[at + 1]["at"].as_f64().unwrap() - times[at]["at"].as_f64().unwrap();
    assert!(gap(0) >= 1.0 && gap(1) >= 2.0, "{times:?}");

    // A segment that was taken without a reply comes again.
    sink.mode("drop");
    sink.wait("stored", "drop", 1);
    sink.mode("slow");
    sink.wait("stored", "slow", 3);

    // The broker dies in the middle of it; the next one goes on.
    scripted_agent.broker.kill().unwrap();
    scripted_agent.wait();
    drop(scripted_agent);
    sink.mode("short");
    let mut scripted_agent = ScriptedAgent::with(&world, &options);
    sink.wait("failed", "short", 1);
    sink.mode("ok");
    receipt(&scripted_agent.ask(scripted_agent.write("b", "last")));
    sink.wait("stored", "ok", 2);
    assert!(scripted_agent.hang_up().success());
    run(&world, &["audit", "ship"]).ok();

    let log = sink.log();
    let stored: Vec<_> = log.iter().filter(|event| event["stored"].is_string()).collect();
    let heads: Vec<_> = stored.iter().filter(|event| event["stored"] == "checkpoint").collect();
    assert!(heads.len() >= 2, "{log:#?}");
    for head in heads {
        assert_eq!(head["covered"], true, "a checkpoint came before its records: {log:#?}");
    }
    let dropped = stored.iter().position(|event| event["mode"] == "drop").unwrap();
    let again = stored[dropped + 1..].iter().any(|e| e["stored"] == stored[dropped]["stored"]);
    assert!(again, "{log:#?}");
    let first = |event: &&&Value| event["stored"] == "tail/seg-000000.jsonl/000000000000";
    let restarts = stored.iter().filter(first).count();
    assert!(restarts <= 2, "a broker goes on where the last one was: {log:#?}");

    let own = run(&world, &["audit", "verify", "--json"]).ok().json();
    let copy = verify(&world, &super::the_copy(&sink.base.join("store")));
    assert_eq!((&copy["head"], &copy["signed"]), (&own["head"], &own["signed"]));
    let copies = doctor(&world);
    assert_eq!((&copies["status"], &copies["found"]), (&json!("ok"), &json!("up to date")));
    let status = run(&world, &["audit", "ship", "--status", "--json"]).ok().json();
    assert_eq!(status["behind"], 0);
    let records = world.records().len();
    assert_eq!(status["records"], records);

    // The output contains no password.
    std::fs::write(&file, config).unwrap();
    let shown = run(&world, &["doctor"]);
    let status = run(&world, &["audit", "ship", "--status"]).ok();
    for text in [shown.text(), status.text()] {
        assert!(text.contains("127.0.0.1") && !text.contains("secret@"), "{text}");
    }
}

#[test]
fn an_s3_server_gets_a_log_that_verifies() {
    let world = World::new();
    world.file("a", "x");
    let config = |endpoint: &str| {
        let text = format!(
            "[audit]\ncheckpoints = {{ records = 8, seconds = 1 }}\n[[audit.ship]]\nto = \
             \"s3://evidence/logs/one\"\noptions = {{ endpoint = {endpoint:?}, allow_http = \
             \"true\", region = \"eu-central-1\", access_key_id = \"test\", secret_access_key = \
             \"test\" }}\n"
        );
        std::fs::write(world.base().join("portcullis.toml"), text).unwrap();
    };
    write_log(&world, 131_066, |seq| {
        (Kind::Decision, decision("coder", "read", &format!("f{}", seq % 100), "allow", "r"))
    });
    world.run(&["audit", "checkpoint"]).ok();

    // The port has no server yet.
    config("http://127.0.0.1:9");
    let refused = run(&world, &["audit", "ship"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("s3://evidence/logs/one/"), "{refused:?}");
    let copies = doctor(&world);
    assert_eq!(copies["status"], "warning");
    assert_eq!(copies["facts"]["targets"][0]["behind"], 131_066);

    let mut server = python()
        .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("`tests/run.sh setup` makes the virtual environment");
    let mut said = server.stderr.take().unwrap();
    let server = Server(server);
    let port = port(&mut said, "Running on http://127.0.0.1:");
    // It prints a line for each request, which must be read.
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    let endpoint = format!("http://127.0.0.1:{port}");
    let bucket = |args: &[&str]| {
        let script = peer("bucket.py");
        let output = python().arg(script).arg(&endpoint).args(args).output().unwrap();
        done(output).ok();
    };
    config(&endpoint);
    let missing = run(&world, &["audit", "ship"]);
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("NoSuchBucket"), "{missing:?}");
    bucket(&["make", "evidence"]);
    let sent = run(&world, &["audit", "ship"]).ok();
    let sent = sent.text().strip_prefix("s3://evidence/logs/one/").unwrap().to_owned();
    let place = sent.strip_suffix(": 131066 records\n").unwrap();

    // A session over the end of a segment.
    let file = world.base().join("portcullis.toml");
    let mut scripted_agent = ScriptedAgent::with(&world, &["--config", file.to_str().unwrap()]);
    for _ in 0..20 {
        receipt(&scripted_agent.ask(scripted_agent.read("a")));
    }
    assert!(scripted_agent.hang_up().success());
    // The records of the last checkpoint are there when `run` ends; had that
    // taken too long, now.
    run(&world, &["audit", "ship"]).ok();
    let copies = doctor(&world);
    assert_eq!(copies["status"], "ok", "{copies}");

    let copy = world.base().join("copy");
    bucket(&["fetch", "evidence", &format!("logs/one/{place}"), copy.to_str().unwrap()]);
    drop(server);
    assert!(copy.join("seg-000000.jsonl.zst").exists());
    // A copy that could not be read counted as complete.
    let refused = run(&world, &["audit", "prune", "--before", "2100-01-01", "--yes"]);
    assert!(refused.code == 1 && refused.stderr.contains("nothing was removed"), "{refused:?}");
    assert!(world.state().join("audit/seg-000000.jsonl").exists());
    let left = |segment: &str| copy.join("tail").join(segment).exists();
    assert_eq!((left("seg-000001.jsonl"), left("seg-000002.jsonl")), (false, true));
    let own = world.run(&["audit", "verify", "--json"]).ok().json();
    let other = verify(&world, &copy);
    assert_eq!((&other["head"], &other["signed"]), (&own["head"], &own["signed"]));
    assert_eq!(other["signed"]["records"], own["records"]);
}
