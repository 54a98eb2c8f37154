//! Random policies, paths and questions.

use super::*;

fn pattern() -> impl Strategy<Value = String> {
    let part =
        prop::sample::select(vec!["a", "b", "**", "*", "a*", "*.x", "?", "[ab]", "{a,b.x}", "A.x"]);
    prop::collection::vec(part, 1..4).prop_map(|mut parts| {
        // Neighbouring `**` are one.
        parts.dedup_by(|one, other| *one == "**" && *other == "**");
        parts.join("/")
    })
}

fn patterns() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(pattern(), 0..4)
}

fn rule() -> impl Strategy<Value = Rule> {
    let words = vec![
        "read", "list", "write", "remove", "rename", "append", "edit", "stat", "glob", "grep",
        "watch", "mkdir", "restore",
    ];
    (
        prop::sample::select(vec![Effect::Allow, Effect::Ask, Effect::Deny]),
        prop::collection::vec(prop::sample::select(words), 1..4),
        prop::collection::vec(pattern(), 1..3),
        prop::sample::select(vec!["*", "one", "o*", "two"]),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(effect, operations, paths, agent, entry)| Rule {
            effect,
            operations,
            paths,
            agents: vec![agent.to_owned()],
            entry,
        })
}

fn granted() -> impl Strategy<Value = Option<Vec<String>>> {
    let list = patterns().prop_map(|mut list| {
        // Without a broad grant most paths would be denied for one reason.
        if list.len() == 3 {
            list.push("**".to_owned());
        }
        list
    });
    prop::option::weighted(0.6, list)
}

fn file(parents: Vec<usize>) -> impl Strategy<Value = File> {
    let extension = || prop::sample::select(vec!["x".to_owned(), "y".to_owned()]);
    (
        [granted(), granted(), granted(), granted()],
        prop::collection::vec(extension(), 0..2),
        prop::option::weighted(0.2, prop::collection::vec(extension(), 0..2)),
        prop::collection::vec(pattern(), 0..2),
        prop::collection::vec(pattern(), 0..2),
        prop::collection::vec(rule(), 0..4),
        prop::bool::weighted(0.2),
    )
        .prop_map(
            move |(
                allowed,
                denied_extensions,
                allowed_extensions,
                secrets,
                except,
                rules,
                observe,
            )| File {
                allowed,
                denied_extensions,
                allowed_extensions,
                // `**` would make everything secret.
                secrets: secrets.into_iter().filter(|s| !s.contains("**") && s != "*").collect(),
                except,
                rules,
                observe,
                parents: parents.clone(),
            },
        )
}

/// 0 extends 1 and 2, which both extend 3.
pub(super) fn family() -> impl Strategy<Value = Vec<File>> {
    prop_oneof![
        (file(vec![])).prop_map(|one| vec![one]),
        (file(vec![1]), file(vec![])).prop_map(|(one, two)| vec![one, two]),
        (file(vec![1, 2]), file(vec![3]), file(vec![3]), file(vec![]))
            .prop_map(|(a, b, c, d)| vec![a, b, c, d]),
    ]
}

pub(super) fn path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "b", "A", "ab", "a.x", "b.x", "c.x.y", "c", "a.X"]);
    prop::collection::vec(part, 0..5).prop_map(|parts| parts.join("/"))
}

pub(super) fn questions() -> Vec<(OperationKind, Access)> {
    let mut all: Vec<_> = OperationKind::ALL
        .iter()
        .flat_map(|operation| operation.accesses().iter().map(move |access| (*operation, *access)))
        .collect();
    all.push((OperationKind::Rename, Access::Write));
    all
}
