//! `portcullis backup show`: prints a backup's content, or the names in a tree.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;

use super::entries::{entry_json, finish, named};
use crate::{
    app::{
        failure::{Context as _, Failure},
        new_file::Destination,
        options::Common,
        output::raw,
    },
    cli::{local_gateway::LocalGateway, render},
    gateway::{Backup, Recalled, Reply},
    model::{Encoding, Escaped, request::Recall},
    operator_files,
};

/// Print a backup, as the policy lets its path be read
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis backup show src/main.rs\n  \
    portcullis backup show 20261103T1201 -o /tmp/old.txt")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// An id, the beginning of one, or a path
    backup: String,
    /// Write the content to this file, outside the workspace
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the backup's description as one JSON object, without content
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    // Opened before the process confines itself, and truncated only when needed.
    let file = args.output.as_ref();
    let file = file.map(|path| OutputFile::open(path, &args.common.workspace)).transpose()?;
    let local = LocalGateway::open(&args.common)?;
    let answer = named(&local, "read", &args.backup).and_then(|entry| {
        let recall = Recall {
            path: entry.path.clone(),
            backup: entry.id.to_string(),
            encoding: Encoding::Base64,
        };
        let reply = local.handle(&recall)?;
        Ok((entry, reply))
    });
    finish(local, answer, args.json, |(entry, reply)| print(&args, file, &entry, reply))
}

/// The file for the content; removed if nothing was written to it.
struct OutputFile {
    file: File,
    /// Its destination, if it was created for this.
    made: Option<Destination>,
}

impl OutputFile {
    fn open(path: &Path, workspace: &Path) -> Result<Self, Failure> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let place = operator_files::canonicalize(path)
            .or_else(|_| operator_files::canonicalize(parent.unwrap_or(Path::new("."))));
        if let (Ok(place), Ok(workspace)) = (place, operator_files::canonicalize(workspace))
            && place.starts_with(workspace)
        {
            let shown = path.display();
            return Err(Failure::new(format_args!(
                "`{shown}` lies in the workspace, whose files are changed through the gateway"
            ))
            .help("name a file elsewhere, or use `portcullis backup restore ID --to PATH`"));
        }
        let failed = format!("cannot open `{}`", path.display());
        let at = Destination::open(path)?;
        match at.write(true) {
            Ok(file) => Ok(Self { file, made: Some(at) }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = at.write(false).or_fail(failed);
                let help = "name a file, and no link: an agent may have made that";
                Ok(Self { file: file.map_err(|failure| failure.help(help))?, made: None })
            }
            Err(error) => Err(Failure::new(format_args!("{failed}: {error}"))),
        }
    }

    fn write(mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all(bytes)?;
        self.made = None;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(at) = &self.made {
            // A confined process may not remove it: an empty file stays then.
            at.remove();
        }
    }
}

fn print(
    args: &Args,
    file: Option<OutputFile>,
    entry: &Backup,
    reply: Reply<Recalled>,
) -> Result<(), Failure> {
    if args.json {
        let mut backup = entry_json(entry);
        // The hash would confirm guesses of redacted text.
        let redacted = matches!(&reply.output, Recalled::Content(content) if content.redacted);
        if let (Some(object), false) = (backup.as_object_mut(), redacted) {
            object.insert("sha256".to_owned(), json!(entry.sha256));
        }
        outjson!(json!({ "ok": true, "receipt": reply.receipt, "backup": backup }));
        return Ok(());
    }
    let record = render::receipt_text(&reply.receipt);
    print_content(reply.output, file)?;
    // Not on stdout, where it would be taken for content.
    errln!("record {record}");
    Ok(())
}

fn print_content(recalled: Recalled, file: Option<OutputFile>) -> Result<(), Failure> {
    match (recalled, file) {
        (Recalled::Content(content), Some(file)) => {
            file.write(&content.bytes).or_fail("cannot write the file")?;
        }
        (Recalled::Content(content), None) if !io::stdout().is_terminal() => raw(&content.bytes),
        (Recalled::Content(content), None) => match String::from_utf8(content.bytes) {
            Ok(text) if content.text => {
                text.lines().for_each(|line| outln!("{}", Escaped(line)));
            }
            _ => {
                return Err(Failure::new("the backup is binary and not printed to a terminal")
                    .help("write it to a file with -o FILE"));
            }
        },
        (Recalled::Tree(_), Some(_)) => {
            return Err(Failure::new("a tree has no content of its own to write to a file")
                .help("put it somewhere with `portcullis backup restore --to PATH`"));
        }
        (Recalled::Tree(entries), None) => {
            entries.entries.iter().for_each(|entry| outln!("{}", render::path_line(entry)));
        }
    }
    Ok(())
}
