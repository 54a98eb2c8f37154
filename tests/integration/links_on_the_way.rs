//! Entries on the way to the target of a request: a link there is not followed where that would
//! disclose what the agent may not know, or not before an approval.

use std::{os::unix::fs::symlink, path::Path, sync::Arc, sync::Mutex};

use portcullis::{
    gateway::{Answer, Approver, Client, Gateway, Question, Ticket},
    model::{
        WorkspacePath,
        request::{Remove, Rename, Write},
    },
};

use crate::{
    acp_rig,
    approvals::{begin, end, id, waiting},
    common::{ALL, World},
    denied_names::requests,
    requests::AnyRequest,
};

/// Answers at once, and stores the disclosures to the client.
struct RecordingApprover {
    says: Answer,
    told: Mutex<Vec<String>>,
}

impl Approver for RecordingApprover {
    fn ask(&self, ticket: &Arc<Ticket>) {
        let Question { binding, rules, change, .. } = ticket.question().for_sender();
        let rules: Vec<_> = rules.iter().map(|rule| rule.rule()).collect();
        let told = format!("{} {:?} {rules:?} {change}", binding.path, binding.to);
        self.told.lock().unwrap().push(told);
        ticket.answer(self.says, "test").unwrap();
    }

    fn over(&self, _: &Ticket) {}
}

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).unwrap()
}

/// Returns the replies to all requests about `name`, and the disclosures to the client.
fn answers(gateway: &Gateway, name: &str) -> Vec<String> {
    let (from, to) = (path(name), path("moved"));
    let mut asked = requests(&path(name));
    asked.push(Box::new(Write { path: path(name), content: b"x".to_vec(), mode: None }));
    asked.push(Box::new(Remove { path: path(name), recursive: true }));
    asked.push(Box::new(Rename { from, to, replace: true }));
    let answer = |request: Box<dyn AnyRequest>| {
        let approver = RecordingApprover { says: Answer::Reject, told: Mutex::default() };
        let (session, client) = (acp_rig::connection(), Client::asking(&approver));
        let done = request.put(gateway, &session, client);
        let heard = match done {
            Ok(reply) => reply.output,
            Err(error) => format!("{error} {:?}", error.kind()),
        };
        let told = approver.told.into_inner().unwrap();
        format!("{} {name}: {heard} {told:?}", request.as_operation().kind())
    };
    asked.into_iter().map(answer).collect()
}

/// Has `make` put each of these things somewhere, and asks about names that lead there.
fn each(policy: &str, kinds: &[&str], names: &[&str], make: impl Fn(&Path, &str)) -> Vec<String> {
    let mut all = kinds.iter().map(|kind| {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("ws");
        std::fs::create_dir_all(root.join("open/in")).unwrap();
        std::fs::create_dir_all(root.join("denied")).unwrap();
        for file in ["open/x", "open/in/x", "denied/x", "new"] {
            std::fs::write(root.join(file), "text\n").unwrap();
        }
        for name in ["open/x", "open/in/x", "open/in", "open", "denied/x", "denied"] {
            let file = std::fs::File::open(root.join(name)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        make(&root, kind);
        let gateway = acp_rig::gateway_under(policy, &root, temp.path());
        names.iter().flat_map(|name| answers(&gateway, name)).collect::<Vec<_>>()
    });
    let first = all.next().unwrap();
    for (kind, others) in kinds.iter().skip(1).zip(all) {
        let differ: Vec<_> =
            first.iter().zip(&others).filter(|(one, other)| one != other).collect();
        assert!(differ.is_empty(), "{} and {kind}: {differ:#?}", kinds[0]);
    }
    first
}

/// Something that is a link, a file, or not there.
fn put(root: &Path, name: &str, kind: &str) {
    match kind {
        "missing" => {}
        "file" => std::fs::write(root.join(name), "text\n").unwrap(),
        "directory" => std::fs::create_dir(root.join(name)).unwrap(),
        target => symlink(target, root.join(name)).unwrap(),
    }
}

const LINKS: [&str; 7] = ["open", "open/x", "nothing", "denied", "loop", "/etc", "../.."];

/// The target of a denied link was disclosed beneath its name, which nothing denies.
#[test]
fn what_is_at_a_denied_name_is_not_told_by_what_lies_behind_it() {
    let policy = format!(
        "{ALL}[extensions]\ndeny = [\"sealed\"]\n\
         [[rules]]\nid = \"top\"\neffect = \"deny\"\npaths = [\"**/top.bin\"]\n\
         [[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"denied/**\"]\n"
    );
    let kinds = [&["missing", "file"][..], &LINKS].concat();
    for denied in ["top.bin", "a.sealed"] {
        let names = [&format!("{denied}/x"), &format!("{denied}/in/x"), "via", "back"];
        each(&policy, &kinds, &names, |root, kind| {
            put(root, denied, &kind.replace("loop", denied));
            symlink(format!("{denied}/x"), root.join("via")).unwrap();
            symlink(format!("{denied}/../open/x"), root.join("back")).unwrap();
        });
    }
}

#[test]
fn links_that_an_agent_may_know_are_followed_whatever_else_is_denied_of_them() {
    let kept = "[[rules]]\nid = \"kept\"\neffect = \"deny\"\noperations = [\"write\", \"remove\"]\n\
                scope = \"entry\"\npaths = [\"link\"]\n";
    let blind = "[[rules]]\nid = \"blind\"\neffect = \"deny\"\noperations = [\"list\"]\n\
                 scope = \"entry\"\npaths = [\"link\"]\n";
    let narrow = "schema = 1\n[allowedPaths]\nread = [\"link/**\", \"real/**\"]\n\
                  write = [\"link/**\", \"real/**\"]\n";
    let asks = "[[rules]]\nid = \"person\"\neffect = \"ask\"\npaths = [\"other/**\"]\n";
    for policy in [format!("{ALL}{kept}{asks}"), format!("{ALL}{blind}"), narrow.to_owned()] {
        let world = World::with_policy(&policy);
        world.file("real/x", "text\n");
        symlink("real", world.path("link")).unwrap();
        assert_eq!(world.fs(&["read", "link/x"]).ok().text(), "text\n", "{policy}");
        world.write("link/new/y", "y").ok();
        assert_eq!(world.read("real/new/y"), "y");
    }
}

const PERSON: &str = "[[rules]]\nid = \"person\"\neffect = \"ask\"\npaths = [\"private/**\"]\n\
    [[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"denied/**\"]\n";

/// It was answered at once where a name that a person must be asked about is a link, or
/// asked only there.
#[test]
fn whether_what_a_person_must_be_asked_about_is_a_link_is_not_told_without_a_yes() {
    let policy = format!("{ALL}{PERSON}");
    let kinds = [&["missing", "file", "directory"][..], &LINKS].concat();
    let names = ["l1/x", "l1/in/x", "l2/x", "l2", "l3", "twice/x", "l4/x"];
    let heard = each(&policy, &kinds, &names, |root, kind| {
        put(root, "private", &kind.replace("loop", "private"));
        symlink("private", root.join("l1")).unwrap();
        symlink("private/../open", root.join("l2")).unwrap();
        symlink("private/in/x", root.join("l3")).unwrap();
        symlink("l1", root.join("twice")).unwrap();
        symlink("private/../private/in", root.join("l4")).unwrap();
    });
    let read = |name: &str| {
        let start = format!("read {name}: ");
        heard.iter().find(|text| text.starts_with(&start)).unwrap()
    };
    assert!(read("l1/x").contains("rejected it"), "{heard:#?}");
    assert!(read("l2/x").contains("Content"), "{heard:#?}");
}

/// A request through such a link is carried out after its approval.
#[test]
fn a_yes_holds_for_what_a_link_leads_to_that_a_person_was_asked_about() {
    let world = World::with_rules(PERSON);
    world.file("open/x", "text\n");
    symlink("open", world.path("private")).unwrap();
    symlink("private", world.path("l1")).unwrap();
    for (args, input) in [(&["read", "l1/x"][..], ""), (&["write", "l1/x"], "new\n")] {
        let child = begin(&world, args, input);
        let asked = waiting(&world, 1).remove(0);
        assert_eq!((&asked["path"], &asked["askedPath"]), (&"open/x".into(), &"l1/x".into()));
        world.run(&["approve", "--yes", &id(&asked)]).ok();
        end(child).ok();
    }
    assert_eq!(world.read("open/x"), "new\n");
    // A missing path is disclosed after an approval.
    let child = begin(&world, &["read", "l1/gone"], "");
    world.run(&["approve", "--yes", &id(&waiting(&world, 1)[0])]).ok();
    let done = end(child);
    assert!(done.code == 1 && done.stderr.contains("not found"), "{done:?}");
}
