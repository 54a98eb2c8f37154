//! A state directory whose workspace moved: adoption by `--adopt`.

use super::*;

#[test]
fn a_workspace_that_moved_is_adopted_on_record() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    std::fs::rename(&two.own, &moved).unwrap();
    let read = |more: &[&str]| {
        two.world.run(&[&["fs", "read", "f.txt", "--workspace", text(&moved)], more].concat())
    };
    assert_eq!(read(&[]).code, 1);
    assert_eq!(read(&["--adopt", text(&two.other)]).code, 1);
    let adopted = read(&["--adopt", text(&two.own)]).ok();
    assert!(adopted.stderr.contains(text(&two.own)), "{adopted:?}");
    let facts = two.starts().pop().unwrap()["facts"].clone();
    assert_eq!(facts["adopted"], text(&two.own));
    assert_eq!(facts["workspace"], text(&moved));
    // Once adopted, it stays so; adopting it again changes nothing.
    read(&[]).ok();
    assert_eq!(read(&["--adopt", text(&two.own)]).ok().stderr.matches("adopt").count(), 0);
    assert_eq!(two.starts().pop().unwrap()["facts"]["adopted"], Value::Null);
    std::fs::rename(&two.other, &two.own).unwrap();
    let back = two.world.fs(&["read", "f.txt"]);
    assert_eq!(back.code, 1, "{back:?}");
    two.world.run(&["audit", "verify"]).ok();
}

#[test]
fn an_agent_behind_run_and_mcp_adopts_too() {
    for args in [
        &["run", "--unconfined", "--adopt", "OLD", "--", "/bin/true"][..],
        &["mcp", "--adopt", "OLD"],
    ] {
        let two = two();
        let args: Vec<_> =
            args.iter().map(|arg| if *arg == "OLD" { text(&two.own) } else { arg }).collect();
        std::fs::rename(&two.own, two.own.with_file_name("gone")).unwrap();
        let mut command = two.world.command(&args);
        command.env("PORTCULLIS_WORKSPACE", &two.other);
        done(command.output().unwrap()).ok();
        assert_eq!(two.starts().pop().unwrap()["facts"]["adopted"], text(&two.own));
        let noted = std::fs::read_to_string(two.world.state().join("workspace")).unwrap();
        assert_eq!(noted, text(&two.other));
    }
}

/// One state directory served two workspaces, and an undo in one put contents of the other there.
#[test]
fn a_workspace_that_is_still_there_lost_its_state_directory() {
    let two = two();
    let adopt = |command: &[&str]| {
        let options = ["--workspace", text(&two.other), "--adopt", text(&two.own)];
        two.world.run(&[command, &options].concat())
    };
    let link = two.world.base().join("link");
    symlink(&two.own, &link).unwrap();
    for command in [&["fs", "read", "f.txt"][..], &["backup", "undo", "--last"]] {
        let refused = adopt(command);
        let all = format!("{}{}", refused.text(), refused.stderr);
        assert!(refused.code == 1 && all.contains("is still there"), "{command:?} {refused:?}");
    }
    let named = ["--workspace", text(&two.other), "--adopt", text(&link)];
    assert_eq!(two.world.run(&[&["fs", "read", "f.txt"], &named[..]].concat()).code, 1);
    let noted = std::fs::read_to_string(two.world.state().join("workspace")).unwrap();
    assert_eq!(noted, text(&two.own));
    two.world.fs(&["read", "f.txt"]).ok();
    // A file in its place is no workspace.
    std::fs::rename(&two.own, two.own.with_file_name("gone")).unwrap();
    std::fs::write(&two.own, "").unwrap();
    adopt(&["fs", "read", "f.txt"]).ok();
}

/// Regression: only a directory at the former path itself counted, not one to which a link leads.
#[test]
fn a_workspace_that_left_a_link_to_it_lost_its_state_directory() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    std::fs::rename(&two.own, &moved).unwrap();
    symlink(&moved, &two.own).unwrap();
    let adopt = |root: &Path| {
        let options = ["--workspace", text(root), "--adopt", text(&two.own)];
        two.world.run(&[&["fs", "read", "f.txt"], &options[..]].concat())
    };
    let refused = adopt(&two.other);
    assert!(refused.code == 1 && refused.stderr.contains("is still there"), "{refused:?}");
    // The workspace itself, which has moved.
    adopt(&moved).ok();
    assert_eq!(two.starts().pop().unwrap()["facts"]["adopted"], text(&two.own));
}

/// Regression: the workspace, which was at both paths, had no state directory any more at its own.
#[test]
fn a_workspace_that_is_mounted_at_another_path_too_lost_its_state_directory() {
    let two = two();
    let inner = two.world.command(&["fs", "read", "f.txt", "--adopt", text(&two.own)]);
    let script = "mount --bind \"$1\" \"$2\" && PORTCULLIS_WORKSPACE=$2 && shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["-Urm", "sh", "-c", script, "sh", text(&two.own), text(&two.other)])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_clear()
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let refused = done(command.output().unwrap());
    assert!(refused.code == 1 && refused.stderr.contains("is still there"), "{refused:?}");
    two.world.fs(&["read", "f.txt"]).ok();
}

/// It went on to record changes of its own files in the log that belonged to another one.
#[test]
fn a_state_directory_was_adopted_while_a_gateway_used_it() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    let mut command = two.world.command(&["mcp"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut gateway = command.spawn().unwrap();
    while two.starts().len() < 2 {
        assert_eq!(gateway.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::fs::rename(&two.own, &moved).unwrap();
    let adopt = ["--workspace", text(&moved), "--adopt", text(&two.own)];
    let adopt = || two.world.run(&[&["fs", "read", "f.txt"], &adopt[..]].concat());
    let refused = adopt();
    assert!(refused.code == 1 && refused.stderr.contains("1 gateway"), "{refused:?}");
    drop(gateway.stdin.take());
    gateway.wait().unwrap();
    adopt().ok();
}

/// Regression: the state directory of the former path was not looked for, and an undo changed what the
/// own one has.
#[test]
fn an_undo_that_adopts_took_back_changes_of_its_own() {
    let two = two();
    std::fs::rename(&two.own, two.own.with_file_name("gone")).unwrap();
    let run = |args: &[&str]| {
        let mut command = two.world.command(args);
        command.env("PORTCULLIS_WORKSPACE", &two.other).env_remove("PORTCULLIS_STATE");
        done(command.output().unwrap())
    };
    run(&["fs", "mv", "f.txt", "g.txt"]).ok();
    for command in [&["undo", "--yes"][..], &["backup", "restore", "f.txt"], &["backup", "list"]] {
        let refused = run(&[command, &["--adopt", text(&two.own)]].concat());
        assert_eq!(refused.code, 2, "{command:?}: {refused:?}");
        assert!(refused.stderr.contains("--state"), "{command:?}: {refused:?}");
    }
    assert!(two.other.join("g.txt").exists());
    let named = two.world.state();
    let state = ["--state", text(&named), "--adopt", text(&two.own)];
    let commands: [&[&str]; 5] = [
        &["backup", "list"],
        &["backup", "verify"],
        &["doctor"],
        &["status"],
        &["policy", "explain", "read", "f.txt"],
    ];
    for command in commands {
        assert_eq!(run(&[command, &state].concat()).code, 2, "{command:?}");
    }
    std::fs::write(two.other.join("f.txt"), "A2").unwrap();
    run(&[&["undo", "--yes"][..], &state].concat()).ok();
    assert_eq!(std::fs::read_to_string(two.other.join("f.txt")).unwrap(), "A1");
}

/// Regression: only the change was left out.
#[test]
fn a_dry_run_adopted_a_state_directory() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    std::fs::rename(&two.own, &moved).unwrap();
    let adopt = ["--dry-run", "--workspace", text(&moved), "--adopt", text(&two.own)];
    for command in [
        &["undo"][..],
        &["backup", "undo", "--record", "1"],
        &["backup", "restore", "f.txt"],
        &["backup", "restore", "--to", "0"],
        &["backup", "prune"],
        &["git", "import"],
    ] {
        let refused = two.world.run(&[command, &adopt].concat());
        assert_eq!(refused.code, 2, "{command:?}: {refused:?}");
        assert!(refused.stderr.contains("--adopt"), "{command:?}: {refused:?}");
    }
    let noted = std::fs::read_to_string(two.world.state().join("workspace")).unwrap();
    assert_eq!((noted.as_str(), two.starts().len()), (text(&two.own), 1));
}

#[test]
fn nothing_is_adopted_that_nobody_had() {
    let world = World::new();
    world.file("f.txt", "x");
    assert_eq!(world.fs(&["read", "f.txt", "--adopt", "/nowhere"]).code, 1);
    let served = world.run(&["serve", "--adopt", "/nowhere", "--listen", "127.0.0.1:0"]);
    assert_eq!(served.code, 2, "{served:?}");
    world.fs(&["read", "f.txt"]).ok();
}

/// Both were served, and backups of one were restored into the other.
#[test]
fn two_adoptions_at_once_gave_one_state_directory_to_two_workspaces() {
    for _ in 0..12 {
        let two = two();
        std::fs::remove_dir_all(&two.own).unwrap();
        let third = two.other.with_file_name("third");
        std::fs::create_dir(&third).unwrap();
        let adopt = |root: &PathBuf| {
            let command = ["fs", "stat", ".", "--workspace", text(root), "--adopt", text(&two.own)];
            let mut command = two.world.command(&command);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let started = [&two.other, &third].map(adopt);
        let ended = started.map(|mut child| child.wait().unwrap().success());
        assert_eq!(ended.iter().filter(|is_adopted| **is_adopted).count(), 1, "{ended:?}");
        // The first start, and that of the one that adopted it.
        assert_eq!(two.starts().len(), 2);
        let owner = if ended[0] { &two.other } else { &third };
        two.world.run(&["fs", "stat", ".", "--workspace", text(owner)]).ok();
    }
}

/// The file `workspace` had to be removed by hand.
#[test]
fn an_adoption_that_died_before_its_file_was_written_is_finished() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    std::fs::rename(&two.own, &moved).unwrap();
    let adopt = ["fs", "stat", ".", "--workspace", text(&moved), "--adopt", text(&two.own)];
    two.world.run(&adopt).ok();
    std::fs::write(two.world.state().join("workspace"), text(&two.own)).unwrap();
    for command in [&adopt[..], &adopt[..5]] {
        two.world.run(command).ok();
        let noted = std::fs::read_to_string(two.world.state().join("workspace")).unwrap();
        assert_eq!(noted.trim_end(), text(&moved));
    }
    assert_eq!(two.world.run(&["fs", "stat", ".", "--workspace", text(&two.other)]).code, 1);
}

/// Its record was written, and then no start was possible.
#[test]
fn a_move_after_an_adoption_that_died_is_adopted() {
    let two = two();
    let (moved, again) = (two.own.with_file_name("moved"), two.own.with_file_name("again"));
    std::fs::rename(&two.own, &moved).unwrap();
    let adopt = ["fs", "stat", ".", "--workspace", text(&moved), "--adopt", text(&two.own)];
    two.world.run(&adopt).ok();
    std::fs::write(two.world.state().join("workspace"), text(&two.own)).unwrap();
    std::fs::rename(&moved, &again).unwrap();
    let adopt = ["fs", "stat", ".", "--workspace", text(&again), "--adopt", text(&moved)];
    for command in [&adopt[..], &adopt[..5]] {
        two.world.run(command).ok();
    }
}

/// Regression: in another project at the former path, where no option names the state directory,
/// commands read, approved and signed for the workspace that had moved.
#[test]
fn a_project_at_the_path_of_one_that_moved_had_its_log() {
    let two = two();
    let (own, moved) = (text(&two.own), two.own.with_file_name("moved"));
    let default = |workspace: &Path, args: &[&str]| {
        let mut command = two.world.command(args);
        command.env_remove("PORTCULLIS_STATE").env("XDG_STATE_HOME", two.world.base().join("xdg"));
        done(command.env("PORTCULLIS_WORKSPACE", workspace).output().unwrap())
    };
    default(&two.own, &["fs", "read", "f.txt"]).ok();
    let place = two.world.base().join("xdg/portcullis");
    let state = std::fs::read_dir(place).unwrap().next().unwrap().unwrap().path();
    std::fs::rename(&two.own, &moved).unwrap();
    default(&moved, &["fs", "read", "f.txt", "--state", text(&state), "--adopt", own]).ok();
    std::fs::create_dir(&two.own).unwrap();
    let commands: [&[&str]; 17] = [
        &["fs", "ls", "."],
        &["audit", "show"],
        &["audit", "blame", "f.txt"],
        &["audit", "session"],
        &["audit", "report", "-o", "report.html"],
        &["audit", "key", "--new"],
        &["audit", "checkpoint"],
        &["audit", "prune", "--before", "0d"],
        &["audit", "compress"],
        &["audit", "recover"],
        &["status"],
        &["approve"],
        &["approve", "--reject", "1"],
        &["backup", "list"],
        &["backup", "verify"],
        &["policy", "learn"],
        &["policy", "replay", "read-only"],
    ];
    let key = std::fs::read(state.join("audit/key.vkey")).unwrap();
    for args in commands {
        let refused = default(&two.own, args);
        let all = format!("{}{}", refused.text(), refused.stderr);
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        for path in [own, text(&moved)] {
            assert!(all.contains(&format!("`{path}`")), "{args:?}: {refused:?}");
        }
    }
    assert_eq!(std::fs::read(state.join("audit/key.vkey")).unwrap(), key);
    // Where both are named, a note says whose log it is.
    let state = text(&state);
    for args in [
        &["approve"][..],
        &["status"],
        &["backup", "list"],
        &["policy", "learn"],
        &["audit", "show"],
    ] {
        let note = |workspace: &Path| {
            let shown = default(workspace, &[args, &["--state", state]].concat()).ok();
            shown.stderr.matches("note: the log is of the workspace").count()
        };
        assert_eq!((note(&two.own), note(&moved)), (1, 0), "{args:?}");
    }
}

/// Regression: a path with `..` was compared as it was typed.
#[test]
fn a_former_path_by_way_of_the_directory_above_was_another_one() {
    let two = two();
    let moved = two.own.with_file_name("moved");
    std::fs::rename(&two.own, &moved).unwrap();
    let former = Path::new("..").join(two.own.file_name().unwrap());
    let args = ["fs", "read", "f.txt", "--workspace", ".", "--adopt", text(&former)];
    let mut command = two.world.command(&args);
    done(command.current_dir(&moved).output().unwrap()).ok();
    assert_eq!(two.starts().pop().unwrap()["facts"]["adopted"], text(&two.own));
}
