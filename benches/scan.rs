//! Speed of the search for secrets, on source code that has none.
//!
//! `cargo bench --bench scan` measures the rules of `secrets`. With
//! `PORTCULLIS_GITLEAKS=FILE` it measures the rules of that file too, and with
//! `PORTCULLIS_SOURCES=DIRECTORY` on the `.rs` files in it instead of on this
//! program's own. Processor time of one core;
//! what is promised is 400 MB/s with the embedded rules
//! and 80 MB/s with the public gitleaks file.
#![expect(clippy::print_stdout, reason = "prints what was measured")]
#![expect(clippy::disallowed_methods, reason = "the sources and rules to measure with")]

use std::{
    hint::black_box,
    path::{Path, PathBuf},
    time::Instant,
};

use portcullis::{
    model::WorkspacePath,
    policy::{Loaded, Loader, Policy, PolicySource, SecretKey, Subject, compile},
};

/// Bytes to look through per rule set.
const CORPUS: usize = 16 << 20;
/// The best of these counts.
const ROUNDS: usize = 7;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let sources = std::env::var_os("PORTCULLIS_SOURCES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), PathBuf::from);
    let corpus = corpus(&sources)?;
    println!("{} files, {} bytes of {}", corpus.len(), size(&corpus), sources.display());
    let text = "schema = 1\nextends = [\"secrets\"]\n";
    measure("embedded rules", &PolicySource::from_text("embedded", text), &corpus)?;
    match std::env::var("PORTCULLIS_GITLEAKS") {
        Ok(file) => {
            let text = format!(
                "schema = 1\n[secrets]\nrulesets = [{{ file = '{file}', format = \"gitleaks\" }}]\n"
            );
            let entry =
                Loaded { id: "p".to_owned(), name: "p".to_owned(), bytes: text.into_bytes() };
            measure("gitleaks rules", &PolicySource::load(entry, &mut Files), &corpus)?;
        }
        Err(_) => println!("gitleaks rules: name a file with PORTCULLIS_GITLEAKS"),
    }
    Ok(())
}

struct Files;

impl Loader for Files {
    fn load(&mut self, _from: &str, reference: &str) -> Result<Loaded, String> {
        let bytes = std::fs::read(reference).map_err(|error| error.to_string())?;
        Ok(Loaded { id: reference.to_owned(), name: reference.to_owned(), bytes })
    }
}

fn measure(name: &str, source: &PolicySource, corpus: &[Vec<u8>]) -> Outcome<()> {
    let begun = Instant::now();
    let policy: Policy = compile(source)?;
    let compiled = begun.elapsed();
    let secrets = policy.secrets().ok_or("the policy has no rules")?;
    let (path, key) = (WorkspacePath::parse("src/file.rs")?, SecretKey::new(&[0; 32]));
    let subject = Subject { path: &path, key: &key, overdue: &|| false };
    // Files in which something is found would measure redaction instead.
    let clean: Vec<&Vec<u8>> = corpus
        .iter()
        .filter(|file| secrets.disclose(&subject, (*file).clone()).findings.is_empty())
        .collect();
    let bytes: usize = clean.iter().map(|file| file.len()).sum();
    let mut best = u64::MAX;
    for _ in 0..ROUNDS {
        let copies: Vec<Vec<u8>> = clean.iter().map(|file| (*file).clone()).collect();
        let begun = processor_time()?;
        for file in copies {
            let _ = black_box(secrets.disclose(&subject, black_box(file)));
        }
        best = best.min(processor_time()? - begun);
    }
    // Bytes in a microsecond are megabytes in a second.
    let speed = bytes as u64 * 1000 / best.max(1);
    println!(
        "{name}: {} rules compiled in {:.1} ms; {speed} MB/s over {} files, {bytes} bytes",
        secrets.rules(),
        compiled.as_secs_f64() * 1e3,
        clean.len(),
    );
    Ok(())
}

/// Returns the processor time of this thread, in nanoseconds: other work on the
/// machine does not count (`/proc/PID/schedstat`, first field).
fn processor_time() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().ok_or("no time")?.parse()?)
}

/// Source files, over and over until there are enough bytes.
fn corpus(directory: &Path) -> Outcome<Vec<Vec<u8>>> {
    let (mut open, mut files) = (vec![directory.to_owned()], Vec::new());
    while let Some(path) = open.pop() {
        for entry in std::fs::read_dir(path)? {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            if kind.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(std::fs::read(path)?);
            }
        }
    }
    if size(&files) == 0 {
        return Err("there are no `.rs` files".into());
    }
    let mut corpus = Vec::new();
    let mut total = 0;
    for file in files.iter().cycle() {
        if total >= CORPUS {
            break;
        }
        total += file.len();
        corpus.push(file.clone());
    }
    Ok(corpus)
}

fn size(files: &[Vec<u8>]) -> usize {
    files.iter().map(Vec::len).sum()
}
