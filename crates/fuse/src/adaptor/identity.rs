//! Who calls: from the request, and, when it matters, from /proc.

use crate::request::Request;
use ashlar_client::{ResolveCredentials, Who};
use ashlar_types::{Capabilities, Credentials};

/// The caller as the request tells: file-system user and group, and the groups that the kernel sent along.
pub(super) fn who(request: &Request<'_>) -> Who {
    let mut creds = Credentials::user(request.uid, request.gid);
    creds.groups.extend(request.extensions.groups());
    Who { creds, pid: request.pid }
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
    fn groups_and_capabilities_are_read_from_a_status_file() {
        let status = "Name:\tx\nGroups:\t4 24 1000 \nCapEff:\t000000000000000b\n";
        let creds = parse(status, &Credentials::user(1000, 1000)).unwrap();
        assert_eq!(creds.groups.as_slice(), [4, 24, 1000]);
        assert!(creds.caps.has(Capabilities::CHOWN) && creds.caps.has(Capabilities::FOWNER));
        assert!(!creds.caps.has(Capabilities::DAC_READ_SEARCH) && creds.complete);
        assert_eq!(parse("Name:\tx\n", &Credentials::default()), None);
    }
}
