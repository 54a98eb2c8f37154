//! Characters that only look like those of patterns.
//!
//! A denial of `＊.pem` would protect nothing. So they are errors, and a name with such a character
//! has it in a class of its own: `[＊].pem`.

use unicode_normalization::UnicodeNormalization as _;

use crate::normalized::{is_separator_look_alike, single};

/// Returns the character of patterns that `found` looks like, if it is another one.
pub(crate) fn meant(found: char) -> Option<char> {
    match found {
        c if c.is_ascii() => None,
        c if is_separator_look_alike(c) => Some('/'),
        '\u{66d}' | '\u{204e}' | '\u{2051}' | '\u{2217}' | '\u{22c6}' | '\u{2731}' | '\u{a673}' => {
            Some('*')
        }
        '\u{2216}' | '\u{29f5}' | '\u{29f9}' => Some('\\'),
        '\u{2774}' => Some('{'),
        '\u{2775}' => Some('}'),
        // Other widths, and forms for vertical text.
        c => single(std::iter::once(c).nfkc()).filter(|meant| "*?[]{},./\\".contains(*meant)),
    }
}

/// True for a dash that only looks like that of a range in a class, `[a–z]`.
pub(super) fn is_dash(c: char) -> bool {
    matches!(c, '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}')
}

#[cfg(test)]
mod tests {
    use super::super::{Comparison, PatternError, parse};

    #[test]
    fn refuses_what_only_looks_like_a_character_of_patterns() {
        for (meant, look_alikes) in [
            ('*', "\u{ff0a}\u{fe61}\u{204e}\u{2051}\u{2217}\u{22c6}\u{66d}\u{2731}\u{a673}"),
            ('?', "\u{ff1f}\u{fe56}\u{fe16}"),
            ('[', "\u{ff3b}\u{fe47}"),
            (']', "\u{ff3d}\u{fe48}"),
            ('{', "\u{ff5b}\u{fe5b}\u{fe37}\u{2774}"),
            ('}', "\u{ff5d}\u{fe5c}\u{fe38}\u{2775}"),
            (',', "\u{ff0c}\u{fe50}\u{fe10}"),
            ('.', "\u{ff0e}\u{fe52}\u{2024}"),
            ('/', "\u{ff0f}\u{2044}\u{2215}\u{29f8}"),
            ('\\', "\u{ff3c}\u{fe68}\u{2216}\u{29f5}\u{29f9}"),
        ] {
            for found in look_alikes.chars() {
                for mode in [Comparison::Exact, Comparison::Folded] {
                    let error = Err(PatternError::LookAlike { found, meant });
                    for text in [format!("a{found}"), format!("{{a,b{found}/x}}/**")] {
                        assert_eq!(parse(&text, mode), error, "{text}");
                    }
                    assert!(parse(&format!("a[{found}]"), mode).is_ok(), "a[{found}]");
                }
            }
        }
        let error = PatternError::LookAlike { found: '\u{2013}', meant: '-' };
        assert_eq!(parse("[a\u{2013}z]", Comparison::Exact), Err(error));
        let message = "`\u{2013}` (U+2013) only looks like `-`";
        assert!(error.explained().starts_with(message), "{}", error.explained());
        for text in ["a\u{2013}z", "[\u{2013}]", "[_\u{2013}]", "caf\u{e9}", "\u{3010}a\u{3011}"] {
            assert!(parse(text, Comparison::Exact).is_ok(), "{text}");
        }
    }
}
