//! The start of a gateway process, step by step: it opens its workspaces by path, confines
//! itself to them, and records the start in the log of each.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use serde_json::Value;

use super::{
    egress::CredentialLinks,
    protocol::{self, AgentOrder, Progress, WorkspaceOrder},
};
use crate::{
    app::{
        bootstrap::{Confined, Profile, Recovered, Started, confine_all},
        failure::{Context as _, Failure},
        git::session::OTHERS,
        mount::{self, ServedMount},
        opened::Opened,
        policy_transfer::SharedPolicy,
        scratch::ScratchLocation,
    },
    cli::{announcer::Announcer, gateway_options::GatewayOptions},
    egress::Links,
    model::{AgentName, ClaimedToolCall, Session},
    mount::CommandLeaders,
    sandbox::Channel,
};

/// The record about the sandbox, if there is a mount.
const SANDBOX: &str = "sandbox";

/// A workspace of the order, opened.
pub(super) struct OpenedWorkspace {
    opened: Opened,
    alias: PathBuf,
    /// The file through which its policy reloads come.
    pub(super) shared: SharedPolicy,
    scratch: Option<ScratchLocation>,
    /// True if programs in the mount can read the objects of the workspace's git repository.
    shows_git_objects: bool,
}

impl OpenedWorkspace {
    /// Opens a workspace for `agent`, which may see it in a `mount`. The next descriptors
    /// in `files` belong to it.
    pub(super) fn open(
        workspace: &WorkspaceOrder,
        agent: &AgentName,
        mount: bool,
        files: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Self, Failure> {
        let mut opened = workspace.launch.open(files)?;
        opened.sign_through(files)?;
        opened.notify_through(workspace.launch.notifies, files)?;
        let shared = files.next().ok_or_else(|| Failure::new("no file came for later policies"))?;
        let mut scratch = match mount {
            true => ScratchLocation::open(&opened, agent)?,
            false => None,
        };
        if let Some(scratch) = &mut scratch {
            scratch.find_head(opened.workspace.root(), &workspace.writable);
        }
        let alias = workspace.alias.clone();
        let shows_git_objects = mount && opened.policy.shows_git_objects(agent);
        Ok(Self { opened, alias, shared: shared.into(), scratch, shows_git_objects })
    }

    /// Returns the options that lead to it.
    pub(super) fn options(&self) -> GatewayOptions {
        GatewayOptions::of(&self.opened)
    }

    pub(super) fn state_path(&self) -> &Path {
        &self.opened.state_path
    }
}

/// The origins that records of a mount's requests name besides the process.
#[derive(Clone)]
pub(super) struct Origins {
    /// The commands started in the sandbox, for the mount of the first workspace.
    pub(super) leaders: Arc<CommandLeaders>,
    /// The tool call that the agent says is in progress.
    pub(super) tool_call: Arc<ClaimedToolCall>,
    /// True until the broker reports that the agent's own programs begin.
    pub(super) setup: Arc<AtomicBool>,
}

impl Origins {
    /// Returns those of a sandbox that is set up.
    fn new() -> Self {
        let setup = Arc::new(AtomicBool::new(true));
        Self { leaders: Arc::default(), tool_call: Arc::default(), setup }
    }
}

/// A gateway whose start is recorded, with the waiting agent.
pub(super) struct StartedGateway {
    /// The workspaces, in their order.
    pub(super) started: Vec<Started>,
    /// The mount of each, if there are any.
    pub(super) mounted: Vec<ServedMount>,
    pub(super) agent: AgentOrder,
    /// The origins that records of the mounts name.
    pub(super) origins: Origins,
    /// The agent's streams, the source of its MCP clients, and the descriptor for commands.
    pub(super) streams: Vec<OwnedFd>,
    /// The descriptors of the egress process and of the connector, if its programs have a
    /// proxy.
    pub(super) egress: Option<(Links, CredentialLinks)>,
}

/// The content of the broker's message about the agent.
struct AgentMessage {
    agent: AgentOrder,
    streams: Vec<OwnedFd>,
    egress: Option<(Links, CredentialLinks)>,
}

/// Confines this process to the workspaces `given`, and records the start of the session in
/// each; `mount` is true if the sandbox may have mounts.
pub(super) fn start(
    channel: &Channel,
    mut given: Vec<OpenedWorkspace>,
    session: &Session,
    mount: bool,
) -> Result<(StartedGateway, Vec<SharedPolicy>), Failure> {
    let origins = Origins::new();
    let mounts = match mount {
        true => receive_mounts(channel, &mut given, &origins)?,
        false => None,
    };
    let roots = given.iter().map(|given| given.opened.workspace.root().to_owned());
    let roots: Vec<_> = roots.collect();
    let (mut opened, mut shared) = (Vec::new(), Vec::new());
    for (number, given) in given.into_iter().enumerate() {
        let mount = mounts.as_ref().and_then(|mounts| mounts.get(number));
        opened.push((given.opened, profile(mount)?));
        shared.push(given.shared);
    }
    let confined = confine_all(opened)?;
    let report = confined.first().map(Confined::report);
    let dropped_capabilities = report.is_some_and(|report| report.dropped_capabilities);
    channel
        .send(&Progress::Confined { dropped_capabilities }, &[])
        .or_fail("cannot answer the broker")?;

    let mut recovered =
        confined.into_iter().map(Confined::recover).collect::<Result<Vec<_>, _>>()?;
    if let Some((first, others)) = recovered.split_first_mut() {
        others.iter_mut().for_each(|other| other.share_sandbox(first));
    }
    let recovered = recovered.into_iter().zip(others(&roots)).collect();
    Ok((introduce(channel, recovered, session, (mounts, origins))?, shared))
}

fn profile(mount: Option<&mount::MountOrder>) -> Result<Profile, Failure> {
    const DOING: &str = "cannot start the gateway";
    let processes = mount.and_then(|mount| mount.processes.as_ref());
    let scratch = mount.and_then(|mount| mount.scratch.as_ref()).map(|place| &place.directory);
    let processes = processes.map(OwnedFd::try_clone).transpose().or_fail(DOING)?;
    let further = scratch.map(OwnedFd::try_clone).transpose().or_fail(DOING)?;
    Ok(Profile { long_lived: true, reloads: true, processes, further, ..Profile::default() })
}

/// Returns for each workspace the fact that names the others.
fn others(roots: &[PathBuf]) -> impl Iterator<Item = BTreeMap<String, Value>> {
    roots.iter().map(|root| {
        let others = roots.iter().filter(|other| *other != root);
        let others: Vec<_> = others.map(|other| Value::from(other.to_string_lossy())).collect();
        let others = Some(others).filter(|others| !others.is_empty());
        others.map(|others| (OTHERS.to_owned(), others.into())).into_iter().collect()
    })
}

fn receive_mounts(
    channel: &Channel,
    given: &mut [OpenedWorkspace],
    origins: &Origins,
) -> Result<Option<Vec<mount::MountOrder>>, Failure> {
    let received = channel.receive::<Option<protocol::Mount>>();
    let (order, mut devices) = received.or_fail("the agent did not start")?;
    let Some(protocol::Mount { user, group }) = order else { return Ok(None) };
    if devices.len() < given.len() {
        return Err(Failure::new("no mount came with the order"));
    }
    let processes = devices.split_off(given.len()).pop();
    let order = |(number, (given, device)): (usize, (&mut OpenedWorkspace, OwnedFd))| {
        let processes = processes.as_ref().map(OwnedFd::try_clone).transpose();
        let roots = vec![given.opened.workspace.root().to_owned(), given.alias.clone()];
        Ok(mount::MountOrder {
            device,
            processes: processes.or_fail("cannot start the gateway")?,
            // The records of commands are in the first log.
            leaders: (number == 0).then(|| Arc::clone(&origins.leaders)),
            tool_call: Arc::clone(&origins.tool_call),
            setup: Arc::clone(&origins.setup),
            user,
            group,
            roots,
            scratch: given.scratch.take(),
            shows_git_objects: given.shows_git_objects,
            records: given.opened.audit.mount,
        })
    };
    given.iter_mut().zip(devices).enumerate().map(order).collect::<Result<_, _>>().map(Some)
}

/// Records the start with the results of the sandbox's self-test, in one record; with
/// mounts in two, because the self-test needs the mounts, and these need the start.
fn introduce(
    channel: &Channel,
    recovered: Vec<(Recovered, BTreeMap<String, Value>)>,
    session: &Session,
    (mounts, origins): (Option<Vec<mount::MountOrder>>, Origins),
) -> Result<StartedGateway, Failure> {
    let Some(mounts) = mounts else {
        let AgentMessage { mut agent, streams, egress } = introduced(channel)?;
        let found = std::mem::take(&mut agent.facts);
        let start = |(recovered, mut facts): (Recovered, BTreeMap<_, _>)| {
            facts.extend(found.clone());
            recovered.start(session.clone(), facts)
        };
        let started = recovered.into_iter().map(start).collect::<Result<_, _>>()?;
        return Ok(StartedGateway {
            started,
            mounted: Vec::new(),
            agent,
            origins,
            streams,
            egress,
        });
    };
    let mut started = Vec::new();
    for ((recovered, mut facts), mount) in recovered.into_iter().zip(&mounts) {
        facts.insert("mount".to_owned(), true.into());
        facts.extend(mount.facts());
        mount.warn();
        started.push(recovered.start(session.clone(), facts)?);
    }
    let serve = |(started, mount): (&Started, _)| {
        let announcer = Announcer::of(started);
        ServedMount::serve(started, mount, Box::new(announcer))
    };
    let mounted = started.iter().zip(mounts).map(serve).collect::<Result<Vec<_>, _>>()?;
    match introduced_in(channel, &started, &mounted) {
        Ok(AgentMessage { agent, streams, egress }) => {
            Ok(StartedGateway { started, mounted, agent, origins, streams, egress })
        }
        Err(error) => {
            // No program has run.
            for mounted in mounted {
                let _ = mounted.end(Duration::ZERO);
            }
            Err(error)
        }
    }
}

/// Waits for an agent in served mounts, and records the results of its sandbox's self-test.
fn introduced_in(
    channel: &Channel,
    started: &[Started],
    mounted: &[ServedMount],
) -> Result<AgentMessage, Failure> {
    channel.send(&Progress::Mounted, &[]).or_fail("cannot answer the broker")?;
    let mut arrived = introduced(channel)?;
    let facts = std::mem::take(&mut arrived.agent.facts);
    for (started, mounted) in started.iter().zip(mounted) {
        let facts = facts.clone().into_iter().chain(mounted.facts()).collect();
        let recorded = started.gateway.note(&started.session, SANDBOX, facts);
        recorded.or_fail("cannot record what the sandbox is")?;
    }
    Ok(arrived)
}

fn introduced(channel: &Channel) -> Result<AgentMessage, Failure> {
    let (mut agent, mut streams) =
        channel.receive::<AgentOrder>().or_fail("the agent did not start")?;
    let routes = std::mem::take(&mut agent.credentials);
    let processes = streams.split_off(streams.len().saturating_sub(routes.len()));
    let credentials = routes.into_iter().zip(processes).collect();
    let mut ends = streams.split_off(streams.len().saturating_sub(agent.egress)).into_iter();
    let links = ends.next().map(|proxy| Links { proxy, connector: ends.collect() });
    let egress = links.map(|links| (links, credentials));
    Ok(AgentMessage { agent, streams, egress })
}
