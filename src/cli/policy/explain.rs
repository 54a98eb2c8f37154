//! `portcullis policy explain`: the gateway's decision, and the reason.

mod answer;
mod connect;
mod implied;
mod reachable_entries;
mod record;
mod search;

use std::{net::IpAddr, process::ExitCode};

use self::answer::{explained, print_report, report_json};
use crate::{
    app::{
        default_agents,
        failure::{Exit, Failure},
        options::Common,
        pager::PagerOptions,
        path_argument,
        policy_loading::load,
        presets::{self, PresetParser},
        workspace::open_workspace,
    },
    cli::{
        agent::options::{Purpose, hosts_of},
        render::unknown_word,
    },
    config::Operator,
    gateway::{Follow, Refusal, Resolved, Workspace},
    model::{AgentName, Escaped, OperationKind, WorkspacePath},
    policy::{LabelIds, Policy},
};

/// Explain a decision: every stage with its verdict, and the deciding rule
///
/// The decision takes into account what is at the path in the workspace, and for a directory that
/// is removed or renamed everything in it. Content is not read, and nothing is changed or recorded.
/// `--record` explains what the log says of a request, and `--who` shows everything in the
/// workspace that an agent can read, list, write or remove.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy explain read .env\n  \
    portcullis policy explain write .git/hooks/pre-commit --policy strict\n  \
    portcullis policy explain connect example.com:443\n  \
    portcullis policy explain connect example.com:443 --read data/customers.csv\n  \
    portcullis policy explain connect api.openai.com:443 --preset codex\n  \
    portcullis policy explain --record 4711\n  \
    portcullis policy explain --who release-bot --can write")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// read, write, append, edit, list, stat, glob, grep, watch, mkdir, remove, rename, restore or
    /// connect
    #[arg(value_parser = parse_operation, required_unless_present_any = ["record", "who"])]
    operation: Option<OperationKind>,
    /// The path, relative to the workspace; of `connect` the host and port
    #[arg(required_unless_present_any = ["record", "who"])]
    path: Option<String>,
    /// The new name of a rename
    #[arg(long, value_name = "PATH", required_if_eq("operation", "rename"))]
    to: Option<String>,
    /// An address that the host of `connect` has, to be decided on as well
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// A path that was read before `connect`, whose labels count; may be given several times
    #[arg(long, value_name = "PATH")]
    read: Vec<String>,
    /// A preset whose hosts count for `connect`, as for an agent that is started with it
    #[arg(long, value_name = "NAME|FILE", value_parser = PresetParser, hide_possible_values = true)]
    preset: Option<String>,
    /// Explain this record of the log, and how the policy decides on it now
    #[arg(long, value_name = "N", conflicts_with_all = ["operation", "path", "who"])]
    record: Option<u64>,
    /// Show all that this agent can do in the workspace
    #[arg(long, value_name = "AGENT", conflicts_with_all = ["operation", "path"])]
    who: Option<AgentName>,
    /// The operation to list paths for: read (by `grep` alone, too), grep, list, stat, glob, watch,
    /// write, append, edit, mkdir, remove or rename
    #[arg(long, value_name = "OPERATION", default_value = "write", requires = "who")]
    can: reachable_entries::AllowedOperation,
    #[command(flatten)]
    pager: PagerOptions,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.common.adopts_nothing()?;
    if !args.json {
        args.pager.enable(&args.common.workspace);
    }
    // A configuration that cannot be used says so at a start.
    let configured = || Operator::load(args.common.config.as_deref()).unwrap_or_default();
    if let Some(record) = args.record {
        return record::run(&args.common, &configured().credentials, record, args.json);
    }
    if let Some(agent) = &args.who {
        return reachable_entries::run(&args.common, agent, args.can, args.json);
    }
    let (Some(operation), Some(path)) = (args.operation, &args.path) else {
        return Err(Failure::new("name an operation and a path").exit(Exit::Usage));
    };
    if operation == OperationKind::Connect {
        if args.to.is_some() {
            return Err(Failure::new("`--to` is for `rename`").exit(Exit::Usage));
        }
        let mut policy = load(&args.common.policy)?;
        let preset =
            args.preset.as_deref().map(|name| give_hosts(&mut policy, name)).transpose()?;
        let agent = args.common.agent(preset.as_deref().unwrap_or("agent"))?;
        let mut read = LabelIds::new();
        if !args.read.is_empty() {
            let workspace = open_workspace(&args.common.workspace)?;
            for path in &args.read {
                let path = parse_path(&workspace, path)?;
                // A read through a link is one of the file that it leads to.
                let resolved = workspace.view().resolve(&path, Follow::Yes);
                let there = resolved.as_ref().map_or(&path, Resolved::path);
                let labels = policy.labels().of(there);
                read.extend(labels.ids().map(str::to_owned));
            }
        }
        let operator = configured();
        let policy = (&policy, &*operator.credentials);
        return connect::run(policy, &agent, path, (args.address, &read), args.json);
    }
    if args.address.is_some() || !args.read.is_empty() || args.preset.is_some() {
        let message = "`--address`, `--preset` and `--read` are for `connect`";
        return Err(Failure::new(message).exit(Exit::Usage));
    }
    let workspace = open_workspace(&args.common.workspace)?;
    let path = parse_path(&workspace, path)?;
    let to = match (&args.to, operation) {
        (Some(to), OperationKind::Rename) => Some(parse_path(&workspace, to)?),
        (Some(_), _) => {
            return Err(Failure::new("`--to` is for `rename`").exit(Exit::Usage));
        }
        (None, _) => None,
    };
    let policy = load(&args.common.policy)?;
    let agent = args.common.agent(default_agents::RUN)?;
    let (decision, answers, notes) =
        explained(&policy, workspace.view(), &agent, operation, &path, to.as_ref())?;
    if args.json {
        outjson!(report_json(&policy, &agent, operation, &decision, &answers, &notes));
    } else {
        print_report(&policy, &agent, operation, &decision, &answers, &notes);
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives the policy the hosts of a preset; returns its name.
fn give_hosts(policy: &mut Policy, reference: &str) -> Result<String, Failure> {
    let (preset, _) = presets::load(reference)?;
    let variables = [&*preset.env, &*preset.set].concat();
    let hosts = hosts_of(&preset, policy, &variables, Purpose::Work)?;
    policy.give_hosts(hosts.rules()?);
    Ok(preset.name)
}

fn parse_operation(text: &str) -> Result<OperationKind, String> {
    let mut known = OperationKind::ALL.into_iter().chain([OperationKind::Connect]);
    let words = known.clone().map(OperationKind::as_str);
    known.find(|kind| kind.as_str() == text).ok_or_else(|| unknown_word(text, words))
}

fn parse_path(workspace: &Workspace, text: &str) -> Result<WorkspacePath, Failure> {
    path_argument::parse(workspace.root(), text).map_err(|refusal| {
        let reason = match refusal {
            Refusal::Path(error) => error.to_string(),
            _ => "it lies outside the workspace".to_owned(),
        };
        Failure::new(format_args!("bad path `{}`: {reason}", Escaped(text)))
            .exit(Exit::Usage)
            .help("paths are relative to the workspace, such as `src/a.rs`")
    })
}
