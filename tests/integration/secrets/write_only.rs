//! Files that an agent may change and not read: no reply discloses their
//! content.

use super::{FILE, POLICY};
use crate::common::{Done, World};

const BINARY: &[u8] = b"\x00x";

fn world(on_read: &str) -> World {
    let closed = POLICY
        .replace("read = [\"**\"]\nlist = [\"**\"]", "read = [\"pub/**\"]\nlist = [\"pub/**\"]");
    let world = World::with_policy(&closed.replace("\"redact\"", &format!("\"{on_read}\"")));
    for directory in ["drop", "pub"] {
        world.file(&format!("{directory}/plain"), "a\nb\nc\nd\ne\n");
        world.file(&format!("{directory}/app.conf"), FILE);
        world.file(&format!("{directory}/binary"), BINARY);
    }
    world
}

fn append(world: &World, path: &str, text: &str) -> Done {
    world.run_with_input(&["fs", "append", path], text)
}

/// The reason why it was denied.
fn said(done: &Done) -> String {
    let line = done.stderr.lines().find_map(|line| line.split_once("denied by"));
    line.unwrap_or_else(|| panic!("{done:?}")).1.to_owned()
}

#[test]
fn an_append_to_what_may_not_be_read_does_not_tell_what_is_there() {
    for on_read in ["deny", "redact"] {
        let world = world(on_read);
        let binary = append(&world, "drop/binary", "x\n").denied("workspace.hidden");
        assert_eq!(world.last()["rule"], "files.binary.write");
        if on_read == "deny" {
            let secret = append(&world, "drop/app.conf", "x\n").denied("workspace.hidden");
            assert_eq!(world.last()["rule"], "secrets.rules.token");
            assert_eq!(world.last()["findings"][0]["line"], 2);
            assert_eq!(said(&secret), said(&binary));
        }
        // A line that it is refused for is one of its own.
        let mine = |path: &str| {
            said(&append(&world, path, "x\ntok_00000000\n").denied("secrets.rules.token"))
        };
        let all = ["plain", "app.conf", "binary", "new"].map(|name| mine(&format!("drop/{name}")));
        assert!(all.iter().all(|said| *said == all[0] && said.contains("line 2 of")), "{all:?}");
        world.run_with_input(&["fs", "append", "drop/plain"], "f\n").ok();
        assert_eq!(world.read("drop/plain"), "a\nb\nc\nd\ne\nf\n");
        let told =
            world.run_with_input(&["fs", "append", "--json", "drop/plain"], "g\n").ok().json();
        assert_eq!(told["bytes"], 2, "{told}");
        assert_eq!(world.read("drop/binary").as_bytes(), BINARY);
    }
}

#[test]
fn an_append_to_a_file_that_readers_are_refused_tells_no_more_than_a_read() {
    let world = world("deny");
    let read = world.fs(&["read", "pub/app.conf"]).denied("secrets.rules.token");
    for text in ["x\n", "tok_00000000\n"] {
        let refused = append(&world, "pub/app.conf", text).denied("secrets.rules.token");
        assert_eq!(said(&refused), said(&read));
    }
    // For content that a reader sees, the line is named.
    let refused = append(&world, "pub/plain", "tok_00000000\n").denied("secrets.rules.token");
    assert!(said(&refused).contains("line 6 of"), "{refused:?}");
}

#[test]
fn a_write_with_a_placeholder_where_nothing_may_be_read_does_not_tell_what_is_there() {
    let world = world("redact");
    let text = "[portcullis-secret:token:00112233445566778899aabbccddeeff]\n";
    let all = ["plain", "app.conf", "binary", "new"]
        .map(|name| said(&world.write(&format!("drop/{name}"), text).denied("workspace.hidden")));
    assert!(all.iter().all(|said| *said == all[0]), "{all:?}");
    assert_eq!(world.last()["rule"], "secrets.placeholder");
}

#[test]
fn a_rename_of_what_may_not_be_read_does_not_tell_what_is_in_it() {
    let mut world = world("redact");
    let directory = world.base().join("policy");
    std::fs::create_dir_all(&directory).unwrap();
    let rules = "[[rules]]\nid = \"conf\"\nregex = 'tok_[0-9a-z]{8}'\npath = '\\.conf$'\nkeywords = [\"tok_\"]\n";
    std::fs::write(directory.join("rules.toml"), rules).unwrap();
    world.set_policy(
        "schema = 1\n[allowedPaths]\nread = [\"pub/**\"]\nlist = [\"pub/**\"]\nwrite = [\"**\"]\n\
         remove = [\"**\"]\n\
         [secrets]\nonRead = \"redact\"\nrulesets = [{ file = \"rules.toml\", format = \"gitleaks\" }]\n",
    );
    world.fs(&["mv", "drop/app.conf", "drop/app.txt"]).denied("workspace.hidden");
    assert_eq!(world.last()["rule"], "secrets.rules.conf");
    world.fs(&["mv", "drop/app.conf", "drop/b.conf"]).ok();
    world.fs(&["mv", "pub/app.conf", "pub/app.txt"]).denied("secrets.rules.conf");
}
