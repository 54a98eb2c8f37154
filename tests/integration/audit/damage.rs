//! Logs that are missing, torn or damaged, and `portcullis audit recover`.

use std::{io::Write as _, path::Path};

use portcullis_audit::{Draft, Kind};

use crate::{common::World, review::write_log};

#[test]
fn where_there_is_no_log_every_command_says_so_and_makes_nothing() {
    let world = World::new();
    let out = world.base().join("out.json");
    let out = out.to_str().unwrap();
    let commands: [&[&str]; 15] = [
        &["verify"],
        &["show"],
        &["recover", "--yes"],
        &["key"],
        &["key", "--new"],
        &["checkpoint"],
        &["compress"],
        &["prune", "--yes", "--before", "2026-01-01"],
        &["query"],
        &["blame", "a"],
        &["session"],
        &["prove", "1"],
        &["report", "-o", out],
        &["bundle", "-o", out],
        &["export", "--format", "csv", "-o", out],
    ];
    for command in commands {
        let done = world.run(&[&["audit"], command].concat());
        assert_eq!(done.code, 1, "{command:?}");
        let shown = done.stderr.replace(world.base().to_str().unwrap(), "BASE");
        assert_eq!(
            shown,
            "portcullis: there is no audit log at `BASE/state/audit`\n  help: name the workspace \
             with --workspace DIR, or the state directory with --state DIR\n"
        );
        assert!(!world.state().exists() && !world.base().join("out.json").exists(), "{command:?}");
    }
    let approve = world.run(&["approve"]);
    assert_eq!(approve.code, 0);
    assert!(approve.stderr.contains("no gateway has ever run"), "{approve:?}");
}

#[test]
fn recover_says_what_it_will_do_and_needs_confirmation() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    world.write("b.txt", "b").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let before = std::fs::read_to_string(&segment).unwrap();
    let damaged = before.replacen("a.txt", "z.txt", 1);
    std::fs::write(&segment, &damaged).unwrap();
    world.run(&["audit", "verify"]);

    let done = world.run(&["audit", "recover"]);
    assert_eq!(done.code, 1);
    insta::assert_snapshot!(done.stderr, @r"
portcullis: nothing was changed: there is no terminal to ask on
  help: give --yes to do it without asking
");
    assert_eq!(std::fs::read_to_string(&segment).unwrap(), damaged);

    let done = world.run(&["audit", "recover", "--yes"]).ok();
    assert!(done.text().contains("first damage: broken-link"), "{}", done.text());
    world.run(&["audit", "verify"]).ok();
    let records = world.records();
    let recovered = records.iter().find(|record| record["facts"]["what"] == "damaged").unwrap();
    assert_eq!(recovered["kind"], "recovered");
    let kept = world.state().join("audit").join(recovered["facts"]["file"].as_str().unwrap());
    assert!(damaged.ends_with(&std::fs::read_to_string(kept).unwrap()));
    world.write("c.txt", "c").ok();
    world.run(&["audit", "verify"]).ok();
    let done = world.run(&["audit", "recover"]).ok();
    assert_eq!(done.text(), "the log is intact: nothing to recover\n");
}

#[test]
fn a_gateway_refuses_a_damaged_log_and_says_what_to_do() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text + "{}\n").unwrap();
    let done = world.write("b.txt", "b");
    assert_eq!(done.code, 5);
    insta::assert_snapshot!(done.stderr, @"portcullis: cannot open the audit log: the audit log is damaged in `seg-000000.jsonl`: the field `v` is missing; see `portcullis audit verify`, then `portcullis audit recover`");
    assert!(!world.path("b.txt").exists());
}

#[test]
fn a_torn_tail_needs_no_help() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let mut file = std::fs::OpenOptions::new().append(true).open(&segment).unwrap();
    file.write_all(b"{\"v\":1,\"se").unwrap();
    assert_eq!(world.run(&["audit", "verify"]).code, 5);
    world.write("b.txt", "b").ok();
    world.run(&["audit", "verify"]).ok();
}

#[test]
fn a_tail_that_was_signed_is_not_torn_but_cut() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let file = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.set_len(file.metadata().unwrap().len() - 7).unwrap();
    let refused = world.write("b.txt", "b");
    assert_eq!(refused.code, 5);
    assert!(refused.stderr.contains("its end was cut off"), "{refused:?}");
    assert!(!world.path("b.txt").exists());
}

/// Runs a command and gives the most memory that it had, in KiB.
fn peak_of(world: &World, args: &[&str]) -> (i32, u64) {
    let null = std::process::Stdio::null;
    let mut child = world.command(args).stdout(null()).stderr(null()).spawn().unwrap();
    let mut most = 0;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).map(|n| n.parse().unwrap());
        most = most.max(kib.unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            return (status.code().unwrap(), most);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_line_of_a_hundred_megabytes_is_damage_and_nothing_more() {
    let world = World::new();
    world.file("a", "x");
    world.write("b", "1").ok();
    let records = world.records();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let whole = std::fs::read(&segment).unwrap();
    for end in ["\n", ""] {
        let mut log = std::fs::File::options().append(true).open(&segment).unwrap();
        for _ in 0..100 {
            std::io::Write::write_all(&mut log, &vec![b'x'; 1 << 20]).unwrap();
        }
        std::io::Write::write_all(&mut log, end.as_bytes()).unwrap();
        drop(log);
        for args in [&["audit", "verify"][..], &["audit", "query"], &["audit", "show"]] {
            let (code, peak) = peak_of(&world, args);
            assert!(code == 5, "{args:?} {end:?}: {code}");
            assert!(peak < 64 << 10, "{args:?}: {peak} KiB");
        }
        let named = world.run(&["audit", "verify"]);
        assert!(named.text().contains("damaged: "), "{named:?}");
        let found = world.run(&["audit", "query", "--json"]);
        assert_eq!(found.text().lines().count(), records.len(), "what can be read is");
        if end == "\n" {
            let refused = world.fs(&["read", "a"]);
            assert_eq!(refused.code, 5);
            assert!(refused.stderr.contains("`portcullis audit recover`"), "{refused:?}");
            world.run(&["audit", "recover", "--yes"]).ok();
        } else {
            // As after a crash: set aside by the next gateway, or by the operator.
            if world.fs(&["read", "a"]).code != 0 {
                world.run(&["audit", "recover", "--yes"]).ok();
            }
        }
        assert!(std::fs::read(&segment).unwrap().starts_with(&whole), "no record is lost");
        world.run(&["audit", "verify"]).ok();
        world.fs(&["read", "a"]).ok();
        // The next round begins with what is there now.
        let quarantine = std::fs::read_dir(world.state().join("audit/quarantine")).unwrap();
        let kept: u64 = quarantine.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(kept >= 100 << 20, "nothing is thrown away: {kept}");
        if end == "\n" {
            std::fs::write(&segment, &whole).unwrap();
            std::fs::remove_dir_all(world.state().join("audit")).unwrap();
            std::fs::create_dir(world.state().join("audit")).unwrap();
            std::fs::write(&segment, &whole).unwrap();
        }
    }
}

/// `audit verify` and `audit recover` failed without naming the file, and a dangling link was not
/// reported at all.
#[test]
fn what_is_no_directory_of_checkpoints_is_damage_and_set_aside() {
    for what in ["a file", "a dangling link", "a link to the directory"] {
        let world = World::new();
        world.file("a", "x");
        world.fs(&["read", "a"]).ok();
        let kept = world.state().join("audit/checkpoints");
        std::fs::rename(&kept, world.state().join("elsewhere")).unwrap();
        let link = |to: &str| std::os::unix::fs::symlink(to, &kept).unwrap();
        match what {
            "a file" => std::fs::write(&kept, "text").unwrap(),
            "a dangling link" => link("nowhere"),
            _ => link("../elsewhere"),
        }
        let verified = world.run(&["audit", "verify"]);
        assert_eq!(verified.code, 5, "{what}: {verified:?}");
        assert!(verified.text().contains("bad-checkpoint in checkpoints"), "{verified:?}");
        let log = world.state().join("audit");
        let second = crate::proof::second(&["log", log.to_str().unwrap()]);
        assert_eq!((second.code, &second.json()["segment"]), (5, &"checkpoints".into()), "{what}");
        world.run(&["audit", "recover", "--yes"]).ok();
        assert!(!kept.is_symlink() && !kept.is_file(), "{what}");
        world.run(&["audit", "verify"]).ok();
        world.fs(&["read", "a"]).ok();
        assert!(kept.is_dir(), "{what}: gateways sign again");
        let said =
            world.records().into_iter().find(|record| record["kind"] == "recovered").unwrap();
        let bytes = std::fs::read(log.join(said["facts"]["file"].as_str().unwrap())).unwrap();
        let text = match what {
            "a file" => "text",
            "a dangling link" => "nowhere",
            _ => "../elsewhere",
        };
        assert_eq!(bytes, text.as_bytes(), "{what}");
    }
}

/// It was 1, as of a log that cannot be read.
#[test]
fn a_checkpoint_of_a_damaged_log_is_refused_with_the_exit_code_of_damage() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text.replacen("allow", "allov", 1)).unwrap();
    assert_eq!(world.write("b.txt", "b").code, 5);
    let refused = world.run(&["audit", "checkpoint"]);
    assert_eq!(refused.code, 5, "{refused:?}");
}

/// Every record of the newest segment was held.
#[test]
fn the_last_records_took_the_memory_of_a_whole_segment() {
    let world = World::new();
    write_log(&world, 16_000, |_seq| {
        (Kind::Decision, Draft { reason: Some("x".repeat(8000)), ..Draft::default() })
    });
    for format in [&["--json"][..], &["--columns", "seq,reason"]] {
        let args = [&["audit", "query", "--last", "1", "--no-index"], format].concat();
        let (code, peak) = peak_of(&world, &args);
        assert_eq!(code, 0, "{format:?}");
        assert!(peak < 80 << 10, "{format:?}: {peak} KiB");
    }
}

/// `audit show` ended with 0, where `audit query` found the damage.
#[test]
fn a_segment_that_lacks_records_was_shown_as_whole() {
    type Damage = fn(&Path);
    let emptied: Damage = |segment| std::fs::write(segment, "").unwrap();
    let shortened: Damage = |segment| {
        let text = std::fs::read_to_string(segment).unwrap();
        std::fs::write(segment, &text[..text.trim_end().rfind('\n').unwrap() + 1]).unwrap();
    };
    for damage in [emptied, shortened] {
        let world = World::new();
        write_log(&world, 65_538, |_seq| (Kind::Decision, Draft::default()));
        for args in [&["audit", "show"][..], &["log"], &["audit", "show", "--last", "3"]] {
            world.run(args).ok();
        }
        damage(&world.state().join("audit/seg-000000.jsonl"));
        for args in [
            &["audit", "show"][..],
            &["log"],
            &["audit", "show", "--last", "3"],
            &["audit", "query", "--no-index"],
        ] {
            let shown = world.run(args);
            assert_eq!(shown.code, 5, "{args:?}: {}", shown.stderr);
            assert!(shown.stderr.contains("seg-000000.jsonl has "), "{args:?}: {}", shown.stderr);
            assert!(shown.text().lines().count() >= 2, "{args:?}");
        }
    }
}

/// The same commands ended with 0 at a last line that is not whole.
#[test]
fn a_torn_tail_was_shown_as_whole() {
    let world = World::new();
    world.write("a.txt", "a").ok();
    let segment = world.state().join("audit/seg-000000.jsonl");
    let mut file = std::fs::OpenOptions::new().append(true).open(&segment).unwrap();
    file.write_all(b"{\"v\":1,").unwrap();
    for args in
        [&["audit", "show"][..], &["log"], &["audit", "show", "--last", "1"], &["audit", "query"]]
    {
        let shown = world.run(args);
        assert_eq!(shown.code, 5, "{args:?}: {shown:?}");
        assert!(shown.text().lines().count() >= 1, "{args:?}: {shown:?}");
    }
}
