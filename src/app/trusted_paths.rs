//! The list of paths that the product trusts, now or at a later start; the sandbox checks that no
//! agent can change them.

use std::{
    ffi::OsStr,
    fmt,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy as _;
use rustix::fs::{FileType, lstat};

use super::{
    executed_files::{all_on_path, executed, named_in},
    failure::{Context as _, Failure},
    state_directory, state_owner,
};
use crate::{
    config::{
        Operator, PolicyTexts,
        audit::{Audit, Target},
        credentials::KeySource,
        operator,
        serve::{Listen, Service},
        signature::signature_path,
    },
    gateway::Workspace,
    operator_files,
    policy::is_name,
    sandbox::{
        Access, AgentPath, SYSTEM_DIRECTORIES, Trusted, TrustedPath, TrustedPaths, own_program,
    },
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
/// As [`state`], and when the default directory belongs to a workspace that was at this path.
pub(crate) fn log_state(
    named: Option<&PathBuf>,
    workspace: Option<&Path>,
    config: Option<&Path>,
) -> Result<PathBuf, Failure> {
    let path = state(named, workspace, config).map_err(|failure| match failure.advice() {
        Some(_) => failure,
        None => failure.help(
            "to read the log nevertheless, name it like a copy: \
             `portcullis audit verify --dir DIR`",
        ),
    })?;
    // A reader has to show a log of which nothing else can be read.
    if named.is_none() && state_owner::noted_at(&path).is_ok() {
        state_owner::check_default(&path, workspace.unwrap_or(Path::new(".")))?;
    }
    Ok(path)
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
    check_served(trusted.clone(), operator)?;
    trusted.extend(served(operator)?);
    let path = std::path::absolute(workspace).or_fail("cannot look up the workspace")?;
    let target = Workspace::open(workspace).ok().map(|opened| opened.root().to_owned());
    let agents = vec![AgentPath { access: Access::Workspace, path, target }];
    TrustedPaths { trusted, agents }.check().map_err(Failure::new)
}

/// Checks that no agent of a workspace of `serve` in the configuration could change a trusted path;
/// `serve` itself checks those of [`served`].
///
/// # Errors
/// When it could, and when the configuration of `serve` cannot be used.
pub(crate) fn check_served(trusted: Vec<TrustedPath>, operator: &Operator) -> Result<(), Failure> {
    let agents = served_agents(operator)?;
    TrustedPaths { trusted, agents }.check_trusted().map_err(Failure::new)
}

/// Returns the workspaces of `serve` in the configuration.
///
/// # Errors
/// When the configuration of `serve` cannot be used.
pub(crate) fn served_agents(operator: &Operator) -> Result<Vec<AgentPath>, Failure> {
    let workspace = |path: PathBuf| AgentPath { access: Access::Workspace, path, target: None };
    let service = service(operator)?.into_iter();
    Ok(service.flat_map(|it| it.workspaces).map(|served| workspace(served.root)).collect())
}

/// Returns what `serve` trusts under the configuration: its own files, and the state directories and
/// policies of its workspaces.
///
/// # Errors
/// When the configuration of `serve` cannot be used.
pub(crate) fn served(operator: &Operator) -> Result<Vec<TrustedPath>, Failure> {
    let Some(service) = service(operator)? else { return Ok(Vec::new()) };
    let mut found = of_service(&service);
    found.extend(service.state.iter().flat_map(|path| of_state(path)));
    let mut policies = Vec::new();
    for workspace in service.workspaces {
        found.extend(workspace.state.iter().flat_map(|path| of_state(path)));
        match PolicyTexts::load(&workspace.policy) {
            Ok(texts) => policies.extend(policy(&texts, operator)?),
            // `serve` reports it.
            Err(_) if is_name(&workspace.policy) => {}
            Err(_) => found.push((Trusted::Policy, workspace.policy.into())),
        }
    }
    let mut found = listed(found)?;
    found.extend(policies);
    Ok(found)
}

/// Returns the certificate, key and sockets of a service.
pub(crate) fn of_service(service: &Service) -> Vec<(Trusted, PathBuf)> {
    let mut found = Vec::new();
    if let Some(tls) = &service.tls {
        found.push((Trusted::Certificate, tls.certificate.clone()));
        found.push((Trusted::CertificateKey, tls.key.clone()));
    }
    for listen in &service.listen {
        if let Listen::Unix(path) = listen {
            found.push((Trusted::Socket, path.clone()));
        }
    }
    found
}

/// Returns the service of the configuration; `None` if it has none.
fn service(operator: &Operator) -> Result<Option<Service>, Failure> {
    let path = operator.path.as_ref().filter(|_| operator.has_service);
    path.map(|path| Service::load(path)).transpose().map_err(Failure::new)
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

/// Maximum of the certificates in a directory.
const MAX_CERTIFICATES: usize = 4096;

/// Returns the program's own locations and files, and those of the configuration.
pub(crate) fn own(operator: &Operator, audit: &Audit) -> Result<Vec<TrustedPath>, Failure> {
    let mut found = listed(places())?;
    found.extend(in_use(operator, audit)?);
    Ok(found)
}

/// Returns the program's own files, and those of the configuration.
pub(crate) fn in_use(operator: &Operator, audit: &Audit) -> Result<Vec<TrustedPath>, Failure> {
    let mut found = program()?;
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
        let certificates = named_certificates()?;
        found.extend(certificates.into_iter().map(|path| (Trusted::Certificate, path)));
    }
    found.extend(signer(audit)?);
    if let Some(program) = &operator.notifications.program {
        let files = executed(&[program], Path::new("/"))?;
        found.extend(files.into_iter().map(|file| (Trusted::Notifier, file)));
    }
    listed(found)
}

/// Returns the files that are executed when the signer starts, and those that its arguments name.
pub(crate) fn signer(audit: &Audit) -> Result<Vec<(Trusted, PathBuf)>, Failure> {
    // A signer starts in `/`.
    let files = executed(&audit.signer, Path::new("/"))?;
    // Paths among the arguments may be the key.
    let keys = audit.signer.iter().skip(1).flat_map(|argument| named_in(argument));
    let files = files.into_iter().map(|file| (Trusted::Signer, file));
    Ok(files.chain(keys.map(|key| (Trusted::SignerKey, key))).collect())
}

/// Returns the certificates that the environment names in place of the system's: a file, and
/// directories with their entries, which may be links.
fn named_certificates() -> Result<Vec<PathBuf>, Failure> {
    let is_named = |path: &PathBuf| !path.as_os_str().is_empty();
    let file = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let mut found: Vec<_> = file.into_iter().filter(is_named).collect();
    let directories = std::env::var_os("SSL_CERT_DIR").unwrap_or_default();
    for directory in std::env::split_paths(&directories).filter(is_named) {
        let shown = directory.display();
        let entries = match operator_files::read_dir(&directory) {
            // Only of these it is known that they have no entries.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                None
            }
            read => Some(read),
        };
        let doing = format!("cannot read the directory of certificates `{shown}`");
        for (number, entry) in
            entries.transpose().or_fail(&doing)?.into_iter().flatten().enumerate()
        {
            if number == MAX_CERTIFICATES {
                return Err(Failure::new(format_args!(
                    "the directory of certificates `{shown}` has more than {MAX_CERTIFICATES} entries"
                ))
                .help("name a file with the certificates instead: SSL_CERT_FILE"));
            }
            found.push(entry.or_fail(&doing)?.path());
        }
        found.push(directory);
    }
    Ok(found)
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
        // Bytes are compared, because there may be thousands of certificates.
        let is_known =
            |known: &TrustedPath| known.role == role && known.path.as_os_str() == path.as_os_str();
        if !paths.iter().any(is_known) {
            paths.push(TrustedPath { role, path });
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
pub(crate) fn places() -> Vec<(Trusted, PathBuf)> {
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
    let named = std::env::args_os().next();
    let named = named.and_then(|name| all_on_path(&name).into_iter().next());
    Ok([Some(own), named].into_iter().flatten().map(|path| (Trusted::Program, path)).collect())
}

/// Finds a program that the operator starts outside of a sandbox: by its path, or the first that a
/// shell could find by this name in a directory of the system. No agent of the workspace can choose
/// it, nor its interpreter. `None` if there is none.
///
/// # Errors
/// When an agent could choose all that there are.
pub(crate) fn operators_program(
    name: &OsStr,
    workspace: &Path,
) -> Result<Option<PathBuf>, Failure> {
    // Of other workspaces' agents, and of what a policy lets agents write, nothing is known here.
    let is_of_system = |path: &PathBuf| {
        let target = operator_files::canonicalize(path);
        target
            .is_ok_and(|target| SYSTEM_DIRECTORIES.iter().any(|system| target.starts_with(system)))
    };
    let is_named = name.as_encoded_bytes().contains(&b'/');
    let found = all_on_path(name).into_iter();
    let found = found.filter(|path| is_named || path.is_absolute() && is_of_system(path));
    first_of_operator(&"program", found, &of_agents(workspace, &[])?)
}

/// Returns the first program that no agent can choose, nor its interpreter; `None` if there is none.
///
/// # Errors
/// When an agent could choose each of them.
pub(super) fn first_of_operator(
    role: &dyn fmt::Display,
    programs: impl Iterator<Item = PathBuf>,
    agents: &TrustedPaths,
) -> Result<Option<PathBuf>, Failure> {
    let here = std::path::absolute(".").or_fail("cannot look up a program")?;
    let check = |path: &Path| -> Result<(), Failure> {
        let files = executed(&[path], &here)?;
        let mut ways = files.iter().map(|file| agents.check_way(role, file));
        ways.try_for_each(|checked| checked.map_err(Failure::new))
    };
    let mut refused = None;
    for path in programs {
        let path = here.join(path);
        match check(&path) {
            Ok(()) => return Ok(Some(path)),
            Err(failure) => refused = refused.or(Some(failure)),
        }
    }
    refused.map_or(Ok(None), Err)
}
