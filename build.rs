//! Leaves the tables out by which a panic unwinds: 2 MiB of a release build,
//! where it never does (`panic = "abort"`).

fn main() {
    println!("cargo::rerun-if-changed=no-unwinding.ld");
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-T{}/no-unwinding.ld", env!("CARGO_MANIFEST_DIR"));
    }
}
