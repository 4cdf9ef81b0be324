//! Who calls: from the request, and, when it matters, from /proc.

use crate::request::Request;
use ashlar_client::{ResolveCredentials, Who};
use ashlar_types::{Capabilities, Credentials};

/// The caller as the request tells: file-system user and group, and the groups that the kernel sent along.
pub(super) fn who(request: &Request<'_>) -> Who {
    let mut creds = Credentials::user(request.uid, request.gid);
    creds.groups.extend(request.extensions.groups());
    Who { creds, pid: request.pid, ..Who::system() }
}

/// Supplementary groups and effective capabilities from `/proc/PID/status` (`proc_pid_status(5)`).
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcCredentials;

/// Bits of `capability.h` and the names they have here.
const CAPABILITY_BITS: [(u32, Capabilities); 8] = [
    (0, Capabilities::CHOWN),
    (1, Capabilities::DAC_OVERRIDE),
    (2, Capabilities::DAC_READ_SEARCH),
    (3, Capabilities::FOWNER),
    (4, Capabilities::FSETID),
    (27, Capabilities::MKNOD),
    (21, Capabilities::SYS_ADMIN),
    (24, Capabilities::SYS_RESOURCE),
];

impl ResolveCredentials for ProcCredentials {
    fn resolve(&self, pid: u32, known: &Credentials) -> Option<Credentials> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        parse(&status, known)
    }

    fn is_passing(&self, pid: u32) -> bool {
        let line = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
        line.ok().and_then(|line| number_of(&line)).is_some_and(|number| PASSING.contains(&number))
    }
}

/// System calls that open, make, move or remove what they name, and tell nothing of the directories on the way. (Not rmdir: a program of 32 bits has its number
/// for a stat.)
const PASSING: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
];

/// The number in `/proc/PID/syscall` (`proc_pid_syscall(5)`); none while the thread runs, or is in no call.
fn number_of(line: &str) -> Option<libc::c_long> {
    line.split_whitespace().next()?.parse().ok().filter(|number| *number >= 0)
}

fn parse(status: &str, known: &Credentials) -> Option<Credentials> {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let effective = u64::from_str_radix(field("CapEff")?, 16).ok()?;
    let mut creds = known.clone();
    creds.groups = field("Groups")?.split_whitespace().filter_map(|group| group.parse().ok()).collect();
    creds.caps = CAPABILITY_BITS
        .iter()
        .filter(|(bit, _)| effective >> bit & 1 == 1)
        .fold(Capabilities::default(), |caps, (_, capability)| caps.with(*capability));
    creds.complete = true;
    Some(creds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_a_thread_is_in_is_read_from_a_syscall_file() {
        let line = format!("{} 0xffffff9c 0x7f 0x241 0x1b6 0x0 0x0 0x7ffd 0x7f2a\n", libc::SYS_openat);
        assert_eq!(number_of(&line), Some(libc::SYS_openat));
        assert_eq!((number_of("running\n"), number_of("-1 0x7f 0x7f\n"), number_of("")), (None, None, None));
        assert!(!PASSING.contains(&libc::SYS_statx) && !PASSING.contains(&libc::SYS_newfstatat));
    }

    #[test]
    fn groups_and_capabilities_are_read_from_a_status_file() {
        let status = "Name:\tx\nGroups:\t4 24 1000 \nCapEff:\t000000000000000b\n";
        let creds = parse(status, &Credentials::user(1000, 1000)).unwrap();
        assert_eq!(creds.groups.as_slice(), [4, 24, 1000]);
        assert!(creds.caps.has(Capabilities::CHOWN) && creds.caps.has(Capabilities::FOWNER));
        assert!(!creds.caps.has(Capabilities::DAC_READ_SEARCH) && creds.complete);
        assert_eq!(parse("Name:\tx\n", &Credentials::default()), None);
    }
}
