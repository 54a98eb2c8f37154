//! Addition of two digests: that of a part of the log and that of a later part.

use super::Digest;
use crate::report::items::{Connected, Decided, Operation};

impl Digest {
    /// Adds the digest of a later part of the log.
    pub(in crate::report) fn merge(&mut self, later: Self) {
        self.left_out += later.left_out;
        if self.is_full() {
            self.left_out += later.records;
            return;
        }
        self.bytes += later.bytes;
        self.open_bytes += later.open_bytes;
        self.sessions += later.sessions;
        self.records += later.records;
        self.first = self.first.take().or(later.first);
        self.last = later.last.or(self.last.take());
        for (kind, more) in later.kinds {
            *self.kinds.entry(kind).or_default() += more;
        }
        self.workspaces.extend(later.workspaces);
        self.hours.merge(later.hours);
        for (name, agent) in later.agents {
            match self.agents.get_mut(&name) {
                Some(sum) => sum.merge(agent),
                None => {
                    self.agents.insert(name, agent);
                }
            }
        }
        for (key, rule) in later.rules {
            let records = rule.records;
            self.rules.entry(key).or_insert(Decided { records: 0, ..rule }).records += records;
        }
        for (op, more) in later.operations {
            let sum = self
                .operations
                .entry(op.clone())
                .or_insert_with(|| Operation { op, ..Operation::default() });
            sum.allowed += more.allowed;
            sum.denied += more.denied;
        }
        for (host, more) in later.hosts {
            let sum = self
                .hosts
                .entry(host.clone())
                .or_insert_with(|| Connected { host, ..Connected::default() });
            sum.add(&more);
        }
        later.label_uses.into_values().for_each(|more| self.label(more));
        self.observed.merge(later.observed);
        self.denied.merge(later.denied);
        self.secrets.merge(later.secrets);
        for (_, file) in later.files {
            self.file(file);
        }
        for (sha256, policy) in later.policies {
            match self.policies.get_mut(&sha256) {
                Some(sum) => {
                    sum.records += policy.records;
                    sum.last = policy.last;
                    sum.name = policy.name.or(sum.name.take());
                    sum.version = policy.version.or(sum.version);
                }
                None => {
                    self.policies.insert(sha256, policy);
                }
            }
        }
        self.policy_changes.merge(later.policy_changes);
        self.approvals.merge(later.approvals);
        self.gateways.merge(later.gateways);
        self.stopped.extend(later.stopped);
        self.confined.extend(later.confined);
        for gateway in &mut self.gateways.kept {
            if let Some((how, network)) = self.confined.get(&gateway.boot) {
                gateway.enforcement = how.clone().or(gateway.enforcement.take());
                gateway.agent_network = network.clone().or(gateway.agent_network.take());
            }
            gateway.stopped = gateway.stopped || self.stopped.contains(&gateway.boot);
        }
        self.set_aside.extend(later.set_aside);
        // The later part may have outcomes of earlier changes.
        for (of, result) in later.outcomes {
            self.answered(of, result);
        }
        self.open.extend(later.open);
    }
}
