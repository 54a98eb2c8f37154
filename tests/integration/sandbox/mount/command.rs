//! `portcullis exec`: streams, signals, exit codes and the summary.

use std::{
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt,
};

use super::*;

#[test]
fn the_streams_are_the_commands_own() {
    for who in users() {
        let place = Place::new(who);
        // To open a pipe again it must be one's own, and here it is root's.
        let again = if is_root() && who != As::Root { "&1" } else { "/dev/stdout" };
        let script = format!("cat; echo error >&2; echo again >{again}");
        let args = ["exec", "--quiet", "--", "sh", "-c", &script];
        let mut child = place.limited(&args).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"\0input\n").unwrap();
        let ended = end(child);
        assert_eq!(ended.stdout, "\0input\nagain\n", "{who:?} {ended:?}");
        let others = ended.stderr.lines().filter(|line| !line.starts_with("portcullis: note:"));
        assert_eq!(others.collect::<Vec<_>>(), ["error"], "{who:?} {ended:?}");
    }
}

#[test]
fn a_stream_that_is_open_for_writing_cannot_be_read_again() {
    let place = Place::new(As::User);
    let path = place.at("output");
    std::fs::write(&path, "what stood there\n").unwrap();
    if is_root() {
        place.give_away();
    }
    let script = "cat /proc/self/fd/2 && exit; (exec 3<>/proc/self/fd/2) && exit; \
        echo said >>/proc/self/fd/2 && echo writes";
    let mut command = place.limited(&["exec", "--quiet", "--", "sh", "-c", script]);
    let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    let ended = end(command.stderr(file).spawn().unwrap());
    assert_eq!(ended.stdout, "writes\n", "{ended:?}");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("what stood there\n") && text.ends_with("said\n"), "{text}");
}

#[test]
fn the_exit_code_is_the_commands() {
    let place = Place::new(users()[0]);
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 139), ("kill -TERM $$", 143)]
    {
        assert_eq!(place.plain(&[], script).code, code, "{script}");
    }
    let mut none = place.limited(&["exec", "--", "no-such-program"]);
    let ended = end(none.spawn().unwrap());
    assert_eq!(ended.code, 1, "{ended:?}");
}

impl Place {
    /// `portcullis exec OPTIONS… -- sh -c SCRIPT` under the default policy.
    fn plain(&self, options: &[&str], script: &str) -> Ended {
        let args = [&["exec"], options, &["--", "sh", "-c", script]].concat();
        end(self.limited(&args).spawn().unwrap())
    }
}

#[test]
fn a_command_whose_time_is_over_is_stopped() {
    let place = Place::new(users()[0]);
    for script in ["exec sleep 50", "trap '' TERM; while :; do sleep 1; done"] {
        let began = std::time::Instant::now();
        let ended = place.plain(&["--timeout", "500ms"], script);
        assert_eq!(ended.code, 124, "{script}: {ended:?}");
        assert!(ended.stderr.contains("time was over"), "{ended:?}");
        assert!(began.elapsed() < Duration::from_secs(15), "{script}");
    }
    for bad in ["0s", "5", "-1s", "x"] {
        assert_eq!(place.plain(&["--timeout", bad], "true").code, 2, "{bad}");
    }
}

#[test]
fn signals_are_passed_on() {
    use rustix::process::{Pid, Signal, kill_process};
    let place = Place::new(users()[0]);
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
        let script = format!(
            "trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.1; done"
        );
        let args = ["exec", "--quiet", "--", "sh", "-c", &script];
        let mut child = place.limited(&args).spawn().unwrap();
        let mut ready = [0; 6];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut ready).unwrap();
        kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), signal).unwrap();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        let ended = end(child);
        assert_eq!((ended.code, rest.trim()), (5, format!("got {name}").as_str()), "{ended:?}");
    }
}

#[test]
fn the_summary_tells_changes_and_denials_and_the_way_back() {
    for who in users() {
        let place = Place::mounted(who);
        std::fs::create_dir(place.at("ws/empty")).unwrap();
        std::os::unix::fs::symlink("file.txt", place.at("ws/link")).unwrap();
        place.give_away_if(who != As::Root);
        std::fs::set_permissions(place.at("ws/empty"), PermissionsExt::from_mode(0o700)).unwrap();
        let script = "echo more >>file.txt; echo again >>file.txt; rm -f fixed.txt; rm -f fixed.txt; mkdir made
                      mv -T dir empty; ln -s empty new; mv -T new link; cat link/inner.txt";
        let ended = place.exec(&[], script);
        let line = |words: &str| ended.stderr.lines().any(|line| line.trim().starts_with(words));
        assert!(line("write    file.txt (2 versions)"), "{who:?} {ended:?}");
        assert!(line("mkdir    made"), "{who:?} {ended:?}");
        assert!(line("denied   remove fixed.txt, 2 times: rule fixed"), "{who:?} {ended:?}");
        // The way back works as it is printed.
        let undo =
            ended.stderr.lines().find_map(|line| line.trim().strip_prefix("undo: portcullis "));
        let mut args: Vec<_> = undo.unwrap().split(' ').collect();
        args.push("--yes");
        let undone = end(place.command(&args).spawn().unwrap());
        assert_eq!(undone.code, 0, "{undone:?}");
        assert_eq!(std::fs::read_to_string(place.at("ws/file.txt")).unwrap(), "secret\n");
        let ws = place.base().join("ws");
        assert!(
            ended.stdout.contains("inner") && !ws.join("made").exists() && !ws.join("new").exists()
        );
        assert_eq!(std::fs::read_to_string(ws.join("dir/inner.txt")).unwrap(), "inner\n");
        assert_eq!(std::fs::read_link(ws.join("link")).unwrap(), std::path::Path::new("file.txt"));
        assert_eq!(ws.join("empty").metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(ws.join("empty")).unwrap().count(), 0);
    }
}

/// Each child that a shell writes a file with closes a duplicate, which stores what there is;
/// a file that a shell made stayed as an empty one when its last record was undone.
#[test]
fn what_was_stored_of_one_open_file_is_undone_at_once() {
    let place = Place::mounted(users()[0]);
    let script = "echo new >new.txt; (sh -c 'echo one'; sh -c 'echo two') >>file.txt; \
                  (sh -c 'echo one'; mv dir/inner.txt moved; sh -c 'echo two') >>dir/inner.txt";
    let ended = place.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let intents = |path: &str| -> Vec<u64> {
        let mut records = place.records();
        records.retain(|record| said(record, "kind") == "intent" && said(record, "path") == path);
        records.iter().map(|record| record["seq"].as_u64().unwrap()).collect()
    };
    let undo = |record: &u64| {
        let record = record.to_string();
        let policy = place.at("policies/policy.toml");
        let args = ["backup", "undo", "--policy", &policy, "--record", &record, "--yes"];
        let undone = end(place.command(&args).spawn().unwrap());
        assert_eq!(undone.code, 0, "{undone:?}");
    };
    let (new, file) = (intents("new.txt"), intents("file.txt"));
    assert_eq!((new.len(), file.len()), (2, 2), "{:#?}", place.records());
    undo(new.last().unwrap());
    assert!(!place.base().join("ws/new.txt").exists());
    // Whichever of them is named.
    undo(&file[0]);
    assert_eq!(std::fs::read_to_string(place.at("ws/file.txt")).unwrap(), "secret\n");
    // Under another name it is another step.
    undo(intents("moved").last().unwrap());
    assert_eq!(std::fs::read_to_string(place.at("ws/moved")).unwrap(), "inner\none\n");
}

#[test]
fn repeated_opens_are_counted_in_the_log_or_recorded_each() {
    let script = "sleep 0.1; for i in 1 2 3; do cat file.txt; cat shut.txt; done >/dev/null 2>&1";
    let rule = "\n[[rules]]\nid = \"shut\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"shut.txt\"]\n";
    for (choice, of_file, of_shut) in [("versions", 1, 1), ("opens", 3, 3)] {
        let place = Place::mounted(users()[0]);
        let policy = place.at("policies/policy.toml");
        std::fs::write(&policy, format!("{POLICY}{rule}")).unwrap();
        std::fs::write(place.at("ws/shut.txt"), "shut\n").unwrap();
        let config = place.at("policies/portcullis.toml");
        std::fs::write(&config, format!("[audit]\nmount = \"{choice}\"\n")).unwrap();
        let ended = place.exec(&["--config", &config], script);
        let told = "denied   read shut.txt, 3 times: rule shut";
        assert!(ended.stderr.contains(told), "{choice} {ended:?}");
        let records = place.records();
        let count = |path: &str| {
            let reads =
                |record: &&Value| said(record, "op") == "read" && said(record, "path") == path;
            records.iter().filter(reads).count()
        };
        assert_eq!((count("file.txt"), count("shut.txt")), (of_file, of_shut), "{choice}");
        let repeats: Vec<_> = records.iter().filter(|r| said(r, "op") == "repeats").collect();
        let session = said(&records[0], "session");
        let shown = place.command(&["audit", "session", session, "--workspace", &place.at("ws")]);
        let shown = end({ shown }.spawn().unwrap());
        if choice == "opens" {
            assert!(repeats.is_empty() && !shown.stdout.contains("repeats"), "{repeats:?}");
        } else {
            let paths = serde_json::json!([
                {"path": "file.txt", "opens": 2, "denials": 0},
                {"path": "shut.txt", "opens": 0, "denials": 2},
            ]);
            assert_eq!(repeats.len(), 1, "{repeats:?}");
            assert_eq!(
                (&repeats[0]["door"], &repeats[0]["facts"]["paths"]),
                (&"mount".into(), &paths)
            );
            assert!(shown.stdout.contains("2 more opens, 2 more denials"), "{shown:?}");
        }
    }
}

#[test]
fn a_command_that_tries_again_passes_once_a_person_has_approved() {
    let rule = "\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\"]\npaths = [\"asked.txt\"]\n";
    for who in users() {
        let place = Place::mounted(who);
        let policy = place.at("policies/policy.toml");
        std::fs::write(&policy, format!("{POLICY}{rule}")).unwrap();
        let script =
            "echo approved >~/new; until cp ~/new asked.txt; do sleep 0.1; done 2>/dev/null";
        let command = ["exec", "--policy", &policy, "--", "sh", "-c", script];
        let child = place.limited(&command).spawn().unwrap();
        let workspace = place.at("ws");
        let approve = |args: &[&str]| {
            let args = [&["approve", "--json", "--workspace", &workspace], args].concat();
            end(place.command(&args).spawn().unwrap())
        };
        let id = loop {
            let list: Value = serde_json::from_str(&approve(&["--list"]).stdout).unwrap();
            if let Some(id) = list["waiting"][0]["id"].as_str() {
                break id.to_owned();
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(!place.base().join("ws/asked.txt").exists());
        assert_eq!(approve(&[&id]).code, 0, "{who:?}");
        let ended = end(child);
        assert_eq!(ended.code, 0, "{who:?} {ended:?}");
        assert_eq!(std::fs::read_to_string(place.at("ws/asked.txt")).unwrap(), "approved\n");
        // It was told at once, and at the end.
        for told in
            [format!("`portcullis approve {id} --state"), format!(": rule careful, question {id}")]
        {
            assert!(ended.stderr.contains(&told), "{who:?} {told} {ended:?}");
        }
        let records = place.records();
        let approval = records.iter().find(|record| said(record, "kind") == "approval").unwrap();
        assert_eq!((said(approval, "door"), said(approval, "result")), ("mount", "once"));
    }
}

#[test]
fn a_summary_for_programs_is_one_object() {
    let place = Place::mounted(users()[0]);
    std::fs::create_dir(place.at("out")).unwrap();
    place.give_away_if(users()[0] != As::Root);
    let file = place.at("out/summary.json");
    let ended =
        place.exec(&["--summary", &file], "cat file.txt; echo x >made; rm -f fixed.txt; exit 3");
    assert_eq!((ended.code, ended.stdout.as_str()), (3, "secret\n"), "{ended:?}");
    assert!(!ended.stderr.contains("denial"), "{ended:?}");
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    // The same may stand where the text would.
    let printed = place.exec(&["--json"], "echo out; exit 3");
    let last: Value = serde_json::from_str(printed.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&last["exitCode"], printed.stdout.as_str()), (&3.into(), "out\n"));
    assert_eq!(
        last.as_object().unwrap().keys().collect::<Vec<_>>(),
        summary.as_object().unwrap().keys().collect::<Vec<_>>()
    );
    assert_eq!((&summary["exitCode"], &summary["timedOut"]), (&3.into(), &false.into()));
    assert_eq!((&summary["reads"], &summary["complete"]), (&1.into(), &true.into()));
    assert_eq!(summary["changes"][0]["path"], "made");
    assert_eq!(summary["changes"][0]["result"], "ok");
    assert_eq!(summary["denials"][0]["rule"], "fixed");
    assert!(summary["undo"].as_str().unwrap().contains(summary["session"].as_str().unwrap()));
}

#[test]
fn a_program_of_the_workspace_runs() {
    for who in users() {
        let place = Place::new(who);
        let program = place.at("ws/program");
        std::fs::write(&program, "#!/bin/sh\necho \"ran in $(pwd)\"\n").unwrap();
        set_mode(Path::new(&program), 0o755);
        place.give_away_if(who != As::Root);
        let ended = end(place.limited(&["exec", "--quiet", "--", &program]).spawn().unwrap());
        assert_eq!(ended.stdout, format!("ran in {}\n", place.at("ws")), "{who:?} {ended:?}");
    }
}
