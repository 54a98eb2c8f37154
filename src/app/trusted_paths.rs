//! The list of paths that the product trusts, now or at a later start; the sandbox checks that no
//! agent can change them.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy as _;
use rustix::fs::{FileType, access, lstat, stat};

use super::{
    failure::{Context as _, Failure},
    notifier, state_directory, state_owner,
};
use crate::{
    config::{
        Operator, PolicyTexts,
        audit::{Audit, Target},
        credentials::KeySource,
        operator,
        serve::Service,
        signature::signature_path,
    },
    gateway::Workspace,
    operator_files,
    policy::is_name,
    sandbox::{Access, AgentPath, Trusted, TrustedPath, TrustedPaths, own_program},
};

/// Returns the state directory, as [`state_directory::directory`] does, after [`check`] with its
/// workspace. A named directory without a known workspace is not checked.
///
/// # Errors
/// As [`check`], when there is no such workspace, and when the directory has another format.
pub(crate) fn state(
    named: Option<&PathBuf>,
    workspace: Option<&Path>,
    config: Option<&Path>,
) -> Result<PathBuf, Failure> {
    let here = workspace.unwrap_or(Path::new("."));
    let path = state_directory::directory(named, here)?;
    // A named directory belongs to another workspace than the current directory.
    let owner = match (workspace, named) {
        (None, Some(_)) => state_owner::noted_at(&path)?,
        _ => Some(here.to_owned()),
    };
    if let Some(owner) = owner {
        check(&owner, &path, config)?;
    }
    state_directory::check_at(&path)?;
    Ok(path)
}

/// Returns the state directory for a command that only reads the log.
///
/// # Errors
/// As [`state`].
pub(crate) fn log_state(
    named: Option<&PathBuf>,
    workspace: Option<&Path>,
    config: Option<&Path>,
) -> Result<PathBuf, Failure> {
    state(named, workspace, config).map_err(|failure| match failure.advice() {
        Some(_) => failure,
        None => failure.help(
            "to read the log nevertheless, name it like a copy: \
             `portcullis audit verify --dir DIR`",
        ),
    })
}

/// Checks, as a start does before it opens the state directory `state` of `workspace` under the
/// configuration `config`, that no agent could change or choose what a command of the operator then
/// uses.
///
/// # Errors
/// When one of them lies in, or is named through, the workspace, or the configuration
/// cannot be used.
pub(crate) fn check(workspace: &Path, state: &Path, config: Option<&Path>) -> Result<(), Failure> {
    let operator = Operator::load(config).map_err(Failure::new)?;
    let audit = Audit::load(config).map_err(Failure::new)?;
    check_under(workspace, state, (&operator, &audit))
}

/// Does the same as [`check`], under a configuration that was loaded.
///
/// # Errors
/// When one of them lies in, or is named through, the workspace.
pub(crate) fn check_under(
    workspace: &Path,
    state: &Path,
    (operator, audit): (&Operator, &Audit),
) -> Result<(), Failure> {
    let mut trusted = listed(of_state(state))?;
    trusted.extend(own(operator, audit)?);
    let path = std::path::absolute(workspace).or_fail("cannot look up the workspace")?;
    let target = Workspace::open(workspace).ok().map(|opened| opened.root().to_owned());
    let agents = vec![AgentPath { access: Access::Workspace, path, target }];
    TrustedPaths { trusted: trusted.clone(), agents }.check().map_err(Failure::new)?;
    check_served(trusted, operator)
}

/// Checks that no agent of a workspace of `serve` in the configuration could change a trusted path.
///
/// # Errors
/// When it could, and when the configuration of `serve` cannot be used.
pub(crate) fn check_served(trusted: Vec<TrustedPath>, operator: &Operator) -> Result<(), Failure> {
    let Some(path) = operator.path.as_ref().filter(|_| operator.has_service) else {
        return Ok(());
    };
    let service = Service::load(path).map_err(Failure::new)?;
    let workspace = |path: PathBuf| AgentPath { access: Access::Workspace, path, target: None };
    let agents = service.workspaces.into_iter().map(|served| workspace(served.root)).collect();
    TrustedPaths { trusted, agents }.check_trusted().map_err(Failure::new)
}

/// Returns the paths that agents of the workspace may change, also `writable`, through which no
/// program and no repository of the operator's must be found.
pub(crate) fn of_agents(workspace: &Path, writable: &[PathBuf]) -> Result<TrustedPaths, Failure> {
    let path = std::path::absolute(workspace).or_fail("cannot look up the workspace")?;
    let mut agents = vec![AgentPath { access: Access::Workspace, path, target: None }];
    agents.extend(writable.iter().map(|path| AgentPath {
        access: Access::Write,
        path: path.clone(),
        target: None,
    }));
    Ok(TrustedPaths { trusted: listed(places())?, agents })
}

/// Returns a state directory, and those of its files that have another name. Backups are left out:
/// there are many, and each is compared with its hash before it is used.
pub(crate) fn of_state(state: &Path) -> Vec<(Trusted, PathBuf)> {
    let directories = [state.to_owned(), state.join("keys"), state.join("audit")];
    // What cannot be read cannot be opened either, and the start fails.
    let entries = directories.iter().filter_map(|path| operator_files::read_dir(path).ok());
    let files = entries.flatten().flatten().map(|entry| entry.path());
    let has_other_names = |path: &PathBuf| {
        lstat(path).is_ok_and(|facts| {
            FileType::from_raw_mode(facts.st_mode).is_file() && facts.st_nlink > 1
        })
    };
    let files = files.filter(has_other_names).map(|path| (Trusted::StateFile, path));
    [(Trusted::State, state.to_owned())].into_iter().chain(files).collect()
}

/// Returns the program's own locations and files, and those of the configuration.
pub(crate) fn own(operator: &Operator, audit: &Audit) -> Result<Vec<TrustedPath>, Failure> {
    let mut found = places();
    found.extend(program()?);
    let files = operator.path.iter().chain(&operator.named).chain(&audit.file);
    found.extend(files.map(|path| (Trusted::Configuration, path.clone())));
    let copies = audit.ship.iter().map(|target| PathBuf::from(&target.to));
    found.extend(copies.filter(|path| path.is_absolute()).map(|path| (Trusted::Copies, path)));
    let tokens = audit.ship.iter().flat_map(Target::token_files);
    found.extend(tokens.map(|path| (Trusted::CopyToken, path)));
    found.extend(audit.key_file.iter().map(|path| (Trusted::PublicKey, path.clone())));
    for credential in &operator.credentials {
        if let KeySource::File(path) = &credential.from {
            found.push((Trusted::CredentialKey, path.clone()));
        }
        found.extend(credential.ca.iter().map(|path| (Trusted::Certificate, path.clone())));
    }
    if !audit.ship.is_empty() || !operator.notifications.is_empty() || operator.has_service {
        found.extend(named_certificates().map(|path| (Trusted::Certificate, path)));
    }
    let mut signer = audit.signer.iter();
    let program = signer.next().filter(|program| program.starts_with('/'));
    found.extend(program.map(|program| (Trusted::Signer, program.into())));
    let notifier = notifier::program(&operator.notifications);
    found.extend(notifier.map(|program| (Trusted::Notifier, program)));
    let keys = signer.flat_map(|argument| named_in(argument));
    found.extend(keys.map(|key| (Trusted::SignerKey, key)));
    listed(found)
}

/// Returns the certificates that the environment names in place of the system's.
fn named_certificates() -> impl Iterator<Item = PathBuf> {
    let directories = std::env::var_os("SSL_CERT_DIR").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&directories).collect();
    let file = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    file.into_iter().chain(directories).filter(|path| !path.as_os_str().is_empty())
}

/// Returns the files of a policy, and the paths by which they were looked up, which lead to the
/// next policy.
pub(crate) fn policy(
    texts: &PolicyTexts,
    operator: &Operator,
) -> Result<Vec<TrustedPath>, Failure> {
    let files = texts.files.iter().chain(&texts.looked_up);
    let mut found: Vec<_> = files.map(|file| (Trusted::Policy, file.clone())).collect();
    if !is_name(texts.reference()) {
        let named = PathBuf::from(texts.reference());
        if operator.require_signature {
            found.push((Trusted::Signature, signature_path(&named)));
        }
        found.push((Trusted::Policy, named));
    }
    listed(found)
}

/// Returns the same paths, absolute and without duplicates.
pub(crate) fn listed(found: Vec<(Trusted, PathBuf)>) -> Result<Vec<TrustedPath>, Failure> {
    let mut paths: Vec<TrustedPath> = Vec::new();
    for (role, path) in found {
        let path = std::path::absolute(&path)
            .or_fail(format_args!("cannot look up the {role} `{}`", path.display()))?;
        let path = TrustedPath { role, path };
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Returns the directory of all scratch directories, where `data` replaces `$XDG_DATA_HOME`.
pub(crate) fn scratch_below(data: &Path) -> PathBuf {
    data.join("portcullis/scratch")
}

/// Returns the directory of the homes of all agents, where `data` replaces `$XDG_DATA_HOME`.
pub(crate) fn homes_below(data: &Path) -> PathBuf {
    data.join("portcullis/homes")
}

/// Returns the default locations of configuration, state, homes and scratch directories, with and
/// without the variables that set them: a later start may have others.
fn places() -> Vec<(Trusted, PathBuf)> {
    // Without a home directory there are none.
    let Ok(dirs) = etcetera::base_strategy::Xdg::new() else { return Vec::new() };
    let home = dirs.home_dir();
    let states = [dirs.state_dir(), Some(home.join(".local/state"))].into_iter().flatten();
    let data = [dirs.data_dir(), home.join(".local/share")];
    let configurations = [dirs.config_dir(), home.join(".config")].into_iter();
    configurations
        .map(|base| (Trusted::Configuration, operator::file_below(&base)))
        .chain(states.map(|base| (Trusted::StatePlace, base.join("portcullis"))))
        .chain(data.iter().map(|base| (Trusted::Homes, homes_below(base))))
        .chain(data.iter().map(|base| (Trusted::Scratch, scratch_below(base))))
        .collect()
}

/// Returns the directories of the homes and the scratch directories of all agents.
pub(crate) fn shared_by_agents() -> impl Iterator<Item = AgentPath> {
    let places = places().into_iter();
    let shared = places.filter(|(role, _)| matches!(role, Trusted::Homes | Trusted::Scratch));
    shared.map(|(_, path)| AgentPath { access: Access::Write, path, target: None })
}

/// Returns this program, and the path by which it was started.
fn program() -> Result<Vec<(Trusted, PathBuf)>, Failure> {
    let own = own_program().or_fail("cannot find this program's own file")?;
    let named = std::env::args_os().next().and_then(|name| found_on_path(&name));
    Ok([Some(own), named].into_iter().flatten().map(|path| (Trusted::Program, path)).collect())
}

/// Returns the program that a shell finds by this name.
pub(super) fn found_on_path(name: &OsStr) -> Option<PathBuf> {
    all_on_path(name).into_iter().next()
}

/// Finds a program that the operator starts outside of a sandbox: the first that a shell could find
/// by this name, and that no agent can choose. `None` if a shell finds none.
///
/// # Errors
/// When an agent could choose all that there are.
pub(crate) fn operators_program(
    name: &OsStr,
    workspace: &Path,
) -> Result<Option<PathBuf>, Failure> {
    let agents = of_agents(workspace, &[])?;
    let mut refused = None;
    for path in all_on_path(name) {
        let path = std::path::absolute(path).or_fail("cannot look up a program")?;
        match agents.check_way(&"program", &path) {
            Ok(()) => return Ok(Some(path)),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or(Ok(None), |error| Err(Failure::new(error)))
}

/// Returns the programs that a shell could find by this name, in its order.
fn all_on_path(name: &OsStr) -> Vec<PathBuf> {
    let path = Path::new(name);
    if name.as_encoded_bytes().contains(&b'/') {
        return vec![path.to_owned()];
    }
    let is_program = |path: &PathBuf| {
        stat(path).is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode).is_file())
            && access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&directories).map(|directory| directory.join(path));
    found.filter(is_program).collect()
}

/// Returns the files that an argument may name: the path from its first `/` on, as in `-k/PATH`,
/// `--key=x=/PATH` and `file:///PATH`, and a relative one, as in `PATH` and `--key=PATH`, because a
/// signer starts in `/`.
fn named_in(argument: &str) -> impl Iterator<Item = PathBuf> {
    let absolute = argument.split_once('/').map(|(_, path)| path.trim_start_matches('/'));
    let value = argument.rsplit('=').next();
    let relative = value.filter(|path| path.contains('/') && !path.starts_with('/'));
    let found = [absolute, relative].into_iter().flatten();
    found.filter(|path| !path.is_empty()).map(|path| Path::new("/").join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: only `/x/key` of `home/x/key` was checked.
    #[test]
    fn a_relative_argument_of_a_signer_is_looked_up_where_the_signer_begins() {
        let names = |argument: &str, path: &str| named_in(argument).any(|p| p == Path::new(path));
        assert!(names("home/x/key", "/home/x/key"));
        assert!(names("--key=home/x/key", "/home/x/key"));
        assert!(names("../home/x/key", "/../home/x/key"));
        for argument in ["/x/key", "-k/x/key", "--key=a=/x/key", "file:///x/key"] {
            assert!(names(argument, "/x/key"), "{argument}");
        }
        assert_eq!(named_in("sign").chain(named_in("/")).next(), None);
    }
}
