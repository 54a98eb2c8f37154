//! `policy diff --no-new-access` sees a change of every key, where it lets an agent read, change,
//! send or leave unrecorded what it could not before.

use std::collections::BTreeSet;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::policy_file;
use crate::common::World;

/// The changes of a key that open something, also if the policy itself decides as before and one
/// that extends it does not.
#[derive(Clone, Copy)]
enum Opens {
    /// The change from the first text to the second one, and from the first one to none.
    Second,
    /// Each change between the two, where it is not known which is laxer.
    Either,
    /// None.
    Nothing,
}

use Opens::{Either, Nothing, Second};

/// Each key with two texts, the stricter first.
const KEYS: &[(&str, Opens, &str, &str)] = &[
    ("agent.env", Second, "agent.env = ['PATH']", "agent.env = ['PATH', 'TOKEN']"),
    ("agent.limits.cpu", Second, "agent.limits.cpu = 1", "agent.limits.cpu = 2"),
    ("agent.limits.memory", Second, "agent.limits.memory = '1GiB'", "agent.limits.memory = '2GiB'"),
    ("agent.limits.processes", Second, "agent.limits.processes = 8", "agent.limits.processes = 9"),
    ("agent.read", Second, "agent.read = ['/usr']", "agent.read = ['/usr', '/srv']"),
    ("agent.terminal", Second, "agent.terminal = 'deny'", "agent.terminal = 'ask'"),
    ("agent.terminal", Second, "agent.terminal = 'ask'", "agent.terminal = 'allow'"),
    ("agent.write", Second, "agent.write = []", "agent.write = ['/srv']"),
    ("allowedPaths.list", Second, "allowedPaths.list = []", "allowedPaths.list = ['a/**']"),
    ("allowedPaths.read", Second, "allowedPaths.read = []", "allowedPaths.read = ['a/**']"),
    ("allowedPaths.remove", Second, "allowedPaths.remove = []", "allowedPaths.remove = ['a/**']"),
    ("allowedPaths.write", Second, "allowedPaths.write = []", "allowedPaths.write = ['a/**']"),
    // Fewer backups are kept, and no request is decided by it.
    ("backups.keep.days", Nothing, "backups.keep.days = 9", "backups.keep.days = 1"),
    // A larger file can be neither replaced nor removed.
    ("backups.keep.size", Second, "backups.keep.size = '1GiB'", "backups.keep.size = '3GiB'"),
    ("backups.keep.versions", Nothing, "backups.keep.versions = 9", "backups.keep.versions = 1"),
    ("extends", Second, "extends = ['secrets']", "extends = []"),
    (
        "extensions.allow.list",
        Second,
        "extensions.allow.list = ['md']",
        "extensions.allow.list = ['md', 'exe']",
    ),
    (
        "extensions.allow.read",
        Second,
        "extensions.allow.read = ['md']",
        "extensions.allow.read = ['md', 'exe']",
    ),
    (
        "extensions.allow.remove",
        Second,
        "extensions.allow.remove = ['md']",
        "extensions.allow.remove = ['md', 'exe']",
    ),
    (
        "extensions.allow.write",
        Second,
        "extensions.allow.write = ['md']",
        "extensions.allow.write = ['md', 'exe']",
    ),
    ("extensions.deny", Second, "extensions.deny = ['exe', 'so']", "extensions.deny = ['exe']"),
    ("files.binary.read", Second, "files.binary.read = 'deny'", "files.binary.read = 'base64'"),
    ("files.binary.write", Second, "files.binary.write = 'deny'", "files.binary.write = 'base64'"),
    (
        "files.hardlinks.read",
        Second,
        "files.hardlinks.read = 'deny'",
        "files.hardlinks.read = 'allow'",
    ),
    (
        "files.hardlinks.write",
        Second,
        "files.hardlinks.write = 'deny'",
        "files.hardlinks.write = 'allow'",
    ),
    (
        "files.invisible.onRead",
        Either,
        "files.invisible = { paths = ['a'], onRead = 'deny' }",
        "files.invisible = { paths = ['a'], onRead = 'redact' }",
    ),
    (
        "files.invisible.paths",
        Either,
        "files.invisible = { paths = ['a', 'b'] }",
        "files.invisible = { paths = ['a'] }",
    ),
    ("files.maxReadSize", Second, "files.maxReadSize = '1B'", "files.maxReadSize = '2B'"),
    ("files.maxWriteSize", Second, "files.maxWriteSize = '1B'", "files.maxWriteSize = '2B'"),
    ("files.symlinks", Second, "files.symlinks = 'deny'", "files.symlinks = 'beneath'"),
    ("git.history", Second, "git.history = 'deny'", "git.history = 'allow'"),
    ("git.repository", Second, "git.repository = 'private'", "git.repository = 'workspace'"),
    (
        "labels.id",
        Either,
        "labels = [{ id = 'a', paths = ['x'] }, { id = 'b', paths = ['y'] }]",
        "labels = [{ id = 'a', paths = ['y'] }, { id = 'b', paths = ['x'] }]",
    ),
    (
        "labels.paths",
        Second,
        "labels = [{ id = 'a', paths = ['x', 'y'] }]",
        "labels = [{ id = 'a', paths = ['x'] }]",
    ),
    // A person decides, however long it takes.
    (
        "limits.approvalTimeout",
        Nothing,
        "limits.approvalTimeout = '1s'",
        "limits.approvalTimeout = '1h'",
    ),
    ("limits.bytesWritten", Second, "limits.bytesWritten = '1B'", "limits.bytesWritten = '2B'"),
    ("limits.denials", Second, "limits.denials = 1", "limits.denials = 2"),
    ("limits.filesRemoved", Second, "limits.filesRemoved = 1", "limits.filesRemoved = 2"),
    (
        "limits.operationsPerSecond",
        Second,
        "limits.operationsPerSecond = 1",
        "limits.operationsPerSecond = 2",
    ),
    ("mode", Second, "mode = 'enforce'", "mode = 'observe'"),
    ("mount.binary.read", Second, "mount.binary.read = 'deny'", "mount.binary.read = 'allow'"),
    ("mount.binary.write", Second, "mount.binary.write = 'deny'", "mount.binary.write = 'allow'"),
    ("mount.bytesWritten", Second, "mount.bytesWritten = '1B'", "mount.bytesWritten = '2B'"),
    ("mount.denials", Second, "mount.denials = 1", "mount.denials = 2"),
    ("mount.filesRemoved", Second, "mount.filesRemoved = 1", "mount.filesRemoved = 2"),
    ("mount.maxReadSize", Second, "mount.maxReadSize = '1B'", "mount.maxReadSize = '2B'"),
    ("mount.maxWriteSize", Second, "mount.maxWriteSize = '1B'", "mount.maxWriteSize = '2B'"),
    (
        "mount.operationsPerSecond",
        Second,
        "mount.operationsPerSecond = 1",
        "mount.operationsPerSecond = 2",
    ),
    ("name", Nothing, "name = 'a'", "name = 'b'"),
    // The host of a credential is reached with that alone.
    ("network.credentials", Either, "network.credentials = []", "network.credentials = ['a']"),
    (
        "network.limits.bytesOut",
        Second,
        "network.limits.bytesOut = '1B'",
        "network.limits.bytesOut = '2B'",
    ),
    (
        "network.limits.connections",
        Second,
        "network.limits.connections = 1",
        "network.limits.connections = 2",
    ),
    ("network.mode", Second, "network.mode = 'enforce'", "network.mode = 'observe'"),
    (
        "network.rules.agents",
        Second,
        "network.rules = [{ id = 'a', effect = 'deny', hosts = ['a.example'] }]",
        "network.rules = [{ id = 'a', effect = 'deny', hosts = ['a.example'], agents = ['x'] }]",
    ),
    (
        "network.rules.effect",
        Second,
        "network.rules = [{ id = 'a', effect = 'deny', hosts = ['*'] }]",
        "network.rules = [{ id = 'a', effect = 'ask', hosts = ['*'], ports = [443] }]",
    ),
    (
        "network.rules.effect",
        Second,
        "network.rules = [{ id = 'a', effect = 'ask', hosts = ['*'], ports = [443] }]",
        "network.rules = [{ id = 'a', effect = 'allow', hosts = ['*'], ports = [443] }]",
    ),
    (
        "network.rules.except",
        Second,
        "labels = [{ id = 'l', paths = ['x'] }]\n\
         network.rules = [{ id = 'a', effect = 'deny', hosts = ['*'], whenRead = ['l'] }]",
        "labels = [{ id = 'l', paths = ['x'] }]\n\
         network.rules = [{ id = 'a', effect = 'deny', hosts = ['*'], whenRead = ['l'], except = ['a.b'] }]",
    ),
    (
        "network.rules.hosts",
        Second,
        "network.rules = [{ id = 'a', effect = 'allow', hosts = ['a.b'], ports = [443] }]",
        "network.rules = [{ id = 'a', effect = 'allow', hosts = ['*.b', 'a.b'], ports = [443] }]",
    ),
    (
        "network.rules.hosts",
        Second,
        "network.rules = [{ id = 'a', effect = 'deny', hosts = ['a.b', 'c.b'] }]",
        "network.rules = [{ id = 'a', effect = 'deny', hosts = ['a.b'] }]",
    ),
    (
        "network.rules.id",
        Nothing,
        "network.rules = [{ id = 'a', effect = 'deny', hosts = ['a.b'] }]",
        "network.rules = [{ id = 'b', effect = 'deny', hosts = ['a.b'] }]",
    ),
    (
        "network.rules.ports",
        Second,
        "network.rules = [{ id = 'a', effect = 'allow', hosts = ['a.b'], ports = [443] }]",
        "network.rules = [{ id = 'a', effect = 'allow', hosts = ['a.b'], ports = [443, 22] }]",
    ),
    (
        "network.rules.reason",
        Nothing,
        "network.rules = [{ id = 'a', effect = 'deny', hosts = ['a.b'], reason = 'x' }]",
        "network.rules = [{ id = 'a', effect = 'deny', hosts = ['a.b'], reason = 'y' }]",
    ),
    (
        "network.rules.whenRead",
        Second,
        "labels = [{ id = 'l', paths = ['x'] }]\n\
         network.rules = [{ id = 'a', effect = 'deny', hosts = ['a.b'] }]",
        "labels = [{ id = 'l', paths = ['x'] }]\n\
         network.rules = [{ id = 'a', effect = 'deny', hosts = ['a.b'], whenRead = ['l'] }]",
    ),
    (
        "rules.agents",
        Second,
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'] }]",
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'], agents = ['y'] }]",
    ),
    (
        "rules.effect",
        Second,
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'] }]",
        "rules = [{ id = 'a', effect = 'ask', paths = ['x'] }]",
    ),
    (
        "rules.id",
        Nothing,
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'] }]",
        "rules = [{ id = 'b', effect = 'deny', paths = ['x'] }]",
    ),
    (
        "rules.operations",
        Second,
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'], operations = ['read', 'glob'] }]",
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'], operations = ['read'] }]",
    ),
    (
        "rules.operations",
        Second,
        "rules = [{ id = 'a', effect = 'allow', paths = ['x'], operations = ['append'] }]\n\
         allowedPaths.write = []",
        "rules = [{ id = 'a', effect = 'allow', paths = ['x'], operations = ['append', 'mkdir'] }]\n\
         allowedPaths.write = []",
    ),
    (
        "rules.paths",
        Second,
        "rules = [{ id = 'a', effect = 'deny', paths = ['x', 'y'] }]",
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'] }]",
    ),
    (
        "rules.reason",
        Nothing,
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'], reason = 'x' }]",
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'], reason = 'y' }]",
    ),
    (
        "rules.scope",
        Second,
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'], scope = 'tree' }]",
        "rules = [{ id = 'a', effect = 'deny', paths = ['x'], scope = 'entry' }]",
    ),
    // There is one version.
    ("schema", Nothing, "", ""),
    ("scratch.keep", Second, "scratch.keep = false", "scratch.keep = true"),
    ("scratch.maxSize", Second, "scratch.maxSize = '1GiB'", "scratch.maxSize = '2GiB'"),
    // What is done in scratch directories has no record.
    ("scratch.paths", Second, "scratch.paths = ['a']", "scratch.paths = ['a', 'b']"),
    (
        "secrets.except",
        Second,
        "secrets.names = ['.env*']",
        "secrets.names = ['.env*']\nsecrets.except = ['.env.example']",
    ),
    (
        "secrets.honorAllowlists",
        Either,
        "secrets.rulesets = [{ file = 'two.gitleaks', format = 'gitleaks' }]",
        "secrets.rulesets = [{ file = 'two.gitleaks', format = 'gitleaks' }]\n\
         secrets.honorAllowlists = true",
    ),
    ("secrets.maxScanTime", Second, "secrets.maxScanTime = '1s'", "secrets.maxScanTime = '1h'"),
    ("secrets.names", Second, "secrets.names = ['a', 'b']", "secrets.names = ['a']"),
    // With placeholders, no write may leave a secret.
    (
        "secrets.onRead",
        Second,
        "secrets.onRead = 'deny'\nsecrets.onWrite = 'deny'",
        "secrets.onRead = 'redact'\nsecrets.onWrite = 'deny'",
    ),
    ("secrets.onRead", Second, "secrets.onRead = 'deny'", "secrets.onRead = 'warn'"),
    ("secrets.onWrite", Second, "secrets.onWrite = 'deny'", "secrets.onWrite = 'warn'"),
    (
        "secrets.rules.description",
        Nothing,
        "secrets.rules = [{ id = 'a', regex = 'tok', description = 'x' }]",
        "secrets.rules = [{ id = 'a', regex = 'tok', description = 'y' }]",
    ),
    (
        "secrets.rules.entropy",
        Either,
        "secrets.rules = [{ id = 'a', regex = 'tok[a-z]{9}' }]",
        "secrets.rules = [{ id = 'a', regex = 'tok[a-z]{9}', entropy = 2.0 }]",
    ),
    (
        "secrets.rules.group",
        Either,
        "secrets.rules = [{ id = 'a', regex = 'tok([a-z]{9})', group = 0 }]",
        "secrets.rules = [{ id = 'a', regex = 'tok([a-z]{9})', group = 1 }]",
    ),
    (
        "secrets.rules.id",
        Either,
        "secrets.rules = [{ id = 'a', regex = 'tok' }]",
        "secrets.rules = [{ id = 'b', regex = 'tok' }]",
    ),
    (
        "secrets.rules.keywords",
        Either,
        "secrets.rules = [{ id = 'a', regex = 'tok' }]",
        "secrets.rules = [{ id = 'a', regex = 'tok', keywords = ['tok'] }]",
    ),
    (
        "secrets.rules.match",
        Nothing,
        "secrets.rules = [{ id = 'a', regex = 'tok', match = ['tok'] }]",
        "secrets.rules = [{ id = 'a', regex = 'tok' }]",
    ),
    (
        "secrets.rules.notMatch",
        Nothing,
        "secrets.rules = [{ id = 'a', regex = 'tok', notMatch = ['x'] }]",
        "secrets.rules = [{ id = 'a', regex = 'tok' }]",
    ),
    (
        "secrets.rules.regex",
        Either,
        "secrets.rules = [{ id = 'a', regex = 'tok' }]",
        "secrets.rules = [{ id = 'a', regex = 'tok[a-z]' }]",
    ),
    (
        "secrets.rules.warnOnly",
        Second,
        "secrets.rules = [{ id = 'a', regex = 'tok', warnOnly = false }]",
        "secrets.rules = [{ id = 'a', regex = 'tok', warnOnly = true }]",
    ),
    (
        "secrets.rulesets.file",
        Second,
        "secrets.rulesets = [{ file = 'two.gitleaks', format = 'gitleaks' }]",
        "secrets.rulesets = [{ file = 'one.gitleaks', format = 'gitleaks' }]",
    ),
    // There is one format.
    ("secrets.rulesets.format", Nothing, "", ""),
    // The rules themselves are compared.
    (
        "secrets.rulesets.sha256",
        Nothing,
        "secrets.rulesets = [{ file = 'one.gitleaks', format = 'gitleaks', sha256 = 'ONE' }]",
        "secrets.rulesets = [{ file = 'one.gitleaks', format = 'gitleaks' }]",
    ),
    ("tests.address", Nothing, LABEL, TEST_OF_HOST),
    ("tests.agent", Nothing, "", TEST_OF_PATH),
    ("tests.expect.effect", Nothing, "", TEST_OF_PATH),
    ("tests.expect.rule", Nothing, "", TEST_OF_PATH),
    ("tests.host", Nothing, LABEL, TEST_OF_HOST),
    ("tests.operation", Nothing, "", TEST_OF_PATH),
    ("tests.path", Nothing, "", TEST_OF_PATH),
    ("tests.port", Nothing, LABEL, TEST_OF_HOST),
    ("tests.to", Nothing, "", TEST_OF_PATH),
    ("tests.whenRead", Nothing, LABEL, TEST_OF_HOST),
    ("version", Nothing, "version = 2", "version = 1"),
];

const TEST_OF_PATH: &str = "tests = [{ operation = 'rename', path = 'a', to = 'b', agent = 'x', \
    expect = { effect = 'deny', rule = 'default' } }]";
const LABEL: &str = "labels = [{ id = 'l', paths = ['x'] }]";
const TEST_OF_HOST: &str = "labels = [{ id = 'l', paths = ['x'] }]\n\
    tests = [{ operation = 'connect', host = 'a.b', port = 443, address = '9.9.9.9', \
    whenRead = ['l'], expect = { effect = 'deny' } }]";

/// Two rules, of which a comment or an allowlist evades the second.
const RULES: [&str; 2] = [
    "[[rules]]\nid = 'one'\nregex = '''one_[a-z]{9}'''\n",
    "[[rules]]\nid = 'two'\nregex = '''two_[a-z]{9}'''\n\
     [[rules.allowlists]]\nregexes = ['''example''']\n",
];

/// Returns the keys of a schema that have a value of their own.
fn keys(schema: &Value, above: &str, found: &mut BTreeSet<String>) {
    for (name, key) in schema["properties"].as_object().unwrap() {
        let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        match [key, &key["items"]].into_iter().find(|key| key["properties"].is_object()) {
            Some(table) => keys(table, &path, found),
            None => drop(found.insert(path)),
        }
    }
}

#[test]
fn a_change_of_every_key_is_compared() {
    let world = World::new();
    let mut known = BTreeSet::new();
    keys(&world.run(&["policy", "schema"]).ok().json(), "", &mut known);
    let listed: BTreeSet<_> = KEYS.iter().map(|(key, ..)| (*key).to_owned()).collect();
    assert_eq!(known, listed);
    policy_file(&world, "one.gitleaks", RULES[0]);
    policy_file(&world, "two.gitleaks", &RULES.concat());
    let sha256 = sha256_of(RULES[0]);
    let diff = |old: &str, new: &str| {
        for (name, text) in [("old.toml", old), ("new.toml", new)] {
            let text = text.replace("ONE", &sha256);
            policy_file(&world, name, &format!("schema = 1\n{text}\n"));
        }
        let done =
            world.run(&["policy", "diff", "old.toml", "new.toml", "--no-new-access", "--json"]);
        assert!([0, 4].contains(&done.code), "{old} -> {new}: {done:?}");
        assert_eq!(done.json()["addsAccess"], done.code == 4, "{old} -> {new}: {done:?}");
        done.code == 4
    };
    let mut wrong = Vec::new();
    for (key, opens, one, other) in KEYS {
        let found = (diff(one, other), diff(other, one), diff(one, ""));
        let expected = match opens {
            Second => (true, false, true),
            Either => (true, true, true),
            Nothing => (false, false, found.2),
        };
        if found != expected {
            wrong.push(format!("{key}: {found:?}, not {expected:?}: {one} -> {other}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

fn sha256_of(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
