//! Conversion of a message's fields to a request, and of the request's result to a
//! reply.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    gateway::{Changed, Client, ErrorKind, Gateway, Refusal, Request},
    model::{
        Encoding, LineRange, Session, WorkspacePath,
        request::{List, Mkdir, Read, Remove, Rename, Stat, Write},
    },
};

use super::{reply::Reply, wire::Fields};

/// A request with the path as the client wrote it.
pub(super) struct ParsedRequest {
    request: ChannelRequest,
    shown: String,
}

/// A request to the gateway.
enum ChannelRequest {
    List(List),
    Read(Read),
    Stat(Stat),
    Change(Box<dyn Request<Output = Changed>>),
}

/// A message that did not become a request.
#[derive(Debug)]
pub(super) struct InvalidRequest {
    /// The operation for the record.
    pub(super) op: String,
    pub(super) path: Option<String>,
    pub(super) refusal: Refusal,
    /// The error text for the client, if it differs from the refusal's.
    pub(super) client_message: Option<String>,
}

impl ParsedRequest {
    /// Builds the request from the fields that its type has.
    pub(super) fn new(mut fields: Fields<'_>) -> Result<Self, InvalidRequest> {
        let kind = std::mem::take(&mut fields.kind);
        let op = match kind.as_str() {
            "list" | "read" | "write" | "mkdir" | "rename" | "stat" => kind.clone(),
            "delete" => "remove".to_owned(),
            _ => {
                let client_message = format!("the channel `files` has no type `{kind}`");
                let op = format!("files {kind}");
                return Err(InvalidRequest {
                    op,
                    path: None,
                    refusal: Refusal::Method,
                    client_message: Some(client_message),
                });
            }
        };
        let path = |name: &str, value: &Option<Cow<'_, str>>| path(&op, name, value.as_deref());
        let shown = |value: &Option<Cow<'_, str>>| value.as_deref().unwrap_or_default().to_owned();
        if kind == "rename" {
            let from = path("oldPath", &fields.old_path)?;
            let to = path("newPath", &fields.new_path)?;
            let request = ChannelRequest::Change(Box::new(Rename { from, to, replace: true }));
            return Ok(Self { request, shown: shown(&fields.old_path) });
        }
        let at = path("path", &fields.path)?;
        let request = match kind.as_str() {
            "list" => ChannelRequest::List(List { path: at }),
            "read" => {
                let (range, encoding) = (LineRange::default(), Encoding::Base64);
                ChannelRequest::Read(Read { path: at, range, encoding })
            }
            "stat" => ChannelRequest::Stat(Stat { path: at }),
            "mkdir" => {
                ChannelRequest::Change(Box::new(Mkdir { path: at, recursive: true, mode: None }))
            }
            "delete" => ChannelRequest::Change(Box::new(Remove { path: at, recursive: true })),
            _ => {
                let content = content(&mut fields)
                    .map_err(|reason| parameters(&op, fields.path.as_deref(), reason))?;
                ChannelRequest::Change(Box::new(Write { path: at, content, mode: None }))
            }
        };
        Ok(Self { request, shown: shown(&fields.path) })
    }

    /// Sends the request to the gateway, and renders the result.
    pub(super) fn send(
        self,
        gateway: &Gateway,
        session: &Session,
        client: Client<'_>,
        reply: &Reply<'_>,
    ) -> Vec<u8> {
        let Self { request, shown } = self;
        let answer = match request {
            ChannelRequest::List(list) => {
                gateway.handle(session, &list, client).map(|done| reply.entries(&done))
            }
            ChannelRequest::Read(read) => {
                gateway.handle(session, &read, client).map(|done| reply.content(&done))
            }
            ChannelRequest::Stat(stat) => gateway
                .handle(session, &stat, client)
                .map(|done| reply.stat(&done, &shown, stat.path.file_name().unwrap_or_default())),
            ChannelRequest::Change(change) => {
                gateway.handle(session, &*change, client).map(|done| reply.changed(&done.receipt))
            }
        };
        answer.unwrap_or_else(|error| {
            let client_message =
                (error.kind() == ErrorKind::NotFound).then(|| format!("File not found: {shown}"));
            reply.failed(&error, client_message.as_deref())
        })
    }
}

/// Parses a path, with or without a leading slash.
fn path(op: &str, name: &str, text: Option<&str>) -> Result<WorkspacePath, InvalidRequest> {
    let Some(text) = text else {
        return Err(parameters(op, None, format!("`{name}` is missing")));
    };
    WorkspacePath::parse(text.trim_start_matches('/')).map_err(|error| InvalidRequest {
        op: op.to_owned(),
        path: Some(text.to_owned()),
        refusal: Refusal::Path(error),
        client_message: None,
    })
}

fn content(fields: &mut Fields<'_>) -> Result<Vec<u8>, String> {
    let content = fields.content.take().ok_or_else(|| "`content` is missing".to_owned())?;
    match fields.encoding.as_deref() {
        None | Some("utf-8") => Ok(content.into_owned().into_bytes()),
        Some("base64") => {
            STANDARD.decode(content.as_bytes()).map_err(|_| "`content` is not base64".to_owned())
        }
        Some(_) => Err("`encoding` must be `utf-8` or `base64`".to_owned()),
    }
}

fn parameters(op: &str, path: Option<&str>, reason: String) -> InvalidRequest {
    let (op, path) = (op.to_owned(), path.map(str::to_owned));
    InvalidRequest { op, path, refusal: Refusal::Parameters(reason), client_message: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Operation;

    fn path_of(request: &ParsedRequest) -> &str {
        let path = match &request.request {
            ChannelRequest::List(list) => &list.path,
            ChannelRequest::Read(read) => &read.path,
            ChannelRequest::Stat(stat) => &stat.path,
            ChannelRequest::Change(change) => change.as_operation().path(),
        };
        path.as_str()
    }

    fn fields(kind: &str, path: &'static str) -> Fields<'static> {
        Fields { kind: kind.to_owned(), path: Some(path.into()), ..Fields::default() }
    }

    #[test]
    fn paths_are_relative_to_the_root_with_or_without_a_slash() {
        for path in ["src/a", "/src/a", "//src/./a/"] {
            let request = ParsedRequest::new(fields("read", path)).unwrap();
            assert_eq!(path_of(&request), "src/a", "{path}");
            assert_eq!(request.shown, path);
        }
        for path in ["/", "", "."] {
            assert_eq!(path_of(&ParsedRequest::new(fields("list", path)).unwrap()), "");
        }
        let invalid = ParsedRequest::new(fields("read", "/../etc/passwd")).err().unwrap();
        assert!(matches!(invalid.refusal, Refusal::Path(_)));
    }

    #[test]
    fn content_is_text_or_base64() {
        let write = |encoding: Option<&'static str>, content: &'static str| {
            let mut fields = fields("write", "a");
            fields.encoding = encoding.map(Into::into);
            fields.content = Some(content.into());
            let request = ParsedRequest::new(fields).map_err(|invalid| invalid.refusal)?;
            let ChannelRequest::Change(change) = &request.request else { panic!("no change") };
            let Operation::Write(write) = change.as_operation() else { panic!("no write") };
            Ok::<_, Refusal>(write.content.clone())
        };
        assert_eq!(write(None, "é").unwrap(), "é".as_bytes());
        assert_eq!(write(Some("base64"), "AP8=").unwrap(), [0, 255]);
        assert!(write(Some("base64"), "AP8").is_err());
        assert!(write(Some("utf-16"), "a").is_err());
        assert!(ParsedRequest::new(fields("write", "a")).is_err());
        assert!(ParsedRequest::new(fields("chmod", "a")).is_err());
    }
}
