//! Buffers for input from peers. They grow as input arrives. If the system has no more memory, the
//! sender is refused and the process continues.

use std::hint::black_box;

/// Size in bytes up to which a buffer grows without a check.
const MAX_UNCHECKED_SIZE: usize = 16 << 10;
/// Bytes that must stay free for everything else when a large buffer grows: most allocations cannot
/// fail gracefully. It exceeds the 32 MiB up to which glibc adapts its thresholds to freed sizes
/// (mallopt(3)).
const MIN_FREE_MEMORY: usize = 64 << 20;

/// True if the system has memory for this number of bytes and for everything else.
pub fn is_free(bytes: usize) -> bool {
    let mut probe = Vec::<u8>::new();
    let is_free = probe.try_reserve_exact(bytes.saturating_add(MIN_FREE_MEMORY)).is_ok();
    // The compiler would remove an unused probe.
    black_box(&probe);
    is_free
}

/// Reserves `more` bytes in a buffer of at most `max` bytes; false if the system has no memory. The
/// buffer at most doubles, so that an announced length alone allocates nothing.
pub fn grow(buffer: &mut Vec<u8>, more: usize, max: usize) -> bool {
    if buffer.capacity().saturating_sub(buffer.len()) >= more {
        return true;
    }
    let left = max.saturating_sub(buffer.len());
    let more = more.max(buffer.len().min(left));
    let is_large = buffer.len().saturating_add(more) > MAX_UNCHECKED_SIZE;
    (!is_large || is_free(more)) && buffer.try_reserve_exact(more).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_at_most_doubles_and_never_passes_its_maximum() {
        let mut buffer = Vec::new();
        assert!(grow(&mut buffer, 10, 1 << 40));
        assert!(buffer.capacity() < 1024);
        buffer.resize(100_000, 0);
        buffer.shrink_to_fit();
        assert!(grow(&mut buffer, 1, 1 << 40));
        assert_eq!(buffer.capacity(), 200_000);
        buffer.resize(200_000, 0);
        assert!(grow(&mut buffer, 1, 200_010));
        assert_eq!(buffer.capacity(), 200_010);
    }

    #[test]
    fn more_memory_than_the_system_has_is_refused() {
        assert!(!is_free(usize::MAX) && !is_free(1 << 60));
        assert!(!grow(&mut vec![0; 10], 1 << 60, usize::MAX));
    }
}
