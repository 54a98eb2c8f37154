//! Characters in names that only look like those of the keyboard: `mixed-scripts`.

use unicode_normalization::UnicodeNormalization as _;

use super::forms::MisreadPattern;

/// Letters of other scripts (Cyrillic, Greek, Armenian, phonetic) that look like characters of
/// ASCII.
const LETTERS: &str = "аеорсухіјѕһԁԛԝӏкүѵҽАВЕКМНОРСТУХІЈЅҮѴԌԚԜҺӀ\
    οανρυικχϲϳΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹͿօոսցհɑɡ";
/// Dashes and the like that look like `-`.
const DASHES: &str = "\u{2010}\u{2011}\u{2012}\u{2013}\u{2014}\u{2015}\u{2043}\u{2212}\u{fe58}";

/// Finds a name in ASCII with a character that looks like one of ASCII. A word that has other
/// letters of its script, and none of ASCII, is one of that script.
pub(super) fn in_name(text: &str) -> Option<MisreadPattern> {
    text.split('/').find_map(|name| {
        let has_ascii = |text: &str| text.chars().any(|c| c.is_ascii_alphabetic());
        if !has_ascii(name) {
            return None;
        }
        let words = name.split(|c: char| !c.is_alphanumeric());
        let mut words = words.filter(|word| has_ascii(word) || has_only_look_alikes(word));
        let letter = words.find_map(|word| word.chars().find(|c| is_look_alike(*c)));
        let sign = || name.chars().find(|c| !c.is_alphanumeric() && is_look_alike(*c));
        let found = letter.or_else(sign).or_else(|| dash(name))?;
        Some(misread(found, name))
    })
}

/// Finds an extension that looks like one in ASCII. Entire names of such letters are words of their
/// script, but extensions hardly are.
pub(super) fn in_extension(extension: &str) -> Option<MisreadPattern> {
    let found = extension.chars().find(|c| is_look_alike(*c))?;
    has_only_look_alikes(extension).then(|| misread(found, extension))
}

/// True if all letters of other scripts look like characters of ASCII.
fn has_only_look_alikes(text: &str) -> bool {
    text.chars().filter(|c| !c.is_ascii() && c.is_alphabetic()).all(is_look_alike)
}

fn is_look_alike(c: char) -> bool {
    LETTERS.contains(c) || is_ascii_form(c)
}

/// True for a letter, digit, `-` or `_` of ASCII in another form, such as another width. Raised,
/// lowered and enclosed forms do not look the same.
fn is_ascii_form(c: char) -> bool {
    let looks_different = matches!(c,
        '\u{aa}' | '\u{b2}' | '\u{b3}' | '\u{b9}' | '\u{ba}' | '\u{2b0}'..='\u{2ff}'
        | '\u{1d2c}'..='\u{1dbf}' | '\u{2070}'..='\u{209f}' | '\u{2460}'..='\u{24ff}'
        | '\u{2c7c}' | '\u{2c7d}' | '\u{a7f2}'..='\u{a7f4}' | '\u{1f100}'..='\u{1f1ff}');
    let mut forms = std::iter::once(c).nfkc();
    let form = forms.next().filter(|_| forms.next().is_none());
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !c.is_ascii() && !looks_different && form.is_some_and(is_plain)
}

/// Finds a dash beside a letter of ASCII. One between blanks or numbers belongs there.
fn dash(name: &str) -> Option<char> {
    let pairs = name.chars().zip(name.chars().skip(1));
    let mut pairs = pairs.flat_map(|(one, other)| [(one, other), (other, one)]);
    let found = pairs.find(|(dash, beside)| DASHES.contains(*dash) && beside.is_ascii_alphabetic());
    found.map(|(dash, _)| dash)
}

fn misread(found: char, name: &str) -> MisreadPattern {
    (
        "mixed-scripts",
        format!(
            "`{found}` in `{name}` is U+{:04X}, which only looks like a character of the keyboard",
            u32::from(found)
        ),
        "write the character of the keyboard; the name with that one is another name".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_another_script_are_told_from_words_of_it() {
        for text in [
            "src/p\u{430}yments",
            "*.\u{435}nv",
            "\u{ff45}nv",
            "sec\u{433}et\u{455}",
            "\u{441}\u{43e}\u{440}\u{443}.txt",
        ] {
            assert!(in_name(text).is_some(), "{text}");
        }
        for extension in ["\u{435}nv", "\u{435}\u{445}\u{435}", "\u{ff45}\u{ff58}\u{ff45}"] {
            assert!(in_extension(extension).is_some(), "{extension}");
        }
        for extension in ["env", "\u{43e}\u{442}\u{447}", "na\u{ef}f", "*", "\u{44f}"] {
            assert_eq!(in_extension(extension), None, "{extension}");
        }
        for text in [
            "src/payments",
            "\u{43e}\u{442}\u{447}\u{435}\u{442}/a",
            "\u{43e}\u{442}\u{447}\u{435}\u{442}-v2.pdf",
            "caf\u{e9}",
            "\u{ff21}\u{4ed5}\u{69d8}.pdf",
        ] {
            assert_eq!(in_name(text), None, "{text}");
        }
    }

    /// They were no finding, and a denial of such a name protected nothing.
    #[test]
    fn other_forms_of_letters_digits_and_signs_were_not_told() {
        for text in [
            "id\u{ff3f}rsa",
            "id\u{ff0d}rsa",
            "v\u{ff11}",
            "\u{1d42c}ecret.x",
            "\u{1d7d8}x",
            "\u{2170}d_rsa",
            "my\u{2013}file",
            "my\u{2011}file",
            "my\u{2212}*",
            "to\u{43a}en",
            "\u{3ba}eys.x",
        ] {
            assert!(in_name(text).is_some(), "{text}");
        }
        for text in [
            "m\u{b2}",
            "CO\u{2082}.md",
            "n\u{ba} 1",
            "\u{2460}spec",
            "a \u{2013} b",
            "notes 1\u{2013}2",
            "\u{fb01}le",
            "[_\u{2013}]x",
        ] {
            assert_eq!(in_name(text), None, "{text}");
        }
    }
}
