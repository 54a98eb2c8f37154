//! `portcullis audit session ID`: the story of a session, for people and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{
    app::output::is_closed,
    cli::render::{counted, records},
    model::{Escaped, Quoted, Transport},
    review::{Actor, Note, PartyActivity, Paths, SessionSummary, SummaryPart},
};

/// The maximum of paths of a kind in a line for people.
const MAX_NAMED: usize = 20;
/// The maximum of paths of a kind in an object for programs.
const MAX_LISTED: usize = 200;

/// The word of connections: the id of their credential.
const CREDENTIAL: &str = "credential";

/// The description of the network of an agent with `--agent-network`.
const SHARED_NETWORK: &str =
    "the host's (`--agent-network`): its connections are neither decided nor recorded";

/// Prints it for people.
pub(super) fn print(story: &SessionSummary) {
    let begin = story.parts.first().map(|part| match part {
        SummaryPart::Note(note) => &note.t,
        SummaryPart::Activity(activity) => &activity.times.0,
    });
    let day = begin.and_then(|t| t.get(..10)).map(|day| format!("  from {day}, times in UTC"));
    let (day, agent) = (day.unwrap_or_default(), Quoted(&story.agent));
    outln!("session {}  agent {agent}{}", Quoted(&story.id), Escaped(&day));
    let is_acp =
        |part: &&SummaryPart| matches!(part, SummaryPart::Note(note) if note.what == "acp.session");
    let several = story.parts.iter().filter(is_acp).nth(1).is_some();
    for part in &story.parts {
        match part {
            SummaryPart::Note(note) => outln!("{}", note_line(note, several)),
            SummaryPart::Activity(activity) => outln!("{}", activity_lines(activity).trim_end()),
        }
        if is_closed() {
            return;
        }
    }
    if story.left_out > 0 {
        let left_out = counted(story.left_out, "more record");
        outln!("({left_out} not shown; see --records)");
    }
}

/// Prints it as one JSON object a line.
pub(super) fn print_json(story: &SessionSummary) {
    for part in &story.parts {
        let mut object = match part {
            SummaryPart::Note(note) => note_object(note),
            SummaryPart::Activity(activity) => activity_object(activity),
        };
        if let Some(fields) = object.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
            fields.insert("session".to_owned(), story.id.clone().into());
        }
        outjson!(object);
        if is_closed() {
            return;
        }
    }
    if story.left_out > 0 {
        outjson!(json!({ "session": story.id, "part": "leftOut", "records": story.left_out }));
    }
}

fn clock(t: &str) -> &str {
    t.get(11..23).unwrap_or(t)
}

/// Describes a record about the session; `several` says that it has several ACP sessions.
fn note_line(note: &Note, several: bool) -> String {
    let text = |text: &Option<String>| text.as_deref().map(shown).unwrap_or_default();
    let fact = |name: &str| match note.facts.get(name) {
        Some(Value::String(text)) => shown(text),
        Some(value) => shown(&value.to_string()),
        None => String::new(),
    };
    let t = Escaped(clock(&note.t));
    if let Some(turn) = note.turn {
        let of = if several { format!(" of {}", fact("acpSession")) } else { String::new() };
        return match (note.facts.get("event").and_then(Value::as_str), fact("stopReason").as_str())
        {
            (Some("begin"), _) => format!("{t}  turn {turn}{of} begins"),
            (_, "") => format!("{t}  turn {turn}{of} ends"),
            (_, reason) => format!("{t}  turn {turn}{of} ends; the agent says why: {reason}"),
        };
    }
    let mut line = format!("{t}  {}", Quoted(&note.what));
    let acp_session = if note.what == "acp.session" { fact("acpSession") } else { String::new() };
    let more = [text(&note.path), fact("by"), acp_session];
    for more in more.into_iter().filter(|more| !more.is_empty()) {
        let _ = write!(line, " {more}");
    }
    if note.facts.get("agentNetwork").is_some_and(Value::is_object) {
        let _ = write!(line, "  the network is {SHARED_NETWORK}");
    }
    if note.what == "policy" && note.result.as_deref() == Some("ok") {
        let _ = write!(line, " {} version {} is in force", fact("name"), fact("version"));
    } else if note.result.as_deref().is_some_and(|result| result != "ok") {
        let _ = write!(line, "  {}", text(&note.result));
    }
    line
}

/// Describes the actor: first what the gateway knows, then what the program claims.
fn who(activity: &PartyActivity) -> String {
    match &activity.actor {
        Actor::Command(record) if activity.command.is_empty() => format!("command {record}"),
        Actor::Command(record) => {
            let words: Vec<_> =
                activity.command.iter().map(|word| Quoted(word).to_string()).collect();
            format!("command {record}: {}", words.join(" "))
        }
        Actor::Process { pid, claims } => {
            let mut text = format!("process {pid}");
            if let Some(claims) = claims {
                let _ = write!(text, ", which calls itself {:#}", Quoted(claims));
            }
            if !activity.claimed_arguments.is_empty() {
                let _ = write!(text, " ({:#})", Quoted(&activity.claimed_arguments.join(" ")));
            }
            text
        }
        actor if is_mount(actor) => "programs of the mount together".to_owned(),
        Actor::Client(transport) => format!("by {}", Quoted(transport)),
        Actor::Setup => "setup of the sandbox, which makes the programs' git repository".to_owned(),
        Actor::Gateway => "gateway".to_owned(),
    }
}

/// True for what no record gives to one program of the mount: its reads are repeats.
fn is_mount(actor: &Actor) -> bool {
    matches!(actor, Actor::Client(transport) if transport == Transport::Mount.as_str())
}

/// Shows a text, and nothing for an empty one.
fn shown(text: &str) -> String {
    if text.is_empty() { String::new() } else { Quoted(text).to_string() }
}

fn activity_lines(activity: &PartyActivity) -> String {
    let (from, to) = (clock(&activity.times.0), clock(&activity.times.1));
    let (first, last) = activity.records;
    let indent = if activity.turn.is_some() { "  " } else { "" };
    let (from, to) = (Escaped(from), Escaped(to));
    let mut text =
        format!("{from}  {indent}{}  (to {to}, {})\n", who(activity), records(first, last));
    let totals = totals(activity);
    if !totals.is_empty() {
        let _ = writeln!(text, "              {indent}{totals}");
    }
    let mut line = |word: &str, paths: &Paths, is_rule: bool| {
        if !paths.is_empty() {
            let _ = writeln!(text, "              {indent}{word:<9} {}", listed(paths, is_rule));
        }
    };
    line("read", &activity.read, false);
    line("labelled", &activity.labelled, false);
    line("changed", &activity.changed, false);
    line("denied", &activity.denied, true);
    line("asked", &activity.asked, true);
    line("failed", &activity.failed, false);
    if !activity.connected.is_empty() {
        let _ = writeln!(text, "              {indent}connected {}", connected(activity));
    }
    if activity.agent_network.is_some() {
        let _ = writeln!(text, "              {indent}network   {SHARED_NETWORK}");
    }
    if !activity.claimed_tool_calls.is_empty() {
        let calls = listed(&activity.claimed_tool_calls, false);
        let _ =
            writeln!(text, "              {indent}{:<9} to work for tool call {calls}", "claims");
    }
    if !activity.findings.is_empty() {
        let rules = activity.findings.iter();
        let rules: Vec<_> =
            rules.map(|(rule, times)| format!("{} ({times})", Quoted(rule))).collect();
        let rules = rules.join(", ");
        let _ = writeln!(text, "              {indent}{:<9} {rules}", "found");
    }
    text
}

/// Returns the numbers of different paths and hosts in a sentence: "read 340 files, changed 2, was
/// denied 1".
fn totals(activity: &PartyActivity) -> String {
    let read = if is_mount(&activity.actor) { "read again" } else { "read" };
    let kinds = [
        (&activity.read, read, "file"),
        (&activity.changed, "changed", "path"),
        (&activity.denied, "was denied", "name"),
        (&activity.asked, "asked about", "name"),
        (&activity.connected, "connected to", "host"),
        (&activity.failed, "failed at", "path"),
    ];
    let told = kinds.into_iter().filter(|(paths, ..)| !paths.is_empty());
    let told = told.map(|(paths, word, noun)| {
        let least = if paths.is_exact() { "" } else { "at least " };
        format!("{word} {least}{}", counted(paths.distinct() as u64, noun))
    });
    told.collect::<Vec<_>>().join(", ")
}

fn listed(paths: &Paths, is_rule: bool) -> String {
    let one = |((path, word), times): (&(String, String), &u64)| {
        let path = if path.is_empty() { "-".to_owned() } else { Quoted(path).to_string() };
        let mut text = match (word.as_str(), is_rule) {
            ("" | "read" | "write", false) => path,
            // Names within it are quoted already.
            (word, false) => format!("{path} [{}]", Escaped(word)),
            (rule, true) => format!("{path} by {}", Quoted(rule)),
        };
        if *times > 1 {
            let _ = write!(text, " ({times} times)");
        }
        text
    };
    let some = paths.counts.iter().take(MAX_NAMED).map(one).collect::<Vec<_>>().join(", ");
    match (paths.counts.len().saturating_sub(MAX_NAMED), paths.is_exact()) {
        (0, true) => some,
        (more, true) => format!("{some} and {more} more"),
        (more, false) => format!("{some} and at least {} more", more.saturating_add(1)),
    }
}

/// Lists the hosts, each with the number of connections and their bytes.
fn connected(activity: &PartyActivity) -> String {
    let Paths { counts, more } = &activity.connected;
    let one = |(key, times): (&(String, String), &u64)| {
        let traffic = activity.traffic.get(key).copied().unwrap_or_default().text(*times);
        let times = if *times > 1 { format!("{times} times, ") } else { String::new() };
        let (host, credential) = key;
        let with = match credential.is_empty() {
            true => String::new(),
            false => format!(" with `{}`", Escaped(credential)),
        };
        format!("{}{with} ({times}{traffic})", Quoted(host))
    };
    let some = counts.iter().take(MAX_NAMED).map(one).collect::<Vec<_>>().join(", ");
    match (counts.len().saturating_sub(MAX_NAMED), more) {
        (0, 0) => some,
        (hosts, 0) => format!("{some} and {hosts} more"),
        (hosts, _) => format!("{some} and at least {} more", hosts.saturating_add(1)),
    }
}

fn note_object(note: &Note) -> Value {
    json!({
        "part": "note", "record": note.seq, "t": note.t, "what": note.what, "turn": note.turn,
        "path": note.path, "result": note.result,
        "facts": (!note.facts.is_empty()).then_some(&note.facts),
    })
}

fn activity_object(activity: &PartyActivity) -> Value {
    let (actor, claimed) = match &activity.actor {
        Actor::Command(record) => (json!({ "command": record }), None),
        Actor::Process { pid, claims } => (json!({ "process": pid }), Some(claims)),
        Actor::Client(transport) => (json!({ "client": transport }), None),
        Actor::Setup => (json!({ "setup": true }), None),
        Actor::Gateway => (json!({ "gateway": true }), None),
    };
    let claimed =
        claimed.map(|name| json!({ "program": name, "arguments": activity.claimed_arguments }));
    let list = |paths: &Paths, word: &str| {
        let one = |(key, times): (&(String, String), &u64)| {
            let (path, value) = key;
            let mut object = json!({ "path": path, word: value, "times": times });
            if let Some(fields) = object.as_object_mut().filter(|_| word == CREDENTIAL) {
                if value.is_empty() {
                    fields.insert(word.to_owned(), Value::Null);
                }
                fields.insert("op".to_owned(), "connect".into());
                let traffic = activity.traffic.get(key).copied().unwrap_or_default();
                fields.insert("uncounted".to_owned(), traffic.uncounted(*times).into());
                fields.insert("bytesOut".to_owned(), traffic.bytes_out.into());
                fields.insert("bytesIn".to_owned(), traffic.bytes_in.into());
            }
            object
        };
        let listed: Vec<_> = paths.counts.iter().take(MAX_LISTED).map(one).collect();
        let rest: u64 = paths.counts.values().skip(MAX_LISTED).sum();
        (!paths.is_empty()).then(|| {
            json!({
                "distinct": paths.distinct(), "exact": paths.is_exact(),
                "paths": listed, "more": rest.saturating_add(paths.more),
            })
        })
    };
    let Paths { counts: tool_calls, more } = &activity.claimed_tool_calls;
    let more_calls = more.saturating_add(tool_calls.values().skip(MAX_LISTED).sum());
    let tool_calls: Vec<_> = tool_calls.keys().take(MAX_LISTED).map(|(id, _)| id).collect();
    json!({
        "part": "activity", "actor": actor, "turn": activity.turn,
        "command": (!activity.command.is_empty()).then_some(&activity.command),
        "claimed": claimed,
        "claimedToolCalls": (!tool_calls.is_empty()).then_some(tool_calls),
        "claimedToolCallsMore": (more_calls > 0).then_some(more_calls),
        "from": activity.times.0, "to": activity.times.1,
        "record": activity.records.0, "lastRecord": activity.records.1,
        "read": list(&activity.read, "op"), "changed": list(&activity.changed, "op"),
        "denied": list(&activity.denied, "rule"), "asked": list(&activity.asked, "rule"),
        "failed": list(&activity.failed, "reason"), "connected": list(&activity.connected, CREDENTIAL),
        "labelled": list(&activity.labelled, "label"), "agentNetwork": activity.agent_network,
        "lookups": activity.lookups,
        "findings": (!activity.findings.is_empty()).then_some(&activity.findings),
    })
}
