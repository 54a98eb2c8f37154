//! Tests of the embedded policies' guarantees.

use std::collections::BTreeSet;

use super::*;
use crate::model::{Access, WorkspacePath};

fn policy(name: &str) -> Policy {
    compile(&PolicySource::embedded(name).unwrap()).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the IDs of all rules in the file `name` itself.
fn rule_ids(name: &str) -> BTreeSet<String> {
    let source = PolicySource::embedded(name).unwrap();
    let file = source.sources().next().unwrap().clone();
    let statements = statements::parse(&file, Vec::new(), &mut Diagnostics::default());
    let mut ids: BTreeSet<_> = statements.rules.iter().map(|rule| rule.id.clone()).collect();
    for access in Access::ALL {
        if statements.allowed.get(access).is_some() {
            ids.insert(format!("allowedPaths.{access}"));
        }
        if statements.extensions.get(access).is_some() {
            ids.insert(format!("extensions.allow.{access}"));
        }
    }
    if !statements.denied_extensions.is_empty() {
        ids.insert("extensions.deny".to_owned());
    }
    ids.extend((0..statements.secret_names.len()).map(|index| format!("secrets.names[{index}]")));
    ids
}

#[test]
fn every_embedded_policy_compiles_and_its_tests_pass() {
    for (name, _) in EMBEDDED {
        let policy = policy(name);
        assert_eq!(policy.name(), name);
        // The rules of `secrets` are about content and have samples.
        assert!(policy.tests() > 5 || name == "secrets", "{name}");
        assert!(policy.secrets().is_some_and(|secrets| secrets.rules() > 40), "{name}");
    }
}

#[test]
fn every_rule_of_an_embedded_policy_is_expected_by_one_of_its_tests() {
    for (name, _) in EMBEDDED {
        let source = PolicySource::embedded(name).unwrap();
        let file = source.sources().next().unwrap().clone();
        let statements = statements::parse(&file, Vec::new(), &mut Diagnostics::default());
        let expected: BTreeSet<_> =
            statements.tests.iter().filter_map(|test| test.rule.clone()).collect();
        let untested: Vec<_> = rule_ids(name).difference(&expected).cloned().collect();
        assert!(untested.is_empty(), "{name}: {untested:?}");
    }
}

#[test]
fn every_rule_about_content_has_samples_that_match_and_that_must_not() {
    let (_, text) = EMBEDDED.into_iter().find(|(name, _)| *name == "secrets").unwrap();
    let rules = text.split("[[secrets.rules]]").skip(1);
    for rule in rules.clone() {
        assert!(rule.contains("\nmatch = [") && rule.contains("\nnotMatch = ["), "{rule}");
    }
    assert!(rules.count() > 40);
    // Under another name the text is not trusted: all expressions are compiled and tested with
    // their samples.
    compile(&PolicySource::from_text("a copy", text)).unwrap_or_else(|error| panic!("{error}"));
    let wrong = text.replacen("\nmatch = [\"A", "\nmatch = [\"B", 1);
    assert_ne!(wrong, text);
    assert!(compile(&PolicySource::from_text("wrong", &wrong)).is_err());
}

/// A bound on the length showed the rest of a secret, or with a delimiter all of it.
#[test]
fn secrets_longer_than_usual_are_found_to_their_end() {
    let policy = policy("secrets");
    let path = WorkspacePath::parse("f").unwrap();
    let key = SecretKey::new(&[0; 32]);
    let subject = Subject { path: &path, key: &key, overdue: &|| false };
    let long = "0123456789abcdef".repeat(80);
    for before in [
        "ya29.",
        "ghp_",
        "glpat-",
        "ATATT3",
        "xoxb-",
        "xapp-1-A0000-00000-",
        "https://hooks.slack.com/services/",
        "https://discord.com/api/webhooks/00000000000000000/",
        "sk_live_",
        "whsec_",
        "sq0atp-",
        "//registry.example.org/:_authToken=",
        "pypi-AgE",
        "dckr_pat_",
        "sk-proj-",
        "sk-ant-api03-",
        "hvs.",
        "aaaaaaaaaaaaaa.atlasv1.",
        "glc_",
        "sntrys_",
        "postgres://u:",
        "postgres://u:0@1@",
    ] {
        let text = format!("{before}{long}_old@x\n").into_bytes();
        let read = policy.secrets().unwrap().disclose(&subject, text);
        let seen = String::from_utf8(read.verdict.unwrap().bytes).unwrap();
        assert!(seen.contains("[portcullis-secret:") && !seen.contains("0123"), "{before}: {seen}");
    }
}

/// A token after `\n` in a JSON string, or after a colour code, follows a letter.
#[test]
fn secrets_are_found_between_what_files_put_around_them() {
    let policy = policy("secrets");
    let path = WorkspacePath::parse("f").unwrap();
    let key = SecretKey::new(&[0; 32]);
    let subject = Subject { path: &path, key: &key, overdue: &|| false };
    let (_, text) = EMBEDDED.into_iter().find(|(name, _)| *name == "secrets").unwrap();
    let root: toml::Table = text.parse().unwrap();
    for rule in root["secrets"]["rules"].as_array().unwrap() {
        let id = rule["id"].as_str().unwrap();
        for sample in rule["match"].as_array().unwrap() {
            let sample = sample.as_str().unwrap();
            for (before, after) in [
                (r"# key\n", r"\nb"),
                (r"x=\u003d", r"\u0026b"),
                ("%3D", "%26b"),
                ("\u{1b}[32m", "\u{1b}[0m"),
                ("token_", ";old"),
            ] {
                let text = format!("{before}{sample}{after}").into_bytes();
                let found = policy.secrets().unwrap().disclose(&subject, text).findings;
                assert!(found.iter().any(|found| found.rule == id), "{id}: {before}{sample}");
            }
        }
    }
}

/// A comment, a citation, a patch and JSON within JSON put a prefix before each line.
#[test]
fn no_line_of_a_private_key_is_shown_whatever_stands_before_it() {
    let policy = policy("secrets");
    let path = WorkspacePath::parse("f").unwrap();
    let key = SecretKey::new(&[0; 32]);
    let subject = Subject { path: &path, key: &key, overdue: &|| false };
    let pem = ["-----BEGIN RSA PRIVATE KEY-----", &"MIIEsecret+/0123".repeat(4)];
    let pem = [&pem[..], &[pem[1], "c2VjcmV0", "-----END RSA PRIVATE KEY-----"]].concat();
    let ssh2 = ["---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----", "Comment: \"a, b\"", pem[1]];
    let ssh2 = [&ssh2[..], &["c2VjcmV0", "---- END SSH2 ENCRYPTED PRIVATE KEY ----"]].concat();
    let putty = ["Private-Lines: 2", pem[1], "c2VjcmV0", "Private-MAC: 00"];
    let keys = [&pem[..], &pem[..pem.len() - 1], &ssh2, &putty];
    for lines in keys {
        for before in
            ["", "# ", "// ", "> ", "> > ", "-", "+", "-- ", " * ", ";", "  - ", "rem ", "\" + \""]
        {
            for end in ["\n", "\r\n", "\\n", "\\\\n", "\\r\\n", "\",\n\""] {
                let text: String =
                    lines.iter().map(|line| format!("{before}{line}{end}")).collect();
                let read = policy.secrets().unwrap().disclose(&subject, text.clone().into_bytes());
                let seen = String::from_utf8(read.verdict.unwrap().bytes).unwrap();
                let shown = seen.contains("secret+") || seen.contains("c2Vj");
                assert!(seen.contains("[portcullis-secret:") && !shown, "{text}: {seen}");
            }
        }
    }
}

#[test]
fn no_policy_that_extends_baseline_lets_an_agent_at_secrets_or_delayed_execution() {
    let agent = "agent".parse().unwrap();
    let read_or_write = [
        ".env",
        "a/.ENV",
        ".env.",
        "x/id_rsa",
        "k/server.PEM ",
        ".aws/credentials",
        ".ssh/a/b",
        "my-credentials.json",
        ".netrc",
        "terraform.tfstate",
        ".docker/config.json",
        "a.kdbx",
    ];
    let write_only = [
        ".git",
        ".git/config",
        ".git/hooks/x",
        "sub/.GIT/config",
        ".git./config",
        ".git\u{2215}x",
        ".g\u{200c}it/config",
        ".gitattributes",
        ".gitmodules",
        ".husky/x",
        ".vscode/tasks.json",
        ".idea/x",
        ".zed/x",
        ".cursor/x",
        ".envrc",
        ".pre-commit-config.yaml",
        ".cargo/config.toml",
        ".github/workflows/x.yml",
        ".claude/settings.json",
        ".codex/x",
        ".mcp.json",
        ".claude",
        "bare.git/hooks/x",
        "bare/HEAD",
        ".devcontainer/x",
        ".gitlab-ci.yml",
        "AGENTS.md",
        ".RData",
        "hie.yaml",
        ".zuul.yaml",
        "zuul.d/jobs.yaml",
        "bunfig.toml",
        ".config/nushell/config.nu",
    ];
    for name in ["default", "coding-agent", "read-only", "docs-writer", "strict"] {
        let policy = policy(name);
        let decide = |operation, path: &str| {
            let path = WorkspacePath::parse(path).unwrap();
            policy.decide(&agent, operation, &path, None, None).is_allow()
        };
        use crate::model::OperationKind::*;
        for path in read_or_write {
            for operation in [Read, Write, List, Stat, Remove] {
                assert!(!decide(operation, path), "{name}: {operation} {path}");
            }
        }
        for path in write_only {
            for operation in [Write, Append, Edit, Mkdir, Remove, Rename, Restore] {
                assert!(!decide(operation, path), "{name}: {operation} {path}");
            }
        }
    }
}

#[test]
fn default_leaves_ordinary_work_alone() {
    let (policy, agent) = (policy("default"), "agent".parse().unwrap());
    for path in [
        "src/main.rs",
        "Cargo.toml",
        "src/hooks/useUser.ts",
        "README.md",
        ".gitignore",
        ".env.example",
        "src/credentials.rs",
        "docs/env.md",
        "keys.rs",
        "package.json",
        "Makefile",
        "src/agents/mod.rs",
        "tests/secrets.rs",
        "src/git/config.rs",
        "app/secrets/mod.py",
        ".github/ISSUE_TEMPLATE/a.md",
    ] {
        use crate::model::OperationKind::*;
        let path = WorkspacePath::parse(path).unwrap();
        for operation in [Read, Write, Edit, Remove] {
            let decision = policy.decide(&agent, operation, &path, None, None);
            assert!(decision.is_allow(), "{operation} {path}: {decision:?}");
        }
    }
}
