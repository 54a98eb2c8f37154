//! Git repositories: the workspace's own is not shown, and programs have a private one.

use std::{fs, path::Path, process::Command};

use crate::rig::{ALL, Rig, with};

/// Runs git in the workspace, from outside.
fn git(root: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(["-c", "user.name=n", "-c", "user.email=n@example.org"]);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Creates a repository with a secret in its history, one in a subdirectory, and a work
/// tree of it.
fn history(root: &Path) {
    fs::create_dir(root.join("sub")).unwrap();
    for at in [root.to_owned(), root.join("sub")] {
        git(&at, &["init", "-q", "-b", "main"]);
        fs::write(at.join("secret"), "the secret\n").unwrap();
        git(&at, &["add", "secret"]);
        git(&at, &["commit", "-qm", "first"]);
        fs::remove_file(at.join("secret")).unwrap();
        fs::write(at.join("file"), "one\n").unwrap();
    }
    git(root, &["worktree", "add", "-q", "tree"]);
    fs::remove_file(root.join("tree/secret")).unwrap();
}

const IDENTITY: &str = "git config user.name n; git config user.email n@example.org";

/// Returns the paths of all records.
fn paths(rig: &Rig<'_>) -> Vec<String> {
    let records = rig.records();
    records.iter().filter_map(|record| Some(record["path"].as_str()?.to_owned())).collect()
}

#[test]
fn the_workspaces_history_is_not_shown() {
    with(ALL, history, |rig| {
        let head = git(&rig.host("."), &["rev-parse", "HEAD"]);
        rig.sh("for at in . sub tree; do test ! -e $at/.git; ! ls -A $at | grep -x .git; \
             ! cat $at/.git/HEAD; ! cat $at/.git/config; ! git -C $at status; done")
            .ok();
        rig.sh(
            "ln -s .git link; ! ls link/; ! cat sub/../.git/HEAD; ! mv .git other; ! rm -r .git",
        )
        .ok();
        let (directory, name) = head.trim().split_at(2);
        let object = format!(".git/objects/{directory}/{name}");
        assert!(rig.host(&object).exists());
        rig.sh(&format!("! test -e {object}")).ok();
        // A moved directory takes its repository along, which stays hidden.
        rig.sh("mv sub moved; ! test -e moved/.git").ok();
        assert!(rig.host("moved/.git/HEAD").exists());
        let one = rig.sh(&format!(
            "git init -q .; {IDENTITY}; git add -A; git commit -qm own; git log --format=%s"
        ));
        assert_eq!(one.ok(), "own\n");
        assert_eq!(git(&rig.host("."), &["rev-parse", "HEAD"]), head);
        assert!(!paths(rig).iter().any(|path| path.split('/').any(|name| name == ".git")));
    });
}

#[test]
fn all_of_git_works_in_a_private_repository() {
    with(
        ALL,
        |_| {},
        |rig| {
            let said = rig.sh(&format!(
            "git init -q -b main; {IDENTITY}; echo one >a; mkdir d; echo two >d/b; git add .; \
             git commit -qm first; git checkout -qb side; echo more >>a; git commit -qam second; \
             git checkout -q main; echo x >c; git add c; git commit -qm third; \
             git merge -q -m merge side; echo y >>c; git stash -q; git stash pop -q; git checkout -q c; \
             git checkout -qb topic HEAD~1; echo z >e; git add e; git commit -qm fourth; \
             git rebase -q main; git checkout -q main; git diff-files; git gc -q; git fsck --no-dangling; \
             echo 'echo hook >>hooked' >.git/hooks/post-commit; chmod +x .git/hooks/post-commit; \
             git commit -q --allow-empty -m fifth; cat hooked; rm hooked .git/hooks/post-commit; git status --porcelain"
        ));
            assert_eq!(said.ok(), "hook\n");
            let said = rig.sh(
            "git worktree add -q tree topic; cat tree/.git | cut -c1-8; git -C tree log --format=%s -1; \
             echo t >tree/t; git -C tree add t; git -C tree commit -qm tree; mv tree moved; \
             git worktree repair moved 2>/dev/null; git -C moved log --format=%s -1; \
             git worktree remove moved; git -c protocol.file.allow=always clone -q . clone; \
             git -C clone log --format=%s -1; \
             git -c protocol.file.allow=always submodule add -q ./clone sub; cat sub/.git",
        );
            assert_eq!(said.ok(), "gitdir: \nfourth\ntree\nfifth\ngitdir: ../.git/modules/sub\n");
            assert!(!rig.host(".git").exists() && !rig.host("sub/.git").exists());
            assert_eq!(rig.read("a"), "one\nmore\n");
            assert!(!paths(rig).iter().any(|path| path.split('/').any(|name| name == ".git")));
        },
    );
}

#[test]
fn a_file_at_a_scratch_name_is_one_of_scratch() {
    with(
        ALL,
        |_| {},
        |rig| {
            rig.sh("mkdir d; echo one >d/.git; echo two >>d/.git; ls -A d | grep -x .git; \
             test \"$(cat d/.git)\" = \"$(printf 'one\\ntwo')\"; chmod 600 d/.git; \
             test $(stat -c %a d/.git) = 600; ! rmdir d; ! rmdir d/.git; ! mkdir d/.git; \
             ! ln d/.git d/link; mv d e; test \"$(head -1 e/.git)\" = one; \
             touch .git; mv e/.git .git; test \"$(tail -1 .git)\" = two; rmdir e")
                .ok();
            let script = "import os\nf = os.open('.git', os.O_RDONLY)\nos.unlink('.git')\n\
            print(os.read(f, 100), os.path.exists('.git'))\n\
            os.close(os.open('.git', os.O_CREAT | os.O_EXCL | os.O_WRONLY))\n\
            try: os.open('.git', os.O_CREAT | os.O_EXCL | os.O_WRONLY)\n\
            except OSError as error: print(error.errno)\n\
            os.mkdir('d')\nos.mkdir('d/.git')\n\
            for old, new in [('.git', 'd/.git'), ('d/.git', '.git')]:\n  \
            try: os.rename(old, new)\n  except OSError as error: print(error.errno)\n\
            try: os.unlink('d/.git')\nexcept OSError as error: print(error.errno)\n\
            os.rmdir('d/.git')\nos.unlink('.git')";
            assert_eq!(rig.python(script).ok(), "b'one\\ntwo\\n' False\n17\n21\n20\n21\n");
            // The kernel reports the close of a file after the program has ended.
            rig.comes_to_count(0, 0);
            assert!(!rig.host(".git").exists() && !rig.host("d/.git").exists());
        },
    );
}
