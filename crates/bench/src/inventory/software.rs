//! Kernel, distribution, the tools that were run, and settings that change figures.

use super::line_of;
use crate::run::Tool;
use serde::{Deserialize, Serialize};
use std::fs;
use std::process::{Command, Stdio};

/// What runs on the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Software {
    /// Release of the kernel.
    pub kernel: String,
    /// As os-release(5) calls it.
    pub distribution: String,
    /// Programs that made load, with what they say of their version.
    pub tools: Vec<(String, String)>,
    /// Settings of the kernel, by their names.
    pub settings: Vec<(String, String)>,
}

/// Those that the papers set, and others that are known to change figures.
const SETTINGS: &[(&str, &str)] = &[
    ("vm.dirty_background_ratio", "/proc/sys/vm/dirty_background_ratio"),
    ("vm.dirty_ratio", "/proc/sys/vm/dirty_ratio"),
    ("vm.min_free_kbytes", "/proc/sys/vm/min_free_kbytes"),
    ("vm.vfs_cache_pressure", "/proc/sys/vm/vfs_cache_pressure"),
    ("vm.zone_reclaim_mode", "/proc/sys/vm/zone_reclaim_mode"),
    ("vm.swappiness", "/proc/sys/vm/swappiness"),
    ("kernel.numa_balancing", "/proc/sys/kernel/numa_balancing"),
    ("transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("scaling_governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    ("fuse.enable_uring", "/sys/module/fuse/parameters/enable_uring"),
];

impl Software {
    /// Looks at this machine, and asks `tools` for their versions.
    pub fn collect(tools: &[Tool]) -> Software {
        let setting = |(name, path): &(&str, &str)| Some(((*name).to_owned(), line_of(path)?));
        let own = ("ashlar".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let others = tools.iter().map(|tool| {
            (tool.name().to_owned(), version_of(*tool).unwrap_or_else(|| "not installed".into()))
        });
        Software {
            kernel: line_of("/proc/sys/kernel/osrelease").unwrap_or_else(|| "not known".into()),
            distribution: distribution(&fs::read_to_string("/etc/os-release").unwrap_or_default()),
            tools: std::iter::once(own).chain(others).collect(),
            settings: SETTINGS.iter().filter_map(setting).collect(),
        }
    }
}

fn distribution(text: &str) -> String {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "not known".into(), |name| name.trim_matches('"').to_owned())
}

/// What a program says of its version, in its first line; nothing if it is not installed.
pub fn version_of(tool: Tool) -> Option<String> {
    let option = match tool {
        Tool::Ashlar => return Some(env!("CARGO_PKG_VERSION").to_owned()),
        Tool::Iozone => "-v",
        // Without MPI's starter they run as one process, which is enough to tell their version.
        Tool::Ior | Tool::Mdtest => "-V",
        Tool::Fio => "--version",
    };
    let output = Command::new(tool.name()).arg(option).stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().filter(|character| !character.is_control()).take(80).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_a_name() {
        assert_eq!(distribution("ID=x\nPRETTY_NAME=\"Example Linux 1\"\n"), "Example Linux 1");
        assert_eq!(distribution(""), "not known");
        let found = Software::collect(&[]);
        assert_eq!(found.tools.len(), 1);
        assert!(found.settings.iter().any(|(name, _)| name == "vm.dirty_ratio"), "{found:?}");
    }
}
