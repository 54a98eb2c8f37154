//! `portcullis setup`: completions and manual pages where shells and `man` look for them.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use serde_json::json;

use super::{generated, render::counted};
use crate::{
    app::{
        failure::{Context as _, Failure},
        new_file::Destination,
        trusted_paths::operators_program,
    },
    model::{Escaped, for_shell},
    operator_files,
};

/// Install completions and manual pages, for you or beneath a prefix
///
/// Without an option both are written to your data directory ($XDG_DATA_HOME, else
/// ~/.local/share). `portcullis uninstall` removes them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis setup\n  \
    portcullis setup --completions\n  \
    portcullis setup --prefix /usr/local")]
pub(crate) struct Args {
    /// Write only the completions of bash, fish and zsh
    #[arg(long)]
    completions: bool,
    /// Write only the manual pages
    #[arg(long, conflicts_with = "completions")]
    man: bool,
    /// Write to DIR/share, for all users or for a package
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn run(args: &Args, command: clap::Command) -> Result<ExitCode, Failure> {
    let share = match &args.prefix {
        Some(prefix) => {
            std::path::absolute(prefix).or_fail("cannot look up the prefix")?.join("share")
        }
        None => generated::data_directory()?,
    };
    let mut written = Vec::new();
    if !args.man {
        for (shell, place) in generated::COMPLETIONS {
            let path = share.join(place);
            make_directories(path.parent().unwrap_or(&share))?;
            generated::write(&path, &generated::script(shell, command.clone()))?;
            written.push(path);
        }
    }
    let pages = share.join(generated::PAGES);
    let mut count = 0;
    if !args.completions {
        make_directories(&pages)?;
        let paths = generated::write_pages(command, &pages)?;
        count = paths.len();
        written.extend(paths);
    }
    if args.json {
        let written: Vec<_> = written.iter().map(|path| path.display().to_string()).collect();
        outjson!(json!({ "ok": true, "written": written }));
    } else {
        for path in written.iter().filter(|path| !path.starts_with(&pages)) {
            outln!("{}", Escaped(&path.display().to_string()));
        }
        if count > 0 {
            let count = counted(u64::try_from(count).unwrap_or(u64::MAX), "manual page");
            outln!("{}: {count}", Escaped(&pages.display().to_string()));
        }
    }
    if args.prefix.is_none() {
        advise(args, &share);
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a directory and those above it, through no link.
fn make_directories(path: &Path) -> Result<(), Failure> {
    let is_missing = |path: &&Path| operator_files::symlink_metadata(path).is_err();
    let missing: Vec<_> = path.ancestors().take_while(is_missing).collect();
    missing.iter().rev().try_for_each(|path| Destination::open(path)?.make_directory())
}

/// Notes what is left to do so that shell and `man` find the files.
fn advise(args: &Args, share: &Path) {
    let is_zsh = std::env::var_os("SHELL").is_some_and(|shell| Path::new(&shell).ends_with("zsh"));
    if is_zsh && !args.man {
        errln!("portcullis: note: zsh looks there once `~/.zshrc` has, before `compinit`:");
        errln!("  help: fpath+=({})", for_shell(&share.join("zsh/site-functions")));
    }
    let found = || {
        let mut man = Command::new(operators_program("man".as_ref(), Path::new(".")).ok()??);
        man.args(["--where", "portcullis"]).stdin(Stdio::null());
        man.stdout(Stdio::null()).stderr(Stdio::null()).status().ok().map(|status| status.success())
    };
    // Without `man` there is nothing to say.
    if !args.completions && found() == Some(false) {
        errln!("portcullis: note: `man portcullis` does not look there yet");
        errln!("  help: export MANPATH={}:", for_shell(&share.join("man")));
    }
}
