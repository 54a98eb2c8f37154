//! `policy init`: a first policy for a tree, to be read and changed.
//!
//! It allows what the tree contains: directories with sources in a known language, manifests,
//! documents. Its tests expect the decisions that it makes, so it loads unchanged.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{entry_operation::EntryOperation, literal::escaped, schema::SCHEMA_FILE, tree::Tree};
use crate::{
    model::WorkspacePath,
    outline::PathPattern,
    policy::{
        Diagnostics, Object, ObjectKind, Policy, PolicySource, compile, embedded, unknown_name,
    },
};

/// Maximum number of directories that are listed by name.
const MAX_DIRECTORIES: usize = 30;

/// Reasons why no first policy was made.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// No embedded policy has the name.
    #[error("cannot start from `{name}`: {reason}")]
    Unknown {
        /// The name in the request.
        name: String,
        /// The message, which lists the existing names.
        reason: String,
    },
    /// The generated policy is invalid.
    #[error("the policy for this workspace does not load\n{0}")]
    Invalid(Diagnostics),
}

/// A first policy.
#[derive(Debug, Clone)]
pub struct FirstPolicy {
    /// Its TOML text.
    pub text: String,
    /// The languages that were found.
    pub languages: Vec<&'static str>,
}

/// A programming language, recognized by its files.
struct Language {
    name: &'static str,
    manifests: &'static [&'static str],
    extensions: &'static [&'static str],
    locks: &'static [&'static str],
    built: &'static [&'static str],
}

const LANGUAGES: &[Language] = &[
    Language {
        name: "Rust",
        manifests: &["Cargo.toml", "rustfmt.toml", "clippy.toml", "deny.toml"],
        extensions: &["rs"],
        locks: &["Cargo.lock"],
        built: &["target"],
    },
    Language {
        name: "JavaScript and TypeScript",
        manifests: &["package.json", "tsconfig.json", "deno.json"],
        extensions: &["js", "jsx", "mjs", "cjs", "ts", "tsx", "mts", "cts", "vue", "svelte"],
        locks: &["package-lock.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock"],
        built: &["node_modules", "dist", ".next"],
    },
    Language {
        name: "Python",
        manifests: &["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "tox.ini"],
        extensions: &["py", "pyi"],
        locks: &["poetry.lock", "uv.lock", "pdm.lock", "Pipfile.lock"],
        built: &[".venv", "venv", "__pycache__"],
    },
    Language {
        name: "Go",
        manifests: &["go.mod"],
        extensions: &["go"],
        locks: &["go.sum"],
        built: &["vendor"],
    },
    Language {
        name: "Java and Kotlin",
        manifests: &["pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle"],
        extensions: &["java", "kt"],
        locks: &["gradle.lockfile"],
        built: &["build"],
    },
    Language {
        name: "C and C++",
        manifests: &["CMakeLists.txt", "meson.build"],
        extensions: &["c", "h", "cc", "cpp", "hpp", "cxx"],
        locks: &["conan.lock"],
        built: &["build"],
    },
    Language {
        name: "Ruby",
        manifests: &["Gemfile", "Rakefile"],
        extensions: &["rb"],
        locks: &["Gemfile.lock"],
        built: &[],
    },
    Language {
        name: "PHP",
        manifests: &["composer.json"],
        extensions: &["php"],
        locks: &["composer.lock"],
        built: &["vendor"],
    },
];

/// Patterns of the directories that builds and installers fill, by the manifest that they read.
/// Cargo makes its directory by renaming one with such a name.
const SCRATCH: &[(&str, &[&str])] = &[
    (
        "Cargo.toml",
        &["target", "target[0-9A-Za-z][0-9A-Za-z][0-9A-Za-z][0-9A-Za-z][0-9A-Za-z][0-9A-Za-z]"],
    ),
    ("package.json", &["node_modules"]),
    ("pyproject.toml", &[".venv"]),
];

/// The hosts from which packages are fetched, by the manifest that names them.
const REGISTRIES: &[(&str, &[&str])] = &[
    ("Cargo.toml", &["index.crates.io", "static.crates.io"]),
    ("package.json", &["registry.npmjs.org"]),
    ("pyproject.toml", &["pypi.org", "files.pythonhosted.org"]),
];

/// Build files that belong to no particular language.
const BUILD: &[&str] = &["Makefile", "justfile"];

/// Extensions of documents.
const DOCUMENTS: &[&str] = &["md", "rst", "adoc", "txt"];

/// Makes a policy named `name` for `tree`; `from` is an embedded policy to start from.
///
/// # Errors
/// If there is no such embedded policy, or the generated policy does not compile.
pub fn first_policy(tree: &Tree, name: &str, from: Option<&str>) -> Result<FirstPolicy, InitError> {
    let name: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        .take(60)
        .collect();
    let name = if name.is_empty() { "workspace" } else { &name };
    let seen = TreeFacts::of(tree);
    let (text, mut questions) = match from {
        Some(from) => {
            let text = embedded(from).ok_or_else(|| InitError::Unknown {
                name: from.to_owned(),
                reason: unknown_name(from),
            })?;
            (copied(text, from, name), Vec::new())
        }
        None => (written(&seen, name), seen.questions()),
    };
    let file = tree.entries.iter().find(|entry| entry.object.kind == ObjectKind::File);
    let file = file.map(|entry| entry.path.clone());
    questions.extend(
        file.or_else(|| WorkspacePath::parse("README.md").ok())
            .map(|path| (EntryOperation::Read, path)),
    );
    for (entry_operation, path) in [
        (EntryOperation::Read, ".env"),
        (EntryOperation::Write, ".git/hooks/pre-commit"),
        (EntryOperation::List, "."),
    ] {
        questions.extend(WorkspacePath::parse(path).ok().map(|path| (entry_operation, path)));
    }
    let policy = compile(&PolicySource::from_text(name, &text)).map_err(InitError::Invalid)?;
    let text = text + &tests(&policy, questions);
    compile(&PolicySource::from_text(name, &text)).map_err(InitError::Invalid)?;
    Ok(FirstPolicy { text, languages: seen.languages.iter().map(|found| found.name).collect() })
}

/// The properties of a tree on which a policy is based.
struct TreeFacts {
    languages: Vec<&'static Language>,
    /// Top directories with sources or documents.
    directories: BTreeSet<String>,
    /// Extensions of sources and documents in the root itself.
    endings: BTreeSet<String>,
    /// Manifests in the root itself.
    manifests: Vec<&'static str>,
    /// Patterns of scratch directories, in the order of [`SCRATCH`].
    scratch: Vec<&'static str>,
    /// Hosts of packages, in the order of [`REGISTRIES`].
    registries: Vec<&'static str>,
}

impl TreeFacts {
    fn of(tree: &Tree) -> Self {
        let mut languages: Vec<&'static Language> = Vec::new();
        let built: BTreeSet<&str> =
            LANGUAGES.iter().flat_map(|found| found.built).copied().collect();
        let mut seen = Self {
            languages: Vec::new(),
            directories: BTreeSet::new(),
            endings: BTreeSet::new(),
            manifests: Vec::new(),
            scratch: Vec::new(),
            registries: Vec::new(),
        };
        let mut manifests = BTreeSet::new();
        for entry in tree.entries.iter().filter(|entry| entry.object.kind == ObjectKind::File) {
            let Some(name) = entry.path.file_name() else { continue };
            let mut above: Vec<_> = entry.path.components().collect();
            above.pop();
            let left_out = |name: &&str| name.starts_with('.') || built.contains(name);
            // Patterns cannot name a path with hidden characters.
            if above.iter().any(left_out) || entry.path.has_hidden_characters() {
                continue;
            }
            let ending = name.rsplit_once('.').map(|(_, ending)| ending);
            let manifest = LANGUAGES.iter().find_map(|known| {
                Some((known, *known.manifests.iter().find(|one| **one == name)?))
            });
            manifests.extend(manifest.map(|(_, name)| name));
            let source = LANGUAGES
                .iter()
                .find(|known| ending.is_some_and(|ending| known.extensions.contains(&ending)));
            for found in source.into_iter().chain(manifest.map(|(known, _)| known)) {
                if !languages.iter().any(|known| known.name == found.name) {
                    languages.push(found);
                }
            }
            let document = ending.is_some_and(|ending| DOCUMENTS.contains(&ending));
            match (above.first(), ending) {
                (Some(top), _)
                    if (source.is_some() || manifest.is_some() || document)
                        && seen.directories.len() < MAX_DIRECTORIES =>
                {
                    seen.directories.insert((*top).to_owned());
                }
                (None, _) if manifest.is_some() || BUILD.contains(&name) => {
                    let build = BUILD.iter().find(|known| **known == name).copied();
                    seen.manifests.extend(manifest.map(|(_, name)| name).or(build));
                }
                (None, Some(ending)) if source.is_some() || document => {
                    seen.endings.insert(ending.to_owned());
                }
                _ => {}
            }
        }
        let filled = SCRATCH.iter().filter(|(manifest, _)| manifests.contains(manifest));
        seen.scratch = filled.flat_map(|(_, patterns)| *patterns).copied().collect();
        let named = REGISTRIES.iter().filter(|(manifest, _)| manifests.contains(manifest));
        seen.registries = named.flat_map(|(_, hosts)| *hosts).copied().collect();
        seen.languages = languages;
        seen
    }

    /// Returns the requests that the policy's tests ask about, one for each of its rules.
    fn questions(&self) -> Vec<(EntryOperation, WorkspacePath)> {
        let mut questions = Vec::new();
        let mut ask = |entry_operation, path: String| {
            questions.extend(WorkspacePath::parse(&path).ok().map(|path| (entry_operation, path)));
        };
        let ending = self.languages.iter().find_map(|found| found.extensions.first());
        let ending = ending.unwrap_or(&"md");
        let sources = self.directories.iter().find(|name| *name == "src");
        if let Some(directory) = sources.or_else(|| self.directories.first()) {
            ask(EntryOperation::Write, format!("{directory}/new.{ending}"));
            ask(EntryOperation::Remove, format!("{directory}/old.{ending}"));
        } else {
            ask(EntryOperation::Remove, format!("old.{ending}"));
        }
        if let Some(manifest) = self.manifests.first() {
            ask(EntryOperation::Edit, (*manifest).to_owned());
        }
        ask(EntryOperation::Write, "data.bin".to_owned());
        for found in &self.languages {
            if let Some(lock) = found.locks.first() {
                ask(EntryOperation::Write, (*lock).to_owned());
            }
        }
        if let Some(built) = self.languages.iter().find_map(|found| found.built.first()) {
            ask(EntryOperation::Write, format!("{built}/x"));
        }
        questions
    }
}

fn copied(text: &str, from: &str, name: &str) -> String {
    // The tests of the embedded policy are kept: they state its purpose.
    let own = format!("name = \"{from}\"");
    let text = text.replacen(&own, &format!("name = \"{name}\""), 1);
    format!("# Copied from the embedded policy `{from}`; change it as you need.\n{text}")
}

fn written(seen: &TreeFacts, name: &str) -> String {
    let mut text = String::new();
    let languages: Vec<_> = seen.languages.iter().map(|found| found.name).collect();
    let found = if languages.is_empty() {
        "no language that I know".to_owned()
    } else {
        languages.join(", ")
    };
    let _ = write!(
        text,
        "# What an agent may do with this workspace.\n\
         #\n\
         # Made by `portcullis policy init` from what is there ({found}). Read it line\n\
         # by line: what it does not allow is denied, and what it allows is yours to\n\
         # answer for. The reference is docs/policy.md.\n\
         #:schema ./{SCHEMA_FILE}\n\
         schema = 1\n\
         name = \"{name}\"\n\
         # Increase it with every change; every record has it.\n\
         version = 1\n\
         # Denies files whose names suggest secrets, and files that something else\n\
         # executes later (Git hooks, editor settings, CI). Extending only narrows.\n\
         extends = [\"baseline\"]\n\
         \n\
         [allowedPaths]\n\
         # Everything that `baseline` does not deny. Name directories to close the rest.\n\
         read = [\"**\"]\n\
         list = [\"**\"]\n\
         # Directories with sources or documents, with all that is in them.\n\
         write = [\n"
    );
    // A name that no pattern can express is left out; the others remain.
    let directories: Vec<_> = seen
        .directories
        .iter()
        .map(|directory| escaped(directory))
        .filter(|pattern| PathPattern::allowing(pattern).is_ok())
        .collect();
    for directory in &directories {
        let _ = writeln!(text, "    {},", quoted(&format!("{directory}{{,/**}}")));
    }
    if !seen.endings.is_empty() {
        text.push_str("    # Sources and documents in the root itself.\n");
        for ending in &seen.endings {
            let _ = writeln!(text, "    {},", quoted(&format!("*.{}", escaped(ending))));
        }
    }
    if !seen.manifests.is_empty() {
        text.push_str("    # Manifests: what they name is fetched and run at the next build.\n");
        for manifest in &seen.manifests {
            let _ = writeln!(text, "    \"{manifest}\",");
        }
    }
    text.push_str(
        "]\n# Less than may be written: a removal is undone from the backups only.\nremove = [",
    );
    if !directories.is_empty() {
        text.push('\n');
    }
    for directory in &directories {
        let _ = writeln!(text, "    {},", quoted(&format!("{directory}/**")));
    }
    text.push_str("]\n");
    rule(
        &mut text,
        seen,
        "lockfiles",
        |found| found.locks.iter().map(|lock| format!("**/{lock}")).collect(),
        "lock files pin what is trusted; the package manager writes them",
    );
    rule(
        &mut text,
        seen,
        "built",
        |found| found.built.iter().map(|built| format!("**/{built}/**")).collect(),
        "this is installed or built, change its source instead",
    );
    if !seen.scratch.is_empty() {
        text.push_str(
            "\n# At a mount (`exec`, `run --mount`) these are directories outside the workspace, for\n\
             # builds and installers: what is done in them is neither decided nor recorded.\n\
             [scratch]\npaths = [\n",
        );
        for pattern in &seen.scratch {
            let _ = writeln!(text, "    {},", quoted(pattern));
        }
        text.push_str("]\n");
    }
    text.push_str(
        "\n# Programs connect to no host, and each attempt is recorded: `portcullis policy learn`\n\
         # proposes rules of hosts. With a preset its hosts are allowed, until there is a rule here\n\
         # that allows or asks.\n\
         [network]\n",
    );
    if !seen.registries.is_empty() {
        let hosts: Vec<_> = seen.registries.iter().map(|host| quoted(host)).collect();
        let _ = write!(
            text,
            "# For builds that fetch packages. Somebody with a token of their own can publish there.\n\
             # [[network.rules]]\n# id = \"packages\"\n# effect = \"allow\"\n# hosts = [{}]\n\
             # ports = [443]\n",
            hosts.join(", ")
        );
    }
    text.push_str(
        "\n# What one session may do by ACP or MCP; beyond it an operation is denied.\n\
         [limits]\n\
         operationsPerSecond = 200\n\
         bytesWritten = \"200MiB\"\n\
         filesRemoved = 100\n\
         denials = 100\n\
         \n# What programs may do at a mount, in place of that.\n\
         [mount]\n\
         maxReadSize = \"256MiB\"\n\
         maxWriteSize = \"256MiB\"\n\
         bytesWritten = \"2GiB\"\n\
         filesRemoved = 1000\n\
         denials = 10000\n",
    );
    text
}

fn rule(
    text: &mut String,
    seen: &TreeFacts,
    id: &str,
    patterns: impl Fn(&Language) -> Vec<String>,
    reason: &str,
) {
    let patterns: BTreeSet<String> =
        seen.languages.iter().flat_map(|found| patterns(found)).collect();
    if patterns.is_empty() {
        return;
    }
    let _ = write!(
        text,
        "\n[[rules]]\nid = \"{id}\"\neffect = \"deny\"\n\
         operations = [\"write\", \"remove\", \"rename\"]\n\
         # They need not be there yet.\n\
         # lint: allow unmatched-glob\npaths = [\n"
    );
    for pattern in patterns {
        let _ = writeln!(text, "    \"{pattern}\",");
    }
    let _ = write!(text, "]\nreason = \"{reason}\"\n");
}

/// Writes tests that expect the decisions of the policy.
fn tests(policy: &Policy, questions: Vec<(EntryOperation, WorkspacePath)>) -> String {
    let mut text =
        "\n# What must stay as it is. Tests run at every load: a policy that fails one does\n\
        # not come into force.\n"
            .to_owned();
    let Ok(agent) = "agent".parse() else { return text };
    let mut seen = BTreeSet::new();
    for (entry_operation, path) in questions {
        let Ok(operation) = entry_operation.as_str().parse() else { continue };
        let kind = if entry_operation == EntryOperation::List {
            ObjectKind::Directory
        } else {
            ObjectKind::File
        };
        let object = Object { kind, links: 1, through_symlink: false };
        let decision = policy.decide(&agent, operation, &path, None, Some(&object));
        let shown = if path.is_root() { "." } else { path.as_str() };
        if path.has_hidden_characters() || !seen.insert((entry_operation, shown.to_owned())) {
            continue;
        }
        let _ = write!(
            text,
            "\n[[tests]]\noperation = \"{operation}\"\npath = {}\n\
             expect = {{ effect = \"{}\", rule = \"{}\" }}\n",
            quoted(shown),
            decision.effect(),
            decision.rule(),
        );
    }
    text
}

/// Quotes a TOML string. The escapes of JSON are valid in TOML, too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
