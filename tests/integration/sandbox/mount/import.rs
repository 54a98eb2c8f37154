//! `portcullis git import`: the commits of a private repository in the operator's.

mod advice;
mod attacks;
mod bases;
mod earlier;
mod merges;
mod work_trees;

use super::{
    repository::{committed, git},
    *,
};

/// Result of an import.
struct Imported {
    code: i32,
    told: Value,
    stderr: String,
}

impl Imported {
    /// The names of the branches.
    fn branches(&self) -> Vec<&str> {
        let branches = self.told["branches"].as_array().unwrap().iter();
        branches.map(|branch| said(branch, "ref").rsplit('/').next().unwrap()).collect()
    }

    /// The reasons for which the commit with this subject is refused, with the paths.
    fn refused(&self, subject: &str) -> Vec<(String, String)> {
        let commits = self.told["commits"].as_array().unwrap();
        let one = commits.iter().find(|one| one["subject"] == subject);
        let why = one.unwrap_or_else(|| panic!("{subject}: {}", self.told))["refused"].as_array();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let why = why.unwrap_or_else(|| panic!("{subject}: {}", self.told)).iter();
        why.map(|why| (text(&why["path"]), text(&why["reason"]))).collect()
    }
}

impl SandboxWorld {
    /// `portcullis git import OPTIONS…`.
    fn end_import(&self, options: &[&str]) -> AgentOutput {
        let policy = self.at("policies/policy.toml");
        let command = ["git", "import", "--policy", &policy];
        end(self.limited(&[&command, options].concat()).spawn().unwrap())
    }

    /// Has a session add a line to a file and commit that; its identifier.
    fn commit_as(&self, text: &str) -> String {
        let ended =
            self.exec(&["--json"], &format!("echo {text} >>file.txt && git commit -qam {text}"));
        let summary = ended.stderr.lines().find(|line| line.starts_with('{'));
        let summary: Value = serde_json::from_str(summary.unwrap()).unwrap();
        assert_eq!(ended.code, 0, "{ended:?}");
        said(&summary, "session").to_owned()
    }

    /// The same as one object.
    fn import(&self, options: &[&str]) -> Imported {
        let AgentOutput { code, stdout, stderr } =
            self.end_import(&[options, &["--json"]].concat());
        let told = serde_json::from_str(&stdout);
        let told = told.unwrap_or_else(|error| panic!("{error}: {stdout} {stderr}"));
        Imported { code, told, stderr }
    }

    /// All that an import must not touch: refs but its own, and files but objects and its refs.
    fn files_beside(&self) -> Vec<(String, Vec<u8>)> {
        self.files_beside_in("ws/.git")
    }

    /// The same of the repository whose directory this is.
    fn files_beside_in(&self, directory: &str) -> Vec<(String, Vec<u8>)> {
        let git = self.base().join(directory);
        let is_kept = |path: &Path| {
            let name = path.strip_prefix(&git).unwrap();
            !name.starts_with("objects") && !name.starts_with("refs/portcullis")
        };
        let files = walk(&git).into_iter().filter(|path| path.is_file() && is_kept(path));
        let mut files: Vec<_> =
            files.map(|path| (path.display().to_string(), std::fs::read(path).unwrap())).collect();
        files.sort();
        files
    }
}

/// Commits a tree that is HEAD's with one more entry as a branch of that name.
const EVIL: &str = "b=$(echo x | git hash-object -w --stdin); evil() { t=$( (git ls-tree HEAD; \
    printf \"$2 $3 %s\\t$4\\n\" ${5:-$b}) | git mktree --missing) && \
    c=$(git commit-tree -p HEAD -m \"$1\" $t) && git update-ref refs/heads/$1 $c; }; ";

#[test]
fn commits_come_back_with_secrets_in_place_and_hidden_files() {
    for who in users() {
        let world = committed(who);
        let head = git(&world, &["rev-parse", "HEAD"]);
        let before = world.files_beside();
        let script = "git mv dir/inner.txt moved.txt && chmod +x file.txt && \
            printf '\\000\\001' >binary && ln -s file.txt link && git add -A && git commit -qm first && \
            echo more >>password.txt && git commit -qam second && \
            git checkout -qb side && echo s >side.txt && git add -A && git commit -qm side && \
            git checkout -q main && git rm -q link && git commit -qm main && \
            git merge -q --no-edit side && git cat-file -p HEAD | grep -c ^parent";
        let ended = world.exec(&["--json"], script);
        assert_eq!((ended.code, ended.stdout.as_str()), (0, "2\n"), "{who:?} {ended:?}");
        let summary = ended.stderr.lines().find(|line| line.starts_with('{')).unwrap();
        let summary: Value = serde_json::from_str(summary).unwrap();
        let session = said(&summary, "session").to_owned();
        let command = format!("portcullis git import --session {session} ");
        assert!(said(&summary, "import").starts_with(&command), "{summary}");

        let dry = world.import(&["--dry-run"]);
        assert_eq!((dry.code, &dry.told["imported"]), (0, &Value::Bool(false)), "{}", dry.told);
        assert!(!world.base().join("ws/.git/refs/portcullis").exists());

        let imported = world.import(&["--session", &session[..8], "--yes"]);
        assert_eq!(imported.code, 0, "{who:?} {} {}", imported.told, imported.stderr);
        assert_eq!(imported.told["base"], head.as_str());
        let name = format!("refs/portcullis/{session}/main");
        let tip = git(&world, &["rev-parse", &name]);
        assert_eq!(dry.told["branches"], imported.told["branches"]);
        let subjects = git(&world, &["log", "--topo-order", "--format=%an:%s", &name]);
        assert_eq!(
            subjects,
            "agent:Merge branch 'side'\nagent:side\nagent:main\nagent:second\nagent:first\nn:the operator's"
        );
        let diff = git(&world, &["diff-tree", "-r", "--no-renames", "--name-status", &head, &name]);
        let expected =
            "A\tbinary\nD\tdir/inner.txt\nM\tfile.txt\nA\tmoved.txt\nM\tpassword.txt\nA\tside.txt";
        assert_eq!(diff, expected);
        let show = |path: &str| git(&world, &["show", &format!("{name}:{path}")]);
        assert_eq!(show("password.txt"), "it is hunter2, really\nmore");
        assert_eq!(show("hidden/file"), "hidden");
        assert!(git(&world, &["ls-tree", &name, "file.txt"]).starts_with("100755"));
        let body = git(&world, &["log", "-1", "--format=%b", &name]);
        assert!(body.starts_with(&format!("Portcullis-Session: {session}\n")), "{body}");
        git(&world, &["fsck", "--strict"]);
        assert_eq!(before, world.files_beside());
        assert_eq!(git(&world, &["for-each-ref", "--format=%(refname)"]).lines().count(), 3);

        let records = world.records();
        let noted: Vec<_> =
            records.iter().filter(|record| said(record, "op") == "commit").collect();
        assert_eq!(noted.len(), 5, "{noted:?}");
        assert_eq!(noted[4]["facts"]["commit"], tip.as_str());
        let decided = |record: &&Value| {
            record["facts"]["import"]["session"] == session.as_str()
                && said(record, "decision") == "allow"
        };
        assert!(records.iter().filter(decided).count() > 10);
        // The same again is the same.
        assert_eq!(world.import(&["--yes"]).told["branches"], imported.told["branches"]);
        let left = std::fs::read_dir(world.at("state")).unwrap();
        let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(left.filter(|name| name.starts_with("git-")).count(), 0);
    }
}

#[test]
fn a_commit_that_the_policy_denies_is_refused_and_what_builds_on_it() {
    let world = committed(users()[0]);
    let script = "echo good >good.txt && git add -A && git commit -qm good; \
        b=$(echo x | git hash-object -w --stdin); \
        git update-index --cacheinfo 100644,$b,fixed.txt && git commit -qm denied; \
        echo late >late.txt && git add late.txt && git commit -qm late; \
        export GIT_INDEX_FILE=.git/other; git read-tree HEAD~3; \
        git update-index --add --cacheinfo 100644,$b,hidden/file; \
        git update-ref refs/heads/hidden $(git commit-tree -p HEAD~3 -m hidden $(git write-tree))";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{} {}", imported.told, imported.stderr);
    let denied = imported.refused("denied");
    assert_eq!(denied[0].0, "fixed.txt", "{denied:?}");
    assert!(denied[0].1.contains("`fixed`"), "{denied:?}");
    let late = imported.refused("late");
    assert_eq!(late, [(String::new(), "it builds on a commit that is refused".to_owned())]);
    let hidden = imported.refused("hidden");
    assert_eq!(hidden[0].0, "hidden/file", "{hidden:?}");
    let branches = imported.told["branches"].as_array().unwrap();
    let main = branches.iter().find(|branch| said(branch, "ref").ends_with("/main")).unwrap();
    assert_eq!(main["partial"], true, "{main}");
    let name = said(main, "ref");
    assert_eq!(git(&world, &["log", "-1", "--format=%s", name]), "good");
    let records = world.records();
    let denials =
        records.iter().filter(|r| said(r, "rule") == "fixed" && said(r, "decision") == "deny");
    assert!(denials.count() > 0);
}

#[test]
fn a_placeholder_in_another_file_is_refused() {
    let world = committed(users()[0]);
    let script = "b=$(git rev-parse HEAD:password.txt); \
        git update-index --add --cacheinfo 100644,$b,stolen.txt && git commit -qm stolen";
    world.exec(&[], script);
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{}", imported.told);
    let stolen = imported.refused("stolen");
    assert_eq!(stolen[0].0, "stolen.txt");
    assert!(stolen[0].1.contains("placeholder"), "{stolen:?}");
    assert_eq!(imported.told["branches"], serde_json::json!([]));
    assert!(!world.base().join("ws/.git/refs/portcullis").exists());
}

#[test]
fn what_was_not_committed_at_the_start_is_told_and_not_overwritten() {
    let world = committed(users()[0]);
    std::fs::write(world.at("ws/file.txt"), "changed by the operator\n").unwrap();
    let script = "echo more >>file.txt && git commit -qam dirty; echo x >>dir/inner.txt; git commit -qam clean";
    world.exec(&[], script);
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{}", imported.told);
    let dirty = imported.refused("dirty");
    assert!(dirty[0].1.contains("not committed when the session began"), "{dirty:?}");
}

#[test]
fn trees_that_lead_elsewhere_are_refused() {
    let world = committed(users()[0]);
    let names =
        [".git", ".GIT", "git~1", "GIT~1", "..", ".", ".git ", ".git.", ".git::x", ".g\u{200c}it"];
    let mut script = EVIL.to_owned();
    for (at, name) in names.iter().enumerate() {
        script += &format!("evil n{at} 100644 blob '{name}'; ");
        script += &format!(
            "t=$(printf '100644 blob %s\\tconfig\\n' $b | git mktree); \
            evil d{at} 040000 tree '{name}' $t; "
        );
    }
    script += "l=$(printf /etc/passwd | git hash-object -w --stdin); evil absolute 120000 blob l $l; \
        l=$(printf ../../x | git hash-object -w --stdin); evil climbs 120000 blob l $l; \
        l=$(printf file.txt | git hash-object -w --stdin); evil modules 120000 blob .gitmodules $l; \
        evil submodule 160000 commit sub $(git rev-parse HEAD); \
        t=$( (git ls-tree HEAD | grep -v dir; printf '120000 blob %s\\tdir\\n' $l) | git mktree); \
        git update-ref refs/heads/swapped $(git commit-tree -p HEAD -m swapped $t); \
        git update-ref refs/heads/escape $(git commit-tree -p HEAD -m \"$(printf 'a\\033[2Jb')\" HEAD^{tree})";
    let ended = world.exec(&[], &script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{} {}", imported.told, imported.stderr);
    for at in 0..names.len() {
        for kind in ["n", "d"] {
            assert!(!imported.refused(&format!("{kind}{at}")).is_empty());
        }
    }
    for subject in ["absolute", "climbs", "modules", "submodule"] {
        assert!(!imported.refused(subject).is_empty(), "{subject}");
    }
    // A link that replaces a directory is one, within the workspace.
    assert_eq!(imported.branches(), ["swapped"], "{}", imported.told);
    assert!(imported.stderr.chars().all(|c| c == '\n' || !c.is_control()));
    git(&world, &["fsck", "--strict"]);
}

#[test]
fn nothing_of_a_private_repository_runs_or_is_believed() {
    let world = committed(users()[0]);
    let script = "echo one >one.txt && git add -A && git commit -qm one && \
        echo two >two.txt && git add -A && git commit -qm two; \
        git replace HEAD~1 HEAD; mkdir -p .git/info; \
        echo \"$(git rev-parse HEAD)\" >.git/info/grafts; echo /etc >.git/commondir; \
        echo /proc/1/root >.git/objects/info/alternates; echo HEAD >.git/shallow; \
        printf '#!/bin/sh\\ntouch \"$PWD/ran\"\\n' >.git/hooks/reference-transaction; \
        chmod +x .git/hooks/*; \
        mkdir .git/rebase-merge && echo 'exec touch ran' >.git/rebase-merge/git-rebase-todo; \
        mkdir -p .git/info && echo '* filter=x diff=x' >.git/info/attributes; \
        printf '[core]\\nfsmonitor = touch ran\\nhooksPath = hooks\\n\
            [filter \"x\"]\\nclean = touch ran\\nsmudge = touch ran\\n\
            [diff \"x\"]\\ntextconv = touch ran\\n[include]\\npath = /etc/passwd\\n[broken' \
            >.git/config; true";
    world.exec(&[], script);
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 0, "{} {}", imported.told, imported.stderr);
    let name = said(&imported.told["branches"][0], "ref").to_owned();
    assert_eq!(git(&world, &["log", "--format=%s", &name]), "two\none\nthe operator's");
    assert_eq!(git(&world, &["show", &format!("{name}:one.txt")]), "one");
    assert!(walk(world.base()).iter().all(|path| !path.ends_with("ran")));
}

#[test]
fn an_object_with_another_content_is_refused() {
    let world = committed(users()[0]);
    let script = "echo good >good.txt && git add -A && git commit -qm good; \
        echo evil >other && o=$(git hash-object -w other) && g=$(git rev-parse HEAD:good.txt); \
        at() { echo .git/objects/$(echo $1 | cut -c1-2)/$(echo $1 | cut -c3-); }; \
        cp -f $(at $o) copy && rm -f $(at $g) && cp copy $(at $g)";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{}", imported.told);
    let why = imported.refused("good");
    assert!(why[0].1.contains("does not have the content"), "{why:?}");
}

#[test]
fn packed_refs_and_reftables_are_read() {
    let world = committed(users()[0]);
    let script =
        "echo x >x.txt && git add -A && git commit -qm x && git gc -q && git pack-refs --all";
    world.exec(&[], script);
    let imported = world.import(&["--yes"]);
    assert_eq!((imported.code, imported.told["commits"].as_array().unwrap().len()), (0, 1));
    let script = "rm -r .git/logs && git refs migrate --ref-format=reftable && echo y >y.txt && git add -A && git commit -qm y";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--dry-run"]);
    assert_eq!(imported.told["commits"][0]["subject"], "y", "{}", imported.told);
}

#[test]
fn a_million_branches_are_refused_in_time() {
    let world = committed(users()[0]);
    let script = "h=$(git commit-tree -p HEAD -m x HEAD^{tree}); \
        seq 1000000 | sed \"s,^,$h refs/heads/b,\" >.git/packed-refs && tail -1 .git/packed-refs";
    let ended = world.exec(&[], script);
    assert!(ended.stdout.ends_with("/b1000000\n"), "{ended:?}");
    let begun = std::time::Instant::now();
    let ended = world.end_import(&["--yes"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("more than 1000 branches"), "{ended:?}");
    assert!(begun.elapsed().as_secs() < 120);
    assert!(!world.base().join("ws/.git/refs/portcullis").exists());
}

#[test]
fn large_files_and_what_git_would_not_take_are_refused_by_themselves() {
    let world = committed(users()[0]);
    let script = EVIL.to_owned()
        + "evil large 100644 blob large $(head -c 100000000 /dev/zero | git hash-object -w --stdin); \
        m=$(printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = --upload-pack=touch\\n' | \
            git hash-object -w --stdin); evil modules 100644 blob .gitmodules $m; \
        a=$(head -c 5000 /dev/zero | tr '\\0' a | git hash-object -w --stdin); \
        evil attributes 100644 blob .gitattributes $a; evil good 100644 blob good.txt; c=HEAD; \
        for i in $(seq 20); do b=$( (head -c 300000 /dev/zero; echo $i) | git hash-object -w --stdin); \
            t=$( (git ls-tree HEAD; printf \"100644 blob $b\\tz\\n\") | git mktree); \
            c=$(git commit-tree -p $c -m delta $t); done; git update-ref refs/heads/deltas $c; \
        git repack -qad --depth=4000 --window=50";
    let ended = world.exec(&[], &script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{} {}", imported.told, imported.stderr);
    assert!(imported.refused("large")[0].1.contains("100000000 bytes"));
    assert_eq!(imported.refused("modules")[0].0, ".gitmodules");
    assert_eq!(imported.refused("attributes")[0].0, ".gitattributes");
    assert_eq!(imported.branches(), ["deltas", "good"]);
    git(&world, &["fsck", "--strict"]);
}

#[test]
fn limits_of_a_session_are_not_those_of_an_import() {
    let world = committed(users()[0]);
    let limits = format!("{POLICY}\n[limits]\noperationsPerSecond = 5\ndenials = 2\n");
    std::fs::write(world.at("policies/policy.toml"), limits).unwrap();
    let script = "for i in $(seq 50); do echo $i >f$i; done; git add -A && git commit -qm many; \
        b=$(git rev-parse HEAD:f1); for i in 1 2 3 4; do \
        git update-index --cacheinfo 100644,$b,fixed.txt && git commit -qm d$i && \
        git update-ref refs/heads/d$i HEAD && git reset -q HEAD~1; done";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{} {}", imported.told, imported.stderr);
    for subject in ["d1", "d2", "d3", "d4"] {
        assert!(imported.refused(subject)[0].1.contains("`fixed`"), "{}", imported.told);
    }
    assert!(imported.branches().contains(&"main"), "{}", imported.told);
}

#[test]
fn commits_of_sessions_that_follow_build_on_those_that_were_imported() {
    for takes_over in [true, false] {
        let world = committed(users()[0]);
        let one = world.commit_as("one");
        let first = world.import(&["--yes"]);
        assert_eq!(first.code, 0, "{}", first.told);
        if takes_over {
            git(&world, &["reset", "-q", &format!("refs/portcullis/{one}/main")]);
            assert_eq!(git(&world, &["status", "--porcelain"]), "");
        }
        let two = world.commit_as("two");
        let second = world.import(&["--session", &two, "--yes"]);
        assert_eq!(second.code, 0, "{} {}", second.told, second.stderr);
        let subjects = |session: &str| {
            git(&world, &["log", "--format=%s", &format!("refs/portcullis/{session}/main")])
        };
        assert_eq!(subjects(&two), "two\none\nthe operator's");
        assert_eq!(subjects(&one), "one\nthe operator's");
    }
}

#[test]
fn a_commit_is_imported_once() {
    let world = committed(users()[0]);
    let (one, two) = (world.commit_as("one"), world.commit_as("two"));
    let early = world.import(&["--session", &two, "--yes"]);
    assert_eq!(early.code, 1, "{}", early.told);
    assert!(early.refused("two")[0].1.contains("when the session began"), "{}", early.told);
    let first = world.import(&["--session", &one, "--yes"]);
    assert_eq!(first.code, 0, "{} {}", first.told, first.stderr);
    let records = world.records().len();
    let second = world.import(&["--session", &two, "--yes"]);
    assert_eq!(second.code, 0, "{} {}", second.told, second.stderr);
    assert_eq!(second.told["commits"][0]["known"], true, "{}", second.told);
    assert_eq!(second.told["branches"][0]["commit"], first.told["branches"][0]["commit"]);
    let records = world.records().split_off(records);
    assert!(records.iter().all(|record| said(record, "op") != "commit"));
}

#[test]
fn nothing_of_the_workspaces_repository_runs_or_leads_elsewhere() {
    let world = committed(users()[0]);
    let outside = world.at("outside");
    std::fs::create_dir(&outside).unwrap();
    world.exec(&[], "echo x >x.txt && git add -A && git commit -qm x");
    let repository = world.base().join("ws/.git");
    let hook = "#!/bin/sh\ntouch ran\n";
    for name in ["reference-transaction", "post-checkout", "pre-auto-gc"] {
        std::fs::write(repository.join("hooks").join(name), hook).unwrap();
    }
    let config = "[core]\nfsmonitor = touch ran\n[filter \"x\"]\nsmudge = touch ran\n[include]\npath = x\n[broken";
    std::fs::write(repository.join("config"), config).unwrap();
    // The directory in which the objects of the commit would be written.
    for byte in 0..256 {
        let at = repository.join(format!("objects/{byte:02x}"));
        if !at.exists() {
            std::os::unix::fs::symlink(&outside, at).unwrap();
        }
    }
    let import = || world.end_import(&["--yes"]);
    let ended = import();
    assert_eq!(ended.code, 1, "{ended:?}");
    for byte in 0..256 {
        let at = repository.join(format!("objects/{byte:02x}"));
        if at.is_symlink() {
            std::fs::remove_file(at).unwrap();
        }
    }
    std::os::unix::fs::symlink(&outside, repository.join("refs/portcullis")).unwrap();
    let ended = import();
    assert_eq!(ended.code, 1, "{ended:?}");
    std::fs::remove_file(repository.join("refs/portcullis")).unwrap();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    let ended = import();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("git reset refs/portcullis/"), "{ended:?}");
    assert!(walk(world.base()).iter().all(|path| !path.ends_with("ran")));
}

#[test]
fn without_a_yes_nothing_is_imported() {
    let world = committed(users()[0]);
    world.exec(&[], "echo x >x.txt && git add -A && git commit -qm x");
    let ended = world.end_import(&[]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("--yes"), "{ended:?}");
    assert!(!world.base().join("ws/.git/refs/portcullis").exists());
    let list = world.end_import(&["--list"]);
    assert_eq!((list.code, list.stdout.lines().count()), (0, 1), "{list:?}");
    let unknown = world.end_import(&["--session", "zz"]);
    assert_eq!(unknown.code, 1, "{unknown:?}");
}

#[test]
fn run_and_shell_say_at_the_end_how_to_import() {
    let world = committed(users()[0]);
    let policy = world.at("policies/policy.toml");
    let script = "echo x >x.txt && git add -A && git commit -qm x";
    for (script, commits) in [(script, true), ("git status", false)] {
        let command = ["run", "--policy", &policy, "--", "sh", "-c", script];
        let ended = end(world.limited(&command).spawn().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
        let records = world.records();
        let last = records.iter().rfind(|record| record["kind"] == "start").unwrap();
        let offer = format!("portcullis git import --session {} ", said(last, "session"));
        assert_eq!(ended.stderr.contains(&offer), commits, "{ended:?}");
    }
    let script = "echo y >y.txt && git add -A && git commit -qm y";
    world.shell_script(&[], script).sees("commits: portcullis git import --session ");
}
