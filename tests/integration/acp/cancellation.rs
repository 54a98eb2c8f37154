//! Requests that are cancelled, and their records.

use super::*;

/// They were reported as the agent's mistake.
#[test]
fn what_is_taken_back_before_it_began_is_recorded_as_cancelled() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    rig.agent.send(&rig.read(10, "a.txt"));
    rig.editor.hear();
    // Of one path one after the other.
    rig.agent.send(&rig.read(11, "a.txt"));
    rig.agent.send(&rig.write(12, "a.txt", "never"));
    rig.agent.send(&notification("$/cancel_request", json!({"requestId": 11})));
    assert_eq!(rig.agent.hear()["error"]["code"], -32800);
    rig.editor.send(&notification("session/cancel", json!({"sessionId": "s1"})));
    assert_eq!(rig.agent.hear()["error"]["code"], -32800);
    let log = rig.log();
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let taken_back: Vec<_> = records.filter(|record| record["reason"] == "cancelled").collect();
    assert_eq!(taken_back.len(), 2, "{log}");
    assert!(taken_back.iter().all(|record| record["result"] == "cancelled"), "{log}");
}

#[test]
fn a_waiting_request_is_cancelled_and_one_under_way_finishes() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    rig.agent.send(&rig.read(10, "a.txt"));
    let asked = rig.editor.hear();
    rig.agent.send(&rig.write(11, "a.txt", "never"));
    rig.agent.send(&notification("$/cancel_request", json!({"requestId": 11})));
    let answer = rig.agent.hear();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(11), &json!(-32800)));
    let log = rig.log();
    let record: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!((&record["path"], &record["reason"]), (&json!("a.txt"), &json!("cancelled")));
    assert_eq!(record["decision"], json!(null), "nothing was decided");
    rig.agent.send(&notification("$/cancel_request", json!({"requestId": 10})));
    rig.agent.hears_nothing();
    rig.editor.send(&result(asked["id"].clone(), json!({"content": "x"})));
    assert_eq!(rig.agent.hear()["result"]["content"], "x");
    // Cancelling what was answered, or never was, does nothing.
    for id in [json!(10), json!("none"), json!(null)] {
        rig.agent.send(&notification("$/cancel_request", json!({"requestId": id})));
    }
    rig.agent.hears_nothing();
    rig.editor.hears_nothing();
    assert_eq!(fs::read_to_string(rig.root.join("a.txt")).unwrap(), "one\ntwo żółć\nthree\n");
}

#[test]
fn cancelling_the_turn_cancels_what_waits_in_that_session() {
    let mut rig = Rig::ready(all_fs(), |_| {});
    rig.open_session(2, "s2");
    rig.agent.send(&rig.read(10, "a.txt"));
    let asked = rig.editor.hear();
    rig.agent.send(&rig.write(11, "a.txt", "never"));
    let mut other = rig.read(12, "a.txt");
    other["params"]["sessionId"] = json!("s2");
    rig.agent.send(&other);
    // An echo shows that both wait.
    rig.agent.send(&notification("session/update", json!({})));
    rig.editor.hear();
    rig.editor.send(&notification("session/cancel", json!({"sessionId": "s1"})));
    let answer = rig.agent.hear();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(11), &json!(-32800)));
    assert_eq!(rig.agent.hear()["method"], "session/cancel");
    rig.editor.send(&result(asked["id"].clone(), json!({"content": "x"})));
    assert_eq!(rig.agent.hear()["id"], 10);
    let asked = rig.editor.hear();
    rig.editor.send(&result(asked["id"].clone(), json!({"content": "y"})));
    assert_eq!(rig.agent.hear()["id"], 12);
}

#[test]
fn cancelling_a_permission_request_reaches_the_editor() {
    let mut rig = served();
    rig.agent.send(&request(5, "session/request_permission", json!({})));
    rig.editor.hear();
    let cancel = notification("$/cancel_request", json!({"requestId": 5}));
    rig.agent.send(&cancel);
    assert_eq!(rig.editor.hear(), cancel);
}
