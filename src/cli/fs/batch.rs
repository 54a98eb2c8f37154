//! `portcullis fs batch`, and `fs read` of several files.

use std::{
    io::{self, Read as _},
    process::ExitCode,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{local_gateway::LocalGateway, render};
use crate::{
    app::{
        failure::{Context as _, Exit, Failure},
        output,
    },
    gateway::{BatchError, Changed, ContentChange, Error, Reply},
    model::{
        Encoding, LineRange, OperationKind,
        request::{Append, Edit, Read, Write},
    },
};

/// Longest list of changes that is read, in bytes.
const MAX_INPUT: u64 = 256 << 20;

/// Make several changes of content: all or none
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The changes come on stdin as a JSON array of objects with `op`, `path` and \
    `content` or `base64`\n(`write`, `append`), or `old` and `new` (`edit`): at most one for each file, \
    and at most 100. They\nare decided together. If one cannot be made, those before it are taken back.\n\nExamples:\n  \
    portcullis fs batch < changes.json\n  \
    echo '[{\"op\":\"write\",\"path\":\"a.txt\",\"content\":\"a\"}, \
    {\"op\":\"edit\",\"path\":\"b.txt\",\"old\":\"x\",\"new\":\"y\"}]' | portcullis fs batch"
)]
pub(super) struct BatchArgs {}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", deny_unknown_fields)]
enum BatchLine {
    Write { path: String, content: Option<String>, base64: Option<String> },
    Append { path: String, content: Option<String>, base64: Option<String> },
    Edit { path: String, old: String, new: String },
}

/// Prints several files one after the other, as far as they may be read. The exit
/// code is that of the first that may not.
pub(super) fn read(
    local: LocalGateway,
    texts: &[String],
    range: LineRange,
    encoding: Encoding,
    json: bool,
) -> Result<ExitCode, Failure> {
    let mut exit = None;
    let mut answers = Vec::new();
    let read = OperationKind::Read.as_str();
    let paths: Vec<_> = texts.iter().map(|text| local.path(read, text)).collect();
    for (text, path) in texts.iter().zip(paths) {
        let answer = path.and_then(|path| local.handle(&Read { path, range, encoding }));
        let mut object = match &answer {
            Ok(reply) => render::reply_json(reply),
            Err(error) => render::error_json(error),
        };
        if let Value::Object(object) = &mut object {
            object.insert("path".to_owned(), text.as_str().into());
        }
        match answer {
            Ok(_) if json => {}
            Ok(reply) => {
                match encoding {
                    Encoding::Text => output::raw(&reply.output.bytes),
                    Encoding::Base64 => outln!("{}", STANDARD.encode(&reply.output.bytes)),
                }
                errln!("read {text}: record {}", render::receipt_text(&reply.receipt));
            }
            Err(error) => {
                let code = render::exit(&error);
                if !json {
                    render::report_error(&format!("read {text}"), &error, false);
                }
                exit = exit.or(Some(code));
            }
        }
        if json {
            answers.push(object);
        }
    }
    local.close()?;
    if json {
        outjson!(json!({ "ok": exit.is_none(), "files": answers }));
    }
    Ok(exit.unwrap_or(ExitCode::SUCCESS))
}

/// Passes the changes on stdin to the gateway together, and prints the results.
pub(super) fn batch(local: LocalGateway, json: bool) -> Result<ExitCode, Failure> {
    let put = put(&local);
    local.close()?;
    let (changes, answer) = put?;
    match answer {
        Ok(replies) if json => {
            let replies: Vec<_> = replies.iter().map(render::reply_json).collect();
            outjson!(json!({ "ok": true, "replies": replies }));
            Ok(ExitCode::SUCCESS)
        }
        Ok(replies) => {
            for (reply, change) in replies.iter().zip(&changes) {
                let operation = change.as_operation();
                let record = render::receipt_text(&reply.receipt);
                errln!("{} {}: record {record}", operation.kind(), operation.path());
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(BatchError { index, error }) => {
            if json {
                let mut object = render::error_json(&error);
                if let Value::Object(object) = &mut object {
                    object.insert("index".to_owned(), index.into());
                }
                outjson!(object);
                return Ok(render::exit(&error));
            }
            let number = index + 1;
            Ok(render::report_error(&format!("change {number} of the batch"), &error, false))
        }
    }
}

type BatchResult = Result<Vec<Reply<Changed>>, BatchError>;

/// Reads the changes and passes them to the gateway. The inner error is the
/// gateway's.
fn put(local: &LocalGateway) -> Result<(Vec<Box<dyn ContentChange>>, BatchResult), Failure> {
    let mut text = String::new();
    io::stdin()
        .lock()
        .take(MAX_INPUT)
        .read_to_string(&mut text)
        .or_fail("cannot read the changes from stdin")?;
    let usage = |error: String| {
        Failure::new(format_args!("the changes on stdin cannot be understood: {error}"))
            .help("`portcullis fs batch --help` shows what they look like")
            .exit(Exit::Usage)
    };
    let wanted: Vec<BatchLine> =
        serde_json::from_str(&text).map_err(|error| usage(error.to_string()))?;
    let mut changes = Vec::new();
    let mut refused = None;
    for (index, wanted) in wanted.into_iter().enumerate() {
        match change(local, wanted).map_err(usage)? {
            Ok(change) => changes.push(change),
            Err(error) => {
                refused = Some(BatchError { index, error });
                break;
            }
        }
    }
    let answer = match refused {
        Some(refused) => Err(refused),
        None => local.gateway().handle_together(local.session(), &changes),
    };
    Ok((changes, answer))
}

/// Builds a change; the inner error is the gateway's, the outer one is that of the
/// input's format.
fn change(
    local: &LocalGateway,
    wanted: BatchLine,
) -> Result<Result<Box<dyn ContentChange>, Error>, String> {
    let content = |content: Option<String>, base64: Option<String>| match (content, base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(code)) => STANDARD.decode(code).map_err(|error| error.to_string()),
        _ => Err("`content` or `base64` is needed, and only one of them".to_owned()),
    };
    let path = |kind: OperationKind, text: &str| local.path(kind.as_str(), text);
    Ok(match wanted {
        BatchLine::Write { path: text, content: plain, base64 } => {
            let content = content(plain, base64)?;
            path(OperationKind::Write, &text)
                .map(|path| Box::new(Write { path, content, mode: None }) as _)
        }
        BatchLine::Append { path: text, content: plain, base64 } => {
            let content = content(plain, base64)?;
            path(OperationKind::Append, &text).map(|path| Box::new(Append { path, content }) as _)
        }
        BatchLine::Edit { path: text, old, new } => {
            path(OperationKind::Edit, &text).map(|path| Box::new(Edit { path, old, new }) as _)
        }
    })
}
