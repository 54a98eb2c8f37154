//! Imports where `.git` is a file: a linked work tree, a submodule, and what an agent may have
//! written there.

use std::os::unix::fs::symlink;

use super::{
    super::repository::{self, with_history},
    *,
};

/// Runs git in a directory of the world.
fn git_in(world: &SandboxWorld, directory: &str, arguments: &[&str]) {
    repository::git_in(&world.at(directory), arguments);
}

/// Moves the workspace's files to a repository of their own, and commits them there.
fn moved_to(world: &SandboxWorld, name: &str) {
    std::fs::rename(world.at("ws"), world.at(name)).unwrap();
    std::fs::create_dir(world.at("ws")).unwrap();
    git_in(world, name, &["init", "-q", "-b", "trunk"]);
    git_in(world, name, &["add", "--all"]);
    git_in(world, name, &["commit", "-qm", "the operator's"]);
}

fn given_to(who: As, world: SandboxWorld) -> SandboxWorld {
    if is_root() && who != As::Root {
        world.give_away();
    }
    world
}

/// A workspace that is a linked work tree of the repository `main`.
fn linked(who: As) -> SandboxWorld {
    let world = SandboxWorld::mounted(who);
    moved_to(&world, "main");
    git_in(&world, "main", &["worktree", "add", "-q", "-b", "work", "../ws"]);
    given_to(who, world)
}

/// A workspace that is a submodule of a repository.
fn submodule(who: As) -> SandboxWorld {
    let world = SandboxWorld::mounted(who);
    moved_to(&world, "origin");
    std::fs::remove_dir(world.at("ws")).unwrap();
    git_in(&world, "", &["init", "-q"]);
    let origin = world.at("origin");
    let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &origin, "ws"];
    git_in(&world, "", &add);
    given_to(who, world)
}

/// One commit of a session, imported from a workspace whose repository is `directory`.
fn round_trip(world: &SandboxWorld, directory: &str) {
    let head = git(world, &["rev-parse", "HEAD"]);
    let before = world.files_beside_in(directory);
    let ended =
        world.exec(&[], "git log --format=%s; git show HEAD:hidden/file 2>&1 | grep -c fatal");
    assert_eq!(
        ended.stdout, "Files that the policy shows at the start of the session\n1\n",
        "{ended:?}"
    );
    let ended = world.exec(&[], "echo more >>password.txt && git commit -qam more");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("  commits: portcullis git import --session "), "{ended:?}");
    let dry = world.import(&["--dry-run"]);
    assert_eq!((dry.code, &dry.told["base"]), (0, &head.as_str().into()), "{}", dry.told);
    assert!(!world.base().join(directory).join("refs/portcullis").exists());
    let ended = world.end_import(&["--yes"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("; git reset refs/portcullis/"), "{ended:?}");
    let name = said(&dry.told["branches"][0], "ref");
    assert_eq!(git(world, &["log", "--format=%s", name]), "more\nthe operator's");
    assert_eq!(
        git(world, &["show", &format!("{name}:password.txt")]),
        "it is hunter2, really\nmore"
    );
    assert_eq!(git(world, &["rev-parse", "HEAD"]), head);
    assert_eq!(before, world.files_beside_in(directory));
    git(world, &["fsck", "--strict"]);
    git(world, &["reset", "-q", name]);
    assert_eq!(git(world, &["status", "--porcelain"]), "");
}

#[test]
fn the_commits_of_a_linked_work_tree_come_into_its_repository() {
    for who in users() {
        let world = linked(who);
        round_trip(&world, "main/.git");
        // Its other work tree is where it was.
        git_in(&world, "main", &["diff", "--exit-code", "HEAD"]);
    }
}

#[test]
fn the_commits_of_a_submodule_come_into_its_repository() {
    for who in users() {
        round_trip(&submodule(who), ".git/modules/ws");
    }
}

/// Only the paths of the policy counted, and not those of the session's options, nor its other
/// workspaces.
#[test]
fn commits_came_into_a_repository_that_the_sessions_agent_could_change() {
    for option in ["--agent-write", "--add-dir"] {
        let world = linked(users()[0]);
        std::fs::create_dir(world.at("lent")).unwrap();
        let world = given_to(users()[0], world);
        let script = "echo more >>password.txt && git commit -qam more";
        let ended = world.exec(&[option, &world.at("lent")], script);
        assert_eq!(ended.code, 0, "{option} {ended:?}");
        std::fs::rename(world.at("main"), world.at("lent/main")).unwrap();
        git_in(&world, "lent/main", &["worktree", "repair", "../../ws"]);
        let ended = world.end_import(&["--yes"]);
        assert_eq!(ended.code, 1, "{option} {ended:?}");
        assert!(ended.stderr.contains("names no repository to use"), "{option} {ended:?}");
        assert!(!world.base().join("lent/main/.git/refs/portcullis").exists(), "{option}");
    }
}

/// The start looked at the paths of the policy alone, too: programs got the history of such a
/// repository, and their commits were offered for an import.
#[test]
fn a_session_began_with_a_repository_that_its_agent_could_change() {
    let world = linked(users()[0]);
    with_history(&world);
    let script = "git log --format=%an; echo more >>file.txt && git commit -qam more";
    let ended = world.exec(&["--agent-write", &world.at("main")], script);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "portcullis\n"), "{ended:?}");
    assert!(ended.stderr.contains("commits of this session cannot be imported"), "{ended:?}");
    assert!(world.records().iter().all(|record| record["facts"]["git"].is_null()));
}

/// The check ignored both for a further workspace, and the paths of the first workspace's policy.
#[test]
fn a_further_workspace_was_used_with_a_repository_that_the_agent_could_change() {
    let world = linked(users()[0]);
    std::fs::rename(world.at("ws"), world.at("further")).unwrap();
    git_in(&world, "main", &["worktree", "repair", "../further"]);
    std::fs::create_dir(world.at("ws")).unwrap();
    let world = given_to(users()[0], world);
    let (further, main) = (world.at("further"), world.at("main"));
    let policy = format!("{POLICY}\n[agent]\nwrite = [\"{main}\"]\n");
    std::fs::write(world.at("policies/granting.toml"), policy).unwrap();
    let (granting, plain) = (world.at("policies/granting.toml"), world.at("policies/policy.toml"));
    let added = format!("{further}={plain}");
    let begin = |options: &[&str]| {
        let words = [&["exec", "--add-dir", &added], options, &["--", "true"]].concat();
        let ended = end(world.limited(&words).spawn().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.stderr.contains("commits of this session cannot be imported")
    };
    assert!(!begin(&["--policy", &plain]));
    assert!(begin(&["--policy", &plain, "--agent-write", &main]));
    assert!(begin(&["--policy", &granting]));
}

#[test]
fn a_work_tree_beside_the_parts_of_a_bare_repository_is_one() {
    let world = SandboxWorld::mounted(users()[0]);
    moved_to(&world, "origin");
    std::fs::remove_dir(world.at("ws")).unwrap();
    git_in(&world, "", &["init", "-q", "--bare", "."]);
    git_in(&world, "", &["fetch", "-q", "origin", "trunk:trunk"]);
    git_in(&world, "", &["worktree", "add", "-q", "ws", "trunk"]);
    let world = given_to(users()[0], world);
    let (_, imported) = (world.commit_as("one"), world.import(&["--yes"]));
    assert_eq!(imported.code, 0, "{} {}", imported.told, imported.stderr);
}

#[test]
fn refs_that_were_not_written_leave_no_directory_of_the_session() {
    let world = linked(users()[0]);
    world.commit_as("one");
    assert_eq!(world.end_import(&[]).code, 1);
    let refs = world.base().join("main/.git/refs/portcullis");
    assert_eq!(std::fs::read_dir(refs).unwrap().count(), 0);
}

#[test]
fn the_history_of_a_linked_work_tree_is_copied_where_the_policy_allows_it() {
    let world = linked(users()[0]);
    with_history(&world);
    let ended = world.exec(&[], "git log --format=%s; git show HEAD~1:hidden/file");
    let shown = "Files that the policy shows at the start of the session\nthe operator's\nhidden\n";
    assert_eq!(ended.stdout, shown, "{ended:?}");
}

/// All forms in which git reads the files of a work tree, and no other.
#[test]
fn relative_paths_and_line_ends_are_as_git_has_them() {
    let world = linked(users()[0]);
    world.commit_as("one");
    let link = |text: String| {
        std::fs::write(world.at("ws/.git"), text).unwrap();
        world.end_import(&["--dry-run"])
    };
    let own = world.at("main/.git/worktrees/ws");
    for text in [
        format!("gitdir: {own}"),
        format!("gitdir: {own}\r\n\n"),
        "gitdir: ../main/.git/worktrees/ws\n".to_owned(),
        "gitdir: ./../main/./.git/worktrees/x/../ws/\n".to_owned(),
    ] {
        let ended = link(text.clone());
        assert_eq!(ended.code, 0, "{text} {ended:?}");
    }
    for (text, reason) in [
        (String::new(), "`.git` is not one line"),
        ("gitdir: \n".to_owned(), "does not begin with `gitdir: `"),
        (format!("gitdir:{own}\n"), "does not begin with `gitdir: `"),
        (own.clone(), "does not begin with `gitdir: `"),
        (format!("gitdir: {own}\ngitdir: {own}\n"), "`.git` is not one line"),
        (format!("gitdir: {own}\0\n"), "`.git` is not one line"),
        (format!("gitdir: {own}\n{}", "\n".repeat(10_000)), "cannot read `.git`"),
        (format!("gitdir: {own}/HEAD\n"), "cannot open"),
        (format!("gitdir: {own}\u{202e}x\n"), "cannot open"),
    ] {
        let ended = link(text.clone());
        assert_eq!(ended.code, 1, "{text} {ended:?}");
        assert!(ended.stderr.contains(reason), "{text} {ended:?}");
        assert!(ended.stderr.contains("worktree repair"), "{ended:?}");
        assert!(!ended.stderr.contains('\u{202e}'), "{ended:?}");
    }
    // The repository's own files, which the operator's git writes.
    link("gitdir: ../main/.git/worktrees/ws\n".to_owned());
    let write = |name: &str, text: &str| std::fs::write(format!("{own}/{name}"), text).unwrap();
    write("gitdir", "../../../../ws/.git\r\n");
    write("commondir", &world.at("main/.git"));
    let ended = world.end_import(&["--dry-run"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    write("commondir", "../../../../other/.git\n");
    let ended = world.end_import(&["--dry-run"]);
    assert!(ended.stderr.contains("does not lie in `worktrees`"), "{ended:?}");
    write("commondir", "../..\n");
    write("gitdir", &world.at("moved/.git"));
    let ended = world.end_import(&["--dry-run"]);
    assert!(ended.stderr.contains("is not this workspace"), "{ended:?}");
}

/// An agent names with `.git` what it wants to read, or to have written.
#[test]
fn a_forged_file_leads_to_no_other_repository() {
    let world = linked(users()[0]);
    world.commit_as("one");
    std::fs::create_dir(world.at("given")).unwrap();
    let policy = format!(
        "{POLICY}\n[git]\nhistory = \"allow\"\n[agent]\nwrite = [{:?}]\n",
        world.at("given")
    );
    std::fs::write(world.at("policies/policy.toml"), policy).unwrap();
    std::fs::create_dir(world.at("other")).unwrap();
    for arguments in [
        &["init", "-q"][..],
        &["commit", "-q", "--allow-empty", "-m", "of another project"],
        &["worktree", "add", "-q", "../second"],
    ] {
        git_in(&world, "other", arguments);
    }
    let other = world.at("other/.git");
    let forge = |place: &str, commondir: &str| {
        let place = world.base().join(place).join("worktrees/forged");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("gitdir"), world.at("ws/.git")).unwrap();
        std::fs::write(place.join("commondir"), commondir).unwrap();
        std::fs::write(place.join("HEAD"), "ref: refs/heads/master\n").unwrap();
        place.to_str().unwrap().to_owned()
    };
    for place in ["ws/inside", "given/whole"] {
        std::fs::create_dir_all(world.at(place)).unwrap();
        git_in(&world, place, &["init", "-q", "--bare", "."]);
    }
    let modules = world.base().join("ws/module");
    let forged_module = modules.to_str().unwrap().to_owned();
    std::fs::create_dir_all(&modules).unwrap();
    git(&world, &["clone", "-q", "--bare", &other, &forged_module]);
    git(&world, &["-C", &forged_module, "config", "core.worktree", &world.at("ws")]);
    symlink(&other, world.at("link")).unwrap();
    symlink(world.at("other/.git/worktrees"), world.at("ws/link")).unwrap();
    let changes = "an agent may change what is there";
    let cases = [
        (other.clone(), "no plain `core.worktree`"),
        (world.at("main/.git"), "no plain `core.worktree`"),
        (world.at("other/.git/worktrees/second"), "is not this workspace"),
        ("../other/.git/worktrees/second".to_owned(), "is not this workspace"),
        (world.at("link/worktrees/second"), "leads through a link"),
        (world.at("link"), "leads through a link"),
        ("link/second".to_owned(), "leads through a link"),
        (".".to_owned(), "has no readable"),
        (world.at("state"), "has no readable"),
        (forged_module.clone(), changes),
        ("module".to_owned(), changes),
        (forge("ws/inside", "../.."), changes),
        ("inside/worktrees/forged".to_owned(), changes),
        (forge("given/whole", "../.."), changes),
        (forge("ws/forged", &other), "does not lie in `worktrees`"),
        (forge("given/forged", &other), "does not lie in `worktrees`"),
        (forge("given/dotted", "../../../../other/.git"), "does not lie in `worktrees`"),
    ];
    if is_root() && users()[0] != As::Root {
        world.give_away();
    }
    let before =
        ["main", "other", "ws/module", "ws/inside", "given"].map(|place| files(&world, place));
    for (target, reason) in cases {
        std::fs::write(world.at("ws/.git"), format!("gitdir: {target}\n")).unwrap();
        let ended = world.end_import(&["--yes"]);
        assert_eq!(ended.code, 1, "{target} {ended:?}");
        let stderr = ended.stderr.replace('\n', " ");
        assert!(stderr.contains(reason), "{target} {stderr}");
    }
    let script = "git log --format=%s";
    for target in [&other, &world.at("other/.git/worktrees/second"), &forged_module] {
        std::fs::write(world.at("ws/.git"), format!("gitdir: {target}\n")).unwrap();
        let ended = world.exec(&["--agent", "other"], script);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (0, "Files that the policy shows at the start of the session\n"),
            "{ended:?}"
        );
        assert!(ended.stderr.contains("commits of this session cannot be imported"), "{ended:?}");
        let start = world.records();
        let start = start.iter().rfind(|record| record["kind"] == "start").unwrap();
        assert_eq!(start["facts"]["git"], Value::Null, "{start}");
    }
    let after =
        ["main", "other", "ws/module", "ws/inside", "given"].map(|place| files(&world, place));
    assert_eq!(before, after);
    // What is neither a file nor a directory is not opened.
    for make in ["mkfifo .git", "ln -s ../other/.git .git"] {
        std::fs::remove_file(world.at("ws/.git")).unwrap();
        let made = Command::new("sh").args(["-c", make]).current_dir(world.at("ws")).status();
        assert!(made.unwrap().success());
        let ended = world.end_import(&["--yes"]);
        assert_eq!(ended.code, 1, "{make} {ended:?}");
        assert!(ended.stderr.contains("has no git repository"), "{make} {ended:?}");
    }
}

/// All files beneath a place, with their contents.
fn files(world: &SandboxWorld, place: &str) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let found = walk(&world.base().join(place)).into_iter().filter(|path| path.is_file());
    found.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}
