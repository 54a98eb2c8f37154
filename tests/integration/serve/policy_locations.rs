//! Policies, states and files of the service that lie where an agent of a served workspace may change them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    partial_reload::{reads, refused, stricter},
    rig::{Service, Site, kill, wait},
};
use crate::common::ALL;

/// Two workspaces; `shop` has the policy `etc/q.toml`.
fn site() -> Site {
    let site = Site::new(&["shop", "docs"]);
    fs::create_dir(site.base().join("etc")).unwrap();
    fs::write(site.base().join("etc/q.toml"), ALL).unwrap();
    site.write();
    edit(&site, "policy = \"policy.toml\"", "policy = \"etc/q.toml\"");
    site
}

/// Changes the configuration at the first place.
fn edit(site: &Site, was: &str, is: &str) {
    let text = fs::read_to_string(site.config()).unwrap();
    assert!(text.contains(was), "{text}");
    fs::write(site.config(), text.replacen(was, is, 1)).unwrap();
}

/// The other workspace was served no more, and its agent's policy was in force.
#[test]
fn a_policy_that_lies_in_another_workspace_is_not_taken_up_and_nobody_is_unserved() {
    let site = site();
    let home = "data/portcullis/homes/docs/agent";
    fs::create_dir_all(site.base().join(home)).unwrap();
    let data = site.base().join("data");
    let service = Service::start(site.command(&[]).env("XDG_DATA_HOME", data));
    assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    let policy = site.base().join("etc/q.toml");
    for (number, (file, link)) in [
        ("roots/docs/evil.toml", "../roots/docs/evil.toml"),
        // It lies elsewhere; the agent chooses where.
        ("good.toml", "../roots/docs/link.toml"),
        // An agent of `run` wrote it into its home.
        (&format!("{home}/evil.toml"), &format!("../{home}/evil.toml")),
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(site.base().join(file), stricter(&format!("version = {}", number + 2))).unwrap();
        let _ = symlink("../../good.toml", site.root("docs").join("link.toml"));
        fs::remove_file(&policy).unwrap();
        symlink(link, &policy).unwrap();
        let said = site.reload(&service, 1);
        assert_eq!(said[0]["facts"], json!({ "policy": policy }), "{}", said[0]);
        assert_eq!(said[1]["facts"]["unserved"], json!([]));
        let why = said[0]["reason"].clone();
        let refused = |record: &Value| record["op"] == "reload" && record["reason"] == why;
        assert_eq!(site.await_record("shop", refused)["result"], "refused");
        // Nor does it hold for a worker that starts later.
        kill(service.processes("worker-process").pop().unwrap(), Signal::KILL);
        for workspace in ["shop", "docs"] {
            assert_eq!(reads(&service, &site, workspace), format!("of {workspace}\n"));
        }
    }
    // An agent may have its other name.
    fs::remove_file(&policy).unwrap();
    fs::write(&policy, stricter("version = 8")).unwrap();
    fs::hard_link(&policy, site.base().join("kept")).unwrap();
    let said = site.reload(&service, 1);
    assert_eq!(said[0]["facts"], json!({ "policy": policy }), "{}", said[0]);
    assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    // Without an old one there is nothing to go on with.
    let said = self::refused(&site, &[]);
    assert!(said.contains(&format!("`{}`", policy.display())), "{said}");
    fs::remove_file(&policy).unwrap();
    fs::write(&policy, stricter("version = 9")).unwrap();
    site.reload(&service, 0);
    wait(|| (reads(&service, &site, "shop") == "refused").then_some(()));
    service.stop();
}

/// The workspace was no longer served, and the copies went to the target of any link of its agent.
#[test]
fn copies_of_a_changed_configuration_do_not_go_into_a_workspace() {
    let site = site();
    let service = Service::start(&mut site.command(&[]));
    let text = fs::read_to_string(site.config()).unwrap();
    let (copies, link) = (site.root("docs").join("copies"), site.base().join("link"));
    symlink(&copies, &link).unwrap();
    for to in [&copies, &link] {
        let ship = format!("{text}[audit]\nship = [{{ to = {to:?} }}]\n");
        fs::write(site.config(), ship).unwrap();
        service.signal(Signal::HUP);
        let names = |record: &Value| {
            record["reason"].as_str().is_some_and(|why| why.contains(&*to.to_string_lossy()))
        };
        site.await_record("serve", |record| record["op"] == "reload" && names(record));
        for workspace in ["shop", "docs"] {
            assert_eq!(reads(&service, &site, workspace), format!("of {workspace}\n"));
        }
    }
    service.stop();
    assert!(!copies.exists());
}

/// Has the service read everything again; its configuration is refused because of `path`, and no
/// workspace is.
fn refused_for(site: &Site, service: &Service, path: &str) {
    let said = site.reload_refused(service);
    assert_eq!(said["facts"], json!({}), "{said}");
    let named = format!("`{}`", site.base().join(path).display());
    assert!(said["reason"].as_str().unwrap().contains(&named), "{said}");
    for workspace in ["shop", "docs"] {
        assert_eq!(reads(service, site, workspace), format!("of {workspace}\n"));
    }
}

impl Site {
    /// Has the service read everything again; returns the single record of that.
    fn reload_refused(&self, service: &Service) -> Value {
        let said = || -> Vec<Value> {
            let records = self.records("serve").into_iter();
            records.filter(|record| record["op"] == "reload").collect()
        };
        let before = said().len();
        service.signal(Signal::HUP);
        let record = wait(|| said().split_off(before).into_iter().next());
        assert_eq!(record["decision"], "deny", "{record}");
        record
    }
}

/// Regression: a path that had not changed was compared as one of a workspace's. The workspace was
/// served no more, and the program that its agent had written signed for the other one.
#[test]
fn a_signer_that_leads_into_a_workspace_now_refused_the_workspace_only() {
    let site = site();
    let base = site.base();
    fs::create_dir(site.root("docs").join("s")).unwrap();
    for directory in [base.join("etc"), site.root("docs").join("s")] {
        fs::copy("/bin/true", directory.join("sign")).unwrap();
    }
    symlink("etc", base.join("live")).unwrap();
    let key = "example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c";
    let sign = base.join("live/sign");
    edit(&site, "[serve]", &format!("[audit]\nsigner = [{sign:?}]\npublicKey = {key:?}\n[serve]"));
    let service = Service::start(&mut site.command(&[]));
    for workspace in ["shop", "docs"] {
        assert_eq!(reads(&service, &site, workspace), format!("of {workspace}\n"));
    }
    fs::remove_file(base.join("live")).unwrap();
    symlink("roots/docs/s", base.join("live")).unwrap();
    refused_for(&site, &service, "live/sign");
    // A worker that started later took the program for the operator's.
    for worker in service.processes("worker-process") {
        kill(worker, Signal::KILL);
    }
    assert_eq!(service.open(site.token("all"), "shop").err(), Some(503));
    fs::remove_file(base.join("live")).unwrap();
    symlink("etc", base.join("live")).unwrap();
    site.reload(&service, 0);
    service.stop();
}

/// Regression: workers that started later looked the program up again, and executed that of an agent.
/// It also kept reloads from being accepted.
#[test]
fn a_notify_send_that_an_agent_made_after_the_start_is_not_executed() {
    let site = site();
    let (base, marks) = (site.base(), site.base().join("marks"));
    let place = |directory: &Path, word: &str| {
        fs::create_dir_all(directory).unwrap();
        let program = directory.join("notify-send");
        fs::write(&program, format!("#!/bin/sh\necho {word} >> {}\n", marks.display())).unwrap();
        fs::set_permissions(program, PermissionsExt::from_mode(0o755)).unwrap();
    };
    place(&base.join("good"), "good");
    edit(&site, "[serve]", "[approvals.notify]\ndesktop = true\n[serve]");
    let asks = "[limits]\napprovalTimeout = \"3s\"\n[[rules]]\nid = \"asks\"\neffect = \"ask\"\n\
                operations = [\"write\"]\npaths = [\"asked\"]\n";
    fs::write(base.join("etc/q.toml"), format!("{ALL}\n{asks}")).unwrap();
    let bin = site.root("docs").join("bin");
    let path = format!("{}:{}:/usr/bin:/bin", bin.display(), base.join("good").display());
    let service = Service::start(site.command(&[]).env("PATH", path));
    place(&bin, "agent");
    site.reload(&service, 0);
    let mut session = service.session(site.token("all"), "shop");
    session.ask("write", json!({ "path": "asked", "content": "x" }));
    let shown = wait(|| fs::read_to_string(&marks).ok().filter(|shown| !shown.is_empty()));
    assert_eq!(shown, "good\n");
    drop(session);
    service.stop();
}

/// Regression: a link of an agent's on the way chose an older configuration, which came in force for
/// the other workspaces, or for all if it did not name the agent's.
#[test]
fn a_configuration_chosen_by_a_link_of_a_workspace_came_in_force() {
    for has_docs in [true, false] {
        let mut site = site();
        let base = site.base();
        let old = site.add_agent("old", "workspaces = [\"shop\"]");
        if !has_docs {
            site.workspaces.retain(|name| name != "docs");
        }
        site.write();
        let mut text = fs::read_to_string(site.config()).unwrap();
        for begin in ["roots/", "states/", "policy.toml"] {
            let whole = format!("\"{}/{begin}", base.display());
            text = text.replace(&format!("\"{begin}"), &whole);
        }
        fs::write(base.join("etc/portcullis.toml"), text).unwrap();
        site.agents.retain(|(name, ..)| name != "old");
        site.workspaces = vec!["shop".to_owned(), "docs".to_owned()];
        let service = site.serve();
        assert_eq!(service.open(&old, "shop").err(), Some(401));
        // No worker starts later.
        for workspace in ["shop", "docs"] {
            assert_eq!(reads(&service, &site, workspace), format!("of {workspace}\n"));
        }
        symlink("../../etc", site.root("docs").join("link")).unwrap();
        fs::remove_file(site.config()).unwrap();
        symlink("roots/docs/link/portcullis.toml", site.config()).unwrap();
        refused_for(&site, &service, "portcullis.toml");
        assert_eq!(service.open(&old, "shop").err(), Some(401));
        service.stop();
    }
}

/// A workspace that comes must not bring the policy of another under its agent.
#[test]
fn a_workspace_around_anothers_policy_is_not_served_and_the_policy_stays() {
    let site = site();
    let service = Service::start(&mut site.command(&[]));
    let more = "[[workspaces]]\nname = \"wiki\"\nroot = \"etc\"\npolicy = \"policy.toml\"\n\
                state = \"states/wiki\"\n[[agents]]";
    edit(&site, "[[agents]]", more);
    let said = site.reload(&service, 1);
    assert_eq!(said[0]["facts"], json!({ "workspace": "wiki", "served": false }));
    assert_eq!(service.open(site.token("all"), "wiki").err(), Some(503));
    assert!(!site.state("wiki").exists());
    assert_eq!(reads(&service, &site, "shop"), "of shop\n");
    service.stop();
}

/// The directories were made in the agent's workspace before the start was refused.
#[test]
fn a_refused_start_makes_no_state_directory() {
    for (was, is) in [
        ("state = \"states/shop\"", "state = \"roots/docs/st/x\""),
        ("state = \"states/serve\"", "state = \"roots/docs/st/x\""),
    ] {
        let site = site();
        edit(&site, was, is);
        let said = refused(&site, &[]);
        assert!(said.contains("overlap"), "{said}");
        assert!(!site.root("docs").join("st").exists(), "{is}");
        assert!(fs::read_dir(site.base().join("states")).unwrap().next().is_none(), "{is}");
    }
}

/// The records of both stood in one log.
#[test]
fn a_service_and_a_workspace_used_one_state_directory() {
    let site = Site::new(&["shop"]);
    let state = site.state("serve");
    let of_workspace = ["fs", "ls", "--state", state.to_str().unwrap()];
    fs::create_dir(site.base().join("states")).unwrap();
    site.world.run(&of_workspace).ok();
    let before = site.records("serve");
    site.write();
    let said = refused(&site, &[]);
    assert!(said.contains("not to a service"), "{said}");
    assert_eq!(site.records("serve"), before);
}

/// An agent that was given their directory read the key, and wrote the policy that `serve` took up.
#[test]
fn what_a_service_trusts_was_given_to_an_agent_of_its_configuration() {
    let mut site = site();
    for name in ["tls", "socks", "own"] {
        fs::create_dir(site.base().join(name)).unwrap();
    }
    fs::write(site.base().join("tls/key.pem"), "").unwrap();
    let socket = site.base().join("socks/s");
    site.settings = format!(
        "listen = [\"unix:{}\"]\ntls = {{ certificate = \"tls/cert.pem\", key = \"tls/key.pem\" }}",
        socket.display()
    );
    site.write();
    edit(&site, "policy = \"policy.toml\"", "policy = \"etc/q.toml\"");
    let config = site.config();
    let at = |name: &str| site.base().join(name).to_str().unwrap().to_owned();
    let refused = |option: &str, given: &str, path: &str| {
        let (own, state, given) = (at("own"), at("own-state"), at(given));
        let before = ["run", "--config", config.to_str().unwrap(), "--workspace", &own];
        let after = ["--state", &state, option, &given, "--", "/bin/true"];
        let ended = site.world.run(&[&before[..], &after].concat());
        assert_eq!(ended.code, 1, "{option} {given}: {ended:?}");
        assert!(ended.stderr.contains(&at(path)), "{option} {given}: {ended:?}");
    };
    for name in ["states/serve", "states/docs/keys", "copy"] {
        fs::create_dir_all(site.base().join(name)).unwrap();
    }
    for (given, path) in [
        ("tls", "tls/"),
        ("tls/key.pem", "tls/key.pem"),
        ("socks", "socks/s"),
        ("etc", "etc/q.toml"),
        ("states/serve", "states/serve"),
        ("states/docs", "states/docs"),
    ] {
        refused("--agent-read", given, path);
        refused("--agent-write", given, path);
    }
    // A copy of hard links, in another directory.
    fs::write(site.base().join("states/docs/keys/k"), "").unwrap();
    fs::hard_link(site.base().join("states/docs/keys/k"), site.base().join("copy/k")).unwrap();
    refused("--agent-read", "copy", "states/docs/keys/k");
    fs::remove_dir_all(site.base().join("states/docs")).unwrap();
    // A command of the operator for a served workspace.
    let shop = site.root("shop");
    let list = ["fs", "ls", "--config", config.to_str().unwrap(), "--workspace"];
    let state = at("states/shop");
    site.world.run(&[&list[..], &[shop.to_str().unwrap(), "--state", &state]].concat()).ok();
    assert!(!site.base().join("own-state").exists());
}
