//! Links as a mount shows them.

use super::*;

/// The kernel follows a link by its text, and looks up the target alone.
#[test]
fn a_link_that_may_not_be_followed_is_not_read() {
    let rule =
        "[[rules]]\nid = \"no\"\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"lnk\"]\n";
    for (policy, followed) in [
        (OPEN.to_owned(), [true, true, true]),
        (format!("{OPEN}[files]\nsymlinks = \"deny\"\n"), [false, false, false]),
        (format!("{OPEN}{rule}"), [false, true, true]),
    ] {
        let fixture = Fixture::new(&policy);
        fixture.file("d/x", "x");
        for (link, target) in [("lnk", "d/x"), ("dir", "d"), ("none", "d/none")] {
            symlink(target, fixture.at(link)).unwrap();
        }
        let mount = session(Transport::Mount);
        let read = |name: &str| {
            fixture
                .gateway
                .mount_view(&mount)
                .read_link(&path(name), |_| true, &BTreeMap::new)
                .is_ok()
        };
        assert_eq!(["lnk", "dir", "none"].map(read), followed, "{policy}");
    }
}

#[test]
fn a_link_that_leads_out_is_not_read() {
    let fixture = Fixture::new(&format!(
        "{OPEN}[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"no/**\"]\n"
    ));
    fixture.file("d/x", "x");
    fixture.file("no/x", "x");
    let read = |name: &str| {
        fixture.gateway.mount_view(&session(Transport::Mount)).read_link(
            &path(name),
            |_| true,
            &BTreeMap::new,
        )
    };
    for target in ["x", "../d/x", "missing", "../no/x", "..", "./d/../x"] {
        symlink(target, fixture.at("d/link")).unwrap();
        assert_eq!(read("d/link"), Ok(Some(target.to_owned())), "{target}");
        fs::remove_file(fixture.at("d/link")).unwrap();
    }
    let absolute = fixture.at("d/x");
    for target in ["../..", "../../ws/d/x", "/etc/passwd", absolute.to_str().unwrap()] {
        symlink(target, fixture.at("d/link")).unwrap();
        assert_eq!(read("d/link"), Err(Error::Outside), "{target}");
        fs::remove_file(fixture.at("d/link")).unwrap();
    }
    symlink("link", fixture.at("d/link")).unwrap();
    assert_eq!(read("d/link"), Err(Error::Loop));
    symlink("x", fixture.at("no/link")).unwrap();
    assert_eq!((read("no/link"), read("d/none")), (Ok(None), Ok(None)));
    assert_eq!(read("d/x"), Err(Error::NotFound));
}

/// The kind of a hidden entry, and its number of hard links, decided whether a link to it was read.
#[test]
fn a_link_does_not_tell_what_a_hidden_name_is() {
    let hidden = "[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"hid/**\"]\n";
    let lists = "[allowedPaths]\nread = [\"src/**\"]\nlist = [\"**\"]\nwrite = [\"out/**\"]\n";
    for policy in
        [format!("{OPEN}[files.hardlinks]\nread = \"deny\"\n{hidden}"), format!("{lists}{hidden}")]
    {
        let fixture = Fixture::new(&policy);
        for name in ["hid/file", "hid/dir/x", "hid/two", "out/x"] {
            fixture.file(name, "x");
        }
        fs::hard_link(fixture.at("hid/two"), fixture.at("hid/three")).unwrap();
        let view = session(Transport::Mount);
        let read = |name: &str| {
            symlink(format!("../hid/{name}"), fixture.at("out/link")).unwrap();
            let read = fixture.gateway.mount_view(&view).read_link(
                &path("out/link"),
                |_| true,
                &BTreeMap::new,
            );
            fs::remove_file(fixture.at("out/link")).unwrap();
            read.map(|target| target.is_some())
        };
        let missing = read("missing");
        for name in ["file", "dir", "two", "file/x", "dir/x"] {
            assert_eq!(read(name), missing, "{name} {policy}");
        }
    }
}

/// A link to a name that a person must be asked about told where that name leads, and nobody was
/// asked: making, reading and renaming it failed where it leads out or is a loop.
#[test]
fn a_link_does_not_tell_where_an_asked_name_leads() {
    for rule in ["paths = [\"asked/**\"]", "paths = [\"asked/f\"]\noperations = [\"list\"]"] {
        let fixture =
            Fixture::new(&format!("{OPEN}[[rules]]\nid = \"person\"\neffect = \"ask\"\n{rule}\n"));
        fixture.file("asked/x", "x");
        fixture.file("d/x", "x");
        symlink("loop", fixture.at("d/loop")).unwrap();
        let view = session(Transport::Mount);
        let tells = |target: &str| {
            let made = fixture.ask(Transport::Mount, &link("made", target)).map(|_| ());
            let _ = fs::remove_file(fixture.at("made"));
            symlink(target, fixture.at("old")).unwrap();
            let read =
                fixture.gateway.mount_view(&view).read_link(&path("old"), |_| true, &BTreeMap::new);
            let rename = Rename { from: path("old"), to: path("new"), replace: false };
            let renamed = fixture.ask(Transport::Mount, &rename).map(|_| ());
            for name in ["old", "new"] {
                let _ = fs::remove_file(fixture.at(name));
            }
            (made, read.map(|target| target.is_some()), renamed)
        };
        for target in ["asked/f", "asked/f/loop"] {
            assert_eq!(tells(target), (Ok(()), Ok(true), Ok(())), "{rule} {target}");
            for leads in ["/etc/passwd", "f", "../d", "../d/x", "x"] {
                symlink(leads, fixture.at("asked/f")).unwrap();
                assert_eq!(tells(target), (Ok(()), Ok(true), Ok(())), "{rule} {target} {leads}");
                fs::remove_file(fixture.at("asked/f")).unwrap();
            }
        }
    }
}
