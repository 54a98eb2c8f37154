//! The text of an approval's question, the same over all transports.

use crate::{
    gateway::Question,
    model::{Escaped, OperationKind},
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
        format!("The agent `{}` wants to {what}.\n\n", line(question.session.agent.as_str()));
    if question.asked_path != question.binding.path {
        text.push_str(&format!("It asked for {}.\n\n", name(&question.asked_path)));
    }
    for rule in &question.rules {
        let location =
            rule.location().map(|location| format!(" ({})", line(&location.to_string())));
        let reason = rule.reason().map(|reason| format!(": {}", line(reason)));
        let (location, reason) = (location.unwrap_or_default(), reason.unwrap_or_default());
        text.push_str(&format!("Rule `{}`{location}{reason}\n\n", line(rule.rule())));
    }
    // Line ends and tabs of source code stay.
    let lines = question.change.split('\n').map(|line| {
        let pieces: Vec<_> = line.split('\t').map(|piece| Escaped(piece).to_string()).collect();
        pieces.join("\t")
    });
    let change = lines.collect::<Vec<_>>().join("\n");
    let fence = fence(&change);
    text.push_str(&format!("{fence}diff\n{}\n{fence}\n", change.trim_end_matches('\n')));
    text
}

/// Returns a path as inline code: a name could contain Markdown.
fn name(path: &str) -> String {
    format!("`{}`", if path.is_empty() { ".".to_owned() } else { line(path) })
}

/// Escapes an untrusted text to one line without inline code.
pub fn line(text: &str) -> String {
    Escaped(text).to_string().replace('`', "'")
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
        assert_eq!(line("a`b\u{202e}\n"), "a'b\\u{202e}\\n");
    }
}
