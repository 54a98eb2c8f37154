//! Programs that the product runs for the operator are started by no file that an agent may change.

use std::path::Path;

use super::{
    trusted::{refused, refused_at_every_transport, starts, world},
    *,
};

const KEY: &str = "example.com/log-1+8b4c54b3+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c";

/// Puts an executable script there.
fn script(world: &SandboxWorld, name: &str, first_line: &str) {
    let line = first_line.replace("BASE", world.base().to_str().unwrap());
    std::fs::write(world.base().join(name), format!("#!{line}\n")).unwrap();
    set_mode(&world.base().join(name), 0o755);
}

/// Writes a configuration with the signer, and returns its path.
fn with_signer(world: &SandboxWorld, signer: &str) -> String {
    let signer = signer.replace("BASE", world.base().to_str().unwrap());
    let text = format!("[audit]\nsigner = [{signer}]\npublicKey = '{KEY}'\n");
    std::fs::write(world.base().join("portcullis.toml"), text).unwrap();
    world.at("portcullis.toml")
}

/// Regression: only the signer's program itself was compared. An agent replaced the interpreter in
/// the project's `.venv`, and the next start ran that as the operator.
#[test]
fn the_interpreter_of_a_signer_lay_in_the_workspace() {
    let world = world(&["tools", "ws/bin"], &[("../ws/py", "tools/python")]);
    script(&world, "tools/wrap", "BASE/ws/py");
    let config = with_signer(&world, "'BASE/tools/sign'");
    for (line, path) in [
        ("BASE/ws/.venv/bin/python", "ws/.venv/bin/python"),
        (" BASE/ws/py -I", "ws/py"),
        ("BASE/tools/python", "tools/python"),
        ("BASE/tools/wrap", "ws/py"),
        ("/bin/sh BASE/ws/program", "ws/program"),
        ("/usr/bin/env BASE/ws/py", "ws/py"),
        ("/usr/bin/env -S BASE/tools/wrap -I", "ws/py"),
    ] {
        script(&world, "tools/sign", line);
        refused_at_every_transport(&world, &["--config", &config], path);
    }
    // A name is looked up in `PATH`, where an agent may make it before the signer runs.
    let path = format!("{}:/usr/bin:/bin", world.at("ws/bin"));
    let list = |config: &str| {
        let mut command = world.command(&["fs", "ls", "--config", config]);
        command.env("PATH", &path);
        command
    };
    for line in
        ["/usr/bin/env sh", "/usr/bin/env -S sh -e", "/usr/bin/env -Ssh", "/usr/bin/env -S A=b sh"]
    {
        script(&world, "tools/sign", line);
        refused(&mut list(&config), &world.base().join("ws/bin/sh"));
    }
    let config = with_signer(&world, "'/usr/bin/env', 'sh', '-c', 'true'");
    refused(&mut list(&config), &world.base().join("ws/bin/sh"));
    let config = with_signer(&world, "'BASE/tools/sign'");
    for line in ["/bin/sh", "/usr/bin/env sh", "/usr/bin/env -S sh -e", "/no/such/interpreter"] {
        script(&world, "tools/sign", line);
        starts(&world, &["--config", &config]);
    }
}

/// Its interpreter is not known, and may be an agent's.
#[test]
fn a_signer_that_cannot_be_read_is_refused() {
    let world = SandboxWorld::new(*users().last().unwrap());
    std::fs::create_dir(world.base().join("tools")).unwrap();
    let config = with_signer(&world, "'BASE/tools/sign'");
    script(&world, "tools/sign", "BASE/ws/py");
    set_mode(&world.base().join("tools/sign"), 0o111);
    refused(
        &mut world.command(&["fs", "ls", "--config", &config]),
        Path::new(&world.at("tools/sign")),
    );
}
