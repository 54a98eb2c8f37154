//! Installation and removal: completions, manual pages, and what is left on a machine.

use std::{
    ffi::OsStr,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    approvals,
    common::{Done, World, done},
};

/// `portcullis` with default places: without a named state directory.
fn at_home(world: &World, args: &[&str]) -> Command {
    let mut command = world.command(args);
    command.env_remove("PORTCULLIS_STATE");
    command
}

fn run(world: &World, args: &[&str]) -> Done {
    done(at_home(world, args).output().unwrap())
}

fn home(world: &World) -> PathBuf {
    let home = world.base().join("home");
    std::fs::create_dir_all(&home).unwrap();
    home
}

#[test]
fn setup_writes_completions_and_pages_where_they_are_looked_for() {
    let world = World::new();
    let share = home(&world).join(".local/share");
    let written = run(&world, &["setup", "--json"]).ok().json();
    for place in [
        "bash-completion/completions/portcullis",
        "fish/vendor_completions.d/portcullis.fish",
        "zsh/site-functions/_portcullis",
        "man/man1/portcullis.1",
        "man/man1/portcullis-audit-verify.1",
    ] {
        let path = share.join(place);
        assert!(path.is_file(), "{place}");
        let list = written["written"].as_array().unwrap();
        assert!(list.iter().any(|one| one == path.to_str().unwrap()), "{place}");
    }
    // Bash loads the file by the command's name.
    let ask = format!(
        "source {}; complete -p portcullis",
        share.join("bash-completion/completions/portcullis").display()
    );
    let bash = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
    assert!(String::from_utf8(bash.stdout).unwrap().contains("portcullis"));
    // Written again, as after an upgrade.
    run(&world, &["setup"]).ok();
}

#[test]
fn man_finds_the_page_or_setup_says_how() {
    let world = World::new();
    let share = home(&world).join(".local/share");
    let told = run(&world, &["setup", "--man"]).ok();
    let help = format!("help: export MANPATH={}/man:", share.display());
    assert!(told.stderr.contains(&help), "{told:?}");
    let found = Command::new("man")
        .args(["--where", "portcullis"])
        .env("MANPATH", format!("{}/man:", share.display()))
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.trim(), share.join("man/man1/portcullis.1").to_str().unwrap());
    assert!(!share.join("bash-completion").exists());
}

#[test]
fn setup_writes_beneath_a_prefix_and_through_no_link() {
    let world = World::new();
    let prefix = world.base().join("usr");
    std::fs::create_dir(&prefix).unwrap();
    let prefix_text = prefix.to_str().unwrap();
    run(&world, &["setup", "--completions", "--prefix", prefix_text]).ok();
    assert!(prefix.join("share/zsh/site-functions/_portcullis").is_file());
    assert!(!prefix.join("share/man").exists());
    let (elsewhere, link) = (world.base().join("elsewhere"), world.base().join("link"));
    std::fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &link).unwrap();
    let refused = run(&world, &["setup", "--prefix", link.to_str().unwrap()]);
    assert!(refused.code == 1 && refused.stderr.contains("symbolic link"), "{refused:?}");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}

/// A name that is no UTF-8 ended the program with a panic.
#[test]
fn paths_that_are_no_utf8_are_in_json_with_replacements() {
    let world = World::new();
    home(&world);
    let data = world.base().join(OsStr::from_bytes(b"data\xff"));
    std::fs::create_dir(&data).unwrap();
    for args in [&["setup", "--json"][..], &["uninstall", "--dry-run", "--json"]] {
        let output = at_home(&world, args).env("XDG_DATA_HOME", &data).output().unwrap();
        let text = done(output).ok().json().to_string();
        assert!(text.contains("data\u{fffd}/man/man1/portcullis.1"), "{text}");
    }
}

#[test]
fn the_version_names_the_commit_that_the_build_named() {
    let version = World::new().run(&["--version"]).ok();
    let commit = option_env!("PORTCULLIS_COMMIT").filter(|commit| !commit.is_empty());
    let expected = match commit {
        Some(commit) => format!("portcullis {} ({commit})\n", env!("CARGO_PKG_VERSION")),
        None => format!("portcullis {}\n", env!("CARGO_PKG_VERSION")),
    };
    assert_eq!(version.text(), expected);
}

/// Everything that uninstall removes, made by the commands that make it.
fn used() -> World {
    let world = World::new();
    let home = home(&world);
    world.file("a.txt", "a\n");
    run(&world, &["fs", "read", "a.txt"]).ok();
    run(&world, &["setup"]).ok();
    std::fs::create_dir_all(home.join(".local/share/portcullis/homes/w/agent/.cache")).unwrap();
    std::fs::create_dir_all(home.join(".local/share/portcullis/scratch/w")).unwrap();
    // An agent made a directory that it may not enter itself, and a link to the workspace.
    let closed = home.join(".local/share/portcullis/homes/w/agent/.cache");
    symlink(world.root(), closed.join("link")).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
    std::fs::create_dir_all(home.join(".config/portcullis")).unwrap();
    std::fs::write(home.join(".config/portcullis/portcullis.toml"), "").unwrap();
    world
}

#[test]
fn uninstall_names_what_lies_where_and_removes_nothing_on_a_dry_run() {
    let world = used();
    let home = home(&world);
    let listed = run(&world, &["uninstall", "--dry-run", "--json"]).ok().json();
    assert_eq!((&listed["ok"], &listed["removed"]), (&true.into(), &false.into()));
    let items = listed["items"].as_array().unwrap();
    let of = |kind: &str| items.iter().find(|item| item["kind"] == kind).unwrap().clone();
    assert_eq!(of("state")["workspace"], world.root().to_str().unwrap());
    for (kind, place) in [
        ("homes", ".local/share/portcullis/homes"),
        ("scratch", ".local/share/portcullis/scratch"),
        ("configuration", ".config/portcullis/portcullis.toml"),
        ("completions", ".local/share/bash-completion/completions/portcullis"),
    ] {
        let path = home.join(place);
        assert_eq!(of(kind)["path"], path.to_str().unwrap(), "{kind}");
        assert!(path.exists(), "{kind}");
    }
    assert!(of("program")["removedBy"].is_string());
    let text = run(&world, &["uninstall", "--dry-run"]).ok();
    assert!(text.text().contains("manual pages"), "{text:?}");
    assert!(text.text().contains(&format!(", of workspace {}", world.root().display())));
}

/// Such a directory has no log yet, and was not listed.
#[test]
fn a_state_directory_of_a_start_that_failed_was_not_named() {
    let world = World::new();
    let state = home(&world).join(".local/state/portcullis/ws-0123456789abcdef");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("format"), "1\n").unwrap();
    let listed = run(&world, &["uninstall", "--dry-run"]).ok();
    assert!(listed.text().contains(state.to_str().unwrap()), "{listed:?}");
    run(&world, &["uninstall", "--yes"]).ok();
    assert!(!state.exists());
}

#[test]
fn uninstall_removes_everything_but_workspaces_and_the_operators_own_files() {
    let world = used();
    let home = home(&world);
    let own = home.join(".config/portcullis/my-policy.toml");
    std::fs::write(&own, "schema = 1\n").unwrap();
    let elsewhere = home.join(".local/state/portcullis/notes.txt");
    std::fs::write(&elsewhere, "mine\n").unwrap();
    let asked = run(&world, &["uninstall"]);
    assert!(asked.code == 1 && asked.stderr.contains("no terminal to ask on"), "{asked:?}");
    let asked = run(&world, &["uninstall", "--json"]);
    assert!(asked.code == 1 && asked.text().contains("nothing was removed"), "{asked:?}");
    let removed = run(&world, &["uninstall", "--yes", "--json"]).ok().json();
    assert_eq!(removed["removed"], true);
    for place in [
        ".local/share/portcullis",
        ".local/share/man/man1/portcullis.1",
        ".local/share/zsh/site-functions/_portcullis",
        ".config/portcullis/portcullis.toml",
    ] {
        assert!(!home.join(place).exists(), "{place}");
    }
    let left: Vec<_> = std::fs::read_dir(home.join(".local/state/portcullis")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(own.is_file() && elsewhere.is_file());
    assert_eq!(world.read("a.txt"), "a\n");
    let again = run(&world, &["uninstall", "--dry-run", "--json"]).ok().json();
    let left = again["items"].as_array().unwrap().iter().filter(|item| item["removedBy"].is_null());
    assert_eq!(left.count(), 0, "{again}");
}

/// Each level had a file open, and one that nobody may enter kept all from being removed.
#[test]
fn uninstall_stopped_at_a_directory_of_great_depth() {
    use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
    let world = used();
    let homes = home(&world).join(".local/share/portcullis/homes");
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut deep = open(homes.join("w/agent"), flags, Mode::empty()).unwrap();
    for _ in 0..6_000 {
        mkdirat(&deep, "d", Mode::RWXU).unwrap();
        deep = openat(&deep, "d", flags, Mode::empty()).unwrap();
    }
    run(&world, &["uninstall", "--yes"]).ok();
    assert!(!homes.exists());
}

#[test]
fn uninstall_refuses_state_of_another_format() {
    let world = used();
    let items = run(&world, &["uninstall", "--dry-run", "--json"]).ok().json();
    let items = items["items"].as_array().unwrap();
    let state = items.iter().find(|item| item["kind"] == "state").unwrap();
    let format = PathBuf::from(state["path"].as_str().unwrap()).join("format");
    std::fs::write(&format, "2\n").unwrap();
    let refused = run(&world, &["uninstall", "--yes"]);
    assert!(refused.code == 1 && refused.stderr.contains("has format 2"), "{refused:?}");
    assert!(format.exists());
    run(&world, &["uninstall", "--dry-run"]).ok();
}

#[test]
fn uninstall_refuses_while_a_gateway_runs() {
    let world = World::with_policy(approvals::POLICY);
    home(&world);
    world.file("src/vault/a.txt", "a\n");
    let mut child = at_home(&world, &["fs", "read", "src/vault/a.txt"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_listening = || {
        let list = run(&world, &["approve", "--list", "--json"]).ok().json();
        !list["waiting"].as_array().unwrap().is_empty()
    };
    while !is_listening() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let refused = run(&world, &["uninstall", "--yes"]);
    assert!(refused.code == 1 && refused.stderr.contains("1 gateway of the state"), "{refused:?}");
    let dry = run(&world, &["uninstall", "--dry-run"]).ok();
    assert!(dry.stderr.contains("1 gateway of the state"), "{dry:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    run(&world, &["uninstall", "--yes"]).ok();
}
