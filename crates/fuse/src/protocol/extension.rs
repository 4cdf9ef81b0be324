//! Extensions of creating requests: supplementary groups and security contexts (`fuse_ext_header` in fuse.h).
//!
//! They sit at the end of a request; `total_extlen` of the header counts them in units of 8 bytes. Types up to 31 are
//! security contexts (the type is their number), 32 is a list of groups; others are skipped.

use super::fields::Fields;
use super::{Malformed, wire};
use zerocopy::FromBytes;

const TYPE_SECCTX_MAX: u32 = 31;
const TYPE_GROUPS: u32 = 32;

/// The extensions of one request, checked when the request was parsed. Usually empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extensions<'a> {
    groups: &'a [u8],
    contexts: &'a [u8],
    contexts_count: u32,
}

/// One security label to store with a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityContext<'a> {
    /// Extended attribute name, such as `security.selinux`.
    pub name: &'a [u8],
    /// Its value.
    pub label: &'a [u8],
}

impl<'a> Extensions<'a> {
    /// Checks and indexes `bytes`, the last `total_extlen` * 8 bytes of a request.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut found = Self::default();
        let mut fields = Fields::new(bytes);
        while !fields.rest().is_empty() {
            let head: wire::ExtHeader = fields.take()?;
            let len =
                (head.size as usize).checked_sub(size_of::<wire::ExtHeader>()).ok_or(Malformed::Extension)?;
            let body = fields.bytes(len).map_err(|_| Malformed::Extension)?;
            if head.kind <= TYPE_SECCTX_MAX {
                (found.contexts, found.contexts_count) = (body, head.kind);
                if found.contexts().count() != head.kind as usize {
                    return Err(Malformed::Extension);
                }
            } else if head.kind == TYPE_GROUPS {
                let (count, groups) = u32::read_from_prefix(body).map_err(|_| Malformed::Extension)?;
                let len = (count as usize).checked_mul(size_of::<u32>()).ok_or(Malformed::Extension)?;
                found.groups = groups.get(..len).ok_or(Malformed::Extension)?;
            }
        }
        Ok(found)
    }

    /// Supplementary groups of the caller that matter for this request (the parent's group, if the caller is in it).
    pub fn groups(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.groups.chunks_exact(size_of::<u32>()).filter_map(|bytes| u32::read_from_bytes(bytes).ok())
    }

    /// Security labels the new file must get in the same step.
    pub fn contexts(&self) -> impl Iterator<Item = SecurityContext<'a>> + use<'a> {
        let mut fields = Fields::new(self.contexts);
        (0..self.contexts_count).map_while(move |_| {
            let head: wire::Secctx = fields.take().ok()?;
            let name = fields.name().ok()?;
            let label = fields.bytes(head.size as usize).ok()?;
            Some(SecurityContext { name, label })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = (8 + body.len()).next_multiple_of(8);
        let mut bytes = [(size as u32).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(body);
        bytes.resize(size, 0);
        bytes
    }

    #[test]
    fn groups_and_labels_are_both_found() {
        let label = [&6u32.to_ne_bytes()[..], &[0; 4], b"security.selinux\0", b"user_u"].concat();
        let groups = [2u32.to_ne_bytes(), 100u32.to_ne_bytes(), 200u32.to_ne_bytes()].concat();
        let bytes = [extension(1, &label), extension(77, b"later"), extension(TYPE_GROUPS, &groups)].concat();
        let found = Extensions::parse(&bytes).unwrap();
        assert_eq!(found.groups().collect::<Vec<_>>(), [100, 200]);
        let context = found.contexts().next().unwrap();
        assert_eq!((context.name, context.label), (&b"security.selinux"[..], &b"user_u"[..]));
    }

    #[test]
    fn sizes_that_lie_are_refused() {
        let groups = [u32::MAX.to_ne_bytes(), 100u32.to_ne_bytes()].concat();
        assert_eq!(Extensions::parse(&extension(TYPE_GROUPS, &groups)).unwrap_err(), Malformed::Extension);
        let short = [7u32.to_ne_bytes(), TYPE_GROUPS.to_ne_bytes()].concat();
        assert_eq!(Extensions::parse(&short).unwrap_err(), Malformed::Extension);
        let long = [4096u32.to_ne_bytes(), TYPE_GROUPS.to_ne_bytes()].concat();
        assert_eq!(Extensions::parse(&long).unwrap_err(), Malformed::Extension);
        assert_eq!(Extensions::parse(&extension(2, b"")).unwrap_err(), Malformed::Extension);
        assert_eq!(Extensions::parse(&[1, 2, 3]).unwrap_err(), Malformed::Truncated);
    }
}
