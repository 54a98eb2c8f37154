//! The MCP filesystem servers that ours is measured beside, at pinned versions.
//!
//! They lie in the directory that `PORTCULLIS_PEERS` names, each where its own
//! installer puts it; nothing of them is in the repository:
//!
//! ```text
//! npm install --prefix DIR @modelcontextprotocol/server-filesystem@2026.8.31
//! cargo install rust-mcp-filesystem@0.4.5 --locked --root DIR
//! python3 -m venv DIR/venv && DIR/venv/bin/pip install filesystem-mcp==1.0.2
//! ```
#![expect(clippy::disallowed_methods, reason = "looks what is installed")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// The directory that they are in.
const DIRECTORY: &str = "PORTCULLIS_PEERS";

/// Names of a server's tools, which all take `path`, and `content` to write.
#[derive(Clone, Copy)]
pub(crate) struct Tools {
    pub(crate) read: &'static str,
    pub(crate) list: &'static str,
    pub(crate) write: &'static str,
}

/// The names of the reference server.
pub(crate) const REFERENCE: Tools =
    Tools { read: "read_text_file", list: "list_directory", write: "write_file" };

/// Another server.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    /// The text in a table.
    pub(crate) name: &'static str,
    pub(crate) tools: Tools,
    package: &'static str,
    version: &'static str,
    /// Command that installs it into the directory `{}`.
    install: &'static str,
    /// The version that is installed there.
    installed: fn(&Path, &Self) -> Option<String>,
    /// Starts it on a root.
    command: fn(&Path, &Path) -> Command,
}

const PEERS: [Peer; 3] = [
    Peer {
        name: "node",
        tools: REFERENCE,
        package: "@modelcontextprotocol/server-filesystem",
        version: "2026.8.31",
        install: "npm install --prefix {dir} {package}@{version}",
        installed: node_version,
        command: |dir, root| {
            let mut command = Command::new("node");
            command.arg(
                dir.join("node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"),
            );
            command.arg(root);
            command
        },
    },
    Peer {
        name: "rust",
        tools: REFERENCE,
        package: "rust-mcp-filesystem",
        version: "0.4.5",
        install: "cargo install {package}@{version} --locked --root {dir}",
        installed: rust_version,
        command: |dir, root| {
            let mut command = Command::new(dir.join("bin/rust-mcp-filesystem"));
            command.arg("--allow-write").arg(root);
            command
        },
    },
    Peer {
        name: "python",
        tools: Tools { read: "read_file", list: "list_directory", write: "write_file" },
        package: "filesystem-mcp",
        version: "1.0.2",
        install: "python3 -m venv {dir}/venv && {dir}/venv/bin/pip install {package}=={version}",
        installed: python_version,
        command: |dir, root| {
            let mut command = Command::new(dir.join("venv/bin/filesystem-mcp"));
            command.arg(root);
            command
        },
    },
];

impl Peer {
    /// Starts it on `root`.
    pub(crate) fn command(&self, dir: &Path, root: &Path) -> Command {
        (self.command)(dir, root)
    }
}

/// Returns the directory and the servers that are installed there at the wanted
/// version; prints how to install the others.
pub(crate) fn installed() -> (PathBuf, Vec<Peer>) {
    let named = std::env::var_os(DIRECTORY);
    let dir = PathBuf::from(named.clone().unwrap_or_else(|| "DIR".into()));
    if named.is_none() {
        println!("mcp        {DIRECTORY}=DIR names the directory with the other servers");
    }
    let here = PEERS.into_iter().filter(|peer| {
        let Peer { name, package, version, .. } = *peer;
        let found = named.as_ref().and_then(|_| (peer.installed)(&dir, peer));
        if found.as_deref() == Some(version) {
            println!("mcp        {name}: {package} {version}");
            return true;
        }
        let found = found.map_or("not installed".to_owned(), |found| format!("{found} is there"));
        let install = peer
            .install
            .replace("{dir}", &dir.to_string_lossy())
            .replace("{package}", package)
            .replace("{version}", version);
        println!("mcp        {name}: left out, {found}: {install}");
        false
    });
    let here = here.collect();
    (dir, here)
}

fn node_version(dir: &Path, peer: &Peer) -> Option<String> {
    let text = std::fs::read(dir.join("node_modules").join(peer.package).join("package.json"));
    let package: Value = serde_json::from_slice(&text.ok()?).ok()?;
    Some(package.get("version")?.as_str()?.to_owned())
}

fn rust_version(dir: &Path, peer: &Peer) -> Option<String> {
    let text = std::fs::read_to_string(dir.join(".crates.toml")).ok()?;
    let line = text.lines().find(|line| line.contains(&format!("\"{} ", peer.package)))?;
    line.split(' ').nth(1).map(str::to_owned)
}

fn python_version(dir: &Path, peer: &Peer) -> Option<String> {
    let start = format!("{}-", peer.package.replace('-', "_"));
    let libraries = std::fs::read_dir(dir.join("venv/lib")).ok()?;
    libraries.flatten().find_map(|library| {
        let mut packages = std::fs::read_dir(library.path().join("site-packages")).ok()?.flatten();
        packages.find_map(|package| {
            let name = package.file_name().into_string().ok()?;
            Some(name.strip_prefix(&start)?.strip_suffix(".dist-info")?.to_owned())
        })
    })
}
