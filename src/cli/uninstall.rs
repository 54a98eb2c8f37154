//! `portcullis uninstall`: names what Portcullis has written outside of workspaces, and removes it.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use etcetera::BaseStrategy as _;
use serde_json::{Value, json};

use super::{confirmation, generated, render::counted, rows::prose};
use crate::{
    app::{
        failure::{Context as _, Failure},
        running_gateways, state_directory, state_owner,
        trusted_paths::{homes_below, scratch_below},
    },
    config::operator,
    model::Escaped,
    operator_files,
    sandbox::{lock_homes, own_program, remove_tree},
};

/// Files of the system, with what removes them.
const OF_THE_SYSTEM: [(&str, &str, &str); 4] = [
    ("unit", "/etc/systemd/system/portcullis.service", BY_ROOT),
    ("unit", "/usr/lib/systemd/system/portcullis.service", BY_PACKAGE),
    ("configuration", "/etc/portcullis", BY_ROOT),
    ("state", "/var/lib/portcullis", BY_ROOT),
];
const BY_ROOT: &str = "root removes it: `systemctl disable --now portcullis` first";
const BY_PACKAGE: &str = "`apt remove portcullis`";
/// The list of files of an installed Debian package.
const PACKAGE: &str = "/var/lib/dpkg/info/portcullis.list";

/// List what Portcullis has written outside of workspaces, and remove it
///
/// It lists logs, backups and policies of every workspace in its default state
/// directory, homes and scratch directories of agents, portcullis.toml, completions
/// and manual pages. Workspaces stay as they are; so do state directories that
/// `--state` named, copies of logs, the program itself, and files of the system, which
/// are named where they are known.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis uninstall --dry-run\n  \
    portcullis uninstall --dry-run --json\n  \
    portcullis uninstall --yes")]
pub(crate) struct Args {
    /// List everything, and remove nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Remove without a question
    #[arg(short, long)]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The kind of a manual page.
const PAGE: &str = "manual page";

/// An item that was found.
struct InstalledItem {
    kind: &'static str,
    path: PathBuf,
    /// The workspace of a state directory.
    workspace: Option<PathBuf>,
    /// The command or the person that removes it; `None` if this command does.
    by: Option<&'static str>,
}

impl InstalledItem {
    fn own(kind: &'static str, path: PathBuf) -> Self {
        Self { kind, path, workspace: None, by: None }
    }

    fn json(&self) -> Value {
        let Self { kind, path, workspace, by } = self;
        let (path, workspace) = (path.display(), workspace.as_ref().map(|of| of.display()));
        let workspace = workspace.map(|of| of.to_string());
        json!({ "kind": kind, "path": path.to_string(), "workspace": workspace, "removedBy": by })
    }
}

/// Runs the command.
///
/// # Errors
/// When gateways run, something cannot be removed, or nobody agrees.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (items, emptied) = found()?;
    let locks = lock(&items, args.dry_run)?;
    if args.dry_run {
        return Ok(show(args, &items, false));
    }
    if args.json && !args.yes {
        return Err(Failure::new("nothing was removed: with --json nobody is asked")
            .help("give --yes, or --dry-run to see what would be removed"));
    }
    let own: Vec<_> = items.iter().filter(|item| item.by.is_none()).collect();
    if !args.json {
        show(args, &items, false);
    }
    if own.is_empty() && !args.json {
        return Ok(ExitCode::SUCCESS);
    }
    let question = match own.iter().any(|item| item.kind == "state") {
        true => "remove all of this, logs and backups among it?",
        false => "remove all of this?",
    };
    confirmation::require(args.yes, question)?;
    for item in own {
        remove(&item.path).or_fail(format_args!(
            "cannot remove `{}`",
            Escaped(&item.path.display().to_string())
        ))?;
    }
    drop(locks);
    for directory in emptied {
        // One that has other files stays.
        let _ = operator_files::remove_dir(directory);
    }
    match args.json {
        true => show(args, &items, true),
        false => {
            outln!("removed");
            ExitCode::SUCCESS
        }
    };
    Ok(ExitCode::SUCCESS)
}

/// Prints the items.
fn show(args: &Args, items: &[InstalledItem], removed: bool) -> ExitCode {
    if args.json {
        let items: Vec<_> = items.iter().map(InstalledItem::json).collect();
        outjson!(json!({ "ok": true, "removed": removed, "items": items }));
        return ExitCode::SUCCESS;
    }
    let (pages, others): (Vec<_>, Vec<_>) = items.iter().partition(|item| item.kind == PAGE);
    if let Some(directory) = pages.first().and_then(|page| page.path.parent()) {
        let count = counted(u64::try_from(pages.len()).unwrap_or(u64::MAX), PAGE);
        outln!("{:15}{}: {count}", "manual pages", Escaped(&directory.display().to_string()));
    }
    for InstalledItem { kind, path, workspace, by } in others {
        let shown = Escaped(&path.display().to_string()).to_string();
        let of = workspace.as_ref().map(|of| Escaped(&of.display().to_string()).to_string());
        let of = of.map(|of| format!(", of workspace {of}")).unwrap_or_default();
        let stays = by.map(|by| format!(" (stays: {by})")).unwrap_or_default();
        outln!("{}", prose(&format!("{kind:15}{shown}{of}{stays}"), 15));
    }
    if items.is_empty() {
        outln!("nothing is installed");
    }
    errln!(
        "portcullis: note: state directories that `--state` or a configuration named are not looked for"
    );
    ExitCode::SUCCESS
}

/// Returns what is there, and the directories that become empty without it.
fn found() -> Result<(Vec<InstalledItem>, Vec<PathBuf>), Failure> {
    let dirs = etcetera::base_strategy::Xdg::new().or_fail("cannot find your directories")?;
    let (state, data) = (state_directory::default_parent(&dirs), dirs.data_dir());
    let own_data = data.join("portcullis");
    let configuration = operator::file_below(&dirs.config_dir());
    let mut items = states(&state)?;
    for (kind, path) in [
        // The directory of homes has the lock for both, so it goes last.
        ("scratch", scratch_below(&data)),
        ("homes", homes_below(&data)),
        ("configuration", configuration.clone()),
    ] {
        items.extend(is_there(&path).then(|| InstalledItem::own(kind, path)));
    }
    items.extend(
        generated::completions_in(&data)
            .into_iter()
            .map(|path| InstalledItem::own("completions", path)),
    );
    items.extend(generated::pages_in(&data).into_iter().map(|path| InstalledItem::own(PAGE, path)));
    let unit = dirs.config_dir().join("systemd/user/portcullis.service");
    let user_unit = "`systemctl --user disable --now portcullis`, then remove it";
    items.extend(
        is_there(&unit)
            .then(|| InstalledItem { by: Some(user_unit), ..InstalledItem::own("unit", unit) }),
    );
    for (kind, path, by) in OF_THE_SYSTEM {
        let path = PathBuf::from(path);
        items.extend(
            is_there(&path)
                .then(|| InstalledItem { by: Some(by), ..InstalledItem::own(kind, path) }),
        );
    }
    items.push(program()?);
    let mut emptied = vec![state, own_data];
    emptied.extend(configuration.parent().map(Path::to_owned));
    Ok((items, emptied))
}

/// Returns the state directories in their default place, each with its workspace.
fn states(place: &Path) -> Result<Vec<InstalledItem>, Failure> {
    let entries = match operator_files::read_dir(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.or_fail(format_args!("cannot read `{}`", place.display()))?,
    };
    let mut states = Vec::new();
    for entry in entries {
        let path = entry.or_fail(format_args!("cannot read `{}`", place.display()))?.path();
        // Another entry is not ours to remove.
        let has_log =
            operator_files::symlink_metadata(path.join("audit")).is_ok_and(|audit| audit.is_dir());
        // The start that made it may have failed before it made the log.
        let is_directory =
            operator_files::symlink_metadata(&path).is_ok_and(|entry| entry.is_dir());
        let is_state = is_directory && state_directory::is_marked(&path);
        if has_log || is_state {
            let workspace = state_owner::noted_at(&path).ok().flatten();
            states.push(InstalledItem { workspace, ..InstalledItem::own("state", path) });
        }
    }
    states.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(states)
}

/// Returns this program.
fn program() -> Result<InstalledItem, Failure> {
    let path = own_program().or_fail("cannot find this program's own file")?;
    let by = match path.ends_with(".cargo/bin/portcullis") {
        true => "`cargo uninstall portcullis`",
        false if is_there(Path::new(PACKAGE)) && path.starts_with("/usr/bin") => BY_PACKAGE,
        false => "remove it as it was installed",
    };
    Ok(InstalledItem { by: Some(by), ..InstalledItem::own("program", path) })
}

/// Keeps gateways from starting in the state directories, and agents from using homes and scratch
/// directories.
///
/// # Errors
/// Unless this is `dry`: when a gateway runs in one of them, an agent uses a home or scratch
/// directory, or a state directory has another format, whose gateways may have other locks.
fn lock(items: &[InstalledItem], dry: bool) -> Result<Vec<File>, Failure> {
    let mut locks = Vec::new();
    for InstalledItem { path, .. } in
        items.iter().filter(|item| item.kind == "state" && item.by.is_none())
    {
        let shown = Escaped(&path.display().to_string()).to_string();
        let locked = state_directory::look(path).and_then(|_format| {
            running_gateways::lock(path).or_fail(format_args!("cannot lock the log in `{shown}`"))
        });
        let (lock, running) = match locked {
            Err(_) if dry => continue,
            locked => locked?,
        };
        if running > 0 {
            let running = counted(u64::try_from(running).unwrap_or(u64::MAX), "gateway");
            let text = format!("{running} of the state directory `{shown}` still running");
            if !dry {
                let help = "end the agents and clients that use it first";
                return Err(Failure::new(format_args!("nothing was removed: {text}")).help(help));
            }
            errln!("portcullis: note: {text}");
        }
        locks.extend(lock);
    }
    for InstalledItem { path, .. } in items.iter().filter(|item| item.kind == "homes") {
        let shown = Escaped(&path.display().to_string()).to_string();
        let locked = lock_homes(path).or_fail(format_args!("cannot lock `{shown}`"));
        let locked = match locked {
            Err(_) if dry => continue,
            locked => locked?,
        };
        if locked.is_none() {
            // A session with scratch directories has a home.
            let text = format!("homes in `{shown}` or scratch directories are in use");
            if !dry {
                let help = "end the agents that use them first";
                return Err(Failure::new(format_args!("nothing was removed: {text}")).help(help));
            }
            errln!("portcullis: note: {text}");
        }
        locks.extend(locked.map(File::from));
    }
    Ok(locks)
}

fn is_there(path: &Path) -> bool {
    operator_files::symlink_metadata(path).is_ok()
}

/// Removes an entry; of a link the link itself.
fn remove(path: &Path) -> io::Result<()> {
    match operator_files::symlink_metadata(path)?.is_dir() {
        true => remove_tree(path),
        false => operator_files::remove_file(path),
    }
}
