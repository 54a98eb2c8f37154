//! Refusals that no limit of a policy bounds: the rate of each agent is bounded for the log.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use portcullis::{
    gateway::{Client, Gateway, Refusal},
    model::{WorkspacePath, request::Stat},
    serve::files::ChannelLimits,
};
use serde_json::json;

use crate::{
    acp_rig::{POLICY, connection, gateway_under, workspace},
    attached_clients::Host,
    files::Rig,
};

/// The time for which an agent must wait.
const PAUSE: Duration = Duration::from_secs(2);

/// Has so many requests of the agent refused that it must wait for `pause`; returns since when.
fn exhaust_for(gateway: &Gateway, pause: Duration) -> Instant {
    loop {
        let now = Instant::now();
        if gateway.pause(&connection()) >= pause {
            return now;
        }
        gateway.report(&connection(), "test.dropped", BTreeMap::new()).unwrap();
    }
}

fn exhaust(gateway: &Gateway) -> Instant {
    exhaust_for(gateway, PAUSE)
}

/// Checks that the action ends no sooner than the pause that began at `since`. A busy machine may
/// have taken a part of that before the action.
fn takes_long(since: Instant, action: impl FnOnce()) {
    action();
    let taken = since.elapsed();
    assert!(taken >= PAUSE - Duration::from_millis(50), "{taken:?}");
}

/// Each connection was counted by itself: 5,000 records a second of an agent that
/// connected anew.
#[test]
fn an_agent_that_connects_anew_is_heard_no_sooner() {
    let mut host = Host::new();
    let (_, mut before) = host.invite();
    let since = exhaust(&host.gateway);
    let mut list = |id| {
        before.post(id, "ls", json!({ "path": "" }));
        assert_eq!(before.hear().unwrap()["id"], id);
    };
    // The gateway waited for this one already.
    list(1);
    takes_long(since, || list(2));
    let since = exhaust(&host.gateway);
    takes_long(since, || drop(host.invite()));
}

/// The channel had no bound.
#[test]
fn messages_of_the_files_channel_wait_for_refusals_of_the_agent() {
    let mut rig = Rig::start(POLICY, ChannelLimits::default());
    rig.ask("stat", json!({ "path": "a.txt" }));
    let since = exhaust(&rig.gateway);
    // The gateway waited for this one already.
    rig.ask("stat", json!({ "path": "a.txt" }));
    takes_long(since, || drop(rig.ask("stat", json!({ "path": "a.txt" }))));
}

#[test]
fn what_is_refused_counts_whatever_refuses_it() {
    let (dir, root) = workspace();
    let limited = format!("{POLICY}\n[limits]\ndenials = 1\n");
    let gateway = gateway_under(&limited, &root, dir.path());
    let counted = |action: &dyn Fn()| {
        // Not over before all are counted.
        exhaust_for(&gateway, 10 * PAUSE);
        let (longer, before) = (Instant::now(), gateway.pause(&connection()));
        let shorter = Instant::now();
        (0..50).for_each(|_| action());
        let shorter = shorter.elapsed();
        let after = gateway.pause(&connection());
        let (least, most) = (after + shorter, after + longer.elapsed());
        let cost = 50 * Duration::from_millis(5);
        assert!(
            most >= before + cost && least < before + cost * 2,
            "{before:?} {least:?} {most:?}"
        );
    };
    let stat = Stat { path: WorkspacePath::parse("a.txt").unwrap() };
    // The first one closes the session, and all others meet that limit.
    counted(&|| drop(gateway.refuse(&connection(), "read", None, &Refusal::Outside)));
    counted(&|| drop(gateway.handle(&connection(), &stat, Client::default()).unwrap_err()));
}

/// A message whose record had become too long was refused without one, and a long record counted
/// as much as a short one.
#[test]
fn what_a_dropped_message_repeats_is_bounded_in_its_record_and_counts() {
    let (dir, root) = workspace();
    let gateway = gateway_under(POLICY, &root, dir.path());
    exhaust(&gateway);
    let (begun, before) = (Instant::now(), gateway.pause(&connection()));
    let facts = BTreeMap::from([("reason".to_owned(), json!("\u{1}".repeat(1 << 20)))]);
    for _ in 0..50 {
        gateway.report(&connection(), "test.dropped", facts.clone()).unwrap();
    }
    let long = "\u{1}".repeat(512);
    for _ in 0..50 {
        let refusal = Refusal::Parameters(long.clone());
        gateway.refuse(&connection(), &long, None, &refusal).receipt().unwrap();
    }
    // Each character takes six bytes.
    let after = gateway.pause(&connection()) + begun.elapsed();
    let cost = 50 * 6 * Duration::from_millis(5) + 50 * 12 * Duration::from_millis(5);
    assert!(after >= before + cost, "{before:?} {after:?}");
}
