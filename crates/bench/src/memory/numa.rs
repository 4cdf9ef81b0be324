//! The NUMA nodes of this machine, from `/sys/devices/system/node` (Linux: Documentation/ABI/stable/sysfs-devices-node).

use std::fs;
use std::path::Path;

/// Where the kernel describes its nodes.
const NODES: &str = "/sys/devices/system/node";
/// Where the kernel describes caches.
const CACHES: &str = "/sys/devices/system/cpu";

/// A node with processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Processors of it that are online, in ascending order; never empty.
    pub processors: Vec<usize>,
    /// Memory that is free or holds copies of files, bytes; 0 if the kernel does not tell.
    pub free_bytes: u64,
    /// The largest cache level of all its processors together, bytes; 0 if the kernel does not tell.
    pub cache_bytes: u64,
}

/// Why the nodes are not known.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    /// A file of the kernel could not be read.
    #[error("read {path}: {answer}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        answer: std::io::Error,
    },
    /// A list of numbers such as `0-3,8` was expected.
    #[error("{path} is no list of numbers: `{text}`")]
    List {
        /// The file.
        path: String,
        /// What it says.
        text: String,
    },
}

/// All nodes that have processors, in ascending order. A kernel without NUMA has one, with the processors the caller may use.
///
/// # Errors
/// When a file of the kernel cannot be read or understood.
pub fn nodes() -> Result<Vec<NumaNode>, NumaError> {
    nodes_in(Path::new(NODES), Path::new(CACHES))
}

fn nodes_in(root: &Path, processors: &Path) -> Result<Vec<NumaNode>, NumaError> {
    if !root.is_dir() {
        let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let all: Vec<usize> = (0..count).collect();
        let cache_bytes = cache_bytes(processors, &all);
        return Ok(vec![NumaNode { number: 0, processors: all, free_bytes: 0, cache_bytes }]);
    }
    let mut found = Vec::new();
    for number in list(&root.join("online"))? {
        let at = root.join(format!("node{number}"));
        let of_node = list(&at.join("cpulist"))?;
        if of_node.is_empty() {
            // Memory without processors: slow memory or a device's.
            continue;
        }
        let cache_bytes = cache_bytes(processors, &of_node);
        let free_bytes = read(&at.join("meminfo")).ok().and_then(|text| free_bytes(&text)).unwrap_or(0);
        found.push(NumaNode { number: number as u32, processors: of_node, free_bytes, cache_bytes });
    }
    Ok(found)
}

fn read(path: &Path) -> Result<String, NumaError> {
    fs::read_to_string(path).map_err(|answer| NumaError::Read { path: path.display().to_string(), answer })
}

/// The numbers of a list as the kernel writes it.
fn list(path: &Path) -> Result<Vec<usize>, NumaError> {
    let text = read(path)?;
    parse_list(&text)
        .ok_or_else(|| NumaError::List { path: path.display().to_string(), text: text.trim().to_owned() })
}

fn parse_list(text: &str) -> Option<Vec<usize>> {
    // LIMIT: as many as the kernel supports, and more; a longer range is a damaged file.
    const NUMBERS_MAX: usize = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= NUMBERS_MAX || numbers.len() >= NUMBERS_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

fn free_bytes(meminfo: &str) -> Option<u64> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find(|line| line.contains(name))?;
        let kib: u64 = line.rsplit(':').next()?.split_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    };
    let of_files = ["Active(file):", "Inactive(file):"].map(|name| bytes(name).unwrap_or(0));
    of_files.into_iter().try_fold(bytes("MemFree:")?, u64::checked_add)
}

/// Sum of the last level of cache that these processors have, each cache once.
fn cache_bytes(root: &Path, of: &[usize]) -> u64 {
    let mut levels: Vec<(u32, Vec<usize>, u64)> = Vec::new();
    for processor in of {
        let at = root.join(format!("cpu{processor}/cache"));
        // LIMIT: no processor has more caches.
        for index in 0..16 {
            let at = at.join(format!("index{index}"));
            let Ok(level) = read(&at.join("level")) else { break };
            let Ok(shared) = list(&at.join("shared_cpu_list")) else { continue };
            let size = read(&at.join("size")).ok().and_then(|text| cache_size(text.trim()));
            if let (Ok(level), Some(size)) = (level.trim().parse(), size) {
                levels.push((level, shared, size));
            }
        }
    }
    let last = levels.iter().map(|(level, ..)| *level).max().unwrap_or(0);
    levels.retain(|(level, ..)| *level == last);
    levels.sort();
    levels.dedup();
    levels.iter().map(|(.., size)| size).sum()
}

/// `48K`, `32768K` or `48M`.
fn cache_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // The helpers of a test panic as the test does.
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn nodes_with_processors_are_found_with_their_caches() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(root, "node/online", "0-2\n");
        for (node, processors) in [(0, "0,2"), (1, "1,3"), (2, "")] {
            put(root, &format!("node/node{node}/cpulist"), &format!("{processors}\n"));
            let meminfo = format!(
                "Node {node} MemTotal:  100 kB\nNode {node} MemFree:   30 kB\n\
                 Node {node} Active(file):  7 kB\nNode {node} Inactive(file):  3 kB\n"
            );
            put(root, &format!("node/node{node}/meminfo"), &meminfo);
        }
        for (processor, shared) in [(0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")] {
            let at = format!("cpu/cpu{processor}/cache");
            for (index, level, shared, size) in
                [(0, 1, processor.to_string(), "48K"), (1, 3, shared.to_owned(), "12M")]
            {
                put(root, &format!("{at}/index{index}/level"), &format!("{level}\n"));
                put(root, &format!("{at}/index{index}/shared_cpu_list"), &format!("{shared}\n"));
                put(root, &format!("{at}/index{index}/size"), &format!("{size}\n"));
            }
        }
        let found = nodes_in(&root.join("node"), &root.join("cpu")).unwrap();
        let node =
            |number, processors| NumaNode { number, processors, free_bytes: 40 << 10, cache_bytes: 12 << 20 };
        assert_eq!(found, vec![node(0, vec![0, 2]), node(1, vec![1, 3])]);
    }

    #[test]
    fn a_kernel_without_numa_is_one_node() {
        let empty = tempfile::tempdir().unwrap();
        let found = nodes_in(&empty.path().join("none"), empty.path()).unwrap();
        assert_eq!((found.len(), found[0].number, found[0].cache_bytes), (1, 0, 0));
        assert!(!found[0].processors.is_empty());
    }

    #[test]
    fn lists_and_sizes_that_make_no_sense_are_refused() {
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        for text in ["x", "3-1", "0-99999999", "1-"] {
            assert_eq!(parse_list(text), None, "{text}");
        }
        assert_eq!(
            (cache_size("48K"), cache_size("1M"), cache_size("7"), cache_size("2G")),
            (Some(49_152), Some(1 << 20), Some(7), None)
        );
    }

    #[test]
    fn the_nodes_of_this_machine_are_found() {
        let found = nodes().unwrap();
        assert!(!found.is_empty() && found.iter().all(|node| !node.processors.is_empty()), "{found:?}");
    }
}
