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
    for line in ["/usr/bin/env sh", "/usr/bin/env -S sh -e"] {
        script(&world, "tools/sign", line);
        refused(&mut list(&config), &world.base().join("ws/bin/sh"));
    }
    let config = with_signer(&world, "'/usr/bin/env', 'sh'");
    refused(&mut list(&config), &world.base().join("ws/bin/sh"));
    let config = with_signer(&world, "'BASE/tools/sign'");
    for line in ["/bin/sh", "/usr/bin/env sh", "/usr/bin/env -S sh -e", "/no/such/interpreter"] {
        script(&world, "tools/sign", line);
        starts(&world, &["--config", &config]);
    }
}

/// Regression: what `env` executes was not known for abbreviated options, a second `env`, quotes and
/// assignments to `PATH`, and the start was accepted.
#[test]
fn a_first_line_with_env_that_does_not_name_its_program_plainly_is_refused() {
    let world = world(&["tools", "ws/bin"], &[]);
    let config = with_signer(&world, "'BASE/tools/sign'");
    for arguments in [
        "",
        "--split-s=sh",
        "-Ssh",
        "-i sh",
        "sh -e",
        "A=b",
        "-S env sh",
        "-S /usr/bin/env sh",
        "-S A=b sh",
        "-S PATH=/usr/bin:BASE/ws/bin sh",
        "-S -C BASE/ws/bin ./sh",
        "-S BASE/\"ws\"/bin/sh",
        "-S sh BASE/\"ws\"/bin/script",
        "-S ${SHELL}",
        "-S sh\\_-e",
        "sh\r",
    ] {
        script(&world, "tools/sign", &format!("/usr/bin/env {arguments}"));
        let mut command = world.command(&["fs", "ls", "--config", &config]);
        refused(&mut command, &world.base().join("tools/sign"));
    }
    let config = with_signer(&world, "'/usr/bin/env', '-S', '/usr/bin/env sh'");
    refused(&mut world.command(&["fs", "ls", "--config", &config]), Path::new("/usr/bin/env"));
}

/// Returns an ELF file of 32 or 64 bits whose dynamic linker is named at `place`.
fn elf(bits: u8, is_little: bool, linker: &str, place: usize) -> Vec<u8> {
    let mut file = vec![0; place];
    file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', bits / 32, if is_little { 1 } else { 2 }]);
    let length = linker.len() + 1;
    // Offset, size and value of fields: the program headers' place, size and number, and of the
    // one header its type, and the place and length of the name.
    let fields = match bits {
        32 => [(28, 4, 64), (42, 2, 32), (44, 2, 1), (64, 4, 3), (68, 4, place), (80, 4, length)],
        _ => [(32, 8, 64), (54, 2, 56), (56, 2, 1), (64, 4, 3), (72, 8, place), (96, 8, length)],
    };
    for (offset, size, value) in fields {
        let mut bytes = value.to_be_bytes()[8 - size..].to_vec();
        if is_little {
            bytes.reverse();
        }
        file[offset..offset + size].copy_from_slice(&bytes);
    }
    file.extend(linker.bytes().chain([0]));
    file
}

/// Regression: the dynamic linker was not found in a file of 32 bits or the other byte order, nor if
/// its name was behind the first 16 KiB.
#[test]
fn the_dynamic_linker_of_a_signer_lay_in_the_workspace() {
    let world = world(&["tools"], &[]);
    let config = with_signer(&world, "'BASE/tools/sign'");
    let sign = world.base().join("tools/sign");
    let list = |content: &[u8]| {
        std::fs::write(&sign, content).unwrap();
        set_mode(&sign, 0o755);
        world.command(&["fs", "ls", "--config", &config])
    };
    for (bits, is_little) in [(32, true), (32, false), (64, true), (64, false)] {
        for place in [128, 1 << 20] {
            let content = elf(bits, is_little, &world.at("ws/ld.so"), place);
            refused(&mut list(&content), &world.base().join("ws/ld.so"));
        }
        let content = elf(bits, is_little, "/lib/ld.so", 128);
        assert_eq!(list(&content).output().unwrap().status.code(), Some(0));
        let mut other_class = content.clone();
        other_class[4] = 3;
        for content in [&other_class, &content[..60], &content[..content.len() - 1]] {
            refused(&mut list(content), &sign);
        }
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
