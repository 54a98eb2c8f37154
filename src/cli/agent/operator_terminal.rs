//! The operator's terminal for a program in the sandbox.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use crate::{
    app::failure::{Exit, Failure},
    sandbox::{StandardStreams, is_on_terminal},
};

/// Variables about the terminal's abilities, which disclose nothing about the operator.
const TERMINAL_VARIABLES: [&str; 2] = ["TERM", "COLORTERM"];

/// Variables of which the first that is set names the encoding of the operator's programs.
const LOCALE_VARIABLES: [&str; 3] = ["LC_ALL", "LC_CTYPE", "LANG"];

/// Returns the operator's terminal for a program in the sandbox, and the variables about it.
///
/// # Errors
/// When there is none.
pub(in crate::cli) fn operator_terminal()
-> Result<(StandardStreams, BTreeMap<OsString, OsString>), Failure> {
    if !is_on_terminal() {
        return Err(Failure::new("standard input and output are not one terminal")
            .exit(Exit::Usage)
            .help("use `portcullis exec -- COMMAND` for a command that has none")
            .beside_result());
    }
    let given = |name: &str| Some((name.into(), std::env::var_os(name)?));
    let environment = TERMINAL_VARIABLES.into_iter().filter_map(given).collect();
    let locale = LOCALE_VARIABLES.into_iter().filter_map(std::env::var_os);
    Ok((StandardStreams::Terminal { is_utf8: is_utf8(locale) }, environment))
}

/// Returns true if the first of these variables that is not empty names UTF-8.
fn is_utf8(mut locale: impl Iterator<Item = OsString>) -> bool {
    let named = locale.find(|value| !value.is_empty());
    named.as_deref().and_then(OsStr::to_str).is_some_and(|name| {
        let name = name.to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_names_the_encoding() {
        let found = |values: &[&str]| is_utf8(values.iter().map(OsString::from));
        assert!(found(&["", "de_DE.utf8"]) && found(&["C.UTF-8", "C"]));
        assert!(!found(&["C", "C.UTF-8"]) && !found(&[]) && !found(&["de_DE.ISO-8859-1"]));
    }
}
