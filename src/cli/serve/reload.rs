//! `SIGHUP`: adds and removes workspaces and agents without effect on others.

use std::time::Instant;

use serde_json::json;

use super::{
    broker::{Broker, RETRY_INTERVALS, facts},
    listeners,
    messages::{ToFront, ToWorker},
    plan::{Fault, Plan},
    policies::{AcceptedPolicy, RefusedPolicy},
};
use crate::{app::failure::Failure, cli::render::counted, model::Escaped, sandbox::ChannelError};

impl Broker {
    /// Reads the configuration and the policies again. An unusable part changes
    /// nothing.
    pub(super) fn reload(&mut self) {
        listeners::notify("RELOADING=1");
        let read = self.plan.read_again();
        let is_new = read.is_ok();
        let mut plan = read.unwrap_or_else(|failure| {
            self.report_refused_configuration(&failure);
            // Policies are separate files.
            self.plan.unopened()
        });
        match plan.open(Some(&self.plan)) {
            Ok(faults) => self.apply(plan, &faults, is_new),
            Err(failure) => self.report_refused_configuration(&failure),
        }
        self.offer_policies();
        self.end_pauses();
        listeners::notify("READY=1");
    }

    fn report_refused_configuration(&mut self, failure: &Failure) {
        failure.print_details();
        errln!(
            "portcullis: warning: the changed configuration is not accepted: {}",
            failure.message()
        );
        if let Some(help) = failure.advice() {
            errln!("  help: {help}");
        }
        self.service_log.deny("reload", failure.message(), facts([]));
    }

    fn apply(&mut self, plan: Plan, faults: &[Fault], is_new: bool) {
        for fault in faults {
            self.report_fault(fault);
        }
        for (reference, policy) in &plan.policies {
            self.report_refused_policy(reference, policy);
        }
        if !plan.later.is_empty() {
            errln!(
                "portcullis: note: `{}` of the changed configuration applies from the next start",
                plan.later.join("`, `")
            );
        }
        let old = std::mem::replace(&mut self.plan, plan);
        let changed: Vec<_> = old
            .places
            .iter()
            .filter(|(name, place)| self.plan.places.get(*name) != Some(*place))
            .map(|(name, _)| name.clone())
            .collect();
        for name in &changed {
            self.stop_worker(name, false);
        }
        let added = self.plan.places.keys().filter(|name| !old.places.contains_key(*name)).count();
        // An agent with another token counts as another agent.
        let agents = &self.plan.service.agents;
        for (name, worker) in &mut self.workers {
            worker.close_for(|agent| {
                let now = agents.iter().find(|known| known.name.as_str() == agent);
                let then = old.service.agents.iter().find(|known| known.name.as_str() == agent);
                now.is_some_and(|now| {
                    now.may_use(name) && then.is_some_and(|then| then.token == now.token)
                })
            });
        }
        let is_gone = |name: &String| !self.plan.places.contains_key(name);
        // Pending messages about the previous change are obsolete, except for
        // workspaces that are still gone.
        self.unsent
            .retain(|order| matches!(order, ToFront::Gone { workspace, .. } if is_gone(workspace)));
        let gone = old.places.into_keys().filter(is_gone);
        let gone = gone.map(|workspace| ToFront::Gone { workspace, died: false, forget: true });
        self.unsent.extend(gone);
        let guard = listeners::guard(&self.plan.service, self.front_listeners.addresses());
        self.unsent.push(ToFront::Guard(guard));
        match self.front_listeners.renew(&self.plan.service) {
            Ok(order) => self.unsent.extend(order),
            Err(failure) => {
                let reason = failure.message();
                errln!("portcullis: warning: the old certificate stays: {}", Escaped(reason));
                let tls = self.plan.service.tls.as_ref();
                let file = tls.map(|tls| tls.certificate.display().to_string());
                self.service_log.deny("reload", reason, facts([("certificate", json!(file))]));
            }
        }
        self.instruct_front();
        if is_new {
            self.note_change(added, &changed);
        }
    }

    fn note_change(&mut self, added: usize, changed: &[String]) {
        errln!(
            "portcullis: the configuration is in force: {} ({added} new, {} stopped or changed), {}",
            counted(self.plan.places.len() as u64, "workspace"),
            changed.len(),
            counted(self.plan.service.agents.len() as u64, "agent"),
        );
        let facts = facts([
            ("workspaces", json!(self.plan.places.len())),
            ("added", json!(added)),
            ("stopped", json!(changed)),
            ("agents", json!(self.plan.service.agents.len())),
            ("unserved", json!(self.plan.unserved)),
            ("fromNextStart", json!(self.plan.later)),
        ]);
        self.service_log.note("reload", facts);
    }

    /// Reports a refused policy.
    fn report_refused_policy(&mut self, reference: &str, policy: &AcceptedPolicy) {
        let Some(RefusedPolicy { reason, .. }) = &policy.refused else { return };
        errln!(
            "portcullis: warning: the changed policy `{}` is not accepted: {}; version {} stays in \
             force",
            Escaped(reference),
            Escaped(reason),
            policy.version
        );
        self.service_log.deny("reload", reason, facts([("policy", json!(reference))]));
    }

    /// Ends the pauses of workspaces that could not be served, which may work now.
    fn end_pauses(&mut self) {
        for pause in self.failing.values_mut() {
            *pause = (Instant::now(), RETRY_INTERVALS.0);
        }
    }

    /// Reports that a workspace cannot be served as configured.
    fn report_fault(&mut self, fault: &Fault) {
        let Fault { workspace, is_still_served, failure } = fault;
        failure.print_details();
        let so = if *is_still_served { "it stays as it was" } else { "it is not served" };
        let reason = failure.message();
        errln!("portcullis: error: the workspace `{workspace}`: {}; {so}", Escaped(reason));
        let facts = facts([("workspace", json!(workspace)), ("served", json!(is_still_served))]);
        self.service_log.deny("reload", reason, facts);
    }

    /// Sends the front its hosts, origins and certificate. A message for which there
    /// is no room is sent again later.
    pub(super) fn instruct_front(&mut self) {
        let mut lost = None;
        let channel = &self.front_listeners.channel;
        self.unsent.retain(|order| match channel.send_now(order, &[]) {
            Err(ChannelError::Full) => true,
            Err(error) => {
                lost = Some(error);
                false
            }
            Ok(()) => false,
        });
        if let Some(error) = lost {
            // It must not continue with old settings: a new front starts with the
            // current ones.
            errln!(
                "portcullis: warning: cannot tell the front which agents it may accept: {error}"
            );
            self.front_listeners.end();
        }
    }

    /// Offers every running worker its policy: the worker knows if that is the one
    /// in force, or one that it has refused.
    fn offer_policies(&mut self) {
        let names: Vec<_> = self.workers.keys().cloned().collect();
        for name in names {
            self.offer_policy(&name);
        }
    }

    /// Offers a worker its policy. One whose channel has no room is offered it
    /// again.
    pub(super) fn offer_policy(&mut self, name: &str) {
        let Some(worker) = self.workers.get_mut(name) else { return };
        let Some(place) = self.plan.places.get(name) else { return };
        let Some(policy) = self.plan.policies.get(&place.policy) else { return };
        let sent = match &policy.refused {
            Some(RefusedPolicy { sha256, reason }) => {
                let (sha256, reason) = (sha256.clone(), reason.clone());
                worker.channel.send_now(&ToWorker::NoPolicy { sha256, reason }, &[])
            }
            None => match worker.shared.put(&policy.texts) {
                Ok(hash) => worker.channel.send_now(&ToWorker::Policy { hash }, &[]),
                Err(error) => {
                    errln!("portcullis: warning: cannot hand a policy over: {error}");
                    Ok(())
                }
            },
        };
        let is_full = matches!(sent, Err(ChannelError::Full));
        worker.note_pending_policy(is_full);
        if let Err(error) = sent
            && !is_full
        {
            let error = error.to_string();
            errln!(
                "portcullis: warning: the worker of `{name}` keeps its policy: {}",
                Escaped(&error)
            );
        }
    }
}
