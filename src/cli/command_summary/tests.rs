use super::*;
use crate::review::OtherRecord;

/// The reason of the first one stood for all denials without a rule at one host, and the first
/// line counted groups.
#[test]
fn denials_without_a_rule_are_grouped_by_their_reason() {
    let mut summary = Summary::default();
    let denials = [(None, "no method"), (None, "no path"), (None, "no path"), (Some("r"), "x")];
    for (rule, reason) in denials.into_iter().chain([(Some("r"), "y")]) {
        summary.take(Event::Other(Box::new(OtherRecord {
            op: Some("connect".to_owned()),
            path: Some("a.example:443".to_owned()),
            decision: Some("deny".to_owned()),
            rule: rule.map(str::to_owned),
            reason: Some(reason.to_owned()),
            ..OtherRecord::default()
        })));
    }
    let text = summary.text("");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "portcullis: no changes, 5 denials, no versions of files read",
            "  denied   connect a.example:443: \"no method\"",
            "  denied   connect a.example:443, 2 times: \"no path\"",
            "  denied   connect a.example:443, 2 times: rule r",
            "  help: a.example:443: no other rule can allow it: the operator can change the rule `r`; \
             `portcullis policy explain connect a.example:443` says more",
        ]
    );
}

/// A program that ignores the error of close(2), such as a shell, lost what it wrote without a
/// word, and a denied rename did not say where to.
#[test]
fn failed_writes_are_told() {
    let mut summary = Summary::default();
    let allowed = |op: &str, result: &str| OtherRecord {
        op: Some(op.to_owned()),
        path: Some("a".to_owned()),
        decision: Some("allow".to_owned()),
        rule: Some("r".to_owned()),
        result: Some(result.to_owned()),
        ..OtherRecord::default()
    };
    let denied = OtherRecord {
        decision: Some("deny".to_owned()),
        to: Some("b".to_owned()),
        ..allowed("rename", "denied")
    };
    let others = [("write", "conflict"), ("write", "conflict"), ("write", "cancelled")];
    let others = others.map(|(op, result)| allowed(op, result));
    for other in others.into_iter().chain([denied, allowed("remove", "notEmpty")]) {
        summary.take(Event::Other(Box::new(other)));
    }
    let text = summary.text("");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "portcullis: no changes, 1 denial, 2 failed changes, no versions of files read",
            "  denied   rename a to b: rule r",
            "  failed   write a, 2 times: conflict",
        ]
    );
    let object = summary.object();
    assert_eq!(object["denials"][0]["to"], "b");
    assert_eq!(object["failures"][0]["times"], 2);
}

/// Programs learned how many versions were read, and of no file which.
#[test]
fn files_that_were_read_are_named_once() {
    let mut summary = Summary::default();
    for number in [0, 0].into_iter().chain((0..MAX_READ_PATHS + 2).rev()) {
        summary.take(Event::Other(Box::new(OtherRecord {
            op: Some("read".to_owned()),
            path: Some(format!("{number:04}")),
            decision: Some("allow".to_owned()),
            result: Some("ok".to_owned()),
            ..OtherRecord::default()
        })));
    }
    let object = summary.object();
    let paths = object["readPaths"].as_array().unwrap();
    assert_eq!((paths.len(), &paths[0], &paths[999]), (1_000, &json!("0000"), &json!("0999")));
    assert_eq!((&object["moreReadPaths"], &object["reads"]), (&json!(2), &json!(1_004)));
}
