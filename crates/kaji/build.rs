//! Lets the linker fold identical functions of the program: most generic code is compiled several times to the same bytes.
//!
//! Invariant: the argument is passed only for the target for which rustc's own linker, which knows it, is the default.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let target = ["CARGO_CFG_TARGET_ARCH", "CARGO_CFG_TARGET_OS", "CARGO_CFG_TARGET_ENV"].map(variable);
    // Only optimised programs: what tests link is to be there quickly.
    if target == ["x86_64", "linux", "gnu"] && variable("PROFILE") == "release" {
        println!("cargo::rustc-link-arg-bin=kaji=-Wl,--icf=all");
    }
}
