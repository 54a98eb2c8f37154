//! Random differences: one that is not counted as an opening opens nothing, neither in the policy nor
//! in one that extends it.

use std::collections::BTreeSet;

use proptest::{prelude::*, sample::Index};

use crate::{
    diff::{ComparedPolicy, Diff, diff},
    entry_operation::{ENTERING, decide_entering},
    model::{OperationKind, WorkspacePath},
    outline::outline,
    policy::{Object, ObjectKind, Policy, PolicySource, compile},
    progress::NoObserver,
    random_policies::{budget, decisions, extending, paths, policy_files, read},
    tree::{Tree, TreeEntry},
};

/// The number of random policies, unless `PORTCULLIS_TEST_BUDGET` multiplies it.
const CASES: u32 = 60;

fn compared(old: &PolicySource, new: &PolicySource) -> Diff {
    let [old, new] = [old, new].map(|source| (compile(source).unwrap(), outline(source)));
    let of = |(policy, outline)| ComparedPolicy {
        policy,
        mode: policy.mode(),
        network_mode: policy.network().mode(),
        outline,
    };
    let tree = Tree { entries: Vec::new(), not_served: 0 };
    diff(of((&old.0, &old.1)), of((&new.0, &new.1)), &tree, None, &[], &NoObserver).unwrap()
}

/// Takes a statement out of a file, or a base out of the first one.
fn without(files: &[String], file: Index, line: Index) -> Vec<String> {
    let mut files = files.to_vec();
    let text = file.get_mut(&mut files);
    let keys = ["extends", "read", "list", "write", "names", "except", "deny", "[["];
    let starts: Vec<_> = text
        .match_indices('\n')
        .map(|(end, _)| end + 1)
        .filter(|start| keys.iter().any(|key| text.get(*start..).unwrap().starts_with(key)))
        .collect();
    let start = *line.get(&starts);
    let rest = text.get(start..).unwrap();
    let end = if rest.starts_with("[[") { "\n\n" } else { "\n" };
    let end = start + rest.find(end).unwrap() + end.len();
    text.replace_range(start..end, "");
    files
}

/// Compares every decision where the difference opens nothing. Returns whether it does.
fn check(old: &[String], new: &[String]) -> bool {
    let (before, after) = (read(old), read(new));
    let found = compared(&before, &after);
    if found.opens() || found.examples_cut {
        return true;
    }
    let outlines = [outline(&before), outline(&after)].concat();
    let paths: BTreeSet<_> = paths(&outlines);
    let own = (compile(&before).unwrap(), compile(&after).unwrap());
    for (whose, (old_policy, new_policy)) in
        [("own", own), ("extending", (extending(old), extending(new)))]
    {
        let now = decisions(&new_policy, &paths);
        for ((asked, was), (_, now)) in decisions(&old_policy, &paths).into_iter().zip(now) {
            let (old, new) = (old.join("\n---\n"), new.join("\n---\n"));
            assert!(was <= now, "{whose}: {asked}: {was} -> {now}\n{old}\n======\n{new}");
        }
        for path in paths.iter().filter(|path| !path.is_root()) {
            for (operation, word) in ENTERING {
                let enters = |policy| enters(policy, operation, path);
                let is_opened =
                    enters(&old_policy) == Some(false) && enters(&new_policy) == Some(true);
                let (old, new) = (old.join("\n---\n"), new.join("\n---\n"));
                assert!(!is_opened, "{whose}: {word} {path:?}\n{old}\n======\n{new}");
            }
        }
    }
    false
}

/// True if searches and the mount enter a directory, false if a rule keeps them out, and `None` if
/// nothing is allowed there.
fn enters(policy: &Policy, operation: OperationKind, path: &WorkspacePath) -> Option<bool> {
    let object = Object { kind: ObjectKind::Directory, links: 1, through_symlink: false };
    let entry = TreeEntry { path: path.clone(), object, target: None };
    let agent = "agent".parse().unwrap();
    let Some(decision) = decide_entering(policy, &agent, operation, &entry) else {
        return Some(true);
    };
    (decision.is_allow() || !decision.is_default_deny()).then_some(decision.is_allow())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES * budget()))]
    #[test]
    fn what_opens_nothing_opens_nothing(
        files in policy_files(), file in any::<Index>(), line in any::<Index>(),
    ) {
        let other = without(&files, file, line);
        prop_assume!([&files, &other].iter().all(|files| compile(&read(files)).is_ok()));
        check(&files, &other);
        check(&other, &files);
    }
}

/// Each was said to open nothing.
#[test]
fn a_denial_that_goes_away_opens() {
    let base = |text: &str| vec![format!("schema = 1\n{text}")];
    for text in [
        "[[rules]]\nid = 'r'\neffect = 'deny'\npaths = ['x']\n",
        "[[rules]]\nid = 'r'\neffect = 'ask'\npaths = ['x']\n",
        "[secrets]\nnames = ['x']\n",
        "[extensions]\ndeny = ['x']\n",
    ] {
        assert!(check(&base(text), &base("")), "{text}");
        assert!(!check(&base(""), &base(text)), "{text}");
    }
    let rule = "[[rules]]\nid = 'r'\neffect = 'ask'\npaths = ['**']\n";
    let name = "[secrets]\nnames = ['**']\n";
    assert!(check(&base(&format!("{rule}{name}")), &base(name)));
}
