//! `portcullis audit session ID`: the story of a session, for people and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{
    app::output::is_closed,
    model::{Escaped, Quoted},
    review::{Actor, Note, PartyActivity, Paths, SessionSummary, SummaryPart},
};

/// The maximum of paths of a kind in a line for people.
const MAX_NAMED: usize = 20;
/// The maximum of paths of a kind in an object for programs.
const MAX_LISTED: usize = 200;

/// Prints it for people.
pub(super) fn print(story: &SessionSummary) {
    let begin = story.parts.first().map(|part| match part {
        SummaryPart::Note(note) => &note.t,
        SummaryPart::Activity(activity) => &activity.times.0,
    });
    let day = begin.and_then(|t| t.get(..10)).map(|day| format!("  from {day}, times in UTC"));
    let (day, agent) = (day.unwrap_or_default(), Quoted(&story.agent));
    outln!("session {}  agent {agent}{}", Quoted(&story.id), Escaped(&day));
    for part in &story.parts {
        match part {
            SummaryPart::Note(note) => outln!("{}", note_line(note)),
            SummaryPart::Activity(activity) => outln!("{}", activity_lines(activity).trim_end()),
        }
        if is_closed() {
            return;
        }
    }
    if story.left_out > 0 {
        outln!("({} more records are not told; see --records)", story.left_out);
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

fn note_line(note: &Note) -> String {
    let text = |text: &Option<String>| text.as_deref().map(shown).unwrap_or_default();
    let fact = |name: &str| match note.facts.get(name) {
        Some(Value::String(text)) => shown(text),
        Some(value) => shown(&value.to_string()),
        None => String::new(),
    };
    let t = Escaped(clock(&note.t));
    if let Some(turn) = note.turn {
        return match (note.facts.get("event").and_then(Value::as_str), fact("claimed").as_str()) {
            (Some("begin"), _) => format!("{t}  turn {turn} begins"),
            (_, "") => format!("{t}  turn {turn} ends"),
            (_, reason) => format!("{t}  turn {turn} ends; the agent says why: {reason}"),
        };
    }
    let mut line = format!("{t}  {}", Quoted(&note.what));
    for more in [text(&note.path), fact("by")].into_iter().filter(|more| !more.is_empty()) {
        let _ = write!(line, " {more}");
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
        Actor::Client(transport) => format!("by {}", Quoted(transport)),
        Actor::Gateway => "gateway".to_owned(),
    }
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
        format!("{from}  {indent}{}  (to {to}, records {first} to {last})\n", who(activity));
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
    line("changed", &activity.changed, false);
    line("denied", &activity.denied, true);
    line("asked", &activity.asked, true);
    line("connected", &activity.connected, false);
    line("failed", &activity.failed, false);
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
    let kinds = [
        (&activity.read, "read", ("file", "files")),
        (&activity.changed, "changed", ("path", "paths")),
        (&activity.denied, "was denied", ("name", "names")),
        (&activity.asked, "asked about", ("name", "names")),
        (&activity.connected, "connected to", ("host", "hosts")),
        (&activity.failed, "failed at", ("path", "paths")),
    ];
    let told = kinds.into_iter().filter(|(paths, ..)| !paths.is_empty());
    let told = told.map(|(paths, word, (one, more))| {
        let (number, least) = (paths.distinct(), if paths.is_exact() { "" } else { "at least " });
        format!("{word} {least}{number} {}", if number == 1 { one } else { more })
    });
    told.collect::<Vec<_>>().join(", ")
}

fn listed(paths: &Paths, is_rule: bool) -> String {
    let one = |((path, word), times): (&(String, String), &u64)| {
        let path = if path.is_empty() { "-".to_owned() } else { Quoted(path).to_string() };
        let mut text = match (word.as_str(), is_rule) {
            ("read" | "write" | "connect", false) => path,
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
        Actor::Gateway => (json!({ "gateway": true }), None),
    };
    let claimed =
        claimed.map(|name| json!({ "program": name, "arguments": activity.claimed_arguments }));
    let list = |paths: &Paths, word: &str| {
        let one = |((path, value), times): (&(String, String), &u64)| json!({ "path": path, word: value, "times": times });
        let listed: Vec<_> = paths.counts.iter().take(MAX_LISTED).map(one).collect();
        let rest: u64 = paths.counts.values().skip(MAX_LISTED).sum();
        (!paths.is_empty()).then(|| {
            json!({
                "distinct": paths.distinct(), "exact": paths.is_exact(),
                "paths": listed, "more": rest.saturating_add(paths.more),
            })
        })
    };
    json!({
        "part": "activity", "actor": actor, "turn": activity.turn,
        "command": (!activity.command.is_empty()).then_some(&activity.command),
        "claimed": claimed,
        "from": activity.times.0, "to": activity.times.1,
        "record": activity.records.0, "lastRecord": activity.records.1,
        "read": list(&activity.read, "op"), "changed": list(&activity.changed, "op"),
        "denied": list(&activity.denied, "rule"), "asked": list(&activity.asked, "rule"),
        "failed": list(&activity.failed, "reason"), "connected": list(&activity.connected, "op"), "lookups": activity.lookups,
        "findings": (!activity.findings.is_empty()).then_some(&activity.findings),
    })
}
