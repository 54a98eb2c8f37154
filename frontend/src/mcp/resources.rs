//! The workspace's files as `file://` resources: listed and read through the
//! same gate as everything, each on record.

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
    gateway::{self, ErrorKind, Refusal},
    model::{Access, Encoding, GlobQuery, LineRange, OperationKind, WorkspacePath},
    ops::EntryKind,
    paths::{NotInside, Roots},
    policy::Query,
};

use super::{
    answer::{self, Trouble},
    call::Call,
    tools,
};

/// Most resources on a page.
const PAGE: usize = 500;
/// Most entries of which the gate finds the files.
const MOST: u64 = 100_000;
const SCHEME: &str = "file://";

/// Why a request about resources gives nothing.
pub(super) type Refused = ErrorData;

/// A page of the files that may be listed and read, by path. The cursor is the
/// last path of the page before.
pub(super) fn list(
    call: &Call<'_>,
    request: Option<PaginatedRequestParams>,
) -> Result<ListResourcesResult, Refused> {
    let cursor = request.and_then(|request| request.cursor);
    let after = match cursor.as_deref().map(after) {
        Some(None) => {
            let why = "the cursor is none that was given".to_owned();
            return Err(refuse(call, "resources/list", None, &Refusal::Parameters(why)));
        }
        after => after.flatten(),
    };
    let query = GlobQuery { pattern: "**".to_owned(), max_results: Some(MOST), gitignore: false };
    let found =
        call.glob(WorkspacePath::root(), query).map_err(|trouble| said(call, trouble, None))?;
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
    for entry in files.by_ref().take(PAGE) {
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
        // There are more than can be listed.
        meta.0.insert("portcullis/search".to_owned(), json!({ "stopped": stopped.as_str() }));
    }
    result.meta = Some(meta);
    Ok(result)
}

/// How resources are named.
pub(super) fn templates(roots: &Roots) -> ListResourceTemplatesResult {
    let template = format!("{}/{{+path}}", uri(roots, &WorkspacePath::root()));
    let template = ResourceTemplate::new(template, "file")
        .with_title("A file of the workspace")
        .with_description("Percent-encoded path relative to the workspace");
    ListResourceTemplatesResult::with_all_items(vec![template])
}

/// A file's content.
pub(super) fn read(call: &Call<'_>, uri: &str) -> Result<ReadResourceResult, Refused> {
    let path = path(call, OperationKind::Read, uri)?;
    let content = call
        .read_at(path.clone(), LineRange::default(), Encoding::Base64)
        .map_err(|trouble| said(call, trouble, Some(uri)))?;
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

/// The path that a URI names; a refusal is on record.
pub(super) fn path(
    call: &Call<'_>,
    kind: OperationKind,
    uri: &str,
) -> Result<WorkspacePath, Refused> {
    let refusal = match parse(call.roots, uri) {
        Some(Ok(path)) => return Ok(path),
        Some(Err(NotInside::Path(error))) => Refusal::Path(error),
        Some(Err(_)) => Refusal::Outside,
        None => Refusal::Parameters("the URI is no `file://` URI".to_owned()),
    };
    Err(refuse(call, kind.as_str(), Some(uri), &refusal))
}

/// The path that a URI names; `None` when it is not one of ours.
pub(super) fn parse(roots: &Roots, uri: &str) -> Option<Result<WorkspacePath, NotInside>> {
    let rest = uri.strip_prefix(SCHEME)?;
    // An authority would be another machine's.
    let encoded = rest.strip_prefix("localhost").unwrap_or(rest);
    let decoded = decode(encoded).filter(|path| path.starts_with('/'))?;
    Some(roots.relative(&decoded))
}

/// The URI of a path.
pub(super) fn uri(roots: &Roots, path: &WorkspacePath) -> String {
    let mut uri = SCHEME.to_owned();
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

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = str::from_utf8(&digits).ok()?;
                let hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| hex)?);
            }
            b'?' | b'#' => return None,
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

fn after(cursor: &str) -> Option<WorkspacePath> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    WorkspacePath::parse(&text).ok()
}

fn receipts(call: &Call<'_>) -> MetaObject {
    answer::meta(&call.receipts.borrow(), None)
}

/// Refuses what never became an operation.
fn refuse(call: &Call<'_>, op: &str, path: Option<&str>, refusal: &Refusal) -> Refused {
    error(&call.gateway.refuse(call.session, op, path, refusal), path)
}

fn said(call: &Call<'_>, trouble: Trouble, uri: Option<&str>) -> Refused {
    match trouble {
        Trouble::Gate(refused) => error(&refused, uri),
        Trouble::Arguments(why) | Trouble::Said(why) => {
            refuse(call, "resources", uri, &Refusal::Parameters(why))
        }
    }
}

/// What went wrong, as the protocol has it: a resource that is not there is
/// told apart only where the policy let us look.
pub(super) fn error(refused: &gateway::Error, uri: Option<&str>) -> Refused {
    let code = match refused.kind() {
        ErrorKind::NotFound => ErrorCode::RESOURCE_NOT_FOUND,
        ErrorKind::Io | ErrorKind::Unavailable | ErrorKind::NoSpace | ErrorKind::Conflict => {
            ErrorCode::INTERNAL_ERROR
        }
        _ => ErrorCode::INVALID_PARAMS,
    };
    let mut details = answer::describe(refused);
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
            assert_eq!(parse(&roots, &uri), Some(Ok(path)));
        }
        let parse = |uri: &str| parse(&roots, uri);
        for none in [
            "",
            "/a",
            "http://x/a",
            "file:/a",
            "file://host/a",
            "file:///a%2",
            "file:///a%+1",
            "file:///a?b",
        ] {
            assert_eq!(parse(none), None, "{none}");
        }
        assert_eq!(parse("file:///etc/passwd"), Some(Err(NotInside::Outside)));
        let up = "file:///home/a%20b/ws/%2e%2e/x";
        assert!(matches!(parse(up), Some(Err(NotInside::Path(_)))));
    }
}
