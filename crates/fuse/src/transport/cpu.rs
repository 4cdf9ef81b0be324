//! Processors: how many the kernel may ever have (io_uring wants a queue for each), and which this process may use.

use std::io;

/// How many processors the kernel may ever have, `num_possible_cpus()`.
pub(crate) fn possible_count() -> io::Result<usize> {
    Ok(read_list("/sys/devices/system/cpu/possible")?.len())
}

/// The numbers of the processors that run now.
pub(crate) fn online() -> io::Result<Vec<usize>> {
    read_list("/sys/devices/system/cpu/online")
}

fn read_list(path: &str) -> io::Result<Vec<usize>> {
    let list = std::fs::read_to_string(path)?;
    parse_list(list.trim())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable processor list"))
}

/// The members of a list such as `0-3,8`.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    // LIMIT: the kernel has no more processors than this (CONFIG_NR_CPUS).
    const CPUS_MAX: usize = 8192;
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The numbers of the processors this process may run on, in order; never empty.
pub(crate) fn allowed() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is as large as said.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    // SAFETY: CPU_ISSET reads a bit of the set; the number is below its size.
    let is_set = |cpu: usize| result == 0 && unsafe { libc::CPU_ISSET(cpu, &set) };
    let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| is_set(cpu)).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Binds the calling thread to `cpus`.
///
/// # Errors
/// EINVAL if none of them is online and allowed; the thread then runs where it did.
pub(crate) fn bind(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: `cpu` is below the size of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is as large as said.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_lists_are_read() {
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list("0-99999999999"), None);
        assert_eq!(parse_list(""), None);
    }
}
