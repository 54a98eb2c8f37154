//! The text of an approval's question, the same over all transports.

use crate::{
    gateway::Question,
    model::{OperationKind, distinct, distinct_diff},
};

/// Describes the operation in a few words, in Markdown.
pub fn what(question: &Question) -> String {
    let binding = &question.binding;
    if binding.operation == OperationKind::Command {
        return format!("run {}", name(&binding.path));
    }
    match &binding.to {
        Some(to) => format!("{} {} to {}", binding.operation, name(&binding.path), name(to)),
        None => format!("{} {}", binding.operation, name(&binding.path)),
    }
}

/// Describes rule, reason and diff, in Markdown.
pub fn text(what: &str, question: &Question) -> String {
    let mut text =
        format!("The agent {} wants to {what}.\n\n", code(question.session.agent.as_str()));
    if question.asked_path != question.binding.path {
        text.push_str(&format!("It asked for {}.\n\n", name(&question.asked_path)));
    }
    for rule in &question.rules {
        let location =
            rule.location().map(|location| format!(" ({})", distinct(&location.to_string(), &[])));
        let reason = rule.reason().map(|reason| format!(": {}", distinct(reason, &[])));
        let (location, reason) = (location.unwrap_or_default(), reason.unwrap_or_default());
        text.push_str(&format!("Rule {}{location}{reason}\n\n", code(rule.rule())));
    }
    // Line ends and tabs of source code stay.
    let change = distinct_diff(&question.change, &['\n', '\t']);
    let fence = fence(&change);
    text.push_str(&format!("{fence}diff\n{}\n{fence}\n", change.trim_end_matches('\n')));
    text
}

/// Returns a path as inline code: a name could contain Markdown.
fn name(path: &str) -> String {
    code(if path.is_empty() { "." } else { path })
}

/// Returns an untrusted text as inline code in one line, which nothing in the text ends. No two
/// texts look alike.
pub fn code(text: &str) -> String {
    let text = distinct(text, &[]);
    let delimiter = "`".repeat(longest_run(&text) + 1);
    // Renderers drop a blank from both ends.
    let pad = if text.starts_with(['`', ' ']) || text.ends_with(['`', ' ']) { " " } else { "" };
    format!("{delimiter}{pad}{text}{pad}{delimiter}")
}

/// Returns a Markdown fence that nothing in `text` closes.
pub fn fence(text: &str) -> String {
    "`".repeat(longest_run(text).max(2) + 1)
}

fn longest_run(text: &str) -> usize {
    let (mut longest, mut run) = (0, 0);
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_diff_closes_its_fence() {
        assert_eq!(longest_run("a``b````c`"), 4);
        assert_eq!(longest_run(""), 0);
    }

    /// A backtick was shown as an apostrophe, and a literal `\n` as a line end was.
    #[test]
    fn no_two_commands_look_alike() {
        assert_eq!(code("a`b\u{202e}\n"), "``a`b\\u{202e}\\n``");
        let commands = ["echo `id`", "echo 'id'", "`id", "id", " id ", "id\n", r"id\n", "``", "`"];
        let shown: std::collections::BTreeSet<_> = commands.iter().map(|text| code(text)).collect();
        assert_eq!(shown.len(), commands.len(), "{shown:?}");
    }
}
