//! The editor's buffers, read and written by the editor's `fs/*` methods.
//!
//! Only the gateway calls them, after its decision, with canonical paths. They always transfer the
//! complete buffer: the gateway checks and slices it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    gateway::{BufferError, Buffers},
    model::WorkspacePath,
};

use super::{
    editor_requests::{Answer, EditorRequests, NoReply},
    initialize::EditorCapabilities,
    paths::Roots,
};

/// The code of a missing resource (ACP v1, `ErrorCode`).
const NOT_FOUND: i64 = -32002;

/// The editor as seen by one session.
pub(super) struct EditorBuffers<'a> {
    pub(super) editor_requests: &'a EditorRequests,
    pub(super) roots: &'a Roots,
    pub(super) session: &'a str,
    pub(super) offers: EditorCapabilities,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WriteTextFileParams<'a> {
    session_id: &'a str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

#[derive(Deserialize)]
struct Content {
    content: String,
}

#[derive(Deserialize)]
struct Failure {
    code: i64,
}

impl EditorBuffers<'_> {
    fn call(
        &self,
        method: &str,
        path: &WorkspacePath,
        content: Option<&str>,
    ) -> Result<Answer, BufferError> {
        let path = self.roots.absolute(path);
        self.editor_requests
            .call(method, &WriteTextFileParams { session_id: self.session, path, content })
            .map_err(|error| match error {
                NoReply::Timeout => BufferError::Timeout,
                NoReply::Gone => BufferError::Gone,
            })
    }
}

impl Buffers for EditorBuffers<'_> {
    fn read(&self, path: &WorkspacePath) -> Result<Option<Vec<u8>>, BufferError> {
        if !self.offers.read {
            return Err(BufferError::Unsupported("fs.readTextFile"));
        }
        match self.call("fs/read_text_file", path, None)? {
            Answer::Result(result) => match serde_json::from_str::<Content>(result.get()) {
                Ok(Content { content }) => Ok(Some(content.into_bytes())),
                Err(_) => Err(BufferError::Malformed),
            },
            Answer::Error(error) => match code(&error) {
                Some(NOT_FOUND) => Ok(None),
                other => Err(other.map_or(BufferError::Malformed, BufferError::Refused)),
            },
            Answer::Unreadable => Err(BufferError::Malformed),
        }
    }

    fn write(&self, path: &WorkspacePath, content: &[u8]) -> Result<(), BufferError> {
        if !self.offers.write {
            return Err(BufferError::Unsupported("fs.writeTextFile"));
        }
        let content = std::str::from_utf8(content)
            .map_err(|_| BufferError::Unsupported("content that is not UTF-8"))?;
        match self.call("fs/write_text_file", path, Some(content))? {
            Answer::Result(_) => Ok(()),
            Answer::Error(error) => {
                Err(code(&error).map_or(BufferError::Malformed, BufferError::Refused))
            }
            Answer::Unreadable => Err(BufferError::Malformed),
        }
    }
}

fn code(error: &RawValue) -> Option<i64> {
    serde_json::from_str(error.get()).ok().map(|Failure { code }| code)
}
