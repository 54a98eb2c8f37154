//! Records of requests that were cancelled.

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
