//! `portcullis audit check-bundle`: verifies a bundle.

mod form;

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read},
    path::PathBuf,
    process::ExitCode,
};

use portcullis_audit::{Hash, MAX_PROOF, PublicKey, parse_keys};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use zip::ZipArchive;

use super::heads;
use crate::{
    app::failure::{Context as _, Exit, Failure},
    cli::render,
    model::Escaped,
    operator_files,
    review::bundle::{
        BUNDLED_CHECKPOINT, BUNDLED_KEYS, BundleError, MANIFEST, Manifest, NEEDED, PROOF, Proven,
        RECORDS, is_member, prove,
    },
};

/// The maximum of bytes of a member other than the records.
const MAX_MEMBER: u64 = 16 << 20;

/// Check a bundle of evidence: members, records, proof, signature
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit check-bundle evidence.zip --key log.vkey\n\n\
    Without --key the bundle's own key is used, which does not prove who made the bundle. \
    `check.py` in the bundle does the same with Python alone.\n\n\
    Exit codes: 0 the bundle is valid, 5 it is not.")]
pub(super) struct Args {
    /// The archive
    #[arg(value_name = "FILE.zip")]
    file: PathBuf,
    /// The log's public key: a file, or its text
    #[arg(long, value_name = "FILE|KEY")]
    key: Vec<String>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let shown = args.file.display();
    let trusted = heads::keys(&args.key)?;
    let file = operator_files::open(&args.file).or_fail(format_args!("cannot read `{shown}`"))?;
    let (manifest, proven) = check(file, &trusted).map_err(|error| {
        Failure::new(format_args!("the bundle is not valid: {}", Escaped(&error.to_string())))
            .exit(Exit::Audit)
    })?;
    let (first, last) = (manifest.first, manifest.last);
    let (records, size, origin) =
        (proven.records, proven.checkpoint.size, &proven.checkpoint.origin);
    if args.json {
        let answer = json!({
            "valid": true, "first": first, "last": last, "records": records, "size": size,
            "origin": origin, "ownKey": trusted.is_empty(),
        });
        outjson!(answer);
        return Ok(ExitCode::SUCCESS);
    }
    outln!("valid: {} of the log of {size}", render::records(first, last));
    outln!("signed by {}", Escaped(origin));
    for policy in &proven.policies {
        if !manifest.files.contains_key(&policy_name(*policy)) {
            outln!("note: the text of policy {policy} is not in the bundle");
        }
    }
    if trusted.is_empty() {
        outln!("note: under the bundle's own key; give the one that you know with --key");
    }
    Ok(ExitCode::SUCCESS)
}

fn policy_name(hash: Hash) -> String {
    format!("policies/{hash}.toml")
}

fn check(mut file: File, trusted: &[PublicKey]) -> Result<(Manifest, Proven), BundleError> {
    form::check(&mut file)?;
    let damaged = |error: zip::result::ZipError| io::Error::other(error);
    let mut zip = ZipArchive::new(file).map_err(damaged)?;
    let manifest = Manifest::parse(&small(&mut zip, MANIFEST)?)?;
    let names: Result<BTreeSet<String>, _> =
        zip.file_names().map(|name| name.map(|name| name.into_owned())).collect();
    let members = names.map_err(damaged)?;
    for name in &members {
        if name != MANIFEST && !manifest.files.contains_key(name) {
            return Err(BundleError::member(name, "is not in the manifest"));
        }
    }
    for name in NEEDED {
        if !manifest.files.contains_key(name) {
            return Err(BundleError::member(name, "is not in the manifest"));
        }
    }
    for (name, hash) in &manifest.files {
        if !is_member(name) {
            return Err(BundleError::member(name, "is no member that a bundle has"));
        }
        let member =
            zip.by_name(name).map_err(|_missing| BundleError::member(name, "is missing"))?;
        let size = member.size();
        // The records of a whole log may be in it.
        if name != RECORDS && size > MAX_MEMBER {
            return Err(BundleError::member(name, "is too large"));
        }
        let (found, bytes) = hash_of(member.take(size + 1))
            .map_err(|_io| BundleError::member(name, "cannot be unpacked"))?;
        // Other programs unpack only the announced number of bytes.
        if bytes != size {
            return Err(BundleError::member(name, "has another size than the archive says"));
        }
        if found != *hash {
            return Err(BundleError::member(name, "was changed"));
        }
        let policy = name.strip_prefix("policies/").and_then(|rest| rest.strip_suffix(".toml"));
        if policy.is_some_and(|policy| policy != found.to_string()) {
            return Err(BundleError::member(name, "is not the policy of its name"));
        }
    }
    let own = small(&mut zip, BUNDLED_KEYS)?;
    let checkpoint = small(&mut zip, BUNDLED_CHECKPOINT)?;
    let bundled;
    let keys = if trusted.is_empty() {
        bundled = parse_keys(&String::from_utf8_lossy(&own))
            .map_err(|error| BundleError::member(BUNDLED_KEYS, error.to_string()))?;
        &bundled
    } else {
        trusted
    };
    let proof = small(&mut zip, PROOF)?;
    if proof.len() > MAX_PROOF {
        return Err(BundleError::member(PROOF, "is too large"));
    }
    let records = zip.by_name(RECORDS).map_err(damaged)?;
    let proven = prove(&manifest, records, &proof, keys)?;
    proven.agrees(keys, &own, &checkpoint)?;
    Ok((manifest, proven))
}

fn small(zip: &mut ZipArchive<File>, name: &str) -> Result<Vec<u8>, BundleError> {
    let member = zip.by_name(name).map_err(|_missing| BundleError::member(name, "is missing"))?;
    let mut bytes = Vec::new();
    member.take(MAX_MEMBER + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_MEMBER {
        return Err(BundleError::member(name, "is too large"));
    }
    Ok(bytes)
}

/// Returns the hash of the content, and its length in bytes.
fn hash_of(mut member: impl Read) -> io::Result<(Hash, u64)> {
    let mut read = 0;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = member.read(&mut buffer)?;
        if count == 0 {
            return Ok((Hash::from_bytes(hasher.finalize().into()), read));
        }
        read += count as u64;
        hasher.update(buffer.get(..count).unwrap_or_default());
    }
}
