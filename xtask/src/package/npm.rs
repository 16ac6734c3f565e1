//! Packages for npm: one a platform with the program, and one that depends on them optionally and starts the program that npm has installed,
//! and has the helper for tests.

use super::{Error, LICENSE, NAME, Release, SUMMARY, Target, archive, layout::File};
use serde_json::{Map, Value, json};

/// The helper for tests.
const ENVTEST: &str = include_str!("../../../packaging/npm/envtest.js");
const LAUNCHER: &str = r#"#!/usr/bin/env node
"use strict";
const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const platform = `kaji-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${platform}/bin/kaji`);
} catch {
  console.error(`kaji: the package ${platform} is not installed; there are programs for linux-x64 and linux-arm64`);
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`kaji: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + constants.signals[signal] : code));
"#;

/// Writes the package with a target's program.
///
/// # Errors
/// When it cannot be written.
pub fn write_platform(release: &Release, target: &Target, program: &[u8]) -> Result<(), Error> {
    let name = platform(*target);
    let package = json!({
        "name": name, "version": release.version, "description": SUMMARY, "license": LICENSE,
        "os": ["linux"], "cpu": [target.npm], "files": ["bin"],
    });
    write(release, &name, vec![File::program("bin/kaji", program), File::new("package.json", text(&package))])
}

/// Writes the package that users install.
///
/// # Errors
/// When it cannot be written.
pub fn write_launcher(release: &Release, targets: impl Iterator<Item = Target>) -> Result<(), Error> {
    let platforms: Map<String, Value> =
        targets.map(|target| (platform(target), json!(release.version))).collect();
    let package = json!({
        "name": NAME, "version": release.version, "description": SUMMARY, "license": LICENSE,
        "bin": {NAME: "bin/kaji.js"}, "files": ["bin", "envtest.js"], "engines": {"node": ">=18"},
        "exports": {"./envtest": "./envtest.js", "./package.json": "./package.json"},
        "optionalDependencies": platforms,
    });
    write(
        release,
        NAME,
        vec![
            File::program("bin/kaji.js", LAUNCHER),
            File::new("envtest.js", ENVTEST),
            File::new("package.json", text(&package)),
        ],
    )
}

fn platform(target: Target) -> String {
    format!("{NAME}-linux-{}", target.npm)
}

fn text(package: &Value) -> String {
    format!("{package:#}\n")
}

fn write(release: &Release, name: &str, files: Vec<File>) -> Result<(), Error> {
    let bytes = archive::gzip(&archive::tar(release, "package", &files)?)?;
    release.write(&format!("{name}-{}.tgz", release.version), &bytes)
}
