//! The git repository that programs have instead of the workspace's.

use super::*;

/// Git in the workspace, from outside, with no configuration but its own.
pub(super) fn git(place: &Place, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-C", &place.at("ws"), "-c", "user.name=n", "-c", "user.email=n@example.org"]);
    command.args(["-c", "safe.directory=*"]).args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A workspace with a repository that has all that the policy hides.
pub(super) fn committed(who: As) -> Place {
    let place = Place::mounted(who);
    git(&place, &["init", "-q", "-b", "work"]);
    git(&place, &["add", "--all"]);
    git(&place, &["commit", "-qm", "the operator's"]);
    if is_root() && who != As::Root {
        place.give_away();
    }
    place
}

#[test]
fn a_private_repository_has_what_the_policy_shows() {
    for who in users() {
        let place = committed(who);
        let head = git(&place, &["rev-parse", "HEAD"]);
        let script = "git status --porcelain; git log --format=%an:%s; git ls-files; \
            git show HEAD:password.txt | sed 's/secret:[^]]*/secret/'; git show HEAD:hidden/file 2>&1 | grep -c '^fatal'; \
            git cat-file --batch-all-objects --batch | grep -a -c -e hunter2 -e operator";
        let ended = place.exec(&[], script);
        let shown = "portcullis:Files that the policy shows at the start of the session\n\
            dir/inner.txt\nfile.txt\nfixed.txt\npassword.txt\nit is [portcullis-secret], really\n1\n0\n";
        assert_eq!(ended.stdout, shown, "{who:?} {ended:?}");
        assert!(ended.stderr.contains("git repository of their own"), "{ended:?}");

        // What is committed stays there, and is there again.
        let script = "echo more >>file.txt && git commit -qam more && git status --porcelain";
        let ended = place.exec(&[], script);
        assert_eq!((ended.code, ended.stdout.as_str()), (0, ""), "{ended:?}");
        assert!(!ended.stderr.contains("git repository"), "{ended:?}");
        let ended = place.exec(&[], "git log --format=%an:%s -1");
        assert_eq!(ended.stdout, "agent:more\n", "{ended:?}");
        assert_eq!(git(&place, &["rev-parse", "HEAD"]), head);
        assert_eq!(git(&place, &["status", "--porcelain"]), "M file.txt");
        let records = place.records();
        let about = records.iter().map(|record| said(record, "path"));
        assert_eq!(about.filter(|path| path.starts_with(".git")).count(), 0);
        let start = records.iter().find(|record| record["kind"] == "start").unwrap();
        assert_eq!(start["facts"]["scratch"]["repositories"], true, "{start}");
    }
}

#[test]
fn a_repository_that_was_not_finished_is_made_anew() {
    let place = committed(users()[0]);
    let ended = place.exec(&[], "touch .git/portcullis-unfinished && rm .git/HEAD");
    assert_eq!(ended.code, 0, "{ended:?}");
    let ended = place.exec(&[], "git log --format=%an && ls .git/portcullis-unfinished");
    assert_eq!((ended.code, ended.stdout.as_str()), (2, "portcullis\n"), "{ended:?}");
}

/// It was made for minutes, whatever `--timeout` said.
#[test]
fn a_repository_that_takes_long_held_up_a_command_with_a_timeout() {
    let place = committed(users()[0]);
    for number in 0..12 {
        let file = std::fs::File::create(place.at(&format!("ws/large{number}"))).unwrap();
        file.set_len(250 << 20).unwrap();
    }
    let args = ["exec", "--timeout", "1s", "--", "echo", "it ran"];
    let ended = end(place.limited(&args).spawn().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (124, ""), "{ended:?}");
    assert!(ended.stderr.contains("was not started"), "{ended:?}");
}

#[test]
fn hooks_of_a_private_repository_run_in_the_sandbox_alone() {
    let place = committed(users()[0]);
    let hook = "printf '#!/bin/sh\\ncat /proc/self/status >made\\n' >.git/hooks/post-commit && \
        chmod +x .git/hooks/post-commit && git config core.fsmonitor 'touch fsmonitor' && \
        git commit -q --allow-empty -m one && grep -c '^Seccomp:.2' made && rm -f made fsmonitor";
    let ended = place.exec(&[], hook);
    assert_eq!(ended.stdout, "1\n", "{ended:?}");
    git(&place, &["status"]);
    git(&place, &["commit", "-q", "--allow-empty", "-m", "outside"]);
    assert!(!place.base().join("ws/made").exists() && !place.base().join("ws/fsmonitor").exists());
}

#[test]
fn the_policy_may_show_the_workspaces_repository() {
    let place = committed(users()[0]);
    let policy = format!("{POLICY}\n[git]\nrepository = \"workspace\"\n");
    std::fs::write(place.at("policies/policy.toml"), policy).unwrap();
    std::fs::write(place.at("ws/fresh.txt"), "fresh\n").unwrap();
    let script = "git() { command git -c safe.directory='*' \"$@\"; }; git log --format=%s; \
        git status --short; echo more >>file.txt; git diff --stat file.txt | tail -1";
    let ended = place.exec(&[], script);
    let shown = "the operator's\n D hidden/file\n M password.txt\n?? fresh.txt\n 1 file changed, 1 insertion(+)\n";
    assert_eq!(ended.stdout, shown, "{ended:?}");
}

#[test]
fn without_a_repository_in_the_workspace_none_is_made() {
    let place = Place::mounted(users()[0]);
    let ended =
        place.exec(&[], "ls -A | grep -c git; git init -q && git status --porcelain | wc -l");
    assert_eq!(ended.stdout, "0\n4\n", "{ended:?}");
    assert!(!place.base().join("ws/.git").exists());
}
