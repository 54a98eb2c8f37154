//! `SIGHUP`: workspaces and agents come and go, and nobody else notices.

use serde_json::json;

use super::{
    broker::{Broker, facts},
    door,
    orders::{ToFront, ToWorker},
    plan::Plan,
};
use crate::{
    cli::{failure::Failure, render::counted, watch::packed},
    config::Gathered,
    model::Escaped,
    sandbox::ChannelError,
};

use std::os::fd::AsFd as _;

impl Broker {
    /// Reads the configuration and the policies again. What cannot be used
    /// changes nothing.
    pub(super) fn reload(&mut self) {
        door::notify("RELOADING=1");
        if let Some(path) = self.plan.config.clone().filter(|_| !self.plan.is_adopted()) {
            match self.plan.again(&path) {
                Ok(plan) => self.change(plan),
                Err(failure) => self.keep(&failure),
            }
        }
        self.offer_policies();
        door::notify("READY=1");
    }

    fn keep(&mut self, failure: &Failure) {
        failure.print_details();
        errln!(
            "portcullis: warning: the changed configuration is not taken up: {}",
            failure.message()
        );
        self.journal.deny("reload", failure.message(), facts([]));
    }

    fn change(&mut self, plan: Plan) {
        if plan.service.tls.is_some() != self.plan.service.tls.is_some() {
            errln!("portcullis: warning: TLS begins and ends with the service only");
        }
        let old = std::mem::replace(&mut self.plan, plan);
        let changed: Vec<_> = old
            .places
            .iter()
            .filter(|(name, place)| self.plan.places.get(*name) != Some(*place))
            .map(|(name, _)| name.clone())
            .collect();
        for name in &changed {
            self.dismiss(name);
        }
        let added = self.plan.places.keys().filter(|name| !old.places.contains_key(*name)).count();
        // An agent with another token is another agent.
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
        // What it was not told yet of the last change holds no more, but for what
        // is gone still.
        self.unsaid
            .retain(|order| matches!(order, ToFront::Gone { workspace, .. } if is_gone(workspace)));
        let gone = old.places.into_keys().filter(is_gone);
        let gone = gone.map(|workspace| ToFront::Gone { workspace, died: false, forget: true });
        self.unsaid.extend(gone);
        let guard = door::guard(&self.plan.service, self.doorway.addresses());
        self.unsaid.push(ToFront::Guard(guard));
        if old.service.tls.is_some() {
            match door::pem(&self.plan.service) {
                Ok(pem) => self.unsaid.extend(pem.map(ToFront::Tls)),
                Err(failure) => {
                    errln!("portcullis: warning: the old certificate stays: {}", failure.message());
                }
            }
        }
        self.instruct_front();
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
        ]);
        self.journal.note("reload", facts);
    }

    /// Tells the front the hosts and origins that it lets in now, and its
    /// certificate. What it has no room for it is told again.
    pub(super) fn instruct_front(&mut self) {
        let mut lost = None;
        let channel = &self.doorway.channel;
        self.unsaid.retain(|order| match channel.send_now(order, &[]) {
            Err(ChannelError::Full) => true,
            Err(error) => {
                lost = Some(error);
                false
            }
            Ok(()) => false,
        });
        if let Some(error) = lost {
            // It must not go on with what it knows: another starts with all of it.
            errln!("portcullis: warning: the front cannot be told whom it lets in: {error}");
            self.doorway.end();
        }
    }

    /// Hands every worker that runs its policy, if that is another than before.
    fn offer_policies(&mut self) {
        let names: Vec<_> = self.workers.keys().cloned().collect();
        for name in names {
            self.offer_policy(&name);
        }
    }

    /// The same for one worker. One that has no room for it now is offered it
    /// again.
    pub(super) fn offer_policy(&mut self, name: &str) {
        let Some(worker) = self.workers.get_mut(name) else { return };
        let Some(place) = self.plan.places.get(name) else { return };
        let gathered = Gathered::load(&place.policy).map_err(|error| (None, error.to_string()));
        let gathered = gathered.and_then(|gathered| {
            let sha256 = gathered.source().sha256();
            match self.plan.operator.trust(&gathered) {
                Ok(_) => Ok((gathered, sha256)),
                Err(error) => Err((Some(sha256), error.to_string())),
            }
        });
        let sent = match gathered {
            Ok((_, sha256)) if sha256 == worker.policy_sha256 => Ok(()),
            Ok((gathered, sha256)) => match packed(&gathered) {
                Ok(file) => {
                    let sent = worker.channel.send_now(&ToWorker::Policy, &[file.as_fd()]);
                    if sent.is_ok() {
                        worker.policy_sha256 = sha256;
                    }
                    sent
                }
                Err(error) => {
                    errln!("portcullis: warning: cannot hand a policy over: {error}");
                    Ok(())
                }
            },
            Err((sha256, why)) => worker.channel.send_now(&ToWorker::NoPolicy { sha256, why }, &[]),
        };
        let is_full = matches!(sent, Err(ChannelError::Full));
        worker.owe_policy(is_full);
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
