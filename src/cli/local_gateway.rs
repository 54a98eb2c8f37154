//! A gateway in this process, for commands at a shell.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde_json::Value;

use super::{announcer::Announcer, gateway_options::GatewayOptions};
use crate::{
    app::{
        bootstrap::{Profile, Started},
        default_agents,
        failure::Failure,
        housekeeping, logging,
        opened::Opened,
        options::Common,
        path_argument,
        session::session,
    },
    gateway::{self, Client, Error, Gateway, Reply, Request},
    model::{AgentName, Session, Transport, WorkspacePath},
};

/// A gateway that carries out the requests of this process.
pub(crate) struct LocalGateway {
    started: Started,
    announcer: Announcer,
    options: GatewayOptions,
}

impl LocalGateway {
    /// Opens policy, workspace and state directory, confines this process to them, recovers
    /// unfinished changes, and records the start.
    pub(crate) fn open(common: &Common) -> Result<Self, Failure> {
        let agent = common.agent(default_agents::FS)?;
        let opened =
            Self::open_after(common, |_| Ok(((agent, BTreeMap::new()), Profile::default(), ())))?;
        Ok(opened.0)
    }

    /// Opens it after `prepare`, which starts processes that a confined process cannot start, and
    /// returns the agent and facts of the `start` record, and the profile.
    pub(crate) fn open_after<T>(
        common: &Common,
        prepare: impl FnOnce(
            &Opened,
        )
            -> Result<((AgentName, BTreeMap<String, Value>), Profile, T), Failure>,
    ) -> Result<(Self, T), Failure> {
        let opened = Opened::open(common)?;
        opened.warn();
        let ((agent, facts), profile, prepared) = prepare(&opened)?;
        let session = session(agent, Transport::Cli)?;
        // Warnings of the gateway are printed to the terminal.
        logging::start_on_stderr("warn")?;
        let options = GatewayOptions::of(&opened);
        let confined = opened.confine(profile)?;
        confined.warn();
        let started = confined.recover()?.start(session, facts)?;
        let announcer = Announcer::of(&started);
        Ok((Self { started, announcer, options }, prepared))
    }

    /// Passes a request to the gateway; if a rule asks, prints how to approve.
    pub(crate) fn handle<R: Request>(&self, request: &R) -> Result<Reply<R::Output>, Error> {
        let client = Client::asking(&self.announcer);
        self.gateway().handle(self.session(), request, client)
    }

    /// Returns the approver, which prints how to approve.
    pub(crate) fn approver(&self) -> &dyn gateway::Approver {
        &self.announcer
    }

    /// Returns the options that lead to the same gateway.
    pub(crate) fn options(&self) -> &GatewayOptions {
        &self.options
    }

    /// Parses a path argument; an invalid one is recorded as a refusal of `op`.
    pub(crate) fn path(&self, op: &str, text: &str) -> Result<WorkspacePath, Error> {
        path_argument::parse(self.gateway().workspace().root(), text)
            .map_err(|refusal| self.gateway().refuse(self.session(), op, Some(text), &refusal))
    }

    pub(crate) fn gateway(&self) -> &Gateway {
        &self.started.gateway
    }

    pub(crate) fn session(&self) -> &Session {
        &self.started.session
    }

    /// Returns the directory of the log.
    pub(crate) fn log(&self) -> PathBuf {
        self.started.state_path.join("audit")
    }

    /// Records the stop. There is no housekeeping thread, so the command that makes packing of
    /// backups due does it at its end.
    pub(crate) fn close(self) -> Result<(), Failure> {
        let maintenance = self.gateway().maintenance();
        if maintenance.has_saved() {
            housekeeping::pack_if_due(&maintenance);
        }
        if let Some(error) = self.started.stop(Duration::ZERO)? {
            errln!("portcullis: warning: no checkpoint of the audit log was signed: {error}");
        }
        Ok(())
    }
}
