//! Seccomp profiles in the form of the OCI runtime specification, compiled to filter programs.
//!
//! Invariants:
//! - Programs are stacked: the kernel takes the most restrictive answer of all. The first one admits what any rule names and
//!   answers everything else with the default; each further one restricts the rules of one action. So every profile is
//!   expressed exactly, but for rules of several actions on one call, of which the most restrictive counts.
//! - A profile that cannot be expressed is refused; it is never loaded in part.
//! - System calls of another architecture than the shim's (32-bit programs) end the process.

pub mod profile;
mod syscalls;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// A profile, as `linux.seccomp` of an OCI configuration and the files of Localhost profiles have it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Profile {
    /// `SCMP_ACT_ERRNO` and the like.
    pub default_action: String,
    /// For `SCMP_ACT_ERRNO` and `SCMP_ACT_TRACE`; EPERM without it.
    pub default_errno_ret: Option<u32>,
    /// Of which the programs have to be; the shim's own is always meant.
    pub architectures: Vec<String>,
    /// `SECCOMP_FILTER_FLAG_LOG` and the like.
    pub flags: Vec<String>,
    /// Rules.
    pub syscalls: Vec<Rule>,
}

/// What happens at some system calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Of the calls.
    pub names: Vec<String>,
    /// `SCMP_ACT_ALLOW` and the like.
    pub action: String,
    /// For `SCMP_ACT_ERRNO` and `SCMP_ACT_TRACE`; EPERM without it.
    pub errno_ret: Option<u32>,
    /// All have to hold.
    pub args: Vec<Argument>,
}

/// A condition on an argument.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Argument {
    /// Which one, from 0.
    pub index: u8,
    /// To compare with; the mask for `SCMP_CMP_MASKED_EQ`.
    pub value: u64,
    /// To compare with after masking.
    pub value_two: u64,
    /// `SCMP_CMP_EQ` and the like.
    pub op: String,
}

/// Why a profile was refused.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// An action that cannot be carried out.
    #[error("seccomp action {0:?} is not supported")]
    Action(String),
    /// A comparison that does not exist.
    #[error("seccomp comparison {0:?} is not known")]
    Comparison(String),
    /// A flag that cannot be set.
    #[error("seccomp flag {0:?} is not supported")]
    Flag(String),
    /// The machine's architecture has no filters.
    #[error("seccomp filters cannot be built for this architecture")]
    Architecture,
    /// The rules do not make a program.
    #[error("seccomp profile: {0}")]
    Compile(String),
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The programs of a profile, in the order in which they are to be loaded: the last one loaded runs first.
///
/// # Errors
/// [`ProfileError`].
pub fn compile(profile: &Profile) -> Result<Vec<BpfProgram>, ProfileError> {
    let default = action(&profile.default_action, profile.default_errno_ret)?;
    // SPEC_ALLOW and LOG change nothing that a container can observe; WAIT_KILLABLE_RECV is for notifications.
    if let Some(flag) = profile
        .flags
        .iter()
        .find(|f| !matches!(f.as_str(), "SECCOMP_FILTER_FLAG_LOG" | "SECCOMP_FILTER_FLAG_SPEC_ALLOW"))
    {
        return Err(ProfileError::Flag(flag.clone()));
    }
    let mut listed = Rules::new();
    let mut restricted: Vec<(SeccompAction, Rules)> = vec![];
    for rule in &profile.syscalls {
        let action = action(&rule.action, rule.errno_ret)?;
        add(&mut listed, rule)?;
        if action != SeccompAction::Allow {
            match restricted.iter_mut().find(|(known, _)| *known == action) {
                Some((_, rules)) => add(rules, rule)?,
                None => {
                    let mut rules = Rules::new();
                    add(&mut rules, rule)?;
                    restricted.push((action, rules));
                }
            }
        }
    }
    let mut programs = vec![];
    if default != SeccompAction::Allow {
        programs.push(program(listed, default, SeccompAction::Allow)?);
    }
    for (action, rules) in restricted.into_iter().filter(|(_, rules)| !rules.is_empty()) {
        programs.push(program(rules, SeccompAction::Allow, action)?);
    }
    Ok(programs)
}

fn program(rules: Rules, other: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, ProfileError> {
    let architecture =
        TargetArch::try_from(std::env::consts::ARCH).map_err(|_| ProfileError::Architecture)?;
    let filter = SeccompFilter::new(rules, other, matched, architecture)
        .map_err(|error| ProfileError::Compile(error.to_string()))?;
    BpfProgram::try_from(filter).map_err(|error| ProfileError::Compile(error.to_string()))
}

fn add(rules: &mut Rules, rule: &Rule) -> Result<(), ProfileError> {
    let conditions = rule.args.iter().map(condition).collect::<Result<Vec<_>, _>>()?;
    for number in rule.names.iter().filter_map(|name| syscalls::number(name)) {
        if conditions.is_empty() {
            // No rules mean that the call matches whatever its arguments are.
            rules.insert(number, vec![]);
            continue;
        }
        match rules.entry(number) {
            std::collections::btree_map::Entry::Occupied(known) if known.get().is_empty() => {}
            entry => entry.or_default().push(
                SeccompRule::new(conditions.clone())
                    .map_err(|error| ProfileError::Compile(error.to_string()))?,
            ),
        }
    }
    Ok(())
}

fn condition(argument: &Argument) -> Result<SeccompCondition, ProfileError> {
    let (operator, value) = match argument.op.as_str() {
        "SCMP_CMP_EQ" => (SeccompCmpOp::Eq, argument.value),
        "SCMP_CMP_NE" => (SeccompCmpOp::Ne, argument.value),
        "SCMP_CMP_LT" => (SeccompCmpOp::Lt, argument.value),
        "SCMP_CMP_LE" => (SeccompCmpOp::Le, argument.value),
        "SCMP_CMP_GT" => (SeccompCmpOp::Gt, argument.value),
        "SCMP_CMP_GE" => (SeccompCmpOp::Ge, argument.value),
        "SCMP_CMP_MASKED_EQ" => (SeccompCmpOp::MaskedEq(argument.value), argument.value_two),
        other => return Err(ProfileError::Comparison(other.to_owned())),
    };
    SeccompCondition::new(argument.index, SeccompCmpArgLen::Qword, operator, value)
        .map_err(|error| ProfileError::Compile(error.to_string()))
}

fn action(name: &str, errno: Option<u32>) -> Result<SeccompAction, ProfileError> {
    const EPERM: u32 = 1;
    match name {
        "SCMP_ACT_ALLOW" => Ok(SeccompAction::Allow),
        "SCMP_ACT_ERRNO" => Ok(SeccompAction::Errno(errno.unwrap_or(EPERM))),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Ok(SeccompAction::KillThread),
        "SCMP_ACT_KILL_PROCESS" => Ok(SeccompAction::KillProcess),
        "SCMP_ACT_TRAP" => Ok(SeccompAction::Trap),
        "SCMP_ACT_LOG" => Ok(SeccompAction::Log),
        "SCMP_ACT_TRACE" => Ok(SeccompAction::Trace(errno.unwrap_or(EPERM))),
        other => Err(ProfileError::Action(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiles_the_default_profile() {
        let programs = compile(&profile::runtime_default(&[])).unwrap();
        // The list, sockets of two families, and clone3 with another error number.
        assert_eq!(programs.len(), 3);
        assert_eq!(compile(&profile::runtime_default(&["CAP_SYS_ADMIN".to_owned()])).unwrap().len(), 2);
    }

    #[test]
    fn refuses_what_it_cannot_express() {
        let profile = Profile { default_action: "SCMP_ACT_NOTIFY".into(), ..Default::default() };
        assert!(matches!(compile(&profile), Err(ProfileError::Action(_))));
        let rule = Rule {
            names: vec!["read".into()],
            action: "SCMP_ACT_ALLOW".into(),
            args: vec![Argument { op: "SCMP_CMP_ABOUT".into(), ..Default::default() }],
            ..Default::default()
        };
        let profile =
            Profile { default_action: "SCMP_ACT_ERRNO".into(), syscalls: vec![rule], ..Default::default() };
        assert!(matches!(compile(&profile), Err(ProfileError::Comparison(_))));
    }

    #[test]
    fn an_empty_localhost_profile_of_allow_has_no_programs() {
        let profile = Profile { default_action: "SCMP_ACT_ALLOW".into(), ..Default::default() };
        assert_eq!(compile(&profile).unwrap(), Vec::<BpfProgram>::new());
    }
}
