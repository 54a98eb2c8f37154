//! Binary files as blocks of content.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmcp::model::{ContentBlock, ResourceContents};

use crate::{model::WorkspacePath, paths::Roots};

use super::super::resources::uri;

/// Returns the MIME type of a file with this name.
pub(in super::super) fn mime(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref() {
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        Some("bmp") => "image/bmp",
        Some("svg") => "image/svg+xml",
        Some("mp3") => "audio/mpeg",
        Some("wav") => "audio/wav",
        Some("ogg") => "audio/ogg",
        Some("flac") => "audio/flac",
        _ => "application/octet-stream",
    }
}

/// True if the file's type is an image or audio.
pub(super) fn is_media(path: &WorkspacePath) -> bool {
    mime(path.file_name().unwrap_or_default()) != mime("")
}

/// Returns a file's bytes as base64, in a block of their type.
pub(super) fn block(roots: &Roots, path: &WorkspacePath, bytes: &[u8]) -> ContentBlock {
    let kind = mime(path.file_name().unwrap_or_default());
    let data = STANDARD.encode(bytes);
    match kind.split('/').next() {
        Some("image") => ContentBlock::image(data, kind),
        Some("audio") => ContentBlock::audio(data, kind),
        _ => {
            let blob = ResourceContents::blob(data, uri(roots, path));
            ContentBlock::resource(blob.with_mime_type(kind))
        }
    }
}
