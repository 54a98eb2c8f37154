//! Gaps and damage of the log.

use super::{
    Report,
    markup::{MAX_ROWS, Page, maybe, moment, quoted, text},
};

pub(super) fn gaps(page: &mut Page, report: &Report) {
    page.section("Gaps and damage");
    let chain = &report.chain;
    let mut none = true;
    let rest = report.to_json();
    let mut list = |title: &str, items: Vec<String>| {
        if !items.is_empty() {
            none = false;
            page.raw(format_args!("<h3>{title}</h3>\n<ul>\n"));
            for item in items.iter().take(MAX_ROWS) {
                page.raw(format_args!("<li>{item}</li>\n"));
            }
            page.raw("</ul>\n");
            page.rest(items.len().saturating_sub(MAX_ROWS) as u64, &rest);
        }
    };
    let pruned = report.period.pruned_before.as_ref().map(|t| {
        let source = chain.pruned_by.map(|seq| format!(" (record {seq})")).unwrap_or_default();
        let last = chain.pruned.saturating_sub(1);
        format!(
            "records 0 to {last} were pruned{source}: nothing is known of the time before {}",
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
    list("Left out of this report", unreadable);
    list("Warnings", chain.warnings.iter().map(|warning| text(&warning.to_string())).collect());
    list(
        "Damaged bytes that a recovery set aside",
        (report.set_aside.iter())
            .map(|aside| {
                let facts: Vec<_> =
                    aside.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                let (seq, t) = (aside.seq, moment(&aside.t));
                format!("record {seq}, {t}: {}", quoted(&facts.join(", ")))
            })
            .collect(),
    );
    list(
        "Changes without a known outcome",
        report.missing_outcomes.iter().map(|seq| format!("record {seq}")).collect(),
    );
    let gateways = &report.gateways.listed;
    list(
        "Agents that were not fully confined",
        (gateways.iter())
            .filter(|gateway| gateway.enforcement.as_deref().is_some_and(|level| level != "full"))
            .map(|gateway| {
                let (seq, t) = (gateway.seq, moment(&gateway.t));
                let (agent, level) =
                    (maybe(gateway.agent.as_ref()), maybe(gateway.enforcement.as_ref()));
                format!("record {seq}, {t}: agent {agent}, enforcement {level}")
            })
            .collect(),
    );
    list(
        "Agents that shared the host’s network: their connections were neither decided nor recorded",
        (gateways.iter())
            .filter_map(|gateway| Some((gateway, gateway.shared_network()?)))
            .map(|(gateway, network)| {
                let agent = maybe(gateway.agent.as_ref());
                let (seq, t, network) = (gateway.seq, moment(&gateway.t), network.to_string());
                format!("record {seq}, {t}: agent {agent}, {}", quoted(&network))
            })
            .collect(),
    );
    list(
        "Gateways in observe mode for connections: they allowed connections that no rule allows",
        (gateways.iter())
            .filter(|gateway| gateway.network_mode.as_deref() == Some("observe"))
            .map(|gateway| {
                let agent = maybe(gateway.agent.as_ref());
                format!("record {}, {}: agent {agent}", gateway.seq, moment(&gateway.t))
            })
            .collect(),
    );
    list(
        "Gateways in observe mode: they allowed requests that the policy denies",
        (gateways.iter())
            .filter(|gateway| gateway.mode.as_deref() == Some("observe"))
            .map(|gateway| {
                let agent = maybe(gateway.agent.as_ref());
                format!("record {}, {}: agent {agent}", gateway.seq, moment(&gateway.t))
            })
            .collect(),
    );
    list(
        "Gateways without a record of their end: killed, or still running",
        (gateways.iter())
            .filter(|gateway| !gateway.stopped)
            .map(|gateway| {
                let agent = maybe(gateway.agent.as_ref());
                format!("record {}, {}: agent {agent}", gateway.seq, moment(&gateway.t))
            })
            .collect(),
    );
    let not_listed = report.gateways.total.saturating_sub(gateways.len() as u64);
    let all = quoted(&report.command("query --kind start"));
    list(
        "Gateways that this report does not list",
        (not_listed > 0).then(|| format!("{not_listed}: <code>{all}</code>")).into_iter().collect(),
    );
    if none {
        page.raw("<p class=\"good\">None.</p>\n");
    }
}
