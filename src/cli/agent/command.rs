//! A command in a sandbox with a mount of the workspace, for `exec` and `shell`, and for `login`
//! without the mount.

mod home;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::Write as _,
    mem,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use serde_json::Value;

use self::home::Home;
use super::{
    agent_config,
    callback::{self, Callback, CallbackPort},
    credentials::Credentials,
    options::{Purpose, SandboxOptions},
    protocol::AgentService,
    repository,
    start::{
        Recorded, SandboxBroker, await_confined, build, host_facts, introduce, start_egress,
        start_gateway, warn,
    },
    supervisor::{RunEnd, STEP_TIMEOUT, SignalHandling, Supervisor},
    workspaces::{MountNeed, finish},
};
use crate::{
    app::{
        default_agents,
        failure::{Context as _, Exit, Failure},
        new_file::{Destination, NewFile},
        opened::Opened,
        presets::Preset,
        stderr,
        trusted_paths::shared_by_agents,
    },
    cli::{
        command_summary::Summaries,
        launch_failure::{LIBRARY_MISSING, NOT_STARTED, explain},
    },
    commands::recorded_arguments,
    sandbox::{
        Enforcement, Forwarded, Grant, Network, SandboxSpec, StandardStreams, Stream, Trusted,
        TrustedPath, TrustedPaths, unblock_signals,
    },
};

/// The exit code after a timeout, as that of timeout(1).
const TIMED_OUT: u8 = 124;

/// The options of the summary.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ReportOptions {
    /// Write the summary to this file, as one JSON object, and not to standard error; it lies
    /// where the command cannot change it
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Print the summary as one JSON object, on standard error as the text would be
    #[arg(long, conflicts_with = "summary")]
    json: bool,
    /// Print no summary
    #[arg(long, short, conflicts_with_all = ["summary", "json"])]
    quiet: bool,
}

impl ReportOptions {
    /// Returns options without any report.
    pub(in crate::cli) fn quiet() -> Self {
        Self { summary: None, json: false, quiet: true }
    }
}

/// Returns the facts about the command and its agent paths, for its record.
fn granted(spec: &SandboxSpec) -> BTreeMap<String, Value> {
    let command = std::iter::once(&spec.program).chain(&spec.arguments);
    let command = command.map(|argument| argument.to_string_lossy().into_owned());
    let paths = |grants: &[Grant]| -> Vec<_> {
        grants.iter().map(|grant| grant.path.to_string_lossy().into_owned()).collect()
    };
    let variables: Vec<_> = spec.environment.keys().map(|name| name.to_string_lossy()).collect();
    let mut granted = recorded_arguments(command);
    granted.extend([
        ("agentRead".to_owned(), paths(&spec.read).into()),
        ("agentWrite".to_owned(), paths(&spec.write).into()),
        ("agentEnv".to_owned(), variables.into()),
    ]);
    granted
}

/// Opens the directory of the summary before the command runs, which may change directories on the
/// way. A test write ensures that the report will not be lost.
///
/// # Errors
/// When the command could change the file, and as [`NewFile::at`].
fn open_summary(named: &Path, paths: &TrustedPaths) -> Result<Destination, Failure> {
    let path = std::path::absolute(named).or_fail("cannot look up the summary")?;
    let trusted = vec![TrustedPath { role: Trusted::Summary, path }];
    let agents = paths.agents.iter().cloned().chain(shared_by_agents()).collect();
    TrustedPaths { trusted, agents }.check_trusted().map_err(Failure::new)?;
    let file = Destination::open(named)?;
    NewFile::at(file.clone())?;
    Ok(file)
}

/// Writes the summary to its file.
fn store(summary: &Summaries, file: Destination) -> Result<(), Failure> {
    let fresh = NewFile::at(file)?;
    let written = fresh.file().write_all(summary.json().as_bytes()).and_then(|()| fresh.keep());
    written.or_fail("cannot write the summary")
}

/// A command to run in the sandbox.
pub(in crate::cli) struct SandboxCommand {
    pub(in crate::cli) purpose: Purpose,
    /// The port at which the operator's browser reaches a login.
    pub(in crate::cli) callback: Option<CallbackPort>,
    pub(in crate::cli) sandbox: SandboxOptions,
    /// The command; if empty, the preset's for this purpose, or one of the shells.
    pub(in crate::cli) command: Vec<OsString>,
    /// The shells to try: the first that exists in the sandbox runs, otherwise the last.
    pub(in crate::cli) shells: Vec<Vec<OsString>>,
    /// Variables in addition to those of the options and the policy.
    pub(in crate::cli) environment: BTreeMap<OsString, OsString>,
    pub(in crate::cli) streams: StandardStreams,
    pub(in crate::cli) timeout: Option<Duration>,
    pub(in crate::cli) report: ReportOptions,
}

impl SandboxCommand {
    /// Runs it to its end, and reports what it did.
    pub(in crate::cli) fn run(self) -> Result<ExitCode, Failure> {
        // Standard output belongs to the command, even if it printed nothing.
        self.start().map_err(Failure::beside_result)
    }

    fn is_on_terminal(&self) -> bool {
        matches!(self.streams, StandardStreams::Terminal { .. })
    }

    /// Returns the commands to try.
    fn commands(&mut self, preset: Option<&Preset>) -> Vec<Vec<OsString>> {
        let own = mem::take(&mut self.command);
        let presets = preset.iter().flat_map(|preset| match self.purpose {
            Purpose::Work => &preset.terminal,
            Purpose::Login => &preset.login,
        });
        let presets = presets.map(OsString::from).collect();
        let named = [own, presets].into_iter().find(|command| !command.is_empty());
        match named {
            Some(command) => vec![command],
            None => mem::take(&mut self.shells),
        }
    }

    /// Returns the sandbox of the first command that exists.
    fn spec(
        commands: &[Vec<OsString>],
        make: impl Fn(&[OsString]) -> Result<SandboxSpec, Failure>,
    ) -> Result<SandboxSpec, Failure> {
        let Some((last, others)) = commands.split_last() else { return make(&[]) };
        for command in others {
            let spec = make(command)?;
            if spec.has_program() {
                return Ok(spec);
            }
        }
        make(last)
    }

    fn start(mut self) -> Result<ExitCode, Failure> {
        let preset = self.sandbox.preset()?;
        let commands = self.commands(preset.as_ref());
        if commands.is_empty() {
            return Err(Failure::new("the command that logs the agent in is not known")
                .exit(Exit::Usage)
                .help("name it after `--`, as its manual has it"));
        }
        let preset = preset.map(|preset| preset.name);
        let SandboxBroker { signals, suspend, files } = SandboxBroker::new(&self.sandbox)?;
        let common = &self.sandbox.common;
        let named = preset.as_deref().map(|name| common.agent(name)).transpose()?;
        let named = common.agent.clone().or(named);
        let agent = named.clone().map_or_else(|| common.agent(default_agents::EXEC), Ok)?;
        let mut home = Home::of(named.as_ref())?;
        let workspaces = self.sandbox.open(home.name(), self.purpose)?;
        let make =
            |command: &[_]| self.sandbox.spec(&workspaces, home.name(), command, Enforcement::Full);
        let mut spec = Self::spec(&commands, make)?;
        home.prepare_at(&spec.home)?;
        (spec.files, spec.streams) = (files, self.streams);
        for (name, value) in &self.environment {
            spec.environment.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let credentials = match self.purpose {
            Purpose::Work => Credentials::prepare(&workspaces.main, &agent, &mut spec)?,
            Purpose::Login => Credentials::none(&workspaces.main, &mut spec)?,
        };
        let callback =
            self.callback.map(|port| Callback::listen(port, &spec.network)).transpose()?;
        if callback.is_some() {
            spec.unconnected = callback::MAX_CONNECTIONS;
            spec.socket_tables = self.callback == Some(CallbackPort::Auto);
        }
        let paths = workspaces.trusted_paths(&spec).map_err(explain)?;
        let file = self.report.summary.as_deref();
        let file = file.map(|named| open_summary(named, &paths)).transpose()?;
        let shared = workspaces.shared_policies()?;
        let service =
            if self.is_on_terminal() { AgentService::Terminal } else { AgentService::Command };
        let mount_need = match self.purpose {
            Purpose::Work => MountNeed::Required,
            Purpose::Login => MountNeed::Unwanted,
        };
        let mut gateway =
            start_gateway(&self.sandbox, &workspaces, &agent, &shared, service, mount_need, &[])?;
        let watches = workspaces.watches(&paths, shared);
        let (mut built, _) =
            build(&mut gateway, &mut spec, mount_need, "`portcullis doctor` says more")?;
        let egress = start_egress(&mut built, &spec, &workspaces, (&agent, credentials))?;
        let (egress, links) = egress.unzip();
        let sockets = &mut built.sockets;
        let sockets = (mem::take(&mut sockets.unconnected), sockets.tables.take());
        let pending = built.test().map_err(explain)?;
        warn(&pending.report);
        if !pending.report.mount {
            await_confined(&mut gateway, Enforcement::Full)?;
        }
        workspaces.warn_of_observing();
        let mut facts = pending.report.facts();
        facts.extend(host_facts(&workspaces, links.as_ref()));
        facts.extend(preset.map(|name| ("preset".to_owned(), name.into())));
        facts.extend(granted(&spec));
        agent_config::warn(&spec, &mut facts);
        if self.purpose == Purpose::Login {
            facts.insert("credentials".to_owned(), "in-sandbox".into());
        }
        facts.extend(self.callback.map(|port| ("callback".to_owned(), port.fact())));
        if self.is_on_terminal() {
            facts.insert("pseudoTerminal".to_owned(), true.into());
        }
        let Recorded { session, records } =
            introduce(&mut gateway, (&pending, links), &spec, facts)?;
        let shipping = workspaces.ship()?;
        let mut unoffered = Vec::new();
        for opened in workspaces.all() {
            let own = (opened, &*workspaces.writable_beside(opened));
            let (of, within) = ((&agent, &*session), (&signals, self.timeout));
            if !repository::prepare(&pending, own, of, within, &mut unoffered)? {
                errln!(
                    "portcullis: the command was not started: making a private git repository \
                     took longer than `--timeout`"
                );
                return Ok(ExitCode::from(TIMED_OUT));
            }
        }
        if let Some(callback) = callback {
            callback.serve(sockets, gateway.channel())?;
        }
        gateway.begin()?;
        let mut command = pending.release().map_err(explain)?;
        let outputs = mem::take(&mut command.outputs);
        let time_is_over = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let manner = match self.is_on_terminal() {
            true => SignalHandling::Terminal,
            false => SignalHandling::Command { timeout: self.timeout },
        };
        let watched = (watches, egress);
        let supervisor = Supervisor::new(command, gateway, (signals, suspend), watched, manner)?;
        if self.is_on_terminal() {
            stderr::hold();
        }
        let ended = supervisor.run();
        stderr::show_held();
        // The command has ended. A signal may end the remaining steps, which need not be waited
        // for.
        unblock_signals().or_fail("cannot unblock signals")?;
        finish(shipping);
        workspaces.settle_scratch(&agent, mount_need);
        let RunEnd { code, timed_out, gateway_failed, .. } = ended?;
        let code = if timed_out { TIMED_OUT } else { code };
        let listens =
            matches!(&spec.network, Network::Connect { listen, .. } if !listen.is_empty());
        let may_be_called_back = listens || self.callback.is_some();
        if self.purpose == Purpose::Login && code != 0 && !may_be_called_back {
            let option = match spec.network {
                Network::None => {
                    "name its port with `--callback PORT`, or have that found by `--callback auto`"
                }
                Network::Connect { .. } => "let it listen with `--agent-listen 0`",
            };
            errln!("portcullis: help: if the browser has to call it back, {option}");
        }
        let begun = workspaces.all().zip(records);
        let import =
            |opened: &Opened, record| repository::import(opened, record, &unoffered, time_is_over);
        let summary = Summaries::read(
            begun,
            &session,
            (code, timed_out),
            import,
            (&agent, workspaces.hosts.preset()),
        );
        let stored = match (&summary, file) {
            (Ok(summary), Some(file)) => store(summary, file),
            _ => Ok(()),
        };
        // Without a timeout the reader of the output has unlimited time, as with any program.
        let limit = || time_is_over.map(|end| end.max(Instant::now() + STEP_TIMEOUT));
        let Forwarded { failures, ends_line } = outputs.finish(limit());
        let summary = summary?;
        stored?;
        let mut text = String::new();
        if timed_out {
            text += "portcullis: the command ran longer than `--timeout` and was stopped\n";
        }
        for (stream, error) in &failures {
            let what = if *stream == Stream::Input { "read" } else { "write" };
            text += &format!("portcullis: cannot {what} the command's {stream}: {error}\n");
        }
        if code == NOT_STARTED && !self.report.json && !self.report.quiet {
            text += &format!("portcullis: help: {LIBRARY_MISSING}\n");
        }
        if self.report.json {
            text += &summary.json();
        } else if !self.report.quiet && self.report.summary.is_none() {
            text += &summary.text();
        }
        if !ends_line && !text.is_empty() {
            text.insert(0, '\n');
        }
        let is_told = stderr::write_whole(text.as_bytes(), limit()).is_ok();
        // If the mount failed, the exit code of the command proves nothing.
        let is_complete = is_told && failures.is_empty() && !gateway_failed;
        Ok(ExitCode::from(if code == 0 && !is_complete { 1 } else { code }))
    }
}
