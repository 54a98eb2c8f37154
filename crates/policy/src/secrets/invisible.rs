//! Invisible text: characters that a model reads and a person does not see: `[files.invisible]`.
//!
//! Scripts and emoji need some of them in certain positions: a joiner between letters that join, a
//! selector after a character that has variants. In these positions they are not findings.

use std::ops::Range;

use super::{
    consequence::{OnRead, OnWrite},
    search::{MAX_FINDINGS, TimeExceeded},
};
use crate::{
    index::Components,
    model::{WorkspacePath, is_hidden_character},
    normalized::NormalizedForms,
    pattern::Pattern,
};

/// The ID of the rule in decisions and records.
pub(super) const ID: &str = "files.invisible";

/// The flags that consist of tags, after a black flag and up to the end tag.
const FLAGS: [&str; 3] = [
    "\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
    "\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e007f}",
    "\u{e0067}\u{e0062}\u{e0077}\u{e006c}\u{e0073}\u{e007f}",
];
/// Maximum number of controls that group one hieroglyph: more carry a text of their own.
const MAX_CONTROLS: usize = 3;
/// Number of characters between two checks of the time.
const CLOCK_CHECK_INTERVAL: usize = 1 << 16;

/// The rule of one file of a policy.
#[derive(Debug)]
pub(crate) struct Invisible {
    /// The consequence for a read.
    pub(crate) on_read: OnRead,
    /// The files that it is about, compared as denials are.
    pub(crate) patterns: Vec<Pattern>,
}

impl Invisible {
    /// Returns the consequence for a write.
    pub(super) fn on_write(&self) -> OnWrite {
        if self.on_read == OnRead::Warn { OnWrite::Warn } else { OnWrite::Deny }
    }

    /// True if it is about the file of this path.
    pub(super) fn applies(&self, path: &str) -> bool {
        let Ok(path) = WorkspacePath::parse(path) else { return false };
        let forms = NormalizedForms::of(&path);
        let is_named = |text, unfolded| {
            let components = Components::spelled(text, unfolded);
            self.patterns.iter().any(|pattern| components.are(pattern))
        };
        is_named(&forms.folded, forms.unfolded.as_deref())
            || forms.others().any(|(text, unfolded)| is_named(text, unfolded))
    }
}

/// True if a text has a byte that is neither printable ASCII nor white space; `false` is certain.
pub(super) fn may_have(text: &[u8]) -> bool {
    let is_other = |byte: u8| !(0x20..0x7f).contains(&byte) & !matches!(byte, 9 | 10 | 12 | 13);
    // Pieces without an early exit are compared many bytes at a time.
    let has_other = |piece: &[u8]| piece.iter().fold(false, |found, byte| found | is_other(*byte));
    text.chunks(256).any(has_other)
}

/// Returns their runs in a text, up to one more than [`MAX_FINDINGS`]; a text that is not UTF-8
/// has none.
pub(super) fn runs(
    text: &[u8],
    overdue: &dyn Fn() -> bool,
) -> Result<Vec<Range<usize>>, TimeExceeded> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut begin = 0;
    for chunk in text.utf8_chunks() {
        let mut chars = chunk.valid().chars();
        let (mut before, mut looked, mut controls) = (None, 0, 0);
        while let Some(c) = chars.next() {
            let end = begin + chunk.valid().len() - chars.as_str().len();
            let start = end - c.len_utf8();
            // A byte order mark is not part of the text.
            let is_mark = c == '\u{feff}' && start == 0;
            controls = if is_hieroglyph_control(c) { controls + 1 } else { 0 };
            if !is_hidden(c) || is_mark {
                let rest = chars.as_str();
                let flag = FLAGS.iter().find(|flag| c == '\u{1f3f4}' && rest.starts_with(**flag));
                if let Some(rest) = flag.and_then(|flag| rest.get(flag.len()..)) {
                    chars = rest.chars();
                }
                before = Some(c);
            } else if controls <= MAX_CONTROLS && is_in_place(before, c, chars.clone().next()) {
                before = Some(c);
            } else {
                before = None;
                match runs.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => {
                        if runs.len() > MAX_FINDINGS {
                            return Ok(runs);
                        }
                        runs.push(start..end);
                    }
                }
            }
            looked += 1;
            if looked % CLOCK_CHECK_INTERVAL == 0 && overdue() {
                return Err(TimeExceeded);
            }
        }
        begin += chunk.valid().len() + chunk.invalid().len();
    }
    if overdue() { Err(TimeExceeded) } else { Ok(runs) }
}

fn is_hidden(c: char) -> bool {
    !matches!(c, '\t' | '\n' | '\u{c}' | '\r') && is_hidden_character(c)
}

/// True if the hidden `c` has a purpose between these; `before` is not itself a finding.
fn is_in_place(before: Option<char>, c: char, after: Option<char>) -> bool {
    let is_before = |is: fn(char) -> bool| before.is_some_and(is);
    let is_after = |is: fn(char) -> bool| after.is_some_and(is);
    match c {
        '\u{fe0e}'..='\u{fe0f}' => is_before(is_symbol),
        '\u{fe00}'..='\u{fe0d}' => is_before(has_variants),
        '\u{e0100}'..='\u{e01ef}' => is_before(is_ideograph),
        '\u{180b}'..='\u{180f}' => is_before(|c| matches!(c, '\u{1820}'..='\u{18aa}')),
        '\u{200b}' => is_before(is_unspaced) && is_after(is_unspaced),
        '\u{200c}' => is_before(joins) && is_after(joins),
        '\u{200d}' => {
            let emoji = is_before(|c| c == '\u{fe0f}' || is_pictograph(c));
            emoji && is_after(is_pictograph) || is_before(joins) && !is_after(is_hidden)
        }
        '\u{2800}' => is_before(|c| matches!(c, '\u{2800}'..='\u{28ff}')),
        // Joiners, fillers and modifiers of Tifinagh, Brahmi, Khitan, Duployan, music, SignWriting.
        '\u{2d7f}' => is_before(|c| matches!(c, '\u{2d30}'..='\u{2d6f}')),
        '\u{1107f}' => is_before(|c| matches!(c, '\u{11052}'..='\u{11065}')),
        '\u{16fe4}' => is_before(|c| matches!(c, '\u{18b00}'..='\u{18cff}')),
        '\u{1bc9d}' => is_before(|c| matches!(c, '\u{1bc00}'..='\u{1bc99}')),
        '\u{1d159}' => is_after(|c| matches!(c, '\u{1d165}'..='\u{1d172}')),
        '\u{1da9b}'..='\u{1da9f}' => is_before(|c| matches!(c, '\u{1d800}'..='\u{1da8b}')),
        '\u{1daa1}'..='\u{1daaf}' => is_before(|c| matches!(c, '\u{1d800}'..='\u{1da9f}')),
        c if is_hieroglyph_control(c) => is_before(|c| matches!(c, '\u{13000}'..='\u{143ff}')),
        _ => false,
    }
}

/// True for the controls that group hieroglyphs.
fn is_hieroglyph_control(c: char) -> bool {
    matches!(c, '\u{13430}'..='\u{1345f}')
}

/// True for characters that have a text form and an emoji form, including keycaps.
fn is_symbol(c: char) -> bool {
    matches!(c, '#' | '*' | '0'..='9' | '©' | '®' | '\u{203c}' | '\u{2049}' | '\u{2122}'..='\u{2139}')
        || matches!(c, '\u{3030}' | '\u{303d}' | '\u{3297}' | '\u{3299}')
        || is_pictograph(c)
}

fn is_pictograph(c: char) -> bool {
    matches!(c, '\u{2190}'..='\u{27ff}' | '\u{2900}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}')
}

/// True for signs of mathematics, of east Asia and of scripts for which Unicode defines variants.
fn has_variants(c: char) -> bool {
    matches!(c, '0' | '\u{2200}'..='\u{22ff}' | '\u{2a00}'..='\u{2aff}' | '\u{3000}'..='\u{303f}')
        || matches!(c, '\u{1000}'..='\u{109f}' | '\u{a840}'..='\u{a877}' | '\u{a9e0}'..='\u{a9ff}')
        || matches!(c, '\u{aa60}'..='\u{aa7f}' | '\u{ff00}'..='\u{ff60}')
        || is_ideograph(c)
}

fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}')
        || matches!(c, '\u{20000}'..='\u{3fffd}')
}

/// True for scripts without spaces between words.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}')
}

/// True for scripts whose letters change where they join: Arabic and related ones, those of India,
/// Mongolian.
fn joins(c: char) -> bool {
    matches!(c, '\u{600}'..='\u{61b}' | '\u{61d}'..='\u{dff}' | '\u{f00}'..='\u{109f}')
        || matches!(c, '\u{1780}'..='\u{17ff}' | '\u{1800}'..='\u{18af}' | '\u{a840}'..='\u{abff}')
        || matches!(c, '\u{fb50}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}' | '\u{10a00}'..='\u{10fff}')
        || matches!(c, '\u{11000}'..='\u{11fff}' | '\u{1e900}'..='\u{1e95f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        let runs = runs(text.as_bytes(), &|| false).unwrap();
        runs.into_iter().map(|run| text.get(run).unwrap()).collect()
    }

    #[test]
    fn what_scripts_and_emoji_need_is_not_found() {
        for text in [
            "plain\ttext\r\nand\u{c}more",
            "\u{feff}a mark at the beginning",
            // Hebrew, Arabic, Persian with a non-joiner, Hindi, Sinhala.
            "שלום עולם",
            "مرحبا بالعالم",
            "می\u{200c}خواهم",
            "क्\u{200d}ष और क्\u{200d} ",
            "ශ්\u{200d}රී",
            // A family, a woman who codes, a rainbow flag, a heart on fire, keycaps, an arrow.
            "👨\u{200d}👩\u{200d}👧\u{200d}👦 👩🏽\u{200d}💻 🏳\u{fe0f}\u{200d}🌈 ❤\u{fe0f}\u{200d}🔥 1\u{fe0f}\u{20e3} ➡\u{fe0f} ©\u{fe0f}",
            // Scotland.
            "🏴\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e007f}",
            // Variants of an ideograph, of an operator and of a zero.
            "葛\u{e0100}飾 ∩\u{fe00} 0\u{fe00}",
            // Thai and Khmer words, Mongolian, braille.
            "ภาษา\u{200b}ไทย ភាសា\u{200b}ខ្មែរ ᠠ\u{180b} ⠓\u{2800}⠓",
            // Hieroglyphs above one another, one of them damaged, in a group.
            "\u{13000}\u{13430}\u{13437}\u{13001}\u{13447}\u{13431}\u{13460}\u{13438}",
            // Joined letters and numbers, a filled and turned sign, a stem without a notehead.
            "\u{2d3d}\u{2d7f}\u{2d3c} \u{11064}\u{1107f}\u{11052} \u{18b00}\u{16fe4}\u{18b01} \u{1bc00}\u{1bc9d}",
            "\u{1d800}\u{1da9b}\u{1daaf} \u{1d801}\u{1daa1} \u{1d159}\u{1d165}",
        ] {
            assert_eq!(found(text), Vec::<&str>::new(), "{text}");
        }
    }

    #[test]
    fn what_nobody_sees_is_found_as_runs() {
        for (text, expected) in [
            ("a\u{e0049}\u{e0067}b", vec!["\u{e0049}\u{e0067}"]),
            // Tags that form no flag, and one flag with further tags after it.
            ("🏴\u{e0049}\u{e007f}", vec!["\u{e0049}\u{e007f}"]),
            (
                "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}\u{e0049}",
                vec!["\u{e0049}"],
            ),
            ("x\u{202e}y\u{2066}z\u{2069}", vec!["\u{202e}", "\u{2066}", "\u{2069}"]),
            ("a\u{200b}\u{200c}\u{200d}\u{2060}b", vec!["\u{200b}\u{200c}\u{200d}\u{2060}"]),
            ("co\u{ad}op\u{feff}", vec!["\u{ad}", "\u{feff}"]),
            // Bytes that are hidden in selectors after an emoji, and after a letter.
            ("😀\u{fe0f}\u{e0101}\u{e0102}", vec!["\u{e0101}\u{e0102}"]),
            ("😀\u{fe0f}\u{fe0f}\u{fe01}", vec!["\u{fe0f}\u{fe01}"]),
            ("a\u{fe0f}", vec!["\u{fe0f}"]),
            ("葛\u{e0100}\u{e0101}", vec!["\u{e0101}"]),
            ("می\u{200c}\u{200c}خ", vec!["\u{200c}\u{200c}"]),
            ("a\u{1b}[8m", vec!["\u{1b}"]),
            ("\u{2800}\u{2800}", vec!["\u{2800}\u{2800}"]),
            // Bits in what has no glyph of its own.
            ("a\u{16fe4}\u{1d159}\u{1d159}b", vec!["\u{16fe4}\u{1d159}\u{1d159}"]),
            ("\u{18b00}\u{16fe4}\u{16fe4}", vec!["\u{16fe4}"]),
            ("\u{1d800}\u{1da9b}\u{1da9c}\u{1daa1}", vec!["\u{1da9c}\u{1daa1}"]),
            ("a\u{2d7f}\u{1107f}\u{1bc9d}", vec!["\u{2d7f}\u{1107f}\u{1bc9d}"]),
            ("a\u{fffc}\u{fdd0}\u{fffe}\u{10ffff}", vec!["\u{fffc}\u{fdd0}\u{fffe}\u{10ffff}"]),
            // A text in the controls behind one hieroglyph.
            ("\u{13000}\u{13439}\u{13437}\u{1343e}\u{1343f}\u{13442}x", vec!["\u{1343f}\u{13442}"]),
        ] {
            assert_eq!(found(text), expected, "{text:?}");
        }
        assert!(runs("é".repeat(CLOCK_CHECK_INTERVAL).as_bytes(), &|| true).is_err());
    }
}
