//! The format of tests: `[[tests]]` of a policy, and files of tests alone, named `*.test.toml`.
//! Only the latter may have content, files and steps: a policy is loaded without access to a disk.

use std::{collections::BTreeMap, net::IpAddr, ops::Range};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use toml::Spanned;

use crate::{
    model::{AgentName, Connect, Host, OperationKind, WorkspacePath},
    policy::LabelIds,
};

/// Maximum number of operations in the tests of one file, repetitions included. It bounds the time
/// of a test run.
const MAX_OPERATIONS: u64 = 20_000;

/// The names of effects.
const EFFECTS: [&str; 3] = ["allow", "deny", "ask"];

/// One test.
#[derive(Debug, Clone)]
pub(super) struct Test {
    /// The byte range in the file.
    pub(super) span: Range<usize>,
    pub(super) name: Option<String>,
    /// The files that exist before the test, with their content.
    pub(super) files: Vec<(WorkspacePath, Vec<u8>)>,
    /// The requests, in this order; at least one unless the test is about a connection.
    pub(super) steps: Vec<Step>,
    /// The connection that is tested instead.
    pub(super) connection: Option<ConnectionTest>,
    /// True if names alone do not decide it.
    pub(super) needs_gateway: bool,
}

/// One request with its expected decision.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) operation: OperationKind,
    /// The path; the root for a connection.
    pub(super) path: WorkspacePath,
    /// The host and port of a connection.
    pub(super) connect: Option<Connect>,
    pub(super) to: Option<WorkspacePath>,
    pub(super) agent: AgentName,
    pub(super) content: Vec<u8>,
    /// The text that an edit replaces.
    pub(super) old: String,
    pub(super) repeat: u64,
    pub(super) effect: String,
    pub(super) rule: Option<String>,
    /// The text that a read must disclose.
    pub(super) disclosed: Option<String>,
}

/// A connection with its expected decision.
#[derive(Debug, Clone)]
pub(super) struct ConnectionTest {
    pub(super) connect: Connect,
    /// An address of the host.
    pub(super) address: Option<IpAddr>,
    /// The labels of what was read before.
    pub(super) read: LabelIds,
    pub(super) agent: AgentName,
    pub(super) effect: String,
    pub(super) rule: Option<String>,
}

/// The reason why the tests of a file cannot be run, with its place.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    pub(super) span: Option<Range<usize>>,
    pub(super) message: String,
}

/// Reads the tests of a policy from its text. Its other keys are ignored.
pub(super) fn of_policy(text: &str) -> Result<Vec<Test>, Problem> {
    #[derive(Deserialize)]
    struct PolicyTests {
        #[serde(default)]
        tests: Vec<Spanned<RawTest>>,
    }
    let file: PolicyTests = toml::from_str(text).map_err(syntax)?;
    tests(file.tests)
}

/// Reads a file of tests.
pub(super) fn of_file(text: &str) -> Result<Vec<Test>, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TestFile {
        schema: Spanned<u64>,
        #[serde(default)]
        tests: Vec<Spanned<RawTest>>,
    }
    let file: TestFile = toml::from_str(text).map_err(syntax)?;
    if *file.schema.get_ref() != 1 {
        let message = "this version reads schema 1 only".to_owned();
        return Err(Problem { span: Some(file.schema.span()), message });
    }
    tests(file.tests)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTest {
    name: Option<String>,
    agent: Option<String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    steps: Vec<Spanned<RawStep>>,
    operation: Option<String>,
    path: Option<String>,
    to: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    address: Option<String>,
    #[serde(rename = "whenRead", default)]
    when_read: LabelIds,
    content: Option<String>,
    base64: Option<String>,
    old: Option<String>,
    repeat: Option<u64>,
    expect: Option<RawExpect>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    operation: String,
    path: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    agent: Option<String>,
    to: Option<String>,
    content: Option<String>,
    base64: Option<String>,
    old: Option<String>,
    repeat: Option<u64>,
    expect: RawExpect,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpect {
    effect: String,
    rule: Option<String>,
    content: Option<String>,
}

fn syntax(error: toml::de::Error) -> Problem {
    Problem { span: error.span(), message: error.message().to_owned() }
}

fn tests(raw: Vec<Spanned<RawTest>>) -> Result<Vec<Test>, Problem> {
    let mut operations = 0_u64;
    let mut found = Vec::with_capacity(raw.len());
    for test in raw {
        let span = test.span();
        let at = |message: String| Problem { span: Some(span.clone()), message };
        let test = one(test.into_inner(), &span)?;
        let asked = test.steps.iter().fold(0_u64, |sum, step| sum.saturating_add(step.repeat));
        operations = operations.saturating_add(asked);
        if operations > MAX_OPERATIONS {
            return Err(at(format!("the tests ask for more than {MAX_OPERATIONS} operations")));
        }
        found.push(test);
    }
    Ok(found)
}

fn one(raw: RawTest, span: &Range<usize>) -> Result<Test, Problem> {
    let at = |message: String| Problem { span: Some(span.clone()), message };
    if raw.operation.as_deref() == Some(OperationKind::Connect.as_str()) {
        let (name, connection) = (raw.name.clone(), Some(parse_connection(raw).map_err(at)?));
        let (span, files, steps) = (span.clone(), Vec::new(), Vec::new());
        return Ok(Test { span, name, files, steps, connection, needs_gateway: false });
    }
    let is_of_connect = raw.host.is_some()
        || raw.port.is_some()
        || raw.address.is_some()
        || !raw.when_read.is_empty();
    if is_of_connect {
        let words = "`host`, `port`, `address` and `whenRead` are for tests of `connect`";
        return Err(at(words.to_owned()));
    }
    let mut needs_gateway = !raw.files.is_empty() || !raw.steps.is_empty();
    let mut files = Vec::new();
    for (path, content) in raw.files {
        files.push((parse_path(&path).map_err(at)?, content.into_bytes()));
    }
    let agent = raw.agent.clone();
    let mut steps = Vec::new();
    match (raw.operation, raw.path, raw.expect) {
        (Some(operation), Some(path), Some(expect)) if raw.steps.is_empty() => {
            needs_gateway |= raw.content.is_some()
                || raw.base64.is_some()
                || raw.old.is_some()
                || raw.repeat.is_some()
                || expect.content.is_some();
            let step = RawStep {
                operation,
                path: Some(path),
                host: None,
                port: None,
                agent: None,
                to: raw.to,
                content: raw.content,
                base64: raw.base64,
                old: raw.old,
                repeat: raw.repeat,
                expect,
            };
            let step = parse_step(step, agent.as_deref()).map_err(at)?;
            // The content of a read is that of the file.
            if step.operation == OperationKind::Read && needs_gateway && files.is_empty() {
                files.push((step.path.clone(), step.content.clone()));
            }
            steps.push(step);
        }
        (None, None, None) if !raw.steps.is_empty() => {
            for step in raw.steps {
                let span = step.span();
                let at = |message: String| Problem { span: Some(span.clone()), message };
                steps.push(parse_step(step.into_inner(), agent.as_deref()).map_err(at)?);
            }
        }
        _ => {
            let message = "a test has `operation`, `path` and `expect`, or `steps` that have them";
            return Err(at(message.to_owned()));
        }
    }
    let connection = None;
    Ok(Test { span: span.clone(), name: raw.name, files, steps, connection, needs_gateway })
}

fn parse_step(raw: RawStep, agent: Option<&str>) -> Result<Step, String> {
    let is_connection = raw.operation == OperationKind::Connect.as_str();
    let operation = match is_connection {
        true => OperationKind::Connect,
        false => raw.operation.parse().map_err(|()| {
            let known = OperationKind::ALL.map(OperationKind::as_str).join(", ");
            format!("`operation` must be one of {known}, and in steps connect")
        })?,
    };
    let has_content = raw.content.is_some() || raw.base64.is_some() || raw.old.is_some();
    let (path, connect) = match (&raw.path, &raw.host, raw.port) {
        (None, Some(host), Some(port)) if is_connection && !has_content => {
            let host = Host::parse(host).map_err(|error| format!("bad host: {error}"))?;
            (WorkspacePath::root(), Some(Connect { host, port }))
        }
        _ if is_connection => {
            return Err("a step with `connect` has `host` and `port`, and no path".to_owned());
        }
        (Some(path), None, None) => (parse_path(path)?, None),
        _ => return Err("a step has `path`; `host` and `port` are for `connect`".to_owned()),
    };
    let to = raw.to.as_deref().map(parse_path).transpose()?;
    match (operation, &to) {
        (OperationKind::Rename, None) => return Err("a test of `rename` needs `to`".to_owned()),
        (OperationKind::Rename, _) | (_, None) => {}
        (_, Some(_)) => return Err("`to` is for tests of `rename`".to_owned()),
    }
    if !EFFECTS.contains(&raw.expect.effect.as_str()) {
        return Err(format!("`effect` must be one of {}", EFFECTS.join(", ")));
    }
    let content = match (raw.content, raw.base64) {
        (Some(_), Some(_)) => return Err("a test has `content` or `base64`, not both".to_owned()),
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => {
            STANDARD.decode(text).map_err(|error| format!("bad `base64`: {error}"))?
        }
        (None, None) => Vec::new(),
    };
    let agent = raw.agent.as_deref().or(agent).unwrap_or("agent");
    Ok(Step {
        operation,
        path,
        connect,
        to,
        agent: agent.parse().map_err(|error| format!("bad agent name: {error}"))?,
        content,
        old: raw.old.unwrap_or_default(),
        repeat: raw.repeat.unwrap_or(1).max(1),
        effect: raw.expect.effect,
        rule: raw.expect.rule,
        disclosed: raw.expect.content,
    })
}

fn parse_connection(raw: RawTest) -> Result<ConnectionTest, String> {
    let (Some(host), Some(port), Some(expect)) = (raw.host, raw.port, raw.expect) else {
        return Err("a test of `connect` has `host`, `port` and `expect`".to_owned());
    };
    let is_of_paths = raw.path.is_some()
        || raw.to.is_some()
        || raw.content.is_some()
        || raw.base64.is_some()
        || raw.old.is_some()
        || raw.repeat.is_some()
        || expect.content.is_some()
        || !raw.files.is_empty()
        || !raw.steps.is_empty();
    if is_of_paths {
        return Err("a test of `connect` has no path, no content and no steps".to_owned());
    }
    if !EFFECTS.contains(&expect.effect.as_str()) {
        return Err(format!("`effect` must be one of {}", EFFECTS.join(", ")));
    }
    let parse = |text: &str| Host::parse(text).map_err(|error| format!("bad host: {error}"));
    let address = match raw.address.as_deref().map(parse).transpose()? {
        Some(Host::Address(address)) => Some(address),
        Some(Host::Name(_)) => return Err("`address` cannot be a name".to_owned()),
        None => None,
    };
    let agent = raw.agent.as_deref().unwrap_or("agent");
    Ok(ConnectionTest {
        connect: Connect { host: parse(&host)?, port },
        address,
        read: raw.when_read,
        agent: agent.parse().map_err(|error| format!("bad agent name: {error}"))?,
        effect: expect.effect,
        rule: expect.rule,
    })
}

fn parse_path(text: &str) -> Result<WorkspacePath, String> {
    WorkspacePath::parse(text).map_err(|error| format!("bad path: {error}"))
}
