//! The workspace's files as `file://` resources: listed and read through the
//! gateway, each on record.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rmcp::{
    ErrorData,
    model::{
        ErrorCode, ListResourceTemplatesResult, ListResourcesResult, MetaObject,
        PaginatedRequestParams, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
    },
};
use serde_json::json;

use crate::{
    gateway::{self, EntryKind, ErrorKind, Refusal},
    model::{
        Access, Encoding, GlobQuery, LineRange, OperationKind, WorkspacePath,
        request::{Glob, Read},
    },
    paths::{OutsideWorkspace, Roots},
    policy::Query,
};

use super::{
    call::Call,
    tool_result::{self, ToolError},
    tools,
};

/// Maximum of resources on a page.
const PAGE_SIZE: usize = 500;
/// Maximum of entries that the gateway lists.
const MAX_ENTRIES: u64 = 100_000;
const SCHEME: &str = "file";
/// Longest URI, in bytes: the longest path, each byte of it in three.
const MAX_URI: usize = "file://localhost".len() + 3 * 4096;

/// The error of a request about resources.
pub(super) type Refused = ErrorData;

/// Returns a page of the files that may be listed and read, by path. The cursor is
/// the last path of the page before.
pub(super) fn list(
    call: &Call<'_>,
    request: Option<PaginatedRequestParams>,
) -> Result<ListResourcesResult, Refused> {
    let cursor = request.and_then(|request| request.cursor);
    let after = match cursor.as_deref().map(after) {
        Some(None) => {
            let reason = "the cursor is not one that this server returned".to_owned();
            return Err(refuse(call, "resources/list", None, &Refusal::Parameters(reason)));
        }
        after => after.flatten(),
    };
    let query = GlobQuery {
        pattern: "**".to_owned(),
        max_results: Some(MAX_ENTRIES),
        ignored: true,
        ..GlobQuery::default()
    };
    let glob = Glob { path: WorkspacePath::root(), query };
    let found = call.put(&glob).map_err(|trouble| failure(call, trouble, None))?;
    let policy = call.gateway.policy();
    let readable = |path: &WorkspacePath| {
        let (agent, operation, access) = (&call.session.agent, OperationKind::Read, Access::Read);
        !policy.evaluate(&Query { agent, operation, access, path }).is_deny()
    };
    let mut files = found
        .entries
        .iter()
        .filter(|entry| after.as_ref().is_none_or(|after| entry.path > *after))
        .filter(|entry| entry.kind == EntryKind::File && readable(&entry.path));
    let mut resources = Vec::new();
    let mut last = None;
    for entry in files.by_ref().take(PAGE_SIZE) {
        let name = entry.path.file_name().unwrap_or_default();
        let uri = uri(call.roots, &entry.path);
        let mut resource = Resource::new(uri, name).with_title(entry.path.as_str());
        resource.size = entry.size;
        resources.push(resource);
        last = Some(&entry.path);
    }
    let mut result = ListResourcesResult::with_all_items(resources);
    if files.next().is_some() {
        result.next_cursor = last.map(|path| URL_SAFE_NO_PAD.encode(path.as_str()));
    }
    let mut meta = receipts(call);
    if let Some(stopped) = found.summary.stopped {
        // The limit left entries out.
        meta.0.insert("portcullis/search".to_owned(), json!({ "stopped": stopped.as_str() }));
    }
    result.meta = Some(meta);
    Ok(result)
}

/// Returns the URI template of resources.
pub(super) fn templates(roots: &Roots) -> ListResourceTemplatesResult {
    let template = format!("{}/{{+path}}", uri(roots, &WorkspacePath::root()));
    let template = ResourceTemplate::new(template, "file")
        .with_title("A file of the workspace")
        .with_description("Percent-encoded path relative to the workspace");
    ListResourceTemplatesResult::with_all_items(vec![template])
}

/// Reads a file's content.
pub(super) fn read(call: &Call<'_>, uri: &str) -> Result<ReadResourceResult, Refused> {
    let path = path(call, OperationKind::Read, uri)?;
    let (range, encoding) = (LineRange::default(), Encoding::Base64);
    let content = call
        .put(&Read { path: path.clone(), range, encoding })
        .map_err(|trouble| failure(call, trouble, Some(uri)))?;
    let mime = tools::mime(path.file_name().unwrap_or_default());
    let contents = match String::from_utf8(content.bytes) {
        Ok(text) if content.text => {
            let mime = if mime.starts_with("image/svg") { mime } else { "text/plain" };
            ResourceContents::text(text, uri).with_mime_type(mime)
        }
        Ok(text) => blob(text.as_bytes(), uri, mime),
        Err(error) => blob(error.as_bytes(), uri, mime),
    };
    let mut result = ReadResourceResult::new(vec![contents]);
    result.meta = Some(receipts(call));
    Ok(result)
}

fn blob(bytes: &[u8], uri: &str, mime: &str) -> ResourceContents {
    let bytes = base64::engine::general_purpose::STANDARD.encode(bytes);
    ResourceContents::blob(bytes, uri).with_mime_type(mime)
}

/// Returns the path that a URI names; a refusal is recorded.
pub(super) fn path(
    call: &Call<'_>,
    kind: OperationKind,
    uri: &str,
) -> Result<WorkspacePath, Refused> {
    parse(call.roots, uri).map_err(|not| {
        let refusal = match not {
            ForeignUri::Inside(OutsideWorkspace::Path(error)) => Refusal::Path(error),
            ForeignUri::Inside(_) => Refusal::Outside,
            ForeignUri::Uri(reason) => Refusal::Parameters(reason.to_owned()),
        };
        refuse(call, kind.as_str(), Some(uri), &refusal)
    })
}

/// The reason why a URI names nothing in the workspace.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ForeignUri {
    /// The URI is no usable `file:` URI, for this reason.
    Uri(&'static str),
    /// The URI names a path outside the workspace.
    Inside(OutsideWorkspace),
}

/// Parses the path of a URI (RFC 8089).
///
/// # Errors
/// The reason why it names nothing in the workspace.
pub(super) fn parse(roots: &Roots, uri: &str) -> Result<WorkspacePath, ForeignUri> {
    let decoded = encoded(uri).and_then(decode).map_err(ForeignUri::Uri)?;
    roots.relative(&decoded).map_err(ForeignUri::Inside)
}

/// Returns a URI's path, still percent-encoded.
fn encoded(uri: &str) -> Result<&str, &'static str> {
    if uri.len() > MAX_URI {
        return Err("the URI is longer than a path can be");
    }
    let (_, rest) = uri
        .split_once(':')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME))
        .ok_or("the URI is no `file:` URI")?;
    let path = match rest.strip_prefix("//") {
        Some(rest) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if !host.is_empty() && !host.eq_ignore_ascii_case("localhost") {
                return Err("the URI is about another machine");
            }
            path
        }
        None => rest,
    };
    if path.starts_with('/') { Ok(path) } else { Err("the URI has no absolute path") }
}

/// Returns the URI of a path.
pub(super) fn uri(roots: &Roots, path: &WorkspacePath) -> String {
    let mut uri = format!("{SCHEME}://");
    for byte in roots.absolute(path).bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                uri.push(char::from(byte));
            }
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

fn decode(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let decoded = rest.next().zip(rest.next()).and_then(hex);
                bytes.push(decoded.ok_or("a `%` in the URI is not followed by two digits")?);
            }
            b'?' | b'#' => {
                return Err("the URI has a query or a fragment; `?` is `%3F`, `#` `%23`");
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| "the URI's path is not UTF-8")
}

fn hex((high, low): (u8, u8)) -> Option<u8> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

fn after(cursor: &str) -> Option<WorkspacePath> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    WorkspacePath::parse(&text).ok()
}

fn receipts(call: &Call<'_>) -> MetaObject {
    tool_result::meta(&call.receipts.borrow(), None)
}

/// Refuses a request that did not become an operation.
fn refuse(call: &Call<'_>, op: &str, path: Option<&str>, refusal: &Refusal) -> Refused {
    error(&call.gateway.refuse(call.session, op, path, refusal), path)
}

fn failure(call: &Call<'_>, trouble: ToolError, uri: Option<&str>) -> Refused {
    match trouble {
        ToolError::Gateway(refused) => error(&refused, uri),
        ToolError::Arguments(reason) | ToolError::Said(reason) => {
            refuse(call, "resources", uri, &Refusal::Parameters(reason))
        }
    }
}

/// Converts an error to the protocol's. A missing resource is distinguished only
/// where the policy allowed the lookup.
pub(super) fn error(refused: &gateway::Error, uri: Option<&str>) -> Refused {
    let code = match refused.kind() {
        ErrorKind::NotFound => ErrorCode::RESOURCE_NOT_FOUND,
        ErrorKind::Io | ErrorKind::Unavailable | ErrorKind::NoSpace | ErrorKind::Conflict => {
            ErrorCode::INTERNAL_ERROR
        }
        _ => ErrorCode::INVALID_PARAMS,
    };
    let mut details = tool_result::describe(refused);
    if let (Some(uri), Some(details)) = (uri, details.as_object_mut()) {
        details.insert("uri".to_owned(), json!(uri));
    }
    ErrorData::new(code, refused.to_string(), Some(details))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn names_survive_being_uris() {
        let roots = Roots::new(Path::new("/home/a b/ws"), None);
        for name in ["a.txt", "dir/ż ó#?%2e.md", "100%/x", "a+b&c"] {
            let path = WorkspacePath::parse(name).unwrap();
            let uri = uri(&roots, &path);
            assert!(uri.is_ascii() && !uri.contains([' ', '#', '?']), "{uri}");
            assert_eq!(parse(&roots, &uri), Ok(path));
        }
        let parse = |uri: &str| parse(&roots, uri);
        let long = format!("file:///home/a%20b/ws/{}a", "/".repeat(MAX_URI));
        assert_eq!(parse(&long), Err(ForeignUri::Uri("the URI is longer than a path can be")));
        let mut reasons = std::collections::BTreeSet::new();
        for none in [
            &["", "/a", "http://x/a", "files:/a"][..],
            &["file:a", "file://", "file:", "file://localhost"],
            &["file://host/a", "file://localhosta/a"],
            &["file:///a%2", "file:///a%+1", "file:///a%zz"],
            &["file:///a?b", "file:///a#b"],
            &["file:///%ff"],
        ] {
            let reason: Vec<_> = none.iter().map(|uri| parse(uri).unwrap_err()).collect();
            assert!(
                matches!(reason[0], ForeignUri::Uri(_))
                    && reason.iter().all(|one| *one == reason[0])
            );
            reasons.insert(format!("{:?}", reason[0]));
        }
        assert_eq!(reasons.len(), 6, "{reasons:?}");
        assert_eq!(parse("file:///etc/passwd"), Err(ForeignUri::Inside(OutsideWorkspace::Outside)));
        let up = "file:///home/a%20b/ws/%2e%2e/x";
        assert!(matches!(parse(up), Err(ForeignUri::Inside(OutsideWorkspace::Path(_)))));
    }

    /// Such URIs used to be refused as no `file:` URIs.
    #[test]
    fn file_uris_may_be_spelled_as_their_rfc_has_them() {
        let roots = Roots::new(Path::new("/ws"), None);
        let path = WorkspacePath::parse("a.txt").unwrap();
        for uri in ["file:///ws/a.txt", "FILE:///ws/a.txt", "file:/ws/a.txt"] {
            assert_eq!(parse(&roots, uri), Ok(path.clone()), "{uri}");
        }
        for uri in ["file://localhost/ws/a.txt", "File://LocalHost/ws/%61.txt"] {
            assert_eq!(parse(&roots, uri), Ok(path.clone()), "{uri}");
        }
    }
}
