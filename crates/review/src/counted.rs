//! Counts with their nouns.

/// Formats a count: `1 record`, `2 records`.
pub fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
