//! The credentials that programs in a sandbox use and never have.
//!
//! The broker reads a key and hands it to a process of its own over a pipe; it keeps the key to
//! start that process again. Programs find a phantom in its place, and a URL on the sandbox's
//! loopback interface.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::{egress, protocol::CredentialRoute};
use crate::{
    app::{
        failure::{Context as _, Failure},
        opened::Opened,
    },
    config::{
        credentials::{Credential, KeySource},
        read_file, why_unreadable,
    },
    egress::{CredentialKey, CredentialOrder},
    gateway::random_hex,
    model::AgentName,
    policy::LabelIds,
    sandbox::{Listener, Network, SandboxSpec},
};

/// The hidden word on the command line that makes this process a credential's.
pub(super) const COMMAND: &str = "credential-process";

/// The port of the first credential, behind that of the proxy.
const FIRST_PORT: u16 = 3129;
/// The shortest key in bytes: what is shorter would be found in replies by chance.
const MIN_KEY: usize = 16;
/// The longest.
const MAX_KEY: u64 = 8 * 1024;

/// The credentials of one sandbox.
#[derive(Default)]
pub(in crate::cli) struct Credentials(Vec<InUse>);

/// A credential that programs of one sandbox use.
pub(super) struct InUse {
    credential: Credential,
    key: CredentialKey,
    phantom: String,
    port: u16,
}

/// The order that starts a credential's process.
#[derive(Serialize, Deserialize)]
pub(super) struct CredentialStart {
    credential: CredentialOrder,
    /// The file of the certificates that are trusted; without it those of the system are.
    ca: Option<PathBuf>,
}

impl Credentials {
    /// Returns no credentials, for a login. The sandbox gets no variable of a credential from the
    /// operator.
    ///
    /// # Errors
    /// When the sandbox would be given a key.
    pub(in crate::cli) fn none(opened: &Opened, spec: &mut SandboxSpec) -> Result<Self, Failure> {
        keep_out(opened, spec)?;
        Ok(Self::default())
    }

    /// Prepares those that the policy lets programs use. The sandbox has a socket for each, and
    /// what programs need in their environment, where it has a network of its own.
    ///
    /// # Errors
    /// When one is not there, or the sandbox would be given its key.
    pub(in crate::cli) fn prepare(
        opened: &Opened,
        agent: &AgentName,
        spec: &mut SandboxSpec,
    ) -> Result<Self, Failure> {
        keep_out(opened, spec)?;
        let ids = opened.policy.network().credentials();
        let mut used = Vec::new();
        for id in ids {
            let credential = opened.operator.credentials.iter().find(|one| one.id == *id);
            let missing = || {
                let message = "the policy lets programs use the credential `{id}`, which the \
                               configuration does not have";
                Failure::new(message.replace("{id}", id)).help(
                    "add it to `[[credentials]]` in portcullis.toml, or take it out of the policy",
                )
            };
            used.push(credential.ok_or_else(missing)?);
        }
        if used.is_empty() {
            return Ok(Self::default());
        }
        if cfg!(not(feature = "tls")) {
            return Err(Failure::new(
                "this build of portcullis has no TLS, without which no credential can be used",
            )
            .help("take a build with the feature `tls`, or leave `[network] credentials` out"));
        }
        check_variables(&used)?;
        let keyed = |credential: &&Credential| {
            read_key(&credential.from).map_err(|reason| {
                let Credential { id, from, .. } = credential;
                Failure::new(format_args!(
                    "cannot read the key of the credential `{id}` ({from}): {reason}"
                ))
                .help("put the key there, or say where it is with `from` in `[[credentials]]`")
            })
        };
        for credential in &used {
            check_roots(credential).map_err(|reason| {
                let id = &credential.id;
                Failure::new(format_args!("the credential `{id}` cannot be used: {reason}"))
                    .help("put the certificates there, or leave `ca` out of `[[credentials]]`")
            })?;
        }
        let keys = used.iter().map(keyed).collect::<Result<Vec<_>, Failure>>()?;
        if !spec.proxy || spec.network != Network::None {
            errln!(
                "portcullis: warning: programs cannot use the credentials that the policy names: that needs \
                 rules of hosts in `[network]`, and no `--agent-network`"
            );
            return Ok(Self::default());
        }
        let mut in_use = Vec::new();
        for ((credential, key), port) in used.into_iter().zip(keys).zip(FIRST_PORT..) {
            let connect = &credential.to;
            if opened.policy.evaluate_connect(agent, connect, &LabelIds::new()).is_deny() {
                errln!(
                    "portcullis: warning: the policy lets programs use the credential `{}`, and denies \
                     connections to its host: no rule allows `{connect}`",
                    credential.id
                );
            }
            let random = random_hex::<32>().or_fail("cannot make a phantom")?;
            let phantom = format!("portcullis-phantom-{random}");
            let one = InUse { credential: credential.clone(), key, phantom, port };
            spec.listeners.push(one.listener());
            in_use.push(one);
        }
        Ok(Self(in_use))
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = InUse> {
        self.0.into_iter()
    }
}

impl InUse {
    /// Returns the URL at which programs reach its process.
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}{}", self.port, self.credential.base_path)
    }

    fn listener(&self) -> Listener {
        let Credential { env, base_url, .. } = &self.credential;
        let variables = [(env, self.phantom.clone()), (base_url, self.url())];
        let environment = variables.map(|(name, value)| (OsString::from(name), value.into()));
        Listener { port: self.port, environment: BTreeMap::from(environment) }
    }

    pub(super) fn id(&self) -> &str {
        &self.credential.id
    }

    /// Returns the route of the credential, for the gateway process.
    pub(super) fn route(&self) -> CredentialRoute {
        let Credential { id, to, .. } = &self.credential;
        let (id, host) = (id.clone(), to.host.to_string());
        CredentialRoute { id, host, port: to.port, url: self.url() }
    }

    /// Returns the order that starts its process, and a pipe with the key.
    pub(super) fn order(&self) -> Result<(CredentialStart, io::PipeReader), Failure> {
        let Credential { to, header, prefix, methods, paths, ca, .. } = &self.credential;
        let credential = CredentialOrder {
            host: to.host.to_string(),
            port: to.port,
            header: header.clone(),
            prefix: prefix.clone(),
            phantom: self.phantom.clone(),
            methods: methods.clone(),
            paths: paths.clone(),
            roots: Vec::new(),
        };
        let (reader, mut writer) = io::pipe().or_fail("cannot open a pipe")?;
        // A pipe takes more at once than a key may have.
        writer.write_all(self.key.as_bytes()).or_fail("cannot hand a key over")?;
        Ok((CredentialStart { credential, ca: ca.clone() }, reader))
    }
}

/// Keeps the operator's own values of the variables of all credentials out of the sandbox.
///
/// # Errors
/// When the sandbox would be given a key in another way.
fn keep_out(opened: &Opened, spec: &mut SandboxSpec) -> Result<(), Failure> {
    let used = opened.policy.network().credentials();
    for Credential { id, env, base_url, from, .. } in &opened.operator.credentials {
        for name in [env, base_url].into_iter().map(String::as_str).chain(from.variable()) {
            let is_given = spec.environment.remove(OsStr::new(name)).is_some();
            if is_given && !used.contains(id) {
                errln!(
                    "portcullis: note: `{name}` is not passed on: it is a variable of the credential \
                     `{id}`, which the policy does not name"
                );
            }
        }
    }
    for credential in &opened.operator.credentials {
        // A key that cannot be read is missing where the credential is used.
        if let Ok(key) = read_key(&credential.from) {
            refuse_key(spec, credential, &key)?;
        }
    }
    Ok(())
}

/// Refuses credentials that would be found in the same variable.
fn check_variables(used: &[&Credential]) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for name in used.iter().flat_map(|one| [&one.env, &one.base_url]) {
        if !seen.insert(name) {
            let message = format_args!("two credentials of the policy use the variable `{name}`");
            return Err(Failure::new(message)
                .help("name one of them in the policy, or give them other variables"));
        }
    }
    Ok(())
}

/// Reads a key; the reason why not has nothing of it.
pub(in crate::cli) fn read_key(source: &KeySource) -> Result<CredentialKey, String> {
    let text = match source {
        KeySource::Environment(name) => match std::env::var(name) {
            Ok(text) => CredentialKey::new(text),
            Err(std::env::VarError::NotPresent) => return Err("it is not set".to_owned()),
            Err(std::env::VarError::NotUnicode(_)) => return Err("it is no text".to_owned()),
        },
        KeySource::File(path) => {
            let bytes = read_file(path).map_err(|error| why_unreadable(&error))?;
            CredentialKey::new(String::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?)
        }
    };
    let key = text.trim();
    match key.len() as u64 {
        length if length < MIN_KEY as u64 => {
            Err(format!("a key has {MIN_KEY} characters and more"))
        }
        length if length > MAX_KEY => Err(format!("a key has {MAX_KEY} characters at most")),
        _ if !key.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err("a key has only letters, digits and signs, without spaces".to_owned())
        }
        _ => Ok(CredentialKey::new(key.to_owned())),
    }
}

/// Refuses a sandbox to which the key is given in another way.
fn refuse_key(spec: &SandboxSpec, credential: &Credential, key: &str) -> Result<(), Failure> {
    let holds = |text: &OsStr| {
        text.as_encoded_bytes().windows(key.len()).any(|part| part == key.as_bytes())
    };
    let id = &credential.id;
    if let Some((name, _)) = spec.environment.iter().find(|(_, value)| holds(value)) {
        let name = name.display();
        return Err(Failure::new(format_args!(
            "the agent would get the key of the credential `{id}` in the variable `{name}`"
        ))
        .help(
            "leave the variable out: programs find what they need in those of `[[credentials]]`",
        ));
    }
    if spec.arguments.iter().any(|argument| holds(argument)) {
        return Err(Failure::new(format_args!(
            "the agent would get the key of the credential `{id}` on its command line"
        ))
        .help("leave it out: programs find what they need in the variables of `[[credentials]]`"));
    }
    Ok(())
}

/// Runs a credential's process.
pub(super) fn run(parent: u32) -> Result<(), Failure> {
    const WRONG: &str = "the broker sent other descriptors";
    let (order, descriptors) = egress::begin(parent, confine)?;
    let descriptors = <[OwnedFd; 3]>::try_from(descriptors);
    let [gateway, listener, key] = descriptors.map_err(|_| Failure::new(WRONG))?;
    // The key is read only in a confined process: before that it could get into a core file.
    let mut text = CredentialKey::new(String::new());
    io::PipeReader::from(key)
        .take(MAX_KEY)
        .read_to_string(&mut text)
        .or_fail("cannot read the key")?;
    serve(&order, &text, listener, gateway)
}

/// Checks that the certificates are there that a credential names for its process to trust.
#[cfg(feature = "tls")]
pub(in crate::cli) fn check_roots(credential: &Credential) -> Result<(), String> {
    let ca = credential.ca.as_deref();
    ca.map_or(Ok(()), |ca| roots(Some(ca)).map(drop))
}

#[cfg(not(feature = "tls"))]
pub(in crate::cli) fn check_roots(_: &Credential) -> Result<(), String> {
    Ok(())
}

/// Reads the certificates of a file, or without one those that the system trusts.
#[cfg(feature = "tls")]
fn roots(ca: Option<&std::path::Path>) -> Result<Vec<Vec<u8>>, String> {
    let roots: Vec<_> = match ca {
        Some(path) => {
            let pem = read_file(path).and_then(|pem| crate::egress::certificates(&pem));
            let wrong = |error| format!("`ca` (`{}`): {}", path.display(), why_unreadable(&error));
            pem.map_err(wrong)?
        }
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            found.iter().map(|certificate| certificate.to_vec()).collect()
        }
    };
    if roots.is_empty() {
        return Err("this machine trusts no certificates: name some with `ca`".to_owned());
    }
    Ok(roots)
}

#[cfg(feature = "tls")]
fn confine(order: CredentialStart) -> Result<CredentialOrder, Box<dyn std::error::Error>> {
    let roots = roots(order.ca.as_deref())?;
    crate::sandbox::restrict_front().map(drop)?;
    Ok(CredentialOrder { roots, ..order.credential })
}

#[cfg(feature = "tls")]
fn serve(
    order: &CredentialOrder,
    key: &CredentialKey,
    listener: OwnedFd,
    gateway: OwnedFd,
) -> Result<(), Failure> {
    crate::egress::run_credential(order, key, listener, gateway)
        .or_fail("the credential's process failed")
}

#[cfg(not(feature = "tls"))]
fn confine(_: CredentialStart) -> Result<CredentialOrder, Box<dyn std::error::Error>> {
    Err("this build of portcullis has no TLS".into())
}

#[cfg(not(feature = "tls"))]
fn serve(_: &CredentialOrder, _: &CredentialKey, _: OwnedFd, _: OwnedFd) -> Result<(), Failure> {
    Err(Failure::new("this build of portcullis has no TLS"))
}
