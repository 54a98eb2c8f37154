//! `portcullis policy init`: drafts a policy for a workspace.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use crate::{
    app::{
        failure::{Context as _, Failure},
        new_file::Destination,
        workspace::open_workspace,
    },
    model::for_shell,
    operator_files,
    policy_tools::{SCHEMA_FILE, Tree, first_policy, json_schema},
};

/// Write a commented policy for a workspace, with tests
///
/// Detects languages and allows changes where sources, documents and manifests
/// are. Prints the policy, or writes it to a file, with its schema beside it.
/// A policy belongs outside the workspace, where no agent reaches it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy init\n  \
    portcullis policy init --workspace ~/src/shop -o ~/policies/shop.toml\n  \
    portcullis policy init --from coding-agent -o ~/policies/shop.toml")]
pub(super) struct Args {
    /// The directory that the agent works in
    #[arg(long, value_name = "DIR", default_value = ".", env = "PORTCULLIS_WORKSPACE")]
    workspace: PathBuf,
    /// Start from a copy of this embedded policy
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    /// The file to write, which must not exist yet
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let workspace = open_workspace(&args.workspace)?;
    let tree = Tree::of(&workspace).or_fail("cannot look at the workspace")?;
    let stem = args.output.as_deref().unwrap_or(workspace.root()).file_stem();
    let name = stem.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let first = first_policy(&tree, &name, args.from.as_deref()).or_fail("cannot make a policy")?;
    let Some(output) = &args.output else {
        out!("{}", first.text);
        return Ok(ExitCode::SUCCESS);
    };
    let directory = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let location = operator_files::canonicalize(directory)
        .or_fail(format_args!("cannot find the directory `{}`", directory.display()))
        .map_err(|failure| failure.help("make it first (`mkdir -p`), or name another file"))?;
    if location.starts_with(workspace.root()) {
        return Err(Failure::new("a policy inside the workspace is within the agent's reach")
            .help("name a file elsewhere, such as ~/.config/portcullis/policy.toml"));
    }
    create(output, &first.text)?;
    let schema = location.join(SCHEMA_FILE);
    if !operator_files::exists(&schema) {
        let text =
            serde_json::to_string_pretty(&json_schema()).or_fail("cannot print the schema")?;
        create(&schema, &format!("{text}\n"))?;
    }
    let (file, shown) = (for_shell(output), for_shell(&args.workspace));
    if !first.languages.is_empty() {
        outln!("found {}", first.languages.join(", "));
    }
    outln!("wrote {file}; read it, then:");
    outln!("  portcullis policy lint {file} --workspace {shown}");
    outln!("  portcullis policy test {file}");
    outln!(
        "  portcullis policy explain --policy {file} --workspace {shown} --who agent --can write"
    );
    Ok(ExitCode::SUCCESS)
}

fn create(path: &Path, text: &str) -> Result<(), Failure> {
    let shown = path.display();
    let mut file = Destination::open(path)?.write(true).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::new(format_args!("the file `{shown}` exists already"))
                .help("name another one with `-o`; nothing is written over")
        }
        _ => Failure::new(format_args!("cannot make the file `{shown}`: {error}"))
            .help("name a file in an existing directory, with `-o`"),
    })?;
    file.write_all(text.as_bytes()).or_fail(format_args!("cannot write the file `{shown}`"))
}
