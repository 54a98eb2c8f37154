//! Charts as inline SVG, without scripts, and not distinguished by colour alone.

use std::fmt::Write as _;

use super::{
    items::{Activity, Decided},
    markup::text,
};

const WIDTH: u64 = 900;

/// Draws decisions over time: a bar for each hour or day, with denials on top.
pub(super) fn activity(activity: &[Activity], unit: &str) -> String {
    const HEIGHT: u64 = 160;
    let most = activity.iter().map(|a| a.allowed + a.denied).max().unwrap_or(0).max(1);
    let count = (activity.len() as u64).max(1);
    let mut svg =
        open(HEIGHT + 34, &format!("Decisions by the {unit}: at most {most} in one {unit}"));
    // The bars share the width, up to a maximum for each.
    let step = (WIDTH / count).clamp(1, 48);
    let bar = (step * 4 / 5).max(1);
    for (at, one) in (0_u64..).zip(activity) {
        let x = at * step;
        let height = |value: u64| scaled(value, HEIGHT, most);
        let (allowed, denied) = (height(one.allowed), height(one.denied));
        let top = HEIGHT.saturating_sub(allowed + denied);
        let (a, d, from) = (one.allowed, one.denied, text(&one.from));
        let _ = write!(
            svg,
            "<g><title>{from}: {a} allowed, {d} denied</title>\
             <rect x=\"{x}\" y=\"{top}\" width=\"{bar}\" height=\"{denied}\" class=\"deny\"/>\
             <rect x=\"{x}\" y=\"{}\" width=\"{bar}\" height=\"{allowed}\" class=\"allow\"/></g>",
            HEIGHT.saturating_sub(allowed),
        );
    }
    let _ = write!(
        svg,
        "<line x1=\"0\" y1=\"{HEIGHT}\" x2=\"{WIDTH}\" y2=\"{HEIGHT}\" class=\"axis\"/>"
    );
    if let (Some(first), Some(last)) = (activity.first(), activity.last()) {
        let _ = write!(svg, "<text x=\"0\" y=\"{}\">{}</text>", HEIGHT + 16, text(&first.from));
        if activity.len() > 1 {
            let end = (count * step).clamp(420, WIDTH);
            let _ = write!(
                svg,
                "<text x=\"{end}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                HEIGHT + 16,
                text(&last.from)
            );
        }
    }
    svg + "</svg>"
}

/// Draws decisions by rule, for the rules with the most.
pub(super) fn rules(rules: &[Decided]) -> String {
    const MOST: usize = 15;
    const LINE: u64 = 22;
    let shown = rules.get(..MOST.min(rules.len())).unwrap_or_default();
    let most = shown.iter().map(|rule| rule.records).max().unwrap_or(0).max(1);
    let mut svg = open(LINE * (shown.len() as u64).max(1), "Decisions by rule");
    for (at, rule) in (0_u64..).zip(shown) {
        let y = at * LINE;
        let width = scaled(rule.records, 420, most).max(1);
        let class = if rule.decision == "deny" { "deny" } else { "allow" };
        let name: String = rule.rule.chars().take(40).collect();
        let (name, decision, records) = (text(&name), text(&rule.decision), rule.records);
        let _ = write!(
            svg,
            "<text x=\"330\" y=\"{}\" text-anchor=\"end\">{name}</text>\
             <rect x=\"340\" y=\"{}\" width=\"{width}\" height=\"14\" class=\"{class}\"/>\
             <text x=\"{}\" y=\"{}\">{records} {decision}</text>",
            y + 15,
            y + 4,
            348 + width,
            y + 15,
        );
    }
    svg + "</svg>"
}

/// Scales a value; one above zero gets at least one unit.
fn scaled(value: u64, length: u64, most: u64) -> u64 {
    let product = u128::from(value) * u128::from(length);
    let share = u64::try_from(product.div_ceil(u128::from(most))).unwrap_or(length);
    share.min(length)
}

fn open(height: u64, title: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\
         <title>{}</title>",
        text(title),
        text(title)
    )
}
