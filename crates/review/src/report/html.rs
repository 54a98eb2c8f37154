//! The report as one page: no scripts, no external resources, suited to printing, every text
//! escaped.

use super::{
    GatewayStart, Listed, PolicyInForce, Report,
    attempts::attempts,
    chart,
    gaps::gaps,
    markup::{Page, hash, lines, maybe, moment, path, quoted, text},
};
use crate::{counted, model::Quoted};

const STYLE: &str = include_str!("style.css");
/// The place of the list of contents. No text of a log can contain it, for `<` is escaped.
const CONTENTS: &str = "<!-- contents -->\n";

/// Renders the page.
pub fn page(report: &Report) -> String {
    let mut page = Page::default();
    let title = match report.workspaces.as_slice() {
        [workspace] => format!("Audit report of {}", text(workspace)),
        _ => "Audit report".to_owned(),
    };
    page.raw(format_args!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n<h1>{title}</h1>\n"
    ));
    summary(&mut page, report);
    page.raw(CONTENTS);
    page.section("Activity");
    if report.activity.is_empty() {
        page.raw("<p>No decision in this period.</p>\n");
    } else {
        page.raw(format_args!(
            "<figure>{}<figcaption>Decisions each {} (UTC). <span class=\"key allow\"></span> \
             allowed, <span class=\"key deny\"></span> denied.</figcaption></figure>\n",
            chart::activity(&report.activity, report.activity_unit),
            report.activity_unit
        ));
    }
    decisions(&mut page, report);
    page.section("Denied attempts");
    attempts(&mut page, &report.denied, &report.command("query --decision deny"));
    if report.observed.total > 0 {
        page.section("Attempts that observe mode allowed");
        page.raw("<p>The policy denies these requests, and observe mode allowed them. The rule is the one that \
             denies.</p>\n");
        attempts(&mut page, &report.observed, &report.to_json());
    }
    secrets(&mut page, report);
    files(&mut page, report);
    approvals(&mut page, report);
    gaps(&mut page, report);
    status(&mut page, report);
    policies(&mut page, &report.policies);
    policy_changes(&mut page, report);
    page.raw(format_args!(
        "<footer>Made by portcullis {} on {}. This page repeats what the log says; \
         <code>portcullis audit verify {}</code> checks the log itself.</footer>\n\
         </main>\n</body>\n</html>\n",
        text(report.program),
        moment(&report.created),
        quoted(&report.options)
    ));
    page.finish(CONTENTS)
}

fn summary(page: &mut Page, report: &Report) {
    let period = &report.period;
    let asked = match (&period.since, &period.until) {
        (None, None) => "the complete log".to_owned(),
        (Some(since), None) => format!("from {}", moment(since)),
        (None, Some(until)) => format!("before {}", moment(until)),
        (Some(since), Some(until)) => format!("{} to {}", moment(since), moment(until)),
    };
    let span = match (&period.first, &period.last) {
        (Some(first), Some(last)) => {
            format!("first record {}, last record {} (UTC)", moment(first), moment(last))
        }
        _ => "no record".to_owned(),
    };
    let pruned = match &period.pruned_before {
        Some(t) => format!("; <b>nothing is known of the time before {}</b>", moment(t)),
        None => String::new(),
    };
    let workspaces: Vec<_> =
        report.workspaces.iter().map(|path| format!("<code>{}</code>", text(path))).collect();
    let figure = |count: u64, [one, many]: [&str; 2]| {
        format!("<li><b>{count}</b> {}</li>", if count == 1 { one } else { many })
    };
    let observed = match report.observed.total {
        0 => String::new(),
        count => figure(count, ["of them only by observe mode"; 2]),
    };
    page.raw(format_args!(
        "{}<dl>\n<dt>Workspace</dt><dd>{}</dd>\n<dt>Period</dt><dd>{asked}; {span}{pruned}</dd>\n\
         <dt>Records</dt><dd>{}</dd>\n</dl>\n\
         <ul class=\"figures\">{}{observed}{}{}{}{}</ul>\n",
        describe(report),
        if workspaces.is_empty() { maybe(None) } else { workspaces.join(", ") },
        report.records,
        figure(report.allowed(), ["request allowed", "requests allowed"]),
        figure(report.denied.total, ["request denied", "requests denied"]),
        figure(report.files.total, ["file changed", "files changed"]),
        figure(report.secrets.total, ["request with secrets", "requests with secrets"]),
        figure(report.agents.len() as u64, ["agent", "agents"]),
    ));
}

/// Returns the findings in a few sentences, for readers who read no more.
fn describe(report: &Report) -> String {
    let mut words = if report.valid {
        "<p class=\"good\">The log is intact. ".to_owned()
    } else if report.chain.newer().is_some() {
        "<p class=\"bad\">A newer Portcullis wrote a part of the log, which this one cannot check. "
            .to_owned()
    } else {
        "<p class=\"bad\">The log is damaged: see “Gaps and damage”. ".to_owned()
    };
    // A name must not pass for the sentence around it.
    let name = |value: Option<&String>| match value {
        Some(value) => format!("<code>{}</code>", quoted(&Quoted(value).to_string())),
        None => maybe(None),
    };
    words += &match report.allowed() + report.denied.total {
        0 => "No request was decided on. ".to_owned(),
        all => format!(
            "{} made {}, of which {} denied. ",
            counted(report.agents.len() as u64, "agent"),
            counted(all, "request"),
            match report.denied.total {
                0 => "none was".to_owned(),
                1 => "1 was".to_owned(),
                denied => format!("{denied} were"),
            }
        ),
    };
    if let Some(most) = report.denied.listed.first() {
        let part = |before: &str, value: Option<&String>| match value {
            Some(_) => format!("{before}{}", name(value)),
            None => String::new(),
        };
        words += &format!(
            "Denied most often: {}{} by agent {} ({}{}). ",
            name(most.op.as_ref()),
            part(" of ", most.path.as_ref()),
            name(most.agent.as_ref()),
            counted(most.times, "time"),
            part(", rule ", most.rule.as_ref()),
        );
    }
    words += &match report.files.total {
        0 => "No file was changed. ".to_owned(),
        1 => "1 file was changed. ".to_owned(),
        files => format!("{files} files were changed. "),
    };
    words + &confinement(&report.gateways) + "</p>\n"
}

/// Says how many of the agents were fully confined, and how many shared the host's network, past
/// rules of hosts. Nothing is known of those that are not listed.
fn confinement(gateways: &Listed<GatewayStart>) -> String {
    let count = |is: &dyn Fn(&str) -> bool| {
        let levels = gateways.listed.iter().filter_map(|gateway| gateway.enforcement.as_deref());
        levels.filter(|level| is(level)).count() as u64
    };
    let (full, weak) = (count(&|level| level == "full"), count(&|level| level != "full"));
    let unknown = gateways.total.saturating_sub(full + weak);
    let shared = gateways.listed.iter().filter(|gateway| gateway.shared_network().is_some());
    let shared = shared.count() as u64;
    let except = match shared {
        0 => String::new(),
        number => format!(", except for the network of {}", counted(number, "agent")),
    };
    let parts = [
        (full, format!("ran a fully confined agent{except}")),
        (weak, "ran an agent that was not fully confined (see “Gaps and damage”)".to_owned()),
        (unknown, "had no sandbox on record, such as those of a person’s commands".to_owned()),
    ];
    let known = parts.iter().filter(|(number, _)| *number > 0);
    let known: Vec<_> = known.map(|(number, what)| format!("{number} {what}")).collect();
    let mut words = match (full, weak + unknown) {
        (0, 0) => String::new(),
        (_, 0) => format!("Every agent that was started was fully confined{except}."),
        _ => format!("Of {}, {}.", counted(gateways.total, "session"), known.join("; ")),
    };
    if shared > 0 {
        words += &format!(
            " <b>{} shared the host’s network</b> (<code>--agent-network</code>): their connections \
             were neither decided nor recorded (see “Gaps and damage”).",
            counted(shared, "agent")
        );
    }
    words
}

fn status(page: &mut Page, report: &Report) {
    page.section("The log");
    let chain = &report.chain;
    if report.valid {
        page.raw(format_args!(
            "<p class=\"good\">The log is intact: {} in {} are one chain.</p>\n",
            counted(chain.records, "record"),
            counted(chain.segments, "segment")
        ));
    } else if chain.newer().is_some() {
        page.raw(format_args!(
            "<p class=\"bad\">A newer Portcullis wrote a part of the log: only the first {} records \
             were checked. Make the report with the newer one.</p>\n",
            chain.intact.records
        ));
    } else {
        page.raw(format_args!(
            "<p class=\"bad\">The log is damaged: the chain is intact for the first {} records \
             only.</p>\n",
            chain.intact.records
        ));
    }
    if let Some(head) = &chain.head {
        page.raw(format_args!(
            "<p>The newest record is {}, with the leaf hash <code class=\"hash\">{}</code>. To detect a \
             shortened or rewritten log, compare both with a receipt stored elsewhere.</p>\n",
            head.seq, head.leaf
        ));
    }
    let signed = &chain.signed;
    if signed.keys.is_empty() {
        page.raw("<p>No signed checkpoint covers these records.</p>\n");
    } else {
        let whose = match (signed.given, signed.keys.len()) {
            (true, 1) => "a key given from outside the log",
            (true, _) => "keys given from outside the log",
            (false, 1) => "the key beside the log: compare it with your own copy",
            (false, _) => "keys beside the log: compare them with your own copies",
        };
        page.raw(format_args!(
            "<p>Signed checkpoints checked: {}. They cover the first {} records, and were signed \
             with <code class=\"hash\">{}</code>, {whose}.</p>\n",
            signed.checkpoints,
            signed.records,
            text(&signed.keys.join(", "))
        ));
    }
    if !signed.witnesses.is_empty() {
        page.raw(format_args!("<p>Cosigned by {}.</p>\n", text(&signed.witnesses.join(", "))));
    }
    if report.keys.is_empty() {
        page.raw("<p>There is no public key beside the log.</p>\n");
    } else {
        page.raw("<p>Public keys beside the log:</p>\n<ul>\n");
        for key in &report.keys {
            page.raw(format_args!("<li><code class=\"hash\">{}</code></li>\n", text(key)));
        }
        page.raw("</ul>\n");
    }
}

fn decisions(page: &mut Page, report: &Report) {
    let rest = report.to_json();
    page.section("Agents");
    page.list(
        [
            "Agent",
            "Sessions",
            "Allowed",
            "Denied",
            "Changes",
            "Bytes read",
            "Bytes written",
            "First",
            "Last",
        ],
        report.agents.iter().map(|agent| {
            [
                text(&agent.name),
                agent.sessions.to_string(),
                agent.allowed.to_string(),
                agent.denied.to_string(),
                agent.changes.to_string(),
                agent.bytes_read.to_string(),
                agent.bytes_written.to_string(),
                moment(&agent.first),
                moment(&agent.last),
            ]
        }),
        report.agents.len() as u64,
        &rest,
    );
    page.section("Decisions by rule");
    if !report.rules.is_empty() {
        page.raw(format_args!("<figure>{}</figure>\n", chart::rules(&report.rules)));
    }
    page.list(
        ["Rule", "Decision", "Policy file", "Records"],
        report.rules.iter().map(|rule| {
            [
                format!("<code>{}</code>", text(&rule.rule)),
                text(&rule.decision),
                maybe(rule.policy.as_ref()),
                rule.records.to_string(),
            ]
        }),
        report.rules.len() as u64,
        &rest,
    );
    page.section("Decisions by operation");
    page.list(
        ["Operation", "Allowed", "Denied"],
        report
            .operations
            .iter()
            .map(|op| [text(&op.op), op.allowed.to_string(), op.denied.to_string()]),
        report.operations.len() as u64,
        &rest,
    );
    if !report.labels.is_empty() {
        page.section("Labels");
        page.list(
            ["Label", "Reads", "Changes by agents that carried it"],
            report.labels.iter().map(|label| {
                [text(&label.label), label.reads.to_string(), label.changes.to_string()]
            }),
            report.labels.len() as u64,
            &rest,
        );
    }
    if report.hosts.is_empty() {
        return;
    }
    page.section("Connections");
    page.list(
        ["Host", "Connections", "Cut off", "Bytes unknown", "Bytes sent", "Bytes received"],
        report.hosts.iter().map(|host| {
            [
                text(&host.host),
                host.connections.to_string(),
                host.denied.to_string(),
                host.uncounted.to_string(),
                host.bytes_out.to_string(),
                host.bytes_in.to_string(),
            ]
        }),
        report.hosts.len() as u64,
        &rest,
    );
}

fn secrets(page: &mut Page, report: &Report) {
    page.section("Secrets withheld");
    if report.secrets.listed.is_empty() {
        page.raw("<p>No secret was found.</p>\n");
        return;
    }
    page.list(
        ["Record", "Time (UTC)", "Agent", "Operation", "Path", "Decision", "Found by"],
        report.secrets.listed.iter().map(|found| {
            let rules: Vec<_> = (found.rules.iter())
                .map(|(rule, times)| format!("{} ({times})", text(rule)))
                .collect();
            [
                found.seq.to_string(),
                moment(&found.t),
                maybe(found.agent.as_ref()),
                maybe(found.op.as_ref()),
                maybe(found.path.as_ref()),
                maybe(found.decision.as_ref()),
                rules.join(", "),
            ]
        }),
        report.secrets.total,
        &report.to_json(),
    );
}

fn files(page: &mut Page, report: &Report) {
    page.section("Files changed");
    if report.files.listed.is_empty() {
        page.raw("<p>None.</p>\n");
        return;
    }
    page.list(
        ["Path", "Changes", "Last", "Record", "Agent", "SHA-256 before", "SHA-256 after"],
        report.files.listed.iter().map(|file| {
            let last = match &file.to {
                Some(to) => format!("{} to {}", text(&file.op), text(to)),
                None => text(&file.op),
            };
            [
                path(Some(&file.path)),
                file.changes.to_string(),
                last,
                file.seq.to_string(),
                text(&file.agent),
                hash(file.before.as_ref()),
                hash(file.after.as_ref()),
            ]
        }),
        report.files.total,
        &report.to_json(),
    );
}

fn approvals(page: &mut Page, report: &Report) {
    page.section("Approvals");
    if report.approvals.listed.is_empty() {
        page.raw("<p>No request needed an approval.</p>\n");
        return;
    }
    page.list(
        ["Record", "Time (UTC)", "Agent", "Operation", "Path", "Answer", "Reason", "Facts"],
        report.approvals.listed.iter().map(|one| {
            let facts: Vec<_> =
                one.facts.iter().map(|(name, value)| quoted(&format!("{name}: {value}"))).collect();
            [
                one.seq.to_string(),
                moment(&one.t),
                maybe(one.agent.as_ref()),
                maybe(one.op.as_ref()),
                maybe(one.path.as_ref()),
                match (&one.decision, &one.result) {
                    (Some(decision), Some(result)) => {
                        format!("{} ({})", text(decision), text(result))
                    }
                    (decision, result) => maybe(decision.as_ref().or(result.as_ref())),
                },
                maybe(one.reason.as_ref()),
                facts.join("<br>"),
            ]
        }),
        report.approvals.total,
        &report.command("query --kind approval"),
    );
}

fn policies(page: &mut Page, policies: &[PolicyInForce]) {
    page.section("Policies in force");
    if policies.is_empty() {
        page.raw("<p>None.</p>\n");
    }
    if policies.iter().any(|policy| policy.text_is_stored && policy.text.is_none()) {
        page.raw("<p>The option <code>--with-policies</code> adds their texts.</p>\n");
    }
    for policy in policies {
        let version = policy.version.map_or_else(|| "?".to_owned(), |version| version.to_string());
        page.raw(format_args!(
            "<section class=\"policy\">\n<h3>{}, version {version}</h3>\n\
             <p>SHA-256 <code class=\"hash\">{}</code>; {} records, {} to {}.</p>\n",
            maybe(policy.name.as_ref()),
            text(&policy.sha256),
            policy.records,
            moment(&policy.first),
            moment(&policy.last),
        ));
        match &policy.text {
            None if policy.text_is_genuine => {}
            None if policy.text_is_stored => {
                page.raw("<p class=\"bad\">The stored text has another hash: it was changed.</p>\n")
            }
            None => page.raw("<p class=\"bad\">No text with this hash is stored.</p>\n"),
            Some(words) => {
                if !policy.text_is_genuine {
                    page.raw(
                        "<p class=\"bad\">The text below has another hash: it was changed.</p>\n",
                    );
                }
                page.raw(format_args!("<pre>{}</pre>\n", lines(words)));
            }
        }
        page.raw("</section>\n");
    }
}

fn policy_changes(page: &mut Page, report: &Report) {
    page.section("Policies changed while gateways served");
    if report.policy_changes.listed.is_empty() {
        page.raw("<p>None.</p>\n");
        return;
    }
    page.list(
        ["Record", "Time (UTC)", "Agent", "Result", "SHA-256", "Reason", "Facts"],
        report.policy_changes.listed.iter().map(|one| {
            let facts: Vec<_> =
                one.facts.iter().map(|(name, value)| quoted(&format!("{name}: {value}"))).collect();
            [
                one.seq.to_string(),
                moment(&one.t),
                maybe(one.agent.as_ref()),
                maybe(one.result.as_ref()),
                hash(one.sha256.as_ref()),
                maybe(one.reason.as_ref()),
                facts.join("<br>"),
            ]
        }),
        report.policy_changes.total,
        &report.command("query --kind policy"),
    );
}
