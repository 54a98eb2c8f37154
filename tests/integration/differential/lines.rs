//! Changes of lines by a party that knows JSON and the chain.

use portcullis_audit::{Hash, KEY_FACT};

use super::case::key;
use crate::seeded_random::Random;

/// Values that JSON readers see differently, and those that the format knows.
const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "5",
    "-0",
    "-1",
    "1.0",
    "1e0",
    "1E5",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e309",
    "-1e400",
    "0.0",
    "1.",
    ".1",
    "01",
    "+1",
    "0x1",
    "NaN",
    "Infinity",
    "-Infinity",
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "\"\"",
    "\"a\"",
    "\"\\ud800\"",
    "\"\\udc00\\ud800\"",
    "\"\\ud83d\\ude00\"",
    "\"\\u0000\"",
    "\"\\u00g0\"",
    "\"\\x41\"",
    "\"\\/\"",
    "\"\u{7f}\"",
    "\"\u{2028}\"",
    "\"\u{feff}\"",
    "\"\t\"",
    "[1,2]",
    "{\"a\":1,\"a\":2}",
    "{\"a\":-1,\"a\":2}",
    "{\"a\":{\"b\":1}}",
    "[\"x\",{\"y\":[]}]",
    "1e-400",
    "0e0",
    "1e+",
    "-",
    "{\"checkpointKey\":\"x\"}",
    "{\"checkpointKey\":1}",
    "{\"segments\":1}",
    "{\"what\":\"unsigned\"}",
    "{\"what\":\"unsigned\",\"segments\":1}",
    "\"start\"",
    "\"stop\"",
    "\"intent\"",
    "\"outcome\"",
    "\"recovered\"",
    "\"pruned\"",
    "\"decision\"",
    "\"\\u0069ntent\"",
    "\"2026-02-29T00:00:00.000000Z\"",
    "\"2024-02-29T23:59:60.000000Z\"",
    "\"0000-02-29T00:00:00.000000Z\"",
    "\"2026-11-21t08:00:00.000000z\"",
    "\"\\\\\"",
    "\"\\\\\\\"\"",
    "\"$serde_json::private::RawValue\"",
    "{\"$serde_json::private::RawValue\":\"7\"}",
    "{\"$serde_json::private::Number\":\"7\"}",
];

/// Names of members; as they stand in the line.
const NAMES: &[&str] = &[
    "v",
    "seq",
    "kind",
    "t",
    "boot",
    "session",
    "agent",
    "path",
    "resolved",
    "to",
    "temp",
    "decision",
    "wouldDeny",
    "rule",
    "policySha256",
    "line",
    "reason",
    "bytes",
    "before",
    "after",
    "findings",
    "counts",
    "facts",
    "of",
    "result",
    "nonce",
    "prev",
    "new",
    "",
    "\\u0076",
    "s\\u0065q",
    "p\\u0072ev",
    "\\ud800",
    "\\u0000",
    "Seq",
    "facts ",
    "checkpointKey",
    "$serde_json::private::RawValue",
];

fn one<'a, T>(random: &mut Random, list: &'a [T]) -> &'a T {
    &list[usize::try_from(random.below(list.len() as u64)).unwrap()]
}

fn index(random: &mut Random, length: usize) -> usize {
    usize::try_from(random.below(length.max(1) as u64)).unwrap()
}

/// The bytes of a segment with some lines changed.
pub(super) fn change(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let torn = lines.pop().unwrap_or_default();
    if lines.is_empty() {
        return bytes.to_vec();
    }
    for _ in 0..=random.below(2) {
        let (at, other) = (index(random, lines.len()), index(random, lines.len()));
        match random.below(16) {
            0 => drop(lines.remove(at)),
            1 => lines.swap(at, other),
            2 => lines.insert(at, lines[other].clone()),
            3 => lines.truncate(at),
            4 => lines.insert(at, one(random, &[&b""[..], b"{}", b"[1]", b"\r"]).to_vec()),
            5 => byte(&mut lines[at], random),
            _ => {
                if let Ok(text) = str::from_utf8(&lines[at]) {
                    lines[at] = members(text, random).into_bytes();
                }
            }
        }
        if lines.is_empty() {
            return torn;
        }
    }
    if random.below(5) > 0 {
        link(&mut lines);
    }
    let mut text = lines.join(&b'\n');
    text.push(b'\n');
    text.extend(torn);
    if random.below(40) == 0 {
        text.pop();
    }
    text
}

fn byte(line: &mut Vec<u8>, random: &mut Random) {
    let at = index(random, line.len());
    let byte = u8::try_from(random.below(256)).unwrap();
    match (random.below(3), line.get_mut(at)) {
        (0, Some(place)) => *place = byte,
        (1, Some(_)) => drop(line.remove(at)),
        _ => line.insert(at.min(line.len()), byte),
    }
    line.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = 0x0b);
}

/// Makes the lines a chain again, as far as they have a `prev`: the last of several.
fn link(lines: &mut [Vec<u8>]) {
    const NAME: &[u8] = b"\"prev\":\"";
    let mut prev = Hash::ZERO;
    for line in lines {
        let at = line.windows(NAME.len()).rposition(|part| part == NAME);
        let digits = at.and_then(|at| line.get_mut(at + NAME.len()..at + NAME.len() + 64));
        if let Some(digits) = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            digits.copy_from_slice(prev.to_string().as_bytes());
        }
        prev = Hash::leaf(line);
    }
}

/// A line whose members are others, or stand otherwise.
fn members(line: &str, random: &mut Random) -> String {
    let Some(mut members) = split(line) else { return line.to_owned() };
    for _ in 0..=random.below(3) {
        let at = index(random, members.len() + 1);
        let some = index(random, members.len());
        let new = || ("new".to_owned(), "1".to_owned());
        let member = members.get(some).cloned().unwrap_or_else(new);
        match random.below(10) {
            0 | 1 => members.insert(at, ((*one(random, NAMES)).to_owned(), value(random))),
            2 => members.insert(at, member),
            3 => members.insert(at, (member.0, value(random))),
            4 if !members.is_empty() => drop(members.remove(some)),
            5 if !members.is_empty() => {
                let other = index(random, members.len());
                members.swap(some, other);
            }
            6 if !members.is_empty() => members[some].1 = value(random),
            7 if !members.is_empty() => members[some].0 = (*one(random, NAMES)).to_owned(),
            8 if !member.0.is_empty() && member.0.is_ascii() && !member.0.contains('\\') => {
                let place = index(random, member.0.len());
                let code = member.0.as_bytes()[place];
                let escaped = format!("\\u{code:04x}");
                members[some].0.replace_range(place..=place, &escaped);
            }
            _ => {
                let facts = format!("{{\"{KEY_FACT}\":\"{}\"}}", key().public());
                members.retain(|(name, _)| name != "facts");
                members.insert(at.min(members.len()), ("facts".to_owned(), facts));
            }
        }
    }
    let blanks = random.below(10) == 0;
    let mut blank = || if blanks { *one(random, &["", " ", "\t", "\r", "  "]) } else { "" };
    let mut text = String::from("{");
    for (number, (name, value)) in members.iter().enumerate() {
        let comma = if number > 0 { "," } else { "" };
        let parts = [blank(), comma, blank(), "\"", name, "\"", blank(), ":", blank(), value];
        parts.iter().for_each(|part| text += part);
    }
    text += "}";
    match random.below(40) {
        0 => format!(" {text}"),
        1 => format!("\u{feff}{text}"),
        2 => text + "\r",
        3 => text + "}",
        _ => text,
    }
}

fn value(random: &mut Random) -> String {
    match random.below(20) {
        0 => format!("\"{}\"", Hash::of(b"x")),
        1 => format!("\"{}\"", "0".repeat(32)),
        2 => format!("\"{}\"", "A".repeat(64)),
        3 => {
            let depth = usize::try_from(124 + random.below(6)).unwrap();
            format!("{}{}", "[".repeat(depth), "]".repeat(depth))
        }
        4 => {
            let depth = usize::try_from(124 + random.below(6)).unwrap();
            format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth))
        }
        5 => "9".repeat(*one(random, &[20, 308, 309, 310, 5000])),
        6 => format!("\"{}\"", "[{".repeat(100)),
        _ => (*one(random, VALUES)).to_owned(),
    }
}

/// The members of a line that is an object: each name without its quotes, and its value,
/// as they stand there.
fn split(line: &str) -> Option<Vec<(String, String)>> {
    let inside = line.strip_prefix('{')?.strip_suffix('}')?;
    let (mut members, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    let (mut is_text, mut is_escaped) = (false, false);
    for (at, byte) in inside.bytes().enumerate().chain([(inside.len(), b',')]) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            _ if is_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b',' if depth == 0 => {
                let member = inside.get(start..at)?.trim();
                let (name, value) = member.strip_prefix('"')?.split_once("\":")?;
                members.push((name.to_owned(), value.trim().to_owned()));
                start = at + 1;
            }
            _ => {}
        }
    }
    Some(members)
}
