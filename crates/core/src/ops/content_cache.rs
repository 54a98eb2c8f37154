//! Cache of hashes of recently read contents.
//!
//! Agents read the same files repeatedly, and a comparison of bytes takes a small part of the time
//! of hashing them. Only the bytes count: no time, size or inode proves that a file did not change.

use std::{
    collections::HashMap,
    fmt,
    ops::RangeInclusive,
    sync::{Mutex, PoisonError},
};

use portcullis_audit::Hash;

use crate::model::WorkspacePath;

/// Sizes in bytes of one cached content, and of all together with their paths. A shorter one is
/// hashed as quickly as it is found.
const SIZES: RangeInclusive<usize> = 1024..=64 * 1024;
const MAX_CACHED_BYTES: usize = 1024 * 1024;

/// The last content at some paths, in bounded memory.
#[derive(Default)]
pub(crate) struct ContentCache(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    at: HashMap<WorkspacePath, (Box<[u8]>, Hash)>,
    bytes: usize,
}

impl ContentCache {
    /// Returns the hash of `content`, which was read at `path`.
    pub(super) fn hash(&self, path: &WorkspacePath, content: &[u8]) -> Hash {
        if !SIZES.contains(&content.len()) {
            return Hash::of(content);
        }
        // Each pair is correct by itself, also after a panic elsewhere.
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, hash)) = lock().at.get(path)
            && **known == *content
        {
            return *hash;
        }
        let hash = Hash::of(content);
        lock().keep(path, content, hash);
        hash
    }
}

impl Contents {
    fn keep(&mut self, path: &WorkspacePath, content: &[u8], hash: Hash) {
        if let Some((old, _)) = self.at.remove(path) {
            self.bytes -= cost(path, &old);
        }
        let cost = cost(path, content);
        if self.bytes + cost > MAX_CACHED_BYTES {
            // It is unknown which contents will be read again; those return to the cache.
            *self = Self::default();
        }
        self.bytes += cost;
        self.at.insert(path.clone(), (content.into(), hash));
    }
}

fn cost(path: &WorkspacePath, content: &[u8]) -> usize {
    path.as_str().len() + content.len()
}

/// Contents must not appear in debug output.
impl fmt::Debug for ContentCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(number: usize) -> WorkspacePath {
        WorkspacePath::parse(&format!("f{number}")).unwrap()
    }

    #[test]
    fn a_hash_is_of_the_bytes_that_were_read_now() {
        let known = ContentCache::default();
        let (one, other) = (vec![b'1'; 5000], vec![b'2'; 5000]);
        let longer = [&one[..], b"1"].concat();
        for content in [&one[..], &other, &one, &one, b"", &longer, &one[1..]] {
            assert_eq!(known.hash(&path(1), content), Hash::of(content));
            assert_eq!(known.hash(&path(2), content), Hash::of(content));
        }
    }

    #[test]
    fn however_much_is_read_little_is_kept() {
        let known = ContentCache::default();
        let content = vec![b'x'; *SIZES.end()];
        for number in 0..100 {
            for length in SIZES.step_by(10_000) {
                let content = &content[..length];
                assert_eq!(known.hash(&path(number), content), Hash::of(content));
            }
            let contents = known.0.lock().unwrap();
            let bytes: usize =
                contents.at.iter().map(|(path, (content, _))| cost(path, content)).sum();
            assert_eq!(contents.bytes, bytes);
            assert!(bytes <= MAX_CACHED_BYTES);
        }
        for length in [0, SIZES.start() - 1, SIZES.end() + 1] {
            let content = vec![b'x'; length];
            assert_eq!(known.hash(&path(1000), &content), Hash::of(&content));
        }
        assert!(!known.0.lock().unwrap().at.contains_key(&path(1000)));
    }
}
