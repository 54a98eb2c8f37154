//! The corrections of texts that are no patterns.

use super::parse::PatternError;

impl PatternError {
    /// Returns the problem and the correction in one line.
    pub(crate) fn explained(self) -> String {
        match self.help() {
            "" => self.to_string(),
            help => format!("{self}; {help}"),
        }
    }

    /// Returns the correction.
    pub(crate) fn help(self) -> &'static str {
        match self {
            Self::Negation => {
                "there is no negation: to exclude a path, add a rule with `effect = \"deny\"`; a \
                 name that begins with `!` is `[!]name`"
            }
            Self::Home => {
                "patterns are relative to the workspace root, and nothing outside it is served; \
                 a name that begins with `~` is `[~]name`"
            }
            Self::Drive => {
                "patterns are relative to the workspace root, and nothing outside it is served; \
                 a `:` in a name is `[:]`"
            }
            Self::Backslash => {
                "between directories write `/`; to match a special character itself, write a class: \
                 `[*]`, `[\\]`"
            }
            Self::BackslashInClass => {
                "write the characters themselves: `[0-9]` for `\\d`, a `-` at the end: `[a-z-]`; a \
                 `\\` that is meant stands in a class of its own: `[\\]`"
            }
            Self::CombiningInClass => "write alternatives: `{é,è}`",
            Self::Range => "write the alternatives: `{1,2,3}`, or a class: `[1-3]`",
            Self::ExtendedGlob => {
                "for alternatives write `{a,b}`; there is no repetition and no negation; a \
                 parenthesis in a name is `[(]`"
            }
            Self::Blank => "remove the blank; a name with one there has `[ ]`",
            Self::BlankBesideStar => {
                "write a list of strings: `[\"*.js\", \"*.ts\"]`; a name with a blank there has `[ ]`"
            }
            Self::Group => {
                "parentheses group nothing: leave them out, or for alternatives write `{a,b}`; a \
                 parenthesis in a name is `[(]`"
            }
            Self::BlankInBraces => "write `{a,b}`; a name with a blank there has `[ ]`",
            Self::OneAlternative => {
                "write `{a,b}`, or leave the braces out; a brace in a name is `[{]`"
            }
            Self::Regex => {
                "patterns are globs: `*` is any text in a name, `**` any directories, as in \
                 `src/**/*.env`; a character that is meant stands in a class: `[$]`"
            }
            Self::Bar => "for alternatives write `{a,b}`; a `|` in a name is `[|]`",
            Self::Variable => {
                "nothing is expanded; patterns are relative to the workspace root; in a name \
                 write `[$]` or `[%]`"
            }
            Self::Encoded => "write the character itself; a `%` in a name is `[%]`",
            Self::Address => {
                "there is one kind of pattern, relative to the workspace root: leave out what \
                 comes before; a `:` in a name is `[:]`"
            }
            Self::List => {
                "write a list of strings: `[\"a/**\", \"b/**\"]`; a `,` in a name is `[,]`, a `;` is `[;]`"
            }
            Self::Quotes => {
                "TOML's own quotes are enough; a quote in a name stands in a class: `[']`, `[\"]`"
            }
            Self::Annotation => {
                "leave it out; a name with a blank there has `[ ]`, one with a `:` has `[:]`, and one \
                 with a `=` has `[=]`"
            }
            Self::Comment => "a comment stands outside the string; a name with `#` has `[#]`",
            Self::Placeholder => "write the name that is meant; `<` in a name is `[<]`",
            Self::NoWildcard => {
                "for any directory write `*`, for any number of them `**`; a name of such a \
                 character stands in a class: `[-]`"
            }
            Self::LookAlike { .. } => {
                "write that character; a name with the other one has it in a class of its own: `[…]`"
            }
            Self::PosixClass => "write the characters: `[a-zA-Z]`, `[0-9]`",
            Self::UnopenedClass => {
                "in a name `[` is `[[]` and `]` is `[]]`; write all of them so, as in \
                 `[[][[]lang[]][]]` for two pairs"
            }
            Self::BadClass => {
                "a range goes from the first character to the last: `[a-z]`; in a name `[` is \
                 `[[]` and `]` is `[]]`, as in `[[]user-id[]]`"
            }
            Self::UnclosedClass => "a `[` in a name is `[[]`",
            Self::Absolute => "leave out the `/` at the start: `/src` is `src`",
            Self::Dots => "leave out `./`; instead of `a/../b` write `b`",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Comparison, parse};

    /// It was to escape `]` alone: `[[lang]\]` loaded, and matched no such name.
    #[test]
    fn advice_about_brackets_led_to_a_pattern_without_a_match() {
        for (text, name) in [("app/[[lang]]", "[[lang]]"), ("[user-id]", "[user-id]")] {
            let help = parse(text, Comparison::Folded).unwrap_err().help();
            let advised: Vec<_> = help
                .split('`')
                .filter_map(|text| parse(text, Comparison::Folded).ok())
                .filter(|all| all.iter().any(|pattern| pattern.matches(name.split('/'))))
                .collect();
            assert_eq!(advised.len(), 1, "{help}");
        }
    }
}
