//! Fields of the log's records, by kind and operation.

use super::{Shapes, golden};
use crate::common::World;

#[test]
fn fields_of_records() {
    let world = World::with_rules(
        "[[rules]]\nid = \"closed\"\neffect = \"deny\"\npaths = [\"closed/**\"]\n\
         [limits]\nfilesRemoved = 100\n",
    );
    world.file("a.txt", "key = \"AKIAIOSFODNN7EXAMPLF\"\n");
    std::os::unix::fs::symlink("a.txt", world.path("link")).unwrap();
    world.fs(&["read", "a.txt"]).ok();
    world.fs(&["read", "link"]).ok();
    world.fs(&["read", "closed/x"]).denied("closed");
    world.fs(&["read", "gone"]);
    world.write("b.txt", "one\n").ok();
    world.write("b.txt", "two\n").ok();
    world.run_with_input(&["fs", "append", "b.txt"], "three\n").ok();
    world.fs(&["edit", "b.txt", "--old", "two", "--new", "2"]).ok();
    world.fs(&["mkdir", "d"]).ok();
    world.fs(&["mv", "b.txt", "d/b.txt"]).ok();
    world.fs(&["ls", "d"]).ok();
    world.fs(&["stat", "d/b.txt"]).ok();
    world.fs(&["glob", "**"]).ok();
    world.fs(&["grep", "three"]).ok();
    world.fs(&["rm", "d/b.txt"]).ok();
    let mut shapes = Shapes::default();
    for record in world.records() {
        let word = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let heading = format!("{} {}", word("kind"), word("op"));
        shapes.add(heading.trim_end(), &record);
    }
    golden("records.txt", &shapes.text());
}
