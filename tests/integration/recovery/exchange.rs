//! An exchange of two entries whose gateway died.

use super::*;

/// The contents of the two names show whether a gateway that died had exchanged them.
#[test]
fn an_exchange_was_made_or_not() {
    for (a, b, result) in [
        ("one", "other", "rolledBack"),
        ("other", "one", "committed"),
        ("other", "somebody's", "superseded"),
    ] {
        let world = world();
        world.file("a.txt", a);
        world.file("b.txt", b);
        let facts = Some([("exchange".to_owned(), true.into())].into());
        let (before, after) = (Some(Hash::of(b"other")), Some(Hash::of(b"one")));
        let word = |text: &str| Some(text.to_owned());
        let (op, path, to) = (word("rename"), word("a.txt"), word("b.txt"));
        admitted(&world, Draft { op, path, to, before, after, facts, ..Draft::default() });
        assert_eq!(settled(&world), result);
        assert_eq!((world.read("a.txt"), world.read("b.txt")), (a.to_owned(), b.to_owned()));
    }
}
