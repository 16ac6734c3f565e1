//! How the program is compiled and linked: for this machine by its C compiler, or statically for a target by lld, with zig for C code.

use super::{Args, Error, SAME_CODE_ONCE, check, file};
use crate::cargo;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Hands over to zig, without the target in the words of other compilers.
const COMPILER: &str = "#!/bin/sh
for argument do
  shift
  case $argument in
    --target=*) ;;
    *) set -- \"$@\" \"$argument\" ;;
  esac
done
exec python3 -m ziglang @tool@ \"$@\"
";

/// A build for one target.
pub struct Build<'a> {
    root: &'a Path,
    profile: &'a str,
    target: Option<&'a str>,
    /// Variables of cargo's.
    variables: Vec<(String, PathBuf)>,
}

impl<'a> Build<'a> {
    /// Prepares a build; compilers of a target are written to `dir`.
    pub fn new(root: &'a Path, dir: &Path, args: &'a Args) -> Result<Build<'a>, Error> {
        let target = args.target.as_deref();
        let mut variables = vec![];
        if let Some(target) = target {
            let zig = target.replace("-unknown-", "-");
            let name = target.replace('-', "_");
            for (variable, tool) in [("CC", format!("cc -target {zig}")), ("AR", "ar".to_owned())] {
                let script = dir.join(variable);
                fs::write(&script, COMPILER.replace("@tool@", &tool)).map_err(|e| file(&script, e))?;
                fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
                    .map_err(|e| file(&script, e))?;
                variables.push((format!("{variable}_{name}"), script));
            }
            variables.push((format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), "rust-lld".into()));
        }
        Ok(Build { root, profile: &args.profile, target, variables })
    }

    /// Whether this machine can run what is built.
    pub fn runs_here(&self) -> bool {
        self.target.is_none_or(|target| target.starts_with(std::env::consts::ARCH))
    }

    /// Builds; the program.
    pub fn run(&self, strip: &str, linker: &[&str]) -> Result<PathBuf, Error> {
        let mut cargo = cargo();
        cargo.current_dir(self.root).envs(self.variables.iter().map(|(name, value)| (name, value)));
        cargo.args(["rustc", "--profile", self.profile, "-p", "kaji", "--bin", "kaji"]);
        let mut directory = self.root.join("target");
        if let Some(target) = self.target {
            cargo.args(["--target", target]);
            directory.push(target);
        }
        cargo.arg("--").arg(format!("-Cstrip={strip}"));
        for argument in [SAME_CODE_ONCE].iter().chain(linker) {
            // A C compiler hands on what is meant for the linker.
            let prefix = if self.target.is_some() { "" } else { "-Wl," };
            cargo.arg(format!("-Clink-arg={prefix}{argument}"));
        }
        check(cargo.status().map(|status| (status.success(), String::new())), "cargo rustc")?;
        Ok(directory.join(self.profile).join("kaji"))
    }
}
