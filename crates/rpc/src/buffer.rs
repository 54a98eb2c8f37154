//! Buffers for input from peers. They grow as it arrives; where the system has no
//! memory for more, the sender is refused and the process goes on.

use std::hint::black_box;

/// Up to this size a buffer just grows, in bytes.
const SMALL: usize = 16 << 10;
/// What must stay free for everything else when a large buffer grows, in bytes: for
/// most allocations there is no way to go on without. More than the 32 MiB up to
/// which glibc changes how it allocates by what is freed (mallopt(3)).
const RESERVE: usize = 64 << 20;

/// Reports if the system has memory for so many bytes and for everything else.
pub fn is_free(bytes: usize) -> bool {
    let mut probe = Vec::<u8>::new();
    let is_free = probe.try_reserve_exact(bytes.saturating_add(RESERVE)).is_ok();
    // Or it would be optimised away.
    black_box(&probe);
    is_free
}

/// Makes room for `more` bytes in a buffer of at most `max` bytes; false where the
/// system has no memory. The buffer at most doubles, so that an announced length
/// takes nothing.
pub fn grow(buffer: &mut Vec<u8>, more: usize, max: usize) -> bool {
    if buffer.capacity().saturating_sub(buffer.len()) >= more {
        return true;
    }
    let left = max.saturating_sub(buffer.len());
    let more = more.max(buffer.len().min(left));
    let is_large = buffer.len().saturating_add(more) > SMALL;
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
