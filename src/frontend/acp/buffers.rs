//! The editor's buffers, read and written through the editor's own `fs/*`.
//!
//! Only ever called by the gateway, after its decision, with canonical paths.
//! Always the whole buffer: the gate checks and slices itself.

use serde::{Deserialize, Serialize};

use crate::{
    model::WorkspacePath,
    ops::{BufferError, Buffers},
};

use super::{
    calls::{Answer, Calls},
    initialize::Offers,
    paths::Roots,
};

/// The resource was not found (ACP v1, `ErrorCode`).
const NOT_FOUND: i64 = -32002;

/// One session's view of the editor.
pub(super) struct EditorBuffers<'a> {
    pub(super) calls: &'a Calls,
    pub(super) roots: &'a Roots,
    pub(super) session: &'a str,
    pub(super) offers: Offers,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
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
        self.calls
            .call(method, &Params { session_id: self.session, path, content })
            .map_err(|error| BufferError(error.to_string()))
    }
}

impl Buffers for EditorBuffers<'_> {
    fn read(&self, path: &WorkspacePath) -> Result<Option<Vec<u8>>, BufferError> {
        if !self.offers.read {
            return Err(unavailable("the editor does not offer `fs.readTextFile`"));
        }
        match self.call("fs/read_text_file", path, None)? {
            Answer::Result(result) => match serde_json::from_str::<Content>(result.get()) {
                Ok(Content { content }) => Ok(Some(content.into_bytes())),
                Err(_) => Err(unavailable("the editor's answer has no content")),
            },
            Answer::Error(error) => match serde_json::from_str(error.get()) {
                Ok(Failure { code: NOT_FOUND }) => Ok(None),
                // The editor's message may hold host paths or content.
                _ => Err(unavailable("the editor could not read the file")),
            },
            Answer::Unreadable => Err(unavailable("the editor's answer cannot be read")),
        }
    }

    fn write(&self, path: &WorkspacePath, content: &[u8]) -> Result<(), BufferError> {
        if !self.offers.write {
            return Err(unavailable("the editor does not offer `fs.writeTextFile`"));
        }
        let content = std::str::from_utf8(content)
            .map_err(|_| unavailable("an editor takes UTF-8 text only"))?;
        match self.call("fs/write_text_file", path, Some(content))? {
            Answer::Result(_) => Ok(()),
            Answer::Error(_) => Err(unavailable("the editor could not write the file")),
            Answer::Unreadable => Err(unavailable("the editor's answer cannot be read")),
        }
    }
}

fn unavailable(why: &str) -> BufferError {
    BufferError(why.to_owned())
}
