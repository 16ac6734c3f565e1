//! The shim as a program of its own, for the tests of this crate: `kaji shim` without the rest of Kaji.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "shim") {
        arguments.remove(0);
    }
    kaji_oci::shim::main(arguments)
}
