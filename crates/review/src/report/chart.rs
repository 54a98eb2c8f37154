//! Charts as inline SVG, without scripts, and not distinguished by colour alone.

use std::fmt::Write as _;

use super::{
    items::{Activity, Decided},
    markup::text,
};

const WIDTH: u64 = 900;

/// Draws decisions over time: a bar for each hour, day or month, with denials on top. Each has its
/// place, also where nothing was decided.
pub(super) fn activity(activity: &[Activity], unit: &str) -> String {
    const HEIGHT: u64 = 160;
    /// The room for the numbers left of the axis.
    const LEFT: u64 = 60;
    const TOP: u64 = 8;
    const LABELS: usize = 5;
    /// The room for a label of the axis.
    const LABEL: u64 = 110;
    let most = activity.iter().map(|a| a.allowed + a.denied).max().unwrap_or(0).max(1);
    // So that the line in the middle has a whole number.
    let top_of_axis = most.next_multiple_of(2);
    let count = (activity.len() as u64).max(1);
    let mut svg =
        open(TOP + HEIGHT + 34, &format!("Decisions each {unit}: at most {most} in one {unit}"));
    let base = TOP + HEIGHT;
    for (value, y) in [(top_of_axis, TOP), (top_of_axis / 2, TOP + HEIGHT / 2), (0, base)] {
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{WIDTH}\" y2=\"{y}\" class=\"axis\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{value}</text>",
            LEFT - 6,
            y + 4,
        );
    }
    // In thousandths: there may be more bars than units.
    let step = (WIDTH - LEFT) * 1000 / count;
    let place = |at: u64| LEFT * 1000 + at * step;
    let thousandths = |value: u64| format!("{}.{:03}", value / 1000, value % 1000);
    let width = thousandths((step * 4 / 5).min(40_000));
    for (at, one) in (0_u64..).zip(activity) {
        let x = thousandths(place(at));
        let height = |value: u64| scaled(value, HEIGHT, top_of_axis);
        let (allowed, denied) = (height(one.allowed), height(one.denied));
        let top = base.saturating_sub(allowed + denied);
        let (a, d, from) = (one.allowed, one.denied, text(&one.from));
        if a + d == 0 {
            continue;
        }
        let _ = write!(
            svg,
            "<g><title>{from}: {a} allowed, {d} denied</title>\
             <rect x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"{denied}\" class=\"deny\"/>\
             <rect x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"{allowed}\" class=\"allow\"/></g>",
            base.saturating_sub(allowed),
        );
    }
    let every = activity.len().div_ceil(LABELS).max(1);
    for (at, one) in (0_u64..).zip(activity).step_by(every) {
        let (x, from) = (thousandths(place(at)), text(&one.from.replace('T', " ")));
        let hour = if unit == "hour" { ":00" } else { "" };
        // The last label ends at the edge.
        let (x, anchor) = match place(at) > (WIDTH - LABEL) * 1000 {
            true => (WIDTH.to_string(), "end"),
            false => (x, "start"),
        };
        let _ = write!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{from}{hour}</text>",
            base + 18
        );
    }
    svg + "</svg>"
}

/// Draws decisions by rule, for the rules with the most.
pub(super) fn rules(rules: &[Decided]) -> String {
    const MAX_BARS: usize = 15;
    const LINE: u64 = 22;
    let shown = rules.get(..MAX_BARS.min(rules.len())).unwrap_or_default();
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
