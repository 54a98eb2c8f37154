//! The report as one page: no script, nothing loaded from elsewhere, fit to be
//! printed, every text escaped.

use std::fmt::{Display, Write as _};

use super::{Listed, MOST_LISTED, PolicyInForce, Report, chart};
use crate::model::Escaped;

const STYLE: &str = include_str!("style.css");

/// Untrusted text in HTML: hidden characters visible, nothing markup.
pub(super) fn text(untrusted: &str) -> String {
    let mut out = String::with_capacity(untrusted.len() + 16);
    for c in Escaped(untrusted).to_string().chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The same for a text of several lines.
fn lines(untrusted: &str) -> String {
    untrusted.lines().map(text).collect::<Vec<_>>().join("\n")
}

fn maybe(untrusted: Option<&String>) -> String {
    untrusted.map_or_else(|| "<span class=\"none\">–</span>".to_owned(), |value| text(value))
}

/// A moment to the second.
fn moment(t: &str) -> String {
    text(&t.get(..19).unwrap_or(t).replace('T', " "))
}

/// A hash, whole for the machine and in a font that lets it wrap for people.
fn hash(value: Option<&String>) -> String {
    value
        .map_or_else(|| maybe(None), |value| format!("<code class=\"hash\">{}</code>", text(value)))
}

/// The page.
pub fn page(report: &Report) -> String {
    let mut page = Page(String::new());
    let title = "Audit report";
    page.raw(format_args!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n<h1>{title}</h1>\n"
    ));
    summary(&mut page, report);
    status(&mut page, report);
    page.raw("<h2>Activity</h2>\n");
    if report.activity.is_empty() {
        page.raw("<p>No decision in this period.</p>\n");
    } else {
        page.raw(format_args!(
            "<figure>{}<figcaption>Decisions by the {} (UTC). <span class=\"key allow\"></span> \
             allowed, <span class=\"key deny\"></span> denied.</figcaption></figure>\n",
            chart::activity(&report.activity, report.activity_unit),
            report.activity_unit
        ));
    }
    decisions(&mut page, report);
    denied(&mut page, report);
    secrets(&mut page, report);
    files(&mut page, report);
    approvals(&mut page, report);
    gaps(&mut page, report);
    policies(&mut page, &report.policies);
    policy_changes(&mut page, report);
    page.raw(format_args!(
        "<footer>Made by portcullis {} on {}. This page repeats what the log says; \
         <code>portcullis audit verify</code> checks the log itself.</footer>\n\
         </main>\n</body>\n</html>\n",
        text(report.program),
        moment(&report.made)
    ));
    page.0
}

struct Page(String);

impl Page {
    /// Adds what is HTML already.
    fn raw(&mut self, html: impl Display) {
        let _ = write!(self.0, "{html}");
    }

    /// Adds a table; cells are HTML already.
    fn table<const N: usize>(
        &mut self,
        heads: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) {
        let rows = Vec::from_iter(rows);
        let is_number =
            |cell: &String| !cell.is_empty() && cell.bytes().all(|b| b.is_ascii_digit());
        let class = |at: usize| {
            let all = !rows.is_empty() && rows.iter().all(|row| row.get(at).is_some_and(is_number));
            if all { " class=\"n\"" } else { "" }
        };
        self.raw("<div class=\"wide\"><table>\n<thead><tr>");
        for (at, head) in heads.iter().enumerate() {
            self.raw(format_args!("<th{}>{head}</th>", class(at)));
        }
        self.raw("</tr></thead>\n<tbody>\n");
        for row in &rows {
            self.raw("<tr>");
            for (at, cell) in row.iter().enumerate() {
                self.raw(format_args!("<td{}>{cell}</td>", class(at)));
            }
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n");
    }

    /// Says that a list is not whole.
    fn more<T>(&mut self, list: &Listed<T>) {
        if list.total > list.listed.len() as u64 {
            self.raw(format_args!(
                "<p class=\"note\">The first {MOST_LISTED} of {} are listed.</p>\n",
                list.total
            ));
        }
    }
}

fn summary(page: &mut Page, report: &Report) {
    let period = &report.period;
    let asked = match (&period.since, &period.until) {
        (None, None) => "the whole log".to_owned(),
        (Some(since), None) => format!("from {} on", moment(since)),
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
        Some(t) => format!("; <b>of what was before {} nothing is known</b>", moment(t)),
        None => String::new(),
    };
    let workspaces: Vec<_> =
        report.workspaces.iter().map(|path| format!("<code>{}</code>", text(path))).collect();
    let (allowed, denied) = report
        .agents
        .iter()
        .fold((0, 0), |(allowed, denied), agent| (allowed + agent.allowed, denied + agent.denied));
    page.raw(format_args!(
        "<dl>\n<dt>Workspace</dt><dd>{}</dd>\n<dt>Period</dt><dd>{asked}; {span}{pruned}</dd>\n\
         <dt>Records</dt><dd>{}</dd>\n</dl>\n\
         <ul class=\"figures\"><li><b>{allowed}</b> requests allowed</li><li><b>{denied}</b> denied</li>\
         <li><b>{}</b> files changed</li><li><b>{}</b> contents with secrets</li>\
         <li><b>{}</b> agents</li></ul>\n",
        if workspaces.is_empty() { maybe(None) } else { workspaces.join(", ") },
        report.records,
        report.files.total,
        report.secrets.total,
        report.agents.len(),
    ));
}

fn status(page: &mut Page, report: &Report) {
    page.raw("<h2>The chain</h2>\n");
    let chain = &report.chain;
    if report.valid {
        page.raw(format_args!(
            "<p class=\"good\">The log is intact: {} records in {} are one chain.</p>\n",
            chain.records,
            if chain.segments == 1 {
                "1 segment".to_owned()
            } else {
                format!("{} segments", chain.segments)
            }
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
            "<p>Head: record {}, leaf <code class=\"hash\">{}</code>. Compare it with a receipt kept \
             elsewhere: only that shows a log that was cut at its end or written anew.</p>\n",
            head.seq, head.leaf
        ));
    }
    let signed = &chain.signed;
    match &signed.key {
        Some(key) if signed.checkpoints > 0 => {
            let whose = if signed.given {
                "a key given from outside the log"
            } else {
                "a key that stands beside the log: compare it with a copy from elsewhere"
            };
            page.raw(format_args!(
                "<p>Signed checkpoints checked: {}. They cover the first {} records, and were signed \
                 with <code class=\"hash\">{}</code>, {whose}.</p>\n",
                signed.checkpoints,
                signed.records,
                text(key)
            ));
        }
        _ => page.raw("<p>No signed checkpoint vouches for these records.</p>\n"),
    }
    if !signed.witnesses.is_empty() {
        page.raw(format_args!("<p>Cosigned by {}.</p>\n", text(&signed.witnesses.join(", "))));
    }
    if report.keys.is_empty() {
        page.raw("<p>No public key stands beside the log.</p>\n");
    } else {
        page.raw("<p>Public keys beside the log:</p>\n<ul>\n");
        for key in &report.keys {
            page.raw(format_args!("<li><code class=\"hash\">{}</code></li>\n", text(key)));
        }
        page.raw("</ul>\n");
    }
}

fn decisions(page: &mut Page, report: &Report) {
    page.raw("<h2>Agents</h2>\n");
    page.table(
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
    );
    page.raw("<h2>Decisions by rule</h2>\n");
    if !report.rules.is_empty() {
        page.raw(format_args!("<figure>{}</figure>\n", chart::rules(&report.rules)));
    }
    page.table(
        ["Rule", "Decision", "Policy", "Records"],
        report.rules.iter().map(|rule| {
            [
                format!("<code>{}</code>", text(&rule.rule)),
                text(&rule.decision),
                maybe(rule.policy.as_ref()),
                rule.records.to_string(),
            ]
        }),
    );
    page.raw("<h2>Decisions by operation</h2>\n");
    page.table(
        ["Operation", "Allowed", "Denied"],
        report
            .operations
            .iter()
            .map(|op| [text(&op.op), op.allowed.to_string(), op.denied.to_string()]),
    );
}

fn denied(page: &mut Page, report: &Report) {
    page.raw("<h2>Denied attempts</h2>\n");
    if report.denied.listed.is_empty() {
        page.raw("<p>None.</p>\n");
        return;
    }
    page.table(
        ["Record", "Time (UTC)", "Agent", "Operation", "Path", "Rule", "Reason"],
        report.denied.listed.iter().map(|denied| {
            let path = match &denied.to {
                Some(to) => format!("{} → {}", maybe(denied.path.as_ref()), text(to)),
                None => maybe(denied.path.as_ref()),
            };
            [
                denied.seq.to_string(),
                moment(&denied.t),
                maybe(denied.agent.as_ref()),
                maybe(denied.op.as_ref()),
                path,
                maybe(denied.rule.as_ref()),
                maybe(denied.reason.as_ref()),
            ]
        }),
    );
    page.more(&report.denied);
}

fn secrets(page: &mut Page, report: &Report) {
    page.raw("<h2>Secrets withheld</h2>\n");
    if report.secrets.listed.is_empty() {
        page.raw("<p>No record tells of a secret found in a content.</p>\n");
        return;
    }
    page.table(
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
    );
    page.more(&report.secrets);
}

fn files(page: &mut Page, report: &Report) {
    page.raw("<h2>Files changed</h2>\n");
    if report.files.listed.is_empty() {
        page.raw("<p>None.</p>\n");
        return;
    }
    page.table(
        [
            "Path",
            "Changes",
            "Last",
            "Record",
            "Agent",
            "SHA-256 before the first",
            "after the last",
        ],
        report.files.listed.iter().map(|file| {
            let last = match &file.to {
                Some(to) => format!("{} to {}", text(&file.op), text(to)),
                None => text(&file.op),
            };
            [
                text(&file.path),
                file.changes.to_string(),
                last,
                file.seq.to_string(),
                text(&file.agent),
                hash(file.before.as_ref()),
                hash(file.after.as_ref()),
            ]
        }),
    );
    page.more(&report.files);
}

fn approvals(page: &mut Page, report: &Report) {
    page.raw("<h2>Approvals</h2>\n");
    if report.approvals.listed.is_empty() {
        page.raw("<p>No question was put to a person.</p>\n");
        return;
    }
    page.table(
        ["Record", "Time (UTC)", "Agent", "Operation", "Path", "Answer", "Reason", "Facts"],
        report.approvals.listed.iter().map(|one| {
            let facts: Vec<_> =
                one.facts.iter().map(|(name, value)| text(&format!("{name}: {value}"))).collect();
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
    );
    page.more(&report.approvals);
}

fn gaps(page: &mut Page, report: &Report) {
    page.raw("<h2>Gaps and damage</h2>\n");
    let chain = &report.chain;
    let mut none = true;
    let mut list = |title: &str, items: Vec<String>| {
        if !items.is_empty() {
            none = false;
            page.raw(format_args!("<h3>{title}</h3>\n<ul>\n"));
            for item in items {
                page.raw(format_args!("<li>{item}</li>\n"));
            }
            page.raw("</ul>\n");
        }
    };
    let pruned = report.period.pruned_before.as_ref().map(|t| {
        let whose = match chain.pruned_by {
            Some(seq) => format!(", as record {seq} says"),
            None => String::new(),
        };
        let last = chain.pruned.saturating_sub(1);
        format!(
            "records 0 to {last} were pruned{whose}: of what was before {} nothing is known",
            moment(t)
        )
    });
    list("Pruned", pruned.into_iter().collect());
    list("Damage", chain.damages.iter().map(|damage| text(&damage.to_string())).collect());
    let mut unreadable: Vec<_> = report.unreadable.iter().map(|words| text(words)).collect();
    let more = report.unreadable_count.saturating_sub(unreadable.len() as u64);
    if more > 0 {
        unreadable.push(format!("and {more} more"));
    }
    list("Left out of this report because it could not be read", unreadable);
    list("Warnings", chain.warnings.iter().map(|warning| text(&warning.to_string())).collect());
    list(
        "Set aside by a recovery",
        (report.set_aside.iter())
            .map(|aside| {
                let facts: Vec<_> =
                    aside.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                let (seq, t) = (aside.seq, moment(&aside.t));
                format!("record {seq}, {t}: {}", text(&facts.join(", ")))
            })
            .collect(),
    );
    list(
        "Changes that nobody settled",
        report.unsettled.iter().map(|seq| format!("record {seq}")).collect(),
    );
    let gates = &report.gates.listed;
    list(
        "Agents that were not fully confined",
        (gates.iter())
            .filter(|gate| gate.enforcement.as_deref().is_some_and(|level| level != "full"))
            .map(|gate| {
                let (seq, t) = (gate.seq, moment(&gate.t));
                let (agent, level) = (maybe(gate.agent.as_ref()), maybe(gate.enforcement.as_ref()));
                format!("record {seq}, {t}: agent {agent}, enforcement {level}")
            })
            .collect(),
    );
    list(
        "Gates that did not stop in order, or still serve",
        (gates.iter())
            .filter(|gate| !gate.stopped)
            .map(|gate| {
                let agent = maybe(gate.agent.as_ref());
                format!("record {}, {}: agent {agent}", gate.seq, moment(&gate.t))
            })
            .collect(),
    );
    if none {
        page.raw("<p class=\"good\">None.</p>\n");
    }
    page.more(&report.gates);
}

fn policies(page: &mut Page, policies: &[PolicyInForce]) {
    page.raw("<h2>Policies in force</h2>\n");
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
            None => page.raw("<p class=\"bad\">Its text was not found.</p>\n"),
            Some(words) => {
                if !policy.text_is_genuine {
                    page.raw(
                        "<p class=\"bad\">The text below does not have this hash: it was changed \
                         since.</p>\n",
                    );
                }
                page.raw(format_args!("<pre>{}</pre>\n", lines(words)));
            }
        }
        page.raw("</section>\n");
    }
}

fn policy_changes(page: &mut Page, report: &Report) {
    page.raw("<h2>Policies changed while gates served</h2>\n");
    if report.policy_changes.listed.is_empty() {
        page.raw("<p>None.</p>\n");
        return;
    }
    page.table(
        ["Record", "Time (UTC)", "Agent", "Result", "SHA-256", "Reason", "Facts"],
        report.policy_changes.listed.iter().map(|one| {
            let facts: Vec<_> =
                one.facts.iter().map(|(name, value)| text(&format!("{name}: {value}"))).collect();
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
    );
    page.more(&report.policy_changes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_markup() {
        assert_eq!(
            text("<img src=x onerror='a'>\u{202e}\"&\n"),
            "&lt;img src=x onerror=&#39;a&#39;&gt;\\u{202e}&quot;&amp;\\n"
        );
    }
}
