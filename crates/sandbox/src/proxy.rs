//! The sandbox's HTTP proxy as the sandbox sees it: the port at which it listens, and variables that
//! name it. A process outside accepts its connections.

use std::{collections::BTreeMap, ffi::OsString};

use super::{sockets::PROXY_PORT, spec::Listener};

/// Variables that contain a proxy's URL; programs read one or the other.
const URL_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
/// Variables that name the hosts to which programs connect directly.
const DIRECT_VARIABLES: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// The hosts of the sandbox's own network.
const DIRECT_HOSTS: &str = "localhost,127.0.0.1,::1";

/// Names the proxy and further sockets in a program's environment.
pub(super) fn name_in(environment: &mut BTreeMap<OsString, OsString>, listeners: &[Listener]) {
    environment.extend(variables());
    for (name, value) in further_variables() {
        environment.entry(name).or_insert(value);
    }
    for listener in listeners {
        environment.extend(listener.environment.clone());
    }
}

/// Variables that name the proxy, whatever the program had in them.
fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    let url = format!("http://127.0.0.1:{PROXY_PORT}");
    let urls = URL_VARIABLES.map(|name| (name, url.clone()));
    let direct = DIRECT_VARIABLES.map(|name| (name, DIRECT_HOSTS.to_owned()));
    urls.into_iter().chain(direct).map(|(name, value)| (name.into(), value.into()))
}

/// Returns variables for programs that need them to read those; they replace none that the program
/// had.
fn further_variables() -> [(OsString, OsString); 2] {
    let java = format!(
        "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={PROXY_PORT} -Dhttps.proxyHost=127.0.0.1 \
         -Dhttps.proxyPort={PROXY_PORT} -Dhttp.nonProxyHosts=localhost|127.*|[::1]"
    );
    // Node reads the variables from 24 on, and 22.21, if this one is set.
    [("NODE_USE_ENV_PROXY".into(), "1".into()), ("JAVA_TOOL_OPTIONS".into(), java.into())]
}
