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
    // Of larger pages a buffer has fewer pieces, which virtual disks are faster with.
    ("hugepages-64kB", "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"),
    ("hugepages-512kB", "/sys/kernel/mm/transparent_hugepage/hugepages-512kB/enabled"),
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

/// What a program says of its version; nothing if it is not installed.
pub fn version_of(tool: Tool) -> Option<String> {
    let arguments: &[&str] = match tool {
        Tool::Ashlar => return Some(env!("CARGO_PKG_VERSION").to_owned()),
        Tool::Iozone => &["-v"],
        // They tell it when they run only. Without MPI's starter they run as one process, and this interface touches no file.
        Tool::Ior => &["-a", "DUMMY", "-w", "-t", "1k", "-b", "1k", "-o", "version"],
        Tool::Mdtest => &["-a", "DUMMY", "-F", "-C", "-n", "1", "-d", "version"],
        Tool::Fio => &["--version"],
    };
    let output = Command::new(tool.name()).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some(version_in(tool, &String::from_utf8_lossy(&text)))
}

/// The version in what a program printed.
fn version_in(tool: Tool, text: &str) -> String {
    let marked = |mark: &str| text.split_whitespace().find(|word| word.starts_with(mark));
    let told = match tool {
        Tool::Ashlar | Tool::Fio => text.lines().map(str::trim).find(|line| !line.is_empty()),
        Tool::Iozone => text.split_once("$Revision:").and_then(|(_, rest)| rest.split_whitespace().next()),
        Tool::Ior => marked("IOR-").map(|word| word.trim_end_matches(':')),
        Tool::Mdtest => marked("mdtest-"),
    };
    let told = told.unwrap_or("it does not tell");
    told.chars().filter(|character| !character.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As iozone 3.471, IOR and mdtest 4.1 and 3.3, and fio 3.33 print it.
    #[test]
    fn programs_have_versions() {
        let iozone = "       'Iozone' Filesystem Benchmark Program\n \n        Version $Revision: 3.471 $\n\t\tCompiled for 64 bit mode.\n";
        assert_eq!(version_in(Tool::Iozone, iozone), "3.471");
        let ior = "IOR-4.1.0+dev: MPI Coordinated Test of Parallel I/O\nWARNING: DUMMY initialized\nBegan";
        assert_eq!(version_in(Tool::Ior, ior), "IOR-4.1.0+dev");
        let mdtest = "WARNING: DUMMY initialized\n-- started at 11/23/2026 13:12:36 --\n\nmdtest-3.3.0 was launched with 1 total task(s) on 1 node(s)\n";
        assert_eq!(version_in(Tool::Mdtest, mdtest), "mdtest-3.3.0");
        assert_eq!(version_in(Tool::Fio, "fio-3.33\n"), "fio-3.33");
        assert_eq!(version_in(Tool::Ior, "Error invalid argument: -V\n"), "it does not tell");
    }

    #[test]
    fn a_distribution_has_a_name() {
        assert_eq!(distribution("ID=x\nPRETTY_NAME=\"Example Linux 1\"\n"), "Example Linux 1");
        assert_eq!(distribution(""), "not known");
        let found = Software::collect(&[]);
        assert_eq!(found.tools.len(), 1);
        assert!(found.settings.iter().any(|(name, _)| name == "vm.dirty_ratio"), "{found:?}");
    }
}
