//! Parts of a question: what is made on the way, and each rule that asks.

use serde_json::json;

use super::{POLICY, begin, end, id, kinds, waiting, world};

/// The question named the last of them, or none.
#[test]
fn the_question_shows_the_directories_that_are_made() {
    let world = world();
    let calls: [(&[&str], &str); 3] = [
        (&["write", "src/payments/a/b/new.ts"], "--- /dev/null\n+++ b/src/payments/a/b/new.ts\n"),
        (&["mkdir", "--parents", "src/payments/a/b/c"], "makes the directory `src/payments/a/b/c`"),
        (&["mv", "src/a.ts", "src/payments/a/b/a.ts"], "renames `src/a.ts` to "),
    ];
    for (args, rest) in calls {
        let child = begin(&world, args, "new\n");
        let asked = waiting(&world, 1).remove(0);
        world.run(&["approve", "--reject", &id(&asked)]).ok();
        end(child).denied("payments");
        let made = "makes 2 directories, `src/payments/a` to `src/payments/a/b`\n";
        let change = asked["change"].as_str().unwrap();
        assert!(
            change.strip_prefix(made).is_some_and(|change| change.starts_with(rest)),
            "{change}"
        );
    }
}

/// The question and the record named the first of several rules that ask about one file.
#[test]
fn every_rule_that_asks_about_a_file_is_shown() {
    let mut world = world();
    let rule = "[[rules]]\nid = \"typescript\"\neffect = \"ask\"\noperations = [\"write\", \"read\"]\n\
                paths = [\"**/*.ts\"]\nreason = \"programs\"\n";
    world.set_policy(&format!("{POLICY}{rule}"));
    let child = begin(&world, &["write", "src/payments/card.ts"], "new\n");
    let asked = waiting(&world, 1).remove(0);
    let ids: Vec<_> = asked["rules"].as_array().unwrap().iter().map(|rule| &rule["id"]).collect();
    assert_eq!(ids, ["payments", "typescript"]);
    world.run(&["approve", "--yes", &id(&asked)]).ok();
    end(child).ok();
    let also = json!(["payments", "typescript"]);
    for record in [&kinds(&world, "decision")[0], &kinds(&world, "approval")[0]] {
        assert_eq!((&record["rule"], &record["facts"]["rules"]), (&also[0], &also), "{record}");
    }
    let intent = &kinds(&world, "intent")[0];
    assert_eq!((&intent["rule"], &intent["facts"]["rules"]), (&also[0], &also), "{intent}");

    // A single one is no list.
    let child = begin(&world, &["write", "src/payments/b"], "new\n");
    world.run(&["approve", "--yes", &id(&waiting(&world, 1)[0])]).ok();
    end(child).ok();
    assert_eq!(kinds(&world, "intent")[1]["facts"].get("rules"), None);
}
