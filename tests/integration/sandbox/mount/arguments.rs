//! Arguments of programs in records.

use super::*;

/// A token among the arguments of a program stood in the log, which exports and bundles copy.
#[test]
fn secrets_in_arguments_are_not_recorded() {
    let world = SandboxWorld::mounted(users()[0]);
    let options = ["--quiet", "--agent-env", "NAMED=value"];
    // The gateway waits some milliseconds for the arguments, which a busy machine exceeds now and then.
    let script = "sh -c 'cat file.txt; for n in $(seq 50); do echo x >made$n; done' \
                  'login --password hunter7'";
    let ended = world.exec(&options, script);
    assert!(ended.stdout.contains("secret"), "{ended:?}");
    let records = world.records();
    let text = serde_json::to_string(&records).unwrap();
    assert!(!text.contains("hunter7"), "{text}");
    let placeholder = "login --password [portcullis-secret:password:";
    let process = |record: &Value| record["facts"]["process"].to_string().contains(placeholder);
    assert!(records.iter().any(process), "{text}");
    // So it is with the command itself, which is on record with what it was granted.
    let sandbox = records.iter().find(|record| said(record, "op") == "sandbox").unwrap();
    let command = sandbox["facts"]["command"].as_array().unwrap();
    assert_eq!((command.len(), &command[0]), (3, &Value::from("sh")), "{sandbox}");
    assert!(command[2].as_str().unwrap().contains("[portcullis-secret:password:"), "{sandbox}");
    let names = sandbox["facts"]["agentEnv"].as_array().unwrap();
    assert!(names.contains(&"NAMED".into()) && !text.contains("NAMED=value"), "{sandbox}");
    assert!(!sandbox["facts"]["agentRead"].as_array().unwrap().is_empty(), "{sandbox}");
}

/// The rule looked at each argument alone: as one argument, `--password=X`, it was found.
#[test]
fn a_secret_in_two_arguments_was_recorded() {
    const RULE: &str =
        "\n[[secrets.rules]]\nid = \"option\"\nregex = '--password[= ]([A-Za-z0-9]{12,})'\n";
    let world = SandboxWorld::mounted(users()[0]);
    std::fs::write(world.at("policies/policy.toml"), format!("{POLICY}{RULE}")).unwrap();
    let policy = world.at("policies/policy.toml");
    let writes = "for n in range(50): open('made%d' % n, 'w').write('x')";
    let program = ["python3", "-c", writes, "--password", "Abcdefgh12345678"];
    let args = ["exec", "--quiet", "--policy", &policy, "--"];
    let ended = end(world.limited(&[&args[..], &program].concat()).spawn().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    let records = world.records();
    let text = serde_json::to_string(&records).unwrap();
    assert!(!text.contains("Abcdefgh"), "{text}");
    let command = &world.facts()["command"];
    let has_arguments = |record: &&Value| {
        said(record, "op") == "write" && record["facts"]["process"]["arguments"].is_array()
    };
    let write = records.iter().find(has_arguments).unwrap();
    for words in [command, &write["facts"]["process"]["arguments"]] {
        assert_eq!((&words[2], &words[3]), (&program[2].into(), &"--password".into()), "{text}");
        assert!(words[4].as_str().unwrap().starts_with("[portcullis-secret:option:"), "{text}");
    }
}
