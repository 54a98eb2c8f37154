//! Past attacks on `portcullis git import`.

use super::*;

impl SandboxWorld {
    /// Runs `sh -c SCRIPT` in the workspace, from outside.
    fn outside(&self, script: &str) {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(self.at("ws"));
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "n").env(format!("GIT_{who}_EMAIL"), "n@x");
        }
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        assert!(command.status().unwrap().success(), "{script}");
    }
}

/// An import waited for the other end of the pipe, for ten minutes.
#[test]
fn an_import_opens_no_pipe_in_the_repository() {
    for name in ["packed-refs", "objects/info/alternates", "objects/pack/pack-x.idx"] {
        let world = committed(users()[0]);
        world.commit_as("one");
        world.outside(&format!("mkdir -p .git/objects/info && mkfifo .git/{name}"));
        let ended = world.end_import(&["--dry-run"]);
        assert_eq!(ended.code, 1, "{name} {ended:?}");
        assert!(ended.stderr.contains(&format!(".git/{name}` is no regular file")), "{ended:?}");
    }
}

/// They were left to git.
#[test]
fn an_import_passed_over_files_of_the_repository_that_it_cannot_look_at() {
    for (name, script) in [
        ("packed-refs", "ln -s packed-refs .git/packed-refs"),
        ("objects/pack/loop.pack", "ln -s loop.pack .git/objects/pack/loop.pack"),
    ] {
        let world = committed(users()[0]);
        world.commit_as("one");
        world.outside(script);
        let ended = world.end_import(&["--dry-run"]);
        assert_eq!(ended.code, 1, "{name} {ended:?}");
        let told = format!(".git/{name}`: ");
        assert!(ended.stderr.contains("cannot look at `"), "{ended:?}");
        assert!(ended.stderr.contains(&told), "{ended:?}");
    }
}

/// An operator approved `ci/run.sh` without seeing that it is executable, and the log did not
/// record it either.
#[test]
fn permission_bits_of_commits_were_neither_asked_about_nor_on_record() {
    let world = committed(users()[0]);
    let rule = "\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\"]\n\
                paths = [\"ci/**\", \"file.txt\"]\n";
    let policy = world.at("policies/policy.toml");
    std::fs::write(&policy, format!("{POLICY}{rule}")).unwrap();
    let script = "b=$(printf '#!/bin/sh\\n' | git hash-object -w --stdin) && \
        git update-index --add --cacheinfo 100755,$b,ci/run.sh && \
        git update-index --chmod=+x file.txt && git commit -qm modes && \
        git update-index --cacheinfo 100755,$b,file.txt && git commit -qm content";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let command = ["git", "import", "--policy", &policy, "--yes", "--json"];
    let child = world.limited(&command).spawn().unwrap();
    let workspace = world.at("ws");
    let approve = |args: &[&str]| {
        let args = [&["approve", "--json", "--workspace", &workspace], args].concat();
        end(world.command(&args).spawn().unwrap())
    };
    let set = serde_json::json!({ "mode": "0755" });
    let mut last = String::new();
    for (path, attributes) in [("ci/run.sh", &set), ("file.txt", &set), ("file.txt", &Value::Null)]
    {
        let asked = loop {
            let list = serde_json::from_str::<Value>(&approve(&["--list"]).stdout);
            let asked = list.map(|list| list["waiting"][0].clone()).unwrap_or_default();
            if asked["id"].as_str().is_some_and(|id| id != last) {
                break asked;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!((said(&asked, "path"), &asked["attributes"]), (path, attributes), "{asked}");
        let is_shown = said(&asked, "change").contains("mode 0755 (executable)");
        assert_eq!(is_shown, attributes.is_object(), "{asked}");
        said(&asked, "id").clone_into(&mut last);
        assert_eq!(approve(&["--yes", &last]).code, 0);
    }
    let ended = end(child);
    assert_eq!(ended.code, 0, "{ended:?}");
    let records = world.records();
    let decided = records.iter().filter(|record| record["facts"]["import"]["commit"].is_string());
    let decided =
        decided.filter(|record| said(record, "decision") == "allow" && record["result"] == "ok");
    let facts: Vec<_> =
        decided.map(|record| (said(record, "path"), &record["facts"]["attributes"])).collect();
    let null = &Value::Null;
    assert_eq!(facts, [("ci/run.sh", &set), ("file.txt", &set), ("file.txt", null)]);
}

/// Git makes a link from what comes before the zero byte, which led out of the workspace.
#[test]
fn the_target_of_a_link_ended_for_git_at_a_zero_byte() {
    let world = committed(users()[0]);
    let mut script = EVIL.to_owned();
    for (name, target) in [("zero", "..\\000/x"), ("line", "file.txt\\n"), ("slash", "..\\134..")] {
        script += &format!(
            "l=$(printf '{target}' | git hash-object -w --stdin); evil {name} 120000 blob up $l; "
        );
    }
    assert_eq!(world.exec(&[], &script).code, 0);
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{}", imported.told);
    for name in ["zero", "line", "slash"] {
        let reason = imported.refused(name);
        assert!(reason[0].1.contains("control character"), "{reason:?}");
    }
    assert_eq!(imported.branches().len(), 0);
}

/// A zero-width space before the line was enough.
#[test]
fn trailers_behind_invisible_characters_passed_for_those_of_an_import() {
    let world = committed(users()[0]);
    let script = "for c in '\\342\\200\\213' '\\357\\273\\277' 'x\\342\\200\\250' ' \\342\\201\\240 '; do \
        git commit -q --allow-empty -m \"$(printf \"fix\\n\\n${c}Portcullis-Session: 0\")\" && \
        git branch b$((n = n + 1)) && git reset -q HEAD~1; done; \
        git commit -q --allow-empty -m 'portcullis: a subject'";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.branches(), ["main"], "{}", imported.told);
    let commits = imported.told["commits"].as_array().unwrap();
    let refused = commits.iter().filter(|one| one["refused"].is_array());
    assert_eq!(refused.count(), 4, "{}", imported.told);
}

/// Many terminals display it as a hyphen, but it was ignored as a character that is not displayed.
#[test]
fn trailers_with_a_soft_hyphen_passed_for_those_of_an_import() {
    let world = committed(users()[0]);
    let script = "for c in '\\302\\255' '\\357\\274\\215'; do \
        git commit -q --allow-empty -m \"$(printf \"fix\\n\\nPortcullis${c}Session: 0\")\" && \
        git branch b$((n = n + 1)) && git reset -q HEAD~1; done";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.branches().len(), 0, "{}", imported.told);
    let commits = imported.told["commits"].as_array().unwrap();
    assert_eq!(commits.len(), 2, "{}", imported.told);
    assert!(commits.iter().all(|one| one["refused"].is_array()), "{}", imported.told);
}

/// A removed link was called an empty file, a link in place of a file did not show what the file had,
/// and a file in place of a link looked new.
#[test]
fn questions_about_links_did_not_say_what_is_lost() {
    let world = committed(users()[0]);
    world.outside("ln -s file.txt one && ln -s file.txt two && git add -A && git commit -qm links");
    let rule = "\n[[rules]]\nid = \"careful\"\neffect = \"ask\"\noperations = [\"write\", \"remove\"]\n\
                paths = [\"one\", \"two\", \"file.txt\"]\n";
    let policy = world.at("policies/policy.toml");
    std::fs::write(&policy, format!("{POLICY}{rule}")).unwrap();
    let script = "git rm -q --cached one && git commit -qm removed && \
        b=$(echo new | git hash-object -w --stdin) && \
        git update-index --cacheinfo 100644,$b,two && git commit -qm file && \
        l=$(printf fixed.txt | git hash-object -w --stdin) && \
        git update-index --cacheinfo 120000,$l,file.txt && git commit -qm link";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let command = ["git", "import", "--policy", &policy, "--yes", "--json"];
    let child = world.limited(&command).spawn().unwrap();
    let workspace = world.at("ws");
    let approve = |args: &[&str]| {
        let args = [&["approve", "--json", "--workspace", &workspace], args].concat();
        end(world.command(&args).spawn().unwrap())
    };
    let mut last = String::new();
    for (path, shown) in [
        ("one", &["removes the symbolic link `one` to `file.txt`"][..]),
        ("two", &["in place of the symbolic link to `file.txt`", "+new"]),
        ("file.txt", &["a symbolic link to `fixed.txt`", "-secret"]),
    ] {
        let asked = loop {
            let list = serde_json::from_str::<Value>(&approve(&["--list"]).stdout);
            let asked = list.map(|list| list["waiting"][0].clone()).unwrap_or_default();
            if asked["id"].as_str().is_some_and(|id| id != last) {
                break asked;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(said(&asked, "path"), path, "{asked}");
        for part in shown {
            assert!(said(&asked, "change").contains(part), "{asked}");
        }
        assert!(!said(&asked, "change").contains("empty file"), "{asked}");
        said(&asked, "id").clone_into(&mut last);
        assert_eq!(approve(&["--yes", &last]).code, 0);
    }
    let ended = end(child);
    assert_eq!(ended.code, 0, "{ended:?}");
}

/// The directory's tree was read for each path anew, until all that may be read was read.
#[test]
fn a_commit_of_many_files_in_a_large_directory_stopped_the_import_of_all() {
    let world = committed(users()[0]);
    world.outside(
        "b=$(git rev-parse HEAD:file.txt); n=$(head -c 240 /dev/zero | tr '\\0' n); \
        t=$(seq -f %05g 30000 | sed \"s/.*/100644 blob $b\\t$n&/\" | git mktree); \
        t=$( (git ls-tree HEAD; printf \"040000 tree $t\\tbig\\n\") | git mktree); \
        git update-ref HEAD $(git commit-tree -p HEAD -m large $t)",
    );
    let script = "echo good >good.txt && git add good.txt && git commit -qm good && \
        b=$(echo new | git hash-object -w --stdin) && \
        seq 75 | sed \"s,.*,100644 $b\\tbig/&.txt,\" | git update-index --index-info && \
        git commit -qm many";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 0, "{} {}", imported.told, imported.stderr);
    assert_eq!(imported.told["commits"][1]["paths"], 75, "{}", imported.told);
    let name = said(&imported.told["branches"][0], "ref");
    let listed = git(&world, &["ls-tree", "--name-only", &format!("{name}:big")]);
    assert_eq!(listed.lines().count(), 30_075);
}

/// Git moves all refs or none, and can have no ref in a directory that is another one.
#[test]
fn a_branch_in_the_directory_of_another_one_stopped_the_import_of_all() {
    let world = committed(users()[0]);
    let pack = |names: &str| {
        format!(
            "for n in {names}; do echo \"$(git rev-parse HEAD) refs/heads/$n\"; done >.git/packed-refs"
        )
    };
    let script = "echo x >x.txt && git add -A && git commit -qm good && ";
    let ended = world.exec(&[], &format!("{script}{}", pack("a a-b a/b")));
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{} {}", imported.told, imported.stderr);
    let told = imported.told["branches"].as_array().unwrap().len();
    assert_eq!((imported.branches(), told), (vec!["a", "a-b", "main"], 3), "{}", imported.told);
    assert_eq!(imported.told["refusedBranches"][0]["branch"], "a/b", "{}", imported.told);
    let refs = || git(&world, &["for-each-ref", "--format=%(refname)", "refs/portcullis"]);
    assert_eq!(refs().lines().count(), 3);
    // The refs of an earlier import are as much in the way, also where they are packed.
    git(&world, &["pack-refs", "--all"]);
    let session = said(&imported.told, "session").to_owned();
    world.exec(&[], &pack("a/b other"));
    let again = world.import(&["--session", &session, "--yes"]);
    assert_eq!(again.told["refusedBranches"][0]["branch"], "a/b", "{}", again.told);
    assert!(refs().lines().any(|name| name.ends_with("/other")), "{} {}", again.told, refs());
}

/// Makes objects that git cannot read: one that is longer than its header states, the delta of a
/// pack with another size than its header states, and a commit that ends early; each on a branch of
/// its own.
const DAMAGE: &str = r#"
import hashlib, os, struct, subprocess, zlib
def git(*words, data=None):
    return subprocess.run(["git", *words], input=data, stdout=subprocess.PIPE, check=True).stdout.strip().decode()
def loose(name, raw):
    path = ".git/objects/%s/%s" % (name[:2], name[2:])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path): os.remove(path)
    open(path, "wb").write(raw)
def branch(name, blob):
    entries = git("ls-tree", "HEAD") + "\n100644 blob %s\tevil.txt\n" % blob
    tree = git("mktree", "--missing", data=entries.encode())
    commit = git("commit-tree", "-p", "HEAD", "-m", name, tree)
    git("update-ref", "refs/heads/" + name, commit)
    return commit
def size(number):
    out = b""
    while True:
        low, number = number & 127, number >> 7
        out += bytes([low | (128 if number else 0)])
        if not number: return out
def header(kind, number):
    low, number, out = (kind << 4) | (number & 15), number >> 4, b""
    while number: out, low, number = out + bytes([low | 128]), number & 127, number >> 7
    return out + bytes([low])
bomb = hashlib.sha1(b"bomb").hexdigest()
loose(bomb, zlib.compress(b"blob 67108864\0" + bytes(68 << 20), 1))
branch("bomb", bomb)
base, lie = b"base content\n", hashlib.sha1(b"lie").hexdigest()
base_name = hashlib.sha1(b"blob %d\0" % len(base) + base).hexdigest()
delta = size(len(base)) + size(6000) + bytes([5]) + b"hello"
pack = b"PACK" + struct.pack(">II", 2, 2)
one = header(3, len(base)) + zlib.compress(base)
two = header(7, len(delta)) + bytes.fromhex(base_name) + zlib.compress(delta)
ids = sorted([(bytes.fromhex(base_name), len(pack), zlib.crc32(one)),
              (bytes.fromhex(lie), len(pack) + len(one), zlib.crc32(two))])
pack += one + two
sha = hashlib.sha1(pack).digest()
fan = [sum(1 for i in ids if i[0][0] <= k) for k in range(256)]
index = b"\377tOc" + struct.pack(">I", 2) + b"".join(struct.pack(">I", f) for f in fan)
index += b"".join(i[0] for i in ids) + b"".join(struct.pack(">I", i[2]) for i in ids)
index += b"".join(struct.pack(">I", i[1]) for i in ids) + sha
index += hashlib.sha1(index).digest()
name = ".git/objects/pack/pack-" + sha.hex()
os.makedirs(".git/objects/pack", exist_ok=True)
open(name + ".pack", "wb").write(pack + sha)
open(name + ".idx", "wb").write(index)
branch("lie", lie)
commit = branch("cut", git("rev-parse", "HEAD:good.txt"))
git("update-ref", "refs/heads/above", git("commit-tree", "-p", commit, "-m", "above", "HEAD^{tree}"))
loose(commit, zlib.compress(b"commit 200\0tree ")[:18])
"#;

/// The process that reads objects ended at the first one, and so did the import.
#[test]
fn damaged_objects_stopped_the_import_of_all() {
    let world = committed(users()[0]);
    std::fs::write(world.at("ws/damage.py"), DAMAGE).unwrap();
    let script = "echo good >good.txt && git add good.txt && git commit -qm good && \
                  python3 damage.py && git branch good HEAD";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{} {}", imported.told, imported.stderr);
    for subject in ["bomb", "lie"] {
        assert_eq!(imported.refused(subject)[0].0, "evil.txt", "{}", imported.told);
    }
    let branches = imported.told["branches"].as_array().unwrap().iter();
    let whole = branches.filter(|branch| branch["partial"] == false);
    let whole: Vec<_> =
        whole.map(|branch| said(branch, "ref").rsplit('/').next().unwrap()).collect();
    assert_eq!(whole, ["good", "main"], "{}", imported.told);
    let refused = imported.told["refusedBranches"].as_array().unwrap().iter();
    let refused: Vec<_> = refused.map(|branch| said(branch, "branch")).collect();
    assert_eq!(refused, ["above", "cut"], "{}", imported.told);
    git(&world, &["fsck", "--strict", "--no-dangling"]);
}

/// A subject of several rows of a terminal looked like other commits, and one with an Arabic
/// letter mark like other words.
#[test]
fn subjects_forged_lines_above_the_question() {
    let world = committed(users()[0]);
    let subject = format!("fix a typo (1 path){:47}c0ffee123456  another (1 path){:60}", "", "");
    let script = format!(
        "echo x >x.txt && git add -A && git commit -qm '{subject}end' && \
        git commit -q --allow-empty -m \"$(printf 'a\\330\\234b')\" && git branch marked && \
        git reset -q --hard HEAD~1 && git commit -q --allow-empty -m \"$(printf 'fix \\342\\231\\273\\357\\270\\217')\""
    );
    let ended = world.exec(&[], &script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let shown = world.end_import(&["--dry-run"]);
    let lines: Vec<_> = shown.stdout.lines().collect();
    let is_commit = |line: &&&str| !line.starts_with("refs/") && !line.starts_with(' ');
    let mut commits = lines.iter().filter(is_commit);
    assert!(commits.all(|line| line.chars().count() <= 80), "{shown:?}");
    assert!(lines.iter().any(|line| line.ends_with("\u{2026} (1 path)")), "{shown:?}");
    let imported = world.import(&["--dry-run"]);
    assert!(imported.refused("a\u{61c}b")[0].1.contains("direction"), "{}", imported.told);
    // A variation selector, as emoji have it, changes nothing of the kind.
    assert!(imported.branches().contains(&"main"), "{}", imported.told);
    assert_eq!(imported.told["commits"].as_array().unwrap().len(), 3);
}

/// A name of several rows of a terminal looked like other commits and branches.
#[test]
fn names_of_branches_forged_lines_above_the_question() {
    let world = committed(users()[0]);
    let script = "echo x >x.txt && git add -A && git commit -qm x && \
                  n=$(printf 'x\\302\\240%.0s' $(seq 60)) && git branch \"z$n/$n\" && \
                  git branch $(printf 'xy%.0s' $(seq 90))";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let mut operator = world.on_terminal("git import", &["--dry-run"], &[]);
    assert_eq!(operator.ends(), 1, "{}", operator.text());
    let text = operator.text();
    let is_named = |line: &&str| line.contains("x\u{a0}x") || line.contains("xyxy");
    let (other, first): (Vec<_>, Vec<_>) =
        text.lines().filter(is_named).partition(|line| line.starts_with(&" ".repeat(14)));
    let is_own = |line: &&str| ["refs/portcullis/", "refused "].iter().any(|s| line.starts_with(s));
    assert!(first.iter().all(is_own) && other.len() > 2, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

/// The error was that the object of the commit is missing, without advice.
#[test]
fn a_repository_that_borrows_objects_was_refused_without_what_to_do() {
    let world = committed(users()[0]);
    world.exec(&[], "echo x >x.txt && git add -A && git commit -qm x");
    world.outside(
        "git init -q --bare ../other.git && mv .git/objects/?? ../other.git/objects/ && \
        echo \"$PWD/../other.git/objects\" >.git/objects/info/alternates",
    );
    let refused = world.end_import(&["--yes"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("git repack -a -d"), "{refused:?}");
    world.outside("git repack -qad && rm .git/objects/info/alternates");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 0, "{} {}", imported.told, imported.stderr);
}

/// The agent's repository borrows the objects of the operator's, with a commit that has a hidden file
/// under a name that may be read.
#[test]
fn objects_that_a_private_repository_borrows_are_not_read() {
    let world = committed(users()[0]);
    let hidden = git(&world, &["rev-parse", "HEAD:hidden/file"]);
    let lender = world.at("ws/.git/objects");
    let script = EVIL.to_owned()
        + &format!(
            "evil own 100644 blob good.txt; evil borrowed 100644 blob stolen.txt {hidden}; \
             echo '{lender}' >.git/objects/info/alternates"
        );
    let ended = world.exec(&[], &script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let private = slots(&world);
    let private = walk(&private).into_iter().find(|path| path.ends_with("info/alternates"));
    let objects = private.unwrap().parent().unwrap().parent().unwrap().to_owned();
    // Git that is not confined follows it.
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "cat-file", "blob", &hidden]).current_dir(world.at("ws"));
    let found = git.env("GIT_OBJECT_DIRECTORY", objects).output().unwrap();
    assert_eq!(found.stdout, b"hidden\n", "{found:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.code, 1, "{} {}", imported.told, imported.stderr);
    assert_eq!(imported.refused("borrowed")[0].0, "stolen.txt", "{}", imported.told);
    assert_eq!(imported.branches(), ["own"], "{}", imported.told);
}

/// They stayed for ever.
#[test]
fn git_directories_of_a_killed_import_were_left_in_the_state_directory() {
    let world = committed(users()[0]);
    world.commit_as("x");
    let (left, held) = (world.base().join("state/git-left"), world.base().join("state/git-held"));
    for path in [left.join("theirs-0"), held.clone()] {
        std::fs::create_dir_all(path).unwrap();
    }
    let lock = std::fs::File::open(&held).unwrap();
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&lock, exclusive).unwrap();
    assert_eq!(world.import(&["--dry-run"]).code, 0);
    assert!(!left.exists() && held.exists());
    drop(lock);
    assert_eq!(world.import(&["--dry-run"]).code, 0);
    assert!(!held.exists());
}

/// Only eight of them were looked at, and the commits of other sessions were said to be gone.
#[test]
fn commits_are_found_in_as_many_repositories_as_sessions_make() {
    let world = committed(users()[0]);
    let session = world.commit_as("x");
    let slots = slots(&world);
    std::fs::rename(slots.join("slot-0"), slots.join("slot-9")).unwrap();
    world.commit_as("y");
    for slot in (1..16).filter(|slot| *slot != 9) {
        copy(&slots.join("slot-0"), &slots.join(format!("slot-{slot}")));
    }
    let import = || world.end_import(&["--dry-run", "--json", "--session", &session]);
    let ended = import();
    assert_eq!(ended.code, 0, "{ended:?}");
    copy(&slots.join("slot-0"), &slots.join("slot-16"));
    let ended = import();
    assert_ne!(ended.code, 0);
    assert!(ended.stdout.contains("has 17 git repositories of the agent"), "{ended:?}");
}

/// The directory with the slots of the one agent and policy.
fn slots(world: &SandboxWorld) -> std::path::PathBuf {
    let base = world.base().join("home/.local/share/portcullis/scratch");
    let slot = walk(&base).into_iter().find(|path| path.ends_with("slot-0")).unwrap();
    slot.parent().unwrap().to_owned()
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success());
}

/// Only the link's own target was looked at.
#[test]
fn an_imported_link_led_out_by_another_link_of_the_workspace() {
    let world = committed(users()[0]);
    std::os::unix::fs::symlink("/etc", world.at("ws/out")).unwrap();
    let script = "l=$(printf out/passwd | git hash-object -w --stdin) && \
        git update-index --add --cacheinfo 120000,$l,conf && git commit -qm link";
    let ended = world.exec(&[], script);
    assert_eq!(ended.code, 0, "{ended:?}");
    let imported = world.import(&["--yes"]);
    assert_eq!(imported.branches().len(), 0, "{}", imported.told);
    assert!(imported.refused("link")[0].1.contains("outside"), "{}", imported.told);
}
