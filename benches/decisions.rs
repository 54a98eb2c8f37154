//! How many decisions a second one core makes under policies of many rules.
//!
//! `cargo bench --bench decisions` prints one line per policy.

use std::{fmt::Write as _, hint::black_box, time::Instant};

use portcullis::{
    model::{Access, AgentName, OperationKind, WorkspacePath},
    policy::{PolicySource, Query, compile},
};

const DECISIONS: usize = 200_000;

fn many_rules() -> String {
    let mut text = String::from(
        "schema = 1\nextends = [\"baseline\"]\n[allowedPaths]\nread = [\"**\"]\nwrite = [\"src/**\"]\n",
    );
    for number in 0..500 {
        let path = match number % 5 {
            0 => format!("src/module{number}/generated/**"),
            1 => format!("**/*.ext{number}"),
            2 => format!("packages/p{number}/**/*.lock"),
            3 => format!("**/build{number}/**"),
            _ => format!("config/name{number}*.toml"),
        };
        let rule = format!(
            "[[rules]]\nid = \"r{number}\"\neffect = \"deny\"\noperations = [\"write\", \"read\"]\npaths = [\"{path}\"]\n"
        );
        text.write_str(&rule).unwrap_or_default();
    }
    text
}

fn main() {
    let Ok(agent) = "agent".parse::<AgentName>() else { return };
    let paths: Vec<_> = [
        "src/lib.rs",
        "src/policy/stages/names.rs",
        "packages/web/components/button/index.tsx",
        "docs/guide/Getting-Started.md",
        "src/module250/generated/a/b.rs",
        "tests/données/été.txt",
    ]
    .into_iter()
    .filter_map(|path| WorkspacePath::parse(path).ok())
    .collect();
    let embedded = PolicySource::embedded("default");
    let many = PolicySource::from_text("many", &many_rules());
    for (name, source) in [("default", embedded), ("baseline and 500 rules", Some(many))] {
        let Some(Ok(policy)) = source.map(|source| compile(&source)) else {
            eprintln!("{name}: does not compile");
            continue;
        };
        for path in &paths {
            let start = Instant::now();
            for _ in 0..DECISIONS {
                let (operation, access) = (OperationKind::Read, Access::Read);
                let query = Query { agent: &agent, operation, access, path };
                let _ = black_box(policy.evaluate(&query));
            }
            let nanoseconds = start.elapsed().as_nanos() / DECISIONS as u128;
            println!("{name}: {nanoseconds} ns, {path}");
        }
    }
}
