//! `SIGHUP` where not all of what changed can be used.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::rig::{Service, Site, kill, wait};
use crate::common::ALL;
use crate::disk::Mounted;

/// The policy with a rule that denies the file.
pub(super) fn stricter(head: &str) -> String {
    format!("{head}\n{ALL}[[rules]]\nid = \"no\"\neffect = \"deny\"\npaths = [\"file.txt\"]\n")
}

impl Site {
    fn put_policy(&self, text: &str) {
        fs::write(self.base().join("policy.toml"), text).unwrap();
    }

    /// Has the service read everything again; returns the records of that, once
    /// there are as many denials.
    pub(super) fn reload(&self, service: &Service, denied: usize) -> Vec<Value> {
        let said = |site: &Self| -> Vec<Value> {
            let records = site.records("serve").into_iter();
            records.filter(|record| record["op"] == "reload").collect()
        };
        let before = said(self).len();
        service.signal(Signal::HUP);
        wait(|| {
            let fresh = said(self).split_off(before);
            let no = fresh.iter().filter(|record| record["decision"] == "deny").count();
            // The last of them completes the reload, unless nothing could be
            // read.
            let whole = fresh.last().is_some_and(|last| last["decision"] != "deny");
            (no == denied && whole).then_some(fresh)
        })
    }
}

pub(super) fn reads(service: &Service, site: &Site, workspace: &str) -> String {
    service.session(site.token("all"), workspace).read("file.txt").unwrap()
}

/// It came in force when the worker started next.
#[test]
fn a_policy_that_is_refused_holds_for_no_worker_that_starts_later() {
    let site = Site::new(&["shop", "docs", "wiki"]);
    let service = site.serve();
    assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    // It does not load, or its version does not rise.
    let versions = ["the changed policy", "its version"];
    for (bad, word) in [("rules = 1", "it does not load"), (&*stricter(""), versions[1])] {
        site.put_policy(bad);
        let said = site.reload(&service, 1);
        assert_eq!(said[0]["facts"]["policy"], site.base().join("policy.toml").to_str().unwrap());
        let why = said[0]["reason"].as_str().unwrap();
        assert!(why.starts_with(word), "{why}");
        let refused =
            |record: &Value| record["op"] == "reload" && record["reason"].as_str() == Some(why);
        assert_eq!(site.await_record("shop", refused)["result"], "refused");
        kill(service.processes("worker-process").pop().unwrap(), Signal::KILL);
        let next = if word == versions[1] { "docs" } else { "wiki" };
        assert_eq!(reads(&service, &site, next), format!("of {next}\n"));
        assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    }
    // A policy that may follow is in force for all of them.
    site.put_policy(&stricter("version = 2"));
    site.reload(&service, 0);
    for workspace in ["shop", "docs", "wiki"] {
        wait(|| (reads(&service, &site, workspace) == "refused").then_some(()));
    }
    service.stop();
}

#[test]
fn a_changed_policy_holds_although_the_configuration_cannot_be_read() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    fs::write(site.config(), "[[[").unwrap();
    site.put_policy(&stricter("version = 2"));
    service.signal(Signal::HUP);
    site.await_record("serve", |record| record["op"] == "reload" && record["decision"] == "deny");
    wait(|| (reads(&service, &site, "shop") == "refused").then_some(()));
    service.stop();
}

/// A single one of them held the complete configuration back.
#[test]
fn a_workspace_that_cannot_be_served_holds_no_revocation_back() {
    let mut site = Site::new(&["shop", "docs"]);
    let old = site.add_agent("old", "workspaces = [\"*\"]");
    let service = site.serve();
    assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    site.agents.retain(|(name, ..)| name != "old");
    site.workspaces.extend(["wiki".to_owned()]);
    site.write();
    let said = site.reload(&service, 1);
    assert_eq!(said[0]["facts"], json!({ "workspace": "wiki", "served": false }));
    assert!(said[0]["reason"].as_str().unwrap().contains("cannot open the root"), "{}", said[0]);
    assert_eq!(said[1]["facts"]["unserved"], json!(["wiki"]));
    assert_eq!(service.open(&old, "shop").err(), Some(401));
    let token = site.token("all");
    assert_eq!(service.open(token, "wiki").err(), Some(503));
    assert_eq!(service.open(token, "none").err(), Some(404));
    assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    // A broker that is too busy to answer is another reason.
    let why = "1 of 3 workspaces cannot be served";
    let ready = || Some(service.get("/readyz", &[]));
    let (status, reply) = wait(|| ready().filter(|(_, reply)| reply.contains(why)));
    assert_eq!(status, 503, "{reply}");
    fs::create_dir_all(site.root("wiki")).unwrap();
    fs::write(site.root("wiki").join("file.txt"), "of wiki\n").unwrap();
    site.reload(&service, 0);
    assert_eq!(reads(&service, &site, "wiki"), "of wiki\n");
    service.stop();
}

#[test]
fn a_workspace_whose_change_cannot_be_used_stays_as_it_was_and_the_rest_changes() {
    let mut site = Site::new(&["shop", "docs"]);
    let service = site.serve();
    let mut session = service.session(site.token("all"), "shop");
    site.add_workspace("wiki");
    site.write();
    let good = fs::read_to_string(site.config()).unwrap();
    for (was, is, words) in [
        ("roots/shop", "roots/none", "cannot open the root"),
        // That one is another's.
        ("roots/shop", "roots/wiki", "overlap"),
        ("\"policy.toml\"", "\"none.toml\"", "cannot be used"),
    ] {
        // The first is that of `shop`.
        fs::write(site.config(), good.replacen(was, is, 1)).unwrap();
        let said = site.reload(&service, 1);
        assert_eq!(said[0]["facts"], json!({ "workspace": "shop", "served": true }), "{was}");
        assert!(said[0]["reason"].as_str().unwrap().contains(words), "{}", said[0]);
        assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
        assert_eq!(reads(&service, &site, "wiki"), "of wiki\n");
    }
    // A file of the operator's, which the agent could change.
    let inside = site.root("shop").join("policy.toml");
    fs::write(&inside, ALL).unwrap();
    let text = good.replace("policy = \"policy.toml\"", "policy = \"roots/shop/policy.toml\"");
    fs::write(site.config(), text).unwrap();
    let said = site.reload(&service, 3);
    for (record, workspace) in said.iter().zip(["shop", "docs", "wiki"]) {
        assert_eq!(record["facts"], json!({ "workspace": workspace, "served": true }));
        assert!(record["reason"].as_str().unwrap().contains("overlap"), "{record}");
    }
    assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
    assert_eq!(reads(&service, &site, "docs"), "of docs\n");
    drop(session);
    service.stop();
}

#[test]
fn a_workspace_over_which_another_was_mounted_is_served_no_more() {
    let site = Site::new(&["docs", "shop"]);
    let service = site.serve();
    assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    let docs = site.root("docs");
    let _mounted = Mounted::new(&["--bind", docs.to_str().unwrap()], site.root("shop"));
    let said = site.reload(&service, 1);
    assert_eq!(said[0]["facts"], json!({ "workspace": "shop", "served": false }));
    assert!(said[0]["reason"].as_str().unwrap().contains("overlap"), "{}", said[0]);
    assert_eq!(service.open(site.token("all"), "shop").err(), Some(503));
    assert_eq!(reads(&service, &site, "docs"), "of docs\n");
    service.stop();
}

/// The unchanged one kept the policy from being read.
#[test]
fn a_workspace_that_stays_as_it_was_keeps_no_policy_from_the_others() {
    let site = Site::new(&["docs", "shop"]);
    let service = site.serve();
    assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    let good = fs::read_to_string(site.config()).unwrap();
    fs::write(site.config(), good.replacen("\"policy.toml\"", "\"none.toml\"", 1)).unwrap();
    site.put_policy(&stricter("version = 2"));
    let said = site.reload(&service, 1);
    assert_eq!(said[0]["facts"], json!({ "workspace": "docs", "served": true }));
    for workspace in ["shop", "docs"] {
        wait(|| (reads(&service, &site, workspace) == "refused").then_some(()));
    }
    service.stop();
}

#[test]
fn a_policy_that_must_be_signed_from_now_on_and_is_not_is_served_no_more() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let mut session = service.session(site.token("all"), "shop");
    let key = site.base().join("key");
    let key = key.to_str().unwrap();
    let made = site.world.run(&["policy", "keygen", "--out", key, "--json"]).ok().json();
    let good = fs::read_to_string(site.config()).unwrap();
    let keys = format!("requireSignature = true\npolicyKeys = [{}]\n", made["public"]);
    fs::write(site.config(), format!("{keys}{good}")).unwrap();
    let said = site.reload(&service, 1);
    assert_eq!(said[0]["facts"], json!({ "workspace": "shop", "served": false }));
    assert!(session.is_over());
    assert_eq!(service.open(site.token("all"), "shop").err(), Some(503));
    let policy = site.base().join("policy.toml");
    site.world.run(&["policy", "sign", policy.to_str().unwrap(), "--key", key]).ok();
    site.reload(&service, 0);
    assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    let start = site.records("shop").into_iter().rfind(|record| record["kind"] == "start");
    assert_eq!(start.unwrap()["facts"]["policySignedBy"], made["public"]);
    service.stop();
}

#[test]
fn settings_that_hold_from_the_next_start_are_named() {
    let mut site = Site::new(&["shop"]);
    let service = site.serve();
    site.settings = "listen = [\"127.0.0.1:1\"]\nlimits = { failedLogins = 3 }".to_owned();
    site.write();
    let said = site.reload(&service, 0);
    assert_eq!(said[0]["facts"]["fromNextStart"], json!(["listen", "limits.failedLogins"]));
    service.stop();
}

/// It was taken for the one in force, and not offered again.
#[test]
fn a_policy_that_a_worker_could_not_take_up_is_offered_again() {
    let site = Site::new(&["shop"]);
    let service = site.serve();
    let mut session = service.session(site.token("all"), "shop");
    let (kept, aside) = (site.state("shop").join("policies"), site.state("shop").join("aside"));
    fs::rename(&kept, &aside).unwrap();
    fs::write(&kept, "in the way").unwrap();
    site.put_policy(&stricter("version = 2"));
    site.reload(&service, 0);
    let refused = |record: &Value| record["op"] == "reload" && record["result"] == "refused";
    site.await_record("shop", refused);
    assert_eq!(session.read("file.txt").unwrap(), "of shop\n");
    fs::remove_file(&kept).unwrap();
    fs::rename(&aside, &kept).unwrap();
    site.reload(&service, 0);
    wait(|| (session.read("file.txt").unwrap() == "refused").then_some(()));
    drop(session);
    service.stop();
}

/// Returns the error of the service that does not start with these arguments.
fn refusal(site: &Site, args: &[&str]) -> String {
    site.write();
    refused(site, args)
}

/// The same with the configuration as it is.
pub(super) fn refused(site: &Site, args: &[&str]) -> String {
    let done = site.command(args).output().unwrap();
    assert!(!done.status.success());
    String::from_utf8(done.stderr).unwrap()
}

/// An agent could rename the directory, and no client found the service any
/// more.
#[test]
fn a_workspace_in_which_the_services_socket_would_lie_is_not_served() {
    let site = Site::new(&["shop"]);
    let socket = site.root("shop").join("serve.sock");
    let said = refusal(&site, &["--listen", &format!("unix:{}", socket.display())]);
    assert!(said.contains(&format!("the service's socket `{}`", socket.display())), "{said}");
}

/// A party that changes the link would be the operator, since it is followed
/// again.
#[test]
fn a_workspace_in_which_a_link_to_the_configuration_lies_is_not_served() {
    let site = Site::new(&["shop"]);
    site.write();
    let link = site.root("shop").join("link.toml");
    std::os::unix::fs::symlink(site.config(), &link).unwrap();
    let args = ["serve", "--config", link.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let mut command = site.world.command(&args);
    let done = command.env_remove("PORTCULLIS_WORKSPACE").env_remove("PORTCULLIS_STATE");
    let done = done.output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    let named = format!("the configuration `{}`", link.display());
    assert!(!done.status.success() && said.contains(&named), "{said}");
}

/// An agent of one workspace could have led the name elsewhere, to be taken up at
/// the next reload.
#[test]
fn what_is_named_through_another_workspace_is_not_served() {
    let mut site = Site::new(&["shop"]);
    let elsewhere = site.base().join("elsewhere");
    fs::create_dir_all(elsewhere.join("wiki")).unwrap();
    fs::write(elsewhere.join("policy.toml"), ALL).unwrap();
    std::os::unix::fs::symlink("../../elsewhere", site.root("shop").join("link")).unwrap();
    let service = site.serve();
    site.add_workspace("wiki");
    site.write();
    let good = fs::read_to_string(site.config()).unwrap();
    let (head, wiki) = good.split_once("name = \"wiki\"").unwrap();
    for (was, is) in [
        ("root = \"roots/wiki\"", "root = \"roots/shop/link/wiki\""),
        ("state = \"states/wiki\"", "state = \"roots/shop/link/state\""),
        ("policy = \"policy.toml\"", "policy = \"roots/shop/link/policy.toml\""),
    ] {
        let wiki = wiki.replacen(was, is, 1);
        fs::write(site.config(), format!("{head}name = \"wiki\"{wiki}")).unwrap();
        let said = site.reload(&service, 1);
        assert_eq!(said[0]["facts"], json!({ "workspace": "wiki", "served": false }), "{was}");
        assert_eq!(service.open(site.token("all"), "wiki").err(), Some(503));
        assert_eq!(reads(&service, &site, "shop"), "of shop\n");
        let start = site.command(&[]).output().unwrap();
        assert_eq!(start.status.code(), Some(1), "{start:?}");
    }
    fs::write(site.config(), &good).unwrap();
    site.reload(&service, 0);
    assert_eq!(reads(&service, &site, "wiki"), "of wiki\n");
    service.stop();
}

/// The next start, of any command, would have read what the agent made there.
#[test]
fn a_workspace_to_which_the_configurations_usual_place_leads_is_not_served() {
    let site = Site::new(&["docs", "shop"]);
    let service = site.serve();
    let home = site.base().join("home");
    fs::create_dir_all(&home).unwrap();
    std::os::unix::fs::symlink("../roots/shop", home.join(".config")).unwrap();
    let said = site.reload(&service, 1);
    assert_eq!(said[0]["facts"], json!({ "workspace": "shop", "served": false }));
    assert_eq!(service.open(site.token("all"), "shop").err(), Some(503));
    assert_eq!(reads(&service, &site, "docs"), "of docs\n");
    assert!(refusal(&site, &[]).contains("home/.config/portcullis/portcullis.toml`"));
    service.stop();
}
