//! The options of `portcullis serve`.

use crate::{
    app::{logging, options::Common},
    config::serve::Listen,
    mcp::Name,
};

/// Serve workspaces to agents over HTTP
///
/// Without a configuration that names workspaces it serves the current
/// directory on this machine, and prints a token for one agent. Each workspace
/// has a process of its own that reaches nothing else.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis serve\n  \
    portcullis serve --workspace ~/project --policy mine.toml --listen 127.0.0.1:9000\n  \
    portcullis serve --config /etc/portcullis/portcullis.toml\n\n\
    SIGHUP reads the configuration and the policies again. SIGTERM stops within 10 seconds.\n\
    docs/serve.md has the details.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) logging: logging::Options,
    /// Address to listen on, in place of the configuration's [default:
    /// 127.0.0.1:8750]
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH")]
    pub(super) listen: Vec<Listen>,
    /// Let other machines connect without TLS: something else must encrypt
    #[arg(long)]
    pub(super) plaintext: bool,
    /// The workspace's name in addresses and names of tools [default: that of
    /// its directory]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<Name>,
    /// The tools of MCP clients: `workspace__NAME__read_file` and so on, or
    /// those of the reference filesystem server
    #[arg(long, value_name = "SET", default_value = "workspace",
        value_parser = ["workspace", "reference"])]
    pub(super) tools: String,
    /// The approvers of requests about which a rule asks: the client's user and `portcullis
    /// approve`, or that command alone
    #[arg(long, value_name = "WHO", default_value = "client", value_parser = ["client", "shell"])]
    pub(super) ask: String,
    /// Start nothing: ask the service that listens there whether it is ready, and
    /// fail unless it is
    #[arg(long)]
    pub(super) ready: bool,
}
