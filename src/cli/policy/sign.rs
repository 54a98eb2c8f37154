//! `portcullis policy keygen`, `policy sign` and `policy verify`.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;

use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        new_file::NewFile,
        policy_loading::load_trusted,
    },
    config::{
        Operator,
        signature::{PolicyKey, SigningKey, signature_path},
    },
    model::Escaped,
    policy::is_name,
};

/// Generate a key that signs policies
///
/// The file has the private key; store it where no gateway runs. The public key
/// is printed as lines for `portcullis.toml`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy keygen -o ~/keys/policies.key")]
pub(super) struct KeygenArgs {
    /// The file to make; it must not exist
    #[arg(short, long, visible_alias = "out", value_name = "FILE")]
    output: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Sign a policy, with all that it extends, into FILE.sig
///
/// The policy must load, and its tests must pass. Whatever changes in it afterwards, or
/// in what it extends, needs another signature.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy sign mine.toml --key ~/keys/policies.key")]
pub(super) struct SignArgs {
    /// The policy file
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    policy: String,
    /// The file of the private key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Verify the signature of a policy, with all that it extends, in FILE.sig
///
/// This is the check of a start for which the configuration requires signatures. The policy must
/// load, too. A start also refuses a policy of which a newer version was in force with the state
/// directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis policy verify mine.toml --key ed25519:pSIfZQ…\n  \
    portcullis policy verify mine.toml             by the keys of the configuration")]
pub(super) struct VerifyArgs {
    /// The policy file
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    policy: String,
    /// A public key whose signature counts; may be given several times [default: `policyKeys`
    /// of the configuration]
    #[arg(long, value_name = "KEY")]
    key: Vec<PolicyKey>,
    /// The operator's configuration file [default: $XDG_CONFIG_HOME/portcullis/portcullis.toml,
    /// if it exists]
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_CONFIG")]
    config: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn verify(args: &VerifyArgs) -> Result<ExitCode, Failure> {
    check_is_policy(&args.policy)?;
    let policy_keys = match args.key.as_slice() {
        [] => Operator::load(args.config.as_deref()).map_err(Failure::new)?.policy_keys,
        keys => keys.to_vec(),
    };
    if policy_keys.is_empty() {
        return Err(Failure::new("there is no key to verify with")
            .help("name the public key with --key, or `policyKeys` in the configuration")
            .exit(Exit::Usage));
    }
    let operator = Operator { require_signature: true, policy_keys, ..Operator::default() };
    let loaded = load_trusted(&args.policy, &operator)?;
    let (policy, key) = (loaded.policy, loaded.signed_by.map(|key| key.to_string()));
    if args.json {
        outjson!(json!({
            "ok": true, "name": policy.name(), "version": policy.version(),
            "sha256": policy.sha256(), "public": key,
        }));
    } else {
        outln!(
            "{}: policy `{}` version {}, sha256 {}, signed by {}",
            Escaped(&args.policy),
            policy.name(),
            policy.version(),
            policy.sha256(),
            key.unwrap_or_default()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses the name of a signature or of a key in place of that of a policy.
fn check_is_policy(file: &str) -> Result<(), Failure> {
    let is = |what| {
        Failure::new(format_args!("`{}` is {what}, not a policy", Escaped(file))).exit(Exit::Usage)
    };
    if let Some(policy) = file.strip_suffix(".sig") {
        let failure = is("a signature");
        return Err(failure.help(format_args!("name the policy itself: `{}`", Escaped(policy))));
    }
    match SigningKey::read(Path::new(file)) {
        Ok(_) => Err(is("a private key").help("store it where no gateway runs; name the policy")),
        Err(_) => Ok(()),
    }
}

pub(super) fn keygen(args: &KeygenArgs) -> Result<ExitCode, Failure> {
    let shown = args.output.display();
    let key = SigningKey::generate().or_fail("cannot make a key")?;
    let fresh = NewFile::private(&args.output)?;
    key.write(fresh.file()).and_then(|()| fresh.keep()).map_err(|error| {
        let failure = Failure::new(format_args!("cannot write the key `{shown}`: {error}"));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                failure.help("name a file that is not there yet: a key is never written over")
            }
            _ => failure,
        }
    })?;
    let public = key.public().to_string();
    if args.json {
        outjson!(json!({ "ok": true, "key": shown.to_string(), "public": public }));
    } else {
        errln!("portcullis: wrote the private key `{shown}`; for portcullis.toml:");
        outln!("requireSignature = true\npolicyKeys = [\"{public}\"]");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn sign(args: &SignArgs) -> Result<ExitCode, Failure> {
    if is_name(&args.policy) {
        return Err(Failure::new("an embedded policy has no file to sign")
            .help("`portcullis policy show NAME > FILE.toml` makes one")
            .exit(Exit::Usage));
    }
    check_is_policy(&args.policy)?;
    let key = SigningKey::read(&args.key)
        .or_fail(format_args!("cannot read the key `{}`", args.key.display()))
        .map_err(|failure| failure.help("`portcullis policy keygen -o FILE` makes one"))?;
    let policy = load_trusted(&args.policy, &Operator::default())?.policy;
    let path = signature_path(Path::new(&args.policy));
    let (fresh, text) = (NewFile::create(&path)?, key.sign(policy.sha256()));
    let written = fresh.file().write_all(text.as_bytes()).and_then(|()| fresh.keep());
    written.or_fail(format_args!("cannot write the signature `{}`", path.display()))?;
    if args.json {
        let object = json!({
            "ok": true,
            "signature": path,
            "sha256": policy.sha256(),
            "version": policy.version(),
            "public": key.public().to_string(),
        });
        outjson!(object);
    } else {
        outln!(
            "{}: policy `{}` version {}, sha256 {}, by {}",
            Escaped(&path.display().to_string()),
            policy.name(),
            policy.version(),
            policy.sha256(),
            key.public()
        );
    }
    Ok(ExitCode::SUCCESS)
}
