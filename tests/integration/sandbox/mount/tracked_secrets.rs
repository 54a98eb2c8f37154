//! Tracked files with secrets, which git removes and makes anew.

use std::{os::unix::fs::PermissionsExt as _, path::PathBuf};

use super::{
    repository::{committed, git_in},
    *,
};

const SECRET: &str = "first\nit is hunter2, really\nlast\n";

/// A workspace with a repository that has such a file, which only its owner may read.
fn tracked() -> SandboxWorld {
    let world = committed(users()[0]);
    let path = world.at("ws/password.txt");
    std::fs::write(&path, SECRET).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    git_in(&world.at("ws"), &["commit", "-qam", "lines"]);
    world
}

impl SandboxWorld {
    fn password(&self) -> String {
        std::fs::read_to_string(self.at("ws/password.txt")).unwrap_or_default()
    }

    /// Runs a script, without a denial in its records; returns its output.
    fn without_denials(&self, script: &str) -> String {
        let ended = self.exec(&[], &format!("set -e; {script}"));
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.stderr.contains("no denials"), "{ended:?}");
        assert!(!ended.stdout.contains("hunter2"), "{ended:?}");
        ended.stdout
    }
}

/// Git removed the file, its new content was refused, and git ended with 0.
#[test]
fn git_lost_tracked_files_with_a_secret() {
    let world = tracked();
    let edited = SECRET.replace("last", "end");
    let steps: [(&str, &str); 7] = [
        (
            "printf '%s\n' \"$(sed s/last/end/ password.txt)\" >password.txt; \
          git status --porcelain",
            &edited,
        ),
        ("git stash -q", SECRET),
        ("git stash pop -q; git commit -qam end", &edited),
        ("git checkout -q HEAD~1; git status --porcelain", SECRET),
        (
            "git checkout -qb other; echo x >new.txt; git add new.txt; git commit -qm other; git rebase -q main",
            &edited,
        ),
        ("git reset -q --hard HEAD~2", SECRET),
        ("git rm -q password.txt; git commit -qm without; git checkout -q main", &edited),
    ];
    let script: String = steps
        .iter()
        .enumerate()
        .map(|(at, (step, _))| {
            format!("{step}; cp password.txt .git/{at}; git status --porcelain -uno;")
        })
        .collect();
    let told = world.without_denials(&script);
    assert_eq!(told, " M password.txt\n M password.txt\n", "{told}");
    for (at, (step, content)) in steps.iter().enumerate() {
        let ended =
            world.exec(&[], &format!("sed 's/.portcullis-secret[^]]*]/hunter2/' .git/{at}"));
        assert_eq!(ended.stdout, *content, "{step} {ended:?}");
    }
    assert_eq!(world.password(), edited);
    let mode = std::fs::metadata(world.at("ws/password.txt")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Each new file's record names the backup that has its secret.
    let records = world.records();
    let backups: Vec<_> = records.iter().map(|record| said(record, "backup")).collect();
    let from = records.iter().filter_map(|record| record["facts"]["secretsFrom"].as_str());
    let from: Vec<_> = from.collect();
    assert_eq!(from.len(), 6, "{from:?}");
    assert!(from.iter().all(|one| backups.contains(one)), "{from:?}");
}

/// A rename has no backup, so the file had no version under its old name.
#[test]
fn git_lost_renamed_files_with_a_secret() {
    let world = tracked();
    let path = world.at("ws/dir/password.txt");
    std::fs::write(&path, SECRET).unwrap();
    git_in(&world.at("ws"), &["add", "dir/password.txt"]);
    git_in(&world.at("ws"), &["commit", "-qm", "directory"]);
    let script = "git mv password.txt moved.txt; git mv dir two; git mv two three
        git commit -qam moved; git checkout -q HEAD~1; git status --porcelain
        git mv password.txt moved.txt; git stash -q; git status --porcelain";
    assert_eq!(world.without_denials(script), "");
    assert_eq!(world.password(), SECRET);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), SECRET);
    assert!(!world.base().join("ws/three").exists());
}

/// A name that the agent may not read is no source of secrets.
#[test]
fn a_secret_does_not_come_from_a_name_that_is_not_read() {
    let world = tracked();
    let policy = world.at("policies/policy.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    let rule = "[[rules]]\nid = \"drop\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"drop/**\"]\n";
    std::fs::write(&policy, text + rule).unwrap();
    let script = "refused() { cp .git/shown $1 2>/dev/null && echo stored; }
        mkdir drop; cp password.txt .git/shown; mv password.txt drop/; rm drop/password.txt
        refused password.txt; refused moved.txt";
    let ended = world.exec(&[], script);
    assert_eq!(ended.stdout, "", "{ended:?}");
    assert!(!world.base().join("ws/drop/password.txt").exists(), "{ended:?}");
    assert_eq!(world.password(), "", "{ended:?}");
}

/// A version before the last one has the secret.
#[test]
fn a_version_in_which_the_secret_was_left_out_can_be_left_again() {
    let world = tracked();
    let script = "grep -v portcullis password.txt >.git/new; cat .git/new >password.txt; \
        git commit -qam dropped; git checkout -q HEAD~1; git status --porcelain";
    assert_eq!(world.without_denials(script), "");
    assert_eq!(world.password(), SECRET);
}

#[test]
fn undo_puts_back_what_git_made_anew() {
    let world = tracked();
    let dropped = "grep -v portcullis password.txt >.git/new; cat .git/new >password.txt; \
        git commit -qam dropped";
    for script in ["git checkout -q HEAD~1; git checkout -q main", "git checkout -q HEAD~1"] {
        let ended = world.exec(&[], &format!("{dropped}; {script}"));
        assert_eq!(ended.code, 0, "{ended:?}");
        let policy = world.at("policies/policy.toml");
        let undo = ["undo", "--session", "last", "--policy", &policy, "--yes"];
        let ended = end(world.limited(&undo).spawn().unwrap());
        assert_eq!((ended.code, world.password().as_str()), (0, SECRET), "{ended:?}");
        let mode = std::fs::metadata(world.at("ws/password.txt")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        world.exec(&[], "git reset -q --hard $(git rev-list --max-parents=0 HEAD)");
    }
}

/// A secret comes back at its own path, in its own line, and in this session alone.
#[test]
fn a_removed_secret_goes_nowhere_else() {
    let world = tracked();
    let script = "cp password.txt .git/shown; rm password.txt
        refused() { cp .git/text $1 2>/dev/null && cat $1 && echo stored; }
        cp .git/shown .git/text; refused other.txt; refused dir/password.txt
        mkdir password.d; refused password.d/password.txt; rmdir password.d
        sed 's/it is/it was/' .git/shown >.git/text; refused password.txt
        sed 's/, really//' .git/shown >.git/text; refused password.txt
        cat .git/shown .git/shown >.git/text; refused password.txt
        sed 's/secret:password/secret:passwort/' .git/shown >.git/text; refused password.txt
        sed 's/first/hunter3/' .git/shown >.git/text; refused password.txt
        cp .git/shown password.txt && cp password.txt .git/again && cmp .git/shown .git/again && echo back";
    let ended = world.exec(&[], script);
    assert_eq!(ended.stdout, "back\n", "{ended:?}");
    let denials = world.records();
    let denials = denials.iter().filter(|record| said(record, "decision") == "deny");
    assert_eq!(denials.count(), 8, "{ended:?}");
    assert_eq!(world.password(), SECRET);
    let files = walk(&world.base().join("ws"));
    let has_secret = |path: &PathBuf| {
        let text = std::fs::read(path).unwrap_or_default();
        path.is_file() && String::from_utf8_lossy(&text).contains("hunter")
    };
    let found: Vec<_> = files.into_iter().filter(has_secret).collect();
    assert_eq!(found, [world.base().join("ws/password.txt")]);

    // Another session did not remove it.
    assert_eq!(world.exec(&[], "rm password.txt").code, 0);
    let ended = world.exec(&[], "cp .git/shown password.txt");
    assert!(ended.stderr.contains("secrets.placeholder"), "{ended:?}");
    assert!(!world.base().join("ws/password.txt").exists());
}
