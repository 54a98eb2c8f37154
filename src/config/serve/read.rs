//! Conversion of a text to a consistent [`Service`].

use std::{ops::RangeInclusive, path::Path, time::Duration};

use serde::Deserialize;
use toml::Spanned;

use super::{
    AgentConfig, FIELDS, Limits, Listen, Service, TOKEN_PREFIX, Telemetry, Tls, WorkspaceConfig,
    is_workspace_name, parse_hash,
};
use crate::{
    config::{file::NO_FORM, keys::keys_except},
    policy::{Diagnostics, Document, is_name, parse_size},
};

/// Maximum of workspaces of a service.
const MAX_WORKSPACES: usize = 4_096;
/// Maximum of sockets, which are passed to the front in one message.
const MAX_LISTEN: usize = 8;

type RawText = Spanned<String>;

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    serve: Serve,
    telemetry: Option<RawTelemetry>,
    workspaces: Vec<RawWorkspace>,
    agents: Vec<RawAgent>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Serve {
    listen: Option<Spanned<Vec<RawText>>>,
    plaintext: bool,
    tls: Option<RawTls>,
    hosts: Vec<RawText>,
    origins: Vec<RawText>,
    state: Option<String>,
    idle_seconds: Option<u64>,
    session_idle_seconds: Option<u64>,
    limits: RawLimits,
}

#[derive(Deserialize)]
struct RawTls {
    certificate: String,
    key: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawTelemetry {
    otlp: RawText,
    service: Option<String>,
    sample_percent: Option<u64>,
}

/// Bounds of a message's size in bytes: less would not fit a long path, and the
/// length of a message has 32 bits.
const MESSAGE: RangeInclusive<u64> = 64 << 10..=1 << 31;
/// Maximum of memory for messages, in bytes.
const MAX_MEMORY: u64 = 1 << 40;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawLimits {
    requests_per_second: Option<u64>,
    bytes_per_second: Option<RawText>,
    concurrent_requests: Option<usize>,
    watches: Option<usize>,
    sessions: Option<usize>,
    connections: Option<usize>,
    failed_logins: Option<u32>,
    head_seconds: Option<u64>,
    head_bytes: Option<usize>,
    body_seconds: Option<u64>,
    message_size: Option<RawText>,
    message_memory: Option<RawText>,
}

#[derive(Deserialize)]
struct RawWorkspace {
    name: RawText,
    root: String,
    policy: Option<String>,
    state: Option<String>,
    tools: Option<String>,
    ask: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawAgent {
    name: RawText,
    token_hash: RawText,
    workspaces: Vec<RawText>,
    #[serde(default)]
    metrics: bool,
}

/// Parses `text` of `file`; relative paths begin at `base`.
pub(super) fn parse(text: &str, file: &str, base: &Path) -> Result<Service, Diagnostics> {
    let mut document = Document::check(
        file,
        text,
        FIELDS,
        &keys_except(&["serve", "telemetry", "workspaces", "agents"]),
    );
    if !document.is_good() {
        return Err(document.finish().err().unwrap_or_default());
    }
    let raw: File = match toml::from_str(text) {
        Ok(raw) => raw,
        Err(error) => {
            document.wrong(error.span().unwrap_or(0..0), NO_FORM, "");
            return Err(document.finish().err().unwrap_or_default());
        }
    };
    let defaults = Service::default();
    let service = Service {
        listen: match raw.serve.listen {
            Some(texts) => listen(texts, &mut document),
            None => defaults.listen,
        },
        plaintext: raw.serve.plaintext,
        tls: raw
            .serve
            .tls
            .map(|tls| Tls { certificate: base.join(tls.certificate), key: base.join(tls.key) }),
        hosts: raw.serve.hosts.into_iter().map(|text| host(text, &mut document)).collect(),
        origins: raw.serve.origins.into_iter().map(|text| origin(text, &mut document)).collect(),
        state: raw.serve.state.map(|path| base.join(path)),
        idle: raw.serve.idle_seconds.map_or(defaults.idle, Duration::from_secs),
        session_idle: raw
            .serve
            .session_idle_seconds
            .map_or(defaults.session_idle, Duration::from_secs),
        limits: limits(raw.serve.limits, &mut document),
        telemetry: raw.telemetry.map(|raw| telemetry(raw, &mut document)),
        workspaces: workspaces(raw.workspaces, base, &mut document),
        agents: Vec::new(),
    };
    let agents = agents(raw.agents, &service.workspaces, &mut document);
    document.finish()?;
    Ok(Service { agents, ..service })
}

fn listen(texts: Spanned<Vec<RawText>>, document: &mut Document) -> Vec<Listen> {
    let span = texts.span();
    let texts = texts.into_inner();
    if texts.is_empty() || texts.len() > MAX_LISTEN {
        document.wrong(span, format!("`serve.listen` needs 1 to {MAX_LISTEN} addresses"), "");
    }
    let mut found = Vec::new();
    for text in texts {
        match text.get_ref().parse() {
            Ok(listen) => found.push(listen),
            Err(error) => document.wrong(text.span(), format!("not an address: {error}"), ""),
        }
    }
    found
}

fn host(text: RawText, document: &mut Document) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if text.get_ref().is_empty() || !text.get_ref().chars().all(good) {
        let help = "write a name such as \"files.example.com\", without scheme and port";
        document.wrong(text.span(), "`serve.hosts` needs names of hosts", help);
    }
    text.into_inner().to_ascii_lowercase()
}

fn origin(text: RawText, document: &mut Document) -> String {
    let written = text.get_ref().to_ascii_lowercase();
    let known =
        [("http://", ":80"), ("https://", ":443")].into_iter().find_map(|(scheme, port)| {
            let host = written.strip_prefix(scheme)?;
            // Browsers omit the default port.
            Some((scheme, host.strip_suffix(port).unwrap_or(host)))
        });
    let good =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    let is_host = |host: &str| !host.is_empty() && !host.ends_with(':') && host.chars().all(good);
    match known.filter(|(_, host)| is_host(host)) {
        Some((scheme, host)) => format!("{scheme}{host}"),
        None => {
            let help = "write it as browsers do: \"https://app.example.com\", without a path; a name \
                        in other letters in its form with `xn--`";
            document.wrong(text.span(), "`serve.origins` needs origins", help);
            written
        }
    }
}

fn telemetry(raw: RawTelemetry, document: &mut Document) -> Telemetry {
    let RawTelemetry { otlp, service, sample_percent } = raw;
    if !cfg!(feature = "otlp") {
        let help = "build it with `--features otlp`, or `full`";
        document.wrong(otlp.span(), "this build of portcullis exports no spans", help);
    }
    let known =
        ["http://", "https://"].iter().find_map(|scheme| otlp.get_ref().strip_prefix(scheme));
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '@');
    if !known.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(odd))
    {
        let help = "write the collector's address, such as \"http://127.0.0.1:4318\"; what it must be \
                    told secretly goes into OTEL_EXPORTER_OTLP_HEADERS";
        document.wrong(otlp.span(), "`telemetry.otlp` is not an address of a collector", help);
    }
    let sample_percent = sample_percent.unwrap_or(100);
    Telemetry { otlp: otlp.into_inner(), service, sample_percent }
}

fn limits(raw: RawLimits, document: &mut Document) -> Limits {
    let defaults = Limits::default();
    let mut size = |key: &str, text: Option<RawText>, range: RangeInclusive<u64>| {
        let text = text?;
        match parse_size(text.get_ref()) {
            Some(size) if range.contains(&size) => Some(size),
            Some(_) => {
                let reason = format!("`serve.limits.{key}` is too small or too large");
                let help = format!("from {} to {} bytes", range.start(), range.end());
                document.wrong(text.span(), reason, &help);
                None
            }
            None => {
                let help = "write a whole number and a unit, such as \"100MiB\"";
                let reason = format!("`serve.limits.{key}` is no size");
                document.wrong(text.span(), reason, help);
                None
            }
        }
    };
    let bytes = size("bytesPerSecond", raw.bytes_per_second, 1..=u64::MAX);
    let message = size("messageSize", raw.message_size, MESSAGE);
    let most = message.unwrap_or(u64::try_from(defaults.message_bytes).unwrap_or(u64::MAX));
    // At least one message of that size must fit.
    let memory = size("messageMemory", raw.message_memory, most..=MAX_MEMORY);
    let whole = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    Limits {
        requests_per_second: raw.requests_per_second.unwrap_or(defaults.requests_per_second),
        bytes_per_second: bytes.unwrap_or(defaults.bytes_per_second),
        concurrent_requests: raw.concurrent_requests.unwrap_or(defaults.concurrent_requests),
        watches: raw.watches.unwrap_or(defaults.watches),
        sessions: raw.sessions.unwrap_or(defaults.sessions),
        connections: raw.connections.unwrap_or(defaults.connections),
        failed_logins: raw.failed_logins.unwrap_or(defaults.failed_logins),
        head_seconds: raw.head_seconds.unwrap_or(defaults.head_seconds),
        head_bytes: raw.head_bytes.unwrap_or(defaults.head_bytes),
        body_seconds: raw.body_seconds.unwrap_or(defaults.body_seconds),
        message_bytes: message.map_or(defaults.message_bytes, whole),
        message_memory: memory.map_or(defaults.message_memory.max(whole(most)), whole),
    }
}

fn workspaces(
    raw: Vec<RawWorkspace>,
    base: &Path,
    document: &mut Document,
) -> Vec<WorkspaceConfig> {
    let mut found: Vec<WorkspaceConfig> = Vec::new();
    for one in raw {
        let span = one.name.span();
        let name = one.name.into_inner();
        if !is_workspace_name(&name) {
            let help = "1 to 32 letters, digits, `_` or `-`, and no `-` at the beginning";
            document.wrong(span.clone(), "a workspace cannot have this name", help);
        }
        if found.iter().any(|other| other.name == name) {
            document.wrong(span.clone(), "two workspaces have this name", "");
        }
        if found.len() == MAX_WORKSPACES {
            document.wrong(span, format!("more than {MAX_WORKSPACES} workspaces"), "");
            break;
        }
        let policy = one.policy.unwrap_or_else(|| "default".to_owned());
        found.push(WorkspaceConfig {
            name,
            root: base.join(one.root),
            policy: match is_name(&policy) {
                true => policy,
                false => base.join(policy).to_string_lossy().into_owned(),
            },
            state: one.state.map(|path| base.join(path)),
            reference: one.tools.as_deref() == Some("reference"),
            elicit: one.ask.as_deref() != Some("shell"),
        });
    }
    found
}

fn agents(
    raw: Vec<RawAgent>,
    workspaces: &[WorkspaceConfig],
    document: &mut Document,
) -> Vec<AgentConfig> {
    let mut found: Vec<AgentConfig> = Vec::new();
    for one in raw {
        let name = match one.name.get_ref().parse() {
            Ok(name) => name,
            Err(error) => {
                document.wrong(one.name.span(), format!("no name of an agent: {error}"), "");
                continue;
            }
        };
        if found.iter().any(|other| other.name == name) {
            document.wrong(one.name.span(), "two agents have this name", "");
        }
        let Some(token) = parse_hash(one.token_hash.get_ref()) else {
            let (message, help) = match one.token_hash.get_ref().starts_with(TOKEN_PREFIX) {
                true => (
                    "this is a token, not the hash of one",
                    "make a new one with `portcullis token new`: this one may have been read here",
                ),
                false => (
                    "not a token hash",
                    "`portcullis token new --agent NAME` prints one: `sha256:` and 64 hex digits",
                ),
            };
            document.wrong(one.token_hash.span(), message, help);
            continue;
        };
        if found.iter().any(|other| other.token == token) {
            document.wrong(one.token_hash.span(), "two agents have this token", "");
        }
        let all = one.workspaces.iter().any(|name| name.get_ref() == "*");
        for name in one.workspaces.iter().filter(|name| name.get_ref() != "*") {
            if !workspaces.iter().any(|known| known.name == *name.get_ref()) {
                let known: Vec<_> = workspaces.iter().map(|known| known.name.as_str()).collect();
                let help = match known.as_slice() {
                    [] => "name it in `[[workspaces]]`".to_owned(),
                    [..] if known.len() > 10 => "name it in `[[workspaces]]`".to_owned(),
                    _ => format!("workspaces: {}, or \"*\" for all", known.join(", ")),
                };
                document.wrong(name.span(), "there is no such workspace", &help);
            }
        }
        let names = one.workspaces.into_iter().map(RawText::into_inner).collect();
        let workspaces = if all { None } else { Some(names) };
        found.push(AgentConfig { name, token, workspaces, metrics: one.metrics });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::show_hash, *};

    const HASH: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000ff";

    fn service(text: &str) -> Result<Service, String> {
        parse(text, "portcullis.toml", Path::new("/etc/p")).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn everything_has_a_default_and_other_sections_are_left_alone() {
        let text = "requireSignature = false\n[audit]\ndurability = \"synced\"\n";
        assert_eq!(service(text).unwrap(), Service::default());
    }

    #[test]
    fn a_whole_configuration_is_read() {
        let text = format!(
            "[serve]\nlisten = [\"[::1]:9\", \"unix:/run/p.sock\"]\nhosts = [\"A.example\"]\n\
             idleSeconds = 5\nlimits = {{ bytesPerSecond = \"1MiB\", sessions = 3 }}\n\
             tls = {{ certificate = \"c.pem\", key = \"/k.pem\" }}\n\
             [[workspaces]]\nname = \"shop\"\nroot = \"shop\"\npolicy = \"shop.toml\"\n\
             ask = \"shell\"\n\
             [[workspaces]]\nname = \"docs\"\nroot = \"/srv/docs\"\ntools = \"reference\"\n\
             [[agents]]\nname = \"ci\"\ntokenHash = \"{HASH}\"\nworkspaces = [\"shop\"]\n\
             [[agents]]\nname = \"eye\"\ntokenHash = \"{}\"\nworkspaces = [\"*\"]\nmetrics = true\n",
            HASH.replace("ff", "fe")
        );
        let service = service(&text).unwrap();
        assert_eq!(service.listen.len(), 2);
        assert_eq!(service.hosts, ["a.example"]);
        assert_eq!((service.limits.bytes_per_second, service.limits.sessions), (1 << 20, 3));
        let [shop, docs] = &service.workspaces[..] else { panic!() };
        assert_eq!(shop.root, Path::new("/etc/p/shop"));
        assert_eq!((shop.policy.as_str(), docs.policy.as_str()), ("/etc/p/shop.toml", "default"));
        assert!(!shop.elicit && docs.elicit && docs.reference);
        let [ci, eye] = &service.agents[..] else { panic!() };
        assert!(ci.may_use("shop") && !ci.may_use("docs") && eye.may_use("docs") && eye.metrics);
        assert_eq!(show_hash(&ci.token), HASH);
    }

    #[test]
    fn where_spans_go_is_read_in_builds_that_send_them() {
        let text = "[telemetry]\notlp = \"http://127.0.0.1:4318/\"\nsamplePercent = 5\n";
        let read = service(text);
        if cfg!(feature = "otlp") {
            let telemetry = read.unwrap().telemetry.unwrap();
            assert_eq!(telemetry.traces(), "http://127.0.0.1:4318/v1/traces");
            assert_eq!(telemetry.sample_percent, 5);
        } else {
            let wrong = read.unwrap_err();
            assert!(wrong.contains("exports no spans") && wrong.contains("`--features otlp`"));
        }
    }

    /// The service used to start without an error, and refused the page.
    #[test]
    fn an_origin_is_taken_as_browsers_send_it() {
        for (written, sent) in [
            ("https://App.Example.com:443", "https://app.example.com"),
            ("HTTP://app.example.com:80", "http://app.example.com"),
            ("https://app.example.com:80", "https://app.example.com:80"),
            ("http://[::1]:3000", "http://[::1]:3000"),
        ] {
            let read = service(&format!("[serve]\norigins = [\"{written}\"]")).unwrap();
            assert_eq!(read.origins, [sent]);
        }
    }

    #[test]
    fn everything_that_is_wrong_is_shown_with_its_line_and_what_to_do() {
        let agent = |more: &str| format!("[[agents]]\nname = \"a\"\n{more}");
        for (text, words) in [
            ("[serve]\nlisten = []".to_owned(), "`serve.listen` needs 1 to 8 addresses"),
            ("[serve]\nlisten = [\"here\"]".to_owned(), "not an address: expected an address"),
            ("[serve]\nlistn = []".to_owned(), "did you mean `listen`?"),
            ("[serv]\n".to_owned(), "did you mean `serve`?"),
            ("[serve]\nhosts = [\"http://x\"]".to_owned(), "without scheme and port"),
            ("[serve]\norigins = [\"*\"]".to_owned(), "write it as browsers do"),
            ("[serve]\norigins = [\"https://ą.example\"]".to_owned(), "write it as browsers do"),
            ("[serve]\norigins = [\"https://a@b\"]".to_owned(), "write it as browsers do"),
            ("[serve.limits]\nsessions = 0".to_owned(), "`serve.limits.sessions` is out of range"),
            ("[serve.limits]\nwatches = 5000".to_owned(), "`serve.limits.watches` is out of range"),
            ("[serve.limits]\nbytesPerSecond = \"x\"".to_owned(), "is no size"),
            ("[[workspaces]]\nname = \"a/b\"\nroot = \"x\"".to_owned(), "cannot have this name"),
            ("[[workspaces]]\nname = \"a\"".to_owned(), "`workspaces` has no `root`"),
            (agent("workspaces = []"), "`agents` has no `tokenHash`"),
            (agent("tokenHash = \"pcl_x\"\nworkspaces = []"), "this is a token"),
            (agent("tokenHash = \"x\"\nworkspaces = []"), "`portcullis token new --agent NAME`"),
            (agent(&format!("tokenHash = \"{HASH}\"\nworkspaces = [\"x\"]")), "no such workspace"),
            ("[telemetry]\notlp = \"collector\"".to_owned(), "not an address of a collector"),
            ("[telemetry]\notlp = \"http://a@b\"".to_owned(), "not an address of a collector"),
            ("[telemetry]".to_owned(), "`telemetry` has no `otlp`"),
            ("[serve".to_owned(), "not valid TOML"),
        ] {
            let wrong = service(&text).unwrap_err();
            assert!(wrong.contains(words) && wrong.contains("portcullis.toml:"), "{text}\n{wrong}");
        }
        let two = "[[workspaces]]\nname = \"a\"\nroot = \"x\"\n".repeat(2);
        assert!(service(&two).unwrap_err().contains("two workspaces have this name"));
    }
}
