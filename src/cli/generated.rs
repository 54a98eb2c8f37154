//! Completions and manual pages: generated from the definition of the command line, so that they
//! cannot differ from it, and where they are installed.
//!
//! The stages of a sandbox, the gateway process and other internal processes are started with words
//! that are not in the definition; they do not appear here.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap_complete::Shell;
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};
use etcetera::BaseStrategy as _;

use crate::{
    app::{
        failure::{Context as _, Failure},
        new_file::NewFile,
    },
    operator_files,
};

/// The completions, beneath a directory `share`.
pub(super) const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/portcullis"),
    (Shell::Fish, "fish/vendor_completions.d/portcullis.fish"),
    (Shell::Zsh, "zsh/site-functions/_portcullis"),
];
/// The directory of the manual pages, beneath a directory `share`.
pub(super) const PAGES: &str = "man/man1";

/// Returns the operator's data directory.
///
/// # Errors
/// When there is no home directory.
pub(super) fn data_directory() -> Result<PathBuf, Failure> {
    let dirs = etcetera::base_strategy::Xdg::new();
    Ok(dirs.or_fail("cannot find your data directory")?.data_dir())
}

/// Returns the completions that exist beneath `share`.
pub(super) fn completions_in(share: &Path) -> Vec<PathBuf> {
    let paths = COMPLETIONS.map(|(_, place)| share.join(place));
    paths.into_iter().filter(|path| operator_files::symlink_metadata(path).is_ok()).collect()
}

/// Returns the manual pages that exist beneath `share`.
pub(super) fn pages_in(share: &Path) -> Vec<PathBuf> {
    let Ok(entries) = operator_files::read_dir(share.join(PAGES)) else { return Vec::new() };
    let is_page = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".1") && (name == "portcullis.1" || name.starts_with("portcullis-"))
    };
    let mut pages: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_page).collect();
    pages.sort();
    pages
}

/// Returns the script for a shell.
pub(super) fn script(shell: Shell, mut command: clap::Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "portcullis", &mut script);
    script
}

/// Returns the page of the program.
pub(super) fn root_page(command: clap::Command) -> io::Result<Vec<u8>> {
    page(&built(command))
}

/// Writes the pages of all commands to an existing directory; returns their paths.
pub(super) fn write_pages(
    command: clap::Command,
    directory: &Path,
) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    add_pages(&built(command), directory, &mut written)?;
    Ok(written)
}

fn built(command: clap::Command) -> clap::Command {
    let mut root = command.disable_help_subcommand(true);
    root.build();
    root
}

/// Writes the page of `command` and those of its subcommands.
fn add_pages(
    command: &clap::Command,
    directory: &Path,
    written: &mut Vec<PathBuf>,
) -> Result<(), Failure> {
    let path = directory.join(format!("{}.1", name(command)));
    write(&path, &page(command).or_fail("cannot make a manual page")?)?;
    written.push(path);
    command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set())
        .try_for_each(|subcommand| add_pages(subcommand, directory, written))
}

/// Writes a file in an existing directory.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let fresh = NewFile::create(path)?;
    let written = fresh.file().write_all(content).and_then(|()| fresh.keep());
    written.or_fail(format_args!("cannot write `{}`", path.display()))
}

/// Returns a name that is unique among all commands: `portcullis-fs-read`.
fn name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Renders a page. The library's own rendering would join the examples into one
/// paragraph.
fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let version = command.get_version().unwrap_or_default();
    let man = Man::new(command.clone()).source(format!("portcullis {version}"));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|subcommand| !subcommand.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        let mut roff = Roff::default();
        roff.control("SH", ["NOTES AND EXAMPLES"]);
        roff.control("nf", []);
        for line in text.to_string().lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.to_writer(&mut page)?;
    }
    Ok(page)
}
