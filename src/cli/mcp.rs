//! `portcullis mcp`: the gateway as an MCP server on stdin and stdout.
//!
//! The MCP client starts this process itself, so there is no sandbox around an agent,
//! and the gateway has no control over other actions of the client. The process
//! confines itself before it reads the client's first byte.

use std::{
    collections::BTreeMap, fs::File, os::fd::AsFd as _, path::PathBuf, process::ExitCode,
    time::Duration,
};

use serde_json::json;

use super::{announcer, connect, gateway_options};
use crate::{
    app::{
        bootstrap::Profile,
        default_agents,
        failure::{Context as _, Exit, Failure},
        logging,
        opened::Opened,
        options::Common,
        process,
        session::session,
        stderr,
    },
    mcp::{self, ClientLocation, Input, Name, Toolset},
    model::Transport,
    sandbox::{close_inherited, stop_signals, take_standard_streams},
};

/// Timeout of the last threads after the client has gone.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Serve the workspace to an MCP client on stdin and stdout
///
/// The client starts this command as an MCP server. Policy, backups and log are
/// those of every other transport. Only requests to this server are restricted: an agent whose
/// client runs commands by itself bypasses it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis mcp --workspace ~/project\n  \
    portcullis mcp --tools reference --workspace ~/project\n  \
    claude mcp add files -- portcullis mcp --workspace ~/project\n\n\
    A request for which a rule with `effect = \"ask\"` applies is shown to the client's user, if \
    the client can ask, and by `portcullis approve`. A changed policy applies after the client has \
    restarted the server.")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    logging: logging::Options,
    /// The set of tools: `workspace__NAME__read_file` and so on, or those of the
    /// reference filesystem server
    #[arg(long, value_name = "SET", default_value = "workspace",
        value_parser = ["workspace", "reference"])]
    tools: String,
    /// The workspace's name in names of tools [default: that of its directory]
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,
    /// The approvers of requests about which a rule asks: the client's user and `portcullis
    /// approve`, or that command alone
    #[arg(long, value_name = "WHO", default_value = "client", value_parser = ["client", "shell"])]
    ask: String,
    /// Serve nothing; pass stdin and stdout on to the gateway behind a socket or a
    /// directory of named pipes. Agents of `portcullis run` start this in their
    /// sandbox
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tools", "name", "ask"])]
    connect: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(address) = &args.connect {
        return connect::run(address);
    }
    close_inherited().or_fail("cannot close inherited files")?;
    let signals = stop_signals().or_fail("cannot watch for signals")?;
    process::note_terminal("mcp", "MCP with a client");
    let streams = take_standard_streams().or_fail("cannot take over stdin and stdout")?;
    let _ = args.logging.filter()?;
    let alias =
        std::path::absolute(&args.common.workspace).or_fail("cannot look up the workspace")?;
    let elicit = args.ask == "client";
    let reference = args.tools == "reference";
    if reference && args.name.is_some() {
        let reason = "`--name` is for `--tools workspace`: the reference tools have fixed names";
        return Err(Failure::new(reason).exit(Exit::Usage));
    }
    let facts = BTreeMap::from([
        ("tools".to_owned(), json!(args.tools)),
        ("ask".to_owned(), json!(args.ask)),
        // The client is not confined.
        ("enforcement".to_owned(), json!("none")),
    ]);
    let opened = Opened::open(&args.common)?;
    opened.warn();
    let session = session(args.common.agent(default_agents::MCP)?, Transport::Mcp)?;
    logging::start(&args.logging, &opened.state_path)?;
    let confined = opened.confine(Profile { long_lived: true, ..Profile::default() })?;
    confined.warn();
    let started = confined.recover()?.start(session, facts)?;
    let gateway = &started.gateway;
    let root = gateway.workspace().root().to_owned();
    let toolset = match (reference, &args.name) {
        (true, _) => Toolset::Reference,
        (false, Some(name)) => Toolset::Workspace(name.clone()),
        (false, None) => {
            let name = root.file_name().unwrap_or_default().to_string_lossy();
            Toolset::Workspace(Name::near(&name))
        }
    };
    let config = mcp::Config {
        session: started.session.clone(),
        root,
        alias: Some(alias),
        further: Vec::new(),
        commands: None,
        toolset,
        location: ClientLocation::Host,
        elicit,
        prompt: !started.durable,
        max_line: started.max_line(),
        attached: None,
        revoked: Default::default(),
        options: gateway_options::log_options_of(&started),
        announce: announcer::announce,
    };
    stderr::drop_unread();
    let [stream, output] = streams.map(File::from);
    let stop = signals.as_fd().try_clone_to_owned().or_fail("cannot watch for signals")?;
    let stop = Some(stop);
    let served = mcp::serve(gateway, config, Input { stream, stop }, output);
    started.stop(STOP_TIMEOUT)?;
    served.or_fail("cannot serve")?;
    Ok(ExitCode::SUCCESS)
}
