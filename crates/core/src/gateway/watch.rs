//! Subscriptions to changes: their start, and the records of their start and end.
//!
//! A subscription is decided on and recorded once, as a list is; each change is then decided on
//! before it is reported ([`ops`](crate::ops)).

use std::sync::Arc;

use portcullis_audit::Draft;
use serde_json::json;

use super::{
    Error, Gateway,
    client::Client,
    lock::lock,
    record,
    reply::{Attempt, Reply},
    request::Request,
    search::Search,
    transaction::Transaction,
};
use crate::{
    model::{Session, WatchQuery},
    ops::{EndedSubscription, Subscription, prepare},
};

impl Gateway {
    /// Subscribes to changes, if the policy lets the session's agent list the path. Many threads
    /// may do so at once. The subscription ends with [`Gateway::unwatch`] or when it is dropped;
    /// only the former records the end at once.
    ///
    /// # Errors
    /// As [`Gateway::handle`]; also when there are too many subscriptions or the system watches no
    /// more directories.
    pub fn watch(
        &self,
        session: &Session,
        query: &WatchQuery,
    ) -> Result<Reply<Subscription>, Error> {
        self.record_ended(self.watcher.ended());
        let next = self.slots.as_ref().map(|slots| slots.next_to_watch(session.agent.as_str()));
        let _next = next.as_deref().map(lock);
        self.handle(session, query, Client::default())
    }

    /// Ends a subscription and records that with its counts. An end that cannot be recorded is
    /// reported to the operator's log: the gateway serves nothing more then.
    pub fn unwatch(&self, subscription: &Subscription) {
        subscription.close();
        self.record_ended(self.watcher.ended());
    }

    /// Records the ends of subscriptions.
    pub(super) fn record_ended(&self, ended: Vec<EndedSubscription>) {
        for ended in ended {
            let policy = self.policy();
            let path = record::shown(&ended.path);
            let mut draft = record::request(&ended.session, &policy, "watch.end", Some(&path));
            let counts = [("events", ended.events), ("rescans", ended.rescans)];
            draft.counts = Some(counts.map(|(name, count)| (name.to_owned(), count)).into());
            let facts = [("watch", json!(ended.seq)), ("reason", json!(ended.reason.as_str()))];
            record::add_facts(&mut draft, facts.map(|(name, fact)| (name.to_owned(), fact)));
            draft.result = Some("ok".to_owned());
            if let Err(error) = self.audit_log.record(draft) {
                tracing::error!(%error, "the end of a subscription cannot be recorded");
            }
        }
    }
}

impl Request for WatchQuery {
    type Output = Subscription;

    fn run<'a>(
        &'a self,
        transaction: &Transaction<'a>,
        draft: &mut Draft,
    ) -> Attempt<Subscription> {
        let start = Search(transaction).start(draft)?;
        let facts = draft.facts.get_or_insert_default();
        facts.insert("recursive".to_owned(), json!(self.recursive));
        facts.insert("ignore".to_owned(), json!(self.ignore));
        let (gateway, session) = (transaction.gateway, transaction.session);
        let policy = gateway.policy();
        let has = || gateway.watcher.of_agent(&session.agent);
        let _alone = gateway.slots.as_ref().map(|slots| slots.watch(has)).transpose()?;
        let sealed =
            prepare::watch(&gateway.watcher, &transaction.context, &policy, session, &start, self)?;
        // If this was the first subscription, a policy put in force since did not reach the
        // watcher.
        let mut known = policy;
        loop {
            let now = gateway.policy();
            if Arc::ptr_eq(&known, &now) {
                break;
            }
            gateway.watcher.set_policy(&now);
            known = now;
        }
        let reply = transaction.disclose(draft, sealed)?;
        reply.output.began(reply.receipt.seq);
        Ok(reply)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make files behind the gateway's back")]
mod tests {
    use std::{fs, thread, time::Duration};

    use cap_std::fs::Dir;
    use tempfile::TempDir;

    use super::*;
    use crate::{
        audit_log::AuditLog,
        gateway::SharedLimits,
        model::{Transport, WorkspacePath, request::List},
        policy::{Policy, PolicySource, SecretKey, compile},
        workspace::Workspace,
    };

    fn policy(version: u64, more: &str) -> Policy {
        let text =
            format!("schema = 1\nversion = {version}\n[allowedPaths]\nlist = [\"**\"]\n{more}");
        compile(&PolicySource::from_text("test", &text)).unwrap()
    }

    fn gateway(temp: &TempDir) -> Gateway {
        for name in ["ws", "ws/secret", "state"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        let state = Dir::from_std_file(fs::File::open(temp.path().join("state")).unwrap());
        let workspace = Workspace::open(&temp.path().join("ws")).unwrap();
        let (policy, audit_log) = (Arc::new(policy(1, "")), AuditLog::open(&state).unwrap());
        let key = SecretKey::new(&[7; SecretKey::LENGTH]);
        let mut gateway = Gateway::open(workspace, policy, audit_log, &state, key).unwrap();
        gateway.share(SharedLimits {
            slots: 1,
            per_session: 1,
            requests_per_second: 1000,
            bytes_per_second: 1000,
            concurrent: 1,
            watches: 1,
        });
        gateway
    }

    fn session(agent: &str, id: &str) -> Session {
        let agent = agent.parse().unwrap();
        Session { id: id.into(), agent, user: "u".into(), transport: Transport::Mcp, acp: None }
    }

    /// Regression: they had all slots, while each walked the workspace after the other.
    #[test]
    fn sessions_of_an_agent_that_wait_to_watch_keep_no_turns() {
        let temp = tempfile::tempdir().unwrap();
        let mut gateway = gateway(&temp);
        gateway.share(SharedLimits {
            slots: 2,
            per_session: 2,
            requests_per_second: 1000,
            bytes_per_second: 1000,
            concurrent: 10,
            watches: 10,
        });
        thread::scope(|scope| {
            let gateway = &gateway;
            let alone = gateway.slots.as_ref().unwrap().watch(|| 0).unwrap();
            for id in ["1", "2", "3"] {
                let query = WatchQuery::new(WorkspacePath::root());
                scope.spawn(move || drop(gateway.watch(&session("a", id), &query).unwrap()));
            }
            let running = || gateway.slots.as_ref().unwrap().count().1;
            while running() == 0 {
                thread::yield_now();
            }
            // The others wait, too.
            thread::sleep(Duration::from_millis(100));
            let list = List { path: WorkspacePath::root() };
            let other =
                scope.spawn(move || gateway.handle(&session("b", "4"), &list, Client::default()));
            for _ in 0..6000 {
                if other.is_finished() {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
            let served = other.is_finished();
            drop(alone);
            assert!(served);
        });
    }

    /// A reload notifies the watcher, which did not exist before the first subscription, and the
    /// subscription had read the policy before.
    #[test]
    fn the_first_subscription_heeds_a_policy_that_came_while_it_began() {
        let temp = tempfile::tempdir().unwrap();
        let gateway = gateway(&temp);
        let session = session("a", "s");
        let old = gateway.policy();
        let query = WatchQuery::new(WorkspacePath::parse("secret").unwrap());
        thread::scope(|scope| {
            // The subscription waits for this after it has read the policy: the attempt and the
            // subscription then have a reference each.
            let alone = gateway.slots.as_ref().unwrap().watch(|| 0).unwrap();
            let watching = scope.spawn(|| gateway.watch(&session, &query).map(drop));
            while Arc::strong_count(&old) < 4 {
                assert!(!watching.is_finished());
                thread::yield_now();
            }
            let rule = "[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"secret/**\"]\n";
            gateway.reload(&session, policy(2, rule), "test").unwrap();
            drop(alone);
            // The request is decided again.
            assert_eq!(watching.join().unwrap().unwrap_err().rule(), Some("no"));
        });
    }
}
