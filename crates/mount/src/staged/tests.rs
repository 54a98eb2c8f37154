use super::*;

fn budget(limit: u64) -> Arc<Budget> {
    Arc::new(Budget::new(limit, 1000))
}

fn bytes(staged: &Staged) -> Vec<u8> {
    staged.read(0, 10_000, <[u8]>::to_vec).unwrap()
}

#[test]
fn a_gap_is_zeros() {
    let staged = Staged::created(&budget(100), 0o644);
    assert_eq!(staged.write(Some(3), b"abc"), Ok(3));
    assert_eq!(staged.write(None, b"d"), Ok(6));
    assert_eq!(bytes(&staged), b"\0\0\0abcd");
    staged.resize(4).unwrap();
    staged.grow(6).unwrap();
    staged.grow(1).unwrap();
    assert_eq!(bytes(&staged), b"\0\0\0a\0\0");
}

#[test]
fn the_bounds_hold_and_are_given_back() {
    let budget = budget(10);
    let staged = Staged::created(&budget, 0o644);
    assert_eq!(staged.write(Some(0), &[1; 10]), Ok(0));
    assert_eq!(staged.write(None, b"x"), Err(Errno::DQUOT));
    assert_eq!(Staged::emptied(&budget).resize(1), Err(Errno::DQUOT));
    assert_eq!(staged.resize(1001), Err(Errno::FBIG));
    assert_eq!(staged.write(Some(u64::MAX), b"x"), Err(Errno::FBIG));
    drop(staged);
    assert_eq!(Staged::emptied(&budget).resize(10), Ok(()));
}

#[test]
fn a_commit_is_due_once_for_each_change() {
    let staged = Staged::created(&budget(100), 0o600);
    let stored = staged.stored().unwrap().unwrap();
    assert!(stored.base == Base::Nothing && stored.bytes.is_empty());
    staged.committed(&stored, None, None);
    assert!(staged.stored().unwrap().is_none());
    staged.write(None, b"a").unwrap();
    let stored = staged.stored().unwrap().unwrap();
    staged.write(None, b"b").unwrap();
    staged.committed(&stored, None, None);
    let stored = staged.stored().unwrap().unwrap();
    assert_eq!((stored.bytes.as_slice(), stored.base), (b"ab".as_slice(), Base::Anything));
}

#[test]
fn what_was_dropped_gives_nothing() {
    let staged = Staged::created(&budget(100), 0o644);
    staged.write(None, b"a").unwrap();
    staged.discard(Errno::ACCESS);
    assert_eq!(staged.read(0, 1, <[u8]>::to_vec), Err(Errno::IO));
    assert_eq!(staged.write(None, b"a"), Err(Errno::IO));
    // Another handle hears what was refused.
    assert_eq!(staged.stored().err(), Some(Errno::ACCESS));
    let staged = Staged::created(&budget(100), 0o644);
    staged.discard(Errno::ACCESS);
    assert_eq!(staged.write(None, b"a"), Err(Errno::ACCESS));
}
