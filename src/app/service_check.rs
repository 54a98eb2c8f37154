//! The check of a configuration that can be read, and with which `serve` does not start.

use super::failure::{Exit, Failure};
use crate::config::serve::{Listen, Service};

/// Refuses a configuration with which no start without options could serve.
///
/// # Errors
/// The failure of that start.
pub(crate) fn check(service: &Service) -> Result<(), Failure> {
    check_names(service)?;
    secure(service)
}

/// Refuses workspaces without agents, and agents without workspaces.
fn check_names(service: &Service) -> Result<(), Failure> {
    let what = match (service.agents.is_empty(), service.workspaces.is_empty()) {
        (true, false) => "agents",
        (false, true) => "workspaces",
        _ => return Ok(()),
    };
    Err(Failure::new(format_args!("the configuration names no {what}"))
        .help(format_args!("add `[[{what}]]`; docs/serve.md shows how"))
        .exit(Exit::Usage))
}

/// Checks that tokens do not travel where others can read them, unless the operator
/// confirms other protection.
fn secure(service: &Service) -> Result<(), Failure> {
    if service.tls.is_some() && !cfg!(feature = "tls") {
        return Err(Failure::new("this build of portcullis has no TLS")
            .help("build it with `--features tls` or `--features full`"));
    }
    let far = |listen: &&Listen| matches!(listen, Listen::Tcp(at) if !at.ip().is_loopback());
    match service.listen.iter().find(far) {
        Some(listen) if service.tls.is_none() && !service.plaintext => {
            Err(Failure::new(format_args!(
                "other machines reach `{listen}`, and without TLS anybody on the way can read \
                 tokens and files"
            ))
            .help(
                "configure `[serve] tls`, or say `plaintext = true` (--plaintext) if something \
                 else encrypts",
            ))
        }
        _ => Ok(()),
    }
}
