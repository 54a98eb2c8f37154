//! `portcullis fs watch`: the complete path, in a gateway process that has
//! confined itself.

use std::{
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};

use crate::common::{World, done};

fn world() -> World {
    let mut world = World::new();
    world.set_policy(
        "schema = 1\n[allowedPaths]\nread = [\"**\"]\nlist = [\"**\"]\nwrite = [\"**\"]\n\
         [[rules]]\nid = \"hidden\"\neffect = \"deny\"\npaths = [\"secret/**\"]\n",
    );
    world.file("src/a.txt", "a");
    world.file("secret/b.txt", "b");
    world
}

struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        let line = self.lines.next().expect("it ended").unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

#[test]
fn a_confined_gateway_watches_what_is_made_after_it_was_confined() {
    let world = world();
    let mut watch = Watch::start(world.command(&["fs", "watch", "--json", "--count", "4"]));
    let begun = watch.next();
    assert_eq!((&begun["ok"], &begun["watching"]), (&json!(true), &json!(".")));
    assert!(begun["receipt"]["leaf"].is_string(), "{begun}");
    world.file("secret/unseen", "x");
    // The gateway had to open and watch directories that were not there before.
    // A file's event could be sent twice.
    std::fs::create_dir_all(world.path("new/deep/er")).unwrap();
    for path in ["new", "new/deep", "new/deep/er"] {
        let expected = json!({ "event": "create", "path": path, "type": "directory" });
        assert_eq!(watch.next(), expected);
    }
    std::fs::rename(world.path("src/a.txt"), world.path("src/z.txt")).unwrap();
    let expected =
        json!({ "event": "rename", "from": "src/a.txt", "path": "src/z.txt", "type": "file" });
    assert_eq!(watch.next(), expected);
    assert!(watch.child.wait().unwrap().success());
    let last = world.last();
    assert_eq!((&last["op"], &last["counts"]["events"]), (&json!("watch.end"), &json!(4)));
    assert_eq!(last["facts"]["reason"], "closed");
}

#[test]
fn it_ends_when_it_is_told_to() {
    let world = world();
    let nothing = world.fs(&["watch", "--timeout", "0", "--count", "1"]);
    assert_eq!((nothing.code, nothing.text()), (1, ""));
    world.fs(&["watch", "src", "--timeout", "0"]).ok();
    let mut watch = Watch::start(world.command(&["fs", "watch", "--json"]));
    watch.next();
    let pid = rustix::process::Pid::from_raw(watch.child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(watch.child.wait().unwrap().success());
    let kinds: Vec<_> = world.records().iter().map(|record| record["kind"].clone()).collect();
    assert_eq!(kinds.last(), Some(&json!("stop")));
    world.fs(&["watch", "secret"]).denied("hidden");
    world.fs(&["watch", "../x"]).denied("workspace.outside");
    assert_eq!(world.fs(&["watch", "none"]).code, 1);
}

/// The directories may be more than the user may watch.
#[test]
fn the_limit_of_the_user_is_an_error_that_says_so() {
    let world = world();
    for n in 0..10 {
        std::fs::create_dir(world.path(&format!("d{n}"))).unwrap();
    }
    let limited = |limit: &str, args: &[&str]| {
        let own = world.command(args);
        let script = format!("echo {limit} && exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-user=4321", "--map-group=4321", "--keep-caps"]);
        command.args(["sh", "-c", &script, "sh"]).arg(own.get_program()).args(own.get_args());
        command.env_clear().current_dir(own.get_current_dir().unwrap());
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let watch = ["fs", "watch", "--timeout", "0"];
    let refused = done(limited("5 >/proc/sys/user/max_inotify_watches", &watch).output().unwrap());
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("fs.inotify.max_user_watches"), "{refused:?}");
    let none = "0 >/proc/sys/user/max_inotify_instances";
    let refused = done(limited(none, &watch).output().unwrap());
    assert!(refused.stderr.contains("fs.inotify.max_user_instances"), "{refused:?}");
    assert_eq!(world.last()["result"], "io");
    // A limit that is reached later ends the subscription: no silent loss.
    let args = ["fs", "watch", "--json"];
    let mut watch = Watch::start(limited("20 >/proc/sys/user/max_inotify_watches", &args));
    watch.next();
    for n in 0..20 {
        std::fs::create_dir(world.path(&format!("more{n}"))).unwrap();
    }
    assert_eq!(watch.child.wait().unwrap().code(), Some(1));
    let ended = world.last();
    assert_eq!((&ended["op"], &ended["facts"]["reason"]), (&json!("watch.end"), &json!("failed")));
}
