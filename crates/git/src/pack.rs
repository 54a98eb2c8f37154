//! Packs, without deltas.

use std::io::{self, Write};

use flate2::{Compression, write::ZlibEncoder};

use super::{Format, Object, ObjectKind};

/// Writes the objects as one pack, which `git unpack-objects` reads.
///
/// # Errors
/// If it cannot be written.
pub fn write_pack<'a>(
    format: Format,
    objects: impl ExactSizeIterator<Item = &'a Object>,
    mut out: impl Write,
) -> io::Result<()> {
    let count = u32::try_from(objects.len()).map_err(io::Error::other)?;
    let mut pack = [b"PACK".as_slice(), &2_u32.to_be_bytes(), &count.to_be_bytes()].concat();
    for object in objects {
        header(object, &mut pack);
        let mut packed = ZlibEncoder::new(pack, Compression::fast());
        packed.write_all(&object.bytes)?;
        pack = packed.finish()?;
    }
    let hash = format.hash(&[&pack]);
    out.write_all(&pack)?;
    out.write_all(&hash)?;
    out.flush()
}

/// Appends the kind and the size: four bits of it in the first byte, then seven in each.
fn header(object: &Object, pack: &mut Vec<u8>) {
    let kind = match object.kind {
        ObjectKind::Commit => 1,
        ObjectKind::Tree => 2,
        ObjectKind::Blob => 3,
    };
    let low = |size: usize, mask: usize| u8::try_from(size & mask).unwrap_or_default();
    let mut size = object.bytes.len();
    let mut byte = (kind << 4) | low(size, 0x0f);
    size >>= 4;
    while size > 0 {
        pack.push(byte | 0x80);
        byte = low(size, 0x7f);
        size >>= 7;
    }
    pack.push(byte);
}
