//! The form of strings, for editors.
//!
//! Strings are interpreted by code where they are read ([`statements`](super::statements)). These
//! expressions cover as much of that as an expression can. Every string that the reader accepts has
//! its form, so an editor never marks a string that `policy check` accepts. The dialect is the part
//! of JSON Schema's (ECMA-262) that other dialects share.

/// The form of a valid string.
#[derive(Debug, Clone, Copy)]
pub struct StringFormat {
    /// An expression that it matches.
    pub pattern: &'static str,
    /// An expression that it does not match.
    pub never: Option<&'static str>,
}

const fn form(pattern: &'static str) -> StringFormat {
    StringFormat { pattern, never: None }
}

/// The ID of a rule about secrets.
pub(super) const ID: StringFormat = form("^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$");
/// The ID of one of `[[rules]]`, where the prefixes of built-in IDs are reserved.
pub(super) const RULE_ID: StringFormat = StringFormat {
    pattern: ID.pattern,
    never: Some(concat!(
        "^(agent|allowedPaths|approval|backups|batch|binary|default|extends|extensions|files",
        "|limits|mode|mount|names|network|rules|search|secrets|serve|tests|workspace)(\\.|$)"
    )),
};
/// A pattern of paths.
pub(super) const PATTERN: StringFormat =
    StringFormat { pattern: "^[^/]+(/[^/]+)*$", never: Some("(^|/)\\.\\.(/|$)|^\\./|/\\.(/|$)") };
/// A pattern of agents' names.
pub(super) const NAME_PATTERN: StringFormat = form("^[^/]{1,1024}$");
/// The name of an agent.
pub(super) const AGENT: StringFormat = form("^[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,63}$");
/// A path in the workspace.
pub(super) const PATH: StringFormat =
    StringFormat { pattern: "^([^/]|$)", never: Some("(^|/)\\.\\.(/|$)") };
/// A host: a name or an address.
pub(super) const HOST: StringFormat = form("^[A-Za-z0-9.:-]{1,253}$");
/// Hosts of a rule: a name, names beneath one, an address, a network, or all.
pub(super) const HOSTS: StringFormat = form("^[A-Za-z0-9.:*/-]{1,255}$");
/// A path on the host.
pub(super) const HOST_PATH: StringFormat =
    StringFormat { pattern: "^(/[^/]+)+$", never: Some("/\\.\\.?(/|$)") };
/// The extension of a file's name, without a dot.
pub(super) const EXTENSION: StringFormat = form("^[^./\\\\*?{}\\[\\] \\t\\r\\n]{1,64}$");
/// The name of an environment variable.
pub(super) const VARIABLE: StringFormat = form("^[A-Za-z_][A-Za-z0-9_]{0,127}$");
/// A keyword near a secret.
pub(super) const KEYWORD: StringFormat = form("^[\\s\\S]{1,100}$");
/// A SHA-256 in hexadecimal digits.
pub(super) const DIGEST: StringFormat = form("^[0-9A-Fa-f]{64}$");
/// The name of a policy.
pub(super) const TITLE: StringFormat = form("^[^\\x00-\\x1f]{0,100}$");
/// The description of a rule about secrets.
pub(super) const DESCRIPTION: StringFormat = form("^[^\\x00-\\x1f]{0,200}$");
/// The reason of a rule.
pub(super) const REASON: StringFormat = form("^[^\\x00-\\x1f]{0,500}$");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_automata::meta::Regex;

    use super::*;
    use crate::diagnostics::{Diagnostics, Source};

    /// A place for each form; `@` stands for the string.
    const PLACES: [(StringFormat, &str); 15] = [
        (ID, "[[secrets.rules]]\nid = @\nregex = \"x\""),
        (RULE_ID, "[[rules]]\nid = @\neffect = \"deny\"\npaths = [\"a\"]"),
        (PATTERN, "[allowedPaths]\nread = [@]"),
        (NAME_PATTERN, "[[rules]]\nid = \"x\"\neffect = \"deny\"\npaths = [\"a\"]\nagents = [@]"),
        (
            AGENT,
            "[[tests]]\noperation = \"stat\"\npath = \"a\"\nagent = @\nexpect.effect = \"deny\"",
        ),
        (PATH, "[[tests]]\noperation = \"stat\"\npath = @\nexpect.effect = \"deny\""),
        (HOST_PATH, "[agent]\nread = [@]"),
        (HOST, "[[tests]]\noperation = \"connect\"\nhost = @\nport = 1\nexpect.effect = \"deny\""),
        (HOSTS, "[[network.rules]]\nid = \"x\"\neffect = \"deny\"\nhosts = [@]"),
        (EXTENSION, "[extensions]\ndeny = [@]"),
        (VARIABLE, "[agent]\nenv = [@]"),
        (KEYWORD, "[[secrets.rules]]\nid = \"x\"\nregex = \"x\"\nkeywords = [@]"),
        (TITLE, "name = @"),
        (DESCRIPTION, "[[secrets.rules]]\nid = \"x\"\nregex = \"x\"\ndescription = @"),
        (REASON, "[[rules]]\nid = \"x\"\neffect = \"deny\"\npaths = [\"a\"]\nreason = @"),
    ];

    fn fits(form: StringFormat, text: &str) -> bool {
        let matches = |pattern: &str| Regex::new(pattern).unwrap().is_match(text);
        matches(form.pattern) && !form.never.is_some_and(matches)
    }

    fn is_read(location: &str, text: &str) -> bool {
        let quoted: String = text.chars().map(|c| format!("\\U{:08X}", u32::from(c))).collect();
        let text = format!("schema = 1\n{}", location.replace('@', &format!("\"{quoted}\"")));
        let mut diagnostics = Diagnostics::default();
        let source = Source::new("policy.toml".to_owned(), text);
        crate::statements::parse(&source, Vec::new(), &mut diagnostics);
        diagnostics.is_empty()
    }

    #[test]
    fn a_form_refuses_what_its_reader_refuses() {
        for (form, location) in PLACES {
            let (good, bad): (&[&str], &[&str]) = match location {
                _ if location.contains("id = @") => (&["a", "A.b-c_9"], &["", ".a", "a b", "é"]),
                _ if location.contains("agents") => (&["a*", "[**]"], &["", "a/b"]),
                _ if location.contains("agent = @") => (&["a@b", "-"], &["", ".a", "a/b"]),
                _ if location.contains("[allowedPaths]") => (
                    &[".", "**/*.rs", "{a,b/**}", ".a/..b"],
                    &["", "/a", "a/", "a//b", "../a", "a/./b"],
                ),
                _ if location.contains("path = @") => {
                    (&["", ".", "a/./b"], &["/a", "..", "a/../b"])
                }
                _ if location.contains("host = @") => {
                    (&["a.B", "::1", "1.2.3.4"], &["", "*", "a/8"])
                }
                _ if location.contains("hosts = [@]") => {
                    (&["*", "*.a", "10.0.0.0/8", "::/0"], &["", "a b", "a@b"])
                }
                _ if location.contains("[agent]\nread") => {
                    (&["/usr", "/a/.b"], &["", "/", "usr", "/a/", "/a/../b", "/."])
                }
                _ if location.contains("[extensions]") => {
                    (&["pem", "日本"], &["", ".pem", "*", "a b"])
                }
                _ if location.contains("env") => (&["PATH", "_x1"], &["", "1A", "A=b", "é"]),
                _ if location.contains("keywords") => (&["a", "\n"], &[""]),
                _ => (&["", "Why not?"], &["a\nb", "\u{7}"]),
            };
            for text in good {
                assert!(is_read(location, text) && fits(form, text), "{location} {text:?}");
            }
            for text in bad {
                assert!(!is_read(location, text) && !fits(form, text), "{location} {text:?}");
            }
        }
    }

    #[test]
    fn reserved_ids_are_those_of_built_in_rules() {
        let (_, location) = PLACES[1];
        for first in crate::statements::BUILT_IN {
            for id in [first.to_owned(), format!("{first}.x"), format!("{first}x")] {
                assert_eq!(is_read(location, &id), fits(RULE_ID, &id), "{id}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_read_has_its_form(
            text in prop_oneof!["[a.*/{},\\[\\]\\\\ ]{0,8}", "[A-Za-z0-9_.@-]{0,130}", "\\PC{0,6}", any::<String>()],
        ) {
            for (form, location) in PLACES {
                prop_assert!(!is_read(location, &text) || fits(form, &text), "{} {:?}", location, text);
            }
        }
    }
}
