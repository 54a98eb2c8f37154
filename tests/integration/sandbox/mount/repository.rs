//! The git repository that programs have instead of the workspace's.

use std::time::SystemTime;

use super::*;

/// Git in the workspace, from outside, with no configuration but its own.
pub(super) fn git(world: &SandboxWorld, arguments: &[&str]) -> String {
    git_in(&world.at("ws"), arguments)
}

/// The same in another directory.
pub(super) fn git_in(directory: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-C", directory, "-c", "user.name=n", "-c", "user.email=n@example.org"]);
    command.args(["-c", "safe.directory=*"]).args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A workspace with a repository that has all that the policy hides.
pub(super) fn committed(who: As) -> SandboxWorld {
    let world = SandboxWorld::mounted(who);
    git(&world, &["init", "-q", "-b", "work"]);
    git(&world, &["add", "--all"]);
    git(&world, &["commit", "-qm", "the operator's"]);
    if is_root() && who != As::Root {
        world.give_away();
    }
    world
}

#[test]
fn a_private_repository_has_what_the_policy_shows() {
    for who in users() {
        let world = committed(who);
        let head = git(&world, &["rev-parse", "HEAD"]);
        let script = "git status --porcelain; git log --format=%an:%s; git ls-files; \
            git show HEAD:password.txt | sed 's/secret:[^]]*/secret/'; git show HEAD:hidden/file 2>&1 | grep -c '^fatal'; \
            git cat-file --batch-all-objects --batch | grep -a -c -e hunter2 -e operator";
        let ended = world.exec(&[], script);
        let shown = "portcullis:Files that the policy shows at the start of the session\n\
            dir/inner.txt\nfile.txt\nfixed.txt\npassword.txt\nit is [portcullis-secret], really\n1\n0\n";
        assert_eq!(ended.stdout, shown, "{who:?} {ended:?}");
        assert!(ended.stderr.contains("git repository of their own"), "{ended:?}");

        // A commit stays there, and is there again.
        let script = "echo more >>file.txt && git commit -qam more && git status --porcelain";
        let ended = world.exec(&[], script);
        assert_eq!((ended.code, ended.stdout.as_str()), (0, ""), "{ended:?}");
        assert!(!ended.stderr.contains("git repository"), "{ended:?}");
        let ended = world.exec(&[], "git log --format=%an:%s -1");
        assert_eq!(ended.stdout, "agent:more\n", "{ended:?}");
        assert_eq!(git(&world, &["rev-parse", "HEAD"]), head);
        assert_eq!(git(&world, &["status", "--porcelain"]), "M file.txt");
        let records = world.records();
        let about = records.iter().map(|record| said(record, "path"));
        assert_eq!(about.filter(|path| path.starts_with(".git")).count(), 0);
        let start = records.iter().find(|record| record["kind"] == "start").unwrap();
        assert_eq!(start["facts"]["scratch"]["repositories"], true, "{start}");
    }
}

/// Setup of the private repository opened each file first, so what the agent read was only counted.
#[test]
fn the_first_open_of_the_agent_was_counted_as_one_of_the_setup() {
    let world = committed(users()[0]);
    // Not `git status`, which reads files that are as young as the index.
    let ended = world.exec(&["--json"], "cat file.txt file.txt; cat hidden/file");
    let summary = ended.stderr.lines().find(|line| line.starts_with('{')).unwrap();
    let summary: Value = serde_json::from_str(summary).unwrap();
    assert_eq!(summary["readPaths"], serde_json::json!(["file.txt"]), "{summary}");
    let records = world.records();
    let reads = |path: &str| {
        let is = |record: &&Value| said(record, "op") == "read" && said(record, "path") == path;
        let facts = records.iter().filter(is).map(|record| record["facts"].clone());
        let opens = facts.map(|facts| {
            let program = facts["process"]["program"].as_str().unwrap_or_default().to_owned();
            (facts["setup"] == true, program)
        });
        opens.collect::<Vec<_>>()
    };
    let (setup, agent) = ((true, "git".to_owned()), (false, "cat".to_owned()));
    let of_file = reads("file.txt");
    assert_eq!((&of_file[0], of_file.last()), (&setup, Some(&agent)), "{of_file:?}");
    assert_eq!(of_file.iter().filter(|open| **open == agent).count(), 1, "{of_file:?}");
    assert!(reads("dir/inner.txt").iter().all(|open| *open == setup));
    let told = end(world.limited(&["audit", "session", "last"]).spawn().unwrap());
    let (command, setup) = told.stdout.split_once("setup of the sandbox").unwrap();
    assert!(setup.contains("dir/inner.txt"), "{told:?}");
    assert!(command.contains("read      file.txt (2 times)\n"), "{told:?}");
    assert!(!command.contains("inner.txt"), "{told:?}");
    // A later session has nothing to set up.
    let ended = world.exec(&[], "cat dir/inner.txt");
    assert!(ended.stderr.contains("1 version of a file read"), "{ended:?}");
}

#[test]
fn a_repository_that_was_not_finished_is_made_anew() {
    let world = committed(users()[0]);
    let ended = world.exec(&[], "touch .git/portcullis-unfinished && rm .git/HEAD");
    assert_eq!(ended.code, 0, "{ended:?}");
    let ended = world.exec(&[], "git log --format=%an && ls .git/portcullis-unfinished");
    assert_eq!((ended.code, ended.stdout.as_str()), (2, "portcullis\n"), "{ended:?}");
}

/// It was made for minutes, despite `--timeout`.
#[test]
fn a_repository_that_takes_long_held_up_a_command_with_a_timeout() {
    let world = committed(users()[0]);
    for number in 0..12 {
        let file = std::fs::File::create(world.at(&format!("ws/large{number}"))).unwrap();
        file.set_len(250 << 20).unwrap();
    }
    let args = ["exec", "--timeout", "1s", "--", "echo", "it ran"];
    let ended = end(world.limited(&args).spawn().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (124, ""), "{ended:?}");
    assert!(ended.stderr.contains("was not started"), "{ended:?}");
}

/// Each of the three links doubles the ways through the others: git walked them for two minutes
/// after the command's end, and at each start of a later one.
#[test]
fn refs_without_end_held_a_command_up_and_kept_the_next_from_starting() {
    let world = committed(users()[0]);
    assert_eq!(world.exec(&[], "git commit -q --allow-empty -m one").code, 0);
    let loops = "cd .git/refs/heads && ln -s . a && ln -s . b && ln -s . c && date +%s";
    let ended = world.exec(&["--timeout", "12s"], loops);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!(now - ended.stdout.trim().parse::<u64>().unwrap() < 60, "{ended:?}");
    assert!(ended.stderr.contains("were not counted"), "{ended:?}");
    assert!(ended.stderr.contains("  commits: portcullis git import"), "{ended:?}");
    let ended = world.exec(&["--timeout", "12s"], "rm -rf .git && echo removed");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "removed\n"), "{ended:?}");
    assert!(
        ended.stderr.contains(" --agent exec --workspace ")
            && ended.stderr.contains(" -- sh -c 'chmod -R u+rwX .git; rm -rf .git'`"),
        "{ended:?}"
    );
    assert!(!ended.stderr.contains("git import"), "{ended:?}");
}

/// The advice failed, since nothing in it could be removed, and the summary offered an import.
#[test]
fn a_repository_without_rights_was_not_removed_by_the_command_that_was_advised() {
    let world = committed(users()[0]);
    assert_eq!(world.exec(&[], "git commit -q --allow-empty -m one; chmod 000 .git").code, 0);
    let ended = world.exec(&[], "echo ran");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "ran\n"), "{ended:?}");
    assert!(!ended.stderr.contains("git import"), "{ended:?}");
    let (_, advised) = ended.stderr.split_once(" -- sh -c '").unwrap();
    let (advised, _) = advised.split_once("'`").unwrap();
    assert_eq!(world.exec(&[], advised).code, 0);
    let ended = world.exec(&[], "git log --format=%an");
    assert_eq!(ended.stdout, "portcullis\n", "{ended:?}");
}

/// Git read the home's configuration, which failed, or waited: the warning spoke of the repository,
/// and told the operator to remove it.
#[test]
fn a_home_whose_configuration_git_cannot_read_was_blamed_on_the_repository() {
    let world = committed(users()[0]);
    assert_eq!(world.exec(&[], "git commit -q --allow-empty -m one").code, 0);
    for make in ["mkdir", "mkfifo"] {
        let script = format!("rm -rf $HOME/.gitconfig; {make} $HOME/.gitconfig");
        assert_eq!(world.exec(&[], &script).code, 0);
        let begun = std::time::Instant::now();
        let ended = world.exec(&[], "echo ran");
        assert_eq!((ended.code, ended.stdout.as_str()), (0, "ran\n"), "{make}: {ended:?}");
        assert!(!ended.stderr.contains("rm -rf .git"), "{make}: {ended:?}");
        assert!(!ended.stderr.contains("will not be offered"), "{make}: {ended:?}");
        assert!(begun.elapsed().as_secs() < 60, "{make}: {:?}", begun.elapsed());
    }
}

/// An active virtual environment has `PATH` begin in the workspace, and a link there named what
/// Portcullis ran as git.
#[test]
fn a_repository_chose_the_program_that_is_run_as_git() {
    let world = committed(users()[0]);
    assert_eq!(world.exec(&[], "git commit -q --allow-empty -m one").code, 0);
    let programs = world.base().join("ws/.venv/bin");
    std::fs::create_dir_all(&programs).unwrap();
    std::os::unix::fs::symlink("/usr/bin/true", programs.join("git")).unwrap();
    let policy = world.at("policies/policy.toml");
    let command = ["git", "import", "--policy", &policy, "--dry-run", "--json"];
    let mut import = world.limited(&command);
    import.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
    let ended = end(import.spawn().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(told["commits"][0]["subject"], "one", "{told}");
}

/// Git fetched an object that was missing, with a program that the agent had named: what that read
/// was taken for the setup's, and it could end every later start.
#[test]
fn the_setup_ran_a_program_that_the_agent_had_named() {
    let world = committed(users()[0]);
    let prepare =
        "printf '#!/bin/sh\necho ran >>$HOME/ran\nexit 1\n' >.git/fetch && chmod +x .git/fetch &&
        git config core.repositoryFormatVersion 1 && git config extensions.partialClone origin &&
        git config remote.origin.promisor true && git config remote.origin.url ssh://x/y &&
        git config core.sshCommand \"$PWD/.git/fetch\" &&
        echo 1234567890123456789012345678901234567890 >.git/refs/heads/missing";
    assert_eq!(world.exec(&[], prepare).code, 0);
    let ended = world.exec(&[], "cat $HOME/ran");
    assert!(!ended.stdout.contains("ran"), "{ended:?}");
    // It is run for the agent's own git.
    let ended = world.exec(&[], "git log -1 missing; cat $HOME/ran");
    assert!(ended.stdout.contains("ran\n"), "{ended:?}");
}

#[test]
fn hooks_of_a_private_repository_run_in_the_sandbox_alone() {
    let world = committed(users()[0]);
    let hook = "printf '#!/bin/sh\\ncat /proc/self/status >made\\n' >.git/hooks/post-commit && \
        chmod +x .git/hooks/post-commit && git config core.fsmonitor 'touch fsmonitor' && \
        git commit -q --allow-empty -m one && grep -c '^Seccomp:.2' made && rm -f made fsmonitor";
    let ended = world.exec(&[], hook);
    assert_eq!(ended.stdout, "1\n", "{ended:?}");
    git(&world, &["status"]);
    git(&world, &["commit", "-q", "--allow-empty", "-m", "outside"]);
    assert!(!world.base().join("ws/made").exists() && !world.base().join("ws/fsmonitor").exists());
}

#[test]
fn the_policy_may_show_the_workspaces_repository() {
    let world = committed(users()[0]);
    let policy = format!("{POLICY}\n[git]\nrepository = \"workspace\"\n");
    std::fs::write(world.at("policies/policy.toml"), policy).unwrap();
    std::fs::write(world.at("ws/fresh.txt"), "fresh\n").unwrap();
    let script = "git() { command git -c safe.directory='*' \"$@\"; }; git log --format=%s; \
        git status --short; echo more >>file.txt; git diff --stat file.txt | tail -1";
    let ended = world.exec(&[], script);
    let shown = "the operator's\n D hidden/file\n M password.txt\n?? fresh.txt\n 1 file changed, 1 insertion(+)\n";
    assert_eq!(ended.stdout, shown, "{ended:?}");
}

/// It showed all that was ever committed, and no lint, no start and no record said so. Nor did
/// labels of what had been committed apply.
#[test]
fn the_workspaces_repository_was_shown_without_a_warning() {
    let world = committed(users()[0]);
    let labelled = "[[labels]]\nid = \"l\"\npaths = [\"hidden/**\"]\n[[network.rules]]\nid = \"n\"\n\
        effect = \"deny\"\nhosts = [\"*\"]\nwhenRead = [\"l\"]\n";
    let closed = "[[rules]]\nid = \"git\"\neffect = \"deny\"\npaths = [\"**/.git\"]\n";
    for (more, is_shown) in [("", true), (closed, false)] {
        let policy = format!("{POLICY}\n{labelled}{more}[git]\nrepository = \"workspace\"\n");
        let place = world.at("policies/policy.toml");
        std::fs::write(&place, policy).unwrap();
        let ended = world.exec(&[], "git -c safe.directory='*' show HEAD:hidden/file");
        assert_eq!(ended.stdout.contains("hidden"), is_shown, "{ended:?}");
        assert_eq!(ended.stderr.contains("`[git] repository"), is_shown, "{ended:?}");
        let records = world.records();
        let start = records.iter().rfind(|record| record["kind"] == "start").unwrap();
        assert_eq!(start["facts"]["git"]["history"] == true, is_shown, "{start}");
        let is_label = |record: &&Value| {
            said(record, "op") == "label" && said(record, "session") == said(start, "session")
        };
        assert_eq!(records.iter().filter(is_label).count(), usize::from(is_shown));

        let ws = world.at("ws");
        let lint = |args: &[&str]| {
            let args = [&["policy", "lint", &place, "--workspace", &ws], args].concat();
            end(world.limited(&args).spawn().unwrap())
        };
        let told: Value = serde_json::from_str(&lint(&["--json"]).stdout).unwrap();
        let history = told["findings"].as_array().unwrap().iter();
        let history: Vec<_> = history.filter(|found| found["id"] == "git-history").collect();
        assert_eq!(history.len(), usize::from(is_shown), "{told}");
        assert!(history.iter().all(|found| said(found, "message").contains("`hidden/file`")));
        assert_eq!(lint(&[]).stderr.contains("rules hide"), !is_shown);
    }
}

#[test]
fn without_a_repository_in_the_workspace_none_is_made() {
    let world = SandboxWorld::mounted(users()[0]);
    let ended =
        world.exec(&[], "ls -A | grep -c git; git init -q && git status --porcelain | wc -l");
    assert_eq!(ended.stdout, "0\n4\n", "{ended:?}");
    assert!(!world.base().join("ws/.git").exists());
}

/// It was refused: git knew no author.
#[test]
fn an_agent_could_not_commit_in_a_repository_that_it_made() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let script =
            "git init -q && git add file.txt && git commit -qm one && git log --format='%an <%ae>'";
        let ended = world.exec(&[], script);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (0, "agent <agent@localhost>\n"),
            "{who:?} {ended:?}"
        );
        // One that an agent chose stays.
        for (script, name) in [
            ("git config --global user.name own && git log -1 --format=%an", "agent\n"),
            ("git commit -q --allow-empty -m two && git log -1 --format=%an", "own\n"),
        ] {
            let ended = world.exec(
                &["--agent", "named"],
                &format!("git init -q; git commit -q --allow-empty -m x; {script}"),
            );
            assert_eq!(ended.stdout, name, "{who:?} {ended:?}");
        }
    }
}

/// Git failed half way, and nothing told how to have another version of a file that may not be
/// written.
#[test]
fn work_trees_have_what_may_not_be_written_where_nothing_is_decided() {
    for who in users() {
        let world = SandboxWorld::mounted(who);
        let policy = "schema = 1\nname = \"p\"\nversion = 1\nextends = [\"default\"]\n\
            [scratch]\npaths = [\".worktrees\"]\n";
        std::fs::write(world.at("policies/policy.toml"), policy).unwrap();
        let put = |name: &str, text: &str| {
            let path = world.base().join("ws").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("AGENTS.md", "old\n");
        put(".github/workflows/ci.yml", "on: push\n");
        git(&world, &["init", "-q", "-b", "work"]);
        git(&world, &["add", "--all"]);
        git(&world, &["commit", "-qm", "the operator's"]);
        if is_root() && who != As::Root {
            world.give_away();
        }
        let ended = world.exec(&["--agent", "named"], "git log --format=%B");
        assert!(ended.stdout.contains("git worktree add ~/NAME COMMIT"), "{ended:?}");
        let script = "git worktree add -q sub; echo $?; ls -d sub; git worktree list | wc -l; git status --porcelain -uno
            for at in ~/one /tmp/two .git/trees/three .worktrees/four; do
                git worktree add -q $at -b ${at##*/} && cd $at && cat AGENTS.md .github/workflows/ci.yml &&
                    echo ${at##*/} >>file.txt && git commit -qam ${at##*/} && git status --porcelain && cd - >/dev/null
            done; git status --porcelain -uno";
        let ended = world.exec(&["--agent", "named"], script);
        let shown = format!("128\n1\n{}", "old\non: push\n".repeat(4));
        assert_eq!(ended.stdout, shown, "{who:?} {ended:?}");
        assert!(!world.base().join("ws/.worktrees").exists());
        let policy = world.at("policies/policy.toml");
        let import = ["git", "import", "--policy", &policy, "--yes", "--json"];
        let told = end(world.limited(&import).spawn().unwrap());
        let told: Value = serde_json::from_str(&told.stdout).unwrap();
        assert_eq!(told["branches"].as_array().unwrap().len(), 4, "{told}");

        // The operator changes such a file: its version before can be had there, too.
        put("AGENTS.md", "new\n");
        let script = "git commit -qam new && git worktree add -q --detach ~/old HEAD~1 && cat ~/old/AGENTS.md AGENTS.md
            git checkout -q HEAD~1 2>&1 | grep -c AGENTS.md; cat AGENTS.md; git checkout -qf main; git status --porcelain -uno";
        let ended = world.exec(&["--agent", "named"], script);
        assert_eq!(ended.stdout, "old\nnew\n1\nnew\n", "{who:?} {ended:?}");
    }
}

/// Has the policy allow history.
pub(super) fn with_history(world: &SandboxWorld) {
    let policy = format!("{POLICY}\n[git]\nhistory = \"allow\"\n");
    std::fs::write(world.at("policies/policy.toml"), policy).unwrap();
}

#[test]
fn history_is_in_the_private_repository_where_the_policy_allows_it() {
    for who in users() {
        let world = committed(who);
        std::fs::write(world.at("ws/file.txt"), "second\n").unwrap();
        git(&world, &["commit", "-qam", "second"]);
        git(&world, &["config", "alias.evil", "!touch evil"]);
        if is_root() && who != As::Root {
            world.give_away();
        }
        with_history(&world);
        let head = git(&world, &["rev-parse", "HEAD"]);
        let script = "git log --format=%an:%s; git rev-parse HEAD~1; git status --porcelain; \
            git show HEAD~2:hidden/file HEAD~1:password.txt; git ls-files; \
            git config --get alias.evil; git for-each-ref --format='%(refname)' refs/heads; \
            echo more >>file.txt && git commit -qam more && \
            git checkout -qb amended HEAD~1 && echo a >a.txt && git add a.txt && \
            git commit -q --amend -m amended";
        let ended = world.exec(&["--json"], script);
        let shown = format!(
            "portcullis:Files that the policy shows at the start of the session\nn:second\n\
             n:the operator's\n{head}\nhidden\nit is hunter2, really\n\
             dir/inner.txt\nfile.txt\nfixed.txt\npassword.txt\nrefs/heads/main\n"
        );
        assert_eq!((ended.code, &ended.stdout), (0, &shown), "{who:?} {ended:?}");
        assert!(ended.stderr.contains("`[git] history = \"allow\"`"), "{ended:?}");
        let records = world.records();
        let start = records.iter().find(|record| record["kind"] == "start").unwrap();
        let fact =
            serde_json::json!({ "commit": head, "branch": "refs/heads/work", "history": true });
        assert_eq!(start["facts"]["git"], fact, "{start}");

        let policy = world.at("policies/policy.toml");
        let import = ["git", "import", "--policy", &policy, "--yes", "--json"];
        let ended = end(world.limited(&import).spawn().unwrap());
        let told: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(ended.code, 0, "{told} {}", ended.stderr);
        for (branch, changes) in [("main", "M\tfile.txt"), ("amended", "A\ta.txt")] {
            let name = told["branches"].as_array().unwrap().iter();
            let mut name = name.map(|one| said(one, "ref")).filter(|name| name.ends_with(branch));
            let name = name.next().unwrap();
            assert_eq!(git(&world, &["rev-parse", &format!("{name}~1")]), head, "{branch}");
            let diff = ["diff-tree", "-r", "--no-commit-id", "--name-status", name];
            assert_eq!(git(&world, &diff), changes, "{branch}");
        }
    }
}

#[test]
fn a_history_that_borrows_objects_of_another_repository_is_not_copied() {
    let world = committed(users()[0]);
    with_history(&world);
    let objects = world.base().join("ws/.git/objects");
    std::fs::rename(&objects, world.at("lender")).unwrap();
    std::fs::create_dir_all(objects.join("info")).unwrap();
    std::fs::write(objects.join("info/alternates"), world.at("lender")).unwrap();
    if is_root() {
        world.give_away();
    }
    git(&world, &["log"]);
    let ended =
        world.exec(&[], "git log --format=%an; git fsck --strict && git status --porcelain");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "portcullis\n"), "{ended:?}");
    assert!(ended.stderr.contains("could not be copied"), "{ended:?}");
}

/// The rest of git's list after its last name was taken for the workspace's root.
#[test]
fn lint_said_that_rules_hide_the_root_where_they_hide_no_file() {
    let world = committed(users()[0]);
    let policy = world.at("policies/narrow.toml");
    let shown =
        "schema = 1\nname = \"narrow\"\nversion = 1\n[allowedPaths]\nread = [\"*\", \"*/**\"]\n";
    std::fs::write(&policy, shown).unwrap();
    let args = ["policy", "lint", &policy, "--workspace", &world.at("ws")];
    let told = end(world.limited(&args).spawn().unwrap());
    assert!(told.code == 0 && !told.stderr.contains("rules hide"), "{told:?}");
    let told = end(world.limited(&[&args[..], &["--json"]].concat()).spawn().unwrap());
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["trackedHidden"], serde_json::json!({ "count": 0, "paths": [] }));
}

#[test]
fn lint_lists_tracked_files_that_rules_hide() {
    let world = committed(users()[0]);
    let lint = || {
        let (policy, ws) = (world.at("policies/policy.toml"), world.at("ws"));
        let args = ["policy", "lint", &policy, "--workspace", &ws, "--json"];
        let ended = end(world.limited(&args).spawn().unwrap());
        let told: Value = serde_json::from_str(&ended.stdout).unwrap();
        let findings = told["findings"].as_array().unwrap().iter();
        let history = findings.filter(|finding| finding["id"] == "git-history").cloned();
        (told["trackedHidden"].clone(), history.collect::<Vec<_>>())
    };
    let hidden = serde_json::json!({ "count": 1, "paths": ["hidden/file"] });
    assert_eq!(lint(), (hidden.clone(), Vec::new()));
    with_history(&world);
    let (tracked, history) = lint();
    assert_eq!((tracked, history.len()), (hidden, 1));
    assert!(said(&history[0], "message").contains("`hidden/file`"), "{history:?}");
}
