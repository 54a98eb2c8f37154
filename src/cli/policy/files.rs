//! The policies that a command line names.

use crate::{
    app::{
        failure::{Exit, Failure},
        policy_loading::unusable,
    },
    config::PolicyTexts,
    model::Escaped,
    policy::Policy,
    policy_tools::{OutlineFile, outline},
};

/// Loads the policy that the command line names, with the outline of its files.
pub(super) fn load_with_outline(reference: &str) -> Result<(Policy, Vec<OutlineFile>), Failure> {
    let (texts, policy) = load_with_texts(reference)?;
    Ok((policy, outline(texts.source())))
}

/// Loads the policy that the command line names, with its texts.
pub(super) fn load_with_texts(reference: &str) -> Result<(PolicyTexts, Policy), Failure> {
    let loaded = PolicyTexts::draft(reference).and_then(|texts| Ok((texts.compile()?, texts)));
    let (policy, texts) = loaded.map_err(|error| unusable(reference, &error))?;
    Ok((texts, policy))
}

/// Returns the policies among the named files: a shell's `*.toml` also names test
/// files, which belong to the policies beside them.
pub(super) fn policies(files: &[String]) -> Result<Vec<&String>, Failure> {
    let policies: Vec<_> = files.iter().filter(|file| !file.ends_with(".test.toml")).collect();
    for tests in files {
        let Some(policy) = tests.strip_suffix(".test.toml").map(|name| format!("{name}.toml"))
        else {
            continue;
        };
        if !policies.is_empty() && !files.contains(&policy) {
            errln!(
                "portcullis: warning: `{}` is a test file whose policy `{}` is not named, so it \
                 is ignored",
                Escaped(tests),
                Escaped(&policy),
            );
        }
    }
    if policies.is_empty() {
        return Err(Failure::new("only files of tests are named, and no policy")
            .help("name the policy; the tests beside it go with it")
            .exit(Exit::Usage));
    }
    Ok(policies)
}
