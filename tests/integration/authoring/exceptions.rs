//! `policy lint` about exceptions of secret names.

use super::policy_file;
use crate::common::World;

/// Returns the findings of `except-everything`, of a policy with these names and exceptions.
fn disabled(world: &World, names: &str, except: &str) -> Vec<String> {
    let text = format!("schema = 1\n[secrets]\nnames = [{names}]\nexcept = [{except}]\n");
    policy_file(world, "p.toml", &text);
    let found = world.run(&["policy", "lint", "p.toml", "--no-tree", "--json"]).ok().json();
    let findings = found["findings"].as_array().unwrap().iter();
    let findings = findings.filter(|finding| finding["id"] == "except-everything");
    findings.map(|finding| finding["message"].as_str().unwrap().to_owned()).collect()
}

/// Only `*` and `**` were found.
#[test]
fn an_exception_that_disables_one_secret_name_was_not_found() {
    let world = World::new();
    let both = "`.env*` excepts all that the secret names `.env`, `.env.*` match";
    assert_eq!(disabled(&world, "'.env', '.env.*'", "'.env*'"), [both]);
    for (names, except) in [
        ("'prod.env'", "'*.env'"),
        ("'.env', 'keys'", "'.env'"),
        ("'**/.env'", "'.env{,.example}'"),
        ("'.env*'", "'.env*'"),
        ("'Vault'", "'Vault'"),
        // One of the names that the braces stand for.
        ("'{.env,vault}'", "'vault'"),
    ] {
        assert_eq!(disabled(&world, names, except).len(), 1, "{names} {except}");
    }
    for (names, except) in [
        ("'.env', '.env.*'", "'.env.example'"),
        ("'*.pem'", "'ca.pem', 'test/**/*.pem'"),
        ("'.ssh'", "'.ssh/config'"),
        // The directory itself stays secret, with all that is beneath it.
        ("'vault/**'", "'vault/**'"),
        ("'vault/**'", "'vault'"),
    ] {
        assert_eq!(disabled(&world, names, except), [""; 0], "{names} {except}");
    }
}
